"""Trains a tool-calling policy with reinforcement learning. The same command again resumes.

python launch/train_rl.py --config=configs/rl.py:slca --config.model.path=MODEL --config.data.train=TASKS.jsonl

All settings: RLConfig in slca_jax/train/settings.py.

On several hosts each runs it, with --coordinator=auto, or --coordinator=HOST:PORT --processes=N --process=I.
"""

import json
import sys

from absl import app, logging
from ml_collections import config_flags
from multihost import joined
from overrides import parsed

from slca_jax.config import build
from slca_jax.errors import Ended, Refused
from slca_jax.train.settings import RLConfig

_CONFIG = config_flags.DEFINE_config_file('config', 'configs/rl.py:slca', 'Settings of the run.', lock_config=True)


def main(arguments: list[str]) -> None:
  """Checks the settings before anything heavy is imported, then trains and prints the last numbers as JSON."""
  if len(arguments) > 1:
    raise app.UsageError(f'unknown arguments {arguments[1:]}; settings are given as --config.KEY=VALUE')
  logging.set_verbosity(logging.WARNING)  # libraries below tell every file they write
  try:
    config = build(RLConfig, _CONFIG.value)
    with joined() as first:
      from slca_jax.train import rl

      numbers = rl.train(config)
      if first:
        print(json.dumps(numbers, indent=2))
  except (Ended, Refused) as error:
    sys.exit(f'{type(error).__name__}: {error}')


if __name__ == '__main__':
  app.run(main, flags_parser=parsed)
