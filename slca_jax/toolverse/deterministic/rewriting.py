"""A raw tool rewritten: a clean name and description, the parameters that have an effect, and what it returns."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from slca_jax.dialogue import Tool
from slca_jax.toolverse.deterministic.model import Operation, Table
from slca_jax.toolverse.deterministic.reading import Parameter, Reading

_SECTIONS = re.compile(r'\n\s*(Args|Arguments|Parameters|Returns?|Raises|Examples?|Usage|Notes?)\s*:', re.I)
_KEPT = ('type', 'description', 'enum', 'minimum', 'maximum', 'items', 'properties', 'format')
_LONGEST = 240


def rewrite(reading: Reading, used: Sequence[Parameter], *, writes: bool) -> Tool:
  """The tool with the parameters that are used. What it returns is not known yet."""
  properties = {parameter.name: _kept(parameter.schema) for parameter in used}
  required = [parameter.name for parameter in used if parameter.required]
  parameters = {'type': 'object', 'properties': properties, 'required': required}
  return Tool(reading.name, describe(reading.tool), parameters, writes=writes)


def describe(tool: Tool) -> str:
  """The first sentences of a description, without its sections on arguments, in one line."""
  text = ' '.join(_SECTIONS.split(tool.description.strip(), maxsplit=1)[0].split())
  if len(text) > _LONGEST:
    cut = text[:_LONGEST]
    end = max(cut.rfind('. '), cut.rfind('。'))
    text = cut[: end + 1] if end > 60 else cut.rsplit(' ', 1)[0] + '…'
  return text or tool.name.replace('_', ' ').replace('-', ' ')


def _kept(schema: Mapping[str, Any]) -> dict[str, Any]:
  kept = {key: schema[key] for key in _KEPT if key in schema and schema[key] not in ('', None)}
  if 'items' in kept:
    kept['items'] = _kept(kept['items'])
  if 'properties' in kept:
    kept['properties'] = {key: _kept(part) for key, part in kept['properties'].items()}
  return kept


def returns(operation: Operation, table: Table | None) -> dict[str, Any]:
  """The schema of what an operation answers."""
  fields: dict[str, Any] = {'status': {'type': 'string'}, 'message': {'type': 'string'}}
  if operation.action == 'pure':
    fields['result'] = {}
  if table is not None:
    record = record_schema(table)
    if operation.action == 'list':
      brief = {key: record['properties'][key] for key in table.brief or table.columns}
      fields['count'] = {'type': 'integer'}
      fields[table.name] = {'type': 'array', 'items': {'type': 'object', 'properties': brief}}
    elif operation.action in ('count', 'clear'):
      fields['count'] = {'type': 'integer'}
    elif operation.action == 'delete':
      fields[table.key] = record['properties'][table.key]
    elif operation.action == 'create':
      fields[table.key] = record['properties'][table.key]
      fields[table.label] = record
    else:
      fields[table.label] = record
  return {'type': 'object', 'properties': fields}


def record_schema(table: Table) -> dict[str, Any]:
  """The schema of a record."""
  shown = lambda schema: {key: schema[key] for key in ('type', 'format') if key in schema}
  return {'type': 'object', 'properties': {name: shown(column.schema) for name, column in table.columns.items()}}
