"""The schema-guided simulator: deterministic checks first; who answers for the backend sees valid calls only."""

import inspect
from collections.abc import Awaitable, Callable, Sequence

from slca_jax.chat.checks import checks_of
from slca_jax.dialogue import Observation, Tool, ToolCall
from slca_jax.envs.guard import DEFAULT, CallLimits, answer_all
from slca_jax.errors import EnvironmentFailure

# The tool is None if it is unknown and unchecked.
Answer = Callable[[Tool | None, ToolCall], Awaitable[Observation] | Observation]


class Simulator:
  """An environment whose tools nobody implements: `answer` plays their backend.

  A call must name a tool of this instance, give every required parameter and fit the schema; otherwise a fixed error
  answers and the backend is never asked. `checks=False` lets every call through.

  SLCA-GRPO (arXiv:2609.29050), §3.4, stage 1.
  """

  def __init__(self, tools: Sequence[Tool], answer: Answer, *, checks: bool = True, limits: CallLimits = DEFAULT):
    self.tools = tuple(tools)
    self._answer = answer
    self._checks = checks_of(self.tools)
    self._checked = checks
    self._limits = limits
    self._open = True

  async def step(self, calls: Sequence[ToolCall]) -> list[Observation]:
    """One observation per call, in order; valid calls are answered concurrently.

    Raises:
      EnvironmentFailure: the simulator was closed, or `answer` says that the backend is gone.
    """
    if not self._open:
      raise EnvironmentFailure('a call to a simulator that was closed')
    return await answer_all(calls, self._respond, limits=self._limits)

  def close(self) -> None:
    """Refuses further steps."""
    self._open = False

  async def _respond(self, call: ToolCall) -> Observation:
    fault = self._checks.fault(call) if self._checked else None
    if fault is not None:
      return Observation(fault, ok=False)
    seen = self._answer(self._checks.tool(call.name), call)
    return await seen if inspect.isawaitable(seen) else seen
