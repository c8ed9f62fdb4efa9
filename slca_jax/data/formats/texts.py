"""Values that stand in texts, as JSON or as Python writes them. Nothing is repaired, and nothing is guessed."""

import ast
import json
import math
import re
from typing import Any, TypeGuard

from slca_jax.chat.decoding import Fault, check_depth, decode
from slca_jax.data.formats.row import BadRow

_QUOTED = 100  # characters of what an error quotes
_PYTHON = re.compile(r"[\[{\s]*'")  # how Python writes objects and lists of strings


def shown(value: Any) -> str:
  """The start of a value, for errors."""
  text = repr(value)
  return text if len(text) <= _QUOTED else f'{text[:_QUOTED]}…'


def load(text: str | bytes, what: str = 'row') -> Any:
  """The JSON value of a text. Raises BadRow for broken JSON, NaN, a key given twice and lone surrogates."""
  try:
    text = text if isinstance(text, str) else text.decode()
    value = _DECODER.decode(text)
    encodable(value, text)
  except (ValueError, RecursionError) as error:
    raise BadRow('json', f'the {what} is no JSON: {type(error).__name__}: {str(error)[:_QUOTED]}') from error
  return value


def encodable(value: Any, text: str) -> None:
  """Raises ValueError if the value of a JSON text holds lone surrogates, which no file could."""
  if '\\ud' in text or '\\uD' in text:
    json.dumps(value, ensure_ascii=False).encode()
  elif not text.isascii():
    text.encode()


def distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
  """The object of some pairs. Raises ValueError for a key that is there twice: nobody knows which one is meant."""
  out = dict(pairs)
  if len(out) < len(pairs):
    keys = [key for key, _ in pairs]
    raise ValueError(f'the key {next(key for key in keys if keys.count(key) > 1)!r} is there twice')
  return out


def no_constant(name: str) -> None:
  """Refuses NaN and infinities."""
  raise ValueError(f'{name} is no JSON')


def literal(text: str) -> Any:
  """The value of a text that is JSON or a Python literal; nothing is guessed.

  Raises:
    BadRow: it is neither, or what it says could not be written as JSON: sets, keys that are no strings, NaN.
  """
  text = text.strip()
  try:
    if not _PYTHON.match(text):  # most calls; of JSON nothing begins like that
      return decode(text)
    check_depth(text)
  except Fault as fault:
    if str(fault) != 'invalid_json':
      raise BadRow('call', f'{shown(text)} cannot be used: {fault}') from fault
  try:
    return _python(ast.parse(text, mode='eval').body)
  except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
    raise BadRow('call', f'{shown(text)} is neither JSON nor a Python literal') from error


def _python(node: ast.expr) -> Any:
  """The value of a literal, as `ast.literal_eval` gives it, if JSON can say it. Raises ValueError or TypeError."""
  if isinstance(node, ast.Constant):
    return _jsonable(node.value)
  if isinstance(node, ast.Dict):
    names = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
    if not all(isinstance(name, str) for name in names):
      raise ValueError('keys must be strings')
    return distinct([(_jsonable(name), _python(value)) for name, value in zip(names, node.values, strict=True)])
  if isinstance(node, ast.List | ast.Tuple):
    return [_python(item) for item in node.elts]
  if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd | ast.USub) and _is_number(node.operand):
    value = _jsonable(node.operand.value)
    return value if isinstance(node.op, ast.UAdd) else -value
  raise ValueError(type(node).__name__)


def _is_number(node: ast.expr) -> TypeGuard[ast.Constant]:
  return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _jsonable(value: Any) -> Any:
  if isinstance(value, str):
    value.encode()
  elif isinstance(value, float) and not math.isfinite(value):
    raise ValueError('no number')
  elif value is not None and not isinstance(value, int | float):
    raise TypeError(type(value).__name__)
  return value


_DECODER = json.JSONDecoder(object_pairs_hook=distinct, parse_constant=no_constant)  # `json.loads` makes one each time
