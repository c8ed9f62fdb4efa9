"""Loose equality of JSON values: what counts as the same argument however a model spells it. Standard library only."""

import re
from collections.abc import Mapping
from typing import Any

_WHOLE = re.compile(r'[+-]?\d{1,400}')
_NUMBER = re.compile(r'[+-]?(\d{1,400}(\.\d{0,400})?|\.\d{1,400})([eE][+-]?\d{1,4})?')


def loosely_equal(a: Any, b: Any) -> bool:
  """Whether two JSON values say the same.

  Strings compare trimmed, with folded case and collapsed white space. A number equals its numeric string, an integer an
  equal float; 'true' and 'false' equal booleans, but 1 is not True. Lists compare element by element, objects key by
  key, null equals only null. Never raises, however deep the values are.

  SLCA-GRPO (arXiv:2609.29050), eq. 26.
  """
  pairs = [(a, b)]
  while pairs:
    left, right = pairs.pop()
    if isinstance(left, Mapping) and isinstance(right, Mapping):
      if left.keys() != right.keys():
        return False
      pairs.extend((value, right[key]) for key, value in left.items())
    elif isinstance(left, list | tuple) and isinstance(right, list | tuple):
      if len(left) != len(right):
        return False
      pairs.extend(zip(left, right, strict=True))
    elif not _same_scalar(left, right):
      return False
  return True


def _same_scalar(a: Any, b: Any) -> bool:
  if isinstance(a, str) and isinstance(b, str):
    return _folded(a) == _folded(b)
  if isinstance(b, str):
    a, b = b, a
  if isinstance(a, str):
    if isinstance(b, bool):
      return _folded(a) == ('true' if b else 'false')
    return isinstance(b, int | float) and as_number(a) == b
  if isinstance(a, bool) or isinstance(b, bool):
    return isinstance(a, bool) and isinstance(b, bool) and a == b
  if isinstance(a, int | float) and isinstance(b, int | float):
    return a == b
  return a is None and b is None


def as_number(text: str) -> int | float | None:
  """The number that a string spells in decimal notation, None if it spells none."""
  text = text.strip()
  if _WHOLE.fullmatch(text):
    return int(text)
  return float(text) if _NUMBER.fullmatch(text) else None


def _folded(text: str) -> str:
  return ' '.join(text.split()).casefold()
