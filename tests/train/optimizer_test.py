"""Schedules by hand, and what is decayed."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from slca_jax.errors import ConfigError
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.transformer import Transformer
from slca_jax.train.optimizer import MasterState, learning_rate, make
from slca_jax.train.settings import Optimizer


@pytest.mark.parametrize(
  ('settings', 'at', 'wanted'),
  [
    (Optimizer(learning_rate=2.0), [0, 50, 99], [2, 2, 2]),
    (Optimizer(learning_rate=2.0, warmup=0.1), [0, 5, 10, 99], [0, 1, 2, 2]),
    (Optimizer(learning_rate=2.0, schedule='linear', warmup=0.1), [10, 55, 100], [2, 1, 0]),
    (Optimizer(learning_rate=2.0, schedule='cosine', final_fraction=0.1), [0, 50, 100], [2, 1.1, 0.2]),
    (Optimizer(learning_rate=2.0, schedule='cosine', warmup=0.1, hold=0.5), [10, 60, 80, 100], [2, 2, 1, 0]),
  ],
)
def test_rate_follows_its_schedule(settings, at, wanted):
  rate = learning_rate(settings, 100)
  np.testing.assert_allclose([rate(step) for step in at], wanted, atol=1e-6)


def test_only_matrices_are_decayed():
  config = TransformerConfig(
    vocab=8, layers=1, width=8, hidden=8, heads=1, kv_heads=1, head_dim=8, qkv_bias=True, qk_norm=True
  )
  _, params = nnx.split(Transformer(config, rngs=nnx.Rngs(0)), nnx.Param)
  params = jax.tree.map(jnp.ones_like, params)
  rule = make(Optimizer(learning_rate=0.1, weight_decay=0.5), 1)
  updates, _ = rule.update(jax.tree.map(jnp.zeros_like, params), rule.init(params), params)
  moved = {path[-1] for path, leaf in nnx.to_flat_state(updates) if (np.asarray(leaf.get_value()) != 0).all()}
  assert moved == {'embed', 'w_q', 'w_k', 'w_v', 'w_o', 'w_gate', 'w_up', 'w_down'}


def test_shares_beyond_the_run_are_refused():
  with pytest.raises(ConfigError, match='exceed the run'):
    Optimizer(warmup=0.6, hold=0.5)


@pytest.mark.parametrize(
  ('changes', 'says'),
  [
    ({'b1': 1.0}, r'b1 is 1\.0; it lies in \[0, 1\)'),
    ({'b2': 1.0}, r'b2 is 1\.0'),
    ({'eps': 0.0}, r'eps is 0\.0; a weight without a gradient needs a positive one'),
    ({'weight_decay': -0.1}, r'weight_decay is -0\.1'),
  ],
)
def test_settings_whose_moves_are_no_numbers_or_grow_weights_are_refused(changes, says):
  with pytest.raises(ConfigError, match=says):
    Optimizer(**changes)


def descend(settings, dtype, steps=64):
  """Parameters at 1 after some steps of rate 2⁻¹¹ against a gradient of 1, and the state."""
  rule, params = make(settings, steps), {'w_q': jnp.ones(4, dtype)}
  state = rule.init(params)
  for _ in range(steps):
    updates, state = rule.update({'w_q': jnp.ones(4, jnp.float32)}, state, params)
    params = optax.apply_updates(params, updates)
  return params['w_q'], state


def test_master_copy_adds_up_what_bfloat16_would_lose():
  # Adam moves by the rate, 2⁻¹¹. Below 1 bfloat16 has steps of 2⁻⁸: each move alone is rounded away, 64 are 2⁻⁵.
  plain = Optimizer(learning_rate=2**-11, weight_decay=0.0, master=False)
  lost, _ = descend(plain, jnp.bfloat16)
  assert (lost == 1).all()
  kept, state = descend(Optimizer(learning_rate=2**-11, weight_decay=0.0), jnp.bfloat16)
  whole, _ = descend(Optimizer(learning_rate=2**-11, weight_decay=0.0), jnp.float32)
  assert kept.dtype == jnp.bfloat16 and isinstance(state, MasterState) and state.master['w_q'].dtype == jnp.float32
  np.testing.assert_allclose(whole, 1 - 2**-5, atol=1e-6)
  np.testing.assert_array_equal(state.master['w_q'], whole)
  np.testing.assert_array_equal(kept, whole.astype(jnp.bfloat16))


def test_float32_parameters_have_no_master_copy():
  _, state = descend(Optimizer(), jnp.float32, 1)
  assert not isinstance(state, MasterState)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16'])
def test_first_moment_has_the_type_that_is_asked_for_and_the_second_float32(dtype):
  _, state = descend(Optimizer(momentum_dtype=dtype), jnp.bfloat16, 1)
  [adam] = [part for part in jax.tree.leaves(state, is_leaf=lambda x: hasattr(x, 'mu')) if hasattr(part, 'mu')]
  assert adam.mu['w_q'].dtype == dtype and adam.nu['w_q'].dtype == jnp.float32
