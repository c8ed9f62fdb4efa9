"""A function is asked once for each object, and never answers for one with what it said of another."""

import pytest

from slca_jax.data.remembered import Remembered


def test_a_function_is_called_once_for_each_object_however_alike_they_are():
  asked = []
  size = Remembered(lambda item: asked.append(item) or len(item), most=9)
  one, other = [1, 2], [1, 2]
  assert [size(one), size(other), size(one)] == [2, 2, 2]
  assert asked[0] is one and asked[1] is other and len(asked) == 2


def test_objects_that_are_gone_leave_their_place_to_no_other():
  total = Remembered(sum, most=3)
  assert [total([number]) for number in range(1000)] == list(range(1000))


def test_what_is_raised_is_raised_again():
  first = Remembered(lambda item: item[0], most=3)
  empty = []
  for _ in range(2):
    with pytest.raises(IndexError):
      first(empty)
