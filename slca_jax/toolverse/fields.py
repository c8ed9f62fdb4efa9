"""Values inside JSON by the path that leads to them, and what the names along the way call them.

A path reads `hotels[].rooms[].id`: `[]` is any element of a list, `{}` any record of an object that holds records by
their keys.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slca_jax.dialogue import Tool
from slca_jax.envs.confined.offered import words
from slca_jax.toolverse.deterministic.words import CREATES, DELETES, READS, TRANSITIONS, UPDATES, WORKS, singular, split

Words = tuple[str, ...]
Scalar = str | int | float | bool

MAKES = words('create new insert make register')  # what comes of it was not there before
SEARCHES = words('search find list query browse discover lookup filter explore select')
VERBS = frozenset({*CREATES, *READS, *UPDATES, *DELETES, *TRANSITIONS, *WORKS})
# Verbs that are nouns as often: they name what a tool does only where no other word of its name does.
_ALSO_NOUNS = words(
  """order book record log store comment draft issue report match ship star like follow play post list rate place end
  access detail details info label tag patch count share score review schedule purchase reply bookmark message query
  filter run return rank test audit track forecast extract poll change"""
)
# Words that say nothing about whose they are: alone, they need the name of the record around them.
_VAGUE = words(
  """id key name title code number ref reference slug description text status state type kind category date time start
  end note amount quantity count total price value message content summary url link language limit page offset sort
  order format currency"""
)
_FREE_TEXT = words(
  'name title label subject topic description text note content message comment body summary reason email phone'
)
_KEYS = words('id uuid key code ref reference number slug sku symbol')
_FILLERS = words(
  'detail details info information data record list item result all by for of from to in with the a an new my'
)
_BOILERPLATE = words('status message success ok error count total page limit offset')


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
  """A scalar inside JSON: the path to it, which elements and records that passes, and the value."""

  path: str
  place: tuple[int | str, ...]
  value: Scalar


def leaves(value: Any, path: str = '', place: tuple[int | str, ...] = ()) -> Iterator[Leaf]:
  """The scalars of a JSON value in order; no nulls."""
  if isinstance(value, Mapping):
    records = holds_records(value)
    for key, part in value.items():
      if records:
        yield from leaves(part, f'{path}{{}}', (*place, key))
      else:
        yield from leaves(part, f'{path}.{key}' if path else str(key), place)
  elif isinstance(value, list):
    for index, part in enumerate(value):
      yield from leaves(part, f'{path}[]', (*place, index))
  elif isinstance(value, str | int | float):
    yield Leaf(path, place, value)


def schema_leaves(schema: Any, path: str = '', depth: int = 0) -> Iterator[tuple[str, str]]:
  """(path, type) of the scalars that a JSON Schema describes; '' is a type that it leaves open."""
  if not isinstance(schema, Mapping) or depth > 8:
    return
  properties = schema.get('properties')
  if isinstance(properties, Mapping):
    for key, part in properties.items():
      yield from schema_leaves(part, f'{path}.{key}' if path else str(key), depth + 1)
  elif isinstance(schema.get('items'), Mapping):
    yield from schema_leaves(schema['items'], f'{path}[]', depth + 1)
  elif (kind := type_of(schema)) not in ('object', 'array'):
    yield path, kind


def holds_records(value: Mapping[str, Any]) -> bool:
  """Whether an object is a table: records by keys that name nothing, or that share all their fields."""
  rows = list(value.values())
  if not rows or not all(isinstance(row, Mapping) and row for row in rows):
    return False
  return all(any(c.isdigit() for c in str(key)) for key in value) or (
    len(rows) > 1 and all(row.keys() == rows[0].keys() for row in rows)
  )


def type_of(schema: Mapping[str, Any]) -> str:
  """The JSON type that a schema asks for, the first one that is not null; '' if it says none."""
  kind = schema.get('type')
  kinds = kind if isinstance(kind, list) else [kind]
  named = next((name for name in kinds if isinstance(name, str) and name != 'null'), '')
  if named:
    return named
  for union in ('anyOf', 'oneOf', 'allOf'):
    parts = schema.get(union)
    for part in parts if isinstance(parts, list) else ():
      if isinstance(part, Mapping) and type_of(part) not in ('', 'null'):
        return type_of(part)
  return ''


def json_type(value: Any) -> str:
  """The JSON type of a scalar; '' if it is none."""
  kinds = ((bool, 'boolean'), (int, 'integer'), (float, 'number'), (str, 'string'))
  return next((name for kind, name in kinds if isinstance(value, kind)), '')


def fits(kind: str, other: str) -> bool:
  """Whether a value of one JSON type may be given where the other is asked for."""
  return not kind or not other or kind == other or {kind, other} == {'integer', 'number'}


def parameters(tool: Tool) -> dict[str, Mapping[str, Any]]:
  """The tool's parameters by name, with their schemas."""
  properties = tool.parameters.get('properties')
  if not isinstance(properties, Mapping):
    return {}
  return {name: part if isinstance(part, Mapping) else {} for name, part in properties.items()}


def required(tool: Tool) -> tuple[str, ...]:
  """The parameters that each call must give."""
  names = tool.parameters.get('required')
  return tuple(name for name in parameters(tool) if isinstance(names, list | tuple) and name in names)


@functools.lru_cache(1 << 14)
def name_words(name: str) -> Words:
  """The words of a name, each in its singular."""
  return tuple('id' if word == 'ids' else singular(word) for word in split(name.replace('IDs', 'Ids')))


@functools.lru_cache(1 << 14)
def verb(tool_name: str) -> str:
  """The word of a tool's name that says what it does; '' if none does."""
  named = [word for word in split(tool_name) if word in VERBS]
  return next((word for word in named if word not in _ALSO_NOUNS), named[0] if named else '')


@functools.lru_cache(1 << 14)
def nouns(tool_name: str) -> Words:
  """What a tool is about: its words without the verb and fillers ('get_hotel_details' is about hotel)."""
  about = tuple(singular(word) for word in split(tool_name) if word != verb(tool_name))
  return tuple(word for word in about if word not in _FILLERS) or about


@functools.lru_cache(1 << 16)
def field_words(path: str, owner: Words) -> Words:
  """What a path's value is called: `hotels[].id` is hotel, id. A vague name with nothing around it is its owner's."""
  parts = [part for part in path.replace('[]', '').replace('{}', '').split('.') if part]
  name = name_words(parts[-1]) if parts else ()
  if not name or not _is_vague(name):
    return name
  around = next((name_words(part) for part in reversed(parts[:-1]) if not set(name_words(part)) <= _BOILERPLATE), owner)
  return (*around, *name)


def is_key(name: Words) -> bool:
  """Whether a name is that of a key by which records are found."""
  return bool(name) and name[-1] in _KEYS


def _is_vague(name: Words) -> bool:
  """Whether a name needs another before it: `start_date` does, `message_id` does not."""
  return set(name) <= _VAGUE and not (len(name) > 1 and is_key(name))


def is_boilerplate(path: str) -> bool:
  """Whether a path leads to what every answer says, such as its status."""
  name = name_words(path.rsplit('.', 1)[-1])
  return bool(name) and set(name) <= _BOILERPLATE and '[]' not in path


def same_thing(parameter: Words, field: Words) -> bool:
  """Whether a parameter asks for what a field holds.

  Equal names do, unless they are vague; so does a name with a role before it (`from_account_id`, `account_id`).
  """
  if not parameter or not field or (len(parameter) == 1 and _is_vague(parameter)):
    return False
  if parameter == field:
    return True
  shorter, longer = sorted((parameter, field), key=len)
  return len(shorter) > 1 and longer[-len(shorter) :] == shorter


def about_the_same(a: Sequence[str], b: Sequence[str]) -> int:
  """How many words two tools share if one is about all that the other is about; 0 otherwise."""
  shared = set(a) & set(b)
  return len(shared) if shared and shared in (set(a), set(b)) else 0


def is_said_by_user(tool: Tool, parameter: str) -> bool:
  """Whether a parameter is what the user wants to see written: labels and texts of something new, and what changes.

  Of an update, the first required parameter finds the record and all others but keys change it.
  """
  order, name = rank(tool.name), name_words(parameter)
  if order == 2:
    return (
      is_free_text(parameter) and about_the_same(field_words(parameter, nouns(tool.name))[:-1], nouns(tool.name)) > 0
    )
  return order == 3 and not is_key(name) and parameter not in required(tool)[:1]


def is_own_key(tool: Tool, parameter: str) -> bool:
  """Whether a parameter is the key of what the tool makes, by its name: `user_id` or `user` of `create_user`."""
  about, asked = nouns(tool.name), field_words(parameter, nouns(tool.name))
  return verb(tool.name) in MAKES and (asked == about or (is_key(asked) and asked[:-1] == about))


def is_free_text(parameter: str) -> bool:
  """Whether a parameter takes whatever text its writer likes."""
  return bool(set(name_words(parameter)[-1:]) & _FREE_TEXT)


@functools.lru_cache(1 << 14)
def rank(tool_name: str) -> int | None:
  """When a tool's verb comes, counted from 0: look for, look at, make, change, take away. None for other verbs."""
  does = verb(tool_name)
  orders = (SEARCHES, READS, CREATES, {*UPDATES, *(TRANSITIONS.keys() - {'cancel'})}, {*DELETES, 'cancel'})
  return next((number for number, verbs in enumerate(orders) if does in verbs), None)
