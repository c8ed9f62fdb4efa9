"""What a dictionary database holds and what each tool does with it, before any record or line of code is made."""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

from slca_jax.dialogue import Tool

Action = Literal['list', 'get', 'count', 'create', 'update', 'set', 'delete', 'clear', 'move', 'pure']


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
  """The column of another table that a column repeats."""

  table: str
  column: str


@dataclasses.dataclass(slots=True)
class Column:
  """A field of a table's records. `schema` is plain (one type); `link`: its values are those of another table."""

  name: str
  schema: dict[str, Any]
  link: Link | None = None
  unique: bool = False

  @property
  def kind(self) -> str:
    """The JSON type."""
    return self.schema['type']


@dataclasses.dataclass(slots=True)
class Table:
  """Records about one thing.

  Attributes:
    noun: what a record is, singular.
    name: of the table in the database.
    columns: by name, in the order of the records' fields.
    key: the column whose text is a record's key in the table.
    one: it holds a single record, about the world itself.
    many: several records per parent.
    brief: columns that lists show; () shows all.
  """

  noun: str
  name: str
  columns: dict[str, Column] = dataclasses.field(default_factory=dict)
  key: str = ''
  one: bool = False
  many: bool = False
  brief: tuple[str, ...] = ()

  @property
  def label(self) -> str:
    """Under which name an answer tells of one record; never that of what every answer tells."""
    return f'{self.noun}_record' if self.noun in ('status', 'message', 'count', 'result', self.key) else self.noun

  @property
  def links(self) -> tuple[Column, ...]:
    """The columns that repeat another table's."""
    return tuple(column for column in self.columns.values() if column.link)


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
  """A record must hold the parameter's value in `column`.

  Attributes:
    several: the parameter is a list, and one of its values will do.
    parent: where the value must exist.
  """

  parameter: str
  column: str
  required: bool
  several: bool = False
  parent: Link | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Operation:
  """What one tool does.

  Attributes:
    tool: its rewritten definition.
    action: what it does with the records that match; see `code.py`.
    table: noun of its table.
    matches: which records it is about.
    queries: parameters with words to look for in the records' text.
    bounds: (parameter, column, 'from' or 'to').
    limit, offset, page: parameters that cut a list, '' if there are none.
    fields: (parameter, column) that it writes.
    state: what a move writes in the column `status`.
    replaces: a create that may overwrite the record of its key.
    pure: of a computation: its expression over the parameters.
  """

  tool: Tool
  action: Action
  table: str = ''
  matches: tuple[Match, ...] = ()
  queries: tuple[str, ...] = ()
  bounds: tuple[tuple[str, str, str], ...] = ()
  limit: str = ''
  offset: str = ''
  page: str = ''
  fields: tuple[tuple[str, str], ...] = ()
  state: str = ''
  replaces: bool = False
  pure: str = ''

  @property
  def required(self) -> tuple[str, ...]:
    """The parameters that every call gives."""
    return tuple(self.tool.parameters.get('required') or ())

  @property
  def writes(self) -> bool:
    """Whether it changes the database."""
    return self.action not in ('list', 'get', 'count', 'pure')


@dataclasses.dataclass(frozen=True)
class Plan:
  """All tables and operations of a server, and the reason for each tool that was left out."""

  tables: Mapping[str, Table]
  operations: tuple[Operation, ...]
  left_out: Mapping[str, str]
