"""Names of columns: how keys are spelled, what may filter, and how a column that repeats another table's is called."""

import collections

from slca_jax.toolverse.deterministic import words as w
from slca_jax.toolverse.deterministic.reading import Parameter, Reading

KEY_ORDER = ('id', 'slug', 'symbol', 'code', 'isbn', 'doi', 'username', 'name', 'title', 'number', 'path', 'url')
FILTERS = w.words(
  """category type status state country language lang year season month quarter difficulty region genre tag priority
  assignee level source brand gender author city district province channel platform network chain edition side role
  currency sector industry section kind class stage group team league position day date color author_name owner journal
  market exchange interval period timeframe statement freq frequency granularity role visibility license format
  publisher manufacturer model cuisine diet species breed department subject grade rarity"""
)


def filters(parameter: Parameter) -> bool:
  """Whether an optional parameter chooses among records: by an enum, or by the name of a usual property."""
  words = w.split(parameter.name)
  return parameter.kind in ('string', 'integer') and (
    'enum' in parameter.schema or bool({words[-1], w.singular(words[-1])} & FILTERS)
  )


def has_own_key(reading: Reading) -> bool:
  """Whether each call names the record that it is about."""
  return any(p.thing == reading.noun and p.required for p in reading.all('key'))


def scalar(parameter: Parameter) -> dict:
  """The schema of one value of the parameter, of a list's items."""
  schema = dict(parameter.schema['items'] if parameter.kind == 'array' else parameter.schema)
  schema.setdefault('description', parameter.schema.get('description', ''))
  return schema


def key_rank(name: str) -> int:
  """How well a column serves as the key; less is better."""
  word = w.singular(w.split(name)[-1]) if w.split(name) else name
  return KEY_ORDER.index(word) if word in KEY_ORDER else len(KEY_ORDER)


def link_name(thing: str, column: str) -> str:
  """The name of a column that repeats another table's: its own name if that says whose it is."""
  return f'{thing}_{column}' if column in ('id', 'uuid', 'key', 'number', 'code') else column


def spelling(readings: list[Reading]) -> dict[tuple[str, str], str]:
  """How each key is spelled as a column: (thing, how it is identified) -> the most telling parameter name."""
  names: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
  for reading in readings:
    for parameter in reading.all('key'):
      name = parameter.name
      if parameter.kind == 'array' or parameter.by.endswith('s'):
        name = (
          w.singular(name) if '_' not in name else '_'.join([*name.split('_')[:-1], w.singular(name.split('_')[-1])])
        )
      names[parameter.thing, w.singular(parameter.by)][name] += 1
  return {
    key: max(
      found,
      key=lambda name: (
        not name.startswith(('old', 'new', 'parent', 'source', 'target', 'from_', 'to_')),
        found[name] + (len(w.split(name)) > 1),
        -len(name),
      ),
    )
    for key, found in names.items()
  }
