"""Tasks in the middle of a dialogue: what was called before has happened when the policy's turn comes."""

from collections.abc import Sequence
from typing import Any

from slca_jax.dialogue import Observation, Task, Tool, ToolCall
from slca_jax.envs.environment import Environment, Opener
from slca_jax.envs.state import final_state


def calls_before(task: Task) -> tuple[ToolCall, ...]:
  """The calls of the dialogue so far, in order."""
  return tuple(call for message in task.messages for call in message.calls)


class Resumed:
  """An environment in which some calls are made before the first step."""

  def __init__(self, environment: Environment, before: Sequence[ToolCall]):
    self._environment, self._before = environment, tuple(before)

  @property
  def tools(self) -> tuple[Tool, ...]:
    """The tools on offer here."""
    return self._environment.tools

  async def step(self, calls: Sequence[ToolCall]) -> list[Observation]:
    """One observation per call, in order.

    Raises:
      EnvironmentFailure: as the environment does.
    """
    await self._catch_up()
    return await self._environment.step(calls)

  async def changes(self) -> list[dict[str, Any]]:
    """How the database differs from how it began, before the calls of the dialogue.

    Raises:
      EnvironmentFailure: the environment has no database.
    """
    await self._catch_up()
    return await final_state(self._environment)

  def close(self) -> None:
    """Frees what the world holds. A second close does nothing."""
    self._environment.close()

  async def _catch_up(self) -> None:
    while self._before:  # one by one: they were made in this order
      await self._environment.step(self._before[:1])
      self._before = self._before[1:]


def resuming(open_task: Opener) -> Opener:
  """The opener, for tasks whose dialogue may hold calls: these are made again in the fresh environment."""

  def open_resumed(task: Task, seed: int) -> Environment:
    environment, before = open_task(task, seed), calls_before(task)
    return Resumed(environment, before) if before else environment

  return open_resumed
