"""Values for parameters that neither an answer nor the database can fill."""

import random
import re
from collections.abc import Mapping, Sequence
from typing import Any

from slca_jax.dialogue import Tool, ToolCall
from slca_jax.envs.confined.offered import words
from slca_jax.envs.recorded import invent
from slca_jax.toolverse.fields import name_words, type_of

LABELS = words('name title label subject topic city headline username')
_FIRST = ('Amber', 'Birch', 'Cedar', 'Delta', 'Ember', 'Harbor', 'Juniper', 'Linden', 'Maple', 'Willow')
_SECOND = ('Bridge', 'Corner', 'Field', 'Garden', 'Gate', 'House', 'Lane', 'Meadow', 'Square', 'Yard')
_SENTENCES = (
  'Please keep this short.',
  'To be looked at on Monday.',
  'As we agreed on the phone.',
  'The team asked for it.',
  'Nothing urgent, but do not forget it.',
)


def made_up(name: str, schema: Mapping[str, Any], chance: random.Random) -> Any:
  """A value of the schema, and of what the parameter's name makes one expect."""
  for key in ('examples', 'example', 'enum'):
    options = schema.get(key)
    options = [options] if key == 'example' and options is not None else options
    if isinstance(options, list) and options:
      return chance.choice(options)
  kind = type_of(schema)
  if kind == 'integer' or (kind == 'number' and 'multipleOf' not in schema):
    return _number(name, schema, chance)
  if kind in ('string', '') and 'const' not in schema and 'properties' not in schema:
    return _text(name, schema, chance)
  return invent(Tool(name, '', {}, schema), ToolCall(name, {}), seed=chance.randrange(10**6))


def unused(name: str, schema: Mapping[str, Any], taken: Sequence[int | str | float], chance: random.Random) -> Any:
  """A value like those that are taken, and none of them: a number further on where all end in one, else made up."""
  numbered = [match for value in taken if (match := re.fullmatch(r'(\D*)(\d+)', str(value)))]
  whole = type_of(schema) in ('integer', 'number')
  if taken and len(numbered) == len(taken) and not (whole and numbered[0][1]):
    last = max(numbered, key=lambda match: int(match[2]))
    number = int(last[2]) + chance.randint(1, 9)
    return number if whole or isinstance(taken[0], int) else f'{last[1]}{number:0{len(last[2])}}'
  known = {str(value).lower() for value in taken}
  value = made_up(name, schema, chance)
  if isinstance(value, str) and not any(' ' in str(one) for one in taken):
    value = value.replace(' ', '-')
  while str(value).lower() in known:
    value = value + 1 if isinstance(value, int | float) else f'{value}-{chance.randint(2, 99)}'
  return value


def some_words(text: str, chance: random.Random) -> str:
  """About half of the words of a text, one after another, with a telling one at both ends; all of a single word."""
  parts = [part.strip(',.:;!?') for part in text.split()]
  size = max(1, len(parts) // 2)
  telling = [len(part) > 3 and part.lower() not in _COMMON for part in parts]
  starts = [n for n in range(len(parts) - size + 1) if telling[n] and telling[n + size - 1]]
  if not starts:  # short names and the like
    starts, size = [n for n, tells in enumerate(telling) if tells], 1
  start = chance.choice(starts) if starts and len(parts) > 1 else 0
  return ' '.join(parts[start : start + size]) if starts and len(parts) > 1 else text


_COMMON = words('about from into near over than that this with without')


def _number(name: str, schema: Mapping[str, Any], chance: random.Random) -> Any:
  drawn = invent(Tool(name, '', {}, schema), ToolCall(name, {}), seed=chance.randrange(10**6))
  if 'minimum' in schema or 'maximum' in schema or 'const' in schema or 'multipleOf' in schema:
    return drawn
  large = set(name_words(name)) & words('price amount cost budget total salary')
  return chance.randint(2, 50) * 10 if large else chance.randint(1, 5)


def _text(name: str, schema: Mapping[str, Any], chance: random.Random) -> str:
  last = (name_words(name) or ('',))[-1]
  first, second = chance.choice(_FIRST), chance.choice(_SECOND)
  day = f'2026-{chance.randint(1, 12):02}-{chance.randint(1, 28):02}'
  form = schema.get('format')
  if last == 'email' or form == 'email':
    return f'{first}.{second}@example.com'.lower()
  if form in ('uri', 'url') or last in ('url', 'link', 'website'):
    return f'https://example.com/{first}-{second}'.lower()
  if form == 'date-time':
    return f'{day}T{chance.randint(8, 18):02}:00:00'
  if form == 'date' or last in ('date', 'day', 'deadline'):
    return day
  if last in ('path', 'directory', 'folder', 'file', 'filename'):
    return (
      f'{"" if last == "filename" else "/data/"}{first}-{second}{".txt" if last.startswith("file") else ""}'.lower()
    )
  if form == 'time' or last == 'time':
    return f'{chance.randint(8, 18):02}:00'
  if last == 'phone':
    return f'+1-555-01{chance.randint(10, 99)}'
  if last in ('description', 'text', 'note', 'content', 'message', 'comment', 'body', 'summary', 'reason'):
    return chance.choice(_SENTENCES)
  return f'{first} {second}' if last in LABELS else f'{first} {second}'.lower()
