import functools

import chex
import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from slca_jax.ops.logprobs import Split, token_logprobs

ROWS, LENGTH, WIDTH, VOCAB = 4, 11, 5, 13


def batch(seed=0, *, rows=ROWS, dtype=jnp.float32):
  random = np.random.default_rng(seed)
  hidden_BTD = jnp.asarray(random.normal(size=(rows, LENGTH, WIDTH)), dtype)
  unembed_VD = jnp.asarray(random.normal(size=(VOCAB, WIDTH)), dtype)
  tokens_BT = random.integers(0, VOCAB - 2, (rows, LENGTH))
  source_BT = random.integers(0, LENGTH, (rows, LENGTH))
  sampled_BT = random.random((rows, LENGTH)) < np.linspace(0, 1, rows)[:, None]  # from an empty row to a full one
  return hidden_BTD, unembed_VD, tokens_BT, source_BT, sampled_BT


def naive(hidden_BTD, unembed_VD, tokens_BT, source_BT, sampled_BT, *, temperature=1.0, vocab=VOCAB):
  hidden_BTD = jnp.take_along_axis(hidden_BTD, source_BT[..., None], axis=1).astype(jnp.float32)
  logits_BTV = jnp.einsum('BTD,VD->BTV', hidden_BTD, unembed_VD.astype(jnp.float32))[..., :vocab] / temperature
  logp_BTV = jax.nn.log_softmax(logits_BTV)
  return jnp.where(sampled_BT, jnp.take_along_axis(logp_BTV, tokens_BT[..., None], axis=-1)[..., 0], 0)


def weighed(function, weight_BT):
  """A loss that weighs every token differently, and its gradients."""

  def value_and_grad(hidden_BTD, unembed_VD, *rest):
    loss = lambda hidden_BTD, unembed_VD: (weight_BT * function(hidden_BTD, unembed_VD, *rest)).sum()
    return jax.value_and_grad(loss, (0, 1))(hidden_BTD, unembed_VD)

  return value_and_grad


class TokenLogprobsTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters((1, 1.0, None), (4, 0.7, VOCAB - 2), (11, 1.3, None), (64, 1.0, VOCAB - 2))
  def test_value_and_gradients_equal_the_naive_ones(self, chunk, temperature, vocab):
    args = batch()
    weight_BT = np.random.default_rng(1).normal(size=(ROWS, LENGTH))
    ours = functools.partial(token_logprobs, temperature=temperature, chunk=chunk, vocab=vocab)
    theirs = functools.partial(naive, temperature=temperature, vocab=vocab or VOCAB)
    np.testing.assert_allclose(self.variant(ours)(*args), theirs(*args), rtol=1e-5, atol=1e-5)
    got, want = self.variant(weighed(ours, weight_BT))(*args), weighed(theirs, weight_BT)(*args)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), got, want)


def test_bfloat16_inputs_are_as_good_as_their_rounding():
  args = batch(dtype=jnp.bfloat16)
  ours = functools.partial(token_logprobs, chunk=4)
  np.testing.assert_allclose(ours(*args), naive(*args), rtol=1e-5, atol=1e-5)
  got, want = weighed(ours, 1.0)(*args)[1], weighed(naive, 1.0)(*args)[1]
  assert got[0].dtype == got[1].dtype == jnp.bfloat16
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b.astype(np.float32), rtol=2e-2, atol=5e-2), got, want)


def test_padded_vocabulary_receives_no_gradient():
  grad_VD = weighed(functools.partial(token_logprobs, chunk=4, vocab=VOCAB - 2), 1.0)(*batch())[1][1]
  np.testing.assert_array_equal(grad_VD[-2:], np.zeros((2, WIDTH)))
  assert np.abs(grad_VD[:-2]).min() > 0


def test_shared_source_adds_up():
  hidden_BTD, unembed_VD, tokens_BT, _, sampled_BT = batch()
  args = hidden_BTD, unembed_VD, tokens_BT, np.full_like(tokens_BT, 3), sampled_BT
  got, want = (weighed(f, 1.0)(*args)[1] for f in (functools.partial(token_logprobs, chunk=2), naive))
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), got, want)


def test_nothing_sampled_gives_zeros_and_zero_gradients():
  hidden_BTD, unembed_VD, tokens_BT, source_BT, sampled_BT = batch()
  args = hidden_BTD, unembed_VD, tokens_BT, source_BT, np.zeros_like(sampled_BT)
  value, grads = weighed(functools.partial(token_logprobs, chunk=4), 1.0)(*args)
  assert value == 0
  jax.tree.map(lambda grad: np.testing.assert_array_equal(grad, np.zeros(grad.shape)), grads)


def test_tokens_that_were_not_sampled_may_hold_anything():
  hidden_BTD, unembed_VD, tokens_BT, _, sampled_BT = batch()
  source_BT = np.broadcast_to(np.arange(LENGTH), sampled_BT.shape)
  want = weighed(functools.partial(token_logprobs, chunk=4), 1.0)(
    hidden_BTD, unembed_VD, tokens_BT, source_BT, sampled_BT
  )
  dirty = (
    jnp.where(sampled_BT[..., None], hidden_BTD, jnp.nan),
    unembed_VD,
    np.where(sampled_BT, tokens_BT, -7),
    np.where(sampled_BT, source_BT, 10**6),
    sampled_BT,
  )
  got = weighed(functools.partial(token_logprobs, chunk=4), 1.0)(*dirty)
  jax.tree.map(np.testing.assert_array_equal, got, want)


def test_an_id_outside_the_vocabulary_stays_finite():
  hidden_BTD, unembed_VD, tokens_BT, source_BT, sampled_BT = batch()
  for alien in (-1, VOCAB - 1, VOCAB, 2**31 - 1):
    args = hidden_BTD, unembed_VD, np.full_like(tokens_BT, alien), source_BT, sampled_BT
    value, grads = weighed(functools.partial(token_logprobs, chunk=4, vocab=VOCAB - 2), 1.0)(*args)
    chex.assert_tree_all_finite((value, grads))


def test_sharded_rows_equal_a_single_device():
  args = batch(rows=16)
  ours = weighed(functools.partial(token_logprobs, chunk=4), 1.0)
  mesh = jax.make_mesh((8,), ('data',), axis_types=(jax.sharding.AxisType.Auto,))
  rows, whole = jax.NamedSharding(mesh, jax.P('data')), jax.NamedSharding(mesh, jax.P())
  placed = [jax.device_put(x, whole if i == 1 else rows) for i, x in enumerate(args)]
  got = jax.jit(ours)(*placed)
  jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), got, ours(*args))


# A sum of bfloat16 over one axis inside a shard_map of others aborts XLA's CPU compiler: nothing is summed up in it.
@pytest.mark.parametrize(
  ('sizes', 'dtype', 'near'),
  [((1, 8, 1), jnp.float32, 1e-5), ((2, 2, 2), jnp.float32, 1e-5), ((1, 4, 2), 'bfloat16', 0.1)],
)
def test_a_vocabulary_in_parts_gives_the_same_values_and_gradients(sizes, dtype, near):
  hidden_BTD, unembed_VD, *rest = batch(rows=8, dtype=dtype)
  padded_VD = jnp.pad(unembed_VD, ((0, 3), (0, 0)), constant_values=9.0)  # 16 rows, so that the devices divide them
  args, weight_BT = (hidden_BTD, padded_VD, *rest), np.random.default_rng(1).normal(size=(8, LENGTH))
  axes = 'data', 'fsdp', 'tensor'
  split = Split(('data', 'fsdp'), ('tensor', 'fsdp'))
  with jax.set_mesh(jax.make_mesh(sizes, axes, axis_types=(jax.sharding.AxisType.Auto,) * 3)):
    ours = functools.partial(token_logprobs, temperature=0.7, chunk=4, vocab=VOCAB, split=split)
    value, grads = jax.jit(weighed(ours, weight_BT))(*args)
  alone = functools.partial(token_logprobs, temperature=0.7, chunk=4, vocab=VOCAB)
  expected = weighed(alone, weight_BT)(*args)
  to_float = lambda tree: jax.tree.map(lambda x: np.asarray(x, np.float32), tree)
  chex.assert_trees_all_close(to_float((value, grads)), to_float(expected), rtol=near, atol=near)


def _shapes(jaxpr):
  for equation in jaxpr.eqns:
    for var in equation.outvars:
      yield var.aval.shape
    for inner in jax.extend.core.jaxprs_in_params(equation.params):
      yield from _shapes(inner)


def test_logits_of_a_whole_row_are_never_stored():
  ours = weighed(functools.partial(token_logprobs, chunk=2), 1.0)
  largest = max(int(np.prod(shape)) for shape in _shapes(jax.make_jaxpr(ours)(*batch()).jaxpr))
  assert largest <= max(ROWS * 2 * VOCAB, ROWS * LENGTH * WIDTH, ROWS * (LENGTH + 1)) < ROWS * LENGTH * VOCAB


@pytest.mark.parametrize('wrong', [{'temperature': 0.0}, {'chunk': 0}, {'vocab': VOCAB + 1}, {'vocab': 0}])
def test_settings_out_of_range_are_refused_by_name(wrong):
  with pytest.raises(ValueError, match=f'{next(iter(wrong))} is {next(iter(wrong.values()))}'):
    token_logprobs(*batch(), **wrong)
