"""The mask rule by hand, and both backends against it: values, gradients, padding, blocks skipped."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import all_pairs, assert_equals_dense, every_kind, learned, rows, tensors

from slca_jax.nn.attention import attend, choose
from slca_jax.nn.visibility import Ids

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


def compiled(*args, backend):
  return jax.jit(lambda *x: attend(*x, backend=backend, block=4))(*args)


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
def test_blocks_equal_dense_in_values_and_gradients(length):
  ids = every_kind(np.random.default_rng(length), length)
  q, k, v, weights = tensors(length, 7, length)
  run = learned(lambda *x: attend(*x, backend='blocks', block=4))
  assert_equals_dense(run, q, k, v, ids, weights)
  shuffle = lambda x: jnp.asarray(x)[:, np.random.default_rng(0).permutation(length)]
  assert_equals_dense(run, *map(shuffle, (q, k, v)), Ids(*map(shuffle, ids)), shuffle(weights))


@pytest.mark.parametrize('backend', ['dense', 'blocks'])
def test_padding_yields_zeros_and_no_nan_gradient(backend):
  q, k, v, weight = tensors(0, 2, 9)
  nobody = Ids(*(np.full((2, 9), fill, np.int32) for fill in (-1, -1, 0)))

  @jax.jit
  def run(q, k, v):
    out, pull = jax.vjp(lambda *x: attend(*x, nobody, backend=backend, block=4), q, k, v)
    return out, pull(weight)

  assert all(not np.any(x) for x in jax.tree.leaves(run(q, k, v)))


@pytest.mark.parametrize('backend', ['dense', 'blocks'])
def test_huge_scores_stay_finite(backend):
  ids = Ids(*(x[None] for x in (PROMPT, ROLLOUT, POSITION)))
  q, k, v, _ = tensors(1, 1, 11)
  loss = lambda q, k: jnp.sum(attend(q, k, v, ids, backend=backend, block=4) ** 2)
  grads = jax.jit(jax.grad(loss, (0, 1)))(q * 1e4, k * 1e4)
  assert all(np.all(np.isfinite(grad)) for grad in grads)


def test_bfloat16_scores_are_kept_in_float32():
  ids = rows(np.random.default_rng(2), 2, 24)
  q, k, v, _ = (x.astype(jnp.bfloat16) for x in tensors(2, 2, 24))
  exact = compiled(*(x.astype(jnp.float32) for x in (q, k, v)), ids, backend='dense')
  for backend in ('dense', 'blocks'):
    out = compiled(q, k, v, ids, backend=backend)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(out.astype(jnp.float32), exact, atol=0.02)


@pytest.mark.parametrize(
  'tokens, head_dim, platform, backend',
  [
    (24576, 128, 'tpu', 'splash'),
    (24576, 128, 'gpu', 'triton'),
    (24576, 128, 'cpu', 'blocks'),
    (24576, 96, 'gpu', 'blocks'),
    (65536, 128, 'tpu', 'blocks'),
    (64, 128, 'cpu', 'dense'),
    (512, 128, 'tpu', 'dense'),
  ],
)
def test_each_platform_gets_its_kernel_where_it_fits(tokens, head_dim, platform, backend):
  assert choose(tokens, head_dim, platform) == backend
