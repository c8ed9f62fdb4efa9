"""Plans of batches: what each device gets, and what is computed for nothing."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slca_jax.rollout.rows import cost, deal, plan
from slca_jax.rollout.settings import Layout
from slca_jax.rollout.trees import Response, Tree


def tree(rollout, prompt, response, learned=None):
  sampled = np.arange(response) < (response if learned is None else learned)
  zeros = np.zeros(response, np.int32)
  return Tree(np.zeros(prompt, np.int32), (Response(rollout, zeros, sampled, zeros.astype(np.float32)),))


def by_device(planned):
  size = len(planned.rows) // planned.shards
  return [planned.rows[start : start + size] for start in range(0, len(planned.rows), size)]


def test_cost_of_a_tree_counts_pairs_that_see_each_other_and_learned_tokens():
  # 4²/2 pairs inside the prompt, 2 tokens that see 4 + 2/2 on average, and 1 learned token of 2,400 pairs.
  assert cost([tree(0, 4, 2, learned=1)]) == 8 + 10 + 2400
  assert cost([]) == 0


def test_what_is_computed_for_nothing_by_hand():
  # Two rows of 10 tokens hold 8 and 4, of them 3 and 1 learned; a micro-batch has 4 rows, so 40 tokens are computed.
  numbers = plan([tree(0, 4, 4, 3), tree(1, 3, 1)], Layout((10,), 4)).numbers()
  assert numbers['rows/count'] == 2 and numbers['rows/length'] == 10
  assert numbers['rows/filled'] == pytest.approx(12 / 40) and numbers['rows/padding'] == pytest.approx(8 / 40)
  assert numbers['rows/empty'] == pytest.approx(20 / 40) and numbers['rows/learnable'] == pytest.approx(4 / 40)
  assert numbers['rows/imbalance'] == 1


def test_rows_are_dealt_so_that_devices_have_equal_work_in_every_micro_batch():
  # Eight rows of learned sizes 8 … 1 over 2 devices, 4 at once: 8+5 | 7+6, then 4+1 | 3+2.
  rows = [[tree(i, 1, 8 - i)] for i in range(8)]
  planned = deal(rows, 16, 4, 8, shards=2)
  learned = [[row[0].sampled for row in device] for device in by_device(planned)]
  assert learned == [[8, 5, 4, 1], [7, 6, 3, 2]]
  assert planned.micro_batches == 2 and planned.numbers()['rows/imbalance'] == pytest.approx(1, abs=1e-3)


def test_slowest_device_shows_as_imbalance():
  # One row for two devices: the other one waits all the time.
  assert deal([[tree(0, 1, 4)]], 8, 2, 2, shards=2).numbers()['rows/imbalance'] == 2


def test_plan_does_not_depend_on_where_trees_come_from_and_no_trees_make_an_empty_one():
  empty = plan([], Layout((8,), 4), shards=2)
  assert not any(empty.rows) and empty.numbers()['rows/filled'] == 0 and empty.numbers()['rows/imbalance'] == 1


@given(st.lists(st.integers(1, 12), min_size=1, max_size=40), st.sampled_from([1, 2, 4]))
def test_every_tree_has_one_row_and_rows_in_use_come_first_on_every_device(sizes, shards):
  planned = plan([tree(i, 2, size) for i, size in enumerate(sizes)], Layout((16, 32), 4), shards=shards)
  found = sorted(one.responses[0].rollout for row in planned.rows for one in row)
  assert found == list(range(len(sizes)))
  assert all(sum(one.size for one in row) <= planned.length for row in planned.rows)
  share = planned.micro_rows // planned.shards
  for device in by_device(planned):
    used = [any(device[start : start + share]) for start in range(0, len(device), share)]
    assert used == sorted(used, reverse=True)
