"""Settings: strict in both directions, and each refusal names the key."""

import dataclasses
from typing import Literal

import ml_collections
import pytest

from slca_jax.config import as_dict, build, defaults, require
from slca_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True)
class Inner:
  rate: float = 0.5
  kind: Literal['a', 'b'] = 'a'

  def __post_init__(self):
    require(self.rate > 0, f'rate is {self.rate}; it must be positive')


@dataclasses.dataclass(frozen=True)
class Outer:
  steps: int = 3
  name: str = 'x'
  cap: float | None = None
  lengths: tuple[int, ...] = (1, 2)
  options: dict = dataclasses.field(default_factory=dict)
  inner: Inner = dataclasses.field(default_factory=Inner)


@dataclasses.dataclass(frozen=True)
class Middle:
  depth: int = 1
  inner: Inner = dataclasses.field(default_factory=Inner)


@dataclasses.dataclass(frozen=True)
class Outermost:
  middle: Middle = Middle(2, Inner(0.9, 'b'))


def test_what_a_group_leaves_out_is_as_in_the_default_of_its_place():
  assert build(Outermost, {'middle': {}}) == Outermost()
  assert build(Outermost, {'middle': {'inner': {'kind': 'a'}}}) == Outermost(Middle(2, Inner(0.9, 'a')))
  with pytest.raises(ConfigError, match=r'config\.middle\.inner\.rat is not a setting'):
    build(Outermost, {'middle': {'inner': {'rat': 1.0}}})


def test_defaults_build_back_to_the_same():
  assert build(Outer, defaults(Outer)) == Outer()
  assert as_dict(Outer())['inner'] == {'rate': 0.5, 'kind': 'a'}


def test_settings_that_are_none_keep_their_type_for_the_command_line():
  known = defaults(Outer)
  assert known.cap is None and known.get_type('cap') is float
  known.cap = 2
  assert build(Outer, known).cap == 2.0
  with pytest.raises(TypeError):
    known.cap = 'much'


@pytest.mark.parametrize(
  ('change', 'says'),
  [
    ({'stepz': 1}, "config.stepz is not a setting; did you mean 'steps'?"),
    ({'inner': {'rat': 1.0}}, "config.inner.rat is not a setting; did you mean 'rate'?"),
    ({'steps': 1.5}, 'config.steps is 1.5 (float); it takes a whole number'),
    ({'steps': True}, 'config.steps is True (bool); it takes a whole number'),
    ({'inner': {'rate': '1'}}, "config.inner.rate is '1' (str); it takes a number"),
    ({'inner': {'kind': 'c'}}, "config.inner.kind is 'c' (str); it takes one of 'a', 'b'"),
    ({'inner': {'rate': -1}}, 'config.inner: rate is -1.0; it must be positive'),
    ({'lengths': 'ab'}, "config.lengths is 'ab' (str); it takes a sequence"),
    ({'lengths': [1, 'b']}, "config.lengths[1] is 'b' (str); it takes a whole number"),
    ({'cap': 'big'}, "config.cap is 'big' (str); it takes a number"),
    ({'inner': 3}, 'config.inner is 3 (int); it takes a group of settings'),
  ],
)
def test_mistake_is_named_with_its_path(change, says):
  with pytest.raises(ConfigError) as caught:
    build(Outer, change)
  assert says in str(caught.value)


def test_whole_numbers_are_numbers_and_lists_are_sequences():
  built = build(Outer, ml_collections.ConfigDict({'cap': 2, 'lengths': [4, 5], 'options': {'a': 1}}))
  assert built.cap == 2.0 and built.lengths == (4, 5) and built.options == {'a': 1}
