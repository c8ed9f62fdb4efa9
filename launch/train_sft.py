"""Trains a tool-calling policy with supervised learning on demonstrations, or resumes.

python launch/train_sft.py --config=configs/sft.py --config.model.path=MODEL --config.data.train=DIALOGUES.jsonl
"""

import sys

from absl import app, flags
from ml_collections import config_flags

from slca_jax import config as settings

_CONFIG = config_flags.DEFINE_config_file('config', 'configs/sft.py', 'Settings of the run.', lock_config=True)
_DISTRIBUTED = flags.DEFINE_bool('distributed', False, 'Join the other hosts of a pod or cluster first.')


def main(arguments: list[str]) -> None:
  """Checks the settings before anything heavy is imported, then trains."""
  if len(arguments) > 1:
    raise app.UsageError(f'unknown arguments {arguments[1:]}; settings are given as --config.KEY=VALUE')
  import jax

  if _DISTRIBUTED.value:
    jax.distributed.initialize()
  from slca_jax.train import sft
  from slca_jax.train.settings import SFTConfig

  print(sft.train(settings.build(SFTConfig, _CONFIG.value)), file=sys.stderr)


if __name__ == '__main__':
  app.run(main)
