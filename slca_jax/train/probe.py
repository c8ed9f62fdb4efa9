"""The gradients through tool tokens and through summary tokens, apart: do the two segments pull one way?"""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from flax import nnx

from slca_jax.arrays import SUMMARY, TOOL, Experience
from slca_jax.ops import losses
from slca_jax.ops.diagnostics import gradient_cosine
from slca_jax.train.settings import Objective
from slca_jax.train.steps import Numbers, Policy, Rows, learned_rows, micro_batch, policy_loss


def make_probe(policy: Policy, objective: Objective, *, micro_rows: int) -> Callable[[nnx.State, Experience], Numbers]:
  """The jitted `probe(params, experience)`: cosine and norms of the segments' gradients over the first micro-batch."""

  @jax.jit
  def probe(params: nnx.State, experience: Experience) -> Numbers:
    piece = micro_batch(segmented_rows(experience), 0, micro_rows)
    return gradient_cosine(*(segment_gradient(policy, objective, params, piece, kind) for kind in (TOOL, SUMMARY)))

  return probe


def told(numbers: Mapping[str, float]) -> dict[str, float]:
  """The numbers of a probe on the host; a direction that is none has no cosine."""
  known = {name: float(value) for name, value in numbers.items()}
  if not (known['gradient/tool_norm'] and known['gradient/summary_norm']):
    del known['gradient/cosine']
  return known


def segment_gradient(policy: Policy, objective: Objective, params: nnx.State, rows: Rows, kind: int) -> nnx.State:
  """The part of the loss's gradient that comes through the tokens of one segment; the parts add up to the whole.

  ∇ Σ_{t in segment} (L_t + β k3_t) / N with N the learned tokens of all segments.

  Args:
    rows: of `segmented_rows`.
    kind: TOOL or SUMMARY.
  """
  count = jnp.maximum(rows['learn_BT'].sum(), 1).astype(jnp.float32)

  def loss(params: nnx.State) -> jax.Array:
    loss_BT = policy_loss(policy.logps(params, rows), rows, objective)
    return losses.masked_mean(loss_BT, rows['segment_BT'] == kind, count)

  return jax.grad(loss)(params)


def segmented_rows(experience: Experience) -> Rows:
  """What an update reads of each token, and its segment."""
  return learned_rows(experience) | {'segment_BT': experience.segments.segment_BT}
