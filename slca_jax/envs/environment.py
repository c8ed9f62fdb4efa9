"""What the rollout loop needs of a world: tools, one observation per call, in order."""

from collections.abc import Callable, Sequence
from typing import Protocol

from slca_jax.dialogue import Observation, Task, Tool, ToolCall


class Environment(Protocol):
  """The world of one rollout. It belongs to that rollout alone, so it may change as its tools write."""

  @property
  def tools(self) -> tuple[Tool, ...]:
    """The tools on offer here."""
    ...

  async def step(self, calls: Sequence[ToolCall]) -> list[Observation]:
    """One observation per call, in the calls' order, whatever the tools do.

    Raises:
      EnvironmentFailure: the world itself is gone; a tool's refusal, crash or hang is an `Observation(ok=False)`.
    """
    ...

  def close(self) -> None:
    """Frees what the world holds. A second close does nothing."""
    ...


Opener = Callable[[Task, int], Environment]  # (task, seed) -> the fresh world of one rollout
