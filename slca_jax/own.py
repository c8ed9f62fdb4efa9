"""Code of one's own in a setting: FILE.py:NAME, or MODULE:NAME of what is installed.

A file is executed once per process, however many settings name it, and finds the modules that lie beside it. Each
process of a run executes its own copy; their digests must agree.
"""

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import pathlib
import sys
import traceback
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from slca_jax.config import nearest, require
from slca_jax.errors import ConfigError

Known = TypeVar('Known', bound=Callable[..., Any])

_files: set[str] = set()  # of code that was loaded here


def is_own(name: str) -> bool:
  """Whether a setting names code and none of the names that the package knows."""
  return ':' in name


def load(name: str, *, setting: str) -> Any:
  """What FILE.py:NAME or MODULE:NAME stands for.

  Raises:
    ConfigError: there is no such file, module or name, or its code does not run; says where it stops.
  """
  place, _, attribute = name.rpartition(':')
  try:
    module = _from_file(pathlib.Path(place)) if place.endswith('.py') else importlib.import_module(place)
    _files.add(str(module.__file__))
  except (Exception, SystemExit) as error:
    raise ConfigError(f'{setting} is {name!r}; {place or "nothing"} cannot be loaded: {told(error)}') from error
  if not hasattr(module, attribute):
    near = difflib.get_close_matches(attribute, vars(module), 1, 0.5)
    meant = f'did you mean {near[0]!r}?' if near else 'define it there'
    raise ConfigError(f'{setting} is {name!r}; {place} has no {attribute!r}, {meant}')
  return getattr(module, attribute)


def load_function(name: str, takes: str, *, setting: str) -> Callable[..., Any]:
  """The function that a name stands for.

  Args:
    takes: how it will be called, as 'trajectory, *, seed': so many arguments by their places, then these by name.

  Raises:
    ConfigError: as `load` does, or it is no function that can be called so.
  """
  function = load(name, setting=setting)
  places, _, names = (part.strip(', ') for part in takes.partition('*'))
  count = len(places.split(',')) if places else 0
  try:
    inspect.signature(function).bind(*range(count), **dict.fromkeys(filter(None, names.split(', '))))
  except (TypeError, ValueError) as error:
    raise ConfigError(f'{setting} is {name!r}; it is called with ({takes}), and that fails: {error}') from error
  return function


def find(name: str, known: Mapping[str, Known], takes: str, *, setting: str) -> Known:
  """The function that `known` has under a name, or one of one's own, as FILE.py:NAME or MODULE:NAME.

  Args:
    takes: as of `load_function`.

  Raises:
    ConfigError: there is none, or its code cannot be loaded.
  """
  if is_own(name):
    return cast(Known, load_function(name, takes, setting=setting))
  require(name in known, f'{setting} is {name!r}; {nearest(name, list(known))}')
  return known[name]


def source(name: str) -> str:
  """The file that a name's code stands in, '' if it is no own code or its module has none; after `load`."""
  place = name.rpartition(':')[0]
  if not is_own(name) or place.endswith('.py'):
    return place
  return getattr(sys.modules.get(place), '__file__', None) or ''


def _from_file(path: pathlib.Path) -> types.ModuleType:
  path = path.expanduser().resolve()
  if not path.is_file():
    raise FileNotFoundError(f'there is no file {path}')
  name = f'own_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}'
  if name in sys.modules:
    return sys.modules[name]
  spec = importlib.util.spec_from_file_location(name, path)
  assert spec is not None and spec.loader is not None  # the name ends with .py
  module = importlib.util.module_from_spec(spec)
  sys.modules[name] = module  # pickle and dataclasses look for it there
  _files.add(str(path))
  if str(path.parent) not in sys.path:
    sys.path.append(str(path.parent))  # last: what lies there must not hide what is installed
  try:
    spec.loader.exec_module(module)
  except BaseException:
    del sys.modules[name]
    raise
  return module


def told(error: BaseException) -> str:
  """The error in words, and the last line of one's own code that it came through."""
  frames = traceback.extract_tb(error.__traceback__)
  lines = [f'{pathlib.Path(frame.filename).name}:{frame.lineno}' for frame in frames if frame.filename in _files]
  return f'{type(error).__name__}: {error}' + (f' ({lines[-1]})' if lines else '')
