"""Per-token losses, and the one way to average them: a masked sum over a count that the caller may know better."""

import chex
import jax
import jax.numpy as jnp

# exp(20) is 5e8: far outside any trust region, and far inside float32.
MAX_LOG_RATIO = 20.0


def ppo_clip(
  logp_BT: jax.Array,
  old_logp_BT: jax.Array,
  advantage_BT: jax.Array,
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
  dual_clip: float = 3.0,
) -> jax.Array:
  """The clipped policy loss of each token, bounded below zero advantage by the dual clip.

  L = −min(ρA, clip(ρ, 1−ε_low, 1+ε_high) A),  L = min(L, −cA) where A < 0;  ρ = exp(log π_θ − log π_old)

  Args:
    logp_BT: log π_θ; the only argument that receives a gradient.
    old_logp_BT: log π_old of the policy that the trust region is around.
    advantage_BT: Â.
    clip_low: ε_low.
    clip_high: ε_high.
    dual_clip: c > 1; infinity turns the bound off.

  SLCA-GRPO (arXiv:2609.29050), eq. 5; dual clip from Ye et al. (arXiv:1912.09729).
  """
  chex.assert_equal_shape([logp_BT, old_logp_BT, advantage_BT])
  chex.assert_type([logp_BT, old_logp_BT, advantage_BT], float)
  old_logp_BT, advantage_BT = jax.lax.stop_gradient((old_logp_BT, advantage_BT))
  ratio_BT = importance_ratio(logp_BT, old_logp_BT)
  clipped_BT = jnp.clip(ratio_BT, 1 - clip_low, 1 + clip_high)
  loss_BT = -jnp.minimum(ratio_BT * advantage_BT, clipped_BT * advantage_BT)
  return jnp.where(advantage_BT < 0, jnp.minimum(loss_BT, -dual_clip * advantage_BT), loss_BT)


def kl_k3(logp_BT: jax.Array, ref_logp_BT: jax.Array) -> jax.Array:
  """An unbiased, non-negative estimate of each token's divergence from the reference.

  k3 = eᵈ − d − 1,  d = log π_ref − log π_θ

  SLCA-GRPO (arXiv:2609.29050), eq. 5; estimator from Schulman, "Approximating KL Divergence".
  """
  chex.assert_equal_shape([logp_BT, ref_logp_BT])
  # Clamped from above in both terms: eᵈ alone would leave −d, whose gradient pulls away from the reference.
  difference_BT = jnp.minimum(jax.lax.stop_gradient(ref_logp_BT) - logp_BT, MAX_LOG_RATIO)
  return jnp.expm1(difference_BT) - difference_BT


def cross_entropy(logp_BT: jax.Array, sampled_BT: jax.Array, count: jax.Array | float | None = None) -> jax.Array:
  """The mean of −log π over the tokens to be learned; `count` as in `masked_mean`."""
  return masked_mean(-logp_BT, sampled_BT, count)


def truncated_weights(old_logp_BT: jax.Array, sampler_logp_BT: jax.Array, *, cap: float = 2.0) -> jax.Array:
  """Importance weights that correct for an engine whose log-probs differ from the trainer's; no gradient.

  w = min(exp(log π_old − log π_sampler), cap)

  Truncated importance sampling (TIS), Ionides (2008).
  """
  chex.assert_equal_shape([old_logp_BT, sampler_logp_BT])
  return jax.lax.stop_gradient(jnp.minimum(importance_ratio(old_logp_BT, sampler_logp_BT), cap))


def importance_ratio(logp_BT: jax.Array, old_logp_BT: jax.Array) -> jax.Array:
  """exp(log π − log π_old), with the log-ratio held inside ±20 first, so that neither value nor gradient overflows."""
  return jnp.exp(jnp.clip(logp_BT - old_logp_BT, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def masked_sum(x_BT: jax.Array, keep_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The sum of `x` where `keep` holds, and how many that are: pairs that add up over micro-batches and devices."""
  chex.assert_equal_shape([x_BT, keep_BT])
  chex.assert_type(keep_BT, bool)
  return jnp.sum(jnp.where(keep_BT, x_BT, 0), dtype=jnp.float32), jnp.sum(keep_BT, dtype=jnp.float32)


def masked_mean(x_BT: jax.Array, keep_BT: jax.Array, count: jax.Array | float | None = None) -> jax.Array:
  """The sum of `x` where `keep` holds over `count`; float32, 0 where there is nothing to average.

  Args:
    x_BT: values; those left out may be NaN, but a gradient through them then must be stopped before.
    keep_BT: bool.
    count: how many tokens the whole mini-batch keeps, over all devices and accumulation steps, so that the parts'
      means add up to the mean of the whole. The tokens kept here where it is None.
  """
  total, here = masked_sum(x_BT, keep_BT)
  return total / jnp.maximum(here if count is None else count, 1)
