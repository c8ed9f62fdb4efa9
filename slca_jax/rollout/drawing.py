"""How the embedded engine draws tokens: the orders of a decode block, packed into one array, and sampling by them.

Axes beside the package's legend: S slots, X columns of a packed array.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

EMPTY = -1  # in a block's tokens: nothing was sampled; in a list of ids: no further one

# Columns of the control array; the stop ids, padded with -1, follow.
TOKEN, POSITION, INDEX, LEFT, SHARED, PLACE, SEED_HIGH, SEED_LOW, TEMPERATURE, TOP_P, STOPS = range(11)


class Control(NamedTuple):
  """One decode block's orders. A slot whose `left` is 0 rests.

  Attributes:
    token: the last known id of the slot, not yet in the cache.
    position: its position.
    index: how many ids the request has sampled before.
    left: how many more it may sample.
    shared: how many of its positions lie in its stem.
    place: stem · R + seat, counted from the first stem of the slot's device; P · R for none.
  """

  token_S: jax.Array
  position_S: jax.Array
  index_S: jax.Array
  left_S: jax.Array
  shared_S: jax.Array
  place_S: jax.Array
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
      shared_S=control_SX[:, SHARED],
      place_S=control_SX[:, PLACE],
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
    return _largest(jnp.where(warm_S[:, None], kept_SV + noise_SV, scaled_SV))

  token_S = jax.lax.cond((active_S & warm_S).any(), draw, lambda: _largest(scaled_SV))
  chosen_S = jnp.take_along_axis(scaled_SV, token_S[:, None], axis=-1)[:, 0]
  return token_S, chosen_S - jax.nn.logsumexp(scaled_SV, axis=-1)


def _largest(x_SV):
  """jnp.argmax, except that among NaN it gives the last index; two reductions are six times as fast on a CPU."""
  index_SV = jnp.where(x_SV == x_SV.max(-1, keepdims=True), jnp.arange(x_SV.shape[1]), x_SV.shape[1] - 1)
  return index_SV.min(-1).astype(jnp.int32)


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
