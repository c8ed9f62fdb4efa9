"""The embedded engine's device programs: fill prompts, copy them, fill turns, sample a block of tokens.

What a call needs besides weights and cache travels as one small int32 array, and comes back as one: on a small model
the host's work per call bounds the speed. Floats ride along as their bits.

Every program has one shape, and every row of it is computed alike whatever stands in the other rows. So ids and
log-probs of a request depend on that request alone. Axes beside the package's legend: S slots, P stems, R seats of a
stem, B pieces of a prefill call, C tokens of a piece, X columns of a packed array, M steps of a decode block.
"""

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from slca_jax.errors import SamplerError
from slca_jax.nn import cache as caching
from slca_jax.nn.cache import KVCache, Pieces, Seats
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.layers import Layers, extend, layer_shardings, take_apart
from slca_jax.nn.sharding import ROWS
from slca_jax.rollout.drawing import EMPTY, Control, sample
from slca_jax.rollout.settings import LocalEngine

Copies = Sequence[tuple[int, int]]
Piece = tuple[int, int, int, int, np.ndarray]

BROKEN = -2  # in a block's tokens: the logits are no numbers

# Columns of a piece of known ids; the ids, padded with EMPTY, follow.
STEM, SLOT, STEM_PART, START, IDS = range(5)


class _Block(NamedTuple):
  """The carry of a decode block's loop; M columns of tokens and log-probs, filled step by step."""

  step: jax.Array
  active_S: jax.Array
  token_S: jax.Array
  cache: KVCache
  tokens_SM: jax.Array
  logp_SM: jax.Array


def decode(
  layers: Layers,
  config: TransformerConfig,
  cache: KVCache,
  control_SX: jax.Array,
  slot_PR: jax.Array,
  hasten: jax.Array,
  *,
  steps: int,
):
  """The cache and up to `steps` sampled tokens per slot, fewer once every slot is done.

  Token j of a request is drawn with the key fold_in(key(seed), j) from softmax(logits / temperature) cut to a nucleus.

  Args:
    slot_PR: the slot in each seat of each stem, counted from the device's first; the number of slots there for none.
    hasten: end the block as soon as any slot is done.

  Returns:
    (cache, packed_SM2): ids (EMPTY where none, BROKEN where the logits are no numbers) and the bits of
    log_softmax(logits / temperature) of each id in float32, raw at temperature 0.
  """
  control = Control.unpack(control_SX)
  slots = control.token_S.shape[0]
  first_S = control.left_S > 0

  def going(block):
    waits = hasten & (first_S & ~block.active_S).any()
    return (block.step < steps) & block.active_S.any() & ~waits

  def advance(block):
    position_S = jnp.where(block.active_S, control.position_S + block.step, -1)
    seats = Seats(position_S, control.shared_S, control.place_S, slot_PR)
    attention = functools.partial(_seated, seats=seats)
    hidden_S1D, cache = extend(layers, config, block.token_S[:, None], position_S[:, None], block.cache, attention)
    logits_SV = jnp.einsum('SD,DV->SV', hidden_S1D[:, 0], layers.unembed_DV, preferred_element_type=jnp.float32)
    token_S, logp_S = sample(logits_SV, control, control.index_S + block.step, block.active_S)
    sound_S = jnp.isfinite(logp_S)
    tokens_SM = block.tokens_SM.at[:, block.step].set(
      jnp.where(block.active_S, jnp.where(sound_S, token_S, BROKEN), EMPTY)
    )
    stopped_S = (token_S[:, None] == control.stops_SX).any(-1) | (block.step + 1 >= control.left_S)
    active_S = block.active_S & sound_S & ~stopped_S
    return _Block(block.step + 1, active_S, token_S, cache, tokens_SM, block.logp_SM.at[:, block.step].set(logp_S))

  tokens_SM, logp_SM = jnp.full((slots, steps), EMPTY), jnp.zeros((slots, steps), jnp.float32)
  end = jax.lax.while_loop(going, advance, _Block(jnp.int32(0), first_S, control.token_S, cache, tokens_SM, logp_SM))
  return end.cache, jnp.stack([end.tokens_SM, jax.lax.bitcast_convert_type(end.logp_SM, jnp.int32)], axis=-1)


def _seated(q_S1NH, k_S1KH, v_S1KH, layer, *, seats):
  return caching.decode_attention(q_S1NH, k_S1KH, v_S1KH, layer, seats)


def prefill(
  layers: Layers, config: TransformerConfig, cache: KVCache, work_BX: jax.Array, attention: Callable
) -> KVCache:
  """The cache with up to B pieces of known ids added, to stems or to slots as `attention` does it.

  Args:
    work_BX: stem, slot, shared positions and first position of each piece, then its ids padded with EMPTY.
    attention: `prompt_attention` or `turn_attention`.
  """
  tokens_BC = work_BX[:, IDS:]
  position_BC = jnp.where(tokens_BC >= 0, work_BX[:, START, None] + jnp.arange(tokens_BC.shape[1]), -1)
  pieces = Pieces(work_BX[:, STEM], work_BX[:, SLOT], work_BX[:, STEM_PART], position_BC)
  show = lambda q, k, v, layer: attention(q, k, v, layer, pieces)
  return extend(layers, config, jnp.maximum(tokens_BC, 0), position_BC, cache, show)[1]


def copy_stems(cache: KVCache, copies_X2: jax.Array) -> KVCache:
  """The cache after one stem after the other was copied, as (source, target); a target of -1 ends the list."""
  count = jnp.argmin(jnp.append(copies_X2[:, 1], -1) >= 0)

  def copy(i, cache):
    source, target = copies_X2[i]
    move = lambda x: x.at[target].set(x[source])
    return tuple(layer.replace(stems=jax.tree.map(move, layer.stems)) for layer in cache)

  return jax.lax.fori_loop(0, count, copy, cache)


class Programs:
  """The compiled programs of one engine, each of one shape. Every call takes the cache and gives it back.

  On a mesh, rows and sampling orders are spread like a batch where slots, prompts and prefill rows all divide by the
  shards, and key-value heads over `tensor`. Slots and stems are then numbered through, shard by shard.

  Attributes:
    shards: over how many shards rows are spread.
  """

  def __init__(self, graph: nnx.GraphDef, params: nnx.State, config: TransformerConfig, options: LocalEngine):
    self._config, self._options = config, options
    self._shapes = _shapes(params)
    leaves, tree = jax.tree.flatten(params)
    sharding = leaves[0].sharding
    self._mesh = sharding.mesh if isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh) else None
    rows = options.slots, options.stems, options.prefill_rows
    self.shards = caching.cache_shards(self._mesh, *rows)
    model = lambda leaves: nnx.merge(graph, jax.tree.unflatten(tree, leaves))
    # Pinned, or a cache that came back differently would compile all anew.
    self._place = at = caching.cache_sharding(self._mesh, rows, config.kv_heads) or sharding
    self._orders_at = (
      NamedSharding(self._mesh, PartitionSpec(ROWS if self.shards > 1 else None)) if self._mesh else None
    )
    here = layer_shardings(model(leaves), self._mesh) if self._mesh else None

    def run_decode(layers, cache, control_SX, slot_PR, hasten):
      return decode(layers, config, cache, control_SX, slot_PR, hasten, steps=options.decode_block)

    def run_prompts(layers, cache, work_BX):
      return prefill(layers, config, cache, work_BX, caching.prompt_attention)

    def run_turns(layers, cache, work_BX):
      return prefill(layers, config, cache, work_BX, caching.turn_attention)

    def run_copy(cache, copies_X2):
      if self.shards == 1:
        return copy_stems(cache, copies_X2)
      cached = jax.tree.map(lambda _: at.spec, cache)
      return jax.shard_map(copy_stems, in_specs=(cached, PartitionSpec(ROWS)), out_specs=cached)(cache, copies_X2)

    whole = NamedSharding(self._mesh, PartitionSpec()) if self._mesh else sharding
    self._adopt = jax.jit(lambda leaves: take_apart(model(leaves)), out_shardings=here)
    self._decode = jax.jit(run_decode, donate_argnums=1, out_shardings=(at, whole))
    self._prompts = jax.jit(run_prompts, donate_argnums=1, out_shardings=at)
    self._turns = jax.jit(run_turns, donate_argnums=1, out_shardings=at)
    self._copy = jax.jit(run_copy, donate_argnums=0, out_shardings=at)

  def adopt(self, params: nnx.State) -> Layers:
    """Copies of the parameters' arrays in the activations' type, so that their owner may donate them.

    Raises:
      SamplerError: they differ from the model's in name, shape or type.
    """
    shapes = _shapes(params)
    for name in sorted(self._shapes.keys() | shapes.keys()):
      if self._shapes.get(name) != shapes.get(name):
        raise SamplerError(f'parameter {name} is {shapes.get(name)}, the engine has {self._shapes.get(name)}')
    with self._on_mesh():
      return jax.block_until_ready(self._adopt(jax.tree.leaves(params)))

  def empty_cache(self) -> KVCache:
    """A cache of zeros for all stems and slots."""
    o = self._options
    return caching.empty_cache(
      self._config,
      stems=o.stems,
      slots=o.slots,
      positions=o.context,
      own=o.own or o.context,
      dtype=o.cache_dtype,
      place=self._place,
    )

  def decode(
    self, layers: Layers, cache: KVCache, control_SX: np.ndarray, slot_PR: np.ndarray, hasten: bool
  ) -> tuple[KVCache, np.ndarray]:
    """See the function `decode`."""
    with self._on_mesh():
      cache, packed_SM2 = self._decode(layers, cache, *self._spread(control_SX, slot_PR), np.bool_(hasten))
      return cache, np.asarray(packed_SM2)

  def fill(
    self,
    layers: Layers,
    cache: KVCache,
    copies: Sequence[Copies],
    prompts: Sequence[Sequence[Piece]],
    turns: Sequence[Sequence[Piece]],
  ) -> KVCache:
    """The cache after copies of stems, then pieces of prompts, then pieces of turns, each given shard by shard.

    Args:
      copies: pairs of source and target.
      prompts: at most one piece per shard, as (stem, slot, shared, first position, ids).
      turns: at most prefill_rows / shards pieces per shard.
    """
    options = self._options
    with self._on_mesh():
      if any(copies):
        copies_X2 = np.full((self.shards, options.stems // self.shards + 1, 2), -1, np.int32)
        for shard_X2, pairs in zip(copies_X2, copies, strict=True):
          shard_X2[: len(pairs)] = pairs or np.zeros((0, 2))
        cache = self._copy(cache, *self._spread(copies_X2.reshape(-1, 2)))
      if any(prompts):
        cache = self._prompts(layers, cache, *self._spread(self._packed(prompts, 1, options.prefill_chunk)))
      if any(turns):
        rows = options.prefill_rows // self.shards
        cache = self._turns(layers, cache, *self._spread(self._packed(turns, rows, options.turn_chunk)))
    return cache

  def compilations(self) -> dict[str, int]:
    """How many variants of each program were compiled."""
    programs = {'decode': self._decode, 'prompts': self._prompts, 'turns': self._turns, 'copy': self._copy}
    return {name: program._cache_size() for name, program in programs.items()}  # pyright: ignore[reportAttributeAccessIssue]

  def _packed(self, shards, rows, length):
    work_BX = np.full((self.shards * rows, IDS + length), EMPTY, np.int32)
    work_BX[:, :IDS] = 0
    for shard, pieces in enumerate(shards):
      for row_X, (*numbers, ids_X) in zip(work_BX[shard * rows :], pieces, strict=False):
        row_X[:IDS], row_X[IDS : IDS + len(ids_X)] = numbers, ids_X
    return work_BX

  def _spread(self, *orders):
    return jax.device_put(orders, self._orders_at) if self._orders_at else orders

  def _on_mesh(self):
    # The mesh in force is a property of the thread, and the engine's worker has none.
    return jax.set_mesh(self._mesh) if self._mesh else contextlib.nullcontext()


def _shapes(params):
  leaves = jax.tree_util.tree_leaves_with_path(params)
  return {jax.tree_util.keystr(path): f'{leaf.dtype}{list(leaf.shape)}' for path, leaf in leaves}
