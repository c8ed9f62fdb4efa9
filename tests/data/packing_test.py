"""Rows planned from sizes: full, each item once, and the same from wherever a run goes on."""

import collections
import random

import pytest

from slca_jax.data.packing import RowPlan, best_fit
from slca_jax.errors import DataError


def like_toucan(count, *, seed=0):
  """Sizes whose logarithm is normal: most prompts have thousands of tokens, some fill a row."""
  rng = random.Random(seed)
  return [min(16384, max(300, int(rng.lognormvariate(8.41, 0.6)))) for _ in range(count)]


def plan_of(sizes, **changes):
  return RowPlan(sizes, **{'length': 16384, 'rows': 8, 'window': 1024, 'seed': 0, **changes})


def test_the_largest_come_first_each_into_the_fullest_row_that_has_room():
  # 9 and 8 open rows with room for 1 and 2; neither 3 fits, so they open a third; 2 fills the second row, 1 the first.
  assert best_fit([3, 8, 1, 9, 2, 3], 10) == [[3, 2], [1, 4], [0, 5]]
  assert best_fit([], 10) == []


def test_what_fits_no_row_is_refused_by_number_and_size():
  with pytest.raises(DataError, match='item 1 has 11 tokens and fits no row of 10'):
    best_fit([10, 11], 10)


def test_rows_on_lengths_like_toucans_are_full():
  sizes = like_toucan(4096)
  steps = plan_of(sizes).steps(1)
  assert sum(sizes) / (steps * 8 * 16384) > 0.98


def test_every_epoch_holds_each_item_once_and_no_row_overflows():
  sizes = like_toucan(300)
  sizes[7] = sizes[8] = 0  # left out
  plan = plan_of(sizes, rows=1, window=64)
  epochs = [plan.steps(1), plan.steps(2)]
  rows = [plan(step)[0] for step in range(epochs[1])]
  for epoch in (rows[: epochs[0]], rows[epochs[0] :]):
    assert collections.Counter(index for row in epoch for index in row) == dict.fromkeys(set(range(300)) - {7, 8}, 1)
  assert max(sum(sizes[index] for index in row) for row in rows) <= 16384
  assert rows[: epochs[0]] != rows[epochs[0] :]


def test_a_step_is_the_same_whatever_was_asked_before():
  sizes = like_toucan(200)
  whole = plan_of(sizes, window=50)
  steps = [whole(step) for step in range(30)]  # several epochs, batches across their borders
  assert whole.steps(1) < 15
  for step in (29, 0, 17):
    assert plan_of(sizes, window=50)(step) == steps[step]
  assert whole(3) == steps[3]
  assert plan_of(sizes, window=50, seed=1)(0) != steps[0]


def test_no_batch_holds_more_than_the_bound():
  sizes = like_toucan(500)
  plan = plan_of(sizes)
  assert max(sum(map(len, plan(step))) for step in range(plan.steps(1))) <= plan.most_per_batch
  assert plan_of([1, 1, 2, 5], length=4 + 1, rows=2).most_per_batch == 2 * 3


def test_nothing_to_train_on_is_said():
  with pytest.raises(DataError, match='not one of'):
    plan_of([0, 0])
