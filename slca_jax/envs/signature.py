"""A tool's definition from the function behind it: the signature is its schema, the docstring its description."""

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slca_jax.dialogue import Tool

_PRIMITIVES = {str: 'string', int: 'integer', float: 'number', bool: 'boolean', type(None): 'null'}
_SECTION = re.compile(r'^(Args|Arguments|Returns|Raises|Yields|Examples?|Notes?|Attributes):\s*$', re.MULTILINE)
_ARGUMENT = re.compile(r'^\s*(\w+)\s*(?:\([^)]*\))?:\s*(.*)$')


def tool_from_function(function: Callable[..., Any], *, writes: bool = False) -> Tool:
  """The tool that `function(database, **arguments)` implements.

  Parameters after the first become properties; those without default are required. Types: str, int, float, bool, None,
  list, dict, Literal, unions and Any. The description is the docstring before its first section, a parameter's is its
  entry under `Args:`.

  Raises:
    TypeError: a parameter has no type, one without a JSON form, or is variadic.
  """
  hints = typing.get_type_hints(function)
  docs = _argument_docs(function)
  properties, required = {}, []
  for parameter in list(inspect.signature(function).parameters.values())[1:]:
    where = f'{function.__name__}({parameter.name})'
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
      raise TypeError(f'{where} is {parameter.kind.description}; a call gives its arguments by name')
    if parameter.name not in hints:
      raise TypeError(f'{where} has no type; annotate it')
    schema = schema_of(hints[parameter.name], where=where)
    if parameter.name in docs:
      schema['description'] = docs[parameter.name]
    if parameter.default is parameter.empty:
      required.append(parameter.name)
    elif parameter.default is not None:
      schema['default'] = parameter.default
    properties[parameter.name] = schema
  returns = schema_of(hints['return'], where=f'the result of {function.__name__}') if 'return' in hints else None
  parameters = {'type': 'object', 'properties': properties, 'required': required}
  return Tool(function.__name__, _description(function), parameters, returns, writes)


def schema_of(hint: Any, *, where: str) -> dict[str, Any]:
  """The JSON Schema of a type annotation.

  Raises:
    TypeError: the type has no JSON form; `where` says whose it is.
  """
  origin, args = typing.get_origin(hint), typing.get_args(hint)
  if hint is Any:
    return {}
  if hint in _PRIMITIVES:
    return {'type': _PRIMITIVES[hint]}
  if origin is typing.Literal:
    kinds = {_PRIMITIVES.get(type(value)) for value in args}
    return {'type': kinds.pop(), 'enum': list(args)} if len(kinds) == 1 else {'enum': list(args)}
  if origin in (types.UnionType, typing.Union):
    return {'anyOf': [schema_of(arg, where=where) for arg in args]}
  if (origin or hint) in (list, tuple, Sequence):
    items = [arg for arg in args if arg is not Ellipsis]
    return {'type': 'array', 'items': schema_of(items[0], where=where)} if len(items) == 1 else {'type': 'array'}
  if (origin or hint) in (dict, Mapping):
    if len(args) == 2 and args[1] is not Any:
      return {'type': 'object', 'additionalProperties': schema_of(args[1], where=where)}
    return {'type': 'object'}
  raise TypeError(f'{where} has the type {hint!r}, which has no JSON form; use str, int, float, bool, list or dict')


def _description(function: Callable[..., Any]) -> str:
  text = inspect.getdoc(function) or ''
  section = _SECTION.search(text)
  return ' '.join((text[: section.start()] if section else text).split())


def _argument_docs(function: Callable[..., Any]) -> dict[str, str]:
  text = inspect.getdoc(function) or ''
  start = re.search(r'^(Args|Arguments):\s*$', text, re.MULTILINE)
  if not start:
    return {}
  body = text[start.end() :]
  end = _SECTION.search(body)
  docs: dict[str, str] = {}
  name, indent = '', -1
  for line in inspect.cleandoc(body[: end.start()] if end else body).splitlines():
    entry = _ARGUMENT.match(line)
    depth = len(line) - len(line.lstrip())
    if entry and (indent < 0 or depth <= indent):
      name, indent = entry[1], depth
      docs[name] = entry[2].strip()
    elif name and line.strip():
      docs[name] = f'{docs[name]} {line.strip()}'.strip()
  return docs
