"""The last touches of a plan: keys, fields that records of their kind have, links between tables, and what is left."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from slca_jax.toolverse.deterministic import words as w
from slca_jax.toolverse.deterministic.catalogue import fields_of
from slca_jax.toolverse.deterministic.model import Column, Link, Operation, Plan, Table
from slca_jax.toolverse.deterministic.rewriting import returns

_RELATED = w.words('related similar citation reference link dependency recommendation suggestion follower connection')
_MOST_BRIEF = 4
_MOST_LINKS = 2


def finish(tables: dict[str, Table], operations: Sequence[Operation], left_out: dict[str, str]) -> Plan:
  """The plan with whole tables; operations on records that nothing makes or reads are left out."""
  used = {operation.table for operation in operations} - {''}
  tables = {noun: table for noun, table in tables.items() if noun in used or _linked_to(noun, tables, used)}
  for table in tables.values():
    _settle(table, [operation for operation in operations if operation.table == table.noun])
  _link_subjects(tables, operations)
  _link_related(tables)
  fed = _feed(tables, operations)
  for table in tables.values():
    _shorten(table, operations, fed.get(table.noun, set()))
    for column in table.links:
      if column.link:  # of one type with what it repeats, whatever the tools say
        column.schema = dict(tables[column.link.table].columns[column.link.column].schema)
  ready = []
  for operation in operations:
    reason = _useless(operation, tables)
    if reason:
      left_out[operation.tool.name] = reason
      continue
    table = tables.get(operation.table)
    told = returns(operation, table)
    tool = dataclasses.replace(operation.tool, parameters=_agreed(operation, table), returns=told)
    ready.append(dataclasses.replace(operation, tool=tool))
  return Plan(tables, tuple(ready), left_out)


def _linked_to(noun: str, tables: dict[str, Table], used: set[str]) -> bool:
  return any(
    column.link.table == noun for user in used if user in tables for column in tables[user].links if column.link
  )


def _settle(table: Table, operations: Sequence[Operation]) -> None:
  """Gives a table its key and, if it says little, the fields that such records have."""
  single = any(operation.action == 'get' for operation in operations)
  if not table.key or table.key not in table.columns:
    alone = [c.name for c in table.columns.values() if c.unique]
    matched = [m.column for operation in operations if operation.action == 'get' for m in operation.matches]
    sole = (
      matched if single and len(set(matched)) == 1 and not table.columns[matched[0]].link and not table.many else []
    )
    table.key = (alone or sole or [''])[0]
  if not table.key or table.columns[table.key].kind not in ('string', 'integer', 'number'):
    last = table.noun.split('_')[-1]
    table.key = next(name for name in (f'{last}_id', f'{table.noun}_id', 'record_id') if name not in table.columns)
  key = table.columns.pop(table.key, Column(table.key, {'type': 'string'}))
  key.unique = True
  columns = {table.key: key, **table.columns}
  written = any(operation.action in ('create', 'update', 'set') for operation in operations)
  searched = any(operation.queries for operation in operations)
  if searched and not {'name', 'title', 'headline', 'subject'} & {*columns, *fields_of(table.noun, 0, written=False)}:
    columns['name'] = Column('name', {'type': 'string'})
  taken = {match.parameter for operation in operations for match in operation.matches}
  for name, schema in fields_of(table.noun, len(columns), written=written).items():
    if name not in taken:
      columns.setdefault(name, Column(name, dict(schema)))
  if any(operation.action == 'move' for operation in operations):
    columns.setdefault('status', Column('status', {'type': 'string'}))
  table.columns = columns


def _link_subjects(tables: dict[str, Table], operations: Sequence[Operation]) -> None:
  """Records that are looked up one by one tell of other things that can be looked up, never in a circle."""
  listed = {operation.table for operation in operations if operation.action == 'list'}
  opened = [o.table for o in operations if o.action == 'get' and any(m.parent is None for m in o.matches)]
  order = sorted(dict.fromkeys(opened), key=lambda noun: (noun not in listed, opened.index(noun)))
  asked = {m.parent.table for o in operations for m in o.matches if m.parent} | set(opened)
  for place, noun in enumerate(order):
    others = [other for other in (*order[place + 1 :], *sorted(asked - set(order))) if other != noun]
    others = [other for other in others if other in tables and not _reaches(tables, other, noun)]
    for other in others[:_MOST_LINKS]:
      _tell(tables, noun, other)


def _feed(tables: dict[str, Table], operations: Sequence[Operation]) -> dict[str, set[str]]:
  """What everybody can list tells of each thing that is asked for and that nothing else tells of.

  A list of coins tells their symbols if other tools ask for symbols, a search its urls. Returns the columns by table.
  """
  free = lambda operation: operation.action == 'list' and not any(match.required for match in operation.matches)
  listed = list(dict.fromkeys(operation.table for operation in operations if free(operation)))
  asked = dict.fromkeys(
    match.parent.table if match.parent else operation.table
    for operation in operations
    for match in operation.matches
    if match.required and (match.parent or tables[operation.table].columns[match.column].unique)
  )
  told = {column.link.table for noun in listed for column in tables[noun].links if column.link}
  told |= {column.link.table for noun in asked for column in tables[noun].links if column.link}
  added: dict[str, set[str]] = {}
  for noun in asked:
    if noun in listed or noun in told or tables[noun].one:
      continue
    fitting = [one for one in listed if not tables[one].one and not _reaches(tables, noun, one)]
    fitting.sort(key=lambda one: not set(one.split('_')) & set(_ALIKE.get(noun, noun).split()))
    if fitting and (name := _tell(tables, fitting[0], noun)):
      added.setdefault(fitting[0], set()).add(name)
  return added


_ALIKE = {
  'symbol': 'coin token stock ticker crypto asset pair market', 'page': 'result article news story post link doc site',
  'file': 'directory document folder', 'user': 'post member author story', 'city': 'location place station',
  'location': 'city place station', 'address': 'wallet token account', 'article': 'result topic page',
}  # fmt: skip


def _tell(tables: dict[str, Table], noun: str, other: str) -> str:
  """Links one table to another's key; the column's name, '' if it had a link or has no room for one."""
  table, key = tables[noun], tables[other].key
  name = (
    key if len(w.split(key)) > 1 or key not in ('id', 'name', 'title', 'number', 'code', 'key') else f'{other}_{key}'
  )
  linked = any(column.link and column.link.table == other for column in table.columns.values())
  if tables[other].one or table.one or linked or name in table.columns:
    return ''
  table.columns[name] = Column(name, dict(tables[other].columns[key].schema), Link(other, key))
  return name


def _reaches(tables: dict[str, Table], start: str, goal: str) -> bool:
  seen, waiting = set[str](), [start]
  while waiting:
    noun = waiting.pop()
    if noun == goal:
      return True
    if noun not in seen and noun in tables:
      seen.add(noun)
      waiting += [column.link.table for column in tables[noun].links if column.link]
  return False


def _link_related(tables: dict[str, Table]) -> None:
  """Records about how two of a kind relate name the other one too."""
  for table in tables.values():
    if not _RELATED & set(table.noun.split('_')):
      continue
    link = next((column.link for column in table.columns.values() if column.link), None)
    if link and f'related_{link.column}' not in table.columns:
      schema = dict(tables[link.table].columns[link.column].schema)
      table.columns[f'related_{link.column}'] = Column(f'related_{link.column}', schema, link)


def _shorten(table: Table, operations: Sequence[Operation], told: set[str]) -> None:
  """Lists show keys, titles and what they filter by, if a tool opens one record."""
  opened = any(
    o.action == 'get' and o.table == table.noun and any(m.parent is None for m in o.matches) for o in operations
  )
  if not opened or len(table.columns) <= _MOST_BRIEF:
    return
  filters = [m.column for o in operations if o.action == 'list' and o.table == table.noun for m in o.matches]
  first = [name for name in table.columns if name == table.key or name in filters or name in told]
  titles = [name for name in ('name', 'title', 'headline', 'subject') if name in table.columns]
  shown = dict.fromkeys([*first, *titles, *(name for name, column in table.columns.items() if not column.link)])
  kept = list(shown)[: max(_MOST_BRIEF, len(first))]
  table.brief = tuple(name for name in table.columns if name in kept)


def _useless(operation: Operation, tables: dict[str, Table]) -> str:
  """Why an operation makes no sense in this plan; '' if it does."""
  if operation.action == 'pure':
    return ''
  table = tables[operation.table]
  if table.one and operation.action in ('update', 'delete', 'move', 'create'):
    return f'there is only one {table.noun}, and it takes a key'
  if table.one and operation.action == 'list' and not operation.matches:
    table.one = False
  return ''


def _agreed(operation: Operation, table: Table | None) -> Mapping[str, Any]:
  """The parameters, of the types that the columns have which they are compared with: tools of a server may differ."""
  if table is None:
    return operation.tool.parameters
  properties = dict(operation.tool.parameters['properties'])
  for name, column in [*((m.parameter, m.column) for m in operation.matches), *operation.fields]:
    kind, schema = table.columns[column].kind, properties[name]
    if schema['type'] not in ('array', kind) and kind != 'array':
      properties[name] = {key: part for key, part in schema.items() if key in ('description',)} | {'type': kind}
  return {**operation.tool.parameters, 'properties': properties}
