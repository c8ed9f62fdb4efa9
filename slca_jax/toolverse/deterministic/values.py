"""Values for fields of records, by what the field is called, its type, its enum and examples in its description."""

import datetime
import re
import zlib
from collections.abc import Mapping
from typing import Any

from slca_jax.toolverse.deterministic import words as w
from slca_jax.toolverse.deterministic.banks import ADJECTIVES, BANKS, NOUNS, PLACES, TICKERS, TOPICS
from slca_jax.toolverse.deterministic.dealing import Deal

TODAY = datetime.date(2026, 1, 1)
_EXAMPLE = re.compile(
  r'(?:e\.?g\.?,?|for example,?|examples?:|such as|like|例如[:：]?|比如|如[:：]?|i\.e\.)\s*[:：]?\s*(.{2,120})', re.I
)
_QUOTED = re.compile(r"""["'`“‘]([^"'`“”‘’]{1,40})["'`”’]""")
_NO_CHOICE = w.words('all any none default auto null')
_LONG = w.words(
  'description text summary content abstract body message details notes overview comment instructions prompt bio'
)


def examples(schema: Mapping[str, Any]) -> list[Any]:
  """Values that the schema gives as examples, in its own words or fields; those of the right type alone."""
  given = [*(schema.get('examples') or ())] if isinstance(schema.get('examples'), list) else []
  found = _EXAMPLE.search(str(schema.get('description') or ''))
  if found and found[1].lstrip()[:1] not in ('{', '['):
    text = re.split(r'[)\]）。]|\. |\.$', found[1])[0]
    quoted = _QUOTED.findall(found[1])
    plain = [part.strip(' .\'"`') for part in re.split(r'[,，、]| or | and ', text)]
    given += quoted or [part for part in plain if re.fullmatch(r'[\w.:/#@-]{1,40}', part) and part.lower() != 'etc']
  return [
    value for value in map(lambda raw: _typed(raw, schema['type']), dict.fromkeys(map(str, given))) if value is not None
  ][:6]


def _typed(text: str, kind: str) -> Any:
  if kind == 'string':
    return text if text.strip() and not re.search(r'[{}<>\[\]]', text) else None
  try:
    number = float(text)
    return int(number) if kind == 'integer' and number == int(number) else number if kind == 'number' else None
  except (ValueError, OverflowError):
    return None


def choices(schema: Mapping[str, Any]) -> list[Any]:
  """The values of an enum that choose something."""
  values = [value for value in schema.get('enum') or () if str(value).lower() not in _NO_CHOICE and value != '']
  return values or list(schema.get('enum') or ())


def value(name: str, schema: Mapping[str, Any], *, noun: str, index: int, deal: Deal, unique: bool = False) -> Any:
  """A value for the field `name` of the record no. `index` of a kind. Distinct for distinct indices if `unique`."""
  kind = schema['type']
  offered = choices(schema)
  if offered and kind not in ('array', 'object'):
    return deal.order(offered)[index % len(offered)]
  if kind == 'boolean':
    return (index + deal.number(f'{noun} {name}', 2)) % 2 == 0
  if kind == 'array':
    items = schema.get('items') or {'type': 'string'}
    return [value(w.singular(name), items, noun=noun, index=index + step, deal=deal) for step in range(2)]
  if kind == 'object':
    parts = schema.get('properties') or {}
    return {key: value(key, part, noun=noun, index=index, deal=deal) for key, part in list(parts.items())[:4]}
  given = examples(schema)
  if kind in ('integer', 'number'):
    return _number(name, schema, given, noun, index, deal, unique)
  return _text(name, schema, given, noun, index, deal)


def _number(
  name: str, schema: Mapping[str, Any], given: list[Any], noun: str, index: int, deal: Deal, unique: bool
) -> Any:
  words = w.split(name)
  last, whole = words[-1], schema['type'] == 'integer'
  place = deal.order(PLACES)[index % len(PLACES)]
  if last in ('latitude', 'lat'):
    return place[2]
  if last in ('longitude', 'lon', 'lng'):
    return place[3]
  if given and index < len(given):
    return given[index]
  if last == 'year':
    number: float = 2025 - (index + deal.number(f'{noun} {name}', 6)) % 6
  elif last in ('id', 'pid', 'code') or (unique and last not in ('number', 'no')):
    # Keys of different tables are never equal by accident: each has a thousand of its own.
    number = 1000 * (1 + zlib.crc32(noun.encode()) % 89) + _key(noun, 101, 120, 5, index, deal)
  elif last in _COUNTED:
    number = index + 1
  else:
    low, high = _range(words)
    number = low + (high - low) * deal.share(f'{noun} {name} {index}')
  low, high = schema.get('minimum'), schema.get('maximum')
  if isinstance(low, int | float) and number < low:
    number = low + index
  if isinstance(high, int | float) and number > high:
    number = max(high - index, low if isinstance(low, int | float) else 0)
  return int(number) if whole or number == int(number) else round(float(number), 2)


_COUNTED = w.words('rank number no index season round page chapter priority week quarter month day')


def _key(purpose: str, least: int, spread: int, steps: int, index: int, deal: Deal) -> int:
  """The number in a key: of a seed, the first one and the distance between two of them."""
  first = least + deal.number(f'{purpose} first key', spread)
  return first + (3 + deal.number(f'{purpose} step', steps)) * index


def _range(words: list[str]) -> tuple[float, float]:
  for word in (words[0], words[-1]):
    for names, bounds in _RANGES.items():
      if word in names.split():
        return bounds
  return 1, 500


_RANGES: dict[str, tuple[float, float]] = {
  'rating score': (3.1, 5.0), 'humidity percent uptime': (20, 95), 'high temperature c': (12, 33), 'low': (-4, 11),
  'price amount balance fee open close value': (12, 900), 'cap revenue income tvl volume': (100_000, 9_000_000),
  'stars downloads views likes votes': (40, 20_000), 'bytes size': (1_200, 900_000), 'population': (90_000, 3_000_000),
  'rate change': (0.1, 6.0), 'x y z width height': (10, 800), 'duration minutes': (5, 180),
}  # fmt: skip


def _text(name: str, schema: Mapping[str, Any], given: list[Any], noun: str, index: int, deal: Deal) -> str:
  words = w.split(name)
  last, kinds = words[-1], frozenset({*noun.split('_'), *words[:-1]})
  moment = _moment(name, schema, last, noun, index, deal)
  if moment or index < len(given):
    return moment or str(given[index])
  formal = _formal(words, kinds, noun, index, deal)
  if formal:
    return formal
  start = deal.number(f'{noun} {name}', 144)
  if last in _LONG:
    place = index + start
    return f'Notes on {deal.order(TOPICS)[place % 12]} from {deal.order(PLACES)[place * 5 % 8][0]}.'
  if last in ('title', 'headline', 'subject', 'topic'):
    return _title(index + start, deal)
  return _person(words, kinds, index, deal) or _banked(words, kinds, index, deal) or _phrase(index, start)


def _phrase(index: int, start: int) -> str:
  text = f'{ADJECTIVES[(index + start) % 12]} {NOUNS[(index * 5 + start // 12) % 12]}'
  return text + (f' {index // 12 + 1}' if index >= 12 else '')


def _moment(name: str, schema: Mapping[str, Any], last: str, noun: str, index: int, deal: Deal) -> str:
  """A date or a time if the field is one; '' otherwise. The first records lie in the past."""
  step = 2 + deal.number(f'{noun} days', 4)
  first = -step - deal.number(f'{noun} first day', 2 * step)
  day = (TODAY + datetime.timedelta(days=first + step * index)).isoformat()
  if 'date-time' in f'{name} {schema.get("format", "")}'.lower() or last in _TIMES:
    minute = 15 * deal.number(f'{noun} {index} minute', 4)
    return f'{day}T{8 + (index + deal.number(f"{noun} hour", 10)) % 10:02d}:{minute:02d}:00'
  return day if schema.get('format') == 'date' or last in _DATES else ''


_TIMES = w.words('time timestamp at datetime schedule')
_DATES = w.words('date on day checkin checkout birthday since until')
_STREET = w.words('hotel venue restaurant property listing store shop')
_PERSONS = w.words('person user author member customer account employee driver athlete')
_MONEY = w.words('coin token crypto cryptocurrency')


def _formal(words: list[str], kinds: frozenset[str], noun: str, index: int, deal: Deal) -> str:
  """Ids, addresses, links and paths, none of them that of another kind of record; '' for other fields."""
  last, head = words[-1], noun.split('_')[-1] or 'item'
  purpose = f'{noun} {"_".join(words)}'
  if last in ('id', 'uuid', 'ref', 'key', 'reference') or (last == 'code' and 'country' not in kinds):
    thing = _letters(words[-2] if len(words) > 1 and words[-2] not in ('related', 'parent') else head)
    return f'{thing}-{_key(thing, 1001, 7000, 7, index, deal)}'
  if last in ('address', 'hash', 'wallet', 'pubkey') and not _STREET & kinds:
    drawn = deal.drawn(f'{purpose} {index}').hex()
    return f'0x{drawn[:40] if last != "hash" else drawn}'
  if last in ('email', 'mail'):
    return f'{deal.username(index)}@mail.example'
  slug = _phrase(index, deal.number(purpose, 144)).lower().replace(' ', '-')
  if last in ('url', 'uri', 'link', 'website', 'homepage'):
    return f'https://{head}.example/{slug}'
  if last in ('path', 'file', 'filename', 'directory', 'folder') and last != head:
    return f'/data/{w.plural(head)}/{slug}' + ('' if last in ('directory', 'folder') or 'repo' in kinds else '.txt')
  if last == 'name' and 'file' in kinds:
    return f'{slug}.txt'
  return slug if last == 'slug' else ''


def _person(words: list[str], kinds: frozenset[str], index: int, deal: Deal) -> str:
  """Somebody's name if the field holds one; '' otherwise."""
  last = words[-1]
  if last == 'username' or words == ['user', 'name']:
    return deal.username(index)
  named = last in _ROLES or (last == 'name' and kinds & (_PERSONS | _ROLES))
  return ' '.join(deal.person(index)) if named else ''


_ROLES = w.words('author authors assignee owner user person artist contact customer player driver recipient')


def _banked(words: list[str], kinds: frozenset[str], index: int, deal: Deal) -> str:
  """A value of the bank that fits the field's name, with a number where it was used up; '' if there is none."""
  bank = deal.order(_bank(words, kinds))
  again = index // len(bank) if bank and words[-1] not in ('status', 'language', 'currency') else 0
  return bank[index % len(bank)] + (f' {again + 1}' if again else '') if bank else ''


def _bank(words: list[str], kinds: frozenset[str]) -> tuple[str, ...]:
  last = words[-1]
  if last == 'symbol':
    return TICKERS if kinds & _MONEY else BANKS['symbol']
  if last == 'name':
    return next((BANKS[kind] for kind in sorted(kinds) if kind in BANKS), ())
  return BANKS.get(last) or BANKS.get(w.singular(last)) or ()


def _title(index: int, deal: Deal) -> str:
  place, topic = deal.order(PLACES)[(index * 3) % len(PLACES)][0], deal.order(TOPICS)[index % len(TOPICS)]
  forms = (
    'The future of {t} in {p}',
    'How {t} changed {p}',
    '{t} explained: lessons from {p}',
    'A field guide to {t} near {p}',
  )
  text = forms[index % 4].format(t=topic, p=place)
  return text[0].upper() + text[1:]


def _letters(word: str) -> str:
  kept = ''.join(letter for letter in word.upper() if letter.isalpha())
  return (kept[:1] + ''.join(letter for letter in kept[1:] if letter not in 'AEIOU') + kept)[:4] or 'REC'
