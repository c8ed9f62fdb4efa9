"""Compares methods over judges and seeds, and says which of the paper's claims hold. The same command again goes on.

python launch/study.py --config=configs/study.py [--config.select='bias*/slca/*' --config.jobs=2]
python launch/study.py --config=configs/study.py --tables   # of what is finished, without making anything

Kinds of studies: configs/study.py; all settings: slca_jax/evals/study_settings.py.
"""

import sys

from absl import app, flags, logging
from ml_collections import config_flags
from overrides import parsed

from slca_jax.config import build
from slca_jax.errors import Refused

_CONFIG = config_flags.DEFINE_config_file('config', 'configs/study.py', 'Settings of the study.', lock_config=True)
_TABLES = flags.DEFINE_bool('tables', False, 'Only the tables of what is finished.')


def main(arguments: list[str]) -> None:
  """Says what is to be made and how long it will take, makes it, and prints the tables."""
  if len(arguments) > 1:
    raise app.UsageError(f'unknown arguments {arguments[1:]}; settings are given as --config.KEY=VALUE')
  from slca_jax.evals import study
  from slca_jax.evals.study_settings import StudyConfig

  logging.set_verbosity(logging.WARNING)  # libraries below tell every file they write
  try:
    config = build(StudyConfig, _CONFIG.value)
    say = lambda line: print(line, flush=True)
    print(study.report(config) if _TABLES.value else study.run(config, say=say), end='')
  except Refused as error:
    sys.exit(f'{type(error).__name__}: {error}')
  if left := study.left(config):
    sys.exit(f'{len(left)} are left, {left[0]} first; the same command makes them')


if __name__ == '__main__':
  app.run(main, flags_parser=parsed)
