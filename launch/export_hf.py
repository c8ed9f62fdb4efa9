"""Writes a checkpoint of a run as a Hugging Face folder; a run that ended has already done so, in RUN/model.

python launch/export_hf.py --run=runs/slca --step=200 --to=exported
"""

import pathlib
import sys

from absl import app, flags, logging

from slca_jax.config import build
from slca_jax.errors import Refused
from slca_jax.train.settings import RLConfig, SFTConfig

_RUN = flags.DEFINE_string('run', None, 'Folder of the run.', required=True)
_STEP = flags.DEFINE_integer('step', None, 'Which checkpoint; the newest if not given.')
_TO = flags.DEFINE_string('to', None, 'Where the folder is written.', required=True)


def main(arguments: list[str]) -> None:
  """Loads the run's model, replaces its weights by the checkpoint's, and saves."""
  if len(arguments) > 1:
    raise app.UsageError(f'unknown arguments {arguments[1:]}')
  logging.set_verbosity(logging.WARNING)
  from slca_jax.train import export
  from slca_jax.train.run import remembered

  try:
    settings = remembered(pathlib.Path(_RUN.value))
    config = build(RLConfig if 'group_size' in settings else SFTConfig, settings)
    print(export.export(config, pathlib.Path(_RUN.value), pathlib.Path(_TO.value), step=_STEP.value))
  except (Refused, OSError) as error:
    sys.exit(f'{type(error).__name__}: {error}')


if __name__ == '__main__':
  app.run(main)
