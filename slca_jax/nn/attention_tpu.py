"""Attention on TPU: JAX's splash kernels under the tree rule, which visit only blocks that show something.

The kernels offer equal segment ids and a static mask function of one number per query and the key's index. In a row as
`arrays.py` draws it that is enough for the whole rule: with the tree as segment, query t sees key k iff

  k ≤ t  ∧  (k < stem_end_t  ∨  k ≥ start_t)

where start is the index of the first token of t's own run (its response, or its prompt) and stem_end that of the first
response of its tree. Both fit one 32-bit number, and t is the place in the grid. So there is one softmax, whose
backward pass is the kernel's own, instead of two to be merged. Which blocks are visited is data, computed from the ids.

Axes beside the package's legend: I and J blocks of queries and of keys.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_mask_info import MaskInfo

from slca_jax.config import require
from slca_jax.nn.softmax import keep
from slca_jax.nn.visibility import HALF, LONGEST, Ids, cut, reach, visible_blocks

_LANES, _BLOCK = 128, 512
_FIXED = {'mask_value': kernels.DEFAULT_MASK_VALUE, 'is_mqa': False, 'attn_logits_soft_cap': None}


def splash(
  q_BTNH: jax.Array,
  k_BTKH: jax.Array,
  v_BTKH: jax.Array,
  ids_BT: Ids,
  *,
  block: int | None = None,
  interpret: Any = False,
) -> jax.Array:
  """out_BTNH = softmax(q·k / √H) v over the keys a query sees, 0 where it sees none.

  Args:
    ids_BT: of rows as `arrays.py` draws them: each prompt and each response in one piece, rising in position, responses
      after their prompt. Rows of at most `LONGEST` tokens.
    block: tokens of a block of queries and of keys, a multiple of 128; 512 unless given. A short row is one block.
    interpret: `pallas.tpu.InterpretParams()` simulates a TPU.
  """
  T, H = q_BTNH.shape[1], q_BTNH.shape[3]
  require(
    T <= LONGEST, f'a row has {T} tokens, splash attention takes {LONGEST}; use shorter rows or the blocks backend'
  )
  block = min(block or _BLOCK, T + -T % _LANES)
  # The kernels do not scale. 1 / √H itself may not fit bfloat16, what it scales is rounded anyway.
  scaled_BTNH = (q_BTNH.astype(jnp.float32) * H**-0.5).astype(q_BTNH.dtype)
  heads_first = lambda x: jnp.swapaxes(_fill(x, block), 1, 2)
  ids_BT = Ids(*(_fill(x, block, -1) for x in ids_BT))
  rows = heads_first(scaled_BTNH), heads_first(k_BTKH), heads_first(v_BTKH), ids_BT
  # A map over rows: each row has its own list of blocks, which the kernel takes as scalars.
  out_BNTH = jax.lax.map(lambda row: _row(*row, block, interpret), rows)
  return jnp.swapaxes(out_BNTH, 1, 2)[:, :T]


def _fill(x, block, value=0):
  return jnp.pad(x, ((0, 0), (0, -x.shape[1] % block), *[(0, 0)] * (x.ndim - 2)), constant_values=value)


@functools.partial(jax.custom_vjp, nondiff_argnums=(4, 5))
def _row(q_NTH, k_KTH, v_KTH, ids_T, block, interpret):
  return _row_forward(q_NTH, k_KTH, v_KTH, ids_T, block, interpret)[0]


def _row_forward(q_NTH, k_KTH, v_KTH, ids_T, block, interpret):
  visible_IJ, code_T = _visible(ids_T, block), reach(ids_T)
  out_NTH, (lse_NT,) = kernels._splash_attention_forward(
    _plan(visible_IJ, code_T),
    q_NTH,
    k_KTH,
    v_KTH,
    _segments(ids_T),
    None,
    block_sizes=kernels.BlockSizes(block, block),
    residual_checkpoint_name=None,
    save_residuals=True,
    mask_function=functools.partial(_sees_by_index, queries=0),
    interpret=interpret,
    **_FIXED,
  )
  # A query that sees nothing has averaged what its block showed to others, or divided nothing by nothing.
  seen_T = ids_T.prompt >= 0
  out_NTH, lse_NT = keep(jnp.where(seen_T[:, None], out_NTH, 0), jnp.where(seen_T, lse_NT, 0))
  return out_NTH, (q_NTH, k_KTH, v_KTH, ids_T, out_NTH, lse_NT)


def _row_backward(block, interpret, residuals, grad_NTH):
  q_NTH, k_KTH, v_KTH, ids_T, out_NTH, lse_NT = residuals
  visible_IJ, code_T = _visible(ids_T, block), reach(ids_T)
  delta_NT = jnp.einsum('NTH,NTH->NT', out_NTH, grad_NTH, preferred_element_type=jnp.float32)
  given = q_NTH, k_KTH, v_KTH, _segments(ids_T), None, lse_NT, grad_NTH, delta_NT
  row_major = kernels.QKVLayout.HEAD_DIM_MINOR
  layout = {f'{name}_layout': row_major for name in 'qkv'}
  common = {**_FIXED, **layout, 'bq': block, 'bkv': block, 'interpret': interpret}
  dq_NTH = kernels._splash_attention_bwd_dq(
    *given,
    mask_info=_plan(visible_IJ, code_T),
    mask_function=functools.partial(_sees_by_index, queries=0),
    **common,
  )
  _, dk_KTH, dv_KTH = kernels._splash_attention_bwd_dkv(
    *given,
    bkv_compute=block,
    use_fused_bwd_kernel=False,
    mask_info=_plan_by_keys(visible_IJ, code_T),
    mask_function=functools.partial(_sees_by_index, queries=1),
    **common,
  )
  return dq_NTH, dk_KTH, dv_KTH, None


_row.defvjp(_row_forward, _row_backward)


def _sees_by_index(code, key, *, queries: int):
  """The rule inside a tree for a tile of pairs; `queries` is the tile's axis of queries, whose block the grid gives."""
  first = pl.program_id(1 + queries) * code.shape[queries]
  query = first + jax.lax.broadcasted_iota(jnp.int32, code.shape, queries)
  start, stem_end = jax.lax.shift_right_logical(code, HALF), code & LONGEST
  return (key <= query) & ((key < stem_end) | (key >= start))


def _visible(ids_T, block):
  blocks = Ids(*(cut(x[None], block, -1) for x in ids_T))
  return visible_blocks(blocks, blocks)[0]


def _segments(ids_T):
  return kernels.SegmentIds(ids_T.prompt, jnp.where(ids_T.prompt < 0, -2, ids_T.prompt))


def _plan(visible_IJ, code_T):
  """What the kernels that walk over keys for each query need: which blocks to run and, until then, which to fetch."""
  place_IJ = _next(visible_IJ.reshape(-1)).reshape(visible_IJ.shape)
  return _info(visible_IJ, place_IJ % visible_IJ.shape[1], code_T)


def _plan_by_keys(visible_IJ, code_T):
  """The same for the kernel that walks over queries for each key, and over a key's queries again for every head."""
  return _info(visible_IJ, jax.vmap(_next, 1, 1)(visible_IJ), code_T)


def _info(visible_IJ, fetch_IJ, code_T):
  return MaskInfo(fetch_IJ[None], None, visible_IJ.astype(jnp.int32)[None], None, code_T)


def _next(visible_X):
  """Index of the next place that is visible, the first again after the last, 0 where there is none."""
  far = visible_X.size
  index_X = jnp.where(visible_X, jnp.arange(far, dtype=jnp.int32), far)
  ahead_X = jax.lax.cummin(index_X, reverse=True)
  return jnp.where(ahead_X < far, ahead_X, index_X.min() % far)
