"""Who sees whom in a row of trees, and which blocks of keys a block of queries has to look at.

Axes beside the package's legend: I and J blocks of queries and of keys.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

# A masked score lies far below where a running maximum starts, so it vanishes even if nothing has been seen yet.
MASKED, LOWEST = -1e30, -1e20
HALF = 16
LONGEST = 2**HALF - 1
_FAR = jnp.iinfo(jnp.int32).max


class Ids(NamedTuple):
  """What decides who sees whom: the tree, the branch (-1 on its prompt) and the depth of each token."""

  prompt: jax.Array
  rollout: jax.Array
  position: jax.Array


def sees(q: Ids, k: Ids) -> jax.Array:
  """Whether query q may look at key k, for ids that broadcast against each other.

  sees(q, k) = prompt_q = prompt_k ≥ 0  ∧  position_k ≤ position_q  ∧  (rollout_k = −1  ∨  rollout_k = rollout_q)
  """
  tree = (q.prompt == k.prompt) & (k.prompt >= 0)
  return tree & (k.position <= q.position) & ((k.rollout < 0) | (k.rollout == q.rollout))


def reach(ids_T: Ids) -> jax.Array:
  """Per token (index where its own run starts) · 2¹⁶ + (index of the first response of its tree); int32.

  In a row as `arrays.py` draws it, of at most `LONGEST` tokens, this and the index t say all: query t sees key k iff
  both hang on one prompt ∧ k ≤ t ∧ (k < second ∨ k ≥ first). On a prompt the second lies before the tree and is idle.
  """
  prompt_T, rollout_T, _ = ids_T
  index_T = jnp.arange(prompt_T.size, dtype=jnp.int32)
  differs = lambda x_T: jnp.concatenate([jnp.ones(1, bool), x_T[1:] != x_T[:-1]])
  starts_T = differs(prompt_T) | differs(rollout_T)
  leaves_T = starts_T & (rollout_T >= 0) & (differs(prompt_T) | jnp.roll(rollout_T < 0, 1))
  last = lambda there_T: jax.lax.cummax(jnp.where(there_T, index_T, 0))
  return (last(starts_T) << HALF) | last(leaves_T)


class Visits(NamedTuple):
  """For each block of queries (or of keys), the blocks it has to meet: the first `count` of `order`."""

  order_BIJ: jax.Array
  count_BI: jax.Array


class _Range(NamedTuple):
  """The least and the greatest value in each block; a block without any has a range that meets no other."""

  low: jax.Array
  high: jax.Array

  @classmethod
  def of(cls, x, counts):
    """The ranges of x over its last axis, of the places that count."""
    return cls(jnp.where(counts, x, _FAR).min(-1), jnp.where(counts, x, -1).max(-1))


def visible_blocks(q_ids: Ids, k_ids: Ids) -> jax.Array:
  """visible_BIJ: whether a block of queries has to look at a block of keys, from the range of ids in each alone.

  A superset of the truth: a visible pair may show nothing, a hidden one never hides anything. It is tight where a row
  lists its prompts and rollouts in rising order, and it costs (T/U)² instead of T².

  Args:
    q_ids, k_ids: of shape B, blocks, tokens of a block.
  """
  q, k = ({name: _Range.of(getattr(ids, name), _counts(ids, name)) for name in Ids._fields} for ids in (q_ids, k_ids))
  stem_BJ = ((k_ids.prompt >= 0) & (k_ids.rollout < 0)).any(-1)
  visible_BIJ = _meets(q['rollout'], k['rollout']) | stem_BJ[:, None]
  visible_BIJ &= _meets(q['prompt'], k['prompt'])
  return visible_BIJ & (k['position'].low[:, None] <= q['position'].high[..., None])


def walk(visible_BIJ: jax.Array) -> Visits:
  """The visible J of each I, in rising order."""
  return Visits(jnp.argsort(~visible_BIJ, axis=-1, stable=True).astype(jnp.int32), visible_BIJ.sum(-1, dtype=jnp.int32))


def cut(x: jax.Array, size: int, fill: float = 0) -> jax.Array:
  """B, T, … as B, blocks, size, …; the last block is filled up."""
  short = -x.shape[1] % size
  x = jnp.pad(x, ((0, 0), (0, short), *[(0, 0)] * (x.ndim - 2)), constant_values=fill)
  return x.reshape(x.shape[0], -1, size, *x.shape[2:])


def _counts(ids, name):
  return (ids.prompt >= 0) & (ids.rollout >= 0) if name == 'rollout' else ids.prompt >= 0


def _meets(q, k):
  return (q.low[..., None] <= k.high[:, None]) & (k.low[:, None] <= q.high[..., None])
