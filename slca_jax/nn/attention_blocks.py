"""Attention wherever XLA compiles: a walk over blocks of keys with a running softmax.

Pairs of blocks in which nobody can see anybody are skipped, and the backward pass recomputes the scores of the others,
so memory is linear in T. Rows may hold their tokens in any order.

Axes beside the package's legend: G query heads per key-value head, I and J blocks of queries and of keys, U and W their
tokens, M = U·G query rows of a block.
"""

import jax
import jax.numpy as jnp

from slca_jax.nn.softmax import accumulate, close, dot, keep, nothing
from slca_jax.nn.visibility import MASKED, Ids, cut, sees, visible_blocks, walk

_SHORT = 256


def blocks(q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, ids_BT: Ids, *, block: int | None = None):
  """out_BTNH = softmax(q·k / √H) v over the keys a query sees, 0 where it sees none.

  Args:
    block: tokens of a block. Unless given, 128, and 64 in rows of up to 256 tokens: long blocks carry less overhead,
      short ones skip more of a short row.
  """
  (B, T, N, H), K = q_BTNH.shape, k_BTKH.shape[2]
  block = min(T, block or (64 if T <= _SHORT else 128))
  grouped_BIUKGH = cut(q_BTNH, block).reshape(B, -1, block, K, N // K, H)
  q_BIKMH = grouped_BIUKGH.transpose(0, 1, 3, 2, 4, 5).reshape(B, -1, K, block * N // K, H)
  k_BJKWH, v_BJKWH = cut(k_BTKH, block).swapaxes(2, 3), cut(v_BTKH, block).swapaxes(2, 3)
  out_BIKMH = _flash(q_BIKMH, k_BJKWH, v_BJKWH, Ids(*(cut(x, block, -1) for x in ids_BT)))
  out_BIUKGH = out_BIKMH.reshape(B, -1, K, block, N // K, H).transpose(0, 1, 3, 2, 4, 5)
  return out_BIUKGH.reshape(B, -1, N, H)[:, :T]


@jax.custom_vjp
def _flash(q_BIKMH, k_BJKWH, v_BJKWH, ids_BIU):
  return _flash_forward(q_BIKMH, k_BJKWH, v_BJKWH, ids_BIU)[0]


def _flash_forward(q_BIKMH, k_BJKWH, v_BJKWH, ids_BIU):
  # A map over rows, since vmap would give every row the visits of the busiest one.
  row = (q_BIKMH, k_BJKWH, v_BJKWH, ids_BIU, walk(visible_blocks(ids_BIU, ids_BIU)))
  out_BIKMH, lse_BIKM = keep(*jax.lax.map(_row_forward, row))
  return out_BIKMH, (row, out_BIKMH, lse_BIKM)


def _flash_backward(residuals, grad_BIKMH):
  row, out_BIKMH, lse_BIKM = residuals
  delta_BIKM = dot('BIKMH,BIKMH->BIKM', out_BIKMH, grad_BIKMH)
  dq_BIKMH, dk_BJKWH, dv_BJKWH = jax.lax.map(_row_backward, (row, grad_BIKMH, lse_BIKM, delta_BIKM))
  return dq_BIKMH, dk_BJKWH, dv_BJKWH, None


_flash.defvjp(_flash_forward, _flash_backward)


def _scores(q_KMH, k_KWH, q_ids, k_ids):
  """Scores of one block pair, masked."""
  mask_UW = sees(Ids(*(x[:, None] for x in q_ids)), k_ids)
  mask_MW = jnp.repeat(mask_UW, q_KMH.shape[1] // mask_UW.shape[0], axis=0)
  scores_KMW = dot('KMH,KWH->KMW', q_KMH, k_KWH) * q_KMH.shape[-1] ** -0.5
  return jnp.where(mask_MW, scores_KMW, MASKED)


def _row_forward(row):
  q_IKMH, k_JKWH, v_JKWH, ids_IU, plan = row

  def query_block(block):
    q_KMH, q_ids, order_J, count = block

    def visit(i, carry):
      j = order_J[i]
      return accumulate(carry, _scores(q_KMH, k_JKWH[j], q_ids, Ids(*(x[j] for x in ids_IU))), v_JKWH[j])

    out_KMH, lse_KM = close(jax.lax.fori_loop(0, count, visit, nothing(q_KMH)))
    return out_KMH.astype(q_KMH.dtype), lse_KM

  return jax.lax.map(query_block, (q_IKMH, ids_IU, *plan))


def _row_backward(args):
  (q_IKMH, k_JKWH, v_JKWH, ids_IU, plan), grad_IKMH, lse_IKM, delta_IKM = args

  def query_block(carry, block):
    q_KMH, q_ids, order_J, count, grad_KMH, lse_KM, delta_KM = block

    def visit(i, carry):
      dq_KMH, dk_JKWH, dv_JKWH = carry
      j = order_J[i]
      k_KWH, v_KWH = k_JKWH[j], v_JKWH[j]
      probs_KMW = jnp.exp(_scores(q_KMH, k_KWH, q_ids, Ids(*(x[j] for x in ids_IU))) - lse_KM[..., None])
      dprobs_KMW = dot('KMH,KWH->KMW', grad_KMH, v_KWH)
      dscores_KMW = (probs_KMW * (dprobs_KMW - delta_KM[..., None]) * q_KMH.shape[-1] ** -0.5).astype(q_KMH.dtype)
      dv_JKWH = dv_JKWH.at[j].add(dot('KMW,KMH->KWH', probs_KMW.astype(grad_KMH.dtype), grad_KMH))
      dk_JKWH = dk_JKWH.at[j].add(dot('KMW,KMH->KWH', dscores_KMW, q_KMH))
      return dq_KMH + dot('KMW,KWH->KMH', dscores_KMW, k_KWH), dk_JKWH, dv_JKWH

    dq_KMH, *carry = jax.lax.fori_loop(0, count, visit, (jnp.zeros(q_KMH.shape, jnp.float32), *carry))
    return tuple(carry), dq_KMH.astype(q_KMH.dtype)

  start = jnp.zeros(k_JKWH.shape, jnp.float32), jnp.zeros(v_JKWH.shape, jnp.float32)
  blocks = (q_IKMH, ids_IU, *plan, grad_IKMH, lse_IKM, delta_IKM)
  (dk_JKWH, dv_JKWH), dq_IKMH = jax.lax.scan(query_block, start, blocks)
  return dq_IKMH, dk_JKWH.astype(k_JKWH.dtype), dv_JKWH.astype(v_JKWH.dtype)
