"""Attention over rows of trees under the one rule of `visibility.py`, and two ways to compute it.

`dense` holds the scores of a whole row. `blocks` walks over blocks of keys with a running softmax, skips block pairs in
which nobody can see anybody, and recomputes the scores in its backward pass, so its memory is linear in T.

Axes beside the package's legend: G query heads per key-value head, I and J blocks of queries and of keys, U and W their
tokens, M = U·G query rows of a block, C = K·H.
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from slca_jax.nn import sharding
from slca_jax.nn.config import Backend
from slca_jax.nn.visibility import Ids, sees, visible_blocks, walk

# A masked score lies far below the running maximum's start, so it vanishes even in a block that has shown nothing yet.
_MASKED, _LOWEST = -1e30, -1e20
_BLOCK = 128
_SHORT_BLOCK, _SHORT = 64, 256
_DENSE_UP_TO = {'cpu': 64, 'gpu': 512, 'tpu': 512}
_dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def attend(q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, ids_BT: Ids, *, backend: Backend = 'auto'):
  """Attention under `sees`: out = softmax(q·k / √H) v over the keys a query sees, 0 where it sees none.

  Query heads n·G … n·G + G − 1 share key-value head n. Scores and softmax are float32.

  Args:
    backend: 'dense', 'blocks', or 'auto' to choose by row length and platform.

  Returns:
    out_BTNH in the type of q_BTNH.
  """
  chex.assert_rank([q_BTNH, k_BTKH, v_BTKH], 4)
  chex.assert_equal_shape([k_BTKH, v_BTKH])
  chex.assert_equal_shape(list(ids_BT))
  if backend == 'auto':
    backend = 'dense' if q_BTNH.shape[1] <= _DENSE_UP_TO.get(jax.default_backend(), 512) else 'blocks'
  if backend == 'dense':
    mask_BTT = sees(Ids(*(x[:, :, None] for x in ids_BT)), Ids(*(x[:, None, :] for x in ids_BT)))
    return _dense(q_BTNH, k_BTKH, v_BTKH, mask_BTT)
  return _on_each_device(_blocks)(q_BTNH, k_BTKH, v_BTKH, ids_BT, ids_BT)


def _dense(q_BTNH, k_BSKH, v_BSKH, mask_BTS):
  B, T, N, H = q_BTNH.shape
  S, K = k_BSKH.shape[1:3]
  # Plain batched matrix products: with T and G apart, the CPU backend falls into a much slower path.
  q_BKMH = q_BTNH.reshape(B, T, K, N // K, H).transpose(0, 2, 1, 3, 4).reshape(B, K, -1, H)
  scores_BKMS = _dot('BKMH,BKSH->BKMS', q_BKMH, k_BSKH.swapaxes(1, 2)) * H**-0.5
  scores_BKTGS = jnp.where(mask_BTS[:, None, :, None], scores_BKMS.reshape(B, K, T, -1, S), _MASKED)
  probs_BKTGS = jax.nn.softmax(scores_BKTGS, axis=-1).astype(v_BSKH.dtype)
  out_BKMH = _dot('BKMS,BKSH->BKMH', probs_BKTGS.reshape(B, K, -1, S), v_BSKH.swapaxes(1, 2))
  out_BTNH = out_BKMH.reshape(B, K, T, -1, H).transpose(0, 2, 1, 3, 4).reshape(B, T, N, H)
  return jnp.where(mask_BTS.any(-1)[..., None, None], out_BTNH, 0).astype(q_BTNH.dtype)


def _on_each_device(function):
  """`function` on each device's own rows and heads: the partitioner would gather a loop over rows on every device."""

  def spread(q_BTNH, k_BSKH, v_BSKH, q_ids, k_ids):
    rows, heads = sharding.attention_axes(q_BTNH.shape[0], k_BSKH.shape[2])
    if rows is None and heads is None:
      return function(q_BTNH, k_BSKH, v_BSKH, q_ids, k_ids)
    spec, flat = PartitionSpec(rows, None, heads, None), PartitionSpec(rows, None)
    specs = spec, spec, spec, (flat, flat, flat), (flat, flat, flat)
    local = jax.shard_map(
      lambda q, k, v, a, b: function(q, k, v, Ids(*a), Ids(*b)), in_specs=specs, out_specs=spec, check_vma=False
    )
    return local(q_BTNH, k_BSKH, v_BSKH, tuple(q_ids), tuple(k_ids))

  return spread


def _blocks(q_BTNH, k_BSKH, v_BSKH, q_ids, k_ids):
  B, T, N, H = q_BTNH.shape
  S, K = k_BSKH.shape[1:3]
  G, U, W = N // K, _block(T), _block(S)
  q_BIKMH = _cut(q_BTNH, U).reshape(B, -1, U, K, G, H).transpose(0, 1, 3, 2, 4, 5).reshape(B, -1, K, U * G, H)
  k_BJKWH, v_BJKWH = _cut(k_BSKH, W).swapaxes(2, 3), _cut(v_BSKH, W).swapaxes(2, 3)
  q_ids = Ids(*(_cut(x, U, -1) for x in q_ids))
  k_ids = Ids(*(_cut(x, W, -1) for x in k_ids))
  out_BIKMH = _flash(q_BIKMH, k_BJKWH, v_BJKWH, q_ids, k_ids)
  out_BIUKGH = out_BIKMH.reshape(B, -1, K, U, G, H).transpose(0, 1, 3, 2, 4, 5)
  return out_BIUKGH.reshape(B, -1, N, H)[:, :T]


def _block(size):
  """Tokens of a block: long ones carry less overhead, short ones skip more of a short row."""
  return min(size, _SHORT_BLOCK if size <= _SHORT else _BLOCK)


def _cut(x, size, fill=0):
  """B, T, … as B, blocks, size, …; the last block is filled up."""
  short = -x.shape[1] % size
  x = jnp.pad(x, ((0, 0), (0, short), *[(0, 0)] * (x.ndim - 2)), constant_values=fill)
  return x.reshape(x.shape[0], -1, size, *x.shape[2:])


@jax.custom_vjp
def _flash(q_BIKMH, k_BJKWH, v_BJKWH, q_ids, k_ids):
  return _flash_forward(q_BIKMH, k_BJKWH, v_BJKWH, q_ids, k_ids)[0]


def _flash_forward(q_BIKMH, k_BJKWH, v_BJKWH, q_ids, k_ids):
  # A map over rows, since vmap would give every row the visits of the busiest one.
  row = (q_BIKMH, k_BJKWH, v_BJKWH, q_ids, k_ids, walk(visible_blocks(q_ids, k_ids)))
  out_BIKMH, lse_BIKM = jax.lax.map(_row_forward, row)
  return out_BIKMH, (row, out_BIKMH, lse_BIKM)


def _flash_backward(residuals, grad_BIKMH):
  row, out_BIKMH, lse_BIKM = residuals
  delta_BIKM = _dot('BIKMH,BIKMH->BIKM', out_BIKMH, grad_BIKMH)
  dq_BIKMH, dk_BJKWH, dv_BJKWH = jax.lax.map(_row_backward, (row, grad_BIKMH, lse_BIKM, delta_BIKM))
  return dq_BIKMH, dk_BJKWH, dv_BJKWH, None, None


_flash.defvjp(_flash_forward, _flash_backward)


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


def _close(done: _Softmax):
  """(out_XMC, log Σ exp scores), both 0 for a query that saw nothing."""
  seen_XM = done.sum_XM > 0
  sum_XM = jnp.where(seen_XM, done.sum_XM, 1)
  return done.out_XMC / sum_XM[..., None], jnp.where(seen_XM, done.top_XM + jnp.log(sum_XM), 0)


def _scores(q_KMH, k_KWH, q_ids, k_ids):
  """Scores of one block pair, masked."""
  mask_UW = sees(Ids(*(x[:, None] for x in q_ids)), k_ids)
  mask_MW = jnp.repeat(mask_UW, q_KMH.shape[1] // mask_UW.shape[0], axis=0)
  scores_KMW = _dot('KMH,KWH->KMW', q_KMH, k_KWH) * q_KMH.shape[-1] ** -0.5
  return jnp.where(mask_MW, scores_KMW, _MASKED)


def _row_forward(row):
  q_IKMH, k_JKWH, v_JKWH, q_ids, k_ids, plan = row

  def query_block(block):
    q_KMH, q_ids, order_J, count = block

    def visit(i, carry):
      j = order_J[i]
      return _accumulate(carry, _scores(q_KMH, k_JKWH[j], q_ids, Ids(*(x[j] for x in k_ids))), v_JKWH[j])

    out_KMH, lse_KM = _close(jax.lax.fori_loop(0, count, visit, _nothing(q_KMH)))
    return out_KMH.astype(q_KMH.dtype), lse_KM

  return jax.lax.map(query_block, (q_IKMH, q_ids, *plan))


def _row_backward(args):
  (q_IKMH, k_JKWH, v_JKWH, q_ids, k_ids, plan), grad_IKMH, lse_IKM, delta_IKM = args

  def query_block(carry, block):
    q_KMH, q_ids, order_J, count, grad_KMH, lse_KM, delta_KM = block

    def visit(i, carry):
      dq_KMH, dk_JKWH, dv_JKWH = carry
      j = order_J[i]
      k_KWH, v_KWH = k_JKWH[j], v_JKWH[j]
      probs_KMW = jnp.exp(_scores(q_KMH, k_KWH, q_ids, Ids(*(x[j] for x in k_ids))) - lse_KM[..., None])
      dprobs_KMW = _dot('KMH,KWH->KMW', grad_KMH, v_KWH)
      dscores_KMW = (probs_KMW * (dprobs_KMW - delta_KM[..., None]) * q_KMH.shape[-1] ** -0.5).astype(q_KMH.dtype)
      dv_JKWH = dv_JKWH.at[j].add(_dot('KMW,KMH->KWH', probs_KMW.astype(grad_KMH.dtype), grad_KMH))
      dk_JKWH = dk_JKWH.at[j].add(_dot('KMW,KMH->KWH', dscores_KMW, q_KMH))
      return dq_KMH + _dot('KMW,KWH->KMH', dscores_KMW, k_KWH), dk_JKWH, dv_JKWH

    dq_KMH, *carry = jax.lax.fori_loop(0, count, visit, (jnp.zeros(q_KMH.shape, jnp.float32), *carry))
    return tuple(carry), dq_KMH.astype(q_KMH.dtype)

  start = jnp.zeros(k_JKWH.shape, jnp.float32), jnp.zeros(v_JKWH.shape, jnp.float32)
  blocks = (q_IKMH, q_ids, *plan, grad_IKMH, lse_IKM, delta_IKM)
  (dk_JKWH, dv_JKWH), dq_IKMH = jax.lax.scan(query_block, start, blocks)
  return dq_IKMH, dk_JKWH.astype(k_JKWH.dtype), dv_JKWH.astype(v_JKWH.dtype)
