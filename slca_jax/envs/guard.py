"""What every call of every environment goes through: a deadline, a bound on size, and no exception that escapes."""

import asyncio
import contextlib
import dataclasses
import json
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from slca_jax.config import require
from slca_jax.dialogue import Observation, ToolCall
from slca_jax.errors import EnvironmentFailure
from slca_jax.surrogates import mended


@dataclasses.dataclass(frozen=True)
class CallLimits:
  """How much patience a call gets.

  Attributes:
    deadline: seconds until a call counts as hung.
    max_characters: longest observation; a longer one loses its middle.
    max_error_characters: longest text of an error.
    max_abandoned: hung calls that may still be running before the environment counts as dead.
  """

  deadline: float = 30.0
  max_characters: int = 100_000
  max_error_characters: int = 500
  max_abandoned: int = 64

  def __post_init__(self) -> None:
    require(self.deadline > 0, f'deadline is {self.deadline}; a call needs a positive number of seconds')
    for name in ('max_characters', 'max_error_characters'):
      require(getattr(self, name) >= 100, f'{name} is {getattr(self, name)}; at least 100 are needed to say anything')
    require(self.max_abandoned >= 0, f'max_abandoned is {self.max_abandoned}; 0 tolerates no hung call')


DEFAULT = CallLimits()


class ToolExit(Exception):
  """A tool tried to end the interpreter; the text is what it raised."""


class Threads:
  """Runs blocking functions, each in a daemon thread of its own, and counts those that nobody waits for any more.

  A pool would not do: a hung function would keep its worker for good, and the interpreter waits for pools at exit.
  All environments of a run share one instance, so that the bound holds for the run and not for each rollout.
  """

  def __init__(self, *, max_abandoned: int = CallLimits.max_abandoned):
    self._max_abandoned = max_abandoned
    self._lock = threading.Lock()
    self._abandoned = 0

  @property
  def abandoned(self) -> int:
    """Calls that were given up and have not returned since."""
    return self._abandoned

  async def run(self, function: Callable[[], Any]) -> Any:
    """The function's result, or its exception. Cancelling the wait leaves the thread behind and counts it.

    Raises:
      EnvironmentFailure: more than `max_abandoned` hung calls are alive, or no thread could be started.
    """
    if self._abandoned > self._max_abandoned:
      raise EnvironmentFailure(
        f'{self._abandoned} hung tool calls are still running, max_abandoned is {self._max_abandoned}; '
        'give the tools a longer deadline or repair the one that hangs'
      )
    call = _Call(asyncio.get_running_loop())
    try:
      threading.Thread(target=self._work, args=(function, call), name='tool-call', daemon=True).start()
    except RuntimeError as error:
      raise EnvironmentFailure(f'no thread for a tool call: {error}') from error
    try:
      result, error = await call.outcome
    except asyncio.CancelledError:
      self._give_up(call)
      raise
    if error is not None:
      raise error
    return result

  def _work(self, function: Callable[[], Any], call: '_Call') -> None:
    try:
      outcome = function(), None
    except Exception as error:
      outcome = None, error
    except BaseException as error:  # sys.exit() in a tool ends the call, not the run
      outcome = None, ToolExit(repr(error))
    with self._lock:
      call.done = True
      self._abandoned -= call.abandoned
    with contextlib.suppress(RuntimeError):  # the loop closed while the call hung: nobody is left to tell
      call.loop.call_soon_threadsafe(call.settle, outcome)

  def _give_up(self, call: '_Call') -> None:
    with self._lock:
      call.abandoned = not call.done
      self._abandoned += call.abandoned


class _Call:
  """One call's state, shared by its thread and its waiter."""

  def __init__(self, loop: asyncio.AbstractEventLoop):
    self.loop = loop
    self.outcome: asyncio.Future[tuple[Any, Exception | None]] = loop.create_future()
    self.done = False
    self.abandoned = False

  def settle(self, outcome: tuple[Any, Exception | None]) -> None:
    """Gives the waiter (result, exception); on the loop's thread, and only the first outcome counts."""
    if not self.outcome.done():
      self.outcome.set_result(outcome)


async def answer_all(
  calls: Sequence[ToolCall], answer: Callable[[ToolCall], Awaitable[Observation]], *, limits: CallLimits
) -> list[Observation]:
  """One observation per call, in order; the calls run concurrently.

  Raises:
    EnvironmentFailure: as raised by `answer`; whatever else it raises, and its silence, become observations.
  """
  if len(calls) == 1:  # most turns: no task beside that of the call
    return [await answer_one(calls[0], answer, limits=limits)]
  outcomes = await asyncio.gather(*(answer_one(call, answer, limits=limits) for call in calls), return_exceptions=True)
  seen = [outcome for outcome in outcomes if isinstance(outcome, Observation)]
  for outcome in outcomes:
    if isinstance(outcome, BaseException):
      raise outcome
  return seen


async def answer_one(
  call: ToolCall, answer: Callable[[ToolCall], Awaitable[Observation]], *, limits: CallLimits
) -> Observation:
  """The observation of one call, an error observation if `answer` raises or takes longer than the deadline.

  Raises:
    EnvironmentFailure: as raised by `answer`.
  """
  pending = asyncio.ensure_future(answer(call))
  try:
    # Not asyncio.wait_for: that waits for an answer that ignores its cancellation.
    done, _ = await asyncio.wait({pending}, timeout=limits.deadline)
  finally:
    pending.cancel()
  if not done:
    await asyncio.sleep(0)  # lets the cancelled answer count itself as abandoned
    return Observation(f'Error: {call.name} did not answer within {limits.deadline:g} seconds.', ok=False)
  try:
    return bounded(pending.result(), limits=limits)
  except EnvironmentFailure:
    raise
  except (Exception, asyncio.CancelledError) as error:  # what is no observation with a text included
    return refusal(error, limits=limits)


def bounded(seen: Observation, *, limits: CallLimits) -> Observation:
  """The observation in a form that a tokenizer can take: no longer than allowed, no lone surrogates."""
  content = cut(seen.content, limits.max_characters)
  return Observation(mended(content), seen.ok, seen.cut or len(content) < len(seen.content))


def refusal(error: BaseException, *, limits: CallLimits) -> Observation:
  """What the policy sees of an exception: a ValueError is a tool's refusal and speaks for itself, others are named."""
  kind = '' if type(error) is ValueError else f'{type(error).__name__}: '
  try:
    message = str(error)
  except Exception:
    message = 'an error that cannot be printed'
  return Observation(mended(cut(f'Error: {kind}{message}', limits.max_error_characters)), ok=False)


def as_text(result: Any) -> str:
  """A tool's result as text: a string as it is, anything else as JSON, the same for equal results.

  Raises:
    ValueError: the result is no JSON (NaN and cycles included).
  """
  if isinstance(result, str):
    return result
  try:
    return json.dumps(result, ensure_ascii=False, allow_nan=False)
  except (TypeError, ValueError, RecursionError) as error:
    raise ValueError(f'the result of type {type(result).__name__} is no JSON: {error}') from error


def cut(text: str, most: int) -> str:
  """The text if it has at most `most` characters, else its head and tail with a note of what is missing between."""
  if len(text) <= most:
    return text
  note = f' [... {len(text) - most} characters and more left out ...] '
  room = most - len(note)
  return text[: room - room // 2] + note + text[len(text) - room // 2 :]
