"""Schemas of plain keywords, told from others in a fraction of the time that the metaschema takes."""

import math
from collections.abc import Callable
from typing import Any

_TYPES = frozenset(('string', 'integer', 'number', 'boolean', 'array', 'object', 'null'))


def is_plain(schema: Any) -> bool:
  """Whether Draft 2020-12 surely allows the schema: all its keywords are among the common ones and hold what they may.

  Of others it says nothing; the metaschema does.
  """
  if isinstance(schema, bool):
    return True
  return isinstance(schema, dict) and all(
    keyword in _ALLOWED and _ALLOWED[keyword](value) for keyword, value in schema.items()
  )


def _are_plain(schemas: Any) -> bool:
  return isinstance(schemas, list) and bool(schemas) and all(map(is_plain, schemas))


def _are_named(schemas: Any) -> bool:
  return isinstance(schemas, dict) and all(map(is_plain, schemas.values()))


def _is_type(value: Any) -> bool:
  names = value if isinstance(value, list) and value else [value]
  return all(isinstance(name, str) and name in _TYPES for name in names) and len(set(names)) == len(names)


def _are_names(value: Any) -> bool:
  return isinstance(value, list) and all(isinstance(name, str) for name in value) and len(set(value)) == len(value)


def _is_bound(value: Any) -> bool:
  return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_count(value: Any) -> bool:
  return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_ALLOWED: dict[str, Callable[[Any], bool]] = {
  'type': _is_type,
  'properties': _are_named,
  'required': _are_names,
  'enum': lambda value: isinstance(value, list),
  'default': lambda _: True,
  'const': lambda _: True,
  'description': lambda value: isinstance(value, str),
  'title': lambda value: isinstance(value, str),
  'format': lambda value: isinstance(value, str),
  **dict.fromkeys(('items', 'additionalProperties', 'not'), is_plain),
  **dict.fromkeys(('anyOf', 'oneOf', 'allOf', 'prefixItems'), _are_plain),
  **dict.fromkeys(('minimum', 'maximum', 'exclusiveMinimum', 'exclusiveMaximum'), _is_bound),
  **dict.fromkeys(('minLength', 'maxLength', 'minItems', 'maxItems'), _is_count),
  'uniqueItems': lambda value: isinstance(value, bool),
}
