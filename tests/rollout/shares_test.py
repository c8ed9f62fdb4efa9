"""What hosts bring to a batch: it travels whole, and all of it together is what one host would have had."""

import jax
import numpy as np
import pytest

from slca_jax.dialogue import Parsed, Scores, Status, Task, Trajectory, Turn
from slca_jax.rollout.batching import assemble, to_batch, to_share
from slca_jax.rollout.settings import Layout
from slca_jax.rollout.shares import from_bytes, join, to_bytes

GROUPS, SIZE, LAYOUT = 5, 2, Layout((24,), 2)


def trajectory(group, index, status=Status.FINISHED):
  tokens = tuple(range(10 * group + index + 1, 10 * group + index + 3 + group))
  turn = Turn(tokens, (-0.5,) * len(tokens), '', Parsed(), reply=(99,))
  return Trajectory(Task('t', (), ()), group, index, (7, 8, group), (turn,), status)


def scored(*failed):
  pairs = []
  for group in range(GROUPS):
    for index in range(SIZE):
      status = Status.FAILED if group in failed else Status.FINISHED
      scores = Scores(group + index / 2, None if group == 1 else 0.25, 1.0, (0.5, float(index)), guarded=group == 2)
      pairs.append((trajectory(group, index, status), scores))
  return pairs


def share_of(pairs, groups):
  own = [(t, s) for t, s in pairs if t.group in groups]
  return to_share(
    [t for t, _ in own],
    [s for _, s in own],
    turns=3,
    rollouts=[t.group * SIZE + t.index for t, _ in own],
    groups=[t.group for t, _ in own],
    size=GROUPS * SIZE,
  )


def same(a, b):
  jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.parametrize('failed', [(), (1, 3)])
@pytest.mark.parametrize('split', [[(0, 2, 4), (1, 3)], [(0, 1, 2, 3, 4), ()], [(4,), (), (3, 0), (2, 1)]])
def test_uneven_hosts_and_hosts_without_a_usable_rollout_make_the_batch_of_one(failed, split):
  pairs = scored(*failed)
  whole = to_batch([t for t, _ in pairs], [s for _, s in pairs], LAYOUT, turns=3)
  batch, _ = assemble(join([share_of(pairs, groups) for groups in split]), LAYOUT, None)
  same(batch, whole)


def test_shares_come_back_from_bytes_as_they_were():
  pairs = scored(3)
  shares = [share_of(pairs, (0, 3)), share_of(pairs, ()), share_of(pairs, (3,))]
  again = from_bytes(to_bytes(shares))
  assert len(again) == 3 and from_bytes(to_bytes([])) == []
  for ours, theirs in zip(shares, again, strict=True):
    same(ours.rewards, theirs.rewards)
    np.testing.assert_array_equal(ours.finished_R, theirs.finished_R)
    same(assemble(ours, LAYOUT, None)[0], assemble(theirs, LAYOUT, None)[0])
