"""Arguments of golden calls: copied from earlier answers, drawn from the database as it stands, or made up."""

import collections
import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from slca_jax.dialogue import Tool
from slca_jax.toolverse.fields import (
  MAKES,
  Words,
  about_the_same,
  field_words,
  fits,
  holds_records,
  is_free_text,
  is_key,
  is_said_by_user,
  json_type,
  leaves,
  name_words,
  nouns,
  parameters,
  rank,
  required,
  same_thing,
  type_of,
  verb,
)
from slca_jax.toolverse.graph import Edge
from slca_jax.toolverse.invention import LABELS, made_up, some_words, unused

_SEARCHED = frozenset({'query', 'keyword', 'search', 'term', 'q', 'text', 'pattern'})
_QUERIES = _SEARCHED | {'name'}
_FILTER, _LONE_FILTER = 0.25, 0.6  # how often an optional filter is given; that of a tool that requires nothing


class NoArgument(ValueError):
  """A parameter for which there is no value; the text says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
  """Where an argument comes from.

  Attributes:
    kind: an earlier output, the database, or made up for the schema. An instruction states all but the first.
    where: the path in the output, the table and column, or ''.
    source: the tool whose output it is.
    element: which element of the first list or table on the way to it; None if there is none on it.
    pick: how to tell the record among several of that output, such as `whose name is "Tower"`; '' if there is one.
      It stands there once the whole trace is known (`telling.settled`).
    named: the value that `pick` names it by, if it names one.
  """

  kind: Literal['output', 'database', 'schema']
  where: str = ''
  source: str = ''
  element: int | str | None = None
  pick: str = ''
  named: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Argument:
  """A value and where it comes from."""

  value: Any
  origin: Origin


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
  """A column of a database: its values by the key of their record, and what they are called."""

  table: str
  name: str
  called: Words
  values: Mapping[int | str, Any]

  @property
  def finds(self) -> bool:
    """Whether its values are the keys under which the records stand."""
    return all(str(value) == key for key, value in self.values.items())


class Story:
  """What a trace has to tell so far: the answers, and which records it is about.

  One record of each table, and one element of each list that was answered, is chosen and kept, so that the hotel that
  is looked at is also the one that is booked; and a value is given again where a parameter of its name comes again.
  """

  def __init__(self, chance: random.Random):
    self._chance = chance
    self.outputs: dict[str, Any] = {}
    self._elements: dict[tuple[str, str], int | str] = {}
    self._records: dict[str, int | str] = {}
    self._given: dict[Words, Argument] = {}
    self._loosely = False

  def begin(self) -> None:
    """A new call is to be made: columns are taken in the order of how well they fit."""
    self._loosely = False

  def keep(self, arguments: Mapping[str, Argument]) -> None:
    """Remembers the arguments of a call that was accepted."""
    for name, argument in arguments.items():
      if len(called := name_words(name)) > 1:
        self._given[called] = argument

  def choices(self) -> tuple[dict[tuple[str, str], int | str], dict[str, int | str]]:
    """A copy of what is chosen, for `choose_again`."""
    return dict(self._elements), dict(self._records)

  def choose_again(self, choices: tuple[dict[tuple[str, str], int | str], dict[str, int | str]]) -> None:
    """Forgets what was chosen since; columns that fit less well have a chance from now on."""
    self._loosely = True
    self._elements, self._records = dict(choices[0]), dict(choices[1])

  def arguments(self, tool: Tool, edges: Sequence[Edge], columns: Sequence[Column]) -> dict[str, Argument]:
    """The arguments of a call.

    Raises:
      NoArgument: an earlier answer lacks the value that a required parameter is to be copied from.
    """
    links = collections.defaultdict[str, list[tuple[str, str]]](list)
    for edge in edges:
      for link in edge.links:
        if link.parameter in parameters(tool):
          links[link.parameter].append((edge.source, link.field))
    found = {name: argument for name in required(tool) if (argument := self._fresh(tool, name, columns)) is not None}
    for name in [name for name in links if name not in found]:
      found |= self._copied(tool, name, parameters(tool)[name], links[name])
    for name in required(tool):
      if name not in links and name not in found:
        schema = parameters(tool)[name]
        found[name] = (
          self._beside(tool, name, schema, tuple(found.values()))
          or self._again(name, schema)
          or self._drawn(tool, name, schema, columns)
          or _made_up(name, schema, self._chance)
        )
    return found | self._optional(tool, set(found) | set(links), columns)

  def _fresh(self, tool: Tool, name: str, columns: Sequence[Column]) -> Argument | None:
    """A key that no record has yet, for the parameter that becomes the key of what the tool makes.

    Some verbs make surely, others mostly do something with what is there (to book a hotel): those take an existing key
    first, and a fresh one once in a while after it was refused.
    """
    column = next((column for column in columns if _is_key_of_new(tool, name, column)), None)
    if column is None or not (self._chance.random() < 0.5 if self._loosely else verb(tool.name) in MAKES):
      return None
    return Argument(unused(name, parameters(tool)[name], tuple(column.values.values()), self._chance), Origin('schema'))

  def _copied(
    self, tool: Tool, name: str, schema: Mapping[str, Any], sources: Sequence[tuple[str, str]]
  ) -> dict[str, Argument]:
    """The parameter's value from the first output that has one; none if it may be left out."""
    for source, path in sources:
      argument = self._from_output(source, path)
      if argument is not None:
        many = type_of(schema) == 'array' and not isinstance(argument.value, list)
        return {name: dataclasses.replace(argument, value=[argument.value]) if many else argument}
    if name not in required(tool):
      return {}
    said = ' or '.join(f'{path} of {source}' for source, path in sources)
    raise NoArgument(f'{name} was to be {said}, which was not answered')

  def _beside(self, tool: Tool, name: str, schema: Mapping[str, Any], copied: Sequence[Argument]) -> Argument | None:
    """What stands under the parameter's name in a record from which another parameter of the call was copied."""
    if is_said_by_user(tool, name):
      return None
    asked, kind = field_words(name, nouns(tool.name)), type_of(schema)
    for origin in (argument.origin for argument in copied if argument.origin.kind == 'output'):
      around = container(origin.where)
      for leaf in leaves(self.outputs[origin.source]):
        alike = leaf.path.startswith(around) and fits(json_type(leaf.value), kind) and leaf.value != ''
        if alike and around and asked == field_words(leaf.path, nouns(origin.source)):
          return self._from_output(origin.source, leaf.path)
    return None

  def _again(self, name: str, schema: Mapping[str, Any]) -> Argument | None:
    """What a parameter of the same name was given before. Free text is written anew."""
    argument = self._given.get(name_words(name))
    if argument is None or is_free_text(name) or not fits(json_type(argument.value), type_of(schema)):
      return None
    return argument

  def _from_output(self, source: str, path: str) -> Argument | None:
    if source not in self.outputs:
      return None
    found = [leaf for leaf in leaves(self.outputs[source]) if leaf.path == path and leaf.value != '']
    if not found:
      return None
    if not found[0].place:
      return Argument(found[0].value, Origin('output', path, source))
    elements = list(dict.fromkeys(leaf.place[0] for leaf in found))
    key = (source, container(path))
    element = self._elements.get(key)
    if element not in elements:
      element = self._elements[key] = self._chance.choice(elements)
    value = next(leaf.value for leaf in found if leaf.place[0] == element)
    return Argument(value, Origin('output', path, source, element))

  def _drawn(
    self, tool: Tool, name: str, schema: Mapping[str, Any], columns: Sequence[Column], *, least: float = 0.5
  ) -> Argument | None:
    """A value of the column that the parameter is about, as long as that is relevant enough."""
    if 'enum' in schema or 'const' in schema:
      return None
    many = type_of(schema) == 'array'
    items = schema.get('items')
    kind = type_of(items) if many and isinstance(items, Mapping) else type_of(schema)
    rated = [(score, column) for column in columns if (score := _relevance(tool, name, column)) >= least]
    rated.sort(key=lambda one: one[0], reverse=True)
    if self._loosely and self._chance.random() < 0.5:
      self._chance.shuffle(rated)
    for _, column in rated:
      value = self._value_in(column, kind)
      if value is not None:
        value = self._asked_by(tool, name, column, value)
        origin = self._answered(tool, name, value) or Origin('database', f'{column.table}.{column.name}')
        return Argument([value] if many else value, origin)
    return None

  def _answered(self, tool: Tool, name: str, value: Any) -> Origin | None:
    """The first answer that told the value under the parameter's name: nobody has to tell it again."""
    asked, last = field_words(name, nouns(tool.name)), name_words(name)[-1:]
    for source, output in self.outputs.items():
      for leaf in leaves(output):
        alike = isinstance(value, str) and name_words(leaf.path.rsplit('.', 1)[-1])[-1:] == last
        if leaf.value == value and (alike or same_thing(asked, field_words(leaf.path, nouns(source)))):
          return Origin('output', leaf.path, source, leaf.place[0] if leaf.place else None)
    return None

  def _asked_by(self, tool: Tool, name: str, column: Column, value: Any) -> Any:
    """The value, or of a label that is searched for some of its words: who knew all of it need not look it up."""
    searched = rank(tool.name) == 0 and set(name_words(name)) & _SEARCHED and set(name_words(column.name)) & LABELS
    return some_words(value, self._chance) if searched and isinstance(value, str) and not self._loosely else value

  def _value_in(self, column: Column, kind: str) -> Any:
    fitting = {key: value for key, value in column.values.items() if fits(json_type(value), kind) and value != ''}
    if not fitting:
      return None
    chosen = self._records.get(column.table)
    if chosen not in fitting:
      chosen = self._records[column.table] = self._chance.choice(list(fitting))
    return fitting[chosen]

  def _optional(self, tool: Tool, known: set[str], columns: Sequence[Column]) -> dict[str, Argument]:
    """Filters of a question, now and then, and what an update changes."""
    optional = [name for name in parameters(tool) if name not in known and name not in required(tool)]
    self._chance.shuffle(optional)
    if rank(tool.name) == 3 and not any(is_said_by_user(tool, name) for name in known):
      optional.sort(key=lambda name: not is_said_by_user(tool, name))
      return {name: _made_up(name, parameters(tool)[name], self._chance) for name in optional[:1]}
    if tool.writes or self._chance.random() > (_FILTER if required(tool) else _LONE_FILTER):
      return {}
    drawn = ((name, self._drawn(tool, name, parameters(tool)[name], columns, least=1.0)) for name in optional)
    found = next(((name, argument) for name, argument in drawn if argument is not None), None)
    return {} if found is None else {found[0]: found[1]}


def columns_of(database: Any) -> list[Column]:
  """The columns of the tables at the top of a database; the keys of records are a column of their own."""
  found: list[Column] = []
  for table, content in database.items() if isinstance(database, Mapping) else ():
    keyed = isinstance(content, Mapping)
    rows = dict(_rows(content))
    about = name_words(table)
    if keyed and rows:
      found.append(Column(table, 'key', (*about, 'id'), {key: key for key in rows}))
    names = dict.fromkeys(name for row in rows.values() for name in row)
    for name in names:
      values = {key: row[name] for key, row in rows.items() if isinstance(row.get(name), str | int | float)}
      if values:
        found.append(Column(table, name, field_words(name, about), values))
  return found


def _rows(content: Any) -> Iterator[tuple[int | str, Mapping[str, Any]]]:
  if isinstance(content, list):
    yield from ((place, row) for place, row in enumerate(content) if isinstance(row, Mapping))
  elif isinstance(content, Mapping):
    records = content if holds_records(content) or all(isinstance(row, Mapping) for row in content.values()) else {}
    yield from records.items()


def _relevance(tool: Tool, name: str, column: Column) -> float:
  """How well a column answers what a parameter asks for, 0 if it does not. From 1 on, it is in the tool's own table."""
  about = nouns(tool.name)
  at_home = not about or about_the_same(name_words(column.table), about) > 0
  asked, bare = field_words(name, about), name_words(name)
  if is_free_text(name) and ((tool.writes and rank(tool.name) not in (3, 4)) or is_said_by_user(tool, name)):
    return 0.0
  if same_thing(asked, column.called):
    return 2.0 + at_home
  if at_home and bare == name_words(column.name):
    return 2.0
  if at_home and set(bare) & _QUERIES and set(name_words(column.name)) & LABELS:
    return 1.5
  if at_home and name_words(column.name)[-1:] == bare[-1:] and not is_key(bare):
    return 1.0
  return 0.5 if bare == name_words(column.name) and not is_key(bare) else 0.0


def _is_key_of_new(tool: Tool, name: str, column: Column) -> bool:
  """Whether a tool makes a record of the column's table, under the key that the parameter gives."""
  about, table, schema = nouns(tool.name), name_words(column.table), parameters(tool)[name]
  if 'enum' in schema or 'const' in schema or type_of(schema) in ('array', 'object'):
    return False
  named = field_words(name, about) == column.called or name_words(name) == name_words(column.name)
  return rank(tool.name) == 2 and tool.writes and about[-len(table) :] == table and named and column.finds


def _made_up(name: str, schema: Mapping[str, Any], chance: random.Random) -> Argument:
  return Argument(made_up(name, schema, chance), Origin('schema'))


def container(path: str) -> str:
  """The path of the first list or table that a path leads through."""
  ends = [path.index(mark) for mark in ('[]', '{}') if mark in path]
  return path[: min(ends) + 2] if ends else ''


def quoted(value: Any) -> str:
  """A value as an instruction states it."""
  return f'"{value}"' if isinstance(value, str) else str(value)
