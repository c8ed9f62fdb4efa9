"""Calls written as `[name(key=value), …]`, with names and keys that Python could not parse: ToolACE's."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from slca_jax.data.formats.row import BadRow
from slca_jax.data.formats.texts import literal, shown
from slca_jax.dialogue import Tool, ToolCall

_CALLS = re.compile(r'\[[^\[\]()\n"\']+\(.*\)\s*\]', re.DOTALL)
_WORDS = {'true': True, 'false': False, 'null': None}
_PAIRS = {')': '(', ']': '[', '}': '{'}


def calls_in(text: str, tools: Mapping[str, Tool]) -> tuple[ToolCall, ...]:
  """The calls of a text that is a list of them, () for words.

  Raises:
    BadRow: it begins as a list of calls of known tools and cannot be read as one.
  """
  text = text.strip()
  meant = any(text.startswith(f'[{name}(') for name in tools)
  if not meant and not _CALLS.fullmatch(text):
    return ()
  if not text.endswith(']'):
    raise BadRow('call', f'{shown(text)} is cut, or words follow the calls')
  return tuple(_call(part, tools) for part in _parts(text[1:-1]))


def _call(text: str, tools: Mapping[str, Tool]) -> ToolCall:
  named = next((name for name in sorted(tools, key=len, reverse=True) if text.startswith(f'{name}(')), None)
  name = text.partition('(')[0].strip() if named is None else named
  body = text[text.index('(', len(named or '')) :] if '(' in text else ''
  if not name or not body.endswith(')'):
    raise BadRow('call', f'{shown(text)} is no call; it needs a name and (key=value, …)')
  arguments: dict[str, Any] = {}
  for part in _parts(body[1:-1]):
    key, equals, value = part.partition('=')
    key = key.strip()
    if not equals or not key or key in arguments:
      raise BadRow('call', f'{shown(part)} in a call of {name!r} is no key=value, or the key is there twice')
    value = value.strip()
    arguments[key] = _WORDS[value] if value in _WORDS else literal(value)
  return ToolCall(name, arguments)


def _parts(text: str) -> Iterator[str]:
  """What stands between the commas that are in no bracket and no string. Raises BadRow if one of these never ends."""
  open_, start, place, quote = list[str](), 0, 0, ''
  while place < len(text):
    char = text[place]
    if quote:
      if char == '\\':
        place += 1
      elif char == quote:
        quote = ''
    elif char in '"\'' and (open_ or '=' in text[start:place] or char == '"'):
      quote = char
    elif char in '([{':
      open_.append(char)
    elif char in ')]}':
      if not open_ or open_.pop() != _PAIRS[char]:
        raise BadRow('call', f'a bracket closes that was never opened: {shown(text)}')
    elif char == ',' and not open_:
      yield text[start:place].strip()
      start = place + 1
    place += 1
  if quote or open_:
    raise BadRow('call', f'a string or bracket never ends: {shown(text)}')
  if text[start:].strip():
    yield text[start:].strip()
