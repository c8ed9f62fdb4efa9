import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from slca_jax.ops.losses import cross_entropy, kl_k3, masked_mean, masked_sum, ppo_clip, truncated_weights


class PpoClipTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters(
    (2, 1.5, -2.4),  # clipped at 1.2
    (2, 0.5, -1),
    (-2, 0.5, 1.6),  # clipped at 0.8
    (-2, 1.5, 3),
    (-2, 10, 6),  # dual clip: 3 · 2
    (2, 10, -2.4),
  )
  def test_table(self, advantage, ratio, loss):
    old_logp_BT = np.full((1, 1), -3.0, np.float32)
    logp_BT = old_logp_BT + np.log(np.float32(ratio))
    got_BT = self.variant(ppo_clip)(logp_BT, old_logp_BT, np.full((1, 1), advantage, np.float32))
    np.testing.assert_allclose(got_BT, [[loss]], rtol=1e-5)

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters(0.1, 0.3)
  def test_low_and_high_clip_are_set_apart(self, low):
    # A = 1 at ρ = 2 stops at 1 + ε_high = 1.28; A = −1 at ρ = 0.5 stops at 1 − ε_low.
    loss = self.variant(functools.partial(ppo_clip, clip_low=low, clip_high=0.28))
    logp_BT, zero_BT = np.log(np.array([[2.0, 0.5]], np.float32)), np.zeros((1, 2), np.float32)
    got_BT = loss(logp_BT, zero_BT, np.array([[1.0, -1.0]], np.float32))
    np.testing.assert_allclose(got_BT, [[-1.28, 1 - low]], rtol=1e-6)


def test_an_infinite_dual_clip_turns_the_bound_off():
  logp_BT = jnp.log(jnp.array([[10.0, 10.0]]))
  got_BT = ppo_clip(logp_BT, jnp.zeros((1, 2)), jnp.array([[-2.0, 0.0]]), dual_clip=float('inf'))
  np.testing.assert_allclose(got_BT, [[20, 0]], rtol=1e-6)


def test_gradient_is_minus_ratio_times_advantage_inside_the_clip_and_zero_outside():
  logp_BT = jnp.log(jnp.array([[1.1, 1.5, 0.5, 10.0]]))
  advantage_BT = jnp.array([[2.0, 2.0, -2.0, -2.0]])
  grad_BT = jax.grad(lambda logp: ppo_clip(logp, jnp.zeros((1, 4)), advantage_BT).sum())(logp_BT)
  np.testing.assert_allclose(grad_BT, [[-2.2, 0, 0, 0]], rtol=1e-5)


def test_absurd_log_ratios_keep_loss_and_gradient_finite():
  logp_BT = jnp.array([[500.0, -500.0, 1e30, -1e30]])
  for advantage in (1.0, -1.0):
    for dual_clip in (3.0, float('inf')):
      loss = functools.partial(ppo_clip, dual_clip=dual_clip)
      value_BT, pull = jax.vjp(
        lambda logp, loss=loss, a=advantage: loss(logp, jnp.zeros((1, 4)), jnp.full((1, 4), a)), logp_BT
      )
      chex.assert_tree_all_finite((value_BT, pull(jnp.ones((1, 4)))))


class KlTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters((-100, 99), (-2, 1.135335), (-0.5, 0.106531), (0, 0), (0.5, 0.148721), (2, 4.389056))
  def test_k3(self, difference, value):
    logp_BT = np.zeros((1, 1), np.float32)
    got_BT = self.variant(kl_k3)(logp_BT, logp_BT + np.float32(difference))
    np.testing.assert_allclose(got_BT, [[value]], rtol=1e-5, atol=1e-7)


def test_kl_gradient_never_pulls_away_from_the_reference():
  # dk3/dlogπ = 1 − eᵈ: negative while the reference gives more (descent raises π), positive while it gives less.
  grad = jax.vmap(jax.grad(lambda logp: kl_k3(logp[None, None], jnp.zeros((1, 1))).sum()))
  grad_N = grad(jnp.array([-1000.0, -30.0, -2.0, 0.0, 2.0, 1000.0]))
  np.testing.assert_allclose(grad_N, [0, 0, 1 - np.e**2, 0, 1 - np.e**-2, 1], rtol=1e-5, atol=1e-6)


LOSS_BT = np.array([[1] * 2 + [0] * 8, [2] * 6 + [0] * 4, [4] * 10], np.float32)
KEEP_BT = np.array([[1, 1] + [0] * 8, [1, 1, 0, 0, 1, 1] + [0] * 4, [1] * 10], bool)


def test_token_mean_is_3_125_however_the_batch_is_cut():
  # (2 · 1 + 4 · 2 + 10 · 4) / 16
  np.testing.assert_allclose(masked_mean(LOSS_BT, KEEP_BT), 3.125)
  for cuts in ([1], [2], [1, 2]):
    parts = list(zip(np.split(LOSS_BT, cuts), np.split(KEEP_BT, cuts), strict=True))
    count = sum(masked_sum(*part)[1] for part in parts)
    np.testing.assert_allclose(sum(masked_mean(*part, count) for part in parts), 3.125)
  columns = list(zip(np.split(LOSS_BT, 5, 1), np.split(KEEP_BT, 5, 1), strict=True))
  np.testing.assert_allclose(sum(masked_mean(*part, 16.0) for part in columns), 3.125)


def test_token_mean_over_shards_is_3_125():
  mesh = jax.make_mesh((5,), ('data',), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:5])
  by_column = jax.NamedSharding(mesh, jax.P(None, 'data'))
  got = jax.jit(masked_mean)(jax.device_put(LOSS_BT, by_column), jax.device_put(KEEP_BT, by_column))
  np.testing.assert_allclose(got, 3.125)


def test_masked_values_do_not_count_even_when_they_are_nan():
  x_BT, keep_BT = jnp.array([[1.0, jnp.nan, 3.0]]), jnp.array([[True, False, True]])
  assert masked_mean(x_BT, keep_BT) == 2
  np.testing.assert_allclose(jax.grad(lambda x: masked_mean(x, keep_BT))(x_BT), [[0.5, 0, 0.5]])


def test_a_mean_of_nothing_is_zero():
  assert masked_mean(jnp.ones((2, 3)), jnp.zeros((2, 3), bool)) == 0


def test_cross_entropy_is_the_mean_surprise_of_the_tokens_to_learn():
  logp_BT = np.log(np.array([[0.5, 0.25, 0.9]], np.float32))
  keep_BT = np.array([[True, True, False]])
  np.testing.assert_allclose(cross_entropy(logp_BT, keep_BT), 1.5 * np.log(2), rtol=1e-6)
  np.testing.assert_allclose(cross_entropy(logp_BT, keep_BT, 6), 0.5 * np.log(2), rtol=1e-6)


def test_importance_weights_are_capped_and_carry_no_gradient():
  old_BT = jnp.log(jnp.array([[0.5, 0.9, 0.1]]))
  sampler_BT = jnp.log(jnp.array([[0.5, 0.3, 0.2]]))
  np.testing.assert_allclose(truncated_weights(old_BT, sampler_BT, cap=2.0), [[1, 2, 0.5]], rtol=1e-6)
  grad_BT = jax.grad(lambda old: truncated_weights(old, sampler_BT).sum())(old_BT)
  np.testing.assert_array_equal(grad_BT, np.zeros((1, 3)))
