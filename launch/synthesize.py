"""Makes environments and tasks from raw tool schemas. The same command again goes on where it stopped.

python launch/synthesize.py --config=configs/toolverse.py --config.schemas=SCHEMAS

With --config.teacher.model.path=CHECKPOINT a teacher tries every task that replays. What may be asked for:
configs/toolverse.py; all settings: slca_jax/train/teacher_settings.py and slca_jax/toolverse/run.py.
"""

import sys

from absl import app, logging
from ml_collections import config_flags
from overrides import parsed

from slca_jax.config import build
from slca_jax.errors import Ended, Refused
from slca_jax.toolverse.run import make
from slca_jax.toolverse.teaching import Teacher
from slca_jax.train.teacher_settings import SynthesizeConfig

_CONFIG = config_flags.DEFINE_config_file('config', 'configs/toolverse.py', 'Settings of the run.', lock_config=True)


def main(arguments: list[str]) -> None:
  """Checks the settings, makes everything, and prints what was left after each stage."""
  if len(arguments) > 1:
    raise app.UsageError(f'unknown arguments {arguments[1:]}; settings are given as --config.KEY=VALUE')
  logging.set_verbosity(logging.WARNING)
  try:
    config = build(SynthesizeConfig, _CONFIG.value)
    print(make(config, teacher=_teacher(config)))
  except (Ended, Refused) as error:
    sys.exit(f'{type(error).__name__}: {error}')


def _teacher(config: SynthesizeConfig) -> Teacher | None:
  if not config.teacher.model.path:
    return None
  from slca_jax.train.teacher import teacher_of  # only a run with a teacher needs JAX

  return teacher_of(config)


if __name__ == '__main__':
  app.run(main, flags_parser=parsed)
