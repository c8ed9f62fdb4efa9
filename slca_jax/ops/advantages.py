"""The two verbs every estimator is made of: normalise rewards inside their group, and route them to tokens."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from slca_jax import bits
from slca_jax.arrays import Segments

# A group whose rewards differ by less than this share of their size holds one reward and float32's rounding of it.
_ROUNDING = 1e-6


def group_relative(
  reward_R: jax.Array,
  group_R: jax.Array,
  present_R: jax.Array | None = None,
  *,
  ddof: int = 1,
  eps: float = 1e-6,
  scaled: bool = True,
) -> jax.Array:
  """Each reward relative to the present rollouts of its group, as a float32 z-score; never NaN, never infinite.

  Â_i = (r_i − mean_I) / (std_I + ε) with I the present rollouts of i's group; 0 where i is absent, where |I| < 2 and
  where all rewards of I are equal.

  Args:
    reward_R: one reward per rollout; a NaN (or infinite) one is absent.
    group_R: index of the rollout's group in [0, R), -1 for padding.
    present_R: bool, the rollout takes part; all do where it is None.
    ddof: std divides by |I| − ddof: 1 is the sample deviation, 0 the population's.
    eps: ε, in units of the reward.
    scaled: divide by the deviation; the difference to the mean is left as it is otherwise.

  SLCA-GRPO (arXiv:2609.29050), eqs. 17-20.
  """
  chex.assert_rank([reward_R, group_R], 1)
  chex.assert_equal_shape([reward_R, group_R])
  chex.assert_type([reward_R, group_R], [float, int])
  here_R = presence(reward_R, group_R, present_R)
  reward_R = jnp.where(here_R, reward_R, 0).astype(jnp.float32)
  count_R = group_sum(here_R.astype(jnp.float32), group_R)
  high_R = _group_max(jnp.where(here_R, reward_R, -jnp.inf), group_R)
  low_R = -_group_max(jnp.where(here_R, -reward_R, -jnp.inf), group_R)
  spread_R = high_R - low_R
  rounding_R = _ROUNDING * jnp.maximum(jnp.abs(high_R), jnp.abs(low_R))
  alive_R = here_R & (count_R >= 2) & (spread_R > rounding_R)
  # Rewards in units of their spread: squares neither overflow nor vanish, and the second pass starts near the mean.
  spread_R = jnp.where(alive_R, spread_R, 1)
  unit_R = jnp.where(alive_R, (reward_R - high_R) / spread_R, 0)
  off_R = jnp.where(alive_R, unit_R - group_sum(unit_R, group_R) / jnp.maximum(count_R, 1), 0)
  if not scaled:
    return off_R * spread_R
  std_R = jnp.sqrt(group_sum(off_R**2, group_R) / jnp.maximum(count_R - ddof, 1))
  return jnp.where(alive_R, off_R / (jnp.where(alive_R, std_R, 1) + eps / spread_R), 0)


def route(advantage_RC: jax.Array, rollout_BT: jax.Array, index_BT: jax.Array) -> jax.Array:
  """Per token, the entry of its rollout's row that `index_BT` names; float32, 0 where an index is outside the table.

  Â[t] = advantage[rollout(t), index(t)]

  Args:
    advantage_RC: what each rollout has to give, by segment or by turn.
    rollout_BT: index of the rollout, -1 on prompts and padding.
    index_BT: which column a token takes, -1 for none.
  """
  chex.assert_rank([advantage_RC, rollout_BT, index_BT], 2)
  chex.assert_equal_shape([rollout_BT, index_BT])
  # Where all rewards are equal nothing is to be routed. The branch also keeps XLA from computing the table anew for
  # each token, which on CPUs doubles the time.
  return lax.cond(jnp.any(advantage_RC != 0), _look_up, _nothing, advantage_RC, rollout_BT, index_BT)


def route_segments(
  on_tool_R: jax.Array, on_summary_R: jax.Array, rollout_BT: jax.Array, segments: Segments
) -> jax.Array:
  """Per token, what its rollout gives to its segment; float32, 0 on tokens of no segment.

  What `route` does with a column for each segment, for segments that never exist as an array of numbers.

  Args:
    on_tool_R, on_summary_R: what each rollout has to give.
    rollout_BT: index of the rollout, -1 on prompts and padding.
    segments: of the batch.
  """
  chex.assert_rank([on_tool_R, on_summary_R, rollout_BT], [1, 1, 2])
  chex.assert_shape(rollout_BT, segments.shape)
  something = jnp.any(on_tool_R != 0) | jnp.any(on_summary_R != 0)
  return lax.cond(something, _look_up_segments, _nothing, (on_tool_R, on_summary_R), rollout_BT, segments)


def _look_up_segments(credits_R, rollout_BT, segments):
  rollouts = credits_R[0].shape[0]
  # One zero past the end is where every token outside the table looks; -1 is the largest unsigned number.
  row_BT = jnp.minimum(rollout_BT.astype(jnp.uint32), np.uint32(rollouts))
  table = jnp.pad(jnp.stack(credits_R, axis=1).astype(jnp.float32), ((0, 1), (0, 0))).reshape(-1)
  on_summary_BT = bits.unpack(segments.summary_BW, segments.length)
  credit_BT = _take(table, 2 * row_BT + on_summary_BT.astype(jnp.uint32))
  return jnp.where(bits.unpack(segments.tool_BW | segments.summary_BW, segments.length), credit_BT, 0)


def _look_up(advantage_RC, rollout_BT, index_BT):
  rollouts, columns = advantage_RC.shape
  padded_RC = jnp.pad(advantage_RC.astype(jnp.float32), ((0, 1), (0, 1)))
  row_BT = jnp.minimum(rollout_BT.astype(jnp.uint32), np.uint32(rollouts))
  column_BT = jnp.minimum(index_BT.astype(jnp.int32).astype(jnp.uint32), np.uint32(columns))
  return _take(padded_RC.reshape(-1), row_BT * np.uint32(columns + 1) + column_BT)


def _nothing(_, rollout_BT, __):
  return jnp.zeros(rollout_BT.shape, jnp.float32)


def _take(table, entry):
  return table.at[entry].get(mode='promise_in_bounds', wrap_negative_indices=False)


def presence(reward_R: jax.Array, group_R: jax.Array, present_R: jax.Array | None = None) -> jax.Array:
  """Whether a rollout takes part in its group's statistics: it belongs to a group, has a reward and is present."""
  here_R = jnp.isfinite(reward_R) & (group_R >= 0)
  return here_R if present_R is None else here_R & present_R


def group_sum(x_R: jax.Array, group_R: jax.Array) -> jax.Array:
  """For each rollout, the sum over all rollouts of its group (padding forms a group of its own)."""
  slots = group_R.shape[0] + 1
  group_R = jnp.where(group_R < 0, slots - 1, group_R)
  return jax.ops.segment_sum(x_R, group_R, slots)[group_R]


def _group_max(x_R, group_R):
  slots = group_R.shape[0] + 1
  group_R = jnp.where(group_R < 0, slots - 1, group_R)
  return jax.ops.segment_max(x_R, group_R, slots)[group_R]
