"""What each turn of a rollout is worth, against the same turn of the other rollouts of its group.

A trap: a group is compared turn by turn, and the policy chooses how many turns there are. A rollout that stops before
a turn counts there with 0, and its last turn has no future, so whoever goes on is compared with those who could not
earn anything more. `turn_credits`, as published, divides each of these differences by its own deviation: a future of
any size then weighs λ times as much as the turn itself, γ loses its effect where one turn is left, and going on can be
reinforced although stopping is worth more. `turn_margins` has no deviations and a baseline of other rollouts alone, so
its expectation is that of the values, whatever the policy does about when to stop. Either compares a rollout's last run
with the turn it takes the place of (`tara` with summary_weight = 1); leave that out, or give the summary a judge, and
the decision to stop has another baseline than the decision to go on.
"""

import jax
import jax.numpy as jnp
import numpy as np

from slca_jax.ops.advantages import group_relative, group_sum, presence


def turn_credits(
  turn_RK: jax.Array,
  group_R: jax.Array,
  *,
  discount: float = 0.5,
  future_weight: float = 0.5,
  ddof: int = 0,
  eps: float = 1e-6,
) -> jax.Array:
  """A_total of each turn: how the turn compares at its own place, and what a right one led to; float32[R, K].

  V[i,t] = r[i,t] Σ_{k≥1} γᵏ r[i,t+k];  A_total = z(r) + λ z(V), with z over the group at the same turn.

  Args:
    turn_RK: reward of each turn, 0 for one that the rollout never reached. NaN is absent: beyond the group's table, or
      a rollout without rewards.
    group_R: index of the rollout's group, -1 for padding.
    discount: γ; the first future reward is discounted once.
    future_weight: λ in [0, 1).

  ToolVerse (TARA), §6.
  """
  future_RK = gated_future(turn_RK, discount=discount)
  relative = jax.vmap(lambda reward_R: group_relative(reward_R, group_R, ddof=ddof, eps=eps), 1, 1)
  return relative(turn_RK) + future_weight * relative(future_RK)


def turn_margins(
  turn_RK: jax.Array, group_R: jax.Array, *, discount: float = 0.5, future_weight: float = 0.5
) -> jax.Array:
  """How much more each turn is worth than the same turn of the other rollouts; in units of the reward, float32[R, K].

  G[i,t] = r[i,t] + λ V[i,t];  A[i,t] = G[i,t] − mean_{j≠i} G[j,t]

  Unbiased for lengths that the policy chooses: the baseline depends on other rollouts alone and nothing is divided by a
  deviation, so E[∇log π A] = E[∇log π G]. 0 where no other rollout of the group is present.

  Args:
    turn_RK, group_R, discount, future_weight: as of `turn_credits`.

  ToolVerse (TARA), eq. 7, with a leave-one-out baseline.
  """
  value_RK = turn_RK + future_weight * gated_future(turn_RK, discount=discount)
  return jax.vmap(lambda value_R: _less_others(value_R, group_R), 1, 1)(value_RK)


def gated_future(turn_RK: jax.Array, *, discount: float) -> jax.Array:
  """V[i,t] = r[i,t] Σ_{k≥1} γᵏ r[i,t+k]: what a right turn led to; NaN where the turn is absent.

  ToolVerse (TARA), §6.
  """
  turn = np.arange(turn_RK.shape[1])
  ahead_KK = np.maximum(turn[None, :] - turn[:, None], 0)
  discount_KK = jnp.where(ahead_KK > 0, jnp.float32(discount) ** ahead_KK, 0)
  reached_RK = jnp.where(jnp.isfinite(turn_RK), turn_RK, 0)
  return turn_RK * jnp.einsum('RJ,KJ->RK', reached_RK, discount_KK, precision='highest')


def _less_others(value_R, group_R):
  here_R = presence(value_R, group_R)
  known_R = jnp.where(here_R, value_R, 0).astype(jnp.float32)
  others_R = group_sum(here_R.astype(jnp.float32), group_R) - 1
  # As a mean of differences: equal values give exactly 0.
  margin_R = (others_R * known_R - (group_sum(known_R, group_R) - known_R)) / jnp.maximum(others_R, 1)
  return jnp.where(here_R & (others_R >= 1), margin_R, 0)
