import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from slca_jax.nn.cache import LayerCache, Segments
from slca_jax.rollout import decoding, drawing
from slca_jax.rollout.drawing import Control

PROBS = np.array([0.5, 0.2, 0.15, 0.1, 0.05], np.float32)


def control(slots, *, seed=0, temperature=1.0, top_p=1.0, stop=()):
  control_SX = np.zeros((slots, drawing.STOPS + 3), np.int32)
  for row_X in control_SX:
    drawing.pack_sampling(row_X, seed=seed, temperature=temperature, top_p=top_p, stop=stop)
  return control_SX


class NucleusTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters((0.01, 1), (0.49, 1), (0.51, 2), (0.69, 2), (0.75, 3), (0.9, 4), (0.96, 5), (1.0, 5))
  def test_it_is_the_smallest_set_that_reaches_the_mass(self, top_p, size):
    order = np.array([3, 0, 4, 1, 2])
    logits_SV = jnp.log(PROBS)[order][None] + 7
    kept_SV = self.variant(drawing.nucleus)(logits_SV, jnp.array([top_p]))
    np.testing.assert_array_equal(np.isfinite(kept_SV)[0], order < size)
    np.testing.assert_array_equal(kept_SV[0, order < size], logits_SV[0, order < size])


def test_ties_with_the_last_of_the_nucleus_stay():
  kept_SV = drawing.nucleus(jnp.array([[1.0, 3.0, 1.0, 1.0]]), jnp.array([0.8]))
  assert np.isfinite(kept_SV).all()


def draws(count, **changes):
  packed = Control.unpack(jnp.asarray(control(count, **changes)))
  logits_SV = jnp.broadcast_to(jnp.log(PROBS), (count, 5))
  return drawing.sample(logits_SV, packed, jnp.arange(count), jnp.ones(count, bool))


@pytest.mark.parametrize(
  ('changes', 'expected'),
  [
    ({}, PROBS),
    ({'temperature': 0.5}, PROBS**2 / (PROBS**2).sum()),
    ({'top_p': 0.6}, np.array([5, 2, 0, 0, 0]) / 7),
    ({'temperature': 0.0}, np.array([1, 0, 0, 0, 0])),
  ],
)
def test_ids_come_as_often_as_their_probability_says(changes, expected):
  count = 20000
  token_S, _ = draws(count, **changes)
  share = np.bincount(token_S, minlength=5) / count
  # Four standard deviations of a share.
  np.testing.assert_array_less(np.abs(share - expected), 4 * np.sqrt(expected * (1 - expected) / count) + 1e-9)


def test_logprobs_are_those_of_the_whole_distribution_also_under_top_p():
  token_S, logp_S = draws(50, top_p=0.6)
  np.testing.assert_allclose(logp_S, np.log(PROBS)[token_S], atol=1e-6)


def test_logits_that_are_no_numbers_give_no_logprob():
  packed = Control.unpack(jnp.asarray(control(3)))
  logits_SV = jnp.zeros((3, 5)).at[0, 2].set(jnp.nan).at[1, 2].set(jnp.inf)
  _, logp_S = drawing.sample(logits_SV, packed, jnp.arange(3), jnp.ones(3, bool))
  np.testing.assert_array_equal(np.isfinite(logp_S), [False, False, True])


def test_the_control_array_survives_packing():
  seed = (5 << 32) + 4_000_000_000
  packed = Control.unpack(jnp.asarray(control(1, seed=seed, temperature=0.7, top_p=0.9, stop=(8, 9))))
  np.testing.assert_array_equal(packed.seed_S2, np.array([[5, 4_000_000_000]], np.uint32))
  np.testing.assert_array_equal(packed.temperature_S, np.array([0.7], np.float32))
  np.testing.assert_array_equal(packed.top_p_S, np.array([0.9], np.float32))
  np.testing.assert_array_equal(packed.stops_SX, [[8, 9, -1]])


def test_a_small_seed_draws_as_the_key_of_that_seed():
  packed = Control.unpack(jnp.asarray(control(1, seed=42)))
  key = jax.random.wrap_key_data(packed.seed_S2, impl='threefry2x32')[0]
  assert (jax.random.bits(key) == jax.random.bits(jax.random.key(42, impl='threefry2x32'))).all()


def test_stems_are_copied_in_order_and_slots_left_alone():
  stems = jnp.array([1.0, 2.0, 3.0, 4.0])
  half = Segments(
    (stems[:, None, None, None] * jnp.ones((4, 2, 3, 5)),), (-stems[:, None, None, None] * jnp.ones((4, 2, 5, 3)),)
  )
  copies = jnp.array([[0, 1], [1, 3], [-1, -1], [2, 0]])
  [layer] = decoding.copy_stems((LayerCache(half, half),), copies)
  np.testing.assert_array_equal(layer.stems.k_XKHW[0][:, 0, 0, 0], [1, 1, 3, 1])
  np.testing.assert_array_equal(layer.stems.v_XKWH[0][:, 1, 4, 2], [-1, -1, -3, -1])
  np.testing.assert_array_equal(layer.own.k_XKHW[0], half.k_XKHW[0])
