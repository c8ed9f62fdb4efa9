"""Raw tool schemas as they are found: MCP `tools/list` dumps, OpenAPI 3, lists of tools, and JSON lines of servers.

sets = read_schemas('petstore.yaml.json')            # [ToolSet(name='Swagger Petstore', tools=(...))]

A `.gz` is unpacked. JSON lines hold one tool each, with `server_file` or `server` naming its server, as the tool
list of Toucan does; tools that say `"valid": false` are left out there.
"""

import dataclasses
import gzip
import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slca_jax.dialogue import Tool
from slca_jax.errors import DataError
from slca_jax.surrogates import mended_json

_PLACES = ('path', 'query')
_METHODS = ('get', 'put', 'post', 'delete', 'patch', 'head')
_SUFFIXES = re.compile(r'(_labeled)?\.(jsonl?|gz|txt)$')


@dataclasses.dataclass(frozen=True)
class ToolSet:
  """The tools of one server as it describes them. `origin` says where they were read, `licence` under which terms."""

  name: str
  tools: tuple[Tool, ...]
  origin: str = ''
  licence: str = ''


def read_schemas(path: str | os.PathLike[str]) -> list[ToolSet]:
  """The tool sets of a file, or of every `.json`, `.jsonl` and `.gz` in a folder, in the order of names.

  Raises:
    DataError: names the file, and what it was expected to be.
  """
  found = pathlib.Path(path)
  if found.is_dir():
    files = sorted(file for file in found.iterdir() if file.suffix in ('.json', '.jsonl', '.gz'))
    return [one for file in files for one in read_schemas(file)]
  text = _text(found)
  name = _bare(found.name)
  if '.jsonl' in found.suffixes:
    return _servers(_lines(text, str(found)), str(found))
  try:
    document = mended_json(json.loads(text))  # others cut descriptions in the middle of an emoji
  except (ValueError, RecursionError) as error:
    raise DataError(f'{found}: not JSON ({error}); give JSON, or JSON lines in a file named .jsonl') from error
  return read_document(document, name=name, origin=str(found))


def read_document(document: Any, *, name: str = 'tools', origin: str = '') -> list[ToolSet]:
  """The tool sets of a decoded document; `name` is for those that have none of their own.

  Raises:
    DataError: it is none of the known layouts.
  """
  if isinstance(document, Mapping):
    if 'openapi' in document or ('paths' in document and 'swagger' not in document):
      return [_openapi(document, name, origin)]
    inner = document.get('result', document)
    tools = inner.get('tools') if isinstance(inner, Mapping) else None
    if isinstance(tools, Sequence) and not isinstance(tools, str):
      info = document.get('serverInfo') or {}
      title = document.get('name') or document.get('server') or info.get('name') or name
      return [ToolSet(str(title), _tools(tools, origin), origin)]
    if document and all(isinstance(part, Mapping) and 'tools' in part for part in document.values()):
      return [one for key, part in document.items() for one in read_document(part, name=str(key), origin=origin)]
  if isinstance(document, Sequence) and not isinstance(document, str) and document:
    if all(isinstance(part, Mapping) and isinstance(part.get('tools'), list) for part in document):
      return [one for part in document for one in read_document(part, name=name, origin=origin)]
    if any(isinstance(part, Mapping) and ('server_file' in part or 'server' in part) for part in document):
      return _servers(document, origin)
    return [ToolSet(name, _tools(document, origin), origin)]
  raise DataError(
    f'{origin or name}: no tools in it; give an MCP tools/list result, an OpenAPI 3 document, or a list of objects '
    'with name, description and inputSchema'
  )


def _servers(rows: Sequence[Any], origin: str) -> list[ToolSet]:
  grouped: dict[str, list[Mapping[str, Any]]] = {}
  for row in rows:
    if isinstance(row, Mapping) and row.get('valid', True):
      grouped.setdefault(str(row.get('server_file') or row.get('server') or 'tools'), []).append(row)
  return [
    ToolSet(_bare(key), _tools(group, origin), origin, str(group[0].get('server_license') or ''))
    for key, group in grouped.items()
  ]


def _tools(entries: Sequence[Any], origin: str) -> tuple[Tool, ...]:
  return tuple(_tool(entry, f'{origin or "tools"}[{index}]') for index, entry in enumerate(entries))


def _tool(entry: Any, where: str) -> Tool:
  entry = entry.get('function', entry) if isinstance(entry, Mapping) else entry
  if not isinstance(entry, Mapping) or not isinstance(entry.get('name'), str):
    raise DataError(f'{where} is {entry!r:.100}; a tool is an object with a name')
  keys = ('inputSchema', 'input_schema', 'parameters')
  parameters = next((entry[key] for key in keys if isinstance(entry.get(key), Mapping)), None)
  returns = entry.get('outputSchema') or entry.get('returns')
  return Tool(
    entry['name'],
    str(entry.get('description') or ''),
    dict(parameters) if parameters else {'type': 'object', 'properties': {}},
    dict(returns) if isinstance(returns, Mapping) else None,
  )


def _openapi(document: Mapping[str, Any], name: str, origin: str) -> ToolSet:
  info = document.get('info') or {}
  paths = document.get('paths')
  if not isinstance(paths, Mapping):
    raise DataError(f'{origin or name}: paths is {paths!r:.60}; an OpenAPI document has an object of paths')
  operations = [
    _operation(document, path, method, item)
    for path, item in paths.items()
    if isinstance(item, Mapping)
    for method in _METHODS
    if isinstance(item.get(method), Mapping)
  ]
  return ToolSet(str(info.get('title') or name), tuple(operations), origin)


def _operation(document: Mapping[str, Any], path: str, method: str, item: Mapping[str, Any]) -> Tool:
  operation = item[method]
  properties: dict[str, Any] = {}
  required: list[str] = []
  for parameter in _parameters(document, item, operation):
    schema = _deep(document, _schema_of(parameter))
    schema = dict(schema) if isinstance(schema, Mapping) else {}
    if parameter.get('description'):
      schema['description'] = parameter['description']
    properties[parameter['name']] = schema
    required += [parameter['name']] if parameter.get('required') or parameter['in'] == 'path' else []
  for key, schema, needed in _body(document, operation):
    properties.setdefault(key, schema)
    required += [key] if needed and key not in required else []
  about = operation.get('summary') or operation.get('description') or f'{method.upper()} {path}'
  parameters = {'type': 'object', 'properties': properties, 'required': list(dict.fromkeys(required))}
  name = operation.get('operationId') or _name_of(method, path)
  return Tool(str(name), str(about), parameters, writes=method not in ('get', 'head'))


def _parameters(document: Mapping[str, Any], *levels: Mapping[str, Any]) -> list[Mapping[str, Any]]:
  """The parameters of a path and of its operation, whose own replace the path's of equal name and place. Headers and
  cookies carry credentials, not data."""
  found: dict[tuple[str, str], Mapping[str, Any]] = {}
  for raw in (raw for level in levels for raw in level.get('parameters') or ()):
    parameter = _resolved(document, raw)
    if isinstance(parameter, Mapping) and isinstance(parameter.get('name'), str) and parameter.get('in') in _PLACES:
      found[parameter['name'], parameter['in']] = parameter
  return list(found.values())


def _schema_of(parameter: Mapping[str, Any]) -> Any:
  """What a parameter's value must be, given as such or as that of the value's media type; text if it does not say."""
  content = parameter.get('content')
  media = next(iter(content.values()), None) if isinstance(content, Mapping) else None
  told = [part['schema'] for part in (parameter, media) if isinstance(part, Mapping) and 'schema' in part]
  return told[0] if told else {'type': 'string'}


def _body(document: Mapping[str, Any], operation: Mapping[str, Any]) -> Iterator[tuple[str, Any, bool]]:
  """The fields of a request's body, each a parameter; a body that is no object is one parameter."""
  body = _resolved(document, operation.get('requestBody') or {})
  content = body.get('content') if isinstance(body, Mapping) else None
  if not isinstance(content, Mapping) or not content:
    return
  media = content.get('application/json') or next(iter(content.values()))
  schema = _deep(document, (media or {}).get('schema') or {})
  if isinstance(schema.get('properties'), Mapping):
    needed = schema.get('required') or ()
    yield from ((key, part, key in needed) for key, part in schema['properties'].items())
  elif schema:
    yield 'body', schema, bool(body.get('required'))


def _name_of(method: str, path: str) -> str:
  """A name for an operation without one: the verb, and the path's words; `/pets/{petId}` gives get_pet_by_petId."""
  parts = [part for part in path.split('/') if part]
  fixed = [re.sub(r'\W+', '_', part) for part in parts if not part.startswith('{')]
  keys = [part.strip('{}') for part in parts if part.startswith('{')]
  one = bool(parts) and parts[-1].startswith('{')
  verb = {'get': 'get' if one else 'list', 'post': 'create', 'put': 'update', 'patch': 'update'}.get(method, method)
  noun = '_'.join(fixed[-1:]) or 'root'
  noun = noun[:-1] if (one or method == 'post') and noun.endswith('s') else noun
  return '_'.join([verb, noun, *(['by', keys[-1]] if one else []), *(['of', fixed[-2]] if len(fixed) > 1 else [])])


def _resolved(document: Mapping[str, Any], node: Any) -> Any:
  """The node that a `$ref` inside the document leads to; {} where it leads nowhere."""
  for _ in range(8):
    if not (isinstance(node, Mapping) and isinstance(node.get('$ref'), str)):
      return node
    target: Any = document
    for step in node['$ref'].removeprefix('#/').split('/'):
      step = step.replace('~1', '/').replace('~0', '~')
      target = target.get(step) if isinstance(target, Mapping) else None
    node = target if target is not None else {}
  return {}


def _deep(document: Mapping[str, Any], node: Any, depth: int = 0) -> Any:
  """A schema with its references written out, to six levels; deeper ones may be anything."""
  node = _resolved(document, node)
  if depth > 6:
    return {}
  if isinstance(node, Mapping):
    if isinstance(node.get('allOf'), list):
      node = _merged(document, node, depth)
    return {key: _deep(document, part, depth + 1) for key, part in node.items()}
  return [_deep(document, part, depth + 1) for part in node] if isinstance(node, list) else node


def _merged(document: Mapping[str, Any], node: Mapping[str, Any], depth: int) -> dict[str, Any]:
  whole: dict[str, Any] = {key: part for key, part in node.items() if key != 'allOf'}
  for part in node['allOf']:
    part = _deep(document, part, depth + 1)
    if isinstance(part, Mapping):
      whole['properties'] = {**(whole.get('properties') or {}), **(part.get('properties') or {})}
      whole['required'] = list(dict.fromkeys([*(whole.get('required') or ()), *(part.get('required') or ())]))
      whole = {**part, **whole}
  return whole


def _text(path: pathlib.Path) -> str:
  try:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == '.gz' else data).decode('utf-8-sig')
  except (OSError, EOFError, UnicodeDecodeError) as error:
    raise DataError(f'{path} cannot be read: {error}') from error


def _lines(text: str, where: str) -> list[Any]:
  rows = []
  for number, line in enumerate(text.split('\n'), 1):  # not splitlines: U+2028 may stand in a text
    try:
      rows += [mended_json(json.loads(line))] if line.strip() else []
    except (ValueError, RecursionError) as error:
      raise DataError(f'{where}, line {number}: not JSON ({error})') from error
  return rows


def _bare(name: str) -> str:
  while _SUFFIXES.search(name):
    name = _SUFFIXES.sub('', name)
  return name
