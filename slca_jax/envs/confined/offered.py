"""What generated code may use: builtins by name, and modules as tables of names that lead nowhere else.

A real module is a way out (`json.codecs.builtins.open`), so code gets a frozen table of the functions that are listed
here. Clock, chance and identifiers come from the world: the clock stands still, and what a call draws depends on the
call alone and on how often it was made before, so other calls before it change nothing and a trace replays.
"""

import _strptime  # noqa: F401 - datetime.strptime imports it when called, where nothing can be imported any more
import base64
import builtins
import collections
import copy
import datetime as real_datetime
import decimal
import fractions
import functools
import hashlib
import itertools
import json
import math
import operator
import random
import re
import statistics
import string
import types
import typing
import uuid
from collections.abc import Callable, Mapping
from typing import Any

NOW = '2026-01-01T09:00:00'


def words(text: str) -> frozenset[str]:
  """The words of a text, each once."""
  return frozenset(text.split())


BUILTINS = words(
  """abs all any ascii bin bool bytes callable chr complex dict divmod enumerate filter float format frozenset hex int
  isinstance issubclass iter len list map max min next oct ord pow print property range repr reversed round set slice
  sorted staticmethod str sum tuple zip NotImplemented Ellipsis True False None
  ArithmeticError AssertionError AttributeError Exception IndexError KeyError LookupError NameError NotImplementedError
  OverflowError PermissionError RecursionError RuntimeError StopIteration TimeoutError TypeError UnicodeError ValueError
  ZeroDivisionError"""
)

_TABLES: dict[types.ModuleType, str] = {
  base64: 'b64encode b64decode urlsafe_b64encode urlsafe_b64decode b32encode b32decode b16encode b16decode',
  collections: 'defaultdict Counter OrderedDict deque namedtuple ChainMap',
  copy: 'copy deepcopy',
  decimal: 'Decimal ROUND_HALF_UP ROUND_HALF_EVEN ROUND_DOWN ROUND_UP ROUND_FLOOR ROUND_CEILING InvalidOperation',
  fractions: 'Fraction',
  functools: 'reduce partial cmp_to_key wraps',
  hashlib: 'md5 sha1 sha224 sha256 sha384 sha512',
  itertools: 'accumulate chain combinations combinations_with_replacement compress count cycle dropwhile filterfalse '
  'groupby islice pairwise permutations product repeat starmap takewhile tee zip_longest',
  json: 'dumps loads JSONDecodeError',
  math: ' '.join(name for name in dir(math) if not name.startswith('_')),
  operator: 'add and_ contains eq floordiv ge gt itemgetter le lt mod mul ne neg not_ or_ sub truediv xor',
  re: 'compile escape findall finditer fullmatch match search split sub subn I IGNORECASE M MULTILINE S DOTALL X '
  'VERBOSE error',
  statistics: 'fmean geometric_mean harmonic_mean mean median median_high median_low mode multimode pstdev pvariance '
  'quantiles stdev variance',
  string: 'ascii_letters ascii_lowercase ascii_uppercase digits hexdigits octdigits printable punctuation whitespace '
  'capwords',
  typing: 'Any Callable Dict FrozenSet Iterable Iterator List Literal Mapping Optional Sequence Set Tuple Union cast',
}
_WORLDLY = {
  'datetime': 'date datetime time timedelta timezone MINYEAR MAXYEAR',
  'random': 'random randint randrange choice choices sample shuffle uniform gauss triangular getrandbits',
  'secrets': 'token_hex token_urlsafe choice randbelow',
  'time': 'time sleep strftime time_ns',
  'uuid': 'uuid1 uuid4 uuid5 UUID NAMESPACE_DNS NAMESPACE_URL',
}
MODULES: Mapping[str, frozenset[str]] = {
  **{module.__name__: words(names) for module, names in _TABLES.items()},
  **{name: words(names) for name, names in _WORLDLY.items()},
  '__future__': frozenset({'annotations'}),
}


class Table:
  """A module's offered names. Nothing in it can be replaced, and it knows no way to the module itself."""

  __slots__ = ('_names',)

  def __init__(self, names: Mapping[str, Any]):
    object.__setattr__(self, '_names', dict(names))

  def __getattr__(self, name: str) -> Any:
    try:
      return object.__getattribute__(self, '_names')[name]
    except KeyError:
      raise AttributeError(f'{name!r} is not offered here') from None

  def __setattr__(self, name: str, value: Any) -> None:
    raise AttributeError('a module cannot be changed')


class Chance:
  """The world's source of chance."""

  def __init__(self):
    self.draw = random.Random(0)
    self._made: collections.Counter[str] = collections.Counter()

  def begin(self, name: str, arguments: Mapping[str, Any]) -> None:
    """Starts the draws of a call."""
    key = f'{name} {json.dumps(arguments, sort_keys=True)}'
    self._made[key] += 1
    self.draw.seed(f'{key} {self._made[key]}')


def builtins_of(chance: Chance, now: str) -> dict[str, Any]:
  """The builtins of a world, `import` among them."""
  offered = {name: getattr(builtins, name) for name in BUILTINS}
  modules = {module.__name__: Table(_pick(vars(module), names)) for module, names in _TABLES.items()}
  modules |= {name: Table(_pick(names, _WORLDLY[name])) for name, names in _worldly(chance, now).items()}
  modules['__future__'] = Table({'annotations': None})

  def offer(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Table:
    del globals, locals, fromlist
    if level or name not in modules:
      raise ImportError(f'{name!r} is not offered; offered: {", ".join(sorted(modules))}')
    return modules[name]

  return offered | {'__import__': offer, '__build_class__': builtins.__build_class__, 'print': _print}


def _print(*values: Any, **options: Any) -> None:
  del values, options  # a tool speaks through its result


def _pick(names: Mapping[str, Any], listed: str) -> dict[str, Any]:
  return {name: names[name] for name in listed.split()}


def _worldly(chance: Chance, now: str) -> dict[str, dict[str, Any]]:
  draw = chance.draw
  clock, moment = _clock(now)
  draws = {name: getattr(draw, name) for name in _WORLDLY['random'].split()}
  bits = lambda *_: uuid.UUID(int=draw.getrandbits(128), version=4)
  hexed = lambda size=16: draw.randbytes(size).hex()
  web = lambda size=16: base64.urlsafe_b64encode(draw.randbytes(size)).decode().rstrip('=')
  seconds = moment.replace(tzinfo=real_datetime.UTC).timestamp()
  return {
    'datetime': clock,
    'random': draws,
    'secrets': {'token_hex': hexed, 'token_urlsafe': web, 'choice': draw.choice, 'randbelow': draw.randrange},
    'time': {
      'time': lambda: seconds,
      'time_ns': lambda: int(seconds) * 10**9,
      'sleep': lambda _: None,
      'strftime': lambda layout: moment.strftime(layout),
    },
    'uuid': vars(uuid) | {'uuid1': bits, 'uuid4': bits},
  }


def _clock(now: str) -> tuple[dict[str, Any], real_datetime.datetime]:
  """The module datetime whose clock stands at `now`."""
  moment = real_datetime.datetime.fromisoformat(now)

  def kind(real: type) -> type:
    # An instance check by the real class: sums and parts of dates are real ones.
    return type('Kind', (type,), {'__instancecheck__': lambda cls, value: isinstance(value, real)})

  def at(cls: Any, tz: Any = None) -> Any:
    naive = cls(*moment.timetuple()[:6], moment.microsecond)
    return naive if tz is None else naive.replace(tzinfo=real_datetime.UTC).astimezone(tz)

  today: Callable[[Any], Any] = lambda cls: cls(*moment.timetuple()[:3])
  stamps = {name: classmethod(at) for name in ('now', 'today')} | {'utcnow': classmethod(lambda cls: at(cls))}
  names = dict(vars(real_datetime))
  names['datetime'] = kind(real_datetime.datetime)('datetime', (real_datetime.datetime,), stamps)
  names['date'] = kind(real_datetime.date)('date', (real_datetime.date,), {'today': classmethod(today)})
  return names, moment
