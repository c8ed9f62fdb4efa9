"""Seed records: for each table a few, such that what one tool returns is what another takes."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from slca_jax.toolverse.deterministic.dealing import Deal
from slca_jax.toolverse.deterministic.model import Column, Operation, Plan, Table
from slca_jax.toolverse.deterministic.values import choices, value

Database = dict[str, dict[str, dict[str, Any]]]
_MOST_ROWS = 24


def seed_database(plan: Plan, deal: Deal, *, records: int = 5) -> Database:
  """Tables of records, each under the text of its key. Parents come first, so that links hold values that exist."""
  made: dict[str, list[dict[str, Any]]] = {}
  for table in _parents_first(plan.tables):
    operations = [operation for operation in plan.operations if operation.table == table.noun]
    made[table.noun] = _rows(table, operations, made, records, deal)
  _close_circles(plan.tables, made)
  return {table.name: {key_text(row[table.key]): row for row in made[table.noun]} for table in plan.tables.values()}


def _close_circles(tables: Mapping[str, Table], made: Mapping[str, list[dict[str, Any]]]) -> None:
  """Where two tables point at each other, one was made before the other; its links are set now."""
  for table in tables.values():
    for column in table.links:
      known = [row[column.link.column] for row in made.get(column.link.table, ())] if column.link else []
      for index, row in enumerate(made[table.noun]):
        if known and row[column.name] not in known:
          row[column.name] = known[index % len(known)]


def key_text(value: Any) -> str:
  """A value as a key of an object: 3.0 and 3 are one."""
  return str(int(value)) if isinstance(value, float) and value == int(value) else str(value)


def _parents_first(tables: Mapping[str, Table]) -> list[Table]:
  order: list[Table] = []
  seen: set[str] = set()

  def visit(noun: str) -> None:
    if noun not in seen:
      seen.add(noun)
      for column in tables[noun].links:
        if column.link:
          visit(column.link.table)
      order.append(tables[noun])

  for noun in tables:
    visit(noun)
  return order


def _rows(
  table: Table,
  operations: Sequence[Operation],
  made: Mapping[str, list[dict[str, Any]]],
  records: int,
  deal: Deal,
) -> list[dict[str, Any]]:
  parents = list(
    dict.fromkeys(column.link.table for column in table.links if column.link and made.get(column.link.table))
  )
  given: list[dict[str, Any]] = []
  for index, (places, fixed) in enumerate(_combinations(table, operations, parents, made, records)):
    cell = lambda column, index=index, places=places: _cell(table, column, places, made, index, deal)
    given.append({name: cell(column) for name, column in table.columns.items()} | fixed)
  return _distinct(table, given)


def _combinations(
  table: Table,
  operations: Sequence[Operation],
  parents: list[str],
  made: Mapping[str, list[dict[str, Any]]],
  records: int,
) -> list[tuple[dict[str, int], dict[str, Any]]]:
  """For each record, which row of each parent it hangs on, and the values that requests tell records apart by."""
  if table.one:
    return [({}, {})]
  asked = {m.parent.table for operation in operations for m in operation.matches if m.parent and m.required}
  crossed = [parent for parent in parents if parent in asked][:2]
  unique = any(m.column == table.key for operation in operations for m in operation.matches)
  if not crossed or (unique and len(crossed) > 2):
    count = records + (2 if parents else 0)
    return [({parent: index % len(made[parent]) for parent in parents}, {}) for index in range(count)]
  facets = _facets(table, operations)
  repeats = range(2 if table.many and not facets else 1)
  ways = itertools.product(*(range(len(made[parent])) for parent in crossed), *facets.values(), repeats)
  found = []
  for index, way in enumerate(itertools.islice(ways, _MOST_ROWS)):
    rows = {parent: index % len(made[parent]) for parent in parents} | dict(zip(crossed, way, strict=False))
    found.append((rows, dict(zip(facets, way[len(crossed) :], strict=False))))
  return found


def present_enums(plan: Plan, database: Database) -> Plan:
  """The plan with enums of what is looked up cut down to the values that records have."""
  operations = []
  for operation in plan.operations:
    properties = dict(operation.tool.parameters['properties'])
    for match in operation.matches:
      schema = properties[match.parameter]
      held = [row[match.column] for row in database[plan.tables[operation.table].name].values()]
      if 'enum' in schema and not match.parent:
        properties[match.parameter] = {**schema, 'enum': [value for value in schema['enum'] if value in held]}
    parameters = {**operation.tool.parameters, 'properties': properties}
    operations.append(dataclasses.replace(operation, tool=dataclasses.replace(operation.tool, parameters=parameters)))
  return dataclasses.replace(plan, operations=tuple(operations))


def _facets(table: Table, operations: Sequence[Operation]) -> dict[str, list[Any]]:
  """Columns with few values by which calls must choose, such as the kind of a statement."""
  names = {
    match.column
    for operation in operations
    if operation.action in ('get', 'list')
    for match in operation.matches
    if match.required and not match.parent and match.column != table.key
  }
  return {name: values[:3] for name in sorted(names) if (values := choices(table.columns[name].schema))}


def _cell(
  table: Table, column: Column, places: Mapping[str, int], made: Mapping[str, list[dict[str, Any]]], index: int,
  deal: Deal,
) -> Any:  # fmt: skip
  if column.link and made.get(column.link.table):
    rows = made[column.link.table]
    place = places.get(column.link.table, index)
    place = place + 1 if column.name.startswith(('related_', 'to_', 'target')) else place
    return rows[place % len(rows)][column.link.column]
  return value(column.name, column.schema, noun=table.noun, index=index, deal=deal, unique=column.unique)


def _distinct(table: Table, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """The rows with each key once; a key that an enum or a short bank repeats drops its later rows."""
  seen: dict[str, dict[str, Any]] = {}
  for row in rows:
    seen.setdefault(key_text(row[table.key]), row)
  return list(seen.values())
