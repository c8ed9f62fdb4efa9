"""Python source of the functions behind a plan: short bodies over a few shared helpers; unused ones are left out."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from slca_jax.toolverse.deterministic import words as w
from slca_jax.toolverse.deterministic.model import Match, Operation, Plan, Table
from slca_jax.toolverse.deterministic.pure import MODULES, PARTS
from slca_jax.toolverse.deterministic.records import Database
from slca_jax.toolverse.deterministic.shared import SHARED
from slca_jax.toolverse.deterministic.values import TODAY


def source_of(plan: Plan, database: Database, *, title: str) -> str:
  """The source of all functions of a plan."""
  bodies = [_function(operation, plan.tables, database) for operation in plan.operations]
  text = '\n\n'.join(bodies)
  helpers = _used(text)
  modules = [module for module in MODULES if f'{module}.' in text + helpers]
  parts = [f'"""{_quoted(title)}"""\n', *(f'import {module}' for module in modules)]
  if 'TODAY' in text:
    parts.append(f"\nTODAY = '{TODAY.isoformat()}'")
  return '\n'.join(parts) + '\n\n' + helpers + '\n\n' + text


def _used(text: str) -> str:
  known = {**SHARED, **PARTS}
  wanted: list[str] = []
  waiting = [text]
  while waiting:
    piece = waiting.pop()
    for name, body in known.items():
      if name not in wanted and f'{name}(' in piece:
        wanted.append(name)
        waiting.append(body.split('(', 1)[1])
  return '\n\n'.join(known[name].strip() + '\n' for name in known if name in wanted)


def _function(operation: Operation, tables: Mapping[str, Table], database: Database) -> str:
  properties = operation.tool.parameters['properties']
  required = operation.required
  order = [name for name in properties if name in required] + [name for name in properties if name not in required]
  signature = ', '.join(['db', *(name if name in required else f'{name}=None' for name in order)])
  if operation.action == 'pure':
    lines = [
      f'result = {operation.pure}',
      *_answer("f'The result is {result}.'", result='result'),
    ]
  else:
    lines = _BODIES[operation.action](operation, tables[operation.table], tables, database)
  head = f'def {operation.tool.name}({signature}):\n  """{_quoted(operation.tool.description)}"""\n'
  return head + '\n'.join(f'  {line}' for line in lines) + '\n'


def _quoted(text: str) -> str:
  return text.replace('\\', '\\\\').replace('"', "'").rstrip("'").strip() or 'No description.'


def _local(operation: Operation, name: str) -> str:
  return f'the_{name}' if name in operation.tool.parameters['properties'] else name


def _answer(message: str, /, **parts: str) -> list[str]:
  """The lines that return status, message and the named parts, each given as source."""
  entries = {'status': "'success'", 'message': message, **parts}
  texts = [f'{name!r}: {part}' for name, part in entries.items()]
  line = f'return {{{", ".join(texts)}}}'
  return [line] if len(line) < 100 else ['return {', *(f'  {text},' for text in texts), '}']


def _checks(operation: Operation, tables: Mapping[str, Table]) -> list[str]:
  lines = []
  for match in operation.matches:
    if match.parent:
      parent = tables[match.parent.table]
      lines.append(
        f'_require(db[{parent.name!r}], {match.parent.column!r}, {match.parameter}, {_spoken(parent.noun)!r})'
      )
  return lines


def _spoken(noun: str) -> str:
  return noun.replace('_', ' ')


def _wanted(matches: tuple[Match, ...]) -> str:
  return '{' + ', '.join(f'{match.column!r}: {match.parameter}' for match in matches) + '}'


def _filtered(operation: Operation, table: Table, rows: str) -> list[str]:
  every = f'list(db[{table.name!r}].values())'
  lines = [f'{rows} = ' + (f'_where(db[{table.name!r}], {_wanted(operation.matches)})' if operation.matches else every)]
  if operation.queries:
    lines.append(f'{rows} = _search({rows}, {", ".join(operation.queries)})')
  bounds: dict[str, dict[str, str]] = {}
  for parameter, column, side in operation.bounds:
    bounds.setdefault(column, {})[side] = parameter
  for column, sides in bounds.items():
    lines.append(f'{rows} = _between({rows}, {column!r}, {sides.get("from", None)}, {sides.get("to", None)})')
  return lines


def _list(operation: Operation, table: Table, tables: Mapping[str, Table], _: Database) -> list[str]:
  rows = _local(operation, 'rows')
  lines = _checks(operation, tables) + _filtered(operation, table, rows)
  if operation.limit or operation.offset or operation.page:
    parts = ', '.join(name or 'None' for name in (operation.limit, operation.offset, operation.page))
    lines.append(f'{rows} = _cut({rows}, {parts})')
  shown = f'_brief({rows}, {list(table.brief)!r})' if table.brief else rows
  message = f"f'{{len({rows})}} {_spoken(w.plural(table.noun))} found.'"
  return [
    *lines,
    *_answer(message, count=f'len({rows})', **{table.name: shown}),
  ]


def _count(operation: Operation, table: Table, tables: Mapping[str, Table], _: Database) -> list[str]:
  rows = _local(operation, 'rows')
  message = f"f'There are {{len({rows})}} {_spoken(w.plural(table.noun))}.'"
  return [
    *_checks(operation, tables),
    *_filtered(operation, table, rows),
    *_answer(message, count=f'len({rows})'),
  ]


def _get(operation: Operation, table: Table, tables: Mapping[str, Table], _: Database) -> list[str]:
  rows, record = _local(operation, 'rows'), _local(operation, 'record')
  return [
    *_checks(operation, tables),
    *_filtered(operation, table, rows),
    f'{record} = _one({rows}, {_spoken(table.noun)!r}, {_asked(operation)})',
    *_answer(f"'The {_spoken(table.noun)} was found.'", **{table.label: record}),
  ]


def _asked(operation: Operation) -> str:
  names = [match.parameter for match in operation.matches] + [bound[0] for bound in operation.bounds]
  return '{' + ', '.join(f'{name!r}: {name}' for name in names) + '}'


def _create(operation: Operation, table: Table, tables: Mapping[str, Table], database: Database) -> list[str]:
  record = _local(operation, 'record')
  given = {column: parameter for parameter, column in operation.fields}
  prefix = key_prefix(table, database)
  fresh = f'_next(db[{table.name!r}], {table.key!r}, {prefix!r})'
  lines = [*_checks(operation, tables), f'{record} = {{']
  for name, column in table.columns.items():
    parameter = given.get(name, '')
    usual = fresh if name == table.key else blank(name, column.schema, linked=column.link is not None)
    text = (
      parameter
      if parameter in operation.required
      else f'{usual} if {parameter} is None else {parameter}'
      if parameter
      else usual
    )
    lines.append(f'  {name!r}: {text},')
  done = f'f"The {_spoken(table.noun)} {{{record}[{table.key!r}]!r}} was created."'
  return [
    *lines,
    '}',
    _kept(operation, table, record),
    *_answer(done, **{table.key: f'{record}[{table.key!r}]', table.label: record}),
  ]


def _kept(operation: Operation, table: Table, record: str) -> str:
  if operation.replaces or 'enum' in table.columns[table.key].schema:  # else few could ever be made
    return f'db[{table.name!r}][_key({record}[{table.key!r}])] = {record}'
  return f'_add(db[{table.name!r}], {table.key!r}, {record})'


def key_prefix(table: Table, database: Database) -> str:
  """What keys of the table begin with; '' where they are numbers."""
  if table.columns[table.key].kind in ('integer', 'number'):
    return ''
  keys = list(database.get(table.name, {}))
  found = {match[1] for key in keys if (match := re.fullmatch(r'([A-Za-z_-]+)\d+', key))}
  return (
    found.pop()
    if len(found) == 1 and all(re.fullmatch(r'[A-Za-z_-]+\d+', key) for key in keys)
    else f'{table.noun[:4]}-'
  )


def blank(name: str, schema: Mapping[str, Any], *, linked: bool) -> str:
  """The source of what a new record holds in a field that nobody gave."""
  if linked:
    return 'None'
  if name == 'status':
    return "'open'"
  if schema.get('format') in ('date', 'date-time') or name in ('date', 'time', 'created_at', 'updated_at'):
    return 'TODAY'
  return {'integer': '0', 'number': '0', 'boolean': 'False', 'array': '[]', 'object': '{}'}.get(schema['type'], "''")


def _update(operation: Operation, table: Table, tables: Mapping[str, Table], _: Database) -> list[str]:
  record = _local(operation, 'record')
  changes = '{' + ', '.join(f'{column!r}: {parameter}' for parameter, column in operation.fields) + '}'
  if operation.action == 'set':
    found = [f'{record} = _one(list(db[{table.name!r}].values()), {_spoken(table.noun)!r}, {{}})']
  else:
    found = [*_checks(operation, tables), *_found(operation, table, record)]
  return [
    *found,
    f'_write({record}, {changes})',
    *_answer(f"'The {_spoken(table.noun)} was updated.'", **{table.label: record}),
  ]


def _found(operation: Operation, table: Table, record: str) -> list[str]:
  rows = f'_where(db[{table.name!r}], {_wanted(operation.matches)})'
  return [f'{record} = _one({rows}, {_spoken(table.noun)!r}, {_asked(operation)})']


def _delete(operation: Operation, table: Table, tables: Mapping[str, Table], _: Database) -> list[str]:
  record = _local(operation, 'record')
  done = f'f"The {_spoken(table.noun)} {{{record}[{table.key!r}]!r}} was deleted."'
  return [
    *_checks(operation, tables),
    *_found(operation, table, record),
    f'del db[{table.name!r}][_key({record}[{table.key!r}])]',
    *_answer(done, **{table.key: f'{record}[{table.key!r}]'}),
  ]


def _move(operation: Operation, table: Table, tables: Mapping[str, Table], _: Database) -> list[str]:
  record, state = _local(operation, 'record'), operation.state
  refused = f"raise ValueError('the {_spoken(table.noun)} is {state} already')"
  return [
    *_checks(operation, tables),
    *_found(operation, table, record),
    f"if {record}['status'] == {state!r}:",
    f'  {refused}',
    f"{record}['status'] = {state!r}",
    *_answer(f"'The {_spoken(table.noun)} is {state}.'", **{table.label: record}),
  ]


def _clear(operation: Operation, table: Table, tables: Mapping[str, Table], _: Database) -> list[str]:
  del tables
  done = f"f'{{count}} {_spoken(w.plural(table.noun))} were removed.'"
  return [
    f'count = len(db[{table.name!r}])',
    f'db[{table.name!r}].clear()',
    *_answer(done, count='count'),
  ]


_BODIES: dict[str, Callable[[Operation, Table, Mapping[str, Table], Database], list[str]]] = {
  'list': _list, 'count': _count, 'get': _get, 'create': _create, 'update': _update, 'set': _update, 'delete': _delete,
  'move': _move, 'clear': _clear,
}  # fmt: skip
