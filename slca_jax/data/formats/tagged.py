"""Dialogues written as text: calls in <tool_call>, results in <tool_response>, schemas in <tools>."""

import json
import re
from collections.abc import Mapping
from typing import Any

from slca_jax.data.formats.row import BadRow
from slca_jax.data.formats.texts import distinct, encodable, literal, no_constant, shown
from slca_jax.data.formats.values import calls_of, tools_of
from slca_jax.dialogue import Message, Tool, ToolCall

OPEN, CLOSE = '<tool_call>', '</tool_call>'
SEEN, SEEN_END = '<tool_response>', '</tool_response>'
_TOOLS = re.compile(r'<tools>(.*?)</tools>', re.DOTALL)
_BETWEEN = re.compile(r'\n?</tool_response>\s*<tool_response>\n?')
_SPACE = re.compile(r'\s*')
_MOST = 100  # closing tags that are tried as the end of one block
_DECODER = json.JSONDecoder(object_pairs_hook=distinct, parse_constant=no_constant)


def spoken(text: str, tools: Mapping[str, Tool]) -> Message:
  """The assistant's message of a text: words, then call blocks. Reasoning in <think> stays among the words.

  A block holds an object, a list of them (parallel calls), or several objects, as JSON or Python.

  Raises:
    BadRow: a block cannot be read, or words follow it: a rollout's calls end its turn.
  """
  start = _after_thoughts(text)
  place = text.find(OPEN, start)
  if place < 0:
    if CLOSE in text[start:]:
      raise BadRow('call', f'{CLOSE} without {OPEN} in {shown(text[start:])}')
    return Message('assistant', text)
  words, calls = text[:place].rstrip(), list[ToolCall]()
  while text.startswith(OPEN, place):
    found, place = _block(text, place + len(OPEN), tools)
    calls += found
    place = _after_space(text, place)
  if place < len(text):
    raise BadRow('call', f'{shown(text[place:])} follows a call; words stand before calls')
  return Message('assistant', words, tuple(calls))


def heard(text: str) -> list[Message]:
  """The messages of a user's text that may be results: those, and what the user says after them."""
  inner = text.strip()
  if not inner.startswith(SEEN):
    return [Message('user', text)]
  end = inner.rfind(SEEN_END)
  if end < 0:
    raise BadRow('results', f'{SEEN} never ends in {shown(inner)}')
  body = inner[len(SEEN) : end].removeprefix('\n').removesuffix('\n')
  said = inner[end + len(SEEN_END) :].strip()
  results = [Message('tool', result) for result in _BETWEEN.split(body)]
  return [*results, *([Message('user', said)] if said else [])]


def schemas_in(text: str) -> tuple[Tool, ...]:
  """The tools in the last <tools> element that holds any; prose may mention the tag before it.

  They are an object, a list, or one object a line, each JSON or Python.

  Raises:
    BadRow: the element holds something else.
  """
  bodies = [body.strip() for body in _TOOLS.findall(text)]
  body = next((body for body in reversed(bodies) if body), '')
  if not body:
    return ()
  try:
    value = literal(body)
  except BadRow:
    value = [literal(line) for line in body.splitlines() if line.strip()]
  return tools_of(value if isinstance(value, list) else [value])


def values_in(text: str) -> list[Any]:
  """The JSON values that stand in a text one after the other. Raises BadRow."""
  out, place = [], _after_space(text, 0)
  while place < len(text):
    try:
      value, end = _DECODER.raw_decode(text, place)
      encodable(value, text[place:end])
    except (ValueError, RecursionError) as error:
      raise BadRow('call', f'{shown(text[place:])} is no JSON') from error
    out.append(value)
    place = _after_space(text, end)
  return out


def _block(text: str, start: int, tools: Mapping[str, Tool]) -> tuple[tuple[ToolCall, ...], int]:
  """(the calls of a block, where it ends): at the first closing tag up to which all can be read."""
  end, first = start, None
  for _ in range(_MOST):
    end = text.find(CLOSE, end)
    if end < 0:
      break
    try:
      return _calls(text[start:end], tools), end + len(CLOSE)
    except BadRow as error:
      first = first or error
      end += len(CLOSE)
  raise first or BadRow('call', f'{OPEN} never ends: {shown(text[start:])}')


def _calls(body: str, tools: Mapping[str, Tool]) -> tuple[ToolCall, ...]:
  try:
    value = literal(body)
  except BadRow as error:
    try:
      value = values_in(body)
    except BadRow:
      raise error from None
  if not value:
    raise BadRow('call', f'a call block holds {shown(body)}')
  return calls_of(value, tools, written=True)


def _after_thoughts(text: str) -> int:
  """Where the words begin: tags inside reasoning are no calls."""
  start = _after_space(text, 0)
  while text.startswith('<think>', start):
    end = text.find('</think>', start)
    if end < 0:
      raise BadRow('call', '<think> never ends')
    start = _after_space(text, end + len('</think>'))
  return start


def _after_space(text: str, place: int) -> int:
  return _SPACE.match(text, place).end()  # type: ignore[union-attr]
