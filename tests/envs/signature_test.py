"""Laws of tools made from functions."""

from typing import Any, Literal

import pytest

from slca_jax.envs.signature import tool_from_function


def book(database, city: str, nights: int = 1, rate: float | None = None, kind: Literal['single', 'double'] = 'single',
         guests: list[str] = (), extra: dict[str, bool] | None = None, note: Any = None) -> dict:  # type: ignore  # fmt: skip
  """Books a room.

  The cheapest one that is free.

  Args:
    city: where to sleep, with
      its country.
    nights (int): how many nights.

  Returns:
    The booking.

  Raises:
    ValueError: nothing is free.
  """
  del database


def test_the_signature_is_the_schema():
  tool = tool_from_function(book, writes=True)
  assert (tool.name, tool.description, tool.writes) == ('book', 'Books a room. The cheapest one that is free.', True)
  assert tool.returns == {'type': 'object'}
  assert tool.parameters == {
    'type': 'object',
    'properties': {
      'city': {'type': 'string', 'description': 'where to sleep, with its country.'},
      'nights': {'type': 'integer', 'description': 'how many nights.', 'default': 1},
      'rate': {'anyOf': [{'type': 'number'}, {'type': 'null'}]},
      'kind': {'type': 'string', 'enum': ['single', 'double'], 'default': 'single'},
      'guests': {'type': 'array', 'items': {'type': 'string'}, 'default': ()},
      'extra': {'anyOf': [{'type': 'object', 'additionalProperties': {'type': 'boolean'}}, {'type': 'null'}]},
      'note': {},
    },
    'required': ['city'],
  }


def test_a_function_without_docstring_and_parameters_is_a_tool():
  def now(database):
    return database

  tool = tool_from_function(now)
  assert (tool.description, tool.returns) == ('', None)
  assert tool.parameters == {'type': 'object', 'properties': {}, 'required': []}


def untyped(database, x):
  return database, x


def variadic(database, *xs: int):
  return database, xs


def exotic(database, x: complex):
  return database, x


@pytest.mark.parametrize('function', [untyped, variadic, exotic])
def test_a_parameter_without_a_json_type_is_refused_by_name(function):
  with pytest.raises(TypeError, match=rf'{function.__name__}\(xs?\)'):
    tool_from_function(function)
