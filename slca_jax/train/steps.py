"""The jitted programs of a step: `prepare` fixes a batch's experience, `update` moves the policy.

A batch [B, T] is computed in micro-batches of `micro_rows` rows, an equal part of them from each device's own rows, so
that cutting a micro-batch moves nothing between devices. Rows in use come first there, and the loop stops at the last
micro-batch that holds any: a half-empty batch costs half, and the number of rows in use never compiles a new program.
The token mean divides by the count of the *whole* batch, so neither micro-batches nor shards change the loss.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax

from slca_jax.arrays import NONE, Experience, TokenBatch, TrainState
from slca_jax.nn import sharding
from slca_jax.ops import diagnostics, losses
from slca_jax.ops.logprobs import token_logprobs
from slca_jax.ops.segments import segment_runs
from slca_jax.train.settings import Objective

Rows = dict[str, jax.Array]  # [B, T] arrays by name
Numbers = dict[str, jax.Array]
Estimator = Callable[..., jax.Array]


@dataclasses.dataclass(frozen=True, slots=True)
class Policy:
  """The network without its weights, and how its log-probs are taken: at the temperature that sampled the tokens."""

  graph: nnx.GraphDef
  vocab: int
  temperature: float
  chunk: int

  def logps(self, params: nnx.State, rows: Rows) -> jax.Array:
    """Log-probs [B, T] of the sampled tokens, 0 elsewhere; float32."""
    model = nnx.merge(self.graph, params)
    hidden_BTD = model(rows['tokens_BT'], rows['prompt_BT'], rows['rollout_BT'], rows['position_BT'])
    unembed_VD, split = sharding.split_vocabulary(model.unembedding(), rows=hidden_BTD.shape[0])
    return token_logprobs(
      hidden_BTD,
      unembed_VD,
      rows['tokens_BT'],
      rows['source_BT'],
      rows['sampled_BT'],
      temperature=self.temperature,
      chunk=self.chunk,
      vocab=self.vocab,
      split=split,
    )


def make_prepare(
  policy: Policy, objective: Objective, estimator: Estimator, *, micro_rows: int
) -> Callable[..., Experience]:
  """The jitted `prepare(params, reference, batch) -> Experience`; reference is None where objective.kl is 0."""

  @jax.jit
  def prepare(params: nnx.State, reference: nnx.State | None, batch: TokenBatch) -> Experience:
    segments = segment_runs(batch.sampled_BT, batch.rollout_BT, batch.finished_R, unfinished=objective.unfinished)
    with jax.named_scope('advantages'):
      advantage_BT = estimator(batch.rewards, segments, batch.rollout_BT)
    rows = batch_rows(batch)
    old_logp_BT = map_rows(lambda piece: policy.logps(params, piece), rows, micro_rows)
    ref_logp_BT = (
      old_logp_BT if reference is None else map_rows(lambda piece: policy.logps(reference, piece), rows, micro_rows)
    )
    return Experience(batch, segments, advantage_BT, old_logp_BT, ref_logp_BT)

  return prepare


def make_update(
  policy: Policy,
  objective: Objective,
  optimizer: optax.GradientTransformation,
  *,
  micro_rows: int,
  shardings: Any = None,
) -> Callable[[TrainState, Experience], tuple[TrainState, Numbers]]:
  """The jitted `update(state, experience) -> (state, numbers)`; the state is donated and keeps its shardings."""

  @functools.partial(jax.jit, donate_argnums=0, out_shardings=None if shardings is None else (shardings, None))
  def update(state: TrainState, experience: Experience) -> tuple[TrainState, Numbers]:
    learn_BT = experience.segments.segment_BT != NONE
    count = jnp.maximum(learn_BT.sum(), 1).astype(jnp.float32)

    def loss(params: nnx.State, rows: Rows) -> tuple[jax.Array, jax.Array]:
      logp_BT = policy.logps(params, rows)
      loss_BT = policy_loss(logp_BT, rows, objective)
      return losses.masked_mean(loss_BT, rows['learn_BT'], count), logp_BT

    total, gradients, logp_BT = accumulate(loss, state.params, learned_rows(experience), micro_rows)
    state, numbers = step(state, gradients, optimizer, useful=learn_BT.any())
    return state, numbers | {'loss': total} | describe(experience, logp_BT, objective)

  return update


def make_fit(
  policy: Policy, optimizer: optax.GradientTransformation, *, micro_rows: int, shardings: Any = None
) -> Callable[[TrainState, TokenBatch], tuple[TrainState, Numbers]]:
  """The jitted supervised `fit(state, batch) -> (state, numbers)`: cross entropy of the sampled tokens."""

  @functools.partial(jax.jit, donate_argnums=0, out_shardings=None if shardings is None else (shardings, None))
  def fit(state: TrainState, batch: TokenBatch) -> tuple[TrainState, Numbers]:
    count = jnp.maximum(batch.sampled_BT.sum(), 1).astype(jnp.float32)

    def loss(params: nnx.State, rows: Rows) -> tuple[jax.Array, jax.Array]:
      logp_BT = policy.logps(params, rows)
      return losses.cross_entropy(logp_BT, rows['sampled_BT'], count), logp_BT

    total, gradients, _ = accumulate(loss, state.params, batch_rows(batch), micro_rows)
    state, numbers = step(state, gradients, optimizer, useful=batch.sampled_BT.any())
    return state, numbers | {'loss': total, 'tokens': batch.sampled_BT.sum()}

  return fit


def make_measure(policy: Policy, *, micro_rows: int) -> Callable[[nnx.State, TokenBatch], tuple[jax.Array, jax.Array]]:
  """The jitted `measure(params, batch) -> (sum of losses, number of tokens)` of a supervised batch."""

  @jax.jit
  def measure(params: nnx.State, batch: TokenBatch) -> tuple[jax.Array, jax.Array]:
    logp_BT = map_rows(lambda rows: policy.logps(params, rows), batch_rows(batch), micro_rows)
    return -jnp.sum(logp_BT), batch.sampled_BT.sum()

  return measure


@jax.named_scope('loss')
def policy_loss(logp_BT: jax.Array, rows: Rows, objective: Objective) -> jax.Array:
  """Per token: clipped policy loss, importance-corrected if asked for, plus β·k3.

  SLCA-GRPO (arXiv:2609.29050), eq. 5.
  """
  loss_BT = losses.ppo_clip(
    logp_BT,
    rows['old_logp_BT'],
    rows['advantage_BT'],
    clip_low=objective.clip_low,
    clip_high=objective.clip_high,
    dual_clip=objective.dual_clip or math.inf,
  )
  if objective.importance_cap:
    loss_BT *= losses.truncated_weights(rows['old_logp_BT'], rows['sampler_logp_BT'], cap=objective.importance_cap)
  if objective.kl:
    loss_BT += objective.kl * losses.kl_k3(logp_BT, rows['ref_logp_BT'])
  return loss_BT


@jax.named_scope('diagnostics')
def describe(experience: Experience, logp_BT: jax.Array, objective: Objective) -> Numbers:
  """What the update tells about itself: per segment, per group, and how far the engine's log-probs are off."""
  segments, batch = experience.segments, experience.batch
  learn_BT = segments.segment_BT != NONE
  numbers = {'kl': losses.masked_mean(losses.kl_k3(logp_BT, experience.ref_logp_BT), learn_BT)}
  numbers |= diagnostics.policy_metrics(
    logp_BT,
    experience.old_logp_BT,
    experience.ref_logp_BT,
    experience.advantage_BT,
    segments,
    clip_low=objective.clip_low,
    clip_high=objective.clip_high,
  )
  numbers |= diagnostics.sampler_gap(
    experience.old_logp_BT, batch.sampler_logp_BT, segments, turns=batch.rewards.turn_RK.shape[1]
  )
  return numbers | diagnostics.group_metrics(batch.rewards, segments, batch.rollout_BT)


@jax.named_scope('optimizer')
def step(
  state: TrainState, gradients: nnx.State, optimizer: optax.GradientTransformation, *, useful: jax.Array
) -> tuple[TrainState, Numbers]:
  """The state after one optimiser update; without a token to learn or a finite gradient the update is skipped.

  A skipped update moves nothing but the step: momentum and weight decay would move the weights even without a gradient.
  """
  norm = optax.tree.norm(jax.tree.map(lambda x: x.astype(jnp.float32), gradients))  # bfloat16 has three digits
  keep = jnp.isfinite(norm) & useful
  updates, opt_state = optimizer.update(gradients, state.opt_state, state.params)
  moved = (optax.apply_updates(state.params, updates), opt_state)
  params, opt_state = jax.tree.map(lambda new, old: jnp.where(keep, new, old), moved, (state.params, state.opt_state))
  numbers = {'grad_norm': norm, 'skipped_updates': 1.0 - keep.astype(jnp.float32)}
  return TrainState(state.step + 1, params, opt_state), numbers


def batch_rows(batch: TokenBatch) -> Rows:
  """The [B, T] arrays of a batch by name."""
  return {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch) if f.name.endswith('_BT')}


def learned_rows(experience: Experience) -> Rows:
  """The [B, T] arrays that an update reads; `learn_BT` says which tokens it learns."""
  return batch_rows(experience.batch) | {
    'learn_BT': experience.segments.segment_BT != NONE,
    'advantage_BT': experience.advantage_BT,
    'old_logp_BT': experience.old_logp_BT,
    'ref_logp_BT': experience.ref_logp_BT,
  }


def rows_in_use(rows: Rows, micro_rows: int) -> jax.Array:
  """How many micro-batches hold any token: rows in use come first on every device."""
  return jnp.any(_stacked(rows['prompt_BT'], micro_rows) >= 0, axis=(0, 2, 3)).sum()


def map_rows(function: Callable[[Rows], jax.Array], rows: Rows, micro_rows: int) -> jax.Array:
  """`function` of every micro-batch in use, as one [B, T] float32 array; 0 in rows that are not."""
  shape = rows['tokens_BT'].shape
  if shape[0] == micro_rows:
    return function(rows)

  def body(i: jax.Array, out: jax.Array) -> jax.Array:
    return _put(out, function(micro_batch(rows, i, micro_rows)), i)

  empty = _stacked(jnp.zeros(shape, jnp.float32), micro_rows)
  return lax.fori_loop(0, rows_in_use(rows, micro_rows), body, empty).reshape(shape)


def accumulate(
  loss: Callable[[nnx.State, Rows], tuple[jax.Array, jax.Array]], params: nnx.State, rows: Rows, micro_rows: int
) -> tuple[jax.Array, nnx.State, jax.Array]:
  """Sums of loss and gradients over the micro-batches in use, and what the loss returns beside itself as [B, T]."""
  differentiate = jax.value_and_grad(loss, has_aux=True)
  shape = rows['tokens_BT'].shape
  if shape[0] == micro_rows:
    (total, aux_BT), gradients = differentiate(params, rows)
    return total, gradients, aux_BT

  def body(i: jax.Array, carry: Any) -> Any:
    total, gradients, aux = carry
    (more, aux_BT), piece = differentiate(params, micro_batch(rows, i, micro_rows))
    return total + more, jax.tree.map(jnp.add, gradients, piece), _put(aux, aux_BT, i)

  # In float32 whatever the parameters are: a sum of many small pieces in bfloat16 loses them.
  zeros = jax.tree.map(lambda x: jnp.zeros_like(x, jnp.float32), params)
  start = jnp.zeros(()), zeros, _stacked(jnp.zeros(shape, jnp.float32), micro_rows)
  total, gradients, aux = lax.fori_loop(0, rows_in_use(rows, micro_rows), body, start)
  return total, gradients, aux.reshape(shape)


def _stacked(x_BT: jax.Array, micro_rows: int) -> jax.Array:
  """The rows by device, micro-batch and place in it; the axis of devices lies as the rows do, so nothing moves."""
  shards = sharding.row_shards_here(micro_rows)
  return sharding.constrain_rows(x_BT.reshape(shards, -1, micro_rows // shards, x_BT.shape[1]))


def micro_batch(rows: Rows, i: jax.Array | int, micro_rows: int) -> Rows:
  """The rows of the i-th micro-batch, an equal part of them from each device's own."""

  def cut(x_BT: jax.Array) -> jax.Array:
    piece = lax.dynamic_index_in_dim(_stacked(x_BT, micro_rows), i, axis=1, keepdims=False)
    return sharding.constrain_rows(piece.reshape(micro_rows, -1))

  return {name: cut(x_BT) for name, x_BT in rows.items()}


def _put(stacked: jax.Array, piece_BT: jax.Array, i: jax.Array) -> jax.Array:
  shards, _, rows, length = stacked.shape
  return lax.dynamic_update_index_in_dim(stacked, piece_BT.reshape(shards, rows, length), i, axis=1)
