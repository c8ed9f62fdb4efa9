"""Attention over rows of trees: one rule (`visibility.py`), and the backend that suits the platform.

`dense` holds the scores of a whole row and is the reference. `blocks`, `splash` (TPU) and `triton` (GPU) walk over
blocks of keys with a running softmax, skip pairs of blocks in which nobody sees anybody, and recompute the scores in a
backward pass of their own, so that their memory is linear in T.
"""

import functools
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from slca_jax.nn import sharding
from slca_jax.nn.attention_blocks import blocks
from slca_jax.nn.config import Backend, check_block
from slca_jax.nn.softmax import dot
from slca_jax.nn.visibility import LONGEST, MASKED, Ids, sees

_DENSE_UP_TO = {'cpu': 64, 'gpu': 512, 'tpu': 512}
_TRITON_HEADS = (16, 32, 64, 128, 256)


@jax.named_scope('attention')
def attend(
  q_BTNH: jax.Array,
  k_BTKH: jax.Array,
  v_BTKH: jax.Array,
  ids_BT: Ids,
  *,
  backend: Backend = 'auto',
  block: int | None = None,
) -> jax.Array:
  """Attention under `sees`: out = softmax(q·k / √H) v over the keys a query sees, 0 where it sees none.

  Query heads n·G … n·G + G − 1 share key-value head n. Scores and softmax are float32.

  Args:
    backend: 'dense', 'blocks', 'splash', 'triton', or 'auto' for what `choose` says of the platform JAX runs on; to
      compile for another platform, name it.
    block: tokens of a block of queries and of keys; None for the backend's own choice. `dense` has none.

  Returns:
    out_BTNH in the type of q_BTNH.
  """
  chex.assert_rank([q_BTNH, k_BTKH, v_BTKH], 4)
  chex.assert_equal_shape([k_BTKH, v_BTKH])
  chex.assert_equal_shape(list(ids_BT))
  if backend == 'auto':
    backend = choose(q_BTNH.shape[1], q_BTNH.shape[3], jax.default_backend())
  if backend == 'dense':
    return dense(q_BTNH, k_BTKH, v_BTKH, ids_BT)
  check_block(backend, block)
  kernel = functools.partial(_kernel(backend), block=block)
  return _on_each_device(kernel)(q_BTNH, k_BTKH, v_BTKH, ids_BT)


def choose(tokens: int, head_dim: int, platform: str) -> Backend:
  """The backend for rows of so many tokens on 'cpu', 'gpu' or 'tpu': the platform's kernel, unless rows are short."""
  if tokens <= _DENSE_UP_TO.get(platform, 512):
    return 'dense'
  if platform == 'tpu' and tokens <= LONGEST:
    return 'splash'
  return 'triton' if platform == 'gpu' and head_dim in _TRITON_HEADS else 'blocks'


def dense(q_BTNH: jax.Array, k_BTKH: jax.Array, v_BTKH: jax.Array, ids_BT: Ids) -> jax.Array:
  """out_BTNH by scores of all pairs of a row, seen or not."""
  (B, T, N, H), K = q_BTNH.shape, k_BTKH.shape[2]
  mask_BTS = sees(Ids(*(x[:, :, None] for x in ids_BT)), Ids(*(x[:, None, :] for x in ids_BT)))
  # Plain batched matrix products: with T and G apart, the CPU backend falls into a much slower path.
  q_BKMH = q_BTNH.reshape(B, T, K, N // K, H).transpose(0, 2, 1, 3, 4).reshape(B, K, -1, H)
  scores_BKMS = dot('BKMH,BKSH->BKMS', q_BKMH, k_BTKH.swapaxes(1, 2)) * H**-0.5
  scores_BKTGS = jnp.where(mask_BTS[:, None, :, None], scores_BKMS.reshape(B, K, T, -1, T), MASKED)
  probs_BKTGS = jax.nn.softmax(scores_BKTGS, axis=-1).astype(v_BTKH.dtype)
  out_BKMH = dot('BKMS,BKSH->BKMH', probs_BKTGS.reshape(B, K, -1, T), v_BTKH.swapaxes(1, 2))
  out_BTNH = out_BKMH.reshape(B, K, T, -1, H).transpose(0, 2, 1, 3, 4).reshape(B, T, N, H)
  return jnp.where(mask_BTS.any(-1)[..., None, None], out_BTNH, 0).astype(q_BTNH.dtype)


def _kernel(backend: Backend) -> Callable[..., jax.Array]:
  # Pallas takes its time to import, and a CPU has no use for it.
  if backend == 'splash':
    from slca_jax.nn.attention_tpu import splash

    return splash
  if backend == 'triton':
    from slca_jax.nn.attention_gpu import triton

    return triton
  return blocks


def _on_each_device(function):
  """`function` on each device's own rows and heads: the partitioner would gather a loop over rows on every device."""

  def spread(q_BTNH, k_BTKH, v_BTKH, ids_BT):
    rows, heads = sharding.attention_axes(q_BTNH.shape[0], k_BTKH.shape[2])
    if rows is None and heads is None:
      return function(q_BTNH, k_BTKH, v_BTKH, ids_BT)
    spec, flat = PartitionSpec(rows, None, heads, None), PartitionSpec(rows, None)
    specs = spec, spec, spec, (flat, flat, flat)
    local = jax.shard_map(
      lambda q, k, v, ids: function(q, k, v, Ids(*ids)), in_specs=specs, out_specs=spec, check_vma=False
    )
    return local(q_BTNH, k_BTKH, v_BTKH, tuple(ids_BT))

  return spread
