"""Blueprints that run: as environments of rollouts, and one call after another for work without a policy.

environment = open_world(blueprint, sandbox)          # an Environment: await environment.step(calls)
open_task = blueprint_opener('environments', settings)  # an Opener for tasks whose blueprint is a folder in there
with Trial(blueprint) as trial:                       # blocking, for synthesis, sampling and gates
  hotels = trial.value(ToolCall('search_hotels', {'city': 'Rome'}))
  trial.database()['hotels']
"""

import functools
import pathlib
from collections.abc import Sequence
from typing import Any

from slca_jax import blocking
from slca_jax.dialogue import Observation, Task, Tool, ToolCall
from slca_jax.envs.environment import Opener
from slca_jax.envs.guard import DEFAULT, CallLimits
from slca_jax.envs.sandbox import Sandbox, SandboxSettings, shared_sandbox
from slca_jax.envs.sandboxed import Sandboxed
from slca_jax.errors import DataError, EnvironmentFailure
from slca_jax.toolverse.blueprint import Blueprint, load
from slca_jax.toolverse.history import resuming

_TRIAL = CallLimits(deadline=30.0)
_MOST_LOADED = 1024  # blueprints


class Trial:
  """A blueprint's world for work without a policy: calls wait for their answers, and so does a loop that makes them."""

  def __init__(self, blueprint: Blueprint, *, sandbox: Sandbox | None = None):
    self._world = open_world(blueprint, sandbox or shared_sandbox(SandboxSettings()), limits=_TRIAL)
    self._runner = blocking.Runner()

  def __enter__(self) -> 'Trial':
    return self

  def __exit__(self, *error: object) -> None:
    self.close()

  def call(self, call: ToolCall) -> Observation:
    """What the policy would see."""
    return self._runner.run(self._world.step([call]))[0]

  def value(self, call: ToolCall) -> Any:
    """The call's result as JSON.

    Raises:
      ValueError: the call was refused, crashed or hung.
    """
    return self._runner.run(self._world.value(call))

  def database(self) -> Any:
    """A copy of the database as it stands."""
    return self._runner.run(self._world.database())

  def changes(self) -> list[dict[str, Any]]:
    """How the database differs from how it began."""
    return self._runner.run(self._world.changes())

  def close(self) -> None:
    """Ends the world. A second close does nothing."""
    self._world.close()
    self._runner.close()


def open_world(
  blueprint: Blueprint, sandbox: Sandbox, *, tools: Sequence[Tool] | None = None, limits: CallLimits = DEFAULT
) -> Sandboxed:
  """A fresh environment of the blueprint; its process starts with the first call.

  Args:
    tools: those on offer, if they are not all of the blueprint's.

  Raises:
    EnvironmentFailure: a tool is none of the blueprint's.
  """
  for tool in tools or ():
    if tool.name not in blueprint.tool:
      raise EnvironmentFailure(f'{blueprint.name} has no tool {tool.name!r}; known: {", ".join(blueprint.tool)}')
  return Sandboxed(blueprint.tools if tools is None else tools, blueprint.code, sandbox, limits=limits)


def blueprint_opener(folder: str, settings: SandboxSettings, *, limits: CallLimits = DEFAULT) -> Opener:
  """Opens tasks whose blueprint is the path of a folder inside `folder`, each read once.

  Calls that a task's dialogue holds already have been made there when the policy's turn comes.

  Raises:
    ConfigError: this machine protects less than the settings ask for.
  """
  root = pathlib.Path(folder).resolve()
  sandbox = shared_sandbox(settings)
  sandbox.require_level()

  @functools.lru_cache(maxsize=_MOST_LOADED)
  def read(name: str) -> Blueprint:
    path = (root / name).resolve()
    if not path.is_relative_to(root):
      raise DataError(f'{name!r} leads out of {root}; a blueprint is a folder inside it')
    return load(path)

  def open_task(task: Task, seed: int) -> Sandboxed:
    del seed  # a world answers the same to every rollout
    try:
      blueprint = read(task.blueprint or '')
    except DataError as error:
      raise EnvironmentFailure(f'task {task.id}: {error}') from error
    return open_world(blueprint, sandbox, tools=task.tools, limits=limits)

  return resuming(open_task)
