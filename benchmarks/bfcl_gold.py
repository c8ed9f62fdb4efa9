"""Gold answers of BFCL, written as a policy's text, through our reading and loop to the official checkers.

    python benchmarks/bfcl_gold.py --python=/venvs/bfcl/bin/python [--version=3] [--multi_turn=false] [--most=20]

Expect with bfcl-eval 2026.3.23, of the single-turn Python entries: 2,344 of 2,351 right with the first accepted value
of every argument, 2,347 with optional arguments left out, read officially or strictly; of the conversations 800 of 800,
and none without the last call that any turn asks for. Of Java and JavaScript, where a value is answered as the text of
a literal, 139 of 150 are right: the checker keeps the quotes of the texts in an array, so that eight rows are right
only without them. For a single-turn entry that fails, all combinations of accepted values and spellings are tried (up
to 4,096): where none is right, no policy can be.
"""

import ast
import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from absl import app, flags
from bfcl_spelling import spellings

from slca_jax.chat.calls import render
from slca_jax.data import bfcl as data
from slca_jax.dialogue import ToolCall
from slca_jax.evals import qwen
from slca_jax.evals.benchmark_settings import LIVE, MULTI_TURN, NON_LIVE, SIMPLE
from slca_jax.evals.bfcl import IMPOSSIBLE, Entry, Official, judge, judge_strictly
from slca_jax.evals.bfcl_multi_turn import Backend, converse, judge_turns

_PYTHON = flags.DEFINE_string('python', '', 'An interpreter with bfcl-eval or nvidia-bfcl, and mpmath.')
_VERSION = flags.DEFINE_integer('version', 4, '4 for bfcl-eval, 3 for nvidia-bfcl.')
_MULTI = flags.DEFINE_bool('multi_turn', True, 'Conversations too.')
_SINGLE = flags.DEFINE_bool('single_turn', True, 'Single turns too.')
_MOST = flags.DEFINE_integer('most', 0, 'At most so many entries of each category; 0 for all.')
_COMBINATIONS = 4096
APART = frozenset(name for names in SIMPLE.values() for name in names[1:])  # Java and JavaScript

Steps = list[list[ToolCall]]


async def check_single(category: str, official: Official) -> list[int]:
  """[entries, right with first values, right with optional arguments left out, the latter as rewards read]."""
  entries = (await official.entries(category))[: _MOST.value or None]
  found = [len(entries), 0, 0, 0]
  for entry in entries:
    text = '\n'.join(map(render, spelled(gold_calls(entry), entry)))
    verdict = await judge(entry, text, official)
    first = await judge(entry, '\n'.join(map(render, spelled(first_values(entry), entry))), official)
    strict = await judge_strictly(entry, text, official)
    found = [a + b for a, b in zip(found, (0, first.valid, verdict.valid, strict.valid), strict=True)]
    if not verdict.valid:
      right, tried = await any_right(entry, official)
      known = ', known as such' if entry.id in IMPOSSIBLE else ''
      print(f'  {entry.id}: {verdict.kind}: {verdict.why}\n    of {tried} combinations {right} right{known}')
    elif not first.valid:
      print(f'  {entry.id}: with first values: {first.kind}: {first.why}')
  return found


def gold_calls(entry: Entry) -> list[ToolCall]:
  """The gold calls as our reader of BFCL makes them: without arguments that may be left out."""
  record = {'question': entry.question, 'function': entry.functions}
  try:
    task = data.decode(entry.id, entry.category, record, entry.answer)
  except KeyError:  # V3 has a gold call of a function that is not on offer
    return first_values(entry)
  return [call for step in task.gold for call in step]


def spelled(calls: Sequence[ToolCall], entry: Entry) -> list[ToolCall]:
  """The calls with each value in its most usual spelling."""
  usual = lambda call, key, value: next(spellings(value, _schema(entry, call.name, key)))
  return [ToolCall(c.name, {key: usual(c, key, value) for key, value in c.arguments.items()}) for c in calls]


def _schema(entry: Entry, name: str, key: str) -> Mapping[str, Any]:
  function = next((one for one in entry.functions if one['name'] == name), {'parameters': {'properties': {}}})
  return function['parameters']['properties'].get(key, {})


def first_values(entry: Entry) -> list[ToolCall]:
  """The gold calls with the first accepted value of every argument that has one."""
  calls = [(name, arguments) for call in entry.answer for name, arguments in call.items()]
  return [
    ToolCall(
      name, {key: _plain(stated[0]) for key, values in given.items() if (stated := [v for v in values if v != ''])}
    )
    for name, given in calls
  ]


def _plain(value: Any) -> Any:
  """The value with the first of the alternatives that stand inside objects."""
  if isinstance(value, dict):
    first = {key: inner[0] if isinstance(inner, list) and inner else inner for key, inner in value.items()}
    return {key: _plain(inner) for key, inner in first.items() if inner != ''}
  return [_plain(item) for item in value] if isinstance(value, list) else value


async def any_right(entry: Entry, official: Official) -> tuple[int, int]:
  """(1 if some combination of accepted values is right, how many were tried until then).

  '' among them means that an argument may be left out, or is empty: both are tried, and so is where there is none.
  """
  calls = [(name, arguments) for call in entry.answer for name, arguments in call.items()]
  places = [(place, key) for place, (_, given) in enumerate(calls) for key in given]
  choices = []
  for place, key in places:
    name, given = calls[place]
    accepted = given[key] or ['']
    texts = [text for value in accepted for text in spellings(_stated(value, entry), _schema(entry, name, key))]
    choices.append([(True, text) for text in texts] + [(False, None)] * ('' in accepted))
  tried = 0
  for picked in itertools.islice(itertools.product(*choices), _COMBINATIONS):
    made: list[tuple[str, dict[str, Any]]] = [(name, {}) for name, _ in calls]
    for (place, key), (given, value) in zip(places, picked, strict=True):
      if given:
        made[place][1][key] = value
    tried += 1
    if (await official.check(entry, made)).valid:
      return 1, tried
  return 0, tried


def _stated(value: Any, entry: Entry) -> Any:
  """An accepted value; of another language than Python without the alternatives inside, which have one spelling."""
  return _plain(value) if entry.category in APART else value


class Script:
  """An agent that makes the gold calls of each user turn in one step each, and then says that it is done."""

  def __init__(self, turns: Sequence[Steps]):
    self._turns, self._turn, self._step = turns, 0, 0

  async def speak(self, messages: Sequence[qwen.Said], functions: Sequence[Mapping[str, Any]]) -> str:
    qwen.prompt(messages, functions)  # every history that a rollout meets can be written
    steps = self._turns[self._turn]
    if self._step < len(steps):
      self._step += 1
      return '\n'.join(map(render, steps[self._step - 1]))
    self._turn, self._step = self._turn + 1, 0
    return 'Done.'


def gold_turns(entry: Entry) -> list[Steps]:
  """The gold calls of a conversation; arguments without a name get that of the function's description."""
  brought = [function for functions in entry.later.values() for function in functions]
  names = {one['name']: list(one['parameters']['properties']) for one in (*entry.functions, *brought)}
  return [[[_call(text, names)] for text in turn] for turn in entry.answer]


def _call(text: str, names: Mapping[str, Sequence[str]]) -> ToolCall:
  call = ast.parse(text, mode='eval').body
  assert isinstance(call, ast.Call) and isinstance(call.func, ast.Name)
  given = {names[call.func.id][place]: ast.literal_eval(value) for place, value in enumerate(call.args)}
  given |= {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
  return ToolCall(call.func.id, given)


def without_last(turns: list[Steps]) -> list[Steps]:
  """The turns without the last call of the last turn that has one."""
  out = [list(steps) for steps in turns]
  next(steps for steps in reversed(out) if steps).pop()
  return out


async def check_turns(category: str, official: Official, change: Callable[[list[Steps]], list[Steps]]) -> list[str]:
  """The ids whose conversation is right."""
  out = []
  for entry in (await official.entries(category))[: _MOST.value or None]:
    world = Backend(entry, official)
    turns = await converse(entry, Script(change(gold_turns(entry))).speak, world, steps=10**6)
    await world.release()
    if (await judge_turns(entry, turns, official)).valid:
      out.append(entry.id)
  return out


async def run() -> None:
  official = Official(python=_PYTHON.value, version=_VERSION.value)
  start = time.perf_counter()
  if _SINGLE.value:
    totals = {'Python': [0, 0, 0, 0], 'Java and JavaScript': [0, 0, 0, 0]}
    for category in (*NON_LIVE[_VERSION.value], *LIVE):
      found = await check_single(category, official)
      kind = 'Java and JavaScript' if category in APART else 'Python'
      totals[kind] = [a + b for a, b in zip(totals[kind], found, strict=True)]
      print(f'{category:<24} {_told(found)}', flush=True)
    for kind, total in totals.items():
      print(f'{f"single-turn, {kind}":<32} {_told(total)}, {_since(start)}', flush=True)
  if _MULTI.value:
    whole, dropped, count = 0, 0, 0
    for category in MULTI_TURN:
      size = len((await official.entries(category))[: _MOST.value or None])
      right = await check_turns(category, official, lambda turns: turns)
      wrong = await check_turns(category, official, without_last)
      whole, dropped, count = whole + len(right), dropped + len(wrong), count + size
      print(f'{category:<24} {len(right)}/{size} right, {len(wrong)} without the last call', flush=True)
    print(f'{"multi-turn":<24} {whole}/{count} right, {dropped} without the last call, {_since(start)}')
  await official.close()


def _told(found: Sequence[int]) -> str:
  size, first, right, strict = found
  return f'{first}/{size} right with first values, {right} without optional arguments, {strict} of these read strictly'


def _since(start: float) -> str:
  return f'{time.perf_counter() - start:.0f} s'


def main(_: list[str]) -> None:
  asyncio.run(run())


if __name__ == '__main__':
  app.run(main)
