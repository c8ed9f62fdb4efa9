"""What a step tells about itself, per segment: everything is a 0-d float32 array in a flat dict, ready for the log.

Means are over the tokens of this batch; where nothing is there to measure the value is 0. All functions are pure and
may run inside the compiled update.
"""

import chex
import jax
import jax.numpy as jnp

from slca_jax.arrays import NONE, SUMMARY, TOOL, Rewards, Segments
from slca_jax.ops.advantages import group_relative, group_sum, presence, route_segments
from slca_jax.ops.estimators import segment_credits
from slca_jax.ops.losses import importance_ratio, kl_k3, masked_mean
from slca_jax.ops.segments import present

NAMES = {TOOL: 'tool', SUMMARY: 'summary'}

Metrics = dict[str, jax.Array]


def policy_metrics(
  logp_BT: jax.Array,
  old_logp_BT: jax.Array,
  ref_logp_BT: jax.Array,
  advantage_BT: jax.Array,
  segments: Segments,
  *,
  clip_low: float = 0.2,
  clip_high: float = 0.2,
) -> Metrics:
  """Of each segment: ratio, clip fraction, KL to the reference, effective sample size, advantage, entropy, tokens.

  `<segment>/clip` counts tokens whose ratio the clip holds back in the direction that the advantage pushes; `ess` is
  (Σρ)² / (n Σρ²) in (0, 1]; `entropy` estimates the sampling policy's by the mean of −log π_old.

  Args:
    logp_BT: log π_θ.
    old_logp_BT: log π_old.
    ref_logp_BT: log π_ref.
    advantage_BT: Â.
    segments: of the batch.
    clip_low: ε_low of the loss.
    clip_high: ε_high of the loss.
  """
  chex.assert_equal_shape([logp_BT, old_logp_BT, ref_logp_BT, advantage_BT, segments.segment_BT])
  ratio_BT, kl_BT = importance_ratio(logp_BT, old_logp_BT), kl_k3(logp_BT, ref_logp_BT)
  held_BT = jnp.where(advantage_BT > 0, ratio_BT > 1 + clip_high, (advantage_BT < 0) & (ratio_BT < 1 - clip_low))
  metrics = {}
  for kind, name in NAMES.items():
    here_BT = segments.segment_BT == kind
    mean, std = _mean_and_std(advantage_BT, here_BT)
    metrics |= {
      f'{name}/ratio': masked_mean(ratio_BT, here_BT),
      f'{name}/clip': masked_mean(held_BT, here_BT),
      f'{name}/kl': masked_mean(kl_BT, here_BT),
      f'{name}/ess': effective_share(ratio_BT, here_BT),
      f'{name}/advantage_mean': mean,
      f'{name}/advantage_std': std,
      f'{name}/entropy': masked_mean(-old_logp_BT, here_BT),
      f'{name}/tokens': jnp.sum(here_BT, dtype=jnp.float32),
    }
  return metrics


def sampler_gap(old_logp_BT: jax.Array, sampler_logp_BT: jax.Array, segments: Segments, *, turns: int) -> Metrics:
  """How far the engine's log-probs are from the trainer's: of all tokens, of each segment, of each of the first turns.

  `gap_mean` and `gap_max` are of |Δ log π|, `kl` is KL(sampler ‖ trainer) by k3, `ess` the share of tokens that
  importance weights would effectively use, `tokens` how many there are: the others say nothing where it is 0. The
  tokens were drawn from the sampler, so k3 with d = log π_old − log π_sampler estimates that divergence.
  """
  chex.assert_equal_shape([old_logp_BT, sampler_logp_BT, segments.segment_BT])
  segment_BT, run_BT = segments.segment_BT, segments.run_BT
  here = {'sampler': segment_BT != NONE}
  here |= {f'sampler/{name}': segment_BT == kind for kind, name in NAMES.items()}
  here |= {f'sampler/turn_{turn}': (segment_BT != NONE) & (run_BT == turn) for turn in range(turns)}
  gap_BT = jnp.abs(old_logp_BT - sampler_logp_BT)
  kl_BT, ratio_BT = kl_k3(sampler_logp_BT, old_logp_BT), importance_ratio(old_logp_BT, sampler_logp_BT)
  metrics = {}
  for name, here_BT in here.items():
    metrics |= {
      f'{name}/gap_mean': masked_mean(gap_BT, here_BT),
      f'{name}/gap_max': jnp.max(jnp.where(here_BT, gap_BT, 0), initial=0).astype(jnp.float32),
      f'{name}/kl': masked_mean(kl_BT, here_BT),
      f'{name}/ess': effective_share(ratio_BT, here_BT),
      f'{name}/tokens': jnp.sum(here_BT, dtype=jnp.float32),
    }
  return metrics


def group_metrics(rewards: Rewards, segments: Segments, rollout_BT: jax.Array) -> Metrics:
  """Of each segment: comparable rollouts per group, and how many groups teach nothing; and how often segments conflict.

  A group is dead for a segment when all its rollouts' advantages there are 0: fewer than two are present, or all their
  rewards are equal. `conflict/*` is the share of rollouts present in both segments whose credits have opposite signs:
  there a unified reward pushes one segment against its own evidence. `conflict/tool_tokens_turned` is the share of tool
  tokens that the unified reward, normalised alone, pushes the other way than the tool reward does.
  """
  rollouts = rewards.group_R.shape[0]
  credits = dict(zip(NAMES, segment_credits(rewards, segments, rollout_BT), strict=True))
  reward_of = {TOOL: rewards.tool_R, SUMMARY: rewards.summary_R}
  one_R = 1 / jnp.maximum(group_sum(jnp.ones(rollouts), rewards.group_R), 1)  # Sums to 1 over a group's rollouts.
  one_R = jnp.where(rewards.group_R >= 0, one_R, 0)
  groups, metrics, here = jnp.maximum(jnp.sum(one_R), 1), {}, {}
  for kind, name in NAMES.items():
    here[kind] = presence(reward_of[kind], rewards.group_R, present(segments, rollout_BT, kind, rollouts))
    size_R = group_sum(here[kind].astype(jnp.float32), rewards.group_R)
    dead_R = group_sum(jnp.abs(credits[kind]), rewards.group_R) == 0
    metrics[f'{name}/group_size'] = jnp.sum(one_R * size_R) / groups
    metrics[f'{name}/dead_groups'] = jnp.sum(jnp.where(dead_R, one_R, 0))
  both_R = here[TOOL] & here[SUMMARY]
  metrics['conflict/tool_down_summary_up'] = masked_mean((credits[TOOL] < 0) & (credits[SUMMARY] > 0), both_R)
  metrics['conflict/tool_up_summary_down'] = masked_mean((credits[TOOL] > 0) & (credits[SUMMARY] < 0), both_R)
  total_R = group_relative(rewards.outcome_R, rewards.group_R)
  turned_R = ((credits[TOOL] < 0) & (total_R > 0)) | ((credits[TOOL] > 0) & (total_R < 0))
  turned_BT = route_segments(turned_R.astype(jnp.float32), jnp.zeros_like(total_R), rollout_BT, segments)
  metrics['conflict/tool_tokens_turned'] = masked_mean(turned_BT, segments.segment_BT == TOOL)
  return metrics


def gradient_cosine(tool_gradient: chex.ArrayTree, summary_gradient: chex.ArrayTree) -> Metrics:
  """Cosine and norms of the gradients through tool and through summary tokens; the cosine is 0 if either is 0."""
  chex.assert_trees_all_equal_shapes(tool_gradient, summary_gradient)
  tool, summary = _inner(tool_gradient, tool_gradient) ** 0.5, _inner(summary_gradient, summary_gradient) ** 0.5
  size = tool * summary
  cosine = jnp.where(size > 0, _inner(tool_gradient, summary_gradient) / jnp.where(size > 0, size, 1), 0)
  return {'gradient/cosine': cosine, 'gradient/tool_norm': tool, 'gradient/summary_norm': summary}


def effective_share(weight_BT: jax.Array, here_BT: jax.Array) -> jax.Array:
  """(Σw)² / (n Σw²): the share of the tokens that a weighted mean effectively uses; 0 where there is none."""
  # In units of the largest weight, whose square may not fit float32.
  weight_BT = jnp.where(here_BT, weight_BT, 0)
  weight_BT = weight_BT / jnp.maximum(jnp.max(weight_BT, initial=0), jnp.finfo(jnp.float32).tiny)
  count, squares = jnp.sum(here_BT, dtype=jnp.float32), jnp.sum(weight_BT**2)
  return jnp.where(squares > 0, jnp.sum(weight_BT) ** 2 / jnp.maximum(count * squares, 1e-30), 0)


def _mean_and_std(x_BT, here_BT):
  mean = masked_mean(x_BT, here_BT)
  return mean, jnp.sqrt(masked_mean((x_BT - mean) ** 2, here_BT))


def _inner(one, other):
  products = jax.tree.map(lambda a, b: jnp.sum(a.astype(jnp.float32) * b.astype(jnp.float32)), one, other)
  return jax.tree.reduce(jnp.add, products, jnp.float32(0))
