"""Who sees whom in a row of trees, and two ways to attend under that one rule.

`dense` holds the scores of a whole row. `blocks` walks over blocks of keys with a running softmax, skips block pairs in
which nobody can see anybody, and recomputes the scores in its backward pass, so its memory is linear in T.

Axes beside the package's legend: G query heads per key-value head, I and J blocks of queries and of keys, U tokens of a
block, M = U·G query rows of a block.
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from slca_jax.nn import sharding
from slca_jax.nn.config import Backend

# A masked score lies far below the running maximum's start, so it vanishes even in a block that has shown nothing yet.
_MASKED, _LOWEST = -1e30, -1e20
_FAR = jnp.iinfo(jnp.int32).max
_BLOCK = 64
_DENSE_UP_TO = {'cpu': 192, 'gpu': 512, 'tpu': 512}


class Ids(NamedTuple):
  """What decides who sees whom: the tree, the branch (-1 on its prompt) and the depth of each token."""

  prompt: jax.Array
  rollout: jax.Array
  position: jax.Array


def sees(q: Ids, k: Ids) -> jax.Array:
  """Whether query q may look at key k, for ids that broadcast against each other.

  sees(q, k) = prompt_q = prompt_k ≥ 0  ∧  position_k ≤ position_q  ∧  (rollout_k = −1  ∨  rollout_k = rollout_q)
  """
  tree = (q.prompt == k.prompt) & (k.prompt >= 0)
  return tree & (k.position <= q.position) & ((k.rollout < 0) | (k.rollout == q.rollout))


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
    return masked_attention(q_BTNH, k_BTKH, v_BTKH, mask_BTT)
  return _spread(_blocks)(q_BTNH, k_BTKH, v_BTKH, ids_BT)


def masked_attention(q_BTNH: jax.Array, k_BSKH: jax.Array, v_BSKH: jax.Array, mask_BTS: jax.Array) -> jax.Array:
  """out_BTNH = softmax(q·k / √H) v over the keys where `mask_BTS` holds, 0 for a query without any."""
  B, T, N, H = q_BTNH.shape
  K = k_BSKH.shape[2]
  q_BTKGH = q_BTNH.reshape(B, T, K, N // K, H)
  scores_BKGTS = jnp.einsum('BTKGH,BSKH->BKGTS', q_BTKGH, k_BSKH, preferred_element_type=jnp.float32) * H**-0.5
  scores_BKGTS = jnp.where(mask_BTS[:, None, None], scores_BKGTS, _MASKED)
  probs_BKGTS = jax.nn.softmax(scores_BKGTS, axis=-1).astype(v_BSKH.dtype)
  out_BTKGH = jnp.einsum('BKGTS,BSKH->BTKGH', probs_BKGTS, v_BSKH)
  out_BTNH = out_BTKGH.reshape(B, T, N, H)
  return jnp.where(mask_BTS.any(-1)[..., None, None], out_BTNH, 0)


def _spread(function):
  """`function` on each device's own rows and heads: the partitioner would gather a loop over rows on every device."""

  def spread(q_BTNH, k_BTKH, v_BTKH, ids_BT):
    rows, heads = sharding.attention_axes(q_BTNH.shape[0], k_BTKH.shape[2])
    if rows is None and heads is None:
      return function(q_BTNH, k_BTKH, v_BTKH, ids_BT)
    spec = PartitionSpec(rows, None, heads, None)
    specs = (spec, spec, spec, Ids(*[PartitionSpec(rows, None)] * 3))
    return jax.shard_map(function, in_specs=specs, out_specs=spec, check_vma=False)(q_BTNH, k_BTKH, v_BTKH, ids_BT)

  return spread


def _blocks(q_BTNH, k_BTKH, v_BTKH, ids_BT):
  B, T, N, H = q_BTNH.shape
  K, G, U = k_BTKH.shape[2], N // k_BTKH.shape[2], min(_BLOCK, T)
  short = -T % U

  def cut(x, fill=0):
    x = jnp.pad(x, ((0, 0), (0, short), *[(0, 0)] * (x.ndim - 2)), constant_values=fill)
    return x.reshape(B, -1, U, *x.shape[2:])

  q_BIKMH = cut(q_BTNH).reshape(B, -1, U, K, G, H).transpose(0, 1, 3, 2, 4, 5).reshape(B, -1, K, U * G, H)
  k_BJKUH, v_BJKUH = cut(k_BTKH).swapaxes(2, 3), cut(v_BTKH).swapaxes(2, 3)
  ids_BIU = Ids(cut(ids_BT.prompt, -1), cut(ids_BT.rollout, -1), cut(ids_BT.position))
  out_BIKMH = _flash(q_BIKMH, k_BJKUH, v_BJKUH, ids_BIU)
  out_BIUKGH = out_BIKMH.reshape(B, -1, K, U, G, H).transpose(0, 1, 3, 2, 4, 5)
  return out_BIUKGH.reshape(B, T + short, N, H)[:, :T]


class Visits(NamedTuple):
  """For each block of queries, the key blocks to visit (`count` of them, then the rest)."""

  order_BIJ: jax.Array
  count_BI: jax.Array


def visits(ids_BIU: Ids) -> Visits:
  """Which key blocks each query block has to look at, from the range of ids in each block alone.

  A superset of the truth: a visited pair may show nothing, a skipped one never hides anything. It is tight where a row
  lists its prompts and rollouts in rising order, and it costs (T/U)² instead of T².
  """
  real = ids_BIU.prompt >= 0
  branch = real & (ids_BIU.rollout >= 0)
  stem_BJ = (real & (ids_BIU.rollout < 0)).any(-1)

  def overlap(x_BIU, counts):
    low_BI = jnp.where(counts, x_BIU, _FAR).min(-1)
    high_BI = jnp.where(counts, x_BIU, -1).max(-1)
    return (low_BI[:, :, None] <= high_BI[:, None, :]) & (low_BI[:, None, :] <= high_BI[:, :, None])

  first_BJ = jnp.where(real, ids_BIU.position, _FAR).min(-1)
  last_BI = jnp.where(real, ids_BIU.position, -1).max(-1)
  visible_BIJ = overlap(ids_BIU.prompt, real) & (first_BJ[:, None, :] <= last_BI[:, :, None])
  visible_BIJ &= stem_BJ[:, None, :] | overlap(ids_BIU.rollout, branch)
  return Visits(jnp.argsort(~visible_BIJ, axis=-1, stable=True), visible_BIJ.sum(-1))


@jax.custom_vjp
def _flash(q_BIKMH, k_BJKUH, v_BJKUH, ids_BIU):
  return _flash_forward(q_BIKMH, k_BJKUH, v_BJKUH, ids_BIU)[0]


def _flash_forward(q_BIKMH, k_BJKUH, v_BJKUH, ids_BIU):
  # A map over rows, since vmap would give every row the visits of the busiest one.
  plan = visits(ids_BIU)
  out_BIKMH, lse_BIKM = jax.lax.map(_row_forward, (q_BIKMH, k_BJKUH, v_BJKUH, ids_BIU, plan))
  return out_BIKMH, (q_BIKMH, k_BJKUH, v_BJKUH, ids_BIU, plan, out_BIKMH, lse_BIKM)


def _flash_backward(residuals, grad_BIKMH):
  q_BIKMH, k_BJKUH, v_BJKUH, ids_BIU, plan, out_BIKMH, lse_BIKM = residuals
  delta_BIKM = jnp.einsum('BIKMH,BIKMH->BIKM', out_BIKMH, grad_BIKMH, preferred_element_type=jnp.float32)
  row = (q_BIKMH, k_BJKUH, v_BJKUH, ids_BIU, plan, grad_BIKMH, lse_BIKM, delta_BIKM)
  dq_BIKMH, dk_BJKUH, dv_BJKUH = jax.lax.map(_row_backward, row)
  return dq_BIKMH, dk_BJKUH, dv_BJKUH, None


_flash.defvjp(_flash_forward, _flash_backward)

_dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


def _scores(q_KMH, k_KUH, q_ids, k_ids):
  """Scores of one block pair, masked."""
  mask_UU = sees(Ids(*(x[:, None] for x in q_ids)), k_ids)
  mask_MU = jnp.repeat(mask_UU, q_KMH.shape[1] // mask_UU.shape[0], axis=0)
  scores_KMU = _dot('KMH,KUH->KMU', q_KMH, k_KUH) * q_KMH.shape[-1] ** -0.5
  return jnp.where(mask_MU, scores_KMU, _MASKED)


def _row_forward(row):
  q_IKMH, k_JKUH, v_JKUH, ids_IU, plan = row

  def query_block(block):
    q_KMH, q_ids, order_J, count = block

    def visit(i, carry):
      top_KM, sum_KM, out_KMH = carry
      j = order_J[i]
      scores_KMU = _scores(q_KMH, k_JKUH[j], q_ids, Ids(*(x[j] for x in ids_IU)))
      new_KM = jnp.maximum(top_KM, scores_KMU.max(-1))
      probs_KMU = jnp.exp(scores_KMU - new_KM[..., None])
      decay_KM = jnp.exp(top_KM - new_KM)
      add_KMH = _dot('KMU,KUH->KMH', probs_KMU.astype(v_JKUH.dtype), v_JKUH[j])
      return new_KM, sum_KM * decay_KM + probs_KMU.sum(-1), out_KMH * decay_KM[..., None] + add_KMH

    zeros_KM = jnp.zeros(q_KMH.shape[:2], jnp.float32)
    start = zeros_KM + _LOWEST, zeros_KM, jnp.zeros(q_KMH.shape, jnp.float32)
    top_KM, sum_KM, out_KMH = jax.lax.fori_loop(0, count, visit, start)
    seen_KM = sum_KM > 0
    sum_KM = jnp.where(seen_KM, sum_KM, 1)
    out_KMH = (out_KMH / sum_KM[..., None]).astype(q_KMH.dtype)
    return out_KMH, jnp.where(seen_KM, top_KM + jnp.log(sum_KM), 0)

  return jax.lax.map(query_block, (q_IKMH, ids_IU, plan.order_BIJ, plan.count_BI))


def _row_backward(row):
  q_IKMH, k_JKUH, v_JKUH, ids_IU, plan, grad_IKMH, lse_IKM, delta_IKM = row

  def query_block(carry, block):
    q_KMH, q_ids, order_J, count, grad_KMH, lse_KM, delta_KM = block

    def visit(i, carry):
      dq_KMH, dk_JKUH, dv_JKUH = carry
      j = order_J[i]
      k_KUH, v_KUH = k_JKUH[j], v_JKUH[j]
      probs_KMU = jnp.exp(_scores(q_KMH, k_KUH, q_ids, Ids(*(x[j] for x in ids_IU))) - lse_KM[..., None])
      dprobs_KMU = _dot('KMH,KUH->KMU', grad_KMH, v_KUH)
      dscores_KMU = (probs_KMU * (dprobs_KMU - delta_KM[..., None]) * q_KMH.shape[-1] ** -0.5).astype(q_KMH.dtype)
      dv_JKUH = dv_JKUH.at[j].add(_dot('KMU,KMH->KUH', probs_KMU.astype(grad_KMH.dtype), grad_KMH))
      dk_JKUH = dk_JKUH.at[j].add(_dot('KMU,KMH->KUH', dscores_KMU, q_KMH))
      return dq_KMH + _dot('KMU,KUH->KMH', dscores_KMU, k_KUH), dk_JKUH, dv_JKUH

    dq_KMH, *carry = jax.lax.fori_loop(0, count, visit, (jnp.zeros(q_KMH.shape, jnp.float32), *carry))
    return tuple(carry), dq_KMH.astype(q_KMH.dtype)

  blocks = (q_IKMH, ids_IU, plan.order_BIJ, plan.count_BI, grad_IKMH, lse_IKM, delta_IKM)
  start = jnp.zeros(k_JKUH.shape, jnp.float32), jnp.zeros(v_JKUH.shape, jnp.float32)
  (dk_JKUH, dv_JKUH), dq_IKMH = jax.lax.scan(query_block, start, blocks)
  return dq_IKMH, dk_JKUH.astype(k_JKUH.dtype), dv_JKUH.astype(v_JKUH.dtype)
