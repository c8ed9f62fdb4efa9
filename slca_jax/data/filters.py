"""Why a row of a data set cannot be used: a word for counters and a sentence for people."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from slca_jax.chat.calls import parse
from slca_jax.chat.schema import CheckedTool, compile_tool
from slca_jax.data.formats.row import GOLD, NAMES, UNKNOWN, Row
from slca_jax.data.remembered import Remembered
from slca_jax.data.settings import Filters
from slca_jax.dialogue import Message, Tool, ToolCall
from slca_jax.errors import SchemaError

# What other families' templates write around calls and results, in an assistant's words. A policy would learn it.
_FOREIGN = re.compile(
  r'<(?:\|\w+\||｜[^<>｜\n]{1,40}｜|function_calls?>|function=|invoke name=|tool_(?:use|response|code|outputs?)>)'
  r'|\[(?:TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|/?INST)\]'
)
_CONTROL = re.compile(r'<\|\w+\|>')  # templates would read these as tokens of their own wherever they stand
_THOUGHTS = re.compile(r'<(think|thinking)>.*?</\1>', re.DOTALL)
_TAGS = ('<tool_call>', '</tool_call>', '<think', '</think')
_KINDS = {'missing': 'missing_argument', 'type': 'misfit_argument', 'other': 'misfit_argument'}
_compiled = Remembered(compile_tool, most=4096)
_controlled = Remembered[Tool, re.Match[str] | None](
  lambda tool: _CONTROL.search(f'{tool.name} {tool.description} {tool.parameters}'), most=4096
)
_QUOTED = 120  # characters of what a reason quotes


class Fault(NamedTuple):
  """Why a row is dropped: `code` for counters, `why` in a sentence."""

  code: str
  why: str


def fault_of(row: Row, filters: Filters) -> Fault | None:
  """The first reason to drop the row, None if it can be used.

  Codes: those of the readers, as `format.json`; no_dialogue, too_long, no_question, foreign_tokens, control_tokens,
  broken_call, irrelevant, bad_schema, double_tool, unknown_tool, missing_argument, misfit_argument, no_answer,
  empty_answer.

  SLCA-GRPO (arXiv:2609.29050), C.1.
  """
  if row.fault:
    return Fault(f'format.{row.fault}', row.why)
  return next(_faults(row, filters), None)


def size_of(row: Row) -> int:
  """Characters of the row's messages and tools."""
  tools, messages = _tools(row), _messages(row)
  described = sum(len(tool.description) + len(str(tool.parameters)) for tool in tools)
  return described + sum(len(message.content) + len(str(message.calls)) for message in messages)


def _faults(row: Row, filters: Filters) -> Iterator[Fault]:
  messages = _messages(row)
  if row.dialogue is None and row.task is None:
    yield Fault('no_dialogue', 'the row holds tools and nobody who asks for them')
    return
  if filters.longest and (size := size_of(row)) > filters.longest:
    yield Fault('too_long', f'{size} characters are more than {filters.longest}')
  if not any(message.role == 'user' and message.content.strip() for message in messages):
    yield Fault('no_question', 'the user says nothing')
  yield from _in_words(messages)
  if filters.irrelevant and _is_irrelevant(row):
    yield Fault('irrelevant', 'no tool is called')
  tools = dict[str, CheckedTool]()
  yield from _in_tools(_tools(row), tools)
  yield from _in_calls(row, tools, check=filters.arguments)
  if filters.answers and row.dialogue is not None:
    yield from _in_answers(messages)


def _messages(row: Row) -> tuple[Message, ...]:
  if row.dialogue is not None:
    return row.dialogue.messages
  return row.task.messages if row.task is not None else ()


def _tools(row: Row) -> tuple[Tool, ...]:
  if row.dialogue is not None:
    return row.dialogue.tools
  return row.task.tools if row.task is not None else row.tools


def _is_irrelevant(row: Row) -> bool:
  if row.task is not None:
    return not row.task.gold and row.task.meta.get(GOLD) != UNKNOWN
  return not any(message.calls for message in _messages(row))


def _in_words(messages: Iterable[Message]) -> Iterator[Fault]:
  for message in messages:
    text = message.content
    if message.role == 'assistant':
      if found := _FOREIGN.search(text):
        yield Fault('foreign_tokens', f'the assistant writes {found[0]!r}')
      yield from _in_tags(text)
    elif found := _CONTROL.search(text):
      yield Fault('control_tokens', f'the {message.role} message holds {found[0]!r}')


def _in_tags(text: str) -> Iterator[Fault]:
  """Calls that stand in the words, broken or not, and reasoning that never ends."""
  if not any(tag in text for tag in _TAGS):
    return
  parsed = parse(text)
  if parsed.errors:
    yield Fault('broken_call', f'{", ".join(parsed.errors)} in {text[:_QUOTED]!r}')
  elif parsed.blocks:
    yield Fault('broken_call', f'a call of {parsed.calls[0].name!r} stands among the words {text[:_QUOTED]!r}')


def _in_tools(tools: Iterable[Tool], compiled: dict[str, CheckedTool]) -> Iterator[Fault]:
  """Tools whose calls cannot be checked, or could mean either of two; the others are put into `compiled`."""
  for tool in tools:
    if found := _controlled(tool):
      yield Fault('control_tokens', f'the tool {tool.name!r} holds {found[0]!r}')
    if tool.name in compiled:
      yield Fault('double_tool', f'two tools are called {tool.name!r}; a call could mean either')
    try:
      compiled[tool.name] = _compiled(tool)
    except SchemaError as error:
      yield Fault('bad_schema', str(error))


def _in_calls(row: Row, tools: Mapping[str, CheckedTool], *, check: bool) -> Iterator[Fault]:
  if row.task is not None and row.task.blueprint and not tools:
    return  # the world it names has the tools
  named = row.task is not None and row.task.meta.get(GOLD) == NAMES  # the source does not say with which arguments
  for call in _calls(row):
    if found := _CONTROL.search(str(call.arguments)):
      yield Fault('control_tokens', f'a call of {call.name!r} holds {found[0]!r}')
    if call.name not in tools:
      yield Fault('unknown_tool', f'{call.name!r} is called, on offer are {", ".join(tools)[:_QUOTED] or "no tools"}')
    elif check and not named:
      for violation in tools[call.name].violations(call.arguments):
        yield Fault(_KINDS[violation.kind], f'{call.name}: {violation.text}')


def _calls(row: Row) -> Iterator[ToolCall]:
  for message in _messages(row):
    yield from message.calls
  for step in row.task.gold if row.task is not None else ():
    yield from step


def _in_answers(messages: Sequence[Message]) -> Iterator[Fault]:
  """Turns that do not end with words of the assistant; before its first message there is no turn."""
  spoken = False
  for message, after in zip(messages, [*messages[1:], None], strict=True):
    spoken = spoken or message.role == 'assistant'
    if not spoken or message.role == 'user' or (after is not None and after.role != 'user'):
      continue
    if message.role != 'assistant' or message.calls:
      yield Fault('no_answer', f'a turn ends with {"calls" if message.calls else f"a {message.role} message"}')
    elif not _THOUGHTS.sub('', message.content).strip():
      yield Fault('empty_answer', 'a turn ends with an empty answer')
