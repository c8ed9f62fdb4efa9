"""Blueprints: an executable environment as a folder that can be read, edited, compared and tested.

    travel/
      blueprint.json   format, name, tools (name, description, parameters, returns, writes), now, provenance
      functions.py     one function per tool: (database, **arguments) -> JSON; it refuses by raising ValueError
      database.json    an object of tables
      tests.json       [{"name", "calls": [{"name", "arguments", "expect"}], "changes"}]

`expect` is one of `{"equals": value}`, `{"has": part}` (objects hold the part's entries, lists an element for each of
the part's), `{"error": "a part of its text"}` and `{}`: any answer that is no refusal. `changes`, if given, is what the
test leaves of the database (`envs/confined/changes.py`). Functions run in the sandbox only (`envs/sandbox.py`).

    blueprint = load('environments/travel')       # DataError names the file and what to do
    report = retest(blueprint)                    # report.ok, report.failures, report.untested
    save(blueprint, 'environments/travel')
    print(diff(before, after))
"""

import dataclasses
import datetime
import difflib
import functools
import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from slca_jax.chat.schema import compile_tool
from slca_jax.dialogue import Tool, ToolCall
from slca_jax.envs.confined import source as sources
from slca_jax.envs.confined.offered import NOW
from slca_jax.envs.sandbox import Code
from slca_jax.errors import DataError

FORMAT = 1
EXPECTATIONS = ('equals', 'has', 'error')


@dataclasses.dataclass(frozen=True, slots=True)
class Check:
  """A call and what a test expects of it."""

  call: ToolCall
  expect: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True)
class UnitTest:
  """Calls in order on a fresh database. `changes` is what they leave; None if the test doesn't say."""

  name: str
  checks: tuple[Check, ...]
  changes: list[dict[str, Any]] | None = None


@dataclasses.dataclass(frozen=True)
class Blueprint:
  """Tools, the source of their functions, a database, tests, and where all that came from.

  Attributes:
    now: where the clock of its worlds stands.
    provenance: what the maker wants to keep: schemas, prompt versions, costs.
  """

  name: str
  tools: tuple[Tool, ...]
  source: str
  database: Mapping[str, Any]
  tests: tuple[UnitTest, ...] = ()
  now: str = NOW
  provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @functools.cached_property
  def code(self) -> Code:
    """What its worlds are made of."""
    return Code(self.source, json.dumps(self.database, ensure_ascii=False, allow_nan=False), self.now)

  @functools.cached_property
  def tool(self) -> Mapping[str, Tool]:
    """The tools by name."""
    return {tool.name: tool for tool in self.tools}


def save(blueprint: Blueprint, folder: str | os.PathLike[str]) -> None:
  """Writes the folder; each file appears whole or not at all.

  Raises:
    DataError: the blueprint is not sound.
  """
  _require_sound(blueprint, str(folder))
  path = pathlib.Path(folder)
  path.mkdir(parents=True, exist_ok=True)
  for name, text in files(blueprint).items():
    part = path / f'{name}.part'
    part.write_text(text, 'utf-8', newline='\n')
    part.replace(path / name)


def load(folder: str | os.PathLike[str]) -> Blueprint:
  """The blueprint in a folder, checked without running any of it.

  Raises:
    DataError: names the file, what is wrong in it, and what would do.
  """
  head = _json(folder, 'blueprint.json')
  if not isinstance(head, dict) or head.get('format') != FORMAT:
    found = head.get('format') if isinstance(head, dict) else head
    raise DataError(f'{folder}/blueprint.json: format is {found!r}; this version reads {FORMAT}')
  try:
    blueprint = Blueprint(
      name=head['name'],
      tools=tuple(Tool(**tool) for tool in head['tools']),
      source=_text(folder, 'functions.py'),
      database=_json(folder, 'database.json'),
      tests=tuple(map(_test_from_json, _json(folder, 'tests.json'))),
      now=head.get('now', NOW),
      provenance=head.get('provenance', {}),
    )
    if not isinstance(blueprint.name, str) or not all(tool.well_typed for tool in blueprint.tools):
      raise TypeError('a name or description is no text, or parameters are no object')
  except DataError:
    raise
  except (KeyError, TypeError, AttributeError, ValueError) as error:
    raise DataError(f'{folder}: a field of blueprint.json or tests.json is missing or misplaced: {error!r}') from error
  _require_sound(blueprint, str(folder))
  return blueprint


def diff(before: Blueprint, after: Blueprint) -> str:
  """What changed from one blueprint to the other, file by file, as a unified diff; '' if nothing did."""
  old, new = files(before), files(after)
  return ''.join(
    line if line.endswith('\n') else f'{line}\n'
    for name in old
    for line in difflib.unified_diff(
      old[name].splitlines(keepends=True), new[name].splitlines(keepends=True), f'before/{name}', f'after/{name}'
    )
  )


def files(blueprint: Blueprint) -> dict[str, str]:
  """The text of each file of the folder."""
  head = {
    'format': FORMAT,
    'name': blueprint.name,
    'now': blueprint.now,
    'provenance': dict(blueprint.provenance),
    'tools': [dataclasses.asdict(tool) for tool in blueprint.tools],
  }
  return {
    'blueprint.json': _pretty(head),
    'functions.py': blueprint.source,
    'database.json': _pretty(blueprint.database),
    'tests.json': _pretty([_test_to_json(test) for test in blueprint.tests]),
  }


def faults(blueprint: Blueprint) -> list[str]:
  """What keeps the blueprint from being used, each beginning with its file; empty if it is sound."""
  found = [f'functions.py: {fault}' for fault in sources.faults(blueprint.source)]
  found += [f'blueprint.json: {fault}' for fault in _head_faults(blueprint)]
  if not any(fault.startswith('functions.py') for fault in found):
    found += [f'functions.py: {fault}' for fault in _function_faults(blueprint)]
  found += [f'database.json: {fault}' for fault in _database_faults(blueprint.database)]
  return found + [f'tests.json: {fault}' for test in blueprint.tests for fault in _test_faults(test, blueprint.tool)]


def _require_sound(blueprint: Blueprint, where: str) -> None:
  found = faults(blueprint)
  if found:
    more = f'\n... and {len(found) - 20} more' if len(found) > 20 else ''
    raise DataError('\n'.join(f'{where}/{fault}' for fault in found[:20]) + more)


def _head_faults(blueprint: Blueprint) -> list[str]:
  found, names = [], [tool.name for tool in blueprint.tools]
  if not names:
    found.append('there are no tools; give at least one')
  found += [f'two tools are named {name!r}; rename one' for name in sorted({n for n in names if names.count(n) > 1})]
  for tool in blueprint.tools:
    try:
      compile_tool(tool)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
      found.append(f'the schema of {tool.name!r} cannot be compiled: {error}')
  try:
    datetime.datetime.fromisoformat(blueprint.now)
  except (ValueError, TypeError):
    found.append(f'now is {blueprint.now!r}; write it as {NOW}')
  return found


def _function_faults(blueprint: Blueprint) -> list[str]:
  try:
    known = sources.signatures(blueprint.source)
  except ValueError as error:
    return [str(error)]
  found = []
  for tool in blueprint.tools:
    if tool.name not in known:
      found.append(f'no function {tool.name}; write one, or take the tool out of blueprint.json')
      continue
    found += _signature_faults(tool, known[tool.name])
  return found


def _signature_faults(tool: Tool, signature: sources.Signature) -> list[str]:
  properties = tool.parameters.get('properties') or {}
  required = tool.parameters.get('required') or ()
  where = f'line {signature.line}: {tool.name}'
  missing = [] if signature.open else [name for name in properties if name not in signature.names]
  unknown = [name for name in signature.required if name not in properties]
  optional = [name for name in signature.required if name in properties and name not in required]
  return [
    *(f'{where} does not take {name!r}, which its schema offers; add the parameter' for name in missing),
    *(f'{where} needs {name!r}, which its schema does not know; add it there or give it a default' for name in unknown),
    *(f'{where} needs {name!r}, which its schema leaves out at will; give it a default' for name in optional),
  ]


def _database_faults(database: Any) -> list[str]:
  if not isinstance(database, Mapping):
    return [f'it is a {type(database).__name__}; it must be an object of tables']
  try:
    json.dumps(database, allow_nan=False)
  except (TypeError, ValueError, RecursionError) as error:
    return [f'it is no JSON: {error}']
  return []


def _test_faults(test: UnitTest, tools: Mapping[str, Tool]) -> list[str]:
  found = [] if test.checks else [f'{test.name!r} makes no call; give it one']
  for check in test.checks:
    if check.call.name not in tools:
      found.append(f'{test.name!r} calls {check.call.name!r}, which is no tool of blueprint.json')
    if len(check.expect) > 1 or not set(check.expect) <= set(EXPECTATIONS):
      found.append(f'{test.name!r} expects {dict(check.expect)!r:.100}; give one of {", ".join(EXPECTATIONS)}, or {{}}')
  return found


def _test_to_json(test: UnitTest) -> dict[str, Any]:
  calls = [
    {'name': check.call.name, 'arguments': dict(check.call.arguments), 'expect': dict(check.expect)}
    for check in test.checks
  ]
  return {'name': test.name, 'calls': calls} | ({} if test.changes is None else {'changes': test.changes})


def _test_from_json(record: Mapping[str, Any]) -> UnitTest:
  calls: Sequence[Mapping[str, Any]] = record['calls']
  checks = tuple(Check(ToolCall(call['name'], dict(call['arguments'])), dict(call.get('expect', {}))) for call in calls)
  return UnitTest(record['name'], checks, record.get('changes'))


def _pretty(value: Any) -> str:
  return json.dumps(value, ensure_ascii=False, indent=1) + '\n'


def _text(folder: str | os.PathLike[str], name: str) -> str:
  path = pathlib.Path(folder) / name
  try:
    return path.read_text('utf-8')
  except (OSError, UnicodeDecodeError) as error:
    raise DataError(f'{path}: {error}; a blueprint has the files {", ".join(_FILES)}') from error


def _json(folder: str | os.PathLike[str], name: str) -> Any:
  text = _text(folder, name)
  try:
    return json.loads(text)
  except (ValueError, RecursionError) as error:
    raise DataError(f'{pathlib.Path(folder) / name}: no JSON: {error}') from error


_FILES = ('blueprint.json', 'functions.py', 'database.json', 'tests.json')
