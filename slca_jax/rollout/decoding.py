"""The embedded engine's device programs: extend rows by known tokens, copy rows, sample a block of tokens.

What a call needs besides weights and cache travels as one small int32 array, and comes back as one: on a small model
the host's work per call bounds the speed. Floats ride along as their bits.

Every program has one shape, and every row of it is computed alike whatever stands in the other rows. So ids and
log-probs of a request depend on that request alone. Axes beside the package's legend: S slots (positions in a cache),
C tokens of a prefill chunk, P rows of a prefill call, X columns of a packed array, M steps of a decode block.
"""

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from slca_jax.errors import SamplerError
from slca_jax.nn.cache import KVCache, empty_cache
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.transformer import Transformer
from slca_jax.rollout.settings import LocalEngine

Leaves = tuple[jax.Array, ...]
Copies = Sequence[tuple[int, int, int]]
Chunk = tuple[int, int, np.ndarray]

EMPTY = -1  # in a block's tokens: nothing was sampled
BROKEN = -2  # in a block's tokens: the logits are no numbers

_COPIED = 128  # positions copied at once

# Columns of the control array; the stop ids, padded with -1, follow.
TOKEN, POSITION, INDEX, LEFT, SEED_HIGH, SEED_LOW, TEMPERATURE, TOP_P, STOPS = range(9)


class Control(NamedTuple):
  """One decode block's orders. A slot whose `left` is 0 rests.

  Attributes:
    token: the last known id of the slot, not yet in the cache.
    position: its position.
    index: how many ids the request has sampled before.
    left: how many more it may sample.
  """

  token_S: jax.Array
  position_S: jax.Array
  index_S: jax.Array
  left_S: jax.Array
  seed_S2: jax.Array
  temperature_S: jax.Array
  top_p_S: jax.Array
  stops_SX: jax.Array

  @classmethod
  def unpack(cls, control_SX: jax.Array) -> 'Control':
    """The fields of a packed array."""
    as_floats = jax.lax.bitcast_convert_type(control_SX[:, TEMPERATURE:STOPS], jnp.float32)
    seed_S2 = jax.lax.bitcast_convert_type(control_SX[:, SEED_HIGH : SEED_LOW + 1], jnp.uint32)
    return cls(
      token_S=control_SX[:, TOKEN],
      position_S=control_SX[:, POSITION],
      index_S=control_SX[:, INDEX],
      left_S=control_SX[:, LEFT],
      seed_S2=seed_S2,
      temperature_S=as_floats[:, 0],
      top_p_S=as_floats[:, 1],
      stops_SX=control_SX[:, STOPS:],
    )


def pack_sampling(row_X: np.ndarray, *, seed: int, temperature: float, top_p: float, stop: tuple[int, ...]) -> None:
  """Writes what stays fixed for a request into its row of the control array. A seed counts modulo 2⁶⁴."""
  row_X[SEED_HIGH : SEED_LOW + 1] = np.array([(seed >> 32) & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32).view(np.int32)
  row_X[TEMPERATURE:STOPS] = np.array([temperature, top_p], np.float32).view(np.int32)
  row_X[STOPS:] = EMPTY
  row_X[STOPS : STOPS + len(stop)] = stop


class _Block(NamedTuple):
  step: jax.Array
  active_S: jax.Array
  token_S: jax.Array
  cache: KVCache
  tokens_SM: jax.Array
  logp_SM: jax.Array


def decode(model: Transformer, cache: KVCache, control_SX: jax.Array, hasten: jax.Array, *, steps: int):
  """The cache and up to `steps` sampled tokens per slot, fewer once every slot is done.

  Token j of a request is drawn with the key fold_in(key(seed), j) from softmax(logits / temperature) cut to a nucleus.

  Args:
    hasten: end the block as soon as any slot is done.

  Returns:
    (cache, packed_SM2): ids (EMPTY where none, BROKEN where the logits are no numbers) and the bits of
    log_softmax(logits / temperature) of each id in float32, raw at temperature 0.
  """
  control = Control.unpack(control_SX)
  unembed_VD = model.unembedding()
  slots = control.token_S.shape[0]
  first_S = control.left_S > 0

  def going(block):
    waits = hasten & (first_S & ~block.active_S).any()
    return (block.step < steps) & block.active_S.any() & ~waits

  def advance(block):
    position_S = jnp.where(block.active_S, control.position_S + block.step, -1)
    hidden_BTD, cache = model.extend(block.token_S[:, None], position_S[:, None], block.cache)
    logits_SV = jnp.einsum('SD,VD->SV', hidden_BTD[:, 0], unembed_VD, preferred_element_type=jnp.float32)
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


def sample(logits_SV: jax.Array, control: Control, index_S: jax.Array, active_S: jax.Array):
  """(token_S, logp_S): drawn by Gumbel-max where temperature > 0, else the largest logit; NaN logits give logp NaN."""
  warm_S = control.temperature_S > 0
  scaled_SV = logits_SV / jnp.where(warm_S, control.temperature_S, 1)[:, None]

  def draw():
    narrow = (active_S & warm_S & (control.top_p_S < 1)).any()
    kept_SV = jax.lax.cond(narrow, lambda: nucleus(scaled_SV, control.top_p_S), lambda: scaled_SV)
    keys_S = jax.random.wrap_key_data(control.seed_S2, impl='threefry2x32')
    noise_SV = jax.vmap(lambda key, i: jax.random.gumbel(jax.random.fold_in(key, i), scaled_SV.shape[1:]))(
      keys_S, index_S
    )
    return jnp.argmax(jnp.where(warm_S[:, None], kept_SV + noise_SV, scaled_SV), axis=-1)

  token_S = jax.lax.cond((active_S & warm_S).any(), draw, lambda: jnp.argmax(scaled_SV, axis=-1)).astype(jnp.int32)
  chosen_S = jnp.take_along_axis(scaled_SV, token_S[:, None], axis=-1)[:, 0]
  return token_S, chosen_S - jax.nn.logsumexp(scaled_SV, axis=-1)


def nucleus(scaled_SV: jax.Array, top_p_S: jax.Array) -> jax.Array:
  """The logits with -inf outside the smallest set of likeliest ids whose mass reaches top_p; ties with its last stay.

  The least probability of the set is found by bisection over the bits of a float, whose order is that of the numbers:
  31 sums cost less than a sort of the vocabulary and are as exact.
  """
  bits_SV = jax.lax.bitcast_convert_type(jax.nn.softmax(scaled_SV, axis=-1), jnp.int32)

  def halve(_, bounds):
    low_S, high_S = bounds
    middle_S = low_S + (high_S - low_S) // 2
    probs_SV = jax.lax.bitcast_convert_type(bits_SV, jnp.float32)
    enough_S = jnp.where(bits_SV >= middle_S[:, None], probs_SV, 0).sum(-1) >= top_p_S
    return jnp.where(enough_S, middle_S, low_S), jnp.where(enough_S, high_S, middle_S)

  one = int(np.float32(1).view(np.int32))
  bounds = jnp.zeros_like(top_p_S, jnp.int32), jnp.full_like(top_p_S, one + 1, jnp.int32)
  least_S, _ = jax.lax.fori_loop(0, 31, halve, bounds)
  return jnp.where((bits_SV >= least_S[:, None]) | (top_p_S[:, None] >= 1), scaled_SV, -jnp.inf)


def prefill(model: Transformer, cache: KVCache, work_PX: jax.Array) -> KVCache:
  """The cache with a chunk of known tokens added to up to P rows.

  Args:
    work_PX: slot (one beyond the last for a row without work), first position, then C ids padded with EMPTY.
  """
  slot_P, start_P, tokens_PC = work_PX[:, 0], work_PX[:, 1], work_PX[:, 2:]
  position_PC = jnp.where(tokens_PC >= 0, start_P[:, None] + jnp.arange(tokens_PC.shape[1]), -1)
  rows = jax.tree.map(lambda x: x.at[:, slot_P].get(mode='clip'), cache)
  _, rows = model.extend(jnp.maximum(tokens_PC, 0), position_PC, rows)
  return jax.tree.map(lambda x, row: _put_chunk(x, row, slot_P, position_PC), cache, rows)


def _put_chunk(x_LBSKH, row_LPSKH, slot_P, position_PC):
  """The cache with only what is new in the rows; padding and rows without work fall beyond its ends and are dropped."""
  new_LPCKH = jnp.take_along_axis(row_LPSKH, jnp.maximum(position_PC, 0)[None, :, :, None, None], axis=2)
  beyond_PC = jnp.where(position_PC >= 0, position_PC, x_LBSKH.shape[2])
  return x_LBSKH.at[:, slot_P[:, None], beyond_PC].set(new_LPCKH, mode='drop')


def copy_rows(cache: KVCache, copies_X3: jax.Array) -> KVCache:
  """The cache after copies in order: of each triple's source row to its target row, at least so many leading positions.

  A source of -1 clears the target, since a masked NaN would still poison its row. A target of -1 ends the list.
  """
  count = jnp.argmin(jnp.append(copies_X3[:, 1], -1) >= 0)

  def copy_one(i, cache):
    source, target, positions = copies_X3[i]
    blocks = -(-positions // min(_COPIED, cache.k_LBSKH.shape[2]))

    def copy_block(j, cache):
      return jax.tree.map(lambda x: _copy_block(x, source, target, j), cache)

    return jax.lax.fori_loop(0, blocks, copy_block, cache)

  return jax.lax.fori_loop(0, count, copy_one, cache)


def _copy_block(x_LBSKH, source, target, j):
  L, _, S, K, H = x_LBSKH.shape
  size = min(_COPIED, S)
  # The last block is pulled back to end with the row.
  start = jnp.minimum(j * size, S - size)
  block = jax.lax.dynamic_slice(x_LBSKH, (0, jnp.maximum(source, 0), start, 0, 0), (L, 1, size, K, H))
  return jax.lax.dynamic_update_slice(x_LBSKH, jnp.where(source >= 0, block, 0), (0, target, start, 0, 0))


class Programs:
  """The compiled programs of one engine: three, each of one shape. Every call takes the cache and gives it back."""

  def __init__(self, graph: nnx.GraphDef, params: nnx.State, config: TransformerConfig, options: LocalEngine):
    self._config, self._options = config, options
    self._shapes = _shapes(params)
    leaves, tree = jax.tree.flatten(params)
    sharding = leaves[0].sharding
    self._mesh = sharding.mesh if isinstance(sharding, NamedSharding) else None
    # The cache lies on every device of the weights. Pinned, or one that came back differently would compile all anew.
    self._place = NamedSharding(self._mesh, PartitionSpec()) if self._mesh else sharding

    def model(leaves):
      return nnx.merge(graph, jax.tree.unflatten(tree, leaves))

    def run_decode(leaves, cache, control_SX, hasten):
      return decode(model(leaves), cache, control_SX, hasten, steps=options.decode_block)

    def run_prefill(leaves, cache, work_PX):
      return prefill(model(leaves), cache, work_PX)

    def run_copy(cache, copies_X3):
      return copy_rows(cache, copies_X3)

    self._decode = jax.jit(run_decode, donate_argnums=1, out_shardings=self._place)
    self._prefill = jax.jit(run_prefill, donate_argnums=1, out_shardings=self._place)
    self._copy = jax.jit(run_copy, donate_argnums=0, out_shardings=self._place)

  def adopt(self, params: nnx.State) -> Leaves:
    """Copies of the parameters' arrays, so that their owner may donate them.

    Raises:
      SamplerError: they differ from the model's in name, shape or type.
    """
    shapes = _shapes(params)
    for name in sorted(self._shapes.keys() | shapes.keys()):
      if self._shapes.get(name) != shapes.get(name):
        raise SamplerError(f'parameter {name} is {shapes.get(name)}, the engine has {self._shapes.get(name)}')
    return tuple(jax.block_until_ready([jnp.copy(leaf) for leaf in jax.tree.leaves(params)]))

  def empty_cache(self) -> KVCache:
    """A cache of zeros for all slots."""
    options = self._options
    cache = empty_cache(self._config, options.slots, options.context, options.cache_dtype)
    return jax.device_put(cache, self._place)

  def decode(self, leaves: Leaves, cache: KVCache, control_SX: np.ndarray, hasten: bool) -> tuple[KVCache, np.ndarray]:
    """See the function `decode`."""
    with self._on_mesh():
      cache, packed_SM2 = self._decode(leaves, cache, control_SX, np.bool_(hasten))
      return cache, np.asarray(packed_SM2)

  def fill(self, leaves: Leaves, cache: KVCache, copies: Copies, chunks: Sequence[Chunk]) -> KVCache:
    """The cache after the copies and then the chunks, as `copy_rows` and `prefill` do them.

    Args:
      copies: triples of source (-1: zeros), target and the number of leading positions.
      chunks: at most `prefill_rows` pieces, each as (slot, first position, ids).
    """
    options = self._options
    with self._on_mesh():
      if copies:
        copies_X3 = np.full((2 * options.slots, 3), -1, np.int32)
        copies_X3[: len(copies)] = copies
        cache = self._copy(cache, copies_X3)
      if chunks:
        work_PX = np.full((options.prefill_rows, 2 + options.prefill_chunk), EMPTY, np.int32)
        work_PX[:, 0] = options.slots
        for row_X, (slot, start, ids_X) in zip(work_PX, chunks, strict=False):
          row_X[:2], row_X[2 : 2 + len(ids_X)] = (slot, start), ids_X
        cache = self._prefill(leaves, cache, work_PX)
    return cache

  def compilations(self) -> dict[str, int]:
    """How many variants of each program were compiled."""
    programs = {'decode': self._decode, 'prefill': self._prefill, 'copy': self._copy}
    return {name: program._cache_size() for name, program in programs.items()}  # pyright: ignore[reportAttributeAccessIssue]

  def _on_mesh(self):
    # The mesh in force is a property of the thread, and the engine's worker has none.
    return jax.set_mesh(self._mesh) if isinstance(self._mesh, Mesh) else contextlib.nullcontext()


def _shapes(params):
  leaves = jax.tree_util.tree_leaves_with_path(params)
  return {jax.tree_util.keystr(path): f'{leaf.dtype}{list(leaf.shape)}' for path, leaf in leaves}
