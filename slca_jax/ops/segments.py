"""Runs of sampled tokens and the segments they form, without a scan: rows are packed into big-endian bit words.

A row of T tokens becomes ⌈T/32⌉ uint32 words in which an earlier token is a more significant bit, so a row is one large
integer. "Does a later run of the same rollout follow?" travels from the end of a row to its start as a carry does in an
addition: the start of a run generates it, the border of a rollout kills it, any other token passes it on. One integer
addition settles 32 tokens, and the carries between words are the same problem on 1/32 of the size.
"""

from typing import Literal

import chex
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from slca_jax.arrays import NONE, SUMMARY, TOOL, Segments

Unfinished = Literal['summary', 'tool', 'drop']

_BITS = 32
_ALL = np.uint32(0xFFFFFFFF)


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
    Segments: segment_BT int8, run_BT int32 (-1 where nothing was sampled; a dropped run keeps its index).

  Raises:
    ValueError: `unfinished` is unknown, or it needs finished_R and there is none.

  SLCA-GRPO (arXiv:2609.29050), §3.1 and A.1.
  """
  chex.assert_rank([sampled_BT, rollout_BT], 2)
  chex.assert_equal_shape([sampled_BT, rollout_BT])
  chex.assert_type([sampled_BT, rollout_BT], [bool, int])
  length = sampled_BT.shape[1]
  drawn_BW, border_BW = _pack(sampled_BT & (rollout_BT >= 0)), _borders(rollout_BT)
  start_BW = drawn_BW & (~_previous(drawn_BW) | border_BW)
  later_BW = _carries(start_BW & ~border_BW, ~start_BW & ~border_BW)
  drawn_BT, later_BT = _unpack(drawn_BW, length), _unpack(later_BW, length)
  segment_BT = jnp.where(drawn_BT, jnp.int8(SUMMARY) - later_BT.astype(jnp.int8), jnp.int8(NONE))
  count_BT = _tokens(_counts(start_BW, border_BW), length)
  run_BT = jnp.where(drawn_BT, count_BT - 1, -1)
  return Segments(_settle(segment_BT, rollout_BT, finished_R, unfinished), run_BT)


def present(segments: Segments, rollout_BT: jax.Array, kind: int, num_rollouts: int) -> jax.Array:
  """Whether each of R rollouts has at least one token of the segment `kind`; bool_R.

  A scatter of every token is slow on CPUs. Here each word of 32 tokens is cut at the borders of its rollouts and every
  piece scatters once, so a word costs as many updates as the batch's busiest word has pieces.

  Args:
    segments: of the batch.
    rollout_BT: index of the rollout, -1 on prompts and padding; rollouts are contiguous.
    kind: TOOL or SUMMARY.
    num_rollouts: R.
  """
  chex.assert_equal_shape([segments.segment_BT, rollout_BT])
  has_BW, border_BW = _pack(segments.segment_BT == kind), _borders(rollout_BT)
  rollout_BWk = _blocks(rollout_BT)

  def unfinished_words(state):
    rest_BW, _ = state
    return jnp.any(has_BW & rest_BW != 0)

  def take_piece(state):
    rest_BW, seen_R = state
    # The piece's own first token is the top bit of the rest; the next border below it ends the piece.
    after_BW = _down_from_top(border_BW & (_down_from_top(rest_BW) >> 1))
    first_BW = lax.clz(rest_BW).astype(jnp.int32)
    id_BW = jnp.take_along_axis(rollout_BWk, first_BW[..., None], axis=-1, mode='clip')[..., 0]
    hit_BW = (has_BW & rest_BW & ~after_BW != 0) & (id_BW >= 0)
    seen_R = seen_R.at[jnp.where(hit_BW, id_BW, num_rollouts)].set(True, mode='drop')
    return after_BW, seen_R

  start = jnp.full_like(has_BW, _ALL), jnp.zeros(num_rollouts, bool)
  return lax.while_loop(unfinished_words, take_piece, start)[1]


def _settle(segment_BT, rollout_BT, finished_R, unfinished):
  """The segments with the last run of each unfinished rollout given to what `unfinished` names."""
  if unfinished == 'summary':
    return segment_BT
  if unfinished not in ('tool', 'drop'):
    raise ValueError(f"unfinished is {unfinished!r}; it takes 'summary', 'tool' or 'drop'")
  if finished_R is None:
    raise ValueError(f'unfinished={unfinished!r} needs finished_R: one bool per rollout, from the host')
  chex.assert_rank(finished_R, 1)
  chex.assert_type(finished_R, bool)
  cut_BT = (segment_BT == SUMMARY) & ~finished_R[jnp.maximum(rollout_BT, 0)]
  return jnp.where(cut_BT, jnp.int8(TOOL if unfinished == 'tool' else NONE), segment_BT)


def _blocks(x_BT):
  """[B, W, 32], False past the end of the row."""
  rows, length = x_BT.shape
  words = -(-length // _BITS)
  return jnp.pad(x_BT, ((0, 0), (0, words * _BITS - length))).reshape(rows, words, _BITS)


def _shift():
  """How far each of a word's 32 tokens is from the least significant bit."""
  # An iota, not a constant array: loops over a constant do not vectorise on CPUs (20 times slower).
  return np.uint32(_BITS - 1) - jnp.arange(_BITS, dtype=jnp.uint32)


def _pack(bits_BT):
  return jnp.sum(_blocks(bits_BT).astype(jnp.uint32) << _shift(), axis=-1, dtype=jnp.uint32)


def _unpack(words_BW, length):
  bits_BWk = (words_BW[..., None] >> _shift()) & np.uint32(1)
  return _tokens(bits_BWk, length).astype(bool)


def _tokens(x_BWk, length):
  return x_BWk.reshape(x_BWk.shape[0], -1)[:, :length]


def _previous(words_BW):
  """Each token's bit replaced by that of the token before it; 0 at the start of a row."""
  before_BW = lax.pad(words_BW, np.uint32(0), ((0, 0, 0), (1, -1, 0)))
  return (words_BW >> 1) | (before_BW << (_BITS - 1))


def _borders(rollout_BT):
  """Bits of the tokens whose rollout is not that of the token before them; the first of a row always is one."""
  # On CPUs a negative pad fuses into the comparison; roll or concatenate would cost 20 times as much.
  before_BT = lax.pad(rollout_BT, np.array(-2, rollout_BT.dtype), ((0, 0, 0), (1, -1, 0)))
  return _pack(rollout_BT != before_BT)


def _down_from_top(words_BW):
  """The highest set bit of each word and every bit below it."""
  # XLA defines a logical shift by the whole width as 0, which is right for the empty word.
  return lax.shift_right_logical(jnp.full_like(words_BW, _ALL), lax.clz(words_BW))


def _carries(generate_BW, propagate_BW):
  """The carry that arrives at each bit from the less significant (later) bits of its row; none enters at the end.

  With x = g | p, the sum x + g has the carry chain wanted: both bits set generate, one propagates, none kills.
  """
  either_BW = generate_BW | propagate_BW
  sum_BW = either_BW + generate_BW
  words = sum_BW.shape[1]
  if words > 1:
    over_BW, full_BW = _pack(sum_BW < generate_BW), _pack(propagate_BW == _ALL)
    sum_BW = sum_BW + _unpack(_carries(over_BW, full_BW), words).astype(jnp.uint32)
  return propagate_BW ^ sum_BW


def _since_border(start_BW, border_BW, upto):
  """How many runs start among the tokens `upto` since their last border, and whether there is no border among them."""
  seen = border_BW & upto
  # b ^ (b - 1) keeps the tokens from the last border on, and all of them where there is none.
  return lax.population_count(start_BW & upto & (seen ^ (seen - np.uint32(1)))).astype(jnp.int32), seen == 0


def _entering(start_BW, border_BW):
  """How many runs have started before each word in the rollout that reaches into it."""
  inside_BW = lax.population_count(start_BW).astype(jnp.int32)
  total_BW = _running(inside_BW, jnp.sum, jnp.add)
  tail_BW, open_BW = _since_border(start_BW, border_BW, _ALL)
  # Totals only grow along a row, so the total before the last border is the largest of those before any border.
  base_BW = jnp.where(open_BW, 0, total_BW + inside_BW - tail_BW)
  return total_BW - _running(base_BW, jnp.max, jnp.maximum)


def _running(x_BW, total, join):
  """The sum or maximum of the non-negative integers in all earlier words."""
  # lax.cumsum becomes a tree of slices that XLA repeats for every token it feeds; a reduction is computed once.
  words, place = x_BW.shape[1], jnp.arange(_BITS)
  x_BVk = _blocks(x_BW)
  before_BVk = total(jnp.where(place[:, None] > place, x_BVk[..., None, :], 0), axis=-1)
  if words > _BITS:
    before_BVk = join(before_BVk, _running(total(x_BVk, axis=-1), total, join)[..., None])
  return _tokens(before_BVk, words)


def _counts(start_BW, border_BW):
  """How many runs of its rollout have started at or before each token; [B, W, 32]."""
  inside_BWk, open_BWk = _since_border(start_BW[..., None], border_BW[..., None], _ALL << _shift())
  return inside_BWk + jnp.where(open_BWk, _entering(start_BW, border_BW)[..., None], 0)
