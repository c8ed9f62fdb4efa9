"""Tool schemas as they are found, as plain JSON Schema of Draft 2020-12.

Understood besides: boolean `exclusiveMinimum`, `required: true` inside a property, `id`, lists of `items` and
`dependencies` (drafts 3 and 4), `nullable` (OpenAPI), a default of null (null is then allowed), an array's `enum` that
lists its items, and type names of Python, Java and JavaScript (`dict`, `float`, `tuple`, `any`, `List[int]`, …). What
has no sensible reading is an error that names the place.
"""

import re
import urllib.parse
from collections.abc import Iterable
from typing import Any

import regex

from slca_jax.errors import SchemaError

MAX_DEPTH = 64

_TYPES = {
  'string': 'str string char character text',
  'integer': 'int integer long short byte bigint',
  'number': 'number float double decimal',
  'boolean': 'bool boolean',
  'array': 'array list tuple set sequence arraylist queue stack',
  'object': 'object dict dictionary map mapping hashmap hashtable record',
  'null': 'null none nonetype',
}
_TYPE_NAMES = {name: standard for standard, names in _TYPES.items() for name in names.split()}
_ANYTHING = ('', 'any', 'optional', 'union', 'mixed', 'literal', 'callable')
# What a validator does not read. $id would move the base of references, which are all meant from the top.
_DROPPED = frozenset(
  [
    *('$schema', '$id', 'id', '$anchor', '$comment', 'title', 'description'),
    *('examples', 'example', 'deprecated', 'readOnly', 'writeOnly', 'optional'),
  ]
)
_MAPS = ('properties', 'patternProperties', '$defs', 'definitions', 'dependentSchemas')
_LISTS = ('anyOf', 'oneOf', 'allOf', 'prefixItems')
_SINGLE = (
  *('items', 'additionalProperties', 'not', 'if', 'then', 'else', 'contains', 'propertyNames'),
  *('unevaluatedItems', 'unevaluatedProperties'),
)
_IN_PLACE = frozenset(('anyOf', 'oneOf', 'allOf', 'not', 'if', 'then', 'else', 'dependentSchemas'))


def translate(parameters: Any) -> dict[str, Any]:
  """The schema of a tool's arguments in plain Draft 2020-12, every `$ref` checked to end somewhere.

  Raises:
    SchemaError: a place that holds no schema, an unknown type, a reference outside the document, to nowhere or in a
      circle, a pattern that is no regular expression, or more than 64 levels.
  """
  translation = _Translation()
  schema = translation.schema({} if parameters is None else parameters, (), 0)
  if not isinstance(schema, dict):
    raise SchemaError(f'the schema is {schema}; the parameters of a tool are described by an object')
  if 'object' not in _as_list(schema.setdefault('type', 'object')):
    raise SchemaError(f'the type at the top is {schema["type"]!r}; arguments are always an object')
  translation.check_references()
  return schema


def pointer_text(path: Iterable[Any]) -> str:
  """A place in a schema as a JSON pointer."""
  steps = [str(step).replace('~', '~0').replace('/', '~1') for step in path]
  return ''.join(f'/{step}' for step in steps) or 'the top'


class _Translation:
  """One pass over a schema. `_edges`: from each place to those that judge the same value (references, unions)."""

  def __init__(self):
    self._edges: dict[tuple[str, ...], list[tuple[str, ...]]] = {}

  def schema(self, raw: Any, place: tuple[str, ...], depth: int) -> dict[str, Any] | bool:
    """The schema at a place of the document, translated; SchemaError if it has no sensible reading."""
    self._edges[place] = []
    if isinstance(raw, bool):
      return raw
    if not isinstance(raw, dict):
      raise _error(place, f'{str(raw)[:60]!r} is no schema')
    if depth > MAX_DEPTH:
      raise _error(place[:3], f'the schema nests deeper than {MAX_DEPTH} levels')
    out = {
      key: value
      for key, value in raw.items()
      if key not in _DROPPED and (value is not None or key in ('const', 'default'))
    }
    _set_type(out, place)
    _set_bounds(out)
    _set_old_keywords(out, place)
    _set_required(out, place)
    _check_patterns(out, place)
    for key in ('$dynamicRef', '$recursiveRef'):
      if key in out:
        raise _error(place, f'{key} is not supported; use $ref')
    if '$ref' in out:
      self._edges[place].append(_target(out['$ref'], place))
    self._descend(out, place, depth)
    return out

  def _descend(self, out: dict[str, Any], place: tuple[str, ...], depth: int) -> None:
    for key in _MAPS:
      if key in out:
        out[key] = {name: self._below(key, value, (*place, key, name), depth) for name, value in out[key].items()}
    for key in _LISTS:
      if key in out:
        if not isinstance(out[key], list):
          raise _error((*place, key), f'{str(out[key])[:60]!r} is no list of schemas')
        out[key] = [self._below(key, value, (*place, key, str(i)), depth) for i, value in enumerate(out[key])]
    for key in _SINGLE:
      if key in out:
        out[key] = self._below(key, out[key], (*place, key), depth)

  def _below(self, key: str, raw: Any, place: tuple[str, ...], depth: int) -> dict[str, Any] | bool:
    if key in _IN_PLACE:
      parent = place[: len(place) - (2 if key in _MAPS or key in _LISTS else 1)]
      self._edges[parent].append(place)
    return self.schema(raw, place, depth + 1)

  def check_references(self) -> None:
    """Raises SchemaError for a reference to nowhere, and for places that judge a value by themselves again."""
    settled: set[tuple[str, ...]] = set()
    for start in self._edges:
      path, stack = [], [(start, False)]
      while stack:
        place, left = stack.pop()
        if left:
          settled.add(path.pop())
        elif place in path:
          raise _error(place, 'references run in a circle here')
        elif place not in settled:
          path.append(place)
          stack.append((place, True))
          for target in self._edges[place]:
            if target not in self._edges:
              raise _error(place, f'the reference to {pointer_text(target)} leads to no schema')
            stack.append((target, False))


def _set_type(out: dict[str, Any], place: tuple[str, ...]) -> None:
  nullable = out.pop('nullable', False) is True or ('default' in out and out['default'] is None)
  if 'type' not in out:
    return
  standard: list[str] = []
  for name in _as_list(out.pop('type')):
    for word in _words(name):
      if word in _ANYTHING:
        return
      if word not in _TYPE_NAMES:
        raise _error(place, f'{str(name)[:60]!r} is no known type; known are {", ".join(_TYPES)} and any')
      standard.append(_TYPE_NAMES[word])
  if not standard:
    raise _error(place, 'the list of types is empty')
  if nullable:
    standard.append('null')
    if isinstance(out.get('enum'), list):
      out['enum'] = [*out['enum'], None]
  standard = list(dict.fromkeys(standard))
  out['type'] = standard if len(standard) > 1 else standard[0]


def _words(name: Any) -> list[str]:
  """The bare type names in `Optional[int]`, `str, optional` or `float | None`."""
  if not isinstance(name, str):
    return [repr(name)]
  outside = re.split(r'[\[(<,]', name.lower(), maxsplit=1)[0]
  return [word.strip().rpartition('.')[2] for word in outside.split('|')]


def _set_bounds(out: dict[str, Any]) -> None:
  for exclusive, inclusive in (('exclusiveMinimum', 'minimum'), ('exclusiveMaximum', 'maximum')):
    if isinstance(out.get(exclusive), bool):
      strict = out.pop(exclusive)
      if strict and inclusive in out:
        out[exclusive] = out.pop(inclusive)


def _set_old_keywords(out: dict[str, Any], place: tuple[str, ...]) -> None:
  if isinstance(out.get('items'), list):
    positions = out.pop('items')
    if positions:
      out['prefixItems'] = positions
    if 'additionalItems' in out:
      out['items'] = out.pop('additionalItems')
  values = out.get('enum')
  if out.get('type') == 'array' and isinstance(values, list) and not any(isinstance(value, list) for value in values):
    out['items'] = {'allOf': [out.get('items', True), {'enum': out.pop('enum')}]}
  dependencies = out.pop('dependencies', {})
  if not isinstance(dependencies, dict):
    raise _error(place, f'dependencies is {str(dependencies)[:60]!r}; it takes an object')
  for name, needed in dependencies.items():
    key = 'dependentRequired' if isinstance(needed, list) else 'dependentSchemas'
    out[key] = {**out.get(key, {}), name: needed}


def _set_required(out: dict[str, Any], place: tuple[str, ...]) -> None:
  """Makes `required` a list of names, those of properties that say `required: true` included."""
  for key in _MAPS:
    if not isinstance(out.get(key, {}), dict):
      raise _error((*place, key), f'{str(out[key])[:60]!r} is no object of schemas')
  required = out.pop('required', [])
  if isinstance(required, bool):  # said by a property about itself; its parent has read it
    required = []
  if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
    raise _error((*place, 'required'), f'{str(required)[:60]!r} is no list of names')
  for name, value in out.get('properties', {}).items():
    if isinstance(value, dict) and value.get('required') is True:
      required = [*required, name]
  if required:
    out['required'] = list(dict.fromkeys(required))


def _check_patterns(out: dict[str, Any], place: tuple[str, ...]) -> None:
  for pattern in [*([out['pattern']] if 'pattern' in out else []), *out.get('patternProperties', {})]:
    try:
      regex.compile(pattern)
    except (regex.error, TypeError, OverflowError, RecursionError) as error:
      raise _error(place, f'the pattern {str(pattern)[:60]!r} cannot be compiled: {error}') from error


def _target(reference: Any, place: tuple[str, ...]) -> tuple[str, ...]:
  """The place that a `$ref` names."""
  if not isinstance(reference, str) or not (reference == '#' or reference.startswith('#/')):
    raise _error(place, f'the reference {str(reference)[:80]!r} leaves the document; put its target under $defs')
  steps = urllib.parse.unquote(reference[1:]).split('/')[1:]
  return tuple(step.replace('~1', '/').replace('~0', '~') for step in steps)


def _as_list(value: Any) -> list[Any]:
  return value if isinstance(value, list) else [value]


def _error(place: tuple[str, ...], reason: str) -> SchemaError:
  return SchemaError(f'at {pointer_text(place)}: {reason}')
