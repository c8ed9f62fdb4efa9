"""Which blocks have to be looked at, and the rule as splash attention gets it."""

import jax
import jax.numpy as jnp
import numpy as np
from trees import all_pairs, every_kind, rows

from slca_jax.nn.visibility import HALF, LONGEST, Ids, reach, visible_blocks, walk


def test_no_visible_pair_of_blocks_is_skipped_and_causal_ones_are():
  rng = np.random.default_rng(5)
  for _ in range(20):
    ids_T = Ids(*(x[0] for x in rows(rng, 1, 32)))
    shuffled = Ids(*(x[rng.permutation(32) if rng.random() < 0.5 else slice(None)] for x in ids_T))
    blocks = Ids(*(jnp.asarray(x).reshape(1, 8, 4) for x in shuffled))
    plan = jax.jit(lambda ids: walk(visible_blocks(ids, ids)))(blocks)
    truth_IJ = np.asarray(all_pairs(shuffled)).reshape(8, 4, 8, 4).any((1, 3))
    for i in range(8):
      assert set(np.flatnonzero(truth_IJ[i])) <= set(np.asarray(plan.order_BIJ)[0, i, : plan.count_BI[0, i]].tolist())
  causal = Ids(jnp.zeros((1, 8, 4), int), jnp.full((1, 8, 4), -1), jnp.arange(32).reshape(1, 8, 4))
  np.testing.assert_array_equal(walk(visible_blocks(causal, causal)).count_BI[0], np.arange(1, 9))


def test_siblings_skip_each_other():
  # A prompt of two blocks and four responses of one block: each looks at the prompt and at itself.
  rollout = jnp.array([-1, -1, 3, 4, 5, 6])[None, :, None].repeat(4, -1)
  position = jnp.concatenate([jnp.arange(8), jnp.tile(jnp.arange(8, 12), 4)]).reshape(1, 6, 4)
  ids = Ids(jnp.zeros_like(rollout), rollout, position)
  np.testing.assert_array_equal(walk(visible_blocks(ids, ids)).count_BI[0], [1, 2, 3, 3, 3, 3])


def test_what_a_query_reaches_by_index_is_what_it_sees():
  for seed in range(5):
    for ids_T in zip(*every_kind(np.random.default_rng(seed), 64), strict=True):
      start_T, stem_end_T = np.asarray(reach(Ids(*ids_T))) >> HALF, np.asarray(reach(Ids(*ids_T))) & LONGEST
      prompt_T, key_T = np.asarray(ids_T[0]), np.arange(64)
      tree_TT = (prompt_T[:, None] == prompt_T) & (prompt_T >= 0)
      by_index_TT = (key_T <= key_T[:, None]) & ((key_T < stem_end_T[:, None]) | (key_T >= start_T[:, None]))
      np.testing.assert_array_equal(tree_TT & by_index_TT, all_pairs(Ids(*ids_T)))


def test_reach_by_hand():
  # p p  a a  b  q  c: runs start at 0, 2, 4, 5, 6; the first responses of the trees at 2 and 6.
  ids = Ids(*(jnp.array(x) for x in ([0, 0, 0, 0, 0, 1, 1], [-1, -1, 0, 0, 1, -1, 2], [0, 1, 2, 3, 2, 0, 1])))
  np.testing.assert_array_equal(reach(ids) >> HALF, [0, 0, 2, 2, 4, 5, 6])
  np.testing.assert_array_equal(reach(ids) & LONGEST, [0, 0, 2, 2, 2, 2, 6])
