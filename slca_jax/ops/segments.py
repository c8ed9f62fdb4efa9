"""Runs of sampled tokens and the segments they form, computed on bit words.

"Does a later run of the same rollout follow?" travels from the end of a row to its start as a carry does: the start of
a run generates it, the border of a rollout kills it, any other token passes it on.
"""

from typing import Literal

import chex
import jax
import jax.numpy as jnp
from jax import lax

from slca_jax import bits
from slca_jax.arrays import SUMMARY, TOOL, Segments

Unfinished = Literal['summary', 'tool', 'drop']


def segment_runs(
  sampled_BT: jax.Array,
  rollout_BT: jax.Array,
  finished_R: jax.Array | None = None,
  *,
  unfinished: Unfinished = 'summary',
) -> Segments:
  """Per token, the index of its run inside its rollout and the segment that run belongs to.

  A run is a maximal stretch of sampled tokens inside one rollout. The last run of a rollout is its SUMMARY, all earlier
  ones are TOOL; tokens that were not sampled, prompts and padding are NONE.

  Args:
    sampled_BT: bool, the policy drew this token.
    rollout_BT: integer index of the rollout, -1 on prompts and padding; a rollout is contiguous in its row.
    finished_R: bool, the rollout ended by itself. Only `unfinished` other than 'summary' reads it.
    unfinished: what the last run of a rollout that was cut off counts as: 'summary' (the literal rule), 'tool', or
      'drop' (NONE: it leaves the loss, which must weigh tokens by `segment != NONE`).

  Returns:
    Segments; a dropped run keeps its index.

  Raises:
    ValueError: `unfinished` is unknown, or it needs finished_R and there is none.

  SLCA-GRPO (arXiv:2609.29050), §3.1 and A.1.
  """
  chex.assert_rank([sampled_BT, rollout_BT], 2)
  chex.assert_equal_shape([sampled_BT, rollout_BT])
  chex.assert_type([sampled_BT, rollout_BT], [bool, int])
  drawn_BW, border_BW = bits.pack(sampled_BT & (rollout_BT >= 0)), bits.changes(rollout_BT)
  start_BW = drawn_BW & (~bits.previous(drawn_BW) | border_BW)
  later_BW = bits.carries(start_BW & ~border_BW, ~start_BW & ~border_BW)
  tool_BW, last_BW = drawn_BW & later_BW, drawn_BW & ~later_BW
  cut_BW = _cut(last_BW, rollout_BT, finished_R, unfinished)
  if unfinished == 'tool':
    tool_BW = tool_BW | cut_BW
  return Segments(tool_BW, last_BW & ~cut_BW, drawn_BW, start_BW, border_BW, sampled_BT.shape[1])


def present(segments: Segments, rollout_BT: jax.Array, kind: int, num_rollouts: int) -> jax.Array:
  """Whether each of R rollouts has at least one token of the segment `kind`; bool_R.

  A scatter of every token is slow on CPUs. Here every row scatters once per rollout that it holds: its first token of
  the segment is found in the bit words, and all that follow up to the next border are cleared.

  Args:
    segments: of the batch.
    rollout_BT: index of the rollout, -1 on prompts and padding; rollouts are contiguous.
    kind: TOOL or SUMMARY.
    num_rollouts: R.
  """
  chex.assert_shape(rollout_BT, segments.shape)
  length = rollout_BT.shape[1]
  has_BW = {TOOL: segments.tool_BW, SUMMARY: segments.summary_BW}[kind]

  def left(state):
    rest_BW, _ = state
    return jnp.any(rest_BW != 0)

  def take_first(state):
    rest_BW, seen_R = state
    first_B = bits.first(rest_BW)
    id_B = jnp.take_along_axis(rollout_BT, jnp.minimum(first_B, length - 1)[:, None], axis=1)[:, 0]
    hit_B = (first_B < length) & (id_B >= 0)
    seen_R = seen_R.at[jnp.where(hit_B, id_B, num_rollouts)].set(True, mode='drop')
    end_B = bits.first(segments.border_BW & bits.since(first_B + 1, rest_BW.shape[1]))
    return rest_BW & bits.since(end_B, rest_BW.shape[1]), seen_R

  return lax.while_loop(left, take_first, (has_BW, jnp.zeros(num_rollouts, bool)))[1]


def _cut(last_BW, rollout_BT, finished_R, unfinished):
  """The last runs that are not to count as a summary: those of unfinished rollouts, unless the literal rule holds."""
  if unfinished == 'summary':
    return jnp.zeros_like(last_BW)
  if unfinished not in ('tool', 'drop'):
    raise ValueError(f"unfinished is {unfinished!r}; it takes 'summary', 'tool' or 'drop'")
  if finished_R is None:
    raise ValueError(f'unfinished={unfinished!r} needs finished_R: one bool per rollout, from the host')
  chex.assert_rank(finished_R, 1)
  chex.assert_type(finished_R, bool)
  return last_BW & bits.pack(~finished_R[jnp.maximum(rollout_BT, 0)])
