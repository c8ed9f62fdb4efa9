"""Attention on GPU: Pallas kernels, compiled by Triton, that walk over the blocks a query or a key has to meet.

Every kernel applies `sees` itself, so rows may hold their tokens in any order. Forward and dq run one program for a
block of queries and a head; dk and dv one for a block of keys and a key-value head, over all query heads that share it.

Axes beside the package's legend: G query heads per key-value head, I and J blocks of queries and of keys, U and W their
tokens, X the three ids.
"""

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from slca_jax.nn.softmax import keep
from slca_jax.nn.visibility import LOWEST, MASKED, Ids, Visits, cut, sees, visible_blocks, walk

_BLOCK, _STAGES = 64, 2


def triton(
  q_BTNH: jax.Array,
  k_BTKH: jax.Array,
  v_BTKH: jax.Array,
  ids_BT: Ids,
  *,
  block: int | None = None,
  interpret: bool = False,
) -> jax.Array:
  """out_BTNH = softmax(q·k / √H) v over the keys a query sees, 0 where it sees none.

  Args:
    q_BTNH, k_BTKH, v_BTKH: with H a power of two of at least 16.
    block: tokens of a block of queries and of keys, a power of two of at least 16; 64 unless given.
    interpret: run the kernels' bodies as XLA operations, which needs no GPU.
  """
  T, block = q_BTNH.shape[1], block or _BLOCK
  whole = lambda x, fill=0: cut(x, block, fill).reshape(x.shape[0], -1, *x.shape[2:])
  ids_BXT = jnp.stack([whole(x, -1) for x in ids_BT], axis=1)
  out_BTNH = _flash(whole(q_BTNH), whole(k_BTKH), whole(v_BTKH), ids_BXT, block, interpret)
  return jnp.asarray(out_BTNH)[:, :T]


def _visible(ids_BXT, block):
  blocks = Ids(*(cut(ids_BXT[:, x], block) for x in range(3)))
  return visible_blocks(blocks, blocks)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _flash(q_BTNH, k_BTKH, v_BTKH, ids_BXT, block, interpret):
  return _flash_forward(q_BTNH, k_BTKH, v_BTKH, ids_BXT, block, interpret)[0]


def _flash_forward(q_BTNH, k_BTKH, v_BTKH, ids_BXT, block, interpret):
  B, T, N, _ = q_BTNH.shape
  kernel = _Kernel(q_BTNH, k_BTKH, block, interpret)
  out_BTNH, lse_BNT = kernel.by_queries(
    _forward,
    [kernel.query, kernel.keys, kernel.keys],
    (q_BTNH, k_BTKH, v_BTKH),
    ids_BXT,
    [(kernel.query, q_BTNH), (kernel.number, jax.ShapeDtypeStruct((B, N, T), jnp.float32))],
  )
  out_BTNH, lse_BNT = keep(out_BTNH, lse_BNT)
  return out_BTNH, (q_BTNH, k_BTKH, v_BTKH, ids_BXT, out_BTNH, lse_BNT)


def _flash_backward(block, interpret, residuals, grad_BTNH):
  q_BTNH, k_BTKH, v_BTKH, ids_BXT, out_BTNH, lse_BNT = residuals
  delta_BNT = jnp.einsum('BTNH,BTNH->BNT', out_BTNH, grad_BTNH, preferred_element_type=jnp.float32)
  kernel = _Kernel(q_BTNH, k_BTKH, block, interpret)
  given = q_BTNH, k_BTKH, v_BTKH, grad_BTNH, lse_BNT, delta_BNT
  (dq_BTNH,) = kernel.by_queries(
    _backward_queries,
    [kernel.query, kernel.keys, kernel.keys, kernel.query, kernel.number, kernel.number],
    given,
    ids_BXT,
    [(kernel.query, q_BTNH)],
  )
  dk_BTKH, dv_BTKH = kernel.by_keys(
    _backward_keys,
    [kernel.queries, kernel.key, kernel.key, kernel.queries, kernel.numbers, kernel.numbers],
    given,
    ids_BXT,
    [(kernel.key, k_BTKH), (kernel.key, v_BTKH)],
  )
  return dq_BTNH, dk_BTKH, dv_BTKH, None


_flash.defvjp(_flash_forward, _flash_backward)


class _Kernel:
  """How the arrays of one attention are dealt out to programs."""

  def __init__(self, q_BTNH, k_BTKH, block, interpret):
    (self.rows, T, self.heads, H), self.kv_heads = q_BTNH.shape, k_BTKH.shape[2]
    G, self.block, self.interpret, self.blocks = self.heads // self.kv_heads, block, interpret, T // block
    # Of programs (block of queries, head, row): their queries, all their keys, a number per query.
    self.query = pl.BlockSpec((None, block, None, H), lambda i, n, b: (b, i, n, 0))
    self.keys = pl.BlockSpec((None, T, None, H), lambda i, n, b: (b, 0, n // G, 0))
    self.number = pl.BlockSpec((None, None, block), lambda i, n, b: (b, n, i))
    # Of programs (block of keys, key-value head, row): their keys, all their queries, the numbers of these.
    self.key = pl.BlockSpec((None, block, None, H), lambda j, k, b: (b, j, k, 0))
    self.queries = pl.BlockSpec((None, T, G, H), lambda j, k, b: (b, 0, k, 0))
    self.numbers = pl.BlockSpec((None, G, T), lambda j, k, b: (b, k, 0))

  def by_queries(self, body, specs, arrays, ids_BXT, outs):
    """What `body` finds for each block of queries, over the blocks of keys that it can see."""
    plan = walk(_visible(ids_BXT, self.block))
    return self._call(body, self.heads, specs, arrays, ids_BXT, plan, outs, warps=4)

  def by_keys(self, body, specs, arrays, ids_BXT, outs):
    """What `body` finds for each block of keys, over the blocks of queries that can see it."""
    plan = walk(_visible(ids_BXT, self.block).swapaxes(1, 2))
    # Two sums of a block of keys are held in registers, and with large heads four warps have too few of them.
    warps = 4 if arrays[0].shape[-1] <= 64 else 8
    return self._call(body, self.kv_heads, specs, arrays, ids_BXT, plan, outs, warps=warps)

  def _call(self, body, heads, specs, arrays, ids_BXT, plan: Visits, outs, *, warps):
    whole = lambda *shape: pl.BlockSpec((None, *shape), lambda i, n, b: (b, *(0 for _ in shape)))
    row = [whole(*x.shape[1:]) for x in (ids_BXT, *plan)]
    return pl.pallas_call(
      functools.partial(body, block=self.block),
      grid=(self.blocks, heads, self.rows),
      in_specs=[*specs, *row],
      out_specs=[spec for spec, _ in outs],
      out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for _, x in outs],
      compiler_params=plgpu.CompilerParams(num_warps=warps, num_stages=_STAGES),
      interpret=self.interpret,
      name=body.__name__.strip('_'),
    )(*arrays, ids_BXT, *plan)


def _forward(q_ref, k_ref, v_ref, ids_ref, order_ref, count_ref, out_ref, lse_ref, *, block):
  i, q_UH = pl.program_id(0), q_ref[...]
  q_ids = _ids(ids_ref, i, block)

  def visit(step, carry):
    top_U, sum_U, out_UH = carry
    j = order_ref[i, step]
    keys = pl.ds(j * block, block)
    v_WH = v_ref[keys, :]
    scores_UW = _scores(q_UH, k_ref[keys, :], q_ids, _ids(ids_ref, j, block))
    new_U = jnp.maximum(top_U, scores_UW.max(1))
    probs_UW, decay_U = jnp.exp(scores_UW - new_U[:, None]), jnp.exp(top_U - new_U)
    out_UH = out_UH * decay_U[:, None] + _dot(probs_UW.astype(v_WH.dtype), v_WH)
    return new_U, sum_U * decay_U + probs_UW.sum(1), out_UH

  nothing_U = jnp.zeros(block, jnp.float32)
  start = nothing_U + LOWEST, nothing_U, jnp.zeros(q_UH.shape, jnp.float32)
  top_U, sum_U, out_UH = jax.lax.fori_loop(0, count_ref[i], visit, start)
  seen_U = sum_U > 0
  sum_U = jnp.where(seen_U, sum_U, 1)
  out_ref[...] = (out_UH / sum_U[:, None]).astype(out_ref.dtype)
  lse_ref[...] = jnp.where(seen_U, top_U + jnp.log(sum_U), 0)


def _backward_queries(
  q_ref, k_ref, v_ref, grad_ref, lse_ref, delta_ref, ids_ref, order_ref, count_ref, dq_ref, *, block
):
  i, q_UH, grad_UH = pl.program_id(0), q_ref[...], grad_ref[...]
  lse_U, delta_U, q_ids = lse_ref[...], delta_ref[...], _ids(ids_ref, i, block)

  def visit(step, dq_UH):
    j = order_ref[i, step]
    keys = pl.ds(j * block, block)
    k_WH, k_ids = k_ref[keys, :], _ids(ids_ref, j, block)
    probs_UW = jnp.exp(_scores(q_UH, k_WH, q_ids, k_ids) - lse_U[:, None])
    dscores_UW = probs_UW * (_dot(grad_UH, v_ref[keys, :], over=(1, 1)) - delta_U[:, None])
    return dq_UH + _dot(dscores_UW.astype(k_WH.dtype), k_WH)

  dq_UH = jax.lax.fori_loop(0, count_ref[i], visit, jnp.zeros(q_UH.shape, jnp.float32))
  dq_ref[...] = (dq_UH * q_UH.shape[1] ** -0.5).astype(dq_ref.dtype)


def _backward_keys(
  q_ref, k_ref, v_ref, grad_ref, lse_ref, delta_ref, ids_ref, order_ref, count_ref, dk_ref, dv_ref, *, block
):
  j, k_WH, v_WH = pl.program_id(0), k_ref[...], v_ref[...]
  k_ids = _ids(ids_ref, j, block)

  heads = q_ref.shape[1]

  # One loop over blocks and heads: unrolled heads would all be fetched ahead, into more shared memory than there is.
  def visit(step, carry):
    dk_WH, dv_WH = carry
    i, g = order_ref[j, jax.lax.div(step, heads)], jax.lax.rem(step, heads)
    queries = pl.ds(i * block, block)
    q_UH, grad_UH = q_ref[queries, g, :], grad_ref[queries, g, :]
    probs_UW = jnp.exp(_scores(q_UH, k_WH, _ids(ids_ref, i, block), k_ids) - lse_ref[g, queries][:, None])
    dscores_UW = probs_UW * (_dot(grad_UH, v_WH, over=(1, 1)) - delta_ref[g, queries][:, None])
    dv_WH += _dot(probs_UW.astype(grad_UH.dtype), grad_UH, over=(0, 0))
    dk_WH += _dot(dscores_UW.astype(q_UH.dtype), q_UH, over=(0, 0))
    return dk_WH, dv_WH

  nothing_WH = jnp.zeros(k_WH.shape, jnp.float32)
  dk_WH, dv_WH = jax.lax.fori_loop(0, count_ref[j] * heads, visit, (nothing_WH, nothing_WH))
  dk_ref[...] = (dk_WH * k_WH.shape[1] ** -0.5).astype(dk_ref.dtype)
  dv_ref[...] = dv_WH.astype(dv_ref.dtype)


def _ids(ids_ref, block_index, block) -> Ids:
  tokens = pl.ds(block_index * block, block)
  return Ids(*(ids_ref[x, tokens] for x in range(3)))


def _scores(q_UH, k_WH, q_ids, k_ids):
  mask_UW = sees(Ids(*(x[:, None] for x in q_ids)), Ids(*(x[None, :] for x in k_ids)))
  return jnp.where(mask_UW, _dot(q_UH, k_WH, over=(1, 1)) * q_UH.shape[1] ** -0.5, MASKED)


def _dot(x, y, *, over=(1, 0)):
  """The product of two matrices over an axis of each, in float32."""
  numbers = (((over[0],), (over[1],)), ((), ()))
  return jax.lax.dot_general(x, y, numbers, preferred_element_type=jnp.float32)
