"""Outcome by state: whether a rollout left the world as the golden trace does."""

from typing import Any, Protocol, runtime_checkable

from slca_jax.dialogue import Observation, Steps, Task
from slca_jax.envs.environment import Environment, Opener
from slca_jax.errors import EnvironmentFailure

Changes = list[dict[str, Any]]


@runtime_checkable
class Stateful(Protocol):
  """An environment over a database that can be compared with how it began."""

  async def changes(self) -> Changes:
    """How the database differs from how it began."""
    ...


async def final_state(environment: Environment) -> Changes:
  """What a rollout did to its database so far; ask before the environment is closed.

  Rollouts of one task end alike exactly if these are equal, since they began alike. Small however large the database
  is, and the same whichever way led there; `[]` if nothing changed.

  Raises:
    EnvironmentFailure: the environment has no database, or it cannot be read.
  """
  if not isinstance(environment, Stateful):
    raise EnvironmentFailure(f'{type(environment).__name__} has no database whose final state could be compared')
  return await environment.changes()


async def golden_state(task: Task, open_task: Opener) -> Changes:
  """What the task's golden trace does to a fresh database.

  Raises:
    EnvironmentFailure: a golden call is refused, so the trace does not replay.
  """
  environment = open_task(task, 0)
  try:
    for step, answers in zip(task.gold, await replay(environment, task.gold), strict=True):
      for call, seen in zip(step, answers, strict=True):
        if not seen.ok:
          raise EnvironmentFailure(f'task {task.id}: the golden {call.name} is refused: {seen.content[:200]}')
    return await final_state(environment)
  finally:
    environment.close()


async def replay(environment: Environment, steps: Steps) -> list[list[Observation]]:
  """What the environment answers to the steps, one list per step."""
  return [await environment.step(step) for step in steps]
