"""Values as Java and JavaScript write them, for gold answers of BFCL: its policies must answer with such texts."""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_KIND = re.compile(r'This is (Java|JavaScript) (\w+) type parameter|can be of any type of (Java|JavaScript) object')
_ITEMS = re.compile(r'The list elements are of type (\w+)')
_SUFFIXES = {'long': 'L', 'float': 'f', 'Bigint': 'n'}


def spellings(value: Any, schema: Mapping[str, Any]) -> Iterator[Any]:
  """The texts with which a value can be answered, the most usual first; of a Python function the value itself.

  Args:
    schema: of the parameter, whose description tells language and type.
  """
  found = _KIND.search(schema.get('description', ''))
  if not found:
    yield value
    return
  language, kind = found[1] or found[3], found[2] or 'any'
  items = _ITEMS.search(schema['description'])
  if isinstance(value, str) or kind == 'any':  # a text, or the name of a variable
    yield str(value)
  elif language == 'Java':
    yield from _java(value, kind, items[1] if items else 'any')
  else:
    yield from _javascript(value, kind)


def _java(value: Any, kind: str, items: str) -> Iterator[str]:
  if kind == 'HashMap':
    puts = ' '.join(f'put("{key}", {_literal(one, json.dumps)});' for key, one in value.items())
    yield f'new HashMap<String, Object>() {{{{ {puts} }}}}' if value else 'new HashMap<>()'
  elif kind in ('Array', 'ArrayList'):
    for quoted in (json.dumps, str):  # of arrays the checker keeps the quotes
      parts = ', '.join(f'{_literal(one, quoted)}{_SUFFIXES.get(items, "")}' for one in value)
      array = f'new {"Object" if items == "any" else items}[]{{{parts}}}'
      yield array if kind == 'Array' else f'new ArrayList<>(Arrays.asList({parts}))' if value else 'new ArrayList<>()'
  else:
    yield _literal(value, str) + _SUFFIXES.get(kind, '')


def _javascript(value: Any, kind: str) -> Iterator[str]:
  if isinstance(value, dict | list):
    yield json.dumps(value)
    yield json.dumps(value).replace('"', "'")
    yield json.dumps(value).replace('"', '')
  else:
    yield _literal(value, str) + ('n' if kind == 'Bigint' else '')


def _literal(value: Any, quoted: Callable[[Any], str]) -> str:
  if isinstance(value, bool):
    return str(value).lower()
  return quoted(value) if isinstance(value, str) else str(value)
