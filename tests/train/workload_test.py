"""The largest mini-batch of a run, laid out and counted."""

import numpy as np
import pytest

from slca_jax.nn.sharding import make_mesh
from slca_jax.train.workload import Workload, abstract_batch, turns_of_loops, visited


def work(**changes):
  """4 groups of 4: prompts of 256 tokens, responses of 128."""
  usual = dict(groups=4, group_size=4, prompt=256, response=128, leaves=1, turns=3, chunk=64)
  return Workload(**usual | changes)


@pytest.mark.parametrize(('leaves', 'length', 'rows'), [(1, 384, 16), (2, 512, 8), (4, 768, 4), (3, 640, 8)])
def test_responses_of_a_row_share_one_prompt(leaves, length, rows):
  found = work(leaves=leaves)
  assert (found.length, found.rows()) == (length, rows)


def test_rows_end_on_a_whole_tile():
  assert work(prompt=250, response=100).length == 384


@pytest.mark.parametrize('leaves', [1, 2, 4])
def test_what_is_needed_does_not_depend_on_the_layout(leaves):
  needed = work(groups=1, group_size=2, prompt=3, response=2, leaves=leaves).needed
  # 1+2+3 pairs in the prompt; each response sees the prompt twice and 1+2 of its own.
  assert (needed.tokens, needed.pairs, needed.sampled) == (3 + 2 * 2, 6 + 2 * (2 * 3 + 3), 4)


def test_pairs_are_those_that_the_mask_rule_shows():
  found = work(groups=1, group_size=3, prompt=5, response=4, leaves=3)
  row = {name: x[0] for name, x in found.row().items()}
  prompt, rollout, position = (row[f'{name}_BT'] for name in ('prompt', 'rollout', 'position'))
  same = (prompt[:, None] == prompt) & (prompt[:, None] >= 0) & (position <= position[:, None])
  assert (same & ((rollout == -1) | (rollout == rollout[:, None]))).sum() == found.needed.pairs


def test_loops_turn_as_often_as_the_batch_makes_them():
  turns = turns_of_loops(work(leaves=2), micro_rows=4, heads_per_key=3)
  assert turns['steps.py'] == 2  # 8 rows in fours
  assert turns['logprobs.py'] == 4  # 256 sampled tokens of a row in chunks of 64
  # Blocks of 128: the prompt's two see 1 and 2, the first response the prompt and itself, so does the second.
  assert turns['attention_blocks.py'] == (1 + 2 + 3 + 3) / 4
  # Blocks of 64: four of the prompt, then two of each response behind them.
  assert turns['attention_gpu.py'] == (1 + 2 + 3 + 4 + 2 * (5 + 6)) / 8
  assert turns['attention_gpu.py:_backward_keys'] == 3 * turns['attention_gpu.py']
  asked = turns_of_loops(work(leaves=2), micro_rows=4, heads_per_key=3, block=64)
  assert asked['attention_blocks.py'] == turns['attention_gpu.py']


def test_blocks_that_show_nothing_are_not_visited():
  # One block of 512 holds the prompt and two responses, the next two the others.
  found = work(group_size=4, prompt=512, response=512, leaves=4)
  # Five blocks: the prompt sees itself, every response the prompt and itself.
  assert visited(found) == pytest.approx((1 + 4 * 2) / 25)
  # Blocks of 256, two of each: the prompt's see 1 and 2, a response's first the prompt and itself, its second both.
  assert visited(found, block=256) == pytest.approx((1 + 2 + 4 * (3 + 4)) / 100)


def test_the_batch_has_the_shapes_of_a_real_one():
  batch = abstract_batch(work(leaves=2), make_mesh(tensor=2), micro_rows=4)
  assert batch.tokens_BT.shape == batch.sampled_BT.shape == (8, 512)
  assert batch.sampled_BT.dtype == np.bool_
  assert batch.rewards.turn_RK.shape == (16, 3)
  assert batch.tokens_BT.sharding.shard_shape((8, 512)) == (2, 512)
  assert batch.finished_R.sharding.shard_shape((16,)) == (16,)
