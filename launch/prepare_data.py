"""Turns a data set into files for SFT and RL and prints what was kept and why the rest was not.

python launch/prepare_data.py --config=configs/data.py:toucan --config.input=… --config.output=runs/data/toucan

Writes dialogues_train.jsonl (for train_sft.py), tasks_train.jsonl (for train_rl.py), both also as _heldout, report.json
and report.md. The same command again resumes. Formats: configs/data.py; all settings: slca_jax/data/settings.py.
"""

import sys

from absl import app
from ml_collections import config_flags
from overrides import parsed

from slca_jax.config import build
from slca_jax.data.funnel import markdown
from slca_jax.data.pipeline import prepare
from slca_jax.data.settings import Preparation
from slca_jax.errors import Refused

_CONFIG = config_flags.DEFINE_config_file('config', 'configs/data.py', 'Settings of the preparation.', lock_config=True)


def main(arguments: list[str]) -> None:
  """Prepares the data set and prints its funnel as Markdown."""
  if len(arguments) > 1:
    raise app.UsageError(f'unknown arguments {arguments[1:]}; settings are given as --config.KEY=VALUE')
  try:
    config = build(Preparation, _CONFIG.value)
    print(markdown(prepare(config)), end='')
  except (Refused, OSError) as error:
    sys.exit(f'{type(error).__name__}: {error}')


if __name__ == '__main__':
  app.run(main, flags_parser=parsed)
