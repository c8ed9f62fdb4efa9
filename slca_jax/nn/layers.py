"""A decoder taken apart for sampling: each layer's weights as arrays of their own, and a pass of tokens over a cache.

Training scans over stacked layers, which compiles one of them. Sampling runs few tokens at a time, and there the slice
that a scan takes out of the stack costs more than the layer, so its layers are unrolled.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from slca_jax.nn import sharding
from slca_jax.nn.cache import KVCache
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.transformer import Block, Transformer, rms_norm, rotary_angles


@struct.dataclass
class Layers:
  """Weights in the activations' type. The unembedding lies as its product reads it, without padded rows."""

  embed_VD: jax.Array
  blocks: tuple[Block, ...]
  ln_final_D: jax.Array
  unembed_DV: jax.Array


def take_apart(model: Transformer) -> Layers:
  """The weights of a decoder, layer by layer; under jit, copies that share nothing with the model's."""
  config = model.config
  copy = lambda x: jnp.copy(x.astype(config.dtype))
  blocks = tuple(jax.tree.map(lambda x, i=i: copy(x[i]), model.blocks) for i in range(config.layers))
  return Layers(copy(model.embed[...]), blocks, copy(model.ln_final[...]), copy(model.unembedding().T))


def layer_shardings(model: Transformer, mesh: Mesh) -> Any:
  """Where the weights of `take_apart` lie, as `Layers` of shardings: as the model's do, less the axis of layers."""

  def after(array, *axes):
    spec = array.sharding.spec if isinstance(array.sharding, NamedSharding) else ()
    spec = (*spec, *[None] * (array.ndim - len(spec)))
    return NamedSharding(mesh, PartitionSpec(*(spec[axis] for axis in axes)))

  stack = jax.tree.map(lambda x: after(x, *range(1, x.ndim)), model.blocks)
  table_VD = (model.embed if model.config.tied else model.unembed)[...]
  unembed = after(table_VD, 1, 0)
  vocab_axis = unembed.spec[1]
  if vocab_axis and model.config.vocab % mesh.shape[vocab_axis]:
    unembed = NamedSharding(mesh, PartitionSpec(unembed.spec[0], None))
  blocks = (stack,) * model.config.layers
  places: Any = after(model.embed[...], 0, 1), blocks, after(model.ln_final[...], 0), unembed
  return Layers(*places)


def extend(
  layers: Layers,
  config: TransformerConfig,
  tokens_BT: jax.Array,
  position_BT: jax.Array,
  cache: KVCache,
  attention: Callable,
) -> tuple[jax.Array, KVCache]:
  """(hidden_BTD after the final norm, the cache with the new tokens) of B rows that see what `attention` shows them.

  Args:
    position_BT: position of each token in its row; -1 marks padding, whose output means nothing but is finite.
    attention: (q_BTNH, k_BTKH, v_BTKH, layer of the cache) -> (out_BTNH, that layer with the new keys and values).
  """
  angles = rotary_angles(config, jnp.maximum(position_BT, 0))
  x_BTD = sharding.constrain_rows(sharding.look_up(layers.embed_VD, tokens_BT))
  extended = []
  for block, layer in zip(layers.blocks, cache, strict=True):
    out_BTNH, layer = attention(*block.project(x_BTD, angles), layer)
    x_BTD = block.finish(x_BTD, out_BTNH)
    extended.append(layer)
  return rms_norm(x_BTD, layers.ln_final_D, config.eps), tuple(extended)
