"""The door: layout of rows, packing, and what happens to rollouts that failed."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slca_jax.dialogue import Parsed, Scores, Status, Task, Trajectory, Turn
from slca_jax.errors import DataError
from slca_jax.nn import sharding
from slca_jax.rollout import batching, rows
from slca_jax.rollout.settings import Layout

TASK = Task('t', (), ())


def turn(tokens, reply=()):
  return Turn(tuple(tokens), tuple(-0.25 * (i + 1) for i in range(len(tokens))), '', Parsed(), reply=tuple(reply))


def trajectory(group, index, prompt, *turns, status=Status.FINISHED):
  return Trajectory(TASK, group, index, tuple(prompt), turns, status)


def batch_of(trajectories, lengths=(32,), micro_rows=1, **options):
  scores = [Scores(tool=0.5, summary=None, outcome=1.0, turns=(1.0,)) for _ in trajectories]
  return batching.to_batch(trajectories, scores, Layout(lengths, micro_rows), turns=3, **options)


def test_row_of_one_rollout_is_what_was_sampled_and_what_the_world_wrote():
  # 1/2 = im_start/im_end, 3 = newline, 5/6 = user/assistant, 7/8 = tool_response tags
  prompt = [1, 5, 3, 10, 2, 3, 1, 6, 3]
  first = turn([20, 21, 2], reply=[3, 1, 5, 3, 7, 30, 8, 2, 3, 1, 6, 3])
  batch = batch_of([trajectory(0, 0, prompt, first, turn([22, 2]))], lengths=(26,))
  row = [1, 5, 3, 10, 2, 3, 1, 6, 3, 20, 21, 2, 3, 1, 5, 3, 7, 30, 8, 2, 3, 1, 6, 3, 22, 2]
  np.testing.assert_array_equal(batch.tokens_BT, [row])
  np.testing.assert_array_equal(np.flatnonzero(batch.sampled_BT[0]), [9, 10, 11, 24, 25])
  np.testing.assert_array_equal(batch.position_BT, [np.arange(26)])
  np.testing.assert_array_equal(batch.source_BT[0, 9:], np.arange(8, 25))
  np.testing.assert_allclose(batch.sampler_logp_BT[0, [9, 10, 11, 12, 24, 25]], [-0.25, -0.5, -0.75, 0, -0.25, -0.5])


def test_siblings_share_their_prompt_and_two_trees_share_a_row():
  rollouts = [
    trajectory(0, 0, [9, 9, 9], turn([1, 2])),
    trajectory(0, 1, [9, 9, 9], turn([3])),
    trajectory(1, 0, [8, 8], turn([4, 5])),
  ]
  batch = batch_of(rollouts, lengths=(12,))
  np.testing.assert_array_equal(batch.tokens_BT, [[9, 9, 9, 1, 2, 3, 8, 8, 4, 5, 0, 0]])
  np.testing.assert_array_equal(batch.prompt_BT, [[0, 0, 0, 0, 0, 0, 1, 1, 1, 1, -1, -1]])
  np.testing.assert_array_equal(batch.rollout_BT, [[-1, -1, -1, 0, 0, 1, -1, -1, 2, 2, -1, -1]])
  np.testing.assert_array_equal(batch.position_BT, [[0, 1, 2, 3, 4, 3, 0, 1, 2, 3, 0, 0]])
  np.testing.assert_array_equal(batch.source_BT[0, [3, 4, 5, 8, 9]], [2, 3, 2, 7, 8])


def test_absent_scores_are_nan_and_groups_are_counted_from_zero():
  batch = batch_of([trajectory(7, 0, [9], turn([1])), trajectory(4, 0, [9], turn([1]), status=Status.OUT_OF_TOKENS)])
  assert np.isnan(batch.rewards.summary_R).all()
  np.testing.assert_array_equal(batch.rewards.group_R, [0, 1])
  np.testing.assert_array_equal(batch.finished_R, [True, False])
  np.testing.assert_array_equal(batch.rewards.turn_RK[0], [1.0, np.nan, np.nan])


def test_failed_rollouts_leave_no_token_and_a_batch_of_them_is_empty_but_whole():
  failed = [trajectory(0, i, [9, 9], turn([1, 2]), status=Status.FAILED) for i in range(3)]
  batch = batch_of(failed)
  assert not batch.sampled_BT.any() and (batch.prompt_BT == -1).all() and batch.rewards.group_R.shape == (3,)
  mixed = batch_of([*failed, trajectory(0, 3, [9, 9], turn([5]))])
  assert mixed.sampled_BT.sum() == 1 and mixed.rollout_BT.max() == 3


def test_tree_longer_than_a_row_repeats_its_prompt():
  batch = batch_of([trajectory(0, i, [9, 9], turn([i + 1] * 3)) for i in range(3)], lengths=(8,), micro_rows=2)
  np.testing.assert_array_equal(batch.tokens_BT, [[9, 9, 1, 1, 1, 2, 2, 2], [9, 9, 3, 3, 3, 0, 0, 0]])


def test_a_group_is_cut_into_few_rows():
  """Behind a prompt of 2 a row of 8 has room for 6: 4 + 2 and 3 + 3; as they come they would need three rows."""
  rollouts = [trajectory(0, i, [9, 9], turn([i + 1] * size)) for i, size in enumerate((3, 4, 3, 2))]
  batch = batch_of(rollouts, lengths=(8,), micro_rows=2)
  np.testing.assert_array_equal(batch.tokens_BT, [[9, 9, 2, 2, 2, 2, 4, 4], [9, 9, 1, 1, 1, 3, 3, 3]])


def test_rollout_longer_than_the_longest_row_is_refused_with_both_lengths():
  with pytest.raises(DataError, match='prompt of 2 tokens and a response of 9 exceed the row length 10'):
    batch_of([trajectory(0, 0, [9, 9], turn([1] * 9))], lengths=(4, 10))


def test_siblings_with_different_prompts_are_refused():
  with pytest.raises(DataError, match='group 0'):
    batch_of([trajectory(0, 0, [9], turn([1])), trajectory(0, 1, [8], turn([1]))])


def test_row_length_with_fewest_tokens_is_chosen():
  rollouts = [trajectory(i, 0, [9] * 3, turn([1] * 3)) for i in range(4)]
  assert batch_of(rollouts, lengths=(6, 12, 100)).tokens_BT.shape == (4, 6)
  assert batch_of(rollouts, lengths=(7, 12, 100)).tokens_BT.shape == (2, 12)


def test_rows_are_micro_batches_times_a_power_of_two():
  assert [rows.padded_rows(n, 4) for n in (0, 1, 4, 5, 8, 9, 13, 16, 17)] == [4, 4, 4, 8, 8, 16, 16, 16, 32]


@settings(deadline=None, max_examples=60)
@given(
  st.lists(st.tuples(st.integers(1, 6), st.lists(st.integers(1, 9), min_size=1, max_size=5)), max_size=6), st.booleans()
)
def test_packing_keeps_every_token_of_every_rollout_once(groups, shared):
  rollouts = [
    trajectory(g, i, range(100 * g + 1, 100 * g + 1 + prompt), turn([1000 * g + 10 * i + j for j in range(size)]))
    for g, (prompt, sizes) in enumerate(groups)
    for i, size in enumerate(sizes)
  ]
  batch = batch_of(rollouts, lengths=(16, 24), micro_rows=2, shared=shared)
  for r, one in enumerate(rollouts):
    here = batch.rollout_BT == r
    np.testing.assert_array_equal(batch.tokens_BT[here], one.turns[0].tokens)
    rows = np.flatnonzero(here.any(1))
    assert len(rows) == 1
    sources = batch.source_BT[here]
    before = batch.tokens_BT[rows[0]][sources]
    np.testing.assert_array_equal(before, [one.prompt[-1], *one.turns[0].tokens[:-1]])
  assert batch.sampled_BT.sum() == sum(len(one.turns[0].tokens) for one in rollouts)


def test_rows_lie_over_the_mesh_and_rewards_everywhere():
  mesh = sharding.make_mesh(data=4, fsdp=2)
  where = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(sharding.ROWS))
  batch = batch_of([trajectory(i, 0, [9], turn([1])) for i in range(5)], micro_rows=8, sharding=where)
  assert batch.tokens_BT.sharding == where and batch.tokens_BT.shape == (8, 32)
  assert batch.rewards.tool_R.sharding.is_fully_replicated
