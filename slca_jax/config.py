"""From an ml_collections ConfigDict to frozen dataclasses and back; an unknown key or a wrong type is an error.

Each module declares the dataclass of what it can be told (`Limits`, `Optimizer`, …) with defaults and its own checks in
`__post_init__`. A file in `configs/` starts from `defaults(cls)` and overrides lines; `launch/` calls `build`.
"""

import dataclasses
import difflib
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import ml_collections
from ml_collections import config_dict

from slca_jax.errors import ConfigError

Built = TypeVar('Built')


def defaults(cls: type) -> Any:
  """A ConfigDict with every field of `cls` at its default; nested dataclasses become nested dicts.

  Typed as Any: type checkers cannot see its keys, `build` checks them.
  """
  return _plain_group(cls, lambda field: _default(cls, field))


def build(cls: type[Built], config: Mapping[str, Any], *, path: str = 'config') -> Built:
  """An instance of the dataclass `cls` with the values of `config`; what a group leaves out is as in its default.

  Raises:
    ConfigError: for an unknown key (names the nearest known one), a value of the wrong type, or a combination that the
      dataclass itself refuses. The message starts with the key's full path.
  """
  hints = typing.get_type_hints(cls)
  fields = {field.name: field for field in dataclasses.fields(typing.cast(Any, cls))}
  usual = lambda key: _default(cls, fields[key]) if _has_default(fields[key]) else None
  for key in config:
    if key not in fields:
      raise ConfigError(f'{path}.{key} is not a setting; {nearest(key, sorted(fields))}')
  values = {key: _convert(hints[key], _completed(usual(key), value), f'{path}.{key}') for key, value in config.items()}
  try:
    return cls(**values)
  except ConfigError as error:
    raise ConfigError(f'{path}: {error}') from None
  except TypeError as error:
    raise ConfigError(f'{path}: {error}') from error


def as_dict(built: Any) -> dict[str, Any]:
  """The dataclass as JSON-ready nested dicts, for checkpoints and reports."""
  return dataclasses.asdict(built)


def nearest(name: str, known: Sequence[str]) -> str:
  """The end of a message about an unknown name: the known one that comes closest, or all of them."""
  near = difflib.get_close_matches(name, known, 1, 0.5)
  return f'did you mean {near[0]!r}?' if near else f'known: {", ".join(known)}'


def require(holds: bool, message: str) -> None:
  """Raises ConfigError(message) unless `holds`; for checks in `__post_init__`."""
  if not holds:
    raise ConfigError(message)


def _has_default(field: dataclasses.Field) -> bool:
  return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _default(cls: type, field: dataclasses.Field) -> Any:
  if field.default is not dataclasses.MISSING:
    return field.default
  if field.default_factory is not dataclasses.MISSING:
    return field.default_factory()
  raise TypeError(f'{cls.__name__}.{field.name} has no default')


def _completed(default: Any, value: Any) -> Any:
  """A group of settings with what it leaves out as in the default, at every depth; any other value as it is."""
  if isinstance(default, type) or not dataclasses.is_dataclass(default):
    return value
  if not isinstance(value, Mapping | ml_collections.ConfigDict):
    return value
  whole = {field.name: getattr(default, field.name) for field in dataclasses.fields(default)}
  return whole | {key: _completed(whole.get(key), part) for key, part in value.items()}


def defaults_of(instance: Any) -> ml_collections.ConfigDict:
  """A ConfigDict with the values that a dataclass instance holds."""
  return _plain_group(type(instance), lambda field: getattr(instance, field.name))


def _plain_group(cls: type, value_of: Callable[[dataclasses.Field], Any]) -> ml_collections.ConfigDict:
  hints, out = typing.get_type_hints(cls), ml_collections.ConfigDict()
  for field in dataclasses.fields(typing.cast(Any, cls)):
    value = value_of(field)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
      value = defaults_of(value)
    # Of a bare None nobody knows what a text on the command line would have to become.
    out[field.name] = _absent(hints[field.name]) if value is None else value
  return out


def _absent(hint: Any) -> Any:
  """None that remembers which type of value may take its place."""
  kinds = {type(typing.get_args(arg)[0]) if typing.get_args(arg) else arg for arg in typing.get_args(hint)}
  kinds &= {int, float, str}
  return config_dict.placeholder(kinds.pop()) if len(kinds) == 1 else None


def _convert(hint: Any, value: Any, path: str) -> Any:
  origin, args = typing.get_origin(hint), typing.get_args(hint)
  if dataclasses.is_dataclass(hint) and isinstance(hint, type):
    if isinstance(value, hint):
      return value
    _expect(isinstance(value, Mapping | ml_collections.ConfigDict), value, path, 'a group of settings')
    return build(hint, value, path=path)
  if origin in (types.UnionType, typing.Union):
    return _convert_union(args, value, path)
  if origin is tuple:
    _expect(isinstance(value, Sequence) and not isinstance(value, str), value, path, 'a sequence')
    return tuple(_convert(args[0], item, f'{path}[{i}]') for i, item in enumerate(value))
  if origin is typing.Literal:
    _expect(value in args, value, path, f'one of {", ".join(map(repr, args))}')
    return value
  if hint is float:
    _expect(isinstance(value, int | float) and not isinstance(value, bool), value, path, 'a number')
    return float(value)
  if hint is int:
    _expect(isinstance(value, int) and not isinstance(value, bool), value, path, 'a whole number')
    return value
  if origin is dict or hint is dict or origin is Mapping:
    _expect(isinstance(value, Mapping | ml_collections.ConfigDict), value, path, 'a group of settings')
    return value.to_dict() if isinstance(value, ml_collections.ConfigDict) else dict(value)
  if isinstance(hint, type):
    _expect(isinstance(value, hint), value, path, hint.__name__)
  return value


def _convert_union(args: tuple[Any, ...], value: Any, path: str) -> Any:
  if value is None and type(None) in args:
    return None
  failures = []
  for arg in args:
    if arg is type(None):
      continue
    try:
      return _convert(arg, value, path)
    except ConfigError as error:
      failures.append(str(error))
  raise ConfigError(failures[0])


def _expect(holds: bool, value: Any, path: str, wanted: str) -> None:
  if not holds:
    raise ConfigError(f'{path} is {value!r} ({type(value).__name__}); it takes {wanted}')
