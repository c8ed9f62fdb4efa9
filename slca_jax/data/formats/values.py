"""JSON values, calls and tools as data sets hold them: objects, strings of JSON or of Python. Nothing is repaired.

A null is a value where it stands in a string of JSON. In an object it may also be Arrow's filling of a column's struct:
there it stays only where the tool's schema allows it.
"""

import collections
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from slca_jax.chat.schema import compile_tool
from slca_jax.data.formats.row import BadRow
from slca_jax.data.formats.texts import literal, load, shown
from slca_jax.dialogue import Tool, ToolCall
from slca_jax.errors import SchemaError

_TOOLS, _LISTS = 4096, 128  # texts of tools that are remembered, and of lists that cannot be taken apart
_OTHERS = ('args', 'input', 'inputs', 'kwargs', 'params')  # where other formats have a call's arguments
_STARTS = ('{"type": "function"', '{"type":"function"')
_SPACES = ' \t\r\n'  # of JSON
_VALUES = frozenset(('default', 'const', 'enum', 'examples', 'example'))  # what they hold is data, no schema
_MAPS = frozenset(('properties', 'patternProperties', '$defs', 'definitions', 'dependentSchemas'))


def plain(value: Any) -> Any:
  """The value in Python's own types: numpy arrays become lists, numpy numbers numbers; the rest stays as it is."""
  if isinstance(value, Mapping):
    return {key: plain(item) for key, item in value.items()}
  if isinstance(value, list | tuple):
    return [plain(item) for item in value]
  if hasattr(value, 'tolist'):
    return plain(value.tolist())
  return value


def entries(value: Any, what: str) -> list[Any]:
  """A list that is given as one, as a string of JSON, or not at all. Raises BadRow for anything else."""
  if isinstance(value, str):
    value = load(value, what) if value.strip() else []
  if value is None:
    return []
  if not isinstance(value, list):
    raise BadRow(what, f'the {what} are {shown(value)}; they must be a list')
  return value


def call_of(value: Any, tools: Mapping[str, Tool], *, written: bool = False) -> ToolCall:
  """The call that an object means: `name` with `arguments` or `parameters`, or these under `function`.

  Arguments are an object or a string of JSON or Python; null, '' and none at all are {}.

  Args:
    written: the value was read from a text, so all its nulls are meant.

  Raises:
    BadRow: it is no call.
  """
  if isinstance(value, str):
    value, written = literal(value), True
  if isinstance(value, dict) and isinstance(value.get('function'), dict):
    value = value['function']
  if not isinstance(value, dict) or not isinstance(value.get('name'), str) or not value['name']:
    raise BadRow('call', f'{shown(value)} is no call; it needs a name and arguments')
  name, given = value['name'], value.get('arguments')
  arguments = value.get('parameters') if given is None else given
  if arguments is None and (other := next((key for key in _OTHERS if value.get(key)), None)):
    raise BadRow('call', f'the arguments of {name!r} stand under {other!r}; the key is arguments or parameters')
  if isinstance(arguments, str):
    text = arguments
    arguments = literal(text) if text.strip() else {}
    if isinstance(arguments, str):  # some converters encode twice
      arguments = literal(arguments) if arguments.strip() else {}
  elif isinstance(arguments, dict) and not written and name in tools and has_null(arguments):
    arguments = _without_filling(arguments, tools[name])
  if arguments is None:
    arguments = {}
  if not isinstance(arguments, dict):
    raise BadRow('call', f'the arguments of {name!r} are {shown(arguments)}; they must be an object')
  return ToolCall(name, dict(arguments))


def calls_of(value: Any, tools: Mapping[str, Tool], *, written: bool = False) -> tuple[ToolCall, ...]:
  """The calls of a list, or the one of an object; `written` as in `call_of`. Raises BadRow."""
  if isinstance(value, str):
    value, written = literal(value), True
  return tuple(call_of(item, tools, written=written) for item in (value if isinstance(value, list) else [value]))


def tools_of(value: Any) -> tuple[Tool, ...]:
  """The tools of a list, a string of JSON, or None. One that stands there twice is one. Raises BadRow.

  A tool that was met before in the same writing is the same object, so what is made of a tool can be remembered.
  """
  if not isinstance(value, str):
    return _distinct(map(_shared_tool, entries(value, 'tools')))
  if pieces := _pieces(value):
    try:
      return _distinct(map(_written_tool, pieces))
    except BadRow:  # it was no border between two tools, or one of them is broken
      pass
  return _written_tools(value)


def _pieces(text: str) -> list[str]:
  """The texts of the tools in a list of OpenAI's, as far as one can see; if each of them is JSON, the list is."""
  text = text.strip(_SPACES)
  start = next((start for start in _STARTS if text.startswith('[' + start)), None)
  if start is None or not text.endswith(']'):
    return []
  *before, last = [piece.rstrip(_SPACES) for piece in text[1:-1].split(start)[1:]]
  if not all(piece.endswith(',') for piece in before):
    return []
  return [start + piece for piece in (*(piece[:-1] for piece in before), last)]


def _shared_tool(entry: Any) -> Tool:
  try:
    text = entry if isinstance(entry, str) else json.dumps(entry)
  except (TypeError, ValueError, RecursionError) as error:
    raise BadRow('tools', f'{shown(entry)} is no JSON: {error}') from error
  return _written_tool(text)


@functools.lru_cache(_TOOLS)
def _written_tool(text: str) -> Tool:
  return tool_of(text, nulls='null' in text)


@functools.lru_cache(_LISTS)
def _written_tools(text: str) -> tuple[Tool, ...]:
  return _distinct(tool_of(entry, nulls='null' in text) for entry in entries(text, 'tools'))


def _distinct(tools: Iterable[Tool]) -> tuple[Tool, ...]:
  found, named = list[Tool](), dict[str, list[Tool]]()
  for tool in tools:
    others = named.setdefault(tool.name, [])
    if tool not in others:
      others.append(tool)
      found.append(tool)
  return tuple(found)


def tool_of(value: Any, *, nulls: bool = True) -> Tool:
  """The tool of an entry in OpenAI's, MCP's, xLAM's or BFCL's style. `nulls`: there may be some. Raises BadRow."""
  if isinstance(value, str):
    value = load(value, 'tools')
  if isinstance(value, dict) and isinstance(value.get('function'), dict):
    value = value['function']
  if not isinstance(value, dict) or not isinstance(value.get('name'), str) or not value['name']:
    raise BadRow('tools', f'{shown(value)} is no tool; it needs a name')
  schema = next((value[key] for key in _SCHEMAS if value.get(key) is not None), None)
  returns = next((value[key] for key in _RETURNS if isinstance(value.get(key), dict)), None)
  annotations = value.get('annotations') or {}
  return Tool(
    value['name'],
    value.get('description') or '',
    _schema(schema, value['name'], nulls),
    None if returns is None else _without_null_keywords(returns),
    isinstance(annotations, dict) and annotations.get('readOnlyHint') is False,
  )


_SCHEMAS = ('parameters', 'inputSchema', 'input_schema')
_RETURNS = ('returns', 'return', 'outputSchema', 'output_schema', 'response')


def flat_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
  """The schema of parameters that are listed by name alone. Required is what is not optional and has no default."""
  needed = [name for name, one in parameters.items() if isinstance(one, dict) and not _is_optional(one)]
  return {'type': 'object', 'properties': dict(parameters), 'required': needed}


def _is_optional(parameter: Mapping[str, Any]) -> bool:
  told = parameter.get('required') is False or parameter.get('optional') is True
  return told or 'default' in parameter or 'optional' in str(parameter.get('type')).lower()


def _schema(value: Any, name: str, nulls: bool) -> Mapping[str, Any]:
  if isinstance(value, str):
    value = load(value, 'tools') if value.strip() else None
  if value is None:
    return {'type': 'object', 'properties': {}}
  if not isinstance(value, dict):
    raise BadRow('tools', f'the parameters of {name!r} are {shown(value)}; they must be a JSON Schema')
  value = _without_null_keywords(value) if nulls else value
  listed = value and not isinstance(value.get('type'), str | list)
  if listed and all(isinstance(one, dict) and _is_parameter(one) for one in value.values()):
    return flat_schema(value)
  return value


def _is_parameter(value: Mapping[str, Any]) -> bool:
  return isinstance(value.get('type'), str) or isinstance(value.get('description'), str)


def _without_null_keywords(node: Any, *, names: bool = False) -> Any:
  """A schema without null keywords: Arrow's filling. A null `default` or `const` is one unless others are there too.

  Args:
    names: the object's keys are names of schemas, such as those of `properties`.
  """
  if isinstance(node, list):
    return [_without_null_keywords(item) for item in node]
  if not isinstance(node, dict):
    return node
  filled = names or any(value is None and key not in ('default', 'const') for key, value in node.items())
  kept = {key: value for key, value in node.items() if value is not None or not filled}
  return {
    key: value if key in _VALUES and not names else _without_null_keywords(value, names=key in _MAPS and not names)
    for key, value in kept.items()
  }


def has_null(value: Any) -> bool:
  """Whether a null stands somewhere as the value of a key."""
  if isinstance(value, dict):
    return any(item is None or has_null(item) for item in value.values())
  return isinstance(value, list) and any(map(has_null, value))


def _without_filling(arguments: Mapping[str, Any], tool: Tool) -> Any:
  try:
    schema = compile_tool(tool).schema
  except SchemaError:
    return arguments  # whoever checks the tool will say so
  return _unfilled(arguments, schema, schema)


def _unfilled(value: Any, schema: Any, root: Mapping[str, Any]) -> Any:
  """The value without nulls that its schema does not allow, or that are of parameters which it does not name."""
  schema = _resolved(schema, root)
  if isinstance(value, list):
    return [_unfilled(item, schema.get('items'), root) for item in value]
  if not isinstance(value, dict):
    return value
  properties = schema.get('properties') or {}
  named = bool(properties) and schema.get('additionalProperties') in (None, False)
  return {
    key: _unfilled(item, properties.get(key), root)
    for key, item in value.items()
    if item is not None or (_allows_null(properties[key], root) if key in properties else not named)
  }


def _allows_null(schema: Any, root: Mapping[str, Any], depth: int = 0) -> bool:
  schema = _resolved(schema, root)
  if 'enum' in schema or 'const' in schema:
    return None in schema.get('enum', [schema.get('const', '')])
  for union in ('anyOf', 'oneOf'):
    if union in schema:
      return depth < 8 and any(_allows_null(branch, root, depth + 1) for branch in schema[union])
  kinds = schema.get('type', 'null')
  return 'null' in (kinds if isinstance(kinds, list) else [kinds])


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
  for _ in range(8):
    if not isinstance(schema, dict) or '$ref' not in schema:
      break
    target: Any = root
    for step in str(schema['$ref']).split('/')[1:]:
      target = target.get(step.replace('~1', '/').replace('~0', '~')) if isinstance(target, dict) else None
    schema = target
  return schema if isinstance(schema, dict) else {}


def by_name(tools: Iterable[Tool]) -> dict[str, Tool]:
  """The tools by their names, without those that share one."""
  listed = tuple(tools)
  found = {tool.name: tool for tool in listed}
  if len(found) < len(listed):
    count = collections.Counter(tool.name for tool in listed)
    return {name: tool for name, tool in found.items() if count[name] == 1}
  return found


def text_of(value: Any, *, result: bool = False) -> str:
  """The text of a message's content: a string, null, or a list of text parts; a result may be any JSON value.

  Raises:
    BadRow: it holds something else, such as a picture.
  """
  if value is None:
    return ''
  if isinstance(value, str):
    return value
  if isinstance(value, Sequence) and value and all(isinstance(part, dict) and 'type' in part for part in value):
    if all(part['type'] == 'text' and isinstance(part.get('text'), str) for part in value):
      return ''.join(part['text'] for part in value)
    if not result:
      raise BadRow('content', f'a message holds {shown(value)}; text is all that is understood')
  if result:
    return json.dumps(value, ensure_ascii=False)
  raise BadRow('content', f'the content of a message is {shown(value)}; it must be text')
