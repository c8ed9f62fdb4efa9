"""The mask rule by hand, and both backends against it: values, gradients, padding, blocks skipped."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slca_jax.nn import attention
from slca_jax.nn.attention import attend
from slca_jax.nn.visibility import Ids, sees, visible_blocks, walk

# p p p  a a  b b  q q  c  .
PROMPT = np.array([0, 0, 0, 0, 0, 0, 0, 1, 1, 1, -1], np.int32)
ROLLOUT = np.array([-1, -1, -1, 7, 7, 8, 8, -1, -1, 9, -1], np.int32)
POSITION = np.array([0, 1, 2, 3, 4, 3, 4, 0, 1, 2, 0], np.int32)
SEEN = [
  '10000000000',
  '11000000000',
  '11100000000',
  '11110000000',
  '11111000000',
  '11100100000',
  '11100110000',
  '00000001000',
  '00000001100',
  '00000001110',
  '00000000000',
]


@pytest.fixture(autouse=True)
def exact():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture
def small_blocks(monkeypatch):
  monkeypatch.setattr(attention, '_SHORT_BLOCK', 4)


def rows(rng, batch, length):
  """Random rows of trees with padding at the end, ids ascending as the door lays them out."""
  prompt, rollout, position = (np.full((batch, length), fill, np.int32) for fill in (-1, -1, 0))
  for b in range(batch):
    end, tree, branch = 0, 0, 0
    while True:
      stem = int(rng.integers(1, 9))
      leaves = [int(n) for n in rng.integers(1, 7, rng.integers(1, 4))]
      if end + stem + sum(leaves) > length:
        break
      prompt[b, end : end + stem + sum(leaves)] = tree
      position[b, end : end + stem] = range(stem)
      end += stem
      for leaf in leaves:
        rollout[b, end : end + leaf], position[b, end : end + leaf] = branch, range(stem, stem + leaf)
        end, branch = end + leaf, branch + 1
      tree += 1
  return Ids(prompt, rollout, position)


def tensors(seed, batch, length, heads=4, kv_heads=2, size=8):
  rng = np.random.default_rng(seed)
  shapes = [(batch, length, n, size) for n in (heads, kv_heads, kv_heads, heads)]
  return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def compiled(*args, backend):
  # Compiled afresh each time: the size of a block is no argument, and tests change it.
  return jax.jit(lambda *x: attend(*x, backend=backend))(*args)


def all_pairs(ids_T):
  return sees(Ids(*(x[:, None] for x in ids_T)), Ids(*(x[None, :] for x in ids_T)))


def test_sees_follows_the_worked_row():
  mask_TT = all_pairs(Ids(PROMPT, ROLLOUT, POSITION))
  assert [''.join(str(int(seen)) for seen in row) for row in mask_TT] == SEEN


@chex.variants(with_jit=True, without_jit=True)
class Attend(chex.TestCase):
  def test_one_query_head_by_hand(self):
    # Position 1 sees two keys whose scores differ by log 3, so it mixes their values as 1 : 3.
    q_BTNH = jnp.full((1, 2, 1, 2), np.sqrt(2))
    k_BTKH = jnp.array([[0.0, 0.0], [np.log(3), 0.0]])[None, :, None]
    v_BTKH = jnp.array([[4.0, 0.0], [0.0, 8.0]])[None, :, None]
    ids = Ids(jnp.zeros((1, 2), int), jnp.full((1, 2), -1), jnp.arange(2)[None])
    for backend in ('dense', 'blocks'):
      out_BTNH = self.variant(attend, static_argnames='backend')(q_BTNH, k_BTKH, v_BTKH, ids, backend=backend)
      np.testing.assert_allclose(out_BTNH[0, :, 0], [[4, 0], [1, 6]], rtol=1e-6)


@pytest.mark.parametrize('length', [32, 45])
def test_blocks_equal_dense_in_values_and_gradients(small_blocks, length):
  ids = rows(np.random.default_rng(length), 3, length)
  q, k, v, weight = tensors(length, 3, length)

  def loss(backend, q, k, v):
    out = attend(q, k, v, ids, backend=backend)
    return jnp.sum(out * weight), out

  run = jax.jit(jax.value_and_grad(loss, (1, 2, 3), has_aux=True), static_argnums=0)
  dense, blocks = run('dense', q, k, v), run('blocks', q, k, v)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5), blocks, dense)
  (_, out), _ = blocks
  assert not np.any(np.asarray(out)[ids.prompt < 0])


@pytest.mark.parametrize('backend', ['dense', 'blocks'])
def test_padding_yields_zeros_and_no_nan_gradient(small_blocks, backend):
  q, k, v, weight = tensors(0, 2, 9)
  nobody = Ids(*(np.full((2, 9), fill, np.int32) for fill in (-1, -1, 0)))

  @jax.jit
  def run(q, k, v):
    out, pull = jax.vjp(lambda *x: attend(*x, nobody, backend=backend), q, k, v)
    return out, pull(weight)

  assert all(not np.any(x) for x in jax.tree.leaves(run(q, k, v)))


@pytest.mark.parametrize('backend', ['dense', 'blocks'])
def test_huge_scores_stay_finite(small_blocks, backend):
  ids = Ids(*(x[None] for x in (PROMPT, ROLLOUT, POSITION)))
  q, k, v, _ = tensors(1, 1, 11)
  loss = lambda q, k: jnp.sum(attend(q, k, v, ids, backend=backend) ** 2)
  grads = jax.jit(jax.grad(loss, (0, 1)))(q * 1e4, k * 1e4)
  assert all(np.all(np.isfinite(grad)) for grad in grads)


def test_bfloat16_scores_are_kept_in_float32(small_blocks):
  ids = rows(np.random.default_rng(2), 2, 24)
  q, k, v, _ = (x.astype(jnp.bfloat16) for x in tensors(2, 2, 24))
  exact = compiled(*(x.astype(jnp.float32) for x in (q, k, v)), ids, backend='dense')
  for backend in ('dense', 'blocks'):
    out = compiled(q, k, v, ids, backend=backend)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(out.astype(jnp.float32), exact, atol=0.02)


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
