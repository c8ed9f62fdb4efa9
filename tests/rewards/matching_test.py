"""Laws of loose equality and of matching predicted calls with gold calls."""

import json
import math

import hypothesis
import pytest
from hypothesis import strategies as st

from slca_jax.chat.loose import loosely_equal
from slca_jax.dialogue import ToolCall
from slca_jax.rewards.matching import all_covered, covers, key_score, match, name_f1, value_score


def call(name='f', **arguments):
  return ToolCall(name, arguments)


@pytest.mark.parametrize(
  ('a', 'b'),
  [
    ('New  York', ' new york\n'),
    ('STRASSE', 'straße'),
    (3, 3.0),
    (3, '3'),
    (3.0, ' 3 '),
    (3, '3.0'),
    (1.5, '1.50'),
    (-2, '-2'),
    (1000.0, '1e3'),
    (12345678901234567890, '12345678901234567890'),
    (True, 'True'),
    (False, 'false'),
    (True, True),
    (None, None),
    ([1, 'A'], ['1', ' a']),
    ((1, 2), [1, 2]),
    ({'x': [1, {'y': 'B'}]}, {'x': ['1', {'y': 'b '}]}),
    ({'x': 1, 'y': 2}, {'y': 2, 'x': 1}),
    ([], []),
  ],
)
def test_the_same_in_other_words_is_equal(a, b):
  assert loosely_equal(a, b) and loosely_equal(b, a)


@pytest.mark.parametrize(
  ('a', 'b'),
  [
    (1, True),
    (0, False),
    (1.0, True),
    ('1', True),
    ('yes', True),
    (None, 'null'),
    (None, ''),
    (None, False),
    (None, 0),
    ([1, 2], [2, 1]),
    ([1], [1, 1]),
    ([1], 1),
    ([1], '[1]'),
    ({'x': 1}, {'x': 1, 'y': None}),
    ({'x': 1}, {'X': 1}),
    ({}, []),
    (3, '3 apples'),
    (3, 'three'),
    (1000, '1,000'),
    (12345678901234567890, '12345678901234567891'),
    ('a b', 'ab'),
    (math.nan, math.nan),
    (math.nan, 'nan'),
    (math.inf, 'inf'),
  ],
)
def test_what_says_something_else_is_not_equal(a, b):
  assert not loosely_equal(a, b) and not loosely_equal(b, a)


def test_deep_values_compare_without_recursion():
  a, b = 1, '1'
  for _ in range(50_000):
    a, b = [a], [b]
  assert loosely_equal(a, b)


def test_huge_numerals_are_no_trouble():
  assert not loosely_equal(1, '9' * 5000)


def test_name_f1_counts_multiplicity():
  # two of three predictions meet the gold pair: 2 * 2 / (3 + 2)
  assert name_f1([call('a'), call('b'), call('b')], [call('b'), call('b')]) == pytest.approx(0.8)
  assert name_f1([call('a'), call('a')], [call('a')]) == pytest.approx(2 / 3)
  assert name_f1([], []) == 1.0
  assert name_f1([call('a')], []) == 0.0


def test_keys_are_a_jaccard_and_values_a_share_of_the_gold():
  predicted, gold = call(x=1, y=2, extra=0), call(x='1', y=3)
  assert key_score(predicted, gold) == pytest.approx(2 / 3)
  assert value_score(predicted, gold) == 0.5


def test_a_gold_call_takes_the_best_unused_call_of_its_name():
  calls = [call('g', x=1), call('f', x=9), call('f', x=1)]
  pairs = match(calls, [call('f', x=1), call('f', x=1), call('f', x=1)])
  assert [pair.call for pair in pairs] == [calls[2], calls[1], None]
  assert [(pair.key, pair.value) for pair in pairs] == [(1.0, 1.0), (1.0, 0.0), (0.0, 0.0)]


def test_ties_go_to_the_earliest_call():
  first, second = call(x=5), call(x=6)
  assert match([first, second], [call(x=1)])[0].call is first


def test_covering_allows_more_arguments_but_not_fewer():
  assert covers(call(x='1', y=2), call(x=1))
  assert not covers(call(x=1), call(x=1, y=2))
  assert not covers(call('g', x=1), call('f', x=1))


def test_covering_finds_the_assignment_that_greed_would_miss():
  # the first gold call would greedily take the only call that covers the second
  assert all_covered([call(a=1, b=2), call(a=1)], [call(a=1), call(a=1, b=2)])
  assert not all_covered([call(a=1, b=2)], [call(a=1), call(a=1, b=2)])
  assert all_covered([], [])


JSON = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
  lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
  max_leaves=8,
)


@hypothesis.given(JSON, JSON)
def test_equality_is_reflexive_symmetric_and_never_raises(a, b):
  assert loosely_equal(a, a) and loosely_equal(b, b)
  assert loosely_equal(a, b) == loosely_equal(b, a)


@hypothesis.given(st.integers() | st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_equals_what_json_prints_of_it(number):
  assert loosely_equal(number, json.dumps(number))
