"""Keys and values of rows that are being sampled: prompts once, each row's own behind them, attention over both.

A row's first `shared` positions lie in a *stem*, which all rows with that prompt read; what follows is its own. Memory
grows with prompts + rows · responses, and a prompt's keys are read once for all rows on it. Both parts are kept in
segments of doubling size, each an array of its own, and a segment that no row has reached is not looked at: slicing
blocks out of one long array would copy them at every token.

Axes beside the package's legend: P stems, R seats of a stem, S slots, one row each, W positions of a segment, G query
heads per key-value head, M query rows of one product.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import struct
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.sharding import ROWS, attention_axes
from slca_jax.nn.softmax import Softmax, accumulate, close, dot, nothing
from slca_jax.nn.visibility import LOWEST, MASKED

_STEM_START, _OWN_START, _LARGEST = 256, 64, 4096  # positions of a segment


@struct.dataclass
class Segments:
  """Keys and values of one layer, cut along positions; keys lie transposed, as their product wants them."""

  k_XKHW: tuple[jax.Array, ...]
  v_XKWH: tuple[jax.Array, ...]

  def starts(self) -> list[tuple[int, int]]:
    """(first position, positions) of each segment."""
    sizes = [v_XKWH.shape[2] for v_XKWH in self.v_XKWH]
    return [(sum(sizes[:i]), size) for i, size in enumerate(sizes)]


@struct.dataclass
class LayerCache:
  """What one layer keeps: of P stems, and of S slots behind their stems."""

  stems: Segments
  own: Segments


KVCache = tuple[LayerCache, ...]


class Seats(NamedTuple):
  """Where one token of every slot stands, for decoding.

  Attributes:
    position_S: its position in its row, prompt included; -1 where the slot rests.
    shared_S: how many of the row's positions lie in its stem.
    place_S: stem · R + seat; P · R for a row without a stem.
    slot_PR: the slot in each seat; S for none.
  """

  position_S: jax.Array
  shared_S: jax.Array
  place_S: jax.Array
  slot_PR: jax.Array


class Pieces(NamedTuple):
  """Where the tokens of B pieces of rows stand, for known tokens.

  Attributes:
    stem_B, slot_B: where the row lies; in a piece of a prompt the slot means nothing.
    shared_B: how many of the row's positions lie in the stem; at least all of them in a piece of a prompt.
    position_BT: position of each token in its row; -1 marks padding.
  """

  stem_B: jax.Array
  slot_B: jax.Array
  shared_B: jax.Array
  position_BT: jax.Array


def segment_sizes(positions: int, first: int) -> list[int]:
  """Sizes of segments that hold `positions`: first, first, 2·first, 4·first, … up to a largest one."""
  sizes = [min(first, positions)]
  while (left := positions - sum(sizes)) > 0:
    sizes.append(min(sum(sizes), _LARGEST, left))
  return sizes


def empty_cache(
  config: TransformerConfig,
  *,
  stems: int,
  slots: int,
  positions: int,
  own: int,
  dtype: str | None = None,
  place: Sharding | None = None,
) -> KVCache:
  """A cache of zeros for stems of some positions, and for slots of `own` positions behind them.

  Args:
    dtype: the activations' unless given.
    place: where its arrays lie; see `cache_sharding`.
  """

  def half(rows, sizes):
    zeros = lambda *shape: jnp.zeros((rows, config.kv_heads, *shape), dtype or config.dtype, device=place)
    return Segments(
      tuple(zeros(config.head_dim, size) for size in sizes), tuple(zeros(size, config.head_dim) for size in sizes)
    )

  stem_sizes, own_sizes = segment_sizes(positions, _STEM_START), segment_sizes(own, _OWN_START)
  return tuple(LayerCache(half(stems, stem_sizes), half(slots, own_sizes)) for _ in range(config.layers))


def cache_shards(mesh: Mesh | None, *rows: int) -> int:
  """Over how many shards rows are spread: `data` times `fsdp` where every count of rows divides by it, else 1."""
  shards = math.prod(mesh.shape[axis] for axis in ROWS) if mesh is not None and set(ROWS) <= set(mesh.axis_names) else 1
  return shards if all(count % shards == 0 for count in rows) else 1


def cache_sharding(mesh: Mesh | None, rows: tuple[int, ...], kv_heads: int) -> NamedSharding | None:
  """Where the arrays of a cache lie; None without a mesh."""
  if mesh is None or not set(ROWS) <= set(mesh.axis_names):
    return None if mesh is None else NamedSharding(mesh, PartitionSpec())
  heads = 'tensor' if kv_heads % mesh.shape['tensor'] == 0 else None
  return NamedSharding(mesh, PartitionSpec(ROWS if cache_shards(mesh, *rows) > 1 else None, heads))


def decode_attention(q_S1NH, k_S1KH, v_S1KH, layer: LayerCache, seats: Seats) -> tuple[jax.Array, LayerCache]:
  """(out_S1NH, the layer's cache with each slot's new key and value): one token of every slot sees its row.

  out = softmax(q·k / √H) v over the stem's first `shared` positions and the slot's own up to `position`; a resting slot
  gets 0 and writes nothing. What a row gets does not depend, not even in its last bit, on how far other rows are: a
  segment that shows a row nothing leaves its sums as they are.
  """
  slots, stems = q_S1NH.shape[0], seats.slot_PR.shape[0]
  return _on_each_device(_decode_attention, (slots, stems))(q_S1NH, k_S1KH, v_S1KH, layer, seats)


def prompt_attention(q_BTNH, k_BTKH, v_BTKH, layer: LayerCache, pieces: Pieces) -> tuple[jax.Array, LayerCache]:
  """(out_BTNH, the layer's cache with the pieces' keys and values in their stems): pieces of prompts see their stem."""
  return _on_each_device(_prompt_attention, _counts(layer, pieces))(q_BTNH, k_BTKH, v_BTKH, layer, pieces)


def turn_attention(q_BTNH, k_BTKH, v_BTKH, layer: LayerCache, pieces: Pieces) -> tuple[jax.Array, LayerCache]:
  """(out_BTNH, the layer's cache with the pieces' keys and values in their slots): pieces see stem and own part."""
  return _on_each_device(_turn_attention, _counts(layer, pieces))(q_BTNH, k_BTKH, v_BTKH, layer, pieces)


def _counts(layer, pieces):
  return pieces.stem_B.shape[0], layer.stems.v_XKWH[0].shape[0], layer.own.v_XKWH[0].shape[0]


def _on_each_device(function: Callable, rows: tuple[int, ...]) -> Callable:
  """`function` on each device's own rows and heads; indices of slots and stems count from the device's first."""

  def spread(q_BTNH, k_BTKH, v_BTKH, layer, where):
    axes = [attention_axes(count, k_BTKH.shape[2]) for count in rows]
    heads = axes[0][1]
    spread_rows = ROWS if all(axis[0] for axis in axes) else None
    if spread_rows is None and heads is None:
      return function(q_BTNH, k_BTKH, v_BTKH, layer, where)
    tensor = PartitionSpec(spread_rows, None, heads, None)
    cached = jax.tree.map(lambda _: PartitionSpec(spread_rows, heads, None, None), layer)
    index = jax.tree.map(lambda x: PartitionSpec(spread_rows, *[None] * (x.ndim - 1)), where)
    specs = tensor, tensor, tensor, cached, index
    return jax.shard_map(function, in_specs=specs, out_specs=(tensor, cached), check_vma=False)(
      q_BTNH, k_BTKH, v_BTKH, layer, where
    )

  return spread


def _decode_attention(q_S1NH, k_S1KH, v_S1KH, layer, seats):
  S, _, N, H = q_S1NH.shape
  (P, R), K = seats.slot_PR.shape, k_S1KH.shape[2]
  own_S = jnp.where(seats.position_S < 0, -1, seats.position_S - seats.shared_S)
  own = _write(layer.own, k_S1KH, v_S1KH, jnp.arange(S), own_S[:, None])
  q_SKGH = q_S1NH.reshape(S, K, N // K, H)
  # Rows of one prompt meet its keys together. A row more stands for nobody, on both sides.
  q_PRKGH = jnp.pad(q_SKGH, ((0, 1), (0, 0), (0, 0), (0, 0)))[seats.slot_PR]
  resting_S = seats.position_S < 0
  shared_PR = jnp.pad(jnp.where(resting_S, 0, seats.shared_S), (0, 1))[seats.slot_PR]
  q_PKMH = q_PRKGH.swapaxes(1, 2).reshape(P, K, -1, H)
  shared_PM = jnp.repeat(shared_PR, N // K, axis=1)
  state = _over(layer.stems, q_PKMH, shared_PM, lambda x: x)

  def to_slots(x):
    x = x.reshape(P, K, R, N // K, *x.shape[3:]).swapaxes(1, 2).reshape(P * R, K, N // K, *x.shape[3:])
    return jnp.concatenate([x, jnp.zeros_like(x[:1])])[seats.place_S]

  has_S111 = (seats.place_S < P * R)[:, None, None]
  state = Softmax(*map(to_slots, state))
  state = state._replace(top=jnp.where(has_S111, state.top, LOWEST))
  seen_SM = jnp.broadcast_to(own_S[:, None] + 1, (S, N // K))
  out_SKGH = close(_over(own, q_SKGH, seen_SM, lambda x: x, state))[0]
  return out_SKGH.reshape(S, 1, N, H).astype(q_S1NH.dtype), layer.replace(own=own)


def _prompt_attention(q_BTNH, k_BTKH, v_BTKH, layer, pieces):
  stems = _write(layer.stems, k_BTKH, v_BTKH, pieces.stem_B, pieces.position_BT)
  q_BKMH, seen_BM = _by_heads(q_BTNH, k_BTKH.shape[2]), jnp.repeat(pieces.position_BT + 1, _group(q_BTNH, k_BTKH), 1)
  state = _over(stems, q_BKMH, seen_BM, lambda x: x.at[pieces.stem_B].get(mode='clip'))
  return _by_tokens(close(state)[0], q_BTNH), layer.replace(stems=stems)


def _turn_attention(q_BTNH, k_BTKH, v_BTKH, layer, pieces):
  own_BT = jnp.where(pieces.position_BT < 0, -1, pieces.position_BT - pieces.shared_B[:, None])
  own = _write(layer.own, k_BTKH, v_BTKH, pieces.slot_B, own_BT)
  q_BKMH, group = _by_heads(q_BTNH, k_BTKH.shape[2]), _group(q_BTNH, k_BTKH)
  shared_BT = jnp.where(own_BT < 0, 0, pieces.shared_B[:, None])
  state = _over(layer.stems, q_BKMH, jnp.repeat(shared_BT, group, 1), lambda x: x.at[pieces.stem_B].get(mode='clip'))
  slots = lambda x: x.at[pieces.slot_B].get(mode='clip')
  state = _over(own, q_BKMH, jnp.repeat(own_BT + 1, group, 1), slots, state)
  return _by_tokens(close(state)[0], q_BTNH), layer.replace(own=own)


def _group(q_BTNH, k_BTKH):
  return q_BTNH.shape[2] // k_BTKH.shape[2]


def _by_heads(q_BTNH, K):
  """q_BKMH: the queries that meet each key-value head, M = T · G."""
  B, T, N, H = q_BTNH.shape
  return q_BTNH.reshape(B, T, K, N // K, H).swapaxes(1, 2).reshape(B, K, -1, H)


def _by_tokens(out_BKMH, q_BTNH):
  B, T, N, H = q_BTNH.shape
  K = out_BKMH.shape[1]
  return out_BKMH.reshape(B, K, T, N // K, H).swapaxes(1, 2).reshape(B, T, N, H).astype(q_BTNH.dtype)


def _write(segments: Segments, k_BTKH, v_BTKH, row_B, index_BT) -> Segments:
  """The segments with new keys and values at an index of their row each; -1 is dropped."""
  row_BT = jnp.broadcast_to(row_B[:, None], index_BT.shape)
  ks, vs = [], []
  for (start, size), k_XKHW, v_XKWH in zip(segments.starts(), segments.k_XKHW, segments.v_XKWH, strict=True):
    here_BT = index_BT - start
    # Negative indices would count from the end; one beyond the end is dropped.
    here_BT = jnp.where((here_BT >= 0) & (index_BT >= 0), here_BT, size)
    ks.append(k_XKHW.at[row_BT, :, :, here_BT].set(k_BTKH.astype(k_XKHW.dtype), mode='drop'))
    vs.append(v_XKWH.at[row_BT, :, here_BT].set(v_BTKH.astype(v_XKWH.dtype), mode='drop'))
  return Segments(tuple(ks), tuple(vs))


def _over(segments: Segments, q_BKMH, seen_BM, rows: Callable, state: Softmax | None = None) -> Softmax:
  """The softmax after the first `seen` positions of each query's row; `rows` takes the rows of B out of a segment."""
  so_far = state or nothing(q_BKMH)
  farthest = jnp.max(seen_BM)
  for (start, size), k_XKHW, v_XKWH in zip(segments.starts(), segments.k_XKHW, segments.v_XKWH, strict=True):

    def visit(so_far, k_XKHW=k_XKHW, v_XKWH=v_XKWH, start=start, size=size):
      k_BKHW, v_BKWH = rows(k_XKHW).astype(q_BKMH.dtype), rows(v_XKWH).astype(q_BKMH.dtype)
      visible_BMW = start + jnp.arange(size) < seen_BM[..., None]
      scores_BKMW = dot('BKMH,BKHW->BKMW', q_BKMH, k_BKHW) * q_BKMH.shape[-1] ** -0.5
      return accumulate(so_far, jnp.where(visible_BMW[:, None], scores_BKMW, MASKED), v_BKWH)

    so_far = jax.lax.cond(farthest > start, visit, lambda so_far: so_far, so_far)
  return so_far
