"""From readings to a plan: which tables a server has, and what each tool does with them."""

import collections
import dataclasses
import re
from collections.abc import Sequence

from slca_jax.dialogue import Tool
from slca_jax.toolverse.deterministic import words as w
from slca_jax.toolverse.deterministic.model import Column, Link, Match, Operation, Plan, Table
from slca_jax.toolverse.deterministic.naming import filters, has_own_key, key_rank, link_name, scalar, spelling
from slca_jax.toolverse.deterministic.pure import expression
from slca_jax.toolverse.deterministic.reading import Parameter, Reading
from slca_jax.toolverse.deterministic.relations import finish
from slca_jax.toolverse.deterministic.rewriting import rewrite
from slca_jax.toolverse.deterministic.subjects import aspect, read_all

_DAYS = w.words('days day_count num_days recent_n hours months years weeks lookback_count')
_SINGLE = w.words(
  'get fetch retrieve read view describe check show lookup select resolve load open inspect details info'
)
_MANY = w.words('search list find browse discover query filter explore recommend suggest getall')


_OVERWRITES = w.words('write save store put upsert append upload log record remember share')
_SIDES_OF_BOUNDS = w.words(
  'start end from to since until after before min max minimum maximum date begin latest earliest time at'
)
_OF_THE_RECORD = w.words('status state progress detail info result metadata profile definition description version')
_LOOKS_UP = re.compile(
  r'\b(gets?|search(es)?|lists?|finds?|fetch(es)?|retrieves?|returns?|shows?|reads?|looks? up|quer(y|ies)|provides?|'
  r'check(s|ing)?|data|by ids?|browses?|display(s)?|views?|info(rmation)?|details?)\b'
  r'|获取|查询|搜索|返回|列出|查看|取得|検索',
  re.I,
)


class Left(Exception):
  """A tool that is left out, with the reason."""


def plan(tools: Sequence[Tool], *, most_parameters: int = 4) -> Plan:
  """Tables and operations for the tools that can be understood, and why the others cannot.

  Args:
    most_parameters: parameters of a rewritten tool; required ones are kept beyond it.
  """
  readings, left_out = read_all(tools)
  draft = _Draft(readings, most_parameters)
  operations = []
  for reading in readings:
    try:
      operations.append(draft.operation(reading))
    except Left as reason:
      left_out[reading.tool.name] = str(reason)
  return finish(draft.tables, operations, left_out)


class _Draft:
  """Tables as they grow with each tool that is planned."""

  def __init__(self, readings: list[Reading], most_parameters: int):
    self.tables: dict[str, Table] = {}
    self._most = most_parameters
    subjects = {r.noun for r in readings if r.noun and not aspect(r.noun) and r.verb != 'refused'}
    users: dict[str, set[str]] = collections.defaultdict(set)
    for reading in readings:
      for parameter in reading.all('key'):
        if reading.verb != 'work':
          users[parameter.thing].add(reading.noun)
    self._real = {thing for thing, nouns in users.items() if thing in subjects or len(nouns - {thing}) > 1}
    self._subjects = subjects
    self._nouns = collections.Counter(r.noun for r in readings)
    common = collections.Counter(r.noun for r in readings if r.noun in subjects and r.verb == 'read').most_common(1)
    self._main = common[0][0] if common else ''  # what a search without a noun looks for
    self._spelled = spelling(readings)

  def operation(self, reading: Reading) -> Operation:
    """The operation of a tool; raises Left."""
    pure = expression(reading)
    if pure:
      used = tuple(p for p in reading.parameters if p.required)
      return Operation(rewrite(reading, used, writes=False), 'pure', pure=pure)
    verb = reading.verb
    if verb == '' or (verb == 'move' and reading.word in ('run', 'play', 'like', 'star') and not has_own_key(reading)):
      verb = self._verbless(reading)
    if verb == 'work':
      self._require_known(reading)
      verb = 'read'
    return {
      'read': self._read, 'count': self._read, 'create': self._create, 'update': self._update, 'delete': self._delete,
      'clear': self._clear, 'move': self._move,
    }[verb](reading)  # fmt: skip

  def _verbless(self, reading: Reading) -> str:
    unknown = [p for p in reading.parameters if p.required and p.part in ('field', 'quantity', 'text', 'structure')]
    unknown = [p for p in unknown if not (p.part == 'field' and filters(p))]
    if unknown or reading.verb == 'move':
      raise Left(f'its name has no verb that says what it does with {unknown[0].raw if unknown else reading.word!r}')
    if not _LOOKS_UP.search(f'{" ".join(w.split(reading.tool.name))} {reading.tool.description[:300]}'):
      raise Left('neither its name nor its description says that it looks something up')
    return 'read'

  def _require_known(self, reading: Reading) -> None:
    keys = [p for p in reading.all('key') if p.required]
    if not any(p.thing in self._real for p in keys):
      raise Left(f'the result of {reading.word!r} is worked out, not looked up, and no key of a known record is given')

  def _read(self, reading: Reading) -> Operation:
    for parameter in reading.parameters:
      if parameter.required and parameter.part in ('structure', 'quantity', 'text'):
        raise Left(f'what it returns depends on {parameter.raw}, which is no key, filter or search word')
      if parameter.required and parameter.kind == 'boolean' and parameter.part == 'field':
        raise Left(f'what it returns depends on the switch {parameter.raw}')
    table = self._table(self._subject(reading))
    keys = [p for p in reading.all('key') if p.required or p.thing in self._real or p.thing == table.noun]
    fields = [p for p in reading.all('field') if p.required or (filters(p) and self._is_many(reading))]
    days = [p for p in fields if p.name in _DAYS]
    fields = [p for p in fields if p not in days]
    many = self._is_many(reading)
    table.many |= many
    queries, bounds = reading.all('query'), reading.all('from', 'to')
    used = self._fit([*keys, *queries, *fields, *bounds, *reading.all('limit', 'offset', 'page'), *days])
    matches = [self._match(table, p, keys) for p in used if p in keys or p in fields]
    action = 'count' if reading.verb == 'count' else 'list' if many or queries else 'get'
    if action == 'get' and not any(p.required for p in used) and (own := [p for p in used if p.thing == table.noun]):
      # One record is asked for: which one must be said.
      used = [dataclasses.replace(p, required=True) if p is own[0] else p for p in used]
      keys = [p for p in used if p.part == 'key']
      matches = [self._match(table, p, keys) for p in used if p in keys or p in fields]
    named = lambda *parts: next((p.name for p in used if p.part in parts), '')
    limit = named('limit') or next((p.name for p in used if p in days), '')
    if action == 'get' and not matches and not bounds:
      table.one = table.one or not (table.columns or table.noun in self._real)
    return Operation(
      rewrite(reading, used, writes=False),
      action,
      table.noun,
      tuple(matches),
      tuple(p.name for p in used if p.part == 'query'),
      tuple((p.name, self._bounded(table, p), p.part) for p in used if p.part in ('from', 'to')),
      limit if action == 'list' else '',
      named('offset'),
      named('page'),
    )

  def _create(self, reading: Reading) -> Operation:
    noun = reading.noun or self._subject(reading)
    if len(noun) < 2:
      raise Left('its name does not say what it makes')
    table = self._table(noun)
    keys = [p for p in reading.all('key') if p.required or p.thing != noun or p.by != 'id']  # a new one has none yet
    fields = [
      p for p in reading.parameters if p.part in ('field', 'text', 'quantity', 'structure', 'from', 'to', 'query')
    ]
    used = self._fit([*keys, *fields, *reading.all('limit', 'technical')], most=max(self._most, 4))
    if not used:
      raise Left(f'it makes a {table.noun} out of nothing')
    written, matches = [], []
    for parameter in used:
      if parameter.part == 'key' and parameter.thing in self._real - {table.noun} and parameter.kind != 'array':
        match = self._match(table, parameter, keys)
        written.append((parameter.name, match.column))
        matches += [match]
      else:
        column = self._column(table, parameter)
        if column in dict(written).values():  # `base_style` beside `style_name`
          column = table.columns.setdefault(parameter.name, Column(parameter.name, scalar(parameter))).name
        written.append((parameter.name, column))
    return Operation(
      rewrite(reading, used, writes=True),
      'create',
      noun,
      tuple(matches),
      fields=tuple(written),
      replaces=reading.word in _OVERWRITES,
    )

  def _update(self, reading: Reading) -> Operation:
    keys = [p for p in reading.all('key') if p.required and p.kind != 'array']
    own = [p for p in keys if p.thing == reading.noun]
    fields = [p for p in reading.parameters if p not in keys and p.part not in ('credential', 'technical', 'limit')]
    fields += reading.all('limit')
    if not own and keys and reading.noun not in self._subjects - {reading.noun}:
      known = [p for p in keys if p.thing in self._real] or keys
      reading = dataclasses.replace(reading, noun=known[-1].thing)
      own = [p for p in keys if p.thing == reading.noun]
    if not own:
      return self._set(reading, [*keys, *fields])
    foreign = [p for p in keys if p not in own]
    parents = [p for p in foreign if p.thing in self._real]
    table = self._table(reading.noun)
    used = self._fit(
      [*own, *parents, *[p for p in foreign if p not in parents], *fields], most=max(self._most, len(own) + 3)
    )
    changed = [p for p in used if p not in own and p not in parents]
    if not changed:
      raise Left('it changes nothing that its parameters name')
    matches = tuple(self._match(table, p, keys) for p in used if p in own or p in parents)
    written = tuple((p.name, self._column(table, p)) for p in changed)
    return Operation(rewrite(reading, used, writes=True), 'update', table.noun, matches, fields=written)

  def _set(self, reading: Reading, fields: Sequence[Parameter]) -> Operation:
    """A setting of the world: the one record of its table."""
    noun = reading.noun or self._subject(reading)
    used = self._fit(list(fields))
    if not used:
      raise Left('it sets nothing that its parameters name')
    known = self.tables.get(noun)
    if known and not known.one and known.columns:
      raise Left(f'no parameter says which {noun} it changes')
    table = self._table(noun)
    table.one = True
    written = tuple((p.name, self._column(table, p)) for p in used)
    return Operation(rewrite(reading, used, writes=True), 'set', noun, fields=written)

  def _delete(self, reading: Reading) -> Operation:
    noun, keys, table = self._target(reading)
    used = self._fit(keys)
    matches = tuple(self._match(table, p, keys) for p in used)
    return Operation(rewrite(reading, used, writes=True), 'delete', noun, matches)

  def _move(self, reading: Reading) -> Operation:
    if not has_own_key(reading) and reading.noun and not [p for p in reading.all('key') if p.required]:
      if reading.word in ('start', 'run', 'launch', 'deploy', 'install', 'trigger', 'join'):
        return self._create(reading)
      raise Left(f'no parameter says which {reading.noun} to {reading.word}')
    noun, keys, table = self._target(reading)
    table.columns.setdefault('status', Column('status', {'type': 'string'}))
    used = self._fit(keys)
    matches = tuple(self._match(table, p, keys) for p in used)
    state = w.TRANSITIONS[reading.word]
    return Operation(rewrite(reading, used, writes=True), 'move', noun, matches, state=state)

  def _clear(self, reading: Reading) -> Operation:
    if any(p.required for p in reading.parameters):
      return self._delete(reading)
    if not reading.noun or aspect(reading.noun) or reading.noun not in self.tables:
      raise Left('its name does not say which records it clears')
    return Operation(rewrite(reading, (), writes=True), 'clear', reading.noun)

  def _target(self, reading: Reading) -> tuple[str, list[Parameter], Table]:
    """The record that a delete or a move is about: (its noun, the keys, its table)."""
    keys = [p for p in reading.all('key') if p.required]
    if not keys:
      keys = [p for p in reading.all('key') if p.thing == reading.noun][:1]
      keys = [dataclasses.replace(p, required=True) for p in keys]
    if not keys:
      raise Left(f'no parameter says which {reading.noun or "record"} to {reading.word}')
    own = [p for p in keys if p.thing == reading.noun]
    if own:
      noun = reading.noun
    elif not reading.noun or reading.noun not in self._subjects or len(keys) == 1:
      noun = keys[-1].thing
    else:
      raise Left(f'no parameter is the key of a {reading.noun}')
    return noun, keys, self._table(noun)

  def _subject(self, reading: Reading) -> str:
    keys = [p for p in reading.all('key') if p.required]
    noun = reading.noun
    if not noun:
      if keys:
        return keys[-1].thing
      main = collections.Counter(p.thing for p in reading.all('key')).most_common(1)
      if main:
        return main[0][0]
      if self._main and reading.all('query'):
        return self._main
      raise Left('its name and description do not say what it is about')
    if noun in self._real and {'similar', 'related', 'recommended', 'recommend'} & reading.hints:
      return f'related_{noun}' if keys else noun
    if keys and any(noun in (word, f'{keys[0].thing}_{word}') for word in _OF_THE_RECORD):
      return keys[0].thing
    if aspect(noun) and keys:
      return f'{keys[0].thing}_{noun}'
    places = reading.word == 'search' and not reading.many and not keys and noun not in self._real
    return f'{noun}_result' if places and noun.split('_')[-1] != 'result' and self._nouns[noun] == 1 else noun

  def _is_many(self, reading: Reading) -> bool:
    own = [p for p in reading.all('key') if p.required and p.thing == reading.noun]
    if own and all(p.kind != 'array' for p in own) and reading.word not in _MANY:
      return False
    if reading.word in _MANY or reading.verb == 'count' or reading.all('limit', 'page', 'offset'):
      return not (own and not reading.many)
    return reading.many or 'history' in reading.hints or any(p.kind == 'array' for p in own)

  def _table(self, noun: str) -> Table:
    return self.tables.setdefault(noun, Table(noun, w.plural(noun)))

  def _match(self, table: Table, parameter: Parameter, keys: Sequence[Parameter]) -> Match:
    several = parameter.kind == 'array'
    thing = parameter.thing
    if parameter.part == 'key' and thing in self._real and thing != table.noun:
      parent = self._table(thing)
      spelled = self._spelled[thing, w.singular(parameter.by)]
      parent.columns.setdefault(spelled, Column(spelled, scalar(parameter), unique=True))
      twice = sum(p.thing == thing and p.by == parameter.by for p in keys) > 1
      name = parameter.name if twice else link_name(thing, spelled)
      if name in table.columns and table.columns[name].unique:  # the record's own: a file's path is no directory's
        return Match(parameter.name, name, parameter.required, several)
      table.columns.setdefault(name, Column(name, scalar(parameter), Link(thing, spelled)))
      return Match(parameter.name, name, parameter.required, several, Link(thing, spelled))
    return Match(parameter.name, self._column(table, parameter), parameter.required, several)

  def _column(self, table: Table, parameter: Parameter) -> str:
    """The column of the table that a parameter speaks of; made if there is none."""
    if parameter.part == 'key' and parameter.thing == table.noun:
      name = self._spelled[table.noun, w.singular(parameter.by)]
      table.columns.setdefault(name, Column(name, scalar(parameter), unique=True))
      if not table.key or key_rank(parameter.by) < key_rank(table.key):
        table.key = name
      return name
    name = parameter.name.removeprefix('new_') or parameter.name
    schema = (
      scalar(parameter)
      if parameter.part in ('key', 'field') and parameter.required and parameter.kind == 'array'
      else dict(parameter.schema)
    )
    known = table.columns.setdefault(name, Column(name, schema))
    if 'enum' in schema and 'enum' not in known.schema and known.kind == schema['type']:
      known.schema['enum'] = schema['enum']
    return name

  def _bounded(self, table: Table, parameter: Parameter) -> str:
    """The column that `start_date` or `max_price` bounds."""
    numeric = parameter.kind in ('integer', 'number')
    words = w.split(parameter.raw)
    name = '_'.join(word for word in words if word not in _SIDES_OF_BOUNDS)
    name = name or ('time' if 'time' in words and not numeric else 'amount' if numeric else 'date')
    schema = {'type': parameter.kind} if numeric else {'type': 'string', 'format': 'date'}
    table.columns.setdefault(name, Column(name, schema))
    return name

  def _fit(self, parameters: Sequence[Parameter], most: int = 0) -> list[Parameter]:
    """The required parameters, and of the others the first ones up to the bound; in the order of the schema's list."""
    needed = [p for p in parameters if p.required]
    free = [p for p in parameters if not p.required][: max(0, (most or self._most) - len(needed))]
    return [p for p in dict.fromkeys(parameters) if p in needed or p in free]
