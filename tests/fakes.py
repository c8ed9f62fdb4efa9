"""Scripted stand-ins: an engine that says what it is told, environments that misbehave."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from slca_jax.dialogue import Observation, Tool, ToolCall
from slca_jax.errors import EnvironmentFailure, SamplerError
from slca_jax.rollout.sampler import Sample

Script = Callable[[str, Sequence[int]], Sequence[int] | Sample]  # (session, ids so far) -> what to say


class LeapingLoop(asyncio.SelectorEventLoop):
  """An event loop whose clock a test moves on: a deadline passes when all else is done, on the slowest machine too."""

  def __init__(self):
    super().__init__()
    self._ahead = 0.0

  def time(self) -> float:
    """Seconds, with those that were leapt over."""
    return super().time() + self._ahead

  def leap(self, seconds: float) -> None:
    """Moves the clock on; timers that are due then fire after what is ready now. Call it in the loop's thread."""
    self._ahead += seconds

  def leap_soon(self, seconds: float) -> None:
    """`leap` for other threads: once the loop has come to rest after all that it was told before."""

    async def rest_and_leap() -> None:
      for _ in range(100):
        await asyncio.sleep(0)
      self.leap(seconds)

    asyncio.run_coroutine_threadsafe(rest_and_leap(), self)


def run_leaping(scene: Coroutine[Any, Any, Any]) -> Any:
  """`asyncio.run` in a LeapingLoop."""
  with asyncio.Runner(loop_factory=LeapingLoop) as runner:
    return runner.run(scene)


class ScriptedSampler:
  """Answers every request from a script; remembers what it was asked."""

  def __init__(self, script: Script, *, concurrency: int = 8):
    self.concurrency = concurrency
    self.requests: list[dict[str, Any]] = []
    self.released: list[str] = []
    self.live = self.most_live = 0
    self._script = script

  async def generate(self, tokens: Sequence[int], *, session: str, **options: Any) -> Sample:
    """What the script says, cut at max_tokens."""
    self.requests.append({'tokens': list(tokens), 'session': session, **options})
    self.live += 1
    self.most_live = max(self.most_live, self.live)
    await asyncio.sleep(0)
    self.live -= 1
    said = self._script(session, tokens)
    if isinstance(said, Sample):
      return said
    most = options['max_tokens']
    ids = tuple(said)[:most]
    finish = 'stop' if len(said) <= most else 'length'
    return Sample(ids, tuple(-0.5 for _ in ids), finish, ((0, len(ids)),))

  async def release(self, session: str) -> None:
    """Remembers the session."""
    self.released.append(session)

  async def publish(self, params: Any, version: int) -> None:
    """Takes the weights, which a script does not have."""

  async def share(self, work: Callable[[], Any]) -> Any:
    """Runs the work in a thread."""
    return await asyncio.to_thread(work)

  def numbers(self) -> dict[str, float]:
    """Nothing to tell."""
    return {}

  async def close(self) -> None:
    """Nothing to end."""


def broken_engine(session: str, tokens: Sequence[int]) -> Sequence[int]:
  """A script that fails."""
  raise SamplerError('the engine is gone')


class ScriptedEnvironment:
  """Answers each call by a function of it, unless its `fate` is to raise, die, hang, ignore its cancellation, cancel
  itself, answer too little or with something odd, or to break when it is closed."""

  def __init__(self, answer: Callable[[ToolCall], str], *, fate: str = '', tools: tuple[Tool, ...] = ()):
    self.tools = tools
    self.closed = 0
    self.steps: list[Sequence[ToolCall]] = []
    self._answer, self._fate = answer, fate

  async def step(self, calls: Sequence[ToolCall]) -> list[Observation]:
    """One observation per call, unless its fate is otherwise."""
    self.steps.append(calls)
    if self._fate == 'raise':
      raise ZeroDivisionError('division by zero')
    if self._fate == 'die':
      raise EnvironmentFailure('the database is gone')
    while self._fate in ('hang', 'ignore'):
      try:
        await asyncio.Event().wait()
      except asyncio.CancelledError:
        if self._fate == 'hang':
          raise
    if self._fate == 'cancel':
      raise asyncio.CancelledError
    if self._fate == 'odd':
      return [None for _ in calls]  # type: ignore
    answers = [Observation(self._answer(call)) for call in calls]
    return answers[1:] if self._fate == 'forget' else answers

  def close(self) -> None:
    """Counts."""
    self.closed += 1
    if self._fate == 'close':
      raise OSError('the socket is gone')
