"""The estimators: which rewards a method normalises, and which tokens each of them reaches.

Every one is a set of reward channels, each relative to its group, and a route from channels to segments or turns:

    estimator     tool tokens                        summary tokens
    slca          λ_tool Â_tool                      λ_sum Â_sum
    grpo          Â_total                            Â_total
    toolpo        Â_global + λ Â_local               Â_global
    rltr          Â_plan                             0
    support       Â_tool + s2t Â_sum                 t2s Â_tool + Â_sum
    summary_only  Â_sum                              Â_sum
    guard_only    λ_tool Â_tool                      λ_sum Â_sum of guarded rollouts, else 0
    tool_only     λ_tool Â_tool                      0
    tara          A_total of the turn                w A_total of the turn
    slca_tara     λ_tool A_total of the turn         λ_sum Â_sum

All take `(rewards, segments, rollout_BT)` and return advantage_BT, float32, 0 on tokens of no segment.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from slca_jax.arrays import NONE, SUMMARY, TOOL, Rewards, Segments
from slca_jax.ops.advantages import group_relative, route, route_segments
from slca_jax.ops.segments import present


def slca(
  rewards: Rewards,
  segments: Segments,
  rollout_BT: jax.Array,
  *,
  tool_weight: float = 1.0,
  summary_weight: float = 1.0,
  ddof: int = 1,
  eps: float = 1e-6,
) -> jax.Array:
  """Advantages that lock execution credit to tool tokens and preference credit to summaries.

  Â[t] = λ_tool Â_tool on tool tokens, λ_sum Â_sum on summary tokens. Each is relative to the rollouts of the group in
  which that segment exists, so no summary reward can reach a tool token.

  SLCA-GRPO (arXiv:2609.29050), eqs. 3 and 18.
  """
  tool_R, summary_R = segment_credits(rewards, segments, rollout_BT, ddof=ddof, eps=eps)
  return route_segments(tool_weight * tool_R, summary_weight * summary_R, rollout_BT, segments)


def grpo(rewards: Rewards, segments: Segments, rollout_BT: jax.Array, *, ddof: int = 1, eps: float = 1e-6) -> jax.Array:
  """Advantages that give the whole rollout's reward to each of its tokens ("w/o SLCA").

  Â[t] = Â_total, with R_total = α R_tool + R_sum filled in `outcome_R` by the host. A group of one gives 0.

  SLCA-GRPO (arXiv:2609.29050), eq. 29.
  """
  total_R = group_relative(rewards.outcome_R, rewards.group_R, ddof=ddof, eps=eps)
  return route_segments(total_R, total_R, rollout_BT, segments)


def toolpo(
  rewards: Rewards,
  segments: Segments,
  rollout_BT: jax.Array,
  *,
  local_weight: float = 1.0,
  ddof: int = 1,
  eps: float = 1e-6,
) -> jax.Array:
  """Advantages of the outcome for every token, and of the action reward for tool tokens on top.

  Â[t] = Â_global + λ Â_local on tool tokens, Â_global on summaries; global is `outcome_R`, local is `tool_R`.

  SLCA-GRPO (arXiv:2609.29050), C.4 and eq. 28.
  """
  outcome_R = group_relative(rewards.outcome_R, rewards.group_R, ddof=ddof, eps=eps)
  action_R, _ = segment_credits(rewards, segments, rollout_BT, ddof=ddof, eps=eps)
  return route_segments(outcome_R + local_weight * action_R, outcome_R, rollout_BT, segments)


def rltr(rewards: Rewards, segments: Segments, rollout_BT: jax.Array, *, ddof: int = 1, eps: float = 1e-6) -> jax.Array:
  """Advantages that train the planner alone: the plan reward on tool tokens, nothing on summaries.

  Â[t] = Â_plan on tool tokens; the plan reward is `tool_R`.

  SLCA-GRPO (arXiv:2609.29050), C.4.
  """
  plan_R, _ = segment_credits(rewards, segments, rollout_BT, ddof=ddof, eps=eps)
  return route_segments(plan_R, jnp.zeros_like(plan_R), rollout_BT, segments)


def support(
  rewards: Rewards,
  segments: Segments,
  rollout_BT: jax.Array,
  *,
  summary_to_tool: float = 0.0,
  tool_to_summary: float = 0.0,
  ddof: int = 1,
  eps: float = 1e-6,
) -> jax.Array:
  """SLCA with either gate between the segments opened, to see which leak does the harm.

  Â[t] = Â_tool + s2t Â_sum on tool tokens, t2s Â_tool + Â_sum on summaries.

  SLCA-GRPO (arXiv:2609.29050), D.9.
  """
  tool_R, summary_R = segment_credits(rewards, segments, rollout_BT, ddof=ddof, eps=eps)
  on_tool_R = tool_R + summary_to_tool * summary_R
  return route_segments(on_tool_R, tool_to_summary * tool_R + summary_R, rollout_BT, segments)


def summary_only(
  rewards: Rewards, segments: Segments, rollout_BT: jax.Array, *, ddof: int = 1, eps: float = 1e-6
) -> jax.Array:
  """The judge's reward alone, on every token ("w/o HierR").

  Â[t] = Â_sum

  SLCA-GRPO (arXiv:2609.29050), §4.
  """
  _, summary_R = segment_credits(rewards, segments, rollout_BT, ddof=ddof, eps=eps)
  return route_segments(summary_R, summary_R, rollout_BT, segments)


def guard_only(
  rewards: Rewards,
  segments: Segments,
  rollout_BT: jax.Array,
  *,
  tool_weight: float = 1.0,
  summary_weight: float = 1.0,
  ddof: int = 1,
  eps: float = 1e-6,
) -> jax.Array:
  """SLCA whose summary credit is set to 0 after normalisation, except for rollouts that the omission guard caught.

  Â[t] = λ_tool Â_tool on tool tokens, λ_sum Â_sum · guarded on summaries.

  SLCA-GRPO (arXiv:2609.29050), D.2.
  """
  tool_R, summary_R = segment_credits(rewards, segments, rollout_BT, ddof=ddof, eps=eps)
  guard_R = jnp.where(rewards.guarded_R, summary_weight * summary_R, 0)
  return route_segments(tool_weight * tool_R, guard_R, rollout_BT, segments)


def tool_only(
  rewards: Rewards,
  segments: Segments,
  rollout_BT: jax.Array,
  *,
  tool_weight: float = 1.0,
  ddof: int = 1,
  eps: float = 1e-6,
) -> jax.Array:
  """SLCA without any summary credit, guarded rollouts included ("full zero").

  Â[t] = λ_tool Â_tool on tool tokens.

  SLCA-GRPO (arXiv:2609.29050), D.2.
  """
  tool_R, _ = segment_credits(rewards, segments, rollout_BT, ddof=ddof, eps=eps)
  return route_segments(tool_weight * tool_R, jnp.zeros_like(tool_R), rollout_BT, segments)


def tara(
  rewards: Rewards,
  segments: Segments,
  rollout_BT: jax.Array,
  *,
  discount: float = 0.5,
  future_weight: float = 0.5,
  summary_weight: float = 1.0,
  ddof: int = 0,
  eps: float = 1e-6,
) -> jax.Array:
  """Advantages by turn: each run of a rollout receives the credit of its turn.

  Â[t] = A_total[i, run(t)], times `summary_weight` on the last run: 1 treats it as the turn it takes the place of, 0
  leaves summaries alone. Runs beyond the turn table receive 0.

  ToolVerse (TARA), §5.5 and §6.
  """
  credit_RK = turn_credits(
    rewards.turn_RK, rewards.group_R, discount=discount, future_weight=future_weight, ddof=ddof, eps=eps
  )
  turn_BT = jnp.where(segments.segment_BT == NONE, -1, segments.run_BT)
  advantage_BT = route(credit_RK, rollout_BT, turn_BT)
  return jnp.where(segments.segment_BT == SUMMARY, summary_weight * advantage_BT, advantage_BT)


def slca_tara(
  rewards: Rewards,
  segments: Segments,
  rollout_BT: jax.Array,
  *,
  tool_weight: float = 1.0,
  summary_weight: float = 1.0,
  discount: float = 0.5,
  future_weight: float = 0.5,
  turn_ddof: int = 0,
  ddof: int = 1,
  eps: float = 1e-6,
) -> jax.Array:
  """SLCA's lock with TARA's turns: the judge reaches the summary alone, each tool run has its own turn's credit.

  Â[t] = λ_tool A_total[i, run(t)] on tool tokens, λ_sum Â_sum on summaries. `turn_ddof` is the turns' ddof, `ddof` the
  summary's.

  SLCA-GRPO (arXiv:2609.29050), eq. 3, with ToolVerse (TARA), §6.
  """
  turn_RK = tool_weight * turn_credits(
    rewards.turn_RK, rewards.group_R, discount=discount, future_weight=future_weight, ddof=turn_ddof, eps=eps
  )
  _, summary_R = segment_credits(rewards, segments, rollout_BT, ddof=ddof, eps=eps)
  turns = turn_RK.shape[1]
  # The summary's column follows the turns; a tool run past the table must not read it.
  run_BT = jnp.where(segments.run_BT < turns, segments.run_BT, -1)
  column_BT = jnp.where(segments.segment_BT == TOOL, run_BT, jnp.where(segments.segment_BT == SUMMARY, turns, -1))
  credit_RC = jnp.concatenate([turn_RK, summary_weight * summary_R[:, None]], axis=1)
  return route(credit_RC, rollout_BT, column_BT)


ESTIMATORS: dict[str, Callable[..., jax.Array]] = {
  estimator.__name__: estimator
  for estimator in (slca, grpo, toolpo, rltr, support, summary_only, guard_only, tool_only, tara, slca_tara)
}


def segment_credits(
  rewards: Rewards, segments: Segments, rollout_BT: jax.Array, *, ddof: int = 1, eps: float = 1e-6
) -> tuple[jax.Array, jax.Array]:
  """Â_tool and Â_sum of each rollout, each relative to the rollouts of its group that have the segment; float32[R].

  SLCA-GRPO (arXiv:2609.29050), eqs. 17-20.
  """
  rollouts = rewards.group_R.shape[0]
  has_tool_R = present(segments, rollout_BT, TOOL, rollouts)
  has_summary_R = present(segments, rollout_BT, SUMMARY, rollouts)
  tool_R = group_relative(rewards.tool_R, rewards.group_R, has_tool_R, ddof=ddof, eps=eps)
  summary_R = group_relative(rewards.summary_R, rewards.group_R, has_summary_R, ddof=ddof, eps=eps)
  return tool_R, summary_R


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
  turn = np.arange(turn_RK.shape[1])
  ahead_KK = np.maximum(turn[None, :] - turn[:, None], 0)
  discount_KK = jnp.where(ahead_KK > 0, jnp.float32(discount) ** ahead_KK, 0)
  reached_RK = jnp.where(jnp.isfinite(turn_RK), turn_RK, 0)
  future_RK = turn_RK * jnp.einsum('RJ,KJ->RK', reached_RK, discount_KK, precision='highest')
  relative = jax.vmap(lambda reward_R: group_relative(reward_R, group_R, ddof=ddof, eps=eps), 1, 1)
  return relative(turn_RK) + future_weight * relative(future_RK)
