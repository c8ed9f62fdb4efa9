"""Log-probs of the sampled tokens, forward and backward, without ever storing the logits of a row.

The sampled positions of each row are brought to its front, and a loop runs over chunks of them, as many as the fullest
row needs: prompts, observations and padding never meet the vocabulary. The backward pass computes each chunk's logits
again.
"""

import functools
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import lax

_NEVER = -1e30  # Finite, so that a column which is left out gives 0 and never NaN.


class _Settings(NamedTuple):
  temperature: float
  chunk: int
  vocab: int


class _Plan(NamedTuple):
  """Where the sampled tokens of each row are, those first; P is T rounded up to whole chunks."""

  target_BP: jax.Array
  source_BP: jax.Array
  valid_BP: jax.Array
  rank_BT: jax.Array
  order_BP: jax.Array
  steps: jax.Array


@jax.named_scope('vocabulary')
def token_logprobs(
  hidden_BTD: jax.Array,
  unembed_VD: jax.Array,
  tokens_BT: jax.Array,
  source_BT: jax.Array,
  sampled_BT: jax.Array,
  *,
  temperature: float = 1.0,
  chunk: int = 128,
  vocab: int | None = None,
) -> jax.Array:
  """log π of each sampled token, float32, 0 where nothing was sampled.

  log π[t] = log softmax(unembed · hidden[source(t)] / temperature)[token(t)]

  Logits are computed in float32 for `chunk` tokens of every row at a time; the work follows the row with most sampled
  tokens. Gradients reach hidden and unembed, each accumulated in float32.

  Args:
    hidden_BTD: final hidden states.
    unembed_VD: output embedding; rows from `vocab` on are padding.
    tokens_BT: ids. An id outside the vocabulary gets −logsumexp: wrong but finite, for rollouts the host has failed.
    source_BT: index in the row of the token whose hidden state predicts this one; read where sampled.
    sampled_BT: bool, the positions wanted.
    temperature: the one that the tokens were sampled with; > 0.
    chunk: tokens per row and step; B · chunk · V floats are held at a time.
    vocab: how many rows of unembed are real; all where it is None.

  Raises:
    ValueError: temperature, chunk or vocab is out of range.

  SLCA-GRPO (arXiv:2609.29050), eq. 5.
  """
  chex.assert_rank([hidden_BTD, unembed_VD, tokens_BT, source_BT, sampled_BT], [3, 2, 2, 2, 2])
  chex.assert_equal_shape([tokens_BT, source_BT, sampled_BT])
  chex.assert_type([hidden_BTD, unembed_VD, tokens_BT, source_BT, sampled_BT], [float, float, int, int, bool])
  chex.assert_equal_shape_prefix([hidden_BTD, tokens_BT], 2)
  rows = unembed_VD.shape[0]
  vocab = rows if vocab is None else vocab
  if not temperature > 0:
    raise ValueError(f'temperature is {temperature}; log-probs need one above 0 (use 1.0 for greedy samples)')
  if chunk < 1:
    raise ValueError(f'chunk is {chunk}; it takes a number of tokens, at least 1')
  if not 0 < vocab <= rows:
    raise ValueError(f'vocab is {vocab}, but unembed has {rows} rows; it takes 1 to {rows}')
  settings = _Settings(float(temperature), min(chunk, max(tokens_BT.shape[1], 1)), vocab)
  return _logprobs(settings, hidden_BTD, unembed_VD, tokens_BT, source_BT, sampled_BT)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _logprobs(settings, hidden_BTD, unembed_VD, tokens_BT, source_BT, sampled_BT):
  return _forward(settings, hidden_BTD, unembed_VD, tokens_BT, source_BT, sampled_BT)[0]


def _forward(settings, hidden_BTD, unembed_VD, tokens_BT, source_BT, sampled_BT):
  plan = _lay_out(settings.chunk, tokens_BT, source_BT, sampled_BT)

  def step(i, packed):
    logp_BP, total_BP = packed
    _, logits_BCV, chosen_BCV, valid_BC = _chunk_logits(settings, plan, i, hidden_BTD, unembed_VD)
    total_BC = jax.nn.logsumexp(logits_BCV, axis=-1)
    logp_BC = jnp.sum(jnp.where(chosen_BCV, logits_BCV, 0), axis=-1) - total_BC
    logp_BP = _put(logp_BP, jnp.where(valid_BC, logp_BC, 0), i)
    return logp_BP, _put(total_BP, total_BC, i)

  empty_BP = jnp.zeros(plan.target_BP.shape, jnp.float32)
  logp_BP, total_BP = lax.fori_loop(0, plan.steps, step, (empty_BP, empty_BP))
  logp_BT = jnp.where(sampled_BT, jnp.take_along_axis(logp_BP, plan.rank_BT, axis=1), 0)
  return logp_BT, (hidden_BTD, unembed_VD, plan, total_BP)


def _backward(settings, saved, grad_BT):
  hidden_BTD, unembed_VD, plan, total_BP = saved
  grad_BP = jnp.where(plan.valid_BP, jnp.take_along_axis(grad_BT, plan.order_BP, axis=1), 0) / settings.temperature

  def step(i, grads):
    hidden_grad_BTD, unembed_grad_VD = grads
    hidden_BCD, logits_BCV, chosen_BCV, _ = _chunk_logits(settings, plan, i, hidden_BTD, unembed_VD)
    total_BC, grad_BC = _take(total_BP, i, settings.chunk), _take(grad_BP, i, settings.chunk)
    error_BCV = grad_BC[..., None] * (chosen_BCV - jnp.exp(logits_BCV - total_BC[..., None]))
    error_BCV = error_BCV.astype(unembed_VD.dtype)
    grad_BCD = jnp.einsum('BCV,VD->BCD', error_BCV, unembed_VD, preferred_element_type=jnp.float32)
    # Siblings share the last token of their prompt as a source, so rows of the gradient add up.
    add = jax.vmap(lambda grad_TD, source_C, grad_CD: grad_TD.at[source_C].add(grad_CD, mode='drop'))
    hidden_grad_BTD = add(hidden_grad_BTD, _take(plan.source_BP, i, settings.chunk), grad_BCD)
    step_VD = jnp.einsum('BCV,BCD->VD', error_BCV, hidden_BCD, preferred_element_type=jnp.float32)
    return hidden_grad_BTD, unembed_grad_VD + step_VD

  empty = jnp.zeros(hidden_BTD.shape, jnp.float32), jnp.zeros(unembed_VD.shape, jnp.float32)
  hidden_grad_BTD, unembed_grad_VD = lax.fori_loop(0, plan.steps, step, empty)
  return hidden_grad_BTD.astype(hidden_BTD.dtype), unembed_grad_VD.astype(unembed_VD.dtype), None, None, None


_logprobs.defvjp(_forward, _backward)


def _lay_out(chunk, tokens_BT, source_BT, sampled_BT):
  length = tokens_BT.shape[1]
  count_B = jnp.sum(sampled_BT, axis=1, dtype=jnp.int32)
  room = -(-length // chunk) * chunk - length
  order_BP = jnp.pad(jnp.argsort(~sampled_BT, axis=1, stable=True), ((0, 0), (0, room)))
  valid_BP = jnp.arange(length + room) < count_B[:, None]
  source_BT = jnp.clip(source_BT, 0, length - 1)
  return _Plan(
    target_BP=jnp.take_along_axis(tokens_BT, order_BP, axis=1),
    source_BP=jnp.take_along_axis(source_BT, order_BP, axis=1),
    valid_BP=valid_BP,
    rank_BT=jnp.maximum(jnp.cumsum(sampled_BT, axis=1) - 1, 0),
    order_BP=order_BP,
    steps=-(-jnp.max(count_B, initial=0) // chunk),
  )


def _chunk_logits(settings, plan, i, hidden_BTD, unembed_VD):
  """Hidden states and logits of chunk i, which column each token chose, and which slots hold a token."""
  valid_BC = _take(plan.valid_BP, i, settings.chunk)
  source_BC = _take(plan.source_BP, i, settings.chunk)
  hidden_BCD = jnp.take_along_axis(hidden_BTD, source_BC[..., None], axis=1)
  # An empty slot reads some other token, whose hidden state may be NaN: 0 · NaN would reach unembed's gradient.
  hidden_BCD = jnp.where(valid_BC[..., None], hidden_BCD, 0)
  logits_BCV = jnp.einsum('BCD,VD->BCV', hidden_BCD, unembed_VD, preferred_element_type=jnp.float32)
  column_V = jnp.arange(unembed_VD.shape[0])
  real_V = column_V < settings.vocab
  chosen_BCV = (column_V == _take(plan.target_BP, i, settings.chunk)[..., None]) & real_V
  return hidden_BCD, jnp.where(real_V, logits_BCV / settings.temperature, _NEVER), chosen_BCV, valid_BC


def _take(x_BP, i, chunk):
  return lax.dynamic_slice_in_dim(x_BP, i * chunk, chunk, axis=1)


def _put(x_BP, x_BC, i):
  return lax.dynamic_update_slice_in_dim(x_BP, x_BC, i * x_BC.shape[1], axis=1)
