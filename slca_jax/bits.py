"""Rows of bits in words of 32: shifts, searches, carries and counts along a row without a scan.

A row of T bits becomes ⌈T/32⌉ uint32 words, axis W, in which an earlier token is a more significant bit: a row is one
large integer. What travels from the end of a row to its start does so as a carry in an addition, which settles 32
tokens at once; the carries between words are the same problem on 1/32 of the size.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

BITS = 32
ALL = np.uint32(0xFFFFFFFF)


def pack(bits_BT: jax.Array) -> jax.Array:
  """The words of a bool array; bits past the end of the row are 0."""
  return jnp.sum(_blocks(bits_BT).astype(jnp.uint32) << _shift(), axis=-1, dtype=jnp.uint32)


def unpack(words_BW: jax.Array, length: int) -> jax.Array:
  """The bool array of `length` tokens per row."""
  bits_BWk = (words_BW[..., None] >> _shift()) & np.uint32(1)
  return _tokens(bits_BWk, length).astype(bool)


def changes(x_BT: jax.Array) -> jax.Array:
  """Bits of the tokens whose value is not that of the token before them; the first of a row always is one.

  Values are at least -1.
  """
  # On CPUs a negative pad fuses into the comparison; roll or concatenate would cost 20 times as much.
  before_BT = lax.pad(x_BT, np.array(-2, x_BT.dtype), ((0, 0, 0), (1, -1, 0)))
  return pack(x_BT != before_BT)


def previous(words_BW: jax.Array) -> jax.Array:
  """Each token's bit replaced by that of the token before it; 0 at the start of a row."""
  before_BW = lax.pad(words_BW, np.uint32(0), ((0, 0, 0), (1, -1, 0)))
  return (words_BW >> 1) | (before_BW << (BITS - 1))


def first(words_BW: jax.Array) -> jax.Array:
  """The position of each row's first set bit; past the end of the row where none is set."""
  words = words_BW.shape[1]
  word_B = jnp.min(jnp.where(words_BW != 0, jnp.arange(words), words), axis=1)
  top_B = jnp.take_along_axis(words_BW, jnp.minimum(word_B, words - 1)[:, None], axis=1)[:, 0]
  return word_B * BITS + jnp.where(word_B < words, lax.clz(top_B).astype(jnp.int32), 0)


def since(position_B: jax.Array, words: int) -> jax.Array:
  """The set bits of each row from a position on, in so many words."""
  before_BW = jnp.clip(position_B[:, None] - BITS * jnp.arange(words), 0, BITS)
  # XLA defines a logical shift by the whole width as 0, which is right for a word that lies before the position.
  return lax.shift_right_logical(jnp.full(before_BW.shape, ALL), before_BW.astype(jnp.uint32))


def carries(generate_BW: jax.Array, propagate_BW: jax.Array) -> jax.Array:
  """The carry that arrives at each bit from the later bits of its row; none enters at the end.

  With x = g | p, the sum x + g has the carry chain wanted: both bits set generate, one propagates, none kills.
  """
  either_BW = generate_BW | propagate_BW
  sum_BW = either_BW + generate_BW
  words = sum_BW.shape[1]
  if words > 1:
    over_BW, full_BW = pack(sum_BW < generate_BW), pack(propagate_BW == ALL)
    sum_BW = sum_BW + unpack(carries(over_BW, full_BW), words).astype(jnp.uint32)
  return propagate_BW ^ sum_BW


def counts(start_BW: jax.Array, border_BW: jax.Array, length: int) -> jax.Array:
  """How many starts there are from each token's last border up to and including the token; int32_BT."""
  inside_BWk, open_BWk = _since_border(start_BW[..., None], border_BW[..., None], ALL << _shift())
  return _tokens(inside_BWk + jnp.where(open_BWk, _entering(start_BW, border_BW)[..., None], 0), length)


def _since_border(start_BW, border_BW, upto):
  """How many starts there are among the tokens `upto` since their last border, and whether there is none among them."""
  seen = border_BW & upto
  # b ^ (b - 1) keeps the tokens from the last border on, and all of them where there is none.
  return lax.population_count(start_BW & upto & (seen ^ (seen - np.uint32(1)))).astype(jnp.int32), seen == 0


def _entering(start_BW, border_BW):
  """How many starts there are before each word since the border that it continues from."""
  inside_BW = lax.population_count(start_BW).astype(jnp.int32)
  total_BW = _running(inside_BW, jnp.sum, jnp.add)
  tail_BW, open_BW = _since_border(start_BW, border_BW, ALL)
  # Totals only grow along a row, so the total before the last border is the largest of those before any border.
  base_BW = jnp.where(open_BW, 0, total_BW + inside_BW - tail_BW)
  return total_BW - _running(base_BW, jnp.max, jnp.maximum)


def _running(x_BW, total, join):
  """The sum or maximum of the non-negative integers in all earlier words."""
  # lax.cumsum becomes a tree of slices that XLA repeats for every token it feeds; a reduction is computed once.
  words, place = x_BW.shape[1], jnp.arange(BITS)
  x_BVk = _blocks(x_BW)
  before_BVk = total(jnp.where(place[:, None] > place, x_BVk[..., None, :], 0), axis=-1)
  if words > BITS:
    before_BVk = join(before_BVk, _running(total(x_BVk, axis=-1), total, join)[..., None])
  return _tokens(before_BVk, words)


def _blocks(x_BT):
  """[B, W, 32], False past the end of the row."""
  rows, length = x_BT.shape
  words = -(-length // BITS)
  return jnp.pad(x_BT, ((0, 0), (0, words * BITS - length))).reshape(rows, words, BITS)


def _tokens(x_BWk, length):
  return x_BWk.reshape(x_BWk.shape[0], -1)[:, :length]


def _shift():
  """How far each of a word's 32 tokens is from the least significant bit."""
  # An iota, not a constant array: loops over a constant do not vectorise on CPUs (20 times slower).
  return np.uint32(BITS - 1) - jnp.arange(BITS, dtype=jnp.uint32)
