"""The calls in an assistant's text, and the text of a call.

Where a text can be read in two ways, these rules hold:

- Tags are case-sensitive and exact. Inside a JSON string they are text.
- `<think>…</think>` and `<thinking>…</thinking>` are skipped. A closing one without an opening one says that the
  generation began inside reasoning: all before it is skipped. One that never closes skips the rest.
- A block runs from `<tool_call>` to the first tag after its JSON. If that is another `<tool_call>`, the first one was
  left open and the second one is read for itself; two openings with nothing between are one faulty block.
- A block without a closing tag is no call. The lenient reading takes it if its JSON is whole and the generation ended
  by itself.
"""

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any, Literal

from slca_jax.chat.decoding import CLOSE, OPEN, TAG, Fault, decode, decode_loosely, extent
from slca_jax.dialogue import Parsed, ToolCall

Reading = Literal['strict', 'release', 'lenient']
_SPACE = re.compile(r'[ \t\r\n]*+')
_FUNCTION = re.compile(r'<function=([^<>\n]+)>')
_PARAMETER = re.compile(r'<parameter=([^<>\n]+)>')


def render(call: ToolCall) -> str:
  """The block of a call as a policy should write it; parse(render(call)) gives the call back."""
  return f'{OPEN}\n{json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)}\n{CLOSE}'


def parse(text: str, *, reading: Reading = 'strict', finished: bool = True) -> Parsed:
  """The calls of an assistant's text, a fault for each block that is none, and its tags. Never raises on any string.

  Args:
    reading: 'strict' takes exactly one JSON object per block, with a string `name` and an object `arguments`. 'release'
      also takes a list of them, `parameters` for `arguments`, and a string of JSON for that object, as the code that
      SLCA-GRPO's authors released. 'lenient' also repairs what has one likely meaning; it is for reading data sets.
    finished: the text ended by itself; False if it was cut, and then a block still open is no call in any reading.

  SLCA-GRPO (arXiv:2609.29050), A.4.
  """
  blocks, errors, opens, closes, prose = [], [], 0, 0, []
  for part in _parts(text):
    match part:
      case _Block():
        opens, closes = opens + part.opens, closes + part.closed
        try:
          blocks.append(_read(text, part, reading, finished))
        except Fault as fault:
          errors.append(str(fault))
      case str():
        prose.append(part)
      case ('reasoned',):
        blocks, errors, opens, closes, prose = [], [], 0, 0, []
      case (error,):
        errors.append(error)
        closes += error == 'missing_open_tag'
  if reading == 'lenient' and not opens and not closes:
    blocks = list(_untagged(''.join(prose)))
  return Parsed(tuple(blocks), tuple(errors), opens, closes)


@dataclasses.dataclass(frozen=True, slots=True)
class _Block:
  """What `<tool_call>` opens: a body, the whole JSON values at the body's start, and the fault that shows so far."""

  body: tuple[int, int]
  values: tuple[tuple[int, int], ...]
  opens: int
  closed: bool
  last: bool  # no tag follows
  fault: str | None


def _parts(text: str) -> Iterator[_Block | str | tuple[str]]:
  """Blocks, prose, and as 1-tuples: faults outside blocks, and 'reasoned' where all so far turns out as reasoning."""
  place = 0
  while tag := TAG.search(text, place):
    yield text[place : tag.start()]
    place = tag.end()
    if tag[0] == OPEN:
      block = _block(text, place)
      place = block.body[1] + len(CLOSE) * block.closed
      yield block
    elif tag[0] == CLOSE:
      yield ('missing_open_tag',)
    elif tag[0].startswith('</'):
      yield ('reasoned',)
    else:
      closing = f'</{tag[0][1:]}'
      end = text.find(closing, place)
      if end < 0:
        yield ('unterminated_reasoning',)
        return
      place = end + len(closing)
  yield text[place:]


def _block(text: str, start: int) -> _Block:
  """The block whose body starts at `start`. Looks at no character beyond the body and the tag after it."""
  opens, place, values, broken = 1, _skip_space(text, start), [], False
  while text.startswith(OPEN, place):
    opens, place = opens + 1, _skip_space(text, place + len(OPEN))
  begin = place
  while not broken and text[place : place + 1] in ('{', '['):
    reach = extent(text, place)
    broken = not reach.whole
    if not broken:
      values.append((place, reach.end))
    place = reach.end if broken else _skip_space(text, reach.end)
  tag = TAG.search(text, place)
  end = tag.start() if tag else len(text)
  closed = tag is not None and tag[0] == CLOSE
  if not closed:
    fault = ('truncated' if tag is None else 'invalid_json') if broken else 'missing_close_tag'
    fault = fault if values or broken else 'no_json_after_tag'
  elif values:
    fault = 'multiple_objects' if len(values) > 1 else 'trailing_data' if place != end else None
  else:
    fault = 'invalid_json'
  return _Block(
    (begin, end), tuple(values), opens, closed, tag is None, fault or ('invalid_json' if opens > 1 else None)
  )


def _read(text: str, block: _Block, reading: Reading, finished: bool) -> tuple[ToolCall, ...]:
  """The calls of a block. Raises Fault."""
  if not finished and block.last and block.fault == 'missing_close_tag':
    raise Fault('truncated')
  if reading == 'lenient':
    return _read_leniently(text, block)
  if block.fault:
    raise Fault(block.fault)
  value = decode(text[slice(*block.values[0])])
  return _calls(value, reading)


def _read_leniently(text: str, block: _Block) -> tuple[ToolCall, ...]:
  if not block.closed and block.fault != 'missing_close_tag':
    raise Fault(block.fault)
  if block.values:
    found = [_calls(decode_loosely(text[slice(*value)]), 'lenient') for value in block.values]
    return tuple(call for calls in found for call in calls)
  body = text[slice(*block.body)]
  if function := _FUNCTION.match(body):
    return (ToolCall(function[1].strip(), _parameters(body[function.end() :])),)
  return _calls(decode_loosely(body), 'lenient')


def _calls(value: Any, reading: Reading) -> tuple[ToolCall, ...]:
  """The calls that a decoded value stands for. Raises Fault."""
  if reading == 'strict' or not isinstance(value, list):
    return (_call(value, reading),)
  if not value:
    raise Fault('missing_name')
  return tuple(_call(item, reading) for item in value)


def _call(value: Any, reading: Reading) -> ToolCall:
  if not isinstance(value, dict):
    raise Fault('not_an_object')
  if reading == 'lenient' and 'name' not in value and isinstance(value.get('function'), dict):
    value = value['function']
  name = value.get('name')
  if not isinstance(name, str) or not name:
    raise Fault('missing_name')
  key = 'arguments' if reading == 'strict' or 'arguments' in value else 'parameters'
  arguments = value.get(key)
  if reading == 'lenient' and arguments in (None, ''):
    arguments = {}
  elif key not in value:
    raise Fault('missing_arguments')
  if isinstance(arguments, str) and reading != 'strict':
    arguments = _decoded(arguments, reading)
  if not isinstance(arguments, dict):
    raise Fault('arguments_not_object')
  return ToolCall(name, arguments)


def _decoded(arguments: str, reading: Reading) -> Any:
  try:
    return decode(arguments) if reading == 'release' else decode_loosely(arguments)
  except Fault as fault:
    raise Fault('arguments_not_object') from fault


def _parameters(body: str) -> dict[str, Any]:
  """Values of `<parameter=key>` elements: JSON if they are JSON, else their text."""
  out = {}
  pieces = _PARAMETER.split(body)
  for key, piece in zip(pieces[1::2], pieces[2::2], strict=True):
    value = piece.partition('</parameter>')[0].strip('\n')
    try:
      out[key.strip()] = decode(value)
    except Fault:
      out[key.strip()] = value
  return out


def _untagged(prose: str) -> Iterator[tuple[ToolCall, ...]]:
  """Calls in code fences and `<tools>` elements of a text without any call tag; anything else there is text."""
  fenced = [piece.partition('\n')[2] for piece in prose.split('```')[1:-1:2]]
  listed = [piece.partition('</tools>') for piece in prose.split('<tools>')[1:]]
  for body in [*fenced, *(body for body, closing, _ in listed if closing)]:
    try:
      yield _calls(decode_loosely(body), 'lenient')
    except Fault:
      continue


def _skip_space(text: str, place: int) -> int:
  return _SPACE.match(text, place).end()  # type: ignore[union-attr]
