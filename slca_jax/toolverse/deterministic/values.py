"""Values for fields of records, by what the field is called, its type, its enum and examples in its description."""

import datetime
import hashlib
import random
import re
import zlib
from collections.abc import Mapping
from typing import Any

from slca_jax.toolverse.deterministic import words as w

TODAY = datetime.date(2026, 1, 1)
PLACES = (
  ('Lisbon', 'Portugal', 38.72, -9.14), ('Oslo', 'Norway', 59.91, 10.75), ('Kyoto', 'Japan', 35.01, 135.77),
  ('Nairobi', 'Kenya', -1.29, 36.82), ('Denver', 'United States', 39.74, -104.99), ('Lima', 'Peru', -12.05, -77.04),
  ('Hanoi', 'Vietnam', 21.03, 105.85), ('Porto', 'Portugal', 41.15, -8.61),
)  # fmt: skip
_PEOPLE = (
  'Mara Lindqvist',
  'Tomas Okafor',
  'Priya Raman',
  'Elena Duarte',
  'Jonas Weber',
  'Aiko Tanaka',
  'Samir Haddad',
  'Ines Moreau',
)
_TOPICS = (
  'solar storage', 'river restoration', 'night trains', 'urban gardens', 'coral reefs', 'paper batteries',
  'winter cycling',
  'tidal power', 'old harbours', 'quiet engines', 'desert farming', 'glass recycling',
)  # fmt: skip
_ADJECTIVES = (
  'Amber',
  'Northern',
  'Silent',
  'Copper',
  'Golden',
  'Misty',
  'Crimson',
  'Hidden',
  'Lunar',
  'Velvet',
  'Rapid',
  'Ivory',
)
_NOUNS = (
  'Harbour',
  'Falcon',
  'Meadow',
  'Summit',
  'Lantern',
  'Orchid',
  'Beacon',
  'Canyon',
  'Willow',
  'Comet',
  'Anchor',
  'Prairie',
)
_COINS = ('bitcoin', 'ethereum', 'solana', 'cardano', 'polkadot', 'litecoin', 'avalanche', 'chainlink')
_BANKS: dict[str, tuple[str, ...]] = {
  'symbol': ('AAPL', 'MSFT', 'NVDA', 'TSLA', 'AMZN', 'GOOGL', 'META', 'NFLX'),
  'coin': _COINS, 'token': _COINS, 'cryptocurrency': _COINS,
  'username': ('mlindqvist', 'tokafor', 'praman', 'eduarte', 'jweber', 'atanaka', 'shaddad', 'imoreau'),
  'author': _PEOPLE, 'authors': _PEOPLE, 'assignee': _PEOPLE, 'owner': _PEOPLE, 'user': _PEOPLE, 'person': _PEOPLE,
  'artist': _PEOPLE, 'contact': _PEOPLE, 'customer': _PEOPLE, 'player': _PEOPLE, 'driver': _PEOPLE,
  'recipient': _PEOPLE,
  'city': tuple(place[0] for place in PLACES), 'location': tuple(place[0] for place in PLACES),
  'place': tuple(place[0] for place in PLACES), 'destination': tuple(place[0] for place in PLACES),
  'country': tuple(place[1] for place in PLACES), 'region': ('Europe', 'Asia', 'Africa', 'Americas', 'Oceania'),
  'state': ('CA', 'NY', 'TX', 'WA', 'FL', 'CO', 'OR', 'MA'), 'area': ('north', 'south', 'east', 'west', 'centre'),
  'language': ('en', 'es', 'fr', 'de', 'ja'), 'currency': ('USD', 'EUR', 'JPY', 'GBP', 'BRL'),
  'category': ('science', 'travel', 'culture', 'energy', 'health'), 'genre': ('drama', 'comedy', 'mystery',
  'documentary', 'jazz'),
  'type': ('standard', 'premium', 'basic', 'extended', 'trial'), 'tag': ('energy', 'nature', 'design', 'history',
  'sound'),
  'status': ('active', 'open', 'pending', 'active', 'open'), 'priority': ('high', 'medium', 'low', 'medium', 'high'),
  'severity': ('moderate', 'severe', 'minor', 'extreme', 'moderate'), 'condition': ('sunny', 'cloudy', 'light rain',
  'windy', 'snow'),
  'source': ('The Harbour Times', 'Morning Ledger', 'Open Science Weekly', 'City Courier', 'Field Notes'),
  'team': ('Falcons', 'Mariners', 'Comets', 'Foxes', 'Rangers'), 'position': ('forward', 'guard', 'keeper',
  'midfielder', 'captain'),
  'level': ('info', 'warning', 'error', 'info', 'debug'), 'network': ('mainnet', 'testnet', 'devnet', 'goerli',
  'sepolia'),
  'domain': ('harbour.example', 'meadow.example', 'falcon.example', 'beacon.example', 'comet.example'),
  'version': ('1.4.2', '2.0.0', '0.9.7', '3.1.1', '2.3.5'), 'journal': ('Open Energy Letters', 'Annals of Rivers',
  'Urban Studies Review'),
  'metric': ('visits', 'response_time', 'error_rate', 'conversion', 'uptime'), 'color': ('red', 'teal', 'amber',
  'indigo', 'olive'),
  'word': ('lantern', 'harbour', 'meadow', 'orchid', 'summit', 'comet', 'anchor', 'willow'),
  'exchange': ('binance', 'kraken', 'coinbase', 'okx', 'bitstamp'), 'chain': ('ethereum', 'polygon', 'arbitrum',
  'base', 'optimism'),
  'period': ('1mo', '3mo', '6mo', '1y'), 'interval': ('1d', '1wk', '1mo', '1h'), 'timeframe': ('1d', '1h', '4h', '1w'),
  'quarter': ('Q1', 'Q2', 'Q3', 'Q4'), 'email': (), 'breed': ('akita', 'beagle', 'collie', 'husky', 'poodle'),
}  # fmt: skip
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


def value(
  name: str, schema: Mapping[str, Any], *, noun: str, index: int, chance: random.Random, unique: bool = False
) -> Any:
  """A value for the field `name` of the record no. `index` of a kind. Distinct for distinct indices if `unique`."""
  kind = schema['type']
  offered = choices(schema)
  if offered and kind not in ('array', 'object'):
    return offered[index % len(offered)]
  if kind == 'boolean':
    return index % 2 == 0
  if kind == 'array':
    items = schema.get('items') or {'type': 'string'}
    return [value(w.singular(name), items, noun=noun, index=index + step, chance=chance) for step in range(2)]
  if kind == 'object':
    parts = schema.get('properties') or {}
    return {key: value(key, part, noun=noun, index=index, chance=chance) for key, part in list(parts.items())[:4]}
  given = examples(schema)
  if kind in ('integer', 'number'):
    return _number(name, schema, given, noun, index, chance, unique)
  return _text(name, schema, given, noun, index)


def _number(
  name: str, schema: Mapping[str, Any], given: list[Any], noun: str, index: int, chance: random.Random, unique: bool
) -> Any:
  words = w.split(name)
  last, whole = words[-1], schema['type'] == 'integer'
  place = PLACES[index % len(PLACES)]
  if last in ('latitude', 'lat'):
    return place[2]
  if last in ('longitude', 'lon', 'lng'):
    return place[3]
  if given and index < len(given):
    return given[index]
  if last == 'year':
    number: float = 2025 - index % 6
  elif last in ('id', 'pid', 'code') or (unique and last not in ('number', 'no')):
    number = 1000 * (1 + _shift(noun, 89)) + 7 * index + 101  # keys of different tables are never equal by accident
  elif last in (
    'rank',
    'number',
    'no',
    'index',
    'season',
    'round',
    'page',
    'chapter',
    'priority',
    'week',
    'quarter',
    'month',
    'day',
  ):
    number = index + 1
  else:
    low, high = _range(words)
    number = low + (high - low) * chance.random()
  low, high = schema.get('minimum'), schema.get('maximum')
  if isinstance(low, int | float) and number < low:
    number = low + index
  if isinstance(high, int | float) and number > high:
    number = max(high - index, low if isinstance(low, int | float) else 0)
  return int(number) if whole or number == int(number) else round(float(number), 2)


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


def _text(name: str, schema: Mapping[str, Any], given: list[Any], noun: str, index: int) -> str:
  words = w.split(name)
  last, kinds = words[-1], frozenset({*noun.split('_'), *words[:-1]})
  moment = _moment(name, schema, last, index)
  if moment or index < len(given):
    return moment or str(given[index])
  formal = _formal(words, kinds, noun, index)
  if formal:
    return formal
  if last in _LONG:
    place = index + _shift(f'{noun} {name}', 24)
    return f'Notes on {_TOPICS[place % 12]} from {PLACES[place * 5 % 8][0]}.'
  if last in ('title', 'headline', 'subject', 'topic'):
    return _title(index + _shift(f'{noun} {name}', 24))
  bank = _bank(words, kinds)
  if bank:
    again = index // len(bank)
    counted = again and last not in ('status', 'language', 'currency')
    return bank[index % len(bank)] + (f' {again + 1}' if counted else '')
  shift = _shift(f'{noun} {name}', 144)
  return f'{_ADJECTIVES[(index + shift) % 12]} {_NOUNS[(index * 5 + shift // 12) % 12]}' + (
    f' {index // 12 + 1}' if index >= 12 else ''
  )


def _moment(name: str, schema: Mapping[str, Any], last: str, index: int) -> str:
  """A date or a time if the field is one; '' otherwise."""
  day = (TODAY + datetime.timedelta(days=3 * index - 9)).isoformat()
  if 'date-time' in f'{name} {schema.get("format", "")}'.lower() or last in _TIMES:
    return f'{day}T{8 + index % 10:02d}:30:00'
  return day if schema.get('format') == 'date' or last in _DATES else ''


_TIMES = w.words('time timestamp at datetime schedule')
_DATES = w.words('date on day checkin checkout birthday since until')
_STREET = w.words('hotel venue restaurant property listing store shop')
_PERSONS = w.words('person user author member customer account employee driver athlete')
_MONEY = w.words('coin token crypto cryptocurrency')


def _formal(words: list[str], kinds: frozenset[str], noun: str, index: int) -> str:
  """Ids, addresses, links and paths, none of them that of another kind of record; '' for other fields."""
  last, head = words[-1], noun.split('_')[-1] or 'item'
  shift = _shift(f'{noun} {"_".join(words)}', 144)
  slug = f'{_ADJECTIVES[(index + shift) % 12]}-{_NOUNS[(index + shift // 12) % 12]}'.lower() + (
    f'-{index // 12 + 1}' if index >= 12 else ''
  )
  if last in ('id', 'uuid', 'ref', 'key', 'reference') or (last == 'code' and 'country' not in kinds):
    thing = words[-2] if len(words) > 1 and words[-2] not in ('related', 'parent') else head
    return f'{_letters(thing)}-{1001 + index}'
  if last in ('address', 'hash', 'wallet', 'pubkey') and not _STREET & kinds:
    drawn = hashlib.sha256(f'{noun} {"_".join(words)} {index}'.encode()).hexdigest()
    return f'0x{drawn[:40] if last != "hash" else drawn}'
  if last in ('email', 'mail'):
    return f'{_BANKS["username"][index % 8]}{index // 8 or ""}@mail.example'
  if last in ('url', 'uri', 'link', 'website', 'homepage'):
    return f'https://{head}.example/{slug}'
  if last in ('path', 'file', 'filename', 'directory', 'folder') and last != head:
    return f'/data/{w.plural(head)}/{slug}' + ('' if last in ('directory', 'folder') or 'repo' in kinds else '.txt')
  if last == 'name' and 'file' in kinds:
    return f'{slug}.txt'
  return slug if last == 'slug' else ''


def _bank(words: list[str], kinds: frozenset[str]) -> tuple[str, ...]:
  """Values that a field of this name usually has; () if none are known."""
  last = words[-1]
  if last == 'symbol':
    return _TICKERS if kinds & _MONEY else _BANKS['symbol']
  if last == 'name':
    if words == ['user', 'name']:
      return _BANKS['username']
    if kinds & _PERSONS:
      return _PEOPLE
    return next((_BANKS[kind] for kind in sorted(kinds) if kind in _BANKS), ())
  return _BANKS.get(last) or _BANKS.get(w.singular(last)) or ()


_TICKERS = ('BTC', 'ETH', 'SOL', 'ADA', 'DOT', 'LTC', 'AVAX', 'LINK')


def _shift(text: str, size: int) -> int:
  """A number below `size` that depends on the text alone."""
  return zlib.crc32(text.encode()) % size


def _title(index: int) -> str:
  place = PLACES[(index * 3) % len(PLACES)][0]
  forms = (
    'The future of {t} in {p}',
    'How {t} changed {p}',
    '{t} explained: lessons from {p}',
    'A field guide to {t} near {p}',
  )
  text = forms[index % 4].format(t=_TOPICS[index % 12], p=place)
  return text[0].upper() + text[1:]


def _letters(word: str) -> str:
  kept = ''.join(letter for letter in word.upper() if letter.isalpha())
  return (kept[:1] + ''.join(letter for letter in kept[1:] if letter not in 'AEIOU') + kept)[:4] or 'REC'
