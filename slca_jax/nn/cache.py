"""Keys and values of rows that are being sampled, and attention over them.

Axes beside the package's legend: S positions of a row, W positions of a block, G query heads per key-value head, M
query rows of a block, C = K·H.
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import struct

from slca_jax.nn.config import TransformerConfig

# A masked score lies far below the running maximum's start, so it vanishes even in a block that has shown nothing yet.
_MASKED, _LOWEST = -1e30, -1e20
_BLOCK = {'cpu': 128}
_dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


@struct.dataclass
class KVCache:
  """Keys and values of rows being sampled; index S is a token's absolute position in its row."""

  k_LBSKH: jax.Array
  v_LBSKH: jax.Array


def empty_cache(config: TransformerConfig, rows: int, positions: int, dtype: str | None = None) -> KVCache:
  """A cache of zeros for `rows` rows of up to `positions` tokens; `dtype` is the activations' unless given."""
  shape = config.layers, rows, positions, config.kv_heads, config.head_dim
  return KVCache(jnp.zeros(shape, dtype or config.dtype), jnp.zeros(shape, dtype or config.dtype))


def write(cache_LBSKH: jax.Array, new_BTKH: jax.Array, layer: jax.Array, position_BT: jax.Array) -> jax.Array:
  """The cache with `new_BTKH` at its positions of one layer; a position of -1 is dropped."""
  S = cache_LBSKH.shape[2]
  row_BT = jnp.broadcast_to(jnp.arange(position_BT.shape[0])[:, None], position_BT.shape)
  # Negative indices would count from the end; one beyond the end is dropped.
  slot_BT = jnp.where(position_BT < 0, S, position_BT)
  return cache_LBSKH.at[layer, row_BT, slot_BT].set(new_BTKH.astype(cache_LBSKH.dtype), mode='drop')


def attend_cache(
  q_BTNH: jax.Array, k_LBSKH: jax.Array, v_LBSKH: jax.Array, layer: jax.Array, position_BT: jax.Array
) -> jax.Array:
  """out_BTNH of queries at `position_BT` over the entries of one layer's cache up to there; 0 at a position of −1.

  The cost grows with the greatest position, not with the size of the cache. What a row gets does not depend, not even
  in its last bit, on how far the other rows are: a block that shows a row nothing leaves its sums as they are.
  """
  chex.assert_rank([q_BTNH, k_LBSKH, v_LBSKH], [4, 5, 5])
  chex.assert_equal_shape([k_LBSKH, v_LBSKH])
  B, T, N, H = q_BTNH.shape
  S, K = k_LBSKH.shape[2:4]
  W = min(S, _BLOCK.get(jax.default_backend(), 1024))
  # All heads meet all key-value heads in one product, and what belongs to strangers is dropped at the end. Reading the
  # cache is the cost here, so the extra arithmetic is free, and the cache need not be transposed.
  own_NK = jnp.repeat(jnp.eye(K, dtype=q_BTNH.dtype), N // K, axis=0)
  q_BMC = (q_BTNH[:, :, :, None] * own_NK[..., None]).reshape(B, T * N, K * H)

  def visit(j, carry):
    start = jnp.minimum(j * W, S - W)
    slot_W = start + jnp.arange(W)
    # The last block is pulled back to end with the cache; what an earlier block showed is not shown again.
    mask_BTW = (slot_W <= position_BT[..., None]) & (slot_W >= j * W)
    k_BWC, v_BWC = (
      jax.lax.dynamic_slice(x, (layer, 0, start, 0, 0), (1, B, W, K, H)).reshape(B, W, K * H).astype(q_BMC.dtype)
      for x in (k_LBSKH, v_LBSKH)
    )
    mask_BMW = jnp.repeat(mask_BTW, N, axis=1)
    scores_BMW = jnp.where(mask_BMW, _dot('BMC,BWC->BMW', q_BMC, k_BWC) * H**-0.5, _MASKED)
    return _accumulate(carry, scores_BMW, v_BWC)

  blocks = jnp.max(position_BT) // W + 1
  out_BMC = _close(jax.lax.fori_loop(0, blocks, visit, _nothing(q_BMC)))
  out_BTNH = (out_BMC.reshape(B, T, N, K, H) * own_NK[..., None]).sum(3)
  return out_BTNH.astype(q_BTNH.dtype)


class _Softmax(NamedTuple):
  """A softmax under way, for queries X, M that meet their keys block by block."""

  top_XM: jax.Array
  sum_XM: jax.Array
  out_XMC: jax.Array


def _nothing(q_XMC) -> _Softmax:
  zeros_XM = jnp.zeros(q_XMC.shape[:-1], jnp.float32)
  return _Softmax(zeros_XM + _LOWEST, zeros_XM, jnp.zeros(q_XMC.shape, jnp.float32))


def _accumulate(so_far: _Softmax, scores_XMW, v_XWC) -> _Softmax:
  top_XM = jnp.maximum(so_far.top_XM, scores_XMW.max(-1))
  probs_XMW = jnp.exp(scores_XMW - top_XM[..., None])
  decay_XM = jnp.exp(so_far.top_XM - top_XM)
  add_XMC = _dot('XMW,XWC->XMC', probs_XMW.astype(v_XWC.dtype), v_XWC)
  sum_XM = so_far.sum_XM * decay_XM + probs_XMW.sum(-1)
  return _Softmax(top_XM, sum_XM, so_far.out_XMC * decay_XM[..., None] + add_XMC)


def _close(done: _Softmax) -> jax.Array:
  """out_XMC, 0 for a query that saw nothing."""
  sum_XM = jnp.where(done.sum_XM > 0, done.sum_XM, 1)
  return done.out_XMC / sum_XM[..., None]
