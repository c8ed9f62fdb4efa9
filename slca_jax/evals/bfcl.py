"""The Berkeley Function Calling Leaderboard with its own data and checkers: one answer, or a conversation, per entry.

The official code runs in a process of its own (`bfcl_official`), where its packages are installed; prompts are written
and calls are read as its Qwen handler does (`qwen`), or with the policy's own template as in training. Single-turn
answers are also read strictly, as rewards read them, so that both scores stand side by side.
"""

import dataclasses
import pathlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from slca_jax.chat.calls import parse
from slca_jax.evals import qwen
from slca_jax.evals.bridge import Bridge

SCRIPT = pathlib.Path(__file__).with_name('bfcl_official.py')

# No call can be right there: a value has a type that the function's own schema refuses, a parameter that is required or
# accepted is unknown to the other side, the answer's function is not on offer (two rows of V3), or the checker makes
# texts of all elements of a Java list and the answer has numbers among them.
IMPOSSIBLE = frozenset(
  {
    'live_simple_106-63-0',
    'live_simple_112-68-0',
    'live_multiple_862-181-3',
    'live_multiple_964-207-0',
    'simple_363',
    'javascript_41',
    *(f'{name}_{number}' for name in ('java', 'simple_java') for number in (36, 65)),
  }
)

Speak = Callable[[Sequence[qwen.Said], Sequence[Mapping[str, Any]]], Awaitable[str]]  # (messages, functions) -> text


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
  """A row of BFCL: user turns of messages, functions as it describes them, its answer if it has one.

  Attributes:
    later: functions that come with a turn, by its number.
  """

  id: str
  category: str
  question: Sequence[Sequence[qwen.Said]]
  functions: Sequence[Mapping[str, Any]]
  answer: Any
  later: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
  """What the official checker says, and BFCL's name for what is wrong."""

  valid: bool
  kind: str = ''
  why: str = ''


class Official:
  """BFCL's data and checkers behind a bridge."""

  def __init__(self, *, python: str = '', version: int = 4):
    """See `BfclSettings`. Raises ConfigError where there is no such interpreter."""
    self.bridge = Bridge(SCRIPT, (str(version),), python=python)

  async def entries(self, category: str) -> list[Entry]:
    """All rows of a category, in order.

    Raises:
      ConfigError: the interpreter lacks the package, or the package the category.
    """
    return [
      Entry(row['id'], category, row['question'], row['function'], row['answer'], row.get('missed_function', {}))
      for row in await self.bridge.ask('entries', category=category)
    ]

  async def check(self, entry: Entry, calls: qwen.Calls) -> Verdict:
    """The verdict on the calls of a single-turn entry that asks for some."""
    return _verdict(await self.bridge.ask('check', id=entry.id, calls=calls))

  async def check_turns(self, entry: Entry, turns: Sequence[Sequence[qwen.Calls]]) -> Verdict:
    """The verdict on a conversation: of each user turn the steps that held calls."""
    return _verdict(await self.bridge.ask('check_turns', id=entry.id, turns=turns))

  async def close(self) -> None:
    """Ends the process."""
    await self.bridge.close()


async def judge(entry: Entry, text: str, official: Official) -> Verdict:
  """The official verdict on one answer, its calls read as the official handler does."""
  try:
    calls = qwen.calls(text)
  except ValueError as error:
    return Verdict('irrelevance' in entry.category, 'ast_decoder:decoder_failed', str(error))
  return await _judge(entry, calls, official)


async def judge_strictly(entry: Entry, text: str, official: Official) -> Verdict:
  """The official verdict on the calls that a reward would see: one that cannot be read makes the answer wrong."""
  parsed = parse(text)
  if parsed.errors:
    return Verdict('irrelevance' in entry.category and not parsed.calls, parsed.errors[0])
  return await _judge(entry, [(call.name, dict(call.arguments)) for call in parsed.calls], official)


async def _judge(entry: Entry, calls: qwen.Calls, official: Official) -> Verdict:
  if 'irrelevance' in entry.category:
    return Verdict(not calls, 'irrelevance_error:decoder_success' if calls else '')
  if 'relevance' in entry.category:
    return Verdict(bool(calls), '' if calls else 'relevance_error:decoder_failed')
  return await official.check(entry, calls)


def _verdict(told: Mapping[str, Any]) -> Verdict:
  return Verdict(told['valid'], '' if told['valid'] else told['error_type'], '' if told['valid'] else told['error'])
