"""Makes environments and tasks from raw tool schemas. The same command again goes on where it stopped.

python launch/synthesize.py --config=configs/toolverse.py --config.schemas=SCHEMAS
"""

import sys

from absl import app, logging
from ml_collections import config_flags

from slca_jax.config import build
from slca_jax.errors import EndpointFailure, EnvironmentFailure, Refused
from slca_jax.toolverse.run import ToolverseConfig, make

_CONFIG = config_flags.DEFINE_config_file('config', 'configs/toolverse.py', 'Settings of the run.', lock_config=True)


def main(arguments: list[str]) -> None:
  """Checks the settings, makes everything, and prints what was left after each stage."""
  if len(arguments) > 1:
    raise app.UsageError(f'unknown arguments {arguments[1:]}; settings are given as --config.KEY=VALUE')
  logging.set_verbosity(logging.WARNING)
  try:
    print(make(build(ToolverseConfig, _CONFIG.value)))
  except (Refused, EndpointFailure, EnvironmentFailure) as error:
    sys.exit(f'{type(error).__name__}: {error}')


if __name__ == '__main__':
  app.run(main)
