"""Schedules by hand, and what is decayed."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from slca_jax.errors import ConfigError
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.transformer import Transformer
from slca_jax.train.optimizer import learning_rate, make
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
