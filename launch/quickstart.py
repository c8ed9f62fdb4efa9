"""Runs the quickstart's experiment and prints what changed; see configs/quickstart.py.

python launch/quickstart.py --config=configs/quickstart.py [--config.seed=1 --config.output=runs/quickstart_1]
"""

import sys

from absl import app, logging
from ml_collections import config_flags
from overrides import parsed

from slca_jax.config import build
from slca_jax.errors import Ended, Refused

_CONFIG = config_flags.DEFINE_config_file('config', 'configs/quickstart.py', 'Settings of the run.', lock_config=True)


def main(arguments: list[str]) -> None:
  """Trains, evaluates, prints a table and where the report is."""
  if len(arguments) > 1:
    raise app.UsageError(f'unknown arguments {arguments[1:]}; settings are given as --config.KEY=VALUE')
  from slca_jax.quickstart import experiment, report

  logging.set_verbosity(logging.WARNING)  # libraries below tell every file they write
  try:
    config = build(experiment.QuickstartConfig, _CONFIG.value)
    summary = experiment.run(config)
  except (Ended, Refused) as error:
    sys.exit(f'{type(error).__name__}: {error}')
  print(report.text_table(summary))
  print(f'{sum(summary["seconds"].values()):.0f} s; the report is {config.output}/report.html')


if __name__ == '__main__':
  app.run(main, flags_parser=parsed)
