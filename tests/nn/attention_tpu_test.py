"""Splash attention on a simulated TPU against the reference; and that it lower to what Mosaic compiles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from trees import assert_equals_dense, every_kind, learned, rows, tensors

from slca_jax.errors import ConfigError
from slca_jax.nn.attention_tpu import splash
from slca_jax.nn.visibility import Ids


@pytest.fixture(autouse=True)
def exact():
  with jax.default_matmul_precision('highest'):
    yield


@pytest.fixture(scope='module')
def simulated():
  return learned(lambda *x: splash(*x, block=128, interpret=pltpu.InterpretParams()))


def test_splash_equals_dense_in_values_and_gradients(simulated):
  # The simulator is slow: three rows, of which the second is a tree that crosses the blocks' border.
  rng = np.random.default_rng(0)
  broad = rows(rng, 1, 200, stem=(90, 91), leaf=(30, 31), leaves=(3, 4))
  kinds = every_kind(rng, 200)
  ids = Ids(*(jnp.concatenate([x[:1], y, x[-1:]]) for x, y in zip(kinds, broad, strict=True)))
  assert_equals_dense(simulated, *tensors(0, 3, 200, heads=2, kv_heads=1)[:3], ids, tensors(1, 3, 200, 2, 1)[3])


def test_blocks_that_nobody_sees_are_never_read(simulated):
  # Two trees, each a block of its own; not even NaN of the second can reach the first.
  ids = Ids(*(jnp.asarray(x)[None] for x in (np.repeat([0, 1], 128), np.full(256, -1), np.tile(np.arange(128), 2))))
  q, k, v, weights = tensors(1, 1, 256, heads=2, kv_heads=1)
  poisoned = [x.at[:, 128:].set(jnp.nan) for x in (q, k, v)]
  for found in simulated(*poisoned, ids, weights):
    assert np.all(np.isfinite(found[:, :128]))


def test_a_row_too_long_for_an_index_of_16_bits_is_refused():
  q, k, v, _ = tensors(2, 1, 2**16, heads=1, kv_heads=1, size=1)
  with pytest.raises(ConfigError, match='65536'):
    splash(q, k, v, Ids(*[jnp.zeros((1, 2**16), int)] * 3))


def test_the_kernels_lower_for_tpu_at_full_size():
  q = jax.ShapeDtypeStruct((1, 24576, 28, 128), jnp.bfloat16)
  k = jax.ShapeDtypeStruct((1, 24576, 4, 128), jnp.bfloat16)
  ids = Ids(*[jax.ShapeDtypeStruct((1, 24576), jnp.int32)] * 3)
  lowered = learned(splash).trace(q, k, k, ids, q).lower(lowering_platforms=('tpu',))
  assert lowered.as_text().count('@tpu_custom_call') == 3
