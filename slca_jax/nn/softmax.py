"""A softmax over keys that come block by block: what attention over rows and over caches share.

Axes beside the package's legend: M query rows and W keys of one product, `…` whatever stands before them in all.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from slca_jax.nn.visibility import LOWEST

KEPT = 'attention'  # The name of what remat 'attention' keeps.
dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)


class Softmax(NamedTuple):
  """A softmax under way: for each query the greatest score, the sum of exponentials and the weighted values so far."""

  top: jax.Array  # …M
  sum: jax.Array  # …M
  out: jax.Array  # …MH


def nothing(q: jax.Array) -> Softmax:
  """The softmax of queries …MH that have met no key."""
  zeros = jnp.zeros(q.shape[:-1], jnp.float32)
  return Softmax(zeros + LOWEST, zeros, jnp.zeros(q.shape, jnp.float32))


def accumulate(so_far: Softmax, scores: jax.Array, v: jax.Array) -> Softmax:
  """The softmax after keys with scores …MW, MASKED where a query may not look, and values …WH."""
  top = jnp.maximum(so_far.top, scores.max(-1))
  probs = jnp.exp(scores - top[..., None])
  decay = jnp.exp(so_far.top - top)
  add = dot('...MW,...WH->...MH', probs.astype(v.dtype), v)
  return Softmax(top, so_far.sum * decay + probs.sum(-1), so_far.out * decay[..., None] + add)


def close(done: Softmax) -> tuple[jax.Array, jax.Array]:
  """(out …MH, log Σ exp scores …M), both 0 for a query that saw nothing."""
  seen = done.sum > 0
  total = jnp.where(seen, done.sum, 1)
  return done.out / total[..., None], jnp.where(seen, done.top + jnp.log(total), 0)


def keep(out: jax.Array, lse: jax.Array) -> tuple[jax.Array, jax.Array]:
  """What a backward pass needs of attention beside its arguments, under the name that remat 'attention' keeps."""
  return checkpoint_name(out, KEPT), checkpoint_name(lse, KEPT)
