"""The environment of one rollout in generated code: a world in the sandbox behind the checks of every call."""

from collections.abc import Sequence
from typing import Any

from slca_jax.chat.checks import checks_of
from slca_jax.dialogue import Observation, Tool, ToolCall
from slca_jax.envs.guard import DEFAULT, CallLimits, as_text, bounded, cut
from slca_jax.envs.sandbox import Code, Gone, Hung, Sandbox, Session
from slca_jax.errors import EnvironmentFailure
from slca_jax.surrogates import mended

_STATE_SECONDS = 60.0  # to compare or to hand over a database of hundreds of megabytes


class Sandboxed:
  """The environment of one rollout. A call that crashes, hangs or is cancelled changes nothing.

  Its world is killed, and before the next call a fresh one gets all earlier calls again. They answer as before, since
  clock, chance and the order of sets are fixed; a world that answers otherwise ends the rollout.
  """

  def __init__(self, tools: Sequence[Tool], code: Code, sandbox: Sandbox, *, limits: CallLimits = DEFAULT):
    """Nothing runs before the first call.

    Args:
      tools: the tools on offer, each a function in the code's source.
      code: checked before (`toolverse.blueprint.load` does); here it is only run.
      sandbox: shared by the environments of a run.
      limits: patience with a call.
    """
    self.tools = tuple(tools)
    self._checks, self._limits = checks_of(self.tools), limits
    self._code, self._sandbox = code, sandbox
    self._session: Session | None = None
    self._made: list[tuple[dict[str, Any], int]] = []  # calls, and a hash of what they answered
    self._open = True

  async def step(self, calls: Sequence[ToolCall]) -> list[Observation]:
    """One observation per call, in order; the calls run one after another.

    Raises:
      EnvironmentFailure: the environment was closed, its functions cannot be loaded, or it does not replay.
      ConfigError: this machine protects less than the sandbox asks for.
    """
    return [await self._answer(call) for call in calls]

  async def value(self, call: ToolCall) -> Any:
    """The call's result as JSON.

    Raises:
      ValueError: the call was refused, crashed or hung; the text is what the policy would read.
      EnvironmentFailure: as `step`.
    """
    fault = self._checks.fault(call)
    if fault is not None:
      raise ValueError(fault)
    answer = await self._ask(call)
    if 'error' in answer:
      raise ValueError(answer['error'])
    return answer['value']

  async def database(self) -> Any:
    """A copy of the database as it stands."""
    return await self._look('database')

  async def changes(self) -> list[dict[str, Any]]:
    """How the database differs from how it began, as `confined.changes.changes` says it."""
    return await self._look('changes')

  def close(self) -> None:
    """Ends the world. A second close does nothing."""
    self._open = False
    if self._session is not None:
      self._session.close()
      self._session = None

  async def _answer(self, call: ToolCall) -> Observation:
    fault = self._checks.fault(call)
    if fault is not None:
      return bounded(Observation(fault, ok=False), limits=self._limits)
    answer = await self._ask(call)
    if 'error' in answer:
      return Observation(mended(cut(f'Error: {answer["error"]}', self._limits.max_error_characters)), ok=False)
    return bounded(Observation(as_text(answer['value'])), limits=self._limits)

  async def _ask(self, call: ToolCall) -> dict[str, Any]:
    message = {'do': 'call', 'call': call.name, 'arguments': dict(call.arguments)}
    session = await self._running()
    try:
      answer = await session.ask(message, deadline=self._limits.deadline)
    except (Hung, Gone) as lost:
      return {'error': f'{call.name} gave {lost}' if isinstance(lost, Hung) else f'{call.name} broke: {lost}'}
    self._made.append((message, hash(repr(answer))))
    return answer

  async def _look(self, what: str) -> Any:
    session = await self._running()
    try:
      answer = await session.ask({'do': what}, deadline=_STATE_SECONDS)
    except (Hung, Gone) as lost:
      raise EnvironmentFailure(f'the database cannot be read: {lost}') from lost
    if 'error' in answer:
      raise EnvironmentFailure(f'the database cannot be read: {answer["error"]}')
    return answer['value']

  async def _running(self) -> Session:
    """The world, after a loss a fresh one in the same state."""
    if not self._open:
      raise EnvironmentFailure('a call to an environment that was closed')
    if self._session is None or self._session.closed:
      self._session = self._sandbox.open(self._code)
      for message, before in self._made:
        try:
          again = await self._session.ask(message, deadline=self._limits.deadline)
        except (Hung, Gone) as lost:
          raise EnvironmentFailure(f'{message["call"]} answered once and not when replayed: {lost}') from lost
        if hash(repr(again)) != before:
          raise EnvironmentFailure(f'{message["call"]} answers differently when replayed; it is not deterministic')
    return self._session
