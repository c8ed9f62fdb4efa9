"""The kernels for GPUs, interpreted, against the reference; and that they lower to what Triton compiles."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trees import assert_equals_dense, every_kind, learned, tensors

from slca_jax.nn import attention
from slca_jax.nn.attention_gpu import triton
from slca_jax.nn.sharding import make_mesh
from slca_jax.nn.visibility import Ids


@pytest.fixture(autouse=True)
def exact():
  with jax.default_matmul_precision('highest'):
    yield


def interpreted(q, k, v, ids):
  return triton(q, k, v, ids, block=16, interpret=True)


def test_triton_equals_dense_in_values_and_gradients():
  ids = every_kind(np.random.default_rng(0), 70)
  q, k, v, weights = tensors(0, 7, 70, heads=6, kv_heads=2, size=16)
  run = learned(interpreted)
  assert_equals_dense(run, q, k, v, ids, weights)
  shuffle = lambda x: x[:, np.random.default_rng(0).permutation(70)]
  assert_equals_dense(run, *map(shuffle, (q, k, v)), Ids(*map(shuffle, ids)), shuffle(weights))


def test_blocks_that_nobody_sees_are_never_read():
  # Two trees, each a block of its own; not even NaN of the second can reach the first.
  ids = Ids(*(jnp.asarray(x)[None] for x in (np.repeat([0, 1], 16), np.full(32, -1), np.tile(np.arange(16), 2))))
  q, k, v, weights = tensors(1, 1, 32, heads=2, kv_heads=1, size=16)
  poisoned = [x.at[:, 16:].set(jnp.nan) for x in (q, k, v)]
  for found in learned(interpreted)(*poisoned, ids, weights):
    assert np.all(np.isfinite(found[:, :16]))


def test_rows_and_heads_spread_over_devices_change_nothing():
  ids = every_kind(np.random.default_rng(2), 32)
  ids = Ids(*(jnp.concatenate([x, x[:1]]) for x in ids))
  q, k, v, weights = tensors(2, 8, 32, size=16)
  run = learned(attention._on_each_device(interpreted))
  single = run(q, k, v, ids, weights)
  with jax.set_mesh(make_mesh(data=2, fsdp=2, tensor=2)):
    spread = learned(attention._on_each_device(interpreted))(q, k, v, ids, weights)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), spread, single)


def test_the_kernels_lower_for_cuda_at_full_size():
  q = jax.ShapeDtypeStruct((1, 24576, 28, 128), jnp.bfloat16)
  k = jax.ShapeDtypeStruct((1, 24576, 4, 128), jnp.bfloat16)
  ids = Ids(*[jax.ShapeDtypeStruct((1, 24576), jnp.int32)] * 3)
  sharding = jax.sharding
  gpu = sharding.AbstractDevice('NVIDIA H100', num_cores=132, platform='gpu')  # later JAX asks for one; none is here
  with sharding.use_abstract_mesh(sharding.AbstractMesh((), (), abstract_device=gpu)):
    lowered = learned(triton).trace(q, k, k, ids, q).lower(lowering_platforms=('cuda',))
  kernels = [line for line in lowered.as_text().splitlines() if 'custom_call' in line and 'triton' in line]
  assert len(kernels) == 3
