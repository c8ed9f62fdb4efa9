"""Rows of random trees, arrays to attend over, and what an attention kernel has to reproduce."""

import jax
import jax.numpy as jnp
import numpy as np

from slca_jax.nn.attention import dense
from slca_jax.nn.visibility import Ids, sees


def rows(rng, batch, length, *, stem=(1, 9), leaf=(1, 7), leaves=(1, 4)):
  """Random rows of trees with padding at the end, ids ascending as the door lays them out; ranges exclude their end."""
  prompt, rollout, position = (np.full((batch, length), fill, np.int32) for fill in (-1, -1, 0))
  for b in range(batch):
    end, tree, branch = 0, 0, 0
    while True:
      size = int(rng.integers(*stem))
      sizes = [int(n) for n in rng.integers(*leaf, rng.integers(*leaves))]
      if end + size + sum(sizes) > length:
        break
      prompt[b, end : end + size + sum(sizes)] = tree
      position[b, end : end + size] = range(size)
      end += size
      for n in sizes:
        rollout[b, end : end + n], position[b, end : end + n] = branch, range(size, size + n)
        end, branch = end + n, branch + 1
      tree += 1
  return Ids(prompt, rollout, position)


def every_kind(rng, length):
  """Seven rows: small trees, broad ones, single responses, prompts alone, responses alone, a prompt dealt out over two
  trees that fill the row, padding."""
  kinds = [
    rows(rng, 1, length),
    rows(rng, 1, length, stem=(length // 4, length // 3), leaf=(2, length // 8), leaves=(3, 6)),
    rows(rng, 1, length, leaf=(4, length // 4), leaves=(1, 2)),
    rows(rng, 1, length, stem=(2, length // 3), leaves=(0, 1)),
    rows(rng, 1, length, stem=(0, 1), leaf=(1, length // 4), leaves=(1, 2)),
    rows(rng, 1, length, stem=(length // 4, length // 4 + 1), leaf=(length // 8, length // 8 + 1), leaves=(2, 3)),
    Ids(*(np.full((1, length), fill, np.int32) for fill in (-1, -1, 0))),
  ]
  return Ids(*(jnp.asarray(np.concatenate(x)) for x in zip(*kinds, strict=True)))


def tensors(seed, batch, length, heads=4, kv_heads=2, size=8):
  """Queries, keys, values and the weights of a loss."""
  rng = np.random.default_rng(seed)
  shapes = [(batch, length, n, size) for n in (heads, kv_heads, kv_heads, heads)]
  return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]


def all_pairs(ids_T):
  """mask_TT of one row."""
  return sees(Ids(*(x[:, None] for x in ids_T)), Ids(*(x[None, :] for x in ids_T)))


def learned(kernel):
  """A jitted function of (q, k, v, ids, weights): the output, and the gradients of the weighted sum of it."""

  def loss(q, k, v, ids, weights):
    out = kernel(q, k, v, ids)
    return jnp.sum(out * weights), out

  def run(*arguments):
    (_, out), grads = jax.value_and_grad(loss, (0, 1, 2), has_aux=True)(*arguments)
    return out, *grads

  return jax.jit(run)


def assert_equals_dense(run, q, k, v, ids, weights):
  """Values and gradients of `run`, a `learned` kernel, are those of the reference to 1e-5, and zero on padding."""
  found, expected = run(q, k, v, ids, weights), learned(dense)(q, k, v, ids, weights)
  for a, b in zip(found, expected, strict=True):
    np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-5)
    assert not np.any(np.asarray(a)[np.asarray(ids.prompt) < 0])
