"""The mesh and the rules on simulated devices."""

import contextlib
import dataclasses
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from slca_jax.errors import ConfigError
from slca_jax.nn import sharding
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.transformer import Transformer, abstract_model

CONFIG = TransformerConfig(vocab=61, layers=2, width=16, hidden=24, heads=4, kv_heads=2, head_dim=8, tied=False)


def test_one_open_axis_takes_the_devices_that_are_left():
  assert dict(sharding.make_mesh(data=2, tensor=2).shape) == {'data': 2, 'fsdp': 2, 'tensor': 2}
  assert dict(sharding.make_mesh(devices=jax.devices()[:1]).shape) == {'data': 1, 'fsdp': 1, 'tensor': 1}


@pytest.mark.parametrize('sizes', [dict(data=3), dict(data=2, fsdp=2, tensor=4), dict(data=-1, fsdp=-1)])
def test_a_mesh_that_does_not_fit_the_devices_is_refused(sizes):
  with pytest.raises(ConfigError, match='mesh'):
    sharding.make_mesh(**sizes)


def test_optimiser_state_lies_where_its_parameters_lie():
  mesh = sharding.make_mesh(fsdp=4, tensor=2)
  _, abstract = abstract_model(CONFIG)
  state = jax.eval_shape(optax.adamw(1e-3).init, abstract)
  placed = sharding.named_shardings(state, mesh)
  assert placed[0].mu['blocks']['w_gate'].get_value().spec == jax.P(None, 'fsdp', 'tensor')
  assert placed[0].count.spec == jax.P()


def test_an_axis_that_the_mesh_does_not_divide_stays_whole():
  _, abstract = abstract_model(CONFIG)
  placed = sharding.named_shardings(abstract, sharding.make_mesh(fsdp=1, tensor=8))
  assert placed['blocks']['w_k'].get_value().spec == jax.P(None, 'fsdp', None, None)
  assert placed['blocks']['w_up'].get_value().spec == jax.P(None, 'fsdp', 'tensor')


@pytest.mark.parametrize('shape', [dict(fsdp=8), dict(data=2, fsdp=2, tensor=2)], ids=str)
def test_a_table_is_looked_up_in_parts_and_never_gathered(shape):
  table_VD, tokens_BT = jnp.arange(64.0 * 16).reshape(64, 16), jnp.arange(8 * 6, dtype=jnp.int32).reshape(8, 6)
  weight_BTD = jnp.cos(jnp.arange(8 * 6 * 16.0)).reshape(8, 6, 16)
  mesh = sharding.make_mesh(**shape)

  def loss(table_VD):
    found_BTD = sharding.constrain_rows(sharding.look_up(table_VD, tokens_BT))
    return jnp.sum(found_BTD**2 * weight_BTD)

  lies = jax.NamedSharding(mesh, jax.P('tensor', 'fsdp'))
  with jax.set_mesh(mesh):
    placed_VD = jax.device_put(table_VD, lies)
    compiled = jax.jit(jax.value_and_grad(loss), out_shardings=(None, lies)).lower(placed_VD).compile()
    value, grad_VD = compiled(placed_VD)
  np.testing.assert_allclose(value, jnp.sum(table_VD[tokens_BT] ** 2 * weight_BTD), rtol=1e-5)
  expected_VD = np.zeros((64, 16))
  np.add.at(expected_VD, np.asarray(tokens_BT), np.asarray(2 * table_VD[tokens_BT] * weight_BTD))
  np.testing.assert_allclose(grad_VD, expected_VD, rtol=1e-5, atol=1e-3)
  assert 'f32[64,16]' not in compiled.as_text()


@pytest.mark.parametrize('shape', [None, dict(data=2, fsdp=2, tensor=2)], ids=str)
def test_a_common_token_receives_all_of_its_gradients_in_bfloat16(shape):
  # 4,096 times 1 is 4,096; a sum in bfloat16 stands still at 256, where 1 is half a step.
  table_VD, tokens_BT = jnp.ones((8, 4), jnp.bfloat16), jnp.full((4, 1024), 3, jnp.int32)
  with jax.set_mesh(sharding.make_mesh(**shape)) if shape else contextlib.nullcontext():
    grad_VD = jax.jit(jax.grad(lambda table_VD: jnp.sum(sharding.look_up(table_VD, tokens_BT), dtype=jnp.float32)))(
      table_VD
    )
  assert grad_VD.dtype == jnp.bfloat16
  np.testing.assert_array_equal(
    grad_VD.astype(jnp.float32), np.where(np.arange(8)[:, None] == 3, 4096.0, 0.0) + [0] * 4
  )


@pytest.mark.parametrize('vocab', [61, 64])
def test_the_unembedding_is_padded_to_what_the_mesh_divides(vocab):
  table_VD = jnp.ones((vocab, 4))
  with jax.set_mesh(sharding.make_mesh(fsdp=4, tensor=2)):
    padded_VD, split = sharding.split_vocabulary(table_VD, rows=8)
    assert padded_VD.shape == (64, 4) and split == (('data', 'fsdp'), ('tensor', 'fsdp'))
    assert sharding.split_vocabulary(table_VD, rows=6) == (table_VD, None)
  assert sharding.split_vocabulary(table_VD, rows=8) == (table_VD, None)


@pytest.mark.parametrize('attention', ['dense', 'blocks'])
def test_a_sharded_step_equals_the_single_one(attention):
  config = TransformerConfig(**{**CONFIG.__dict__, 'attention': attention})
  graph, params = nnx.split(Transformer(config, rngs=nnx.Rngs(0)), nnx.Param)
  rng = np.random.default_rng(0)
  tokens = rng.integers(0, 61, (8, 12)).astype(np.int32)
  rollout = np.tile(np.array([-1] * 4 + [0] * 4 + [1] * 4, np.int32), (8, 1))
  position = np.tile(np.array([0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7], np.int32), (8, 1))
  batch = tokens, np.zeros_like(tokens), rollout, position

  @jax.jit
  def step(params, batch):
    def loss(params):
      return jnp.mean(jnp.sin(nnx.merge(graph, params)(*batch)))

    return jax.value_and_grad(loss)(params)

  value, grads = step(params, batch)
  mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
  with jax.set_mesh(mesh):
    placed = jax.device_put(params, sharding.named_shardings(params, mesh))
    value_sharded, grads_sharded = step(placed, jax.device_put(batch, sharding.rows_sharding(mesh)))
  np.testing.assert_allclose(value_sharded, value, rtol=1e-5)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), grads_sharded, grads)


@pytest.mark.parametrize('remat', ['full', 'attention'])
def test_devices_along_tensor_keep_their_part_of_every_layers_input(remat):
  config = dataclasses.replace(CONFIG, layers=3, remat=remat)
  graph, params = nnx.split(Transformer(config, rngs=nnx.Rngs(0)), nnx.Param)
  tokens_BT = jnp.zeros((8, 12), jnp.int32)
  batch = tokens_BT, tokens_BT, tokens_BT, jnp.tile(jnp.arange(12, dtype=jnp.int32), (8, 1))
  mesh = sharding.make_mesh(fsdp=2, tensor=4)
  with jax.set_mesh(mesh):
    placed = jax.device_put(params, sharding.named_shardings(params, mesh))
    loss = lambda params, batch: jnp.mean(jnp.sin(nnx.merge(graph, params)(*batch)))
    given = placed, jax.device_put(batch, sharding.rows_sharding(mesh))
    text = jax.jit(jax.grad(loss)).lower(*given).compile().as_text()
  kept = set(re.findall(r'f32\[3,4,(\d+),16\]', text))  # of three layers and four rows of a device
  assert kept == {'3'}  # tokens of twelve
