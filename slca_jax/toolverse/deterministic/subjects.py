"""Which things a server's tools are about: its nouns made one, and whose key each parameter is."""

import collections
import dataclasses
from collections.abc import Mapping, Sequence

from slca_jax.dialogue import Tool
from slca_jax.toolverse.deterministic import words as w
from slca_jax.toolverse.deterministic.reading import Parameter, Reading, noun_of_description, read

_SHARED = {'url': 'page', 'path': 'file', 'hash': 'transaction', 'title': 'article', 'name': 'item', 'symbol': 'symbol'}
_OUTSIDE = w.words('url path hash')  # keys of things that no tool has to list


def read_all(tools: Sequence[Tool]) -> tuple[list[Reading], dict[str, str]]:
  """The readings of a server's tools, with nouns and keys of the whole server; and why the others have none."""
  prefix = _prefix(tools)
  readings: list[Reading] = []
  left_out: dict[str, str] = {}
  names: set[str] = set()
  for index, tool in enumerate(tools):
    found = read(tool, prefix=prefix)
    if isinstance(found, str):
      left_out[tool.name] = found
    elif found.name in names:
      left_out[f'{tool.name} (no. {index + 1})'] = 'another tool of the server has this name'
    else:
      names.add(found.name)
      readings.append(found)
  readings = [_with_noun(reading) for reading in readings]
  return _searched_things(_owned_keys(_kinds_of(_things_by_name(_one_name_each(readings))))), left_out


def _prefix(tools: Sequence[Tool]) -> frozenset[str]:
  """Words of the server's own name: most tools have them, and most of these are about something else besides."""
  if len(tools) < 3:
    return frozenset()
  cut = [w.split(tool.name) for tool in tools]
  known = w.READS | w.CREATES | w.UPDATES | w.DELETES | set(w.TRANSITIONS) | w.WORKS | w.STOP | w.ADJECTIVES
  counts = collections.Counter(word for words in cut for word in set(words))
  found = set()
  for word, count in counts.most_common(6):
    if count < 0.6 * len(tools) or (word in known and word != cut[0][0]) or word in w.READS:
      continue
    others = [words for words in cut if word in words]
    besides = sum(
      any(o not in known and o not in w.ASPECTS for o in words[words.index(word) + 1 :]) for words in others
    )
    if besides >= 0.6 * len(others):
      found.add(word)
  return frozenset(found)


def _with_noun(reading: Reading) -> Reading:
  if reading.noun or reading.verb not in ('read', 'count', 'work', ''):
    return reading
  noun, many = noun_of_description(reading.tool.description)
  keys = [parameter for parameter in reading.all('key') if parameter.required]
  if keys or not noun:
    return reading
  return dataclasses.replace(reading, noun=noun, many=many or reading.many)


def _one_name_each(readings: list[Reading]) -> list[Reading]:
  """`quran_edition` and the `edition` of `edition_name` are one thing, if only one noun ends so."""
  nouns = list(dict.fromkeys(r.noun for r in readings if r.noun))
  things = dict.fromkeys(p.thing for r in readings for p in r.all('key') if p.thing)
  names: dict[str, str] = {}
  for thing in things:
    ends = [noun for noun in nouns if noun.endswith(f'_{thing}')]
    begins = [noun for noun in nouns if thing.endswith(f'_{noun}')]
    if thing in nouns:
      continue
    if len(ends) == 1:
      names[ends[0]] = thing
    elif len(begins) == 1 and not ends:
      names[thing] = begins[0]
  rename = lambda name: names.get(name, name)
  return [
    dataclasses.replace(
      r,
      noun=rename(r.noun),
      parameters=tuple(dataclasses.replace(p, thing=rename(p.thing)) for p in r.parameters),
    )
    for r in readings
  ]


def _things_by_name(readings: list[Reading]) -> list[Reading]:
  """The `exchange` of `get_ticker(exchange, symbol)` names an exchange, if other tools are about exchanges."""
  nouns = {r.noun for r in readings if r.noun and not aspect(r.noun)}
  things = nouns | {p.thing for r in readings for p in r.all('key') if p.thing}
  names = lambda p: p.part == 'field' and p.kind in ('string', 'array') and w.singular(p.name.lower()) in things
  return [
    dataclasses.replace(
      r,
      parameters=tuple(
        dataclasses.replace(p, part='key', thing=w.singular(p.name.lower()), by='name') if names(p) else p
        for p in r.parameters
      ),
    )
    for r in readings
  ]


def _kinds_of(readings: list[Reading]) -> list[Reading]:
  """`add_reminder_task` makes a task, if tasks have keys and nothing else is said of reminder tasks."""
  keyed = {p.thing for r in readings for p in r.all('key')}
  nouns = collections.Counter(r.noun for r in readings)
  done = []
  for reading in readings:
    tails = [thing for thing in keyed if thing and reading.noun.endswith(f'_{thing}')]
    alone = nouns[reading.noun] == 1 and reading.noun not in keyed
    made = reading.verb == 'create' and alone and len(tails) >= 1
    done.append(dataclasses.replace(reading, noun=max(tails, key=len)) if made else reading)
  return done


def _owned_keys(readings: list[Reading]) -> list[Reading]:
  """Parameters named `id`, `title`, `url`, ... get the thing that they identify."""
  listed = {r.noun for r in readings if r.noun and not any(p.required and not p.thing for p in r.all('key'))}
  listed |= {r.noun for r in readings if r.noun and _opens_one(r) and not aspect(r.noun)}
  hubs = _hubs(readings, listed)
  done = []
  opened = {(r.noun, w.singular(p.by)) for r in readings for p in r.all('key') if p.required and not aspect(r.noun)}
  for reading in readings:
    parameters = tuple(
      dataclasses.replace(p, thing=_owner(reading, p, listed, hubs, opened)) if p.part == 'key' and not p.thing else p
      for p in reading.parameters
    )
    done.append(dataclasses.replace(reading, parameters=parameters))
  return done


def _opens_one(reading: Reading) -> bool:
  """Whether a tool looks at one record by its id: `get_compound_details(cid)`."""
  keys = [p for p in reading.all('key') if p.required]
  return reading.verb == 'read' and not reading.many and len(keys) == 1 and keys[0].by == 'id'


def _hubs(readings: list[Reading], listed: set[str]) -> dict[str, str]:
  """For each way of identifying (`title`), the thing that several tools take it for."""
  users: dict[str, list[Reading]] = collections.defaultdict(list)
  for reading in readings:
    for parameter in reading.all('key'):
      if not parameter.thing and parameter.required:
        users[w.singular(parameter.by)].append(reading)
  hubs = {}
  for by, group in users.items():
    nouns = [r.noun for r in group if r.noun and not aspect(r.noun)]
    best = [noun for noun in nouns if noun in listed] or ([] if by in _OUTSIDE and len(set(nouns)) > 1 else nouns)
    hubs[by] = best[0] if best else _SHARED.get(by, 'item')
  return hubs


def _owner(
  reading: Reading,
  parameter: Parameter,
  listed: set[str],
  hubs: Mapping[str, str],
  opened: set[tuple[str, str]],
) -> str:
  by, noun = w.singular(parameter.by), reading.noun
  if not noun:
    return hubs.get(by, _SHARED.get(by, 'item'))
  if parameter.name.startswith(('parent', 'root')) or by not in hubs:
    return noun
  if reading.verb in ('create', 'update', 'delete', 'move'):
    return noun
  part_of = [other for other, key in opened if key == by and noun.startswith(f'{other}_')]
  if part_of and noun not in listed:
    return max(part_of, key=len)
  if aspect(noun):
    return hubs[by]
  if noun in listed or by == 'id':
    return noun
  return hubs[by]


def _searched_things(readings: list[Reading]) -> list[Reading]:
  """A search whose name tells where it looks (`search_pubmed`) is about the thing in its description."""
  opened = collections.Counter(p.thing for r in readings for p in r.all('key') if p.required)
  nouns = collections.Counter(r.noun for r in readings)
  listed = {r.noun for r in readings if _finds(r)}
  done = []
  common = _everywhere(readings)
  for reading in readings:
    told = [w.singular(word) for word in w.split(reading.tool.description[:200])]
    named = next((word for word in told if word in opened), '')
    if not named and set(reading.noun.split('_')) <= common:  # it bears the server's name alone
      named = next((thing for thing, _ in opened.most_common() if thing not in listed), '')
    alone = nouns[reading.noun] == 1 and reading.noun not in opened
    finds = reading.verb == 'read' and not any(p.required for p in reading.all('key'))
    found = finds and alone and named and _finds(reading)
    done.append(dataclasses.replace(reading, noun=named, many=True) if found else reading)
  return done


def _everywhere(readings: list[Reading]) -> set[str]:
  """Words that half of the server's tools have in their names."""
  counts = collections.Counter(word for r in readings for word in set(w.split(r.tool.name)))
  return {word for word, count in counts.items() if 2 * count >= len(readings) > 2}


def _finds(reading: Reading) -> bool:
  return reading.word in _SEARCHES or bool(reading.all('query'))


_SEARCHES = w.words('search find list browse discover query explore')


def aspect(noun: str) -> bool:
  """Whether a noun tells something about a record (`price`) rather than what a record is."""
  return all(
    word in w.ASPECTS or w.singular(word) in w.ASPECTS or w.plural(word) in w.ASPECTS for word in noun.split('_')
  )
