"""JSON as policies write it: how far a value reaches in a text, a strict reading, a forgiving one for data sets."""

import ast
import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import json_repair

MAX_DEPTH = 64  # beyond it a value is degenerate repetition, and checks that recurse over it would overflow
MAX_DIGITS = 308  # integers below 10³⁰⁸ still convert to float
_MAX_REPAIRED = 20_000  # characters; repair is not linear in its worst case

OPEN, CLOSE = '<tool_call>', '</tool_call>'
TAG = re.compile('</?(?:tool_call|think|thinking)>')
_INSIDE = r'[^"\\\x00-\x1f]*+(?:\\.[^"\\\x00-\x1f]*+)*+'
_TOKEN = re.compile(rf'"{_INSIDE}"|["{{}}\[\]]|{TAG.pattern}')
_UNCLOSED = re.compile(f'"{_INSIDE}')
_STRING = re.compile(f'"{_INSIDE}"')
_SURROGATE = re.compile(r'\\u[dD][89a-fA-F]|[\ud800-\udfff]')
_ESCAPE = re.compile(r'\\(.)', re.DOTALL)
_FENCE = re.compile(r'\A```\w*\s*(.*?)\s*```\Z', re.DOTALL)


class Fault(ValueError):
  """Why a text is no call; the message is the error's code."""


class Extent(NamedTuple):
  """Where a value ends (`whole`) or where it stops being JSON, and how deep it nests up to there."""

  end: int
  whole: bool
  depth: int


def extent(text: str, start: int) -> Extent:
  """How far the object or list that opens at `start` reaches. Tags end it, except inside strings.

  A string with a raw control character stops being one there; a string that never ends takes the rest of the text.
  """
  depth = deepest = 0
  for match in _TOKEN.finditer(text, start):
    token = match[0]
    if token in '{[':
      depth += 1
      deepest = max(depth, deepest)
    elif token in '}]':
      depth -= 1
      if depth == 0:
        return Extent(match.end(), True, deepest)
    elif token == '"':
      return Extent(_UNCLOSED.match(text, match.start()).end(), False, deepest)  # type: ignore[union-attr]
    elif token[0] == '<':
      return Extent(match.start(), False, deepest)
  return Extent(len(text), False, deepest)


def check_depth(text: str) -> None:
  """Raises Fault('too_deep') for a text whose object or list nests deeper than 64 levels."""
  if text.count('{') + text.count('[') <= MAX_DEPTH:  # most texts; strings may hold more brackets
    return
  start = len(text) - len(text.lstrip(' \t\r\n'))
  if text[start : start + 1] in ('{', '[') and extent(text, start).depth > MAX_DEPTH:
    raise Fault('too_deep')


def decode(text: str, *, repeated_keys: bool = False) -> Any:
  """The JSON value of `text`, in which everything can be compared, hashed and written again.

  Raises:
    Fault: invalid_json (NaN and Infinity included), duplicate_key unless `repeated_keys` (then the last one holds),
      number_too_long, number_out_of_range, too_deep, lone_surrogate.
  """
  check_depth(text)
  try:
    value = (_LOOSE if repeated_keys else _STRICT).decode(text)
  except json.JSONDecodeError as error:
    raise Fault('invalid_json') from error
  except RecursionError as error:
    raise Fault('too_deep') from error
  if _SURROGATE.search(text):
    try:
      json.dumps(value, ensure_ascii=False).encode('utf-8')
    except UnicodeEncodeError as error:
      raise Fault('lone_surrogate') from error
  return value


def decode_loosely(text: str) -> Any:
  """The value that `text` most likely means: JSON, a Python literal, or JSON with small faults repaired.

  What cannot be repaired without guessing stays a fault: NaN, unknown escapes, text that is neither object nor list.

  Raises:
    Fault: as `decode`.
  """
  text = text.strip().strip('\ufeff\xa0').strip()
  if fenced := _FENCE.match(text):
    text = fenced[1]
  try:
    return decode(text, repeated_keys=True)
  except Fault as fault:
    if str(fault) != 'invalid_json' or not _repairable(text):
      raise
  return decode(_rewritten(text))


def _repairable(text: str) -> bool:
  return (
    text[:1] in ('{', '[')
    and len(text) <= _MAX_REPAIRED
    and text.count('{') + text.count('[') <= MAX_DEPTH
    and all(escaped in '"\'\\/bfnrtu' for escaped in _ESCAPE.findall(text))
    and not re.search(r'\b(?:NaN|Infinity|nan|inf)\b', _STRING.sub('""', text))
  )


def _rewritten(text: str) -> str:
  """`text` as proper JSON."""
  try:
    value = ast.literal_eval(text)
  except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
    try:
      value = json_repair.loads(text, skip_json_loads=True)
    except Exception as error:  # a repairer of arbitrary text may fail in any way
      raise Fault('invalid_json') from error
  try:
    return json.dumps(value, allow_nan=False)
  except (TypeError, ValueError, RecursionError) as error:  # sets, bytes, keys that are no strings
    raise Fault('invalid_json') from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  out = dict(pairs)
  if len(out) < len(pairs):
    raise Fault('duplicate_key')
  return out


def _integer(digits: str) -> int:
  if len(digits) > MAX_DIGITS:
    raise Fault('number_too_long')
  return int(digits)


def _number(digits: str) -> float:
  value = float(digits)
  if value in (float('inf'), float('-inf')):
    raise Fault('number_out_of_range')
  return value


def _no_constant(name: str) -> None:
  raise Fault('invalid_json')


def _decoder(pairs: Callable[[list[tuple[str, Any]]], dict[str, Any]]) -> json.JSONDecoder:
  return json.JSONDecoder(object_pairs_hook=pairs, parse_int=_integer, parse_float=_number, parse_constant=_no_constant)


_STRICT, _LOOSE = _decoder(_distinct), _decoder(dict)  # `json.loads` would make one for each text
