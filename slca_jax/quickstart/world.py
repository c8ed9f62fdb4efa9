"""A small market to ask about: tools, the functions behind them, and tasks whose answers only the tools know.

Names are a fixed vocabulary; which ticker a company has, what a ticker costs and what a currency is worth are drawn
anew for every task. So nothing can be answered from memory: prices must be copied out of observations, and the ticker
of a company must be looked up before its price can be.
"""

import dataclasses
import random
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Literal

from slca_jax.dialogue import Message, Steps, Task, Tool, ToolCall
from slca_jax.envs.executable import World

Database = Mapping[str, Any]
Split = Literal['train', 'heldout']
Kind = Literal['one', 'two', 'three', 'chain', 'mixed']

KINDS: tuple[Kind, ...] = ('one', 'two', 'three', 'chain', 'mixed')
VALUES = range(10, 60)
HELD_OUT_SHARE = 5  # one in five combinations of names and values belongs to the held-out split


def _names(text: str) -> tuple[str, ...]:
  return tuple(text.split())


TICKERS = _names('BAKO CIRU DOVA FEMI GUTO HALE JOBU KIVA LORO MEXA NUFI PAGO')
CURRENCIES = _names('ARL BEK CUN DOM FIR GEL')
COMPANIES = _names('Avenor Brixa Corvel Dunmar Elkano Farlow Gristo Hestia')


def find_ticker(db: Database, company: str) -> dict[str, Any]:
  """Find the ticker under which a company is traded."""
  return {'company': company, 'ticker': _entry(db['tickers'], company, 'company')}


def get_price(db: Database, ticker: str) -> dict[str, Any]:
  """Get the price of a ticker."""
  return {'ticker': ticker, 'price': _entry(db['prices'], ticker, 'ticker')}


def get_rate(db: Database, currency: str) -> dict[str, Any]:
  """Get the exchange rate of a currency."""
  return {'currency': currency, 'rate': _entry(db['rates'], currency, 'currency')}


def search(db: Database, query: str) -> dict[str, Any]:
  """Search whether a name is known to the market."""
  return {'query': query, 'known': any(query in table for table in db.values())}


def market_status(db: Database) -> dict[str, Any]:
  """Tell whether the market is open."""
  return {'open': bool(db['prices'])}


FUNCTIONS: Mapping[str, Callable[..., dict[str, Any]]] = {
  f.__name__: f for f in (find_ticker, get_price, get_rate, search, market_status)
}


def _tool(name: str, *arguments: str) -> Tool:
  schema = {
    'type': 'object',
    'properties': {key: {'type': 'string'} for key in arguments},
    'required': list(arguments),
    'additionalProperties': False,
  }
  return Tool(name, FUNCTIONS[name].__doc__ or '', schema)


TOOLS = (
  _tool('find_ticker', 'company'),
  _tool('get_price', 'ticker'),
  _tool('get_rate', 'currency'),
  _tool('search', 'query'),
  _tool('market_status'),
)

MARKET = World(TOOLS, FUNCTIONS, inline=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Item:
  """One thing a question asks for: the calls that lead to its value, one after another, and the fact to state."""

  name: str
  phrase: str
  calls: tuple[ToolCall, ...]
  fact: str


def make_task(seed: int, split: Split, index: int, *, kind: Kind | None = None) -> Task:
  """The `index`-th task of a split: the same arguments give the same task, wherever and whenever it is made.

  A combination of names and values is either a training or a held-out one, whatever the seed: no held-out question with
  its answer is ever trained on.

  Args:
    kind: which kind of question; drawn evenly from KINDS if None.
  """
  rng = random.Random(f'{seed}/{split}/{index}')
  kind = kind or rng.choice(KINDS)
  while True:
    db = make_database(rng)
    items = _items(kind, db, rng)
    if _split(items) == split:
      break
  asks = rng.choice(('What is {}?', 'Tell me {}.', 'Look up {}.'))
  return Task(
    id=f'{split}/{seed}/{index}',
    tools=TOOLS,
    messages=(Message('user', asks.format(enumerated([item.phrase for item in items]))),),
    gold=efficient_steps(items),
    answer=answer(items),
    facts=tuple(item.fact for item in items),
    blueprint='market',
    meta={
      'database': db,
      'kind': kind,
      'serial': [[call.name, dict(call.arguments)] for item in items for call in item.calls],
    },
  )


def make_database(rng: random.Random) -> dict[str, Any]:
  """Fresh tables: every company gets a ticker of its own, every ticker and currency one of VALUES."""
  return {
    'tickers': dict(zip(COMPANIES, rng.sample(TICKERS, len(COMPANIES)), strict=True)),
    'prices': {ticker: rng.choice(VALUES) for ticker in TICKERS},
    'rates': {currency: rng.choice(VALUES) for currency in CURRENCIES},
  }


def efficient_steps(items: tuple[Item, ...]) -> Steps:
  """The gold: whatever can be asked at once is asked at once, so an item's n-th call stands in step n."""
  depth = max(len(item.calls) for item in items)
  return tuple(tuple(item.calls[n] for item in items if n < len(item.calls)) for n in range(depth))


def answer(items: tuple[Item, ...]) -> str:
  """The sentence that states every fact, in the order of the question."""
  return ', '.join(item.fact for item in items) + '.'


def enumerated(parts: list[str]) -> str:
  """'a', 'a and b', 'a, b and c'."""
  return ' and '.join(filter(None, [', '.join(parts[:-1]), parts[-1]]))


def _items(kind: Kind, db: Database, rng: random.Random) -> tuple[Item, ...]:
  """The things asked for, of different names, in random order."""
  direct = {'one': 1, 'two': 2, 'three': 3, 'chain': 0, 'mixed': 1}[kind]
  items = [_direct(name, db) for name in rng.sample(TICKERS + CURRENCIES, direct)]
  if kind in ('chain', 'mixed'):
    asked = {item.name for item in items}
    items.append(_by_company(rng.choice([name for name in COMPANIES if db['tickers'][name] not in asked]), db))
  rng.shuffle(items)
  return tuple(items)


def _direct(name: str, db: Database) -> Item:
  if name in db['prices']:
    return Item(
      name, f'the price of {name}', (ToolCall('get_price', {'ticker': name}),), f'{name} is {db["prices"][name]}'
    )
  return Item(
    name, f'the rate of {name}', (ToolCall('get_rate', {'currency': name}),), f'{name} is {db["rates"][name]}'
  )


def _by_company(name: str, db: Database) -> Item:
  ticker = db['tickers'][name]
  calls = ToolCall('find_ticker', {'company': name}), ToolCall('get_price', {'ticker': ticker})
  return Item(name, f'the price of {name}', calls, f'{ticker} is {db["prices"][ticker]}')


def _split(items: tuple[Item, ...]) -> Split:
  key = ' '.join(sorted(f'{item.name} {item.fact}' for item in items))
  return 'heldout' if zlib.crc32(key.encode()) % HELD_OUT_SHARE == 0 else 'train'


def _entry(table: Mapping[str, Any], key: str, what: str) -> Any:
  if key not in table:
    raise ValueError(f'no {what} named {key!r}')
  return table[key]
