"""Unit tests of a planned environment. What they expect follows from plan and records; the code is not run for it."""

from collections.abc import Mapping, Sequence
from typing import Any

from slca_jax.dialogue import ToolCall
from slca_jax.toolverse.blueprint import Check, UnitTest
from slca_jax.toolverse.deterministic.dealing import Deal
from slca_jax.toolverse.deterministic.model import Match, Operation, Plan, Table
from slca_jax.toolverse.deterministic.pure import known_result
from slca_jax.toolverse.deterministic.records import Database, key_text
from slca_jax.toolverse.deterministic.values import value

Row = Mapping[str, Any]
_ELSEWHERE = 140  # number of a record that no seed has


def tests_of(plan: Plan, database: Database, deal: Deal) -> tuple[UnitTest, ...]:
  """At least one test for each tool: what it finds, what it refuses, what it leaves behind."""
  found: list[UnitTest] = []
  for operation in plan.operations:
    found += _tests(operation, plan.tables, database, deal)
  return tuple(found)


def _tests(operation: Operation, tables: Mapping[str, Table], database: Database, deal: Deal) -> list[UnitTest]:
  name = operation.tool.name
  if operation.action == 'pure':
    arguments, result = known_result(operation)
    return [UnitTest(f'{name} computes', (Check(ToolCall(name, arguments), {'has': {'status': 'success', **result}}),))]
  table = tables[operation.table]
  rows = list(database[table.name].values())
  movable = [one for one in rows if operation.action != 'move' or one.get('status') != operation.state] or rows
  row = movable[min(1, len(movable) - 1)] if rows else {}
  arguments = _arguments(operation, table, row, deal)
  first = UnitTest(f'{name} {_ABOUT[operation.action]}', _checks(operation, table, rows, arguments))
  refused = _refusal(operation, table, tables, arguments)
  return [first, refused] if refused else [first]


_ABOUT = {
  'list': 'lists what matches', 'count': 'counts what matches', 'get': 'finds a record', 'create': 'makes a record',
  'update': 'changes a record', 'set': 'changes the setting', 'delete': 'removes a record, once',
  'clear': 'removes all records',
  'move': 'changes the status, once',
}  # fmt: skip


def _checks(operation: Operation, table: Table, rows: Sequence[Row], arguments: dict[str, Any]) -> tuple[Check, ...]:
  call = ToolCall(operation.tool.name, arguments)
  matching = [row for row in rows if _holds(operation.matches, row, arguments)]
  done: dict[str, Any] = {'status': 'success'}
  if operation.action in ('list', 'count'):
    within = matching[: int(arguments[operation.limit])] if operation.limit in arguments else matching
    exact = not operation.queries and not operation.bounds
    held = {'count': len(within)} if exact else {}
    shown = {table.name: [{table.key: within[0][table.key]}]} if operation.action == 'list' and exact and within else {}
    return (Check(call, {'has': {**done, **held, **shown}}),)
  if operation.action == 'get':
    return (
      (Check(call, {'has': {**done, table.label: dict(matching[0])}}),)
      if matching and not operation.bounds
      else (Check(call, {}),)
    )
  if operation.action == 'clear':
    return (Check(call, {'has': {**done, 'count': len(rows)}}),)
  if operation.action == 'delete':
    return (
      (Check(call, {'has': {table.key: matching[0][table.key]}}), Check(call, {'error': 'no '}))
      if len(matching) == 1
      else (Check(call, {}),)
    )
  if operation.action == 'move':
    moved = {table.label: {'status': operation.state}}
    again = [Check(call, {'error': 'already'})]
    return (Check(call, {'has': moved}), *again)
  written = {column: arguments[parameter] for parameter, column in operation.fields if parameter in arguments}
  return (Check(call, {'has': {**done, table.label: written}}),)


def _refusal(
  operation: Operation, table: Table, tables: Mapping[str, Table], arguments: dict[str, Any]
) -> UnitTest | None:
  """A call with a key that no record has."""
  for match in operation.matches:
    column = table.columns[match.column]
    strict = match.parent is not None or operation.action in ('get', 'update', 'delete', 'move')
    if strict and match.required and 'enum' not in column.schema and column.kind == 'string' and not match.several:
      noun = (match.parent.table if match.parent else table.noun).replace('_', ' ')
      call = ToolCall(operation.tool.name, {**arguments, match.parameter: 'nowhere-to-be-found'})
      del tables
      return UnitTest(f'{operation.tool.name} refuses an unknown {noun}', (Check(call, {'error': f'no {noun}'}),), [])
  return None


def _arguments(operation: Operation, table: Table, row: Row, deal: Deal) -> dict[str, Any]:
  """Arguments for a call about the row: what it must hold, words of it, bounds around it, and new values to write."""
  matched = {match.parameter: match for match in operation.matches}
  written = dict(operation.fields)
  bounds = {parameter: column for parameter, column, _ in operation.bounds}
  arguments: dict[str, Any] = {}
  for name, schema in operation.tool.parameters['properties'].items():
    if name in matched and (name in operation.required or operation.action not in ('list', 'count', 'get')):
      held = row.get(matched[name].column)
      arguments[name] = [held] if matched[name].several else held
    elif name in written and (name in operation.required or operation.action in ('update', 'set')):
      arguments[name] = value(written[name], schema, noun=table.noun, index=_ELSEWHERE, deal=deal, unique=True)
    elif name in operation.queries and name in operation.required:
      words = ' '.join(_title(row).split()[:3])
      arguments[name] = [words] if schema['type'] == 'array' else words
    elif name in bounds and name in operation.required:
      arguments[name] = row.get(bounds[name])
    elif name in operation.required and name in (operation.offset, operation.page):
      arguments[name] = 0 if name == operation.offset else 1
    elif name in operation.required:
      arguments[name] = (
        3 if schema['type'] in ('integer', 'number') else value(name, schema, noun=table.noun, index=0, deal=deal)
      )
  return {name: held for name, held in arguments.items() if held is not None}


def _title(row: Row) -> str:
  """What a user would search the row by: never its key, or a search would seem to take keys."""
  texts = [str(row[name]) for name in ('name', 'title', 'headline', 'subject', 'text', 'description') if row.get(name)]
  return texts[0] if texts else next((held for held in row.values() if isinstance(held, str) and ' ' in held), 'record')


def _holds(matches: Sequence[Match], row: Row, arguments: Mapping[str, Any]) -> bool:
  return all(
    _equal(row.get(match.column), arguments[match.parameter]) for match in matches if match.parameter in arguments
  )


def _equal(held: Any, wanted: Any) -> bool:
  if isinstance(wanted, list):
    return any(_equal(held, one) for one in wanted)
  if isinstance(held, list):
    return any(_equal(one, wanted) for one in held)
  return key_text(held).lower() == key_text(wanted).lower()
