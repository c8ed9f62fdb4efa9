"""The estimators: which rewards a method normalises, and which tokens each of them reaches.

Every one is a set of reward channels, each relative to its group, and a route from channels to segments or turns:

    estimator         tool tokens                        summary tokens
    slca              λ_tool Â_tool                      λ_sum Â_sum
    grpo              Â_total                            Â_total
    toolpo            Â_global + λ Â_local               Â_global
    rltr              Â_plan                             0
    support           Â_tool + s2t Â_sum                 t2s Â_tool + Â_sum
    summary_only      Â_sum                              Â_sum
    guard_only        λ_tool Â_tool                      λ_sum Â_sum of guarded rollouts, else 0
    tool_only         λ_tool Â_tool                      0
    tara              A_total of the turn                w A_total of the turn
    tara_margin       margin of the turn                 w margin of the turn
    slca_tara         λ_tool A_total of the turn         λ_sum Â_sum
    slca_tara_margin  λ_tool margin of the turn          λ_sum Â_sum

All take `(rewards, segments, rollout_BT)` and return advantage_BT, float32, 0 on tokens of no segment.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from slca_jax import own
from slca_jax.arrays import NONE, SUMMARY, TOOL, Rewards, Segments
from slca_jax.ops.advantages import group_relative, route, route_segments
from slca_jax.ops.segments import present
from slca_jax.ops.turns import turn_credits, turn_margins


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
  scaled: float = 1.0,
  ddof: int = 1,
  eps: float = 1e-6,
) -> jax.Array:
  """Advantages of the outcome for every token, and of the action reward for tool tokens on top.

  Â[t] = Â_global + λ Â_local on tool tokens, Â_global on summaries; global is `outcome_R`, local is `tool_R`. With
  `scaled` = 0 each is the difference to its group's mean, not divided by the deviation, as ToolPO's authors have it.

  SLCA-GRPO (arXiv:2609.29050), C.4 and eq. 28.
  """
  outcome_R = group_relative(rewards.outcome_R, rewards.group_R, ddof=ddof, eps=eps, scaled=bool(scaled))
  action_R, _ = segment_credits(rewards, segments, rollout_BT, ddof=ddof, eps=eps, scaled=bool(scaled))
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
  return _route_runs(credit_RK, summary_weight, rollout_BT, segments)


def tara_margin(
  rewards: Rewards,
  segments: Segments,
  rollout_BT: jax.Array,
  *,
  discount: float = 0.5,
  future_weight: float = 0.5,
  summary_weight: float = 1.0,
) -> jax.Array:
  """TARA for policies that choose when to stop: values against the other rollouts, in units of the reward.

  Â[t] = G[i, run(t)] − mean_{j≠i} G[j, run(t)], times `summary_weight` on the last run; 1 keeps stopping and going on
  comparable. See `ops/turns.py` for the bias that this avoids.

  ToolVerse (TARA), eq. 7, with a leave-one-out baseline.
  """
  margin_RK = turn_margins(rewards.turn_RK, rewards.group_R, discount=discount, future_weight=future_weight)
  return _route_runs(margin_RK, summary_weight, rollout_BT, segments)


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
  return _route_turns(turn_RK, summary_weight * summary_R, rollout_BT, segments)


def slca_tara_margin(
  rewards: Rewards,
  segments: Segments,
  rollout_BT: jax.Array,
  *,
  tool_weight: float = 1.0,
  summary_weight: float = 1.0,
  discount: float = 0.5,
  future_weight: float = 0.5,
  ddof: int = 1,
  eps: float = 1e-6,
) -> jax.Array:
  """SLCA's lock with the turns of `tara_margin`; `ddof` and `eps` are the summary's.

  Â[t] = λ_tool (G[i, run(t)] − mean_{j≠i} G[j, run(t)]) on tool tokens, λ_sum Â_sum on summaries.

  SLCA-GRPO (arXiv:2609.29050), eq. 3, with ToolVerse (TARA), eq. 7.
  """
  turn_RK = tool_weight * turn_margins(rewards.turn_RK, rewards.group_R, discount=discount, future_weight=future_weight)
  _, summary_R = segment_credits(rewards, segments, rollout_BT, ddof=ddof, eps=eps)
  return _route_turns(turn_RK, summary_weight * summary_R, rollout_BT, segments)


ESTIMATORS: dict[str, Callable[..., jax.Array]] = {
  estimator.__name__: estimator
  for estimator in (
    slca,
    grpo,
    toolpo,
    rltr,
    support,
    summary_only,
    guard_only,
    tool_only,
    tara,
    tara_margin,
    slca_tara,
    slca_tara_margin,
  )
}


def estimator_of(name: str) -> Callable[..., jax.Array]:
  """The estimator of that name, or one of one's own, as FILE.py:NAME.

  Raises:
    ConfigError: there is none, or its code cannot be loaded.
  """
  return own.find(name, ESTIMATORS, 'rewards, segments, rollout_BT', setting='method.estimator')


def segment_credits(
  rewards: Rewards,
  segments: Segments,
  rollout_BT: jax.Array,
  *,
  ddof: int = 1,
  eps: float = 1e-6,
  scaled: bool = True,
) -> tuple[jax.Array, jax.Array]:
  """Â_tool and Â_sum of each rollout, each relative to the rollouts of its group that have the segment; float32[R].

  SLCA-GRPO (arXiv:2609.29050), eqs. 17-20.
  """
  rollouts = rewards.group_R.shape[0]
  has_tool_R = present(segments, rollout_BT, TOOL, rollouts)
  has_summary_R = present(segments, rollout_BT, SUMMARY, rollouts)
  tool_R = group_relative(rewards.tool_R, rewards.group_R, has_tool_R, ddof=ddof, eps=eps, scaled=scaled)
  summary_R = group_relative(rewards.summary_R, rewards.group_R, has_summary_R, ddof=ddof, eps=eps, scaled=scaled)
  return tool_R, summary_R


def _route_runs(credit_RK, summary_weight, rollout_BT, segments):
  """Each run's tokens receive the credit of their turn, the summary's a share of it; runs past the table receive 0."""
  turn_BT = jnp.where(segments.segment_BT == NONE, -1, segments.run_BT)
  advantage_BT = route(credit_RK, rollout_BT, turn_BT)
  return jnp.where(segments.segment_BT == SUMMARY, summary_weight * advantage_BT, advantage_BT)


def _route_turns(turn_RK, summary_R, rollout_BT, segments):
  """Tool runs receive the credit of their turn, summaries what is theirs."""
  turns = turn_RK.shape[1]
  # The summary's column follows the turns; a tool run past the table must not read it.
  run_BT = jnp.where(segments.run_BT < turns, segments.run_BT, -1)
  column_BT = jnp.where(segments.segment_BT == TOOL, run_BT, jnp.where(segments.segment_BT == SUMMARY, turns, -1))
  return route(jnp.concatenate([turn_RK, summary_R[:, None]], axis=1), rollout_BT, column_BT)
