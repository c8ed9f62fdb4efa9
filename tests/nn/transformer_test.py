"""Trees against separate rows, a cache against whole rows, and what the config promises."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from slca_jax.errors import ConfigError
from slca_jax.nn.config import RopeScaling, TransformerConfig
from slca_jax.nn.transformer import Transformer, abstract_model, rotary_frequencies

CONFIG = TransformerConfig(
  vocab=61, layers=2, width=32, hidden=48, heads=4, kv_heads=2, head_dim=8, qkv_bias=True, qk_norm=True
)
STEM, LEAF, GROUP = 9, 5, 3


@pytest.fixture(autouse=True)
def exact():
  with jax.default_matmul_precision('highest'):
    yield


@functools.cache
def fresh(config=CONFIG):
  return jax.jit(lambda: nnx.split(Transformer(config, rngs=nnx.Rngs(0)), nnx.Param)[1])()


@functools.cache
def decoder(config=CONFIG):
  graph, _ = abstract_model(config)
  params = fresh()
  # Biases start at zero and scales at one, where a mistake would not show.
  leaves, tree = jax.tree.flatten(params)
  rng = np.random.default_rng(1)
  noisy = [leaf + 0.1 * rng.normal(size=leaf.shape).astype(np.float32) for leaf in leaves]
  return graph, jax.tree.unflatten(tree, noisy)


def run(graph, params, row):
  return jax.jit(lambda params, row: nnx.merge(graph, params)(*row))(params, row)


def chosen_logp(model, hidden_TD, tokens_T):
  logp_TV = jax.nn.log_softmax(jnp.einsum('TD,VD->TV', hidden_TD, model.unembedding()))
  return logp_TV[jnp.arange(len(tokens_T)), tokens_T]


def tree(seed):
  rng = np.random.default_rng(seed)
  return rng.integers(0, 61, STEM), rng.integers(0, 61, (GROUP, LEAF))


def shared_row(trees, length):
  """All trees in one row, and for every response token the index of the token that predicts it."""
  tokens, prompt, rollout, position = ([] for _ in range(4))
  target, source = [], []
  for p, (stem, leaves) in enumerate(trees):
    last = len(tokens) + STEM - 1
    tokens += [*stem]
    prompt += [p] * (STEM + GROUP * LEAF)
    rollout += [-1] * STEM
    position += range(STEM)
    for g, leaf in enumerate(leaves):
      start = len(tokens)
      target += range(start, start + LEAF)
      source += [last, *range(start, start + LEAF - 1)]
      tokens += [*leaf]
      rollout += [p * GROUP + g] * LEAF
      position += range(STEM, STEM + LEAF)
  fill = length - len(tokens)
  row = tokens + [0] * fill, prompt + [-1] * fill, rollout + [-1] * fill, position + [0] * fill
  return [np.array([x], np.int32) for x in row], np.array(target), np.array(source)


@pytest.mark.parametrize('attention', ['dense', 'blocks'])
def test_shared_prompts_equal_repeated_prompts_in_values_and_gradients(attention):
  graph, params = decoder(dataclasses.replace(CONFIG, attention=attention))
  trees = [tree(0), tree(1)]
  row, target, source = shared_row(trees, length=64)
  weight = np.random.default_rng(2).normal(size=len(target)).astype(np.float32)

  def shared(params):
    model = nnx.merge(graph, params)
    hidden_TD = model(*row)[0]
    logp = chosen_logp(model, hidden_TD[source], row[0][0][target])
    return jnp.sum(logp * weight), logp

  tokens = np.array([[*stem, *leaf] for stem, leaves in trees for leaf in leaves], np.int32)
  position = np.tile(np.arange(STEM + LEAF, dtype=np.int32), (len(tokens), 1))
  branch = np.where(position < STEM, -1, np.arange(len(tokens))[:, None]).astype(np.int32)

  def repeated(params):
    model = nnx.merge(graph, params)
    hidden_BTD = model(tokens, np.zeros_like(tokens), branch, position)[:, STEM - 1 : -1]
    logp = chosen_logp(model, hidden_BTD.reshape(-1, CONFIG.width), tokens[:, STEM:].reshape(-1))
    return jnp.sum(logp * weight), logp

  (_, logp), grads = jax.jit(jax.value_and_grad(shared, has_aux=True))(params)
  (_, logp_repeated), grads_repeated = jax.jit(jax.value_and_grad(repeated, has_aux=True))(params)
  np.testing.assert_allclose(logp, logp_repeated, rtol=1e-5)
  for a, b in zip(jax.tree.leaves(grads), jax.tree.leaves(grads_repeated), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * float(jnp.abs(b).max()))


@pytest.mark.parametrize('attention', ['dense', 'blocks'])
def test_packed_rows_equal_separate_rows(attention):
  graph, params = decoder(dataclasses.replace(CONFIG, attention=attention))
  row, *_ = shared_row([tree(0), tree(1)], length=60)
  packed_TD = run(graph, params, row)[0]
  size = STEM + GROUP * LEAF
  for p in range(2):
    alone, *_ = shared_row([tree(p)], length=size)
    np.testing.assert_allclose(packed_TD[p * size : (p + 1) * size], run(graph, params, alone)[0], atol=1e-5)
  assert np.all(np.isfinite(packed_TD))


@pytest.mark.parametrize('remat', ['full', 'attention', 'dots'])
def test_remat_changes_no_gradient(remat):
  row, *_ = shared_row([tree(0)], length=24)
  config = dataclasses.replace(CONFIG, attention='blocks')
  graph, params = decoder(dataclasses.replace(config, remat=remat))
  plain, _ = decoder(dataclasses.replace(config, remat='none'))
  grads, expected = (jax.grad(lambda p, g=g: jnp.sum(nnx.merge(g, p)(*row)[..., 0]))(params) for g in (graph, plain))
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), grads, expected)


def test_bfloat16_stays_near_float32():
  graph, params = decoder(dataclasses.replace(CONFIG, dtype='bfloat16'))
  exact_graph, _ = decoder()
  row, *_ = shared_row([tree(0)], length=24)
  hidden_BTD = run(graph, params, row)
  assert hidden_BTD.dtype == jnp.bfloat16
  np.testing.assert_allclose(hidden_BTD.astype(np.float32), run(exact_graph, params, row), atol=0.15)


def test_padded_rows_of_the_vocabulary_are_zero_and_stay_out_of_the_unembedding():
  graph, params = decoder()[0], fresh()
  assert params['embed'][...].shape == (128, 32)
  assert not np.any(params['embed'][...][61:])
  assert nnx.merge(graph, params).unembedding().shape == (61, 32)


def test_abstract_model_has_the_shapes_of_the_real_one():
  graph, shapes = abstract_model(CONFIG)
  real_graph, params = nnx.split(Transformer(CONFIG, rngs=nnx.Rngs(0)), nnx.Param)
  assert graph == real_graph
  assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, params)


def test_rope_scaling_slows_long_waves_and_keeps_short_ones():
  scaling = RopeScaling(factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=32)
  config = dataclasses.replace(CONFIG, rope_theta=1e4, rope_scaling=scaling)
  plain_H, scaled_H = rotary_frequencies(dataclasses.replace(config, rope_scaling=None)), rotary_frequencies(config)
  # Frequencies 1, 0.1, 0.01, 0.001: turns within 32 positions are 5.09, 0.509, 0.0509, 0.00509.
  np.testing.assert_allclose(plain_H, [1, 0.1, 0.01, 0.001], rtol=1e-6)
  np.testing.assert_allclose(scaled_H, [1, 0.025, 0.0025, 0.00025], rtol=1e-6)


@pytest.mark.parametrize(
  'change',
  [
    dict(kv_heads=3),
    dict(head_dim=7),
    dict(layers=0),
    dict(attention_block=0),
    dict(attention_block=64, attention='dense'),
    dict(attention_block=192, attention='splash'),
    dict(attention_block=48, attention='triton'),
  ],
  ids=lambda change: ' '.join(map(str, change.values())),
)
def test_impossible_shapes_are_refused(change):
  with pytest.raises(ConfigError, match=next(iter(change))):
    dataclasses.replace(CONFIG, **change)
