"""Log-probs of the sampled tokens, forward and backward, without ever storing the logits of a row.

The sampled positions of each row are brought to its front, and a loop runs over chunks of them, as many as the fullest
row needs: prompts, observations and padding never meet the vocabulary. The backward pass computes each chunk's logits
again.

On a mesh each device holds a part of the vocabulary, and the devices that share it compute the chunks of all their rows
together: hidden states of a chunk are exchanged, the table and its gradient never are.

Axes beside the package's legend: C tokens of a chunk, A rows of all devices that share a vocabulary.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

_NEVER = -1e30  # Finite, so that a column which is left out gives 0 and never NaN.


class Split(NamedTuple):
  """Axes of the mesh in force that rows are spread over, and those that the rows of the unembedding are spread over."""

  rows: tuple[str, ...]
  vocab: tuple[str, ...]


class _Settings(NamedTuple):
  """What the custom gradient must know at trace time; `vocab` is the true size, without padding of the rows."""

  temperature: float
  chunk: int
  vocab: int
  split: Split


class _Plan(NamedTuple):
  """Where the sampled tokens of each row are, those first; P is T rounded up to whole chunks."""

  target_BP: jax.Array
  source_BP: jax.Array
  valid_BP: jax.Array
  rank_BT: jax.Array
  order_BP: jax.Array


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
  split: Split | None = None,
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
    split: how the arrays lie on a mesh, which must divide them; None where one device has them all.

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
  settings = _Settings(float(temperature), min(chunk, max(tokens_BT.shape[1], 1)), vocab, split or Split((), ()))
  return _logprobs(settings, hidden_BTD, unembed_VD, tokens_BT, source_BT, sampled_BT)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _logprobs(settings, hidden_BTD, unembed_VD, tokens_BT, source_BT, sampled_BT):
  return _forward(settings, hidden_BTD, unembed_VD, tokens_BT, source_BT, sampled_BT)[0]


def _forward(settings, hidden_BTD, unembed_VD, tokens_BT, source_BT, sampled_BT):
  given = hidden_BTD, unembed_VD, tokens_BT, source_BT, sampled_BT
  forward = _on_each_device(_forward_here, settings, given='rvrrr', found='rrr')
  logp_BT, plan, total_BP = forward(*given)
  return logp_BT, (hidden_BTD, unembed_VD, plan, total_BP)


def _backward(settings, saved, grad_BT):
  grads = _on_each_device(_backward_here, settings, given='rvrrr', found='rv')(*saved, grad_BT)
  return *grads, None, None, None


_logprobs.defvjp(_forward, _backward)


def _on_each_device(function: Callable[..., Any], settings: _Settings, *, given: str, found: str) -> Callable[..., Any]:
  """`function` on a device's own part of arrays that are spread like rows (r) or like the unembedding (v)."""
  function, split = functools.partial(function, settings), settings.split
  if not split.rows:
    return function
  specs = {'r': PartitionSpec(split.rows), 'v': PartitionSpec(split.vocab)}
  lie = lambda letters: tuple(specs[letter] for letter in letters)
  # Collectives and their transposes are written out, so nothing has to be known of what varies over which axis.
  return jax.shard_map(function, in_specs=lie(given), out_specs=lie(found), check_vma=False)


def _forward_here(settings, hidden_BTD, unembed_VD, tokens_BT, source_BT, sampled_BT):
  plan, split = _lay_out(settings.chunk, tokens_BT, source_BT, sampled_BT), settings.split
  target_AP = _gather(split, jnp.where(plan.valid_BP, plan.target_BP, -1))

  def step(i, packed):
    logp_BP, total_BP = packed
    _, logits_ACV, chosen_ACV = _chunk_logits(settings, plan, target_AP, i, hidden_BTD, unembed_VD)
    total_AC = _logsumexp(split, logits_ACV)
    logp_AC = _sum_over(split.vocab, jnp.sum(jnp.where(chosen_ACV, logits_ACV, 0), axis=-1)) - total_AC
    return _put(logp_BP, _own(split, logp_AC), i), _put(total_BP, _own(split, total_AC), i)

  empty_BP = jnp.zeros(plan.target_BP.shape, jnp.float32)
  logp_BP, total_BP = lax.fori_loop(0, _steps(settings, plan), step, (empty_BP, empty_BP))
  logp_BT = jnp.where(sampled_BT, jnp.take_along_axis(logp_BP, plan.rank_BT, axis=1), 0)
  return logp_BT, plan, total_BP


def _backward_here(settings, hidden_BTD, unembed_VD, plan, total_BP, grad_BT):
  grad_BP = jnp.where(plan.valid_BP, jnp.take_along_axis(grad_BT, plan.order_BP, axis=1), 0) / settings.temperature
  split = settings.split
  target_BP = jnp.where(plan.valid_BP, plan.target_BP, -1)
  target_AP, total_AP, grad_AP = (_gather(split, x) for x in (target_BP, total_BP, grad_BP))

  def step(i, grads):
    hidden_grad_BTD, unembed_grad_VD = grads
    hidden_ACD, logits_ACV, chosen_ACV = _chunk_logits(settings, plan, target_AP, i, hidden_BTD, unembed_VD)
    total_AC, grad_AC = _take(total_AP, i, settings.chunk), _take(grad_AP, i, settings.chunk)
    error_ACV = grad_AC[..., None] * (chosen_ACV - jnp.exp(logits_ACV - total_AC[..., None]))
    error_ACV = error_ACV.astype(unembed_VD.dtype)
    grad_ACD = jnp.einsum('ACV,VD->ACD', error_ACV, unembed_VD, preferred_element_type=jnp.float32)
    grad_BCD = _sum_to_own(split, grad_ACD)
    # Siblings share the last token of their prompt as a source, so rows of the gradient add up.
    add = jax.vmap(lambda grad_TD, source_C, grad_CD: grad_TD.at[source_C].add(grad_CD, mode='drop'))
    hidden_grad_BTD = add(hidden_grad_BTD, _take(plan.source_BP, i, settings.chunk), grad_BCD)
    step_VD = jnp.einsum('ACV,ACD->VD', error_ACV, hidden_ACD, preferred_element_type=jnp.float32)
    return hidden_grad_BTD, unembed_grad_VD + step_VD

  empty = jnp.zeros(hidden_BTD.shape, jnp.float32), jnp.zeros(unembed_VD.shape, jnp.float32)
  hidden_grad_BTD, unembed_grad_VD = lax.fori_loop(0, _steps(settings, plan), step, empty)
  elsewhere = tuple(axis for axis in split.rows if axis not in split.vocab)
  unembed_grad_VD = _sum_over(elsewhere, unembed_grad_VD)
  return hidden_grad_BTD.astype(hidden_BTD.dtype), unembed_grad_VD.astype(unembed_VD.dtype)


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
  )


def _steps(settings, plan):
  """Chunks of the fullest row of all devices: each turn has collectives, and all devices must turn equally often."""
  most, rows = jnp.max(plan.valid_BP.sum(1, dtype=jnp.int32), initial=0), settings.split.rows
  return -(-(lax.pmax(most, rows) if rows else most) // settings.chunk)


def _chunk_logits(settings, plan, target_AP, i, hidden_BTD, unembed_VD):
  """Hidden states and logits of chunk i, and which column each token chose; an empty slot chose none."""
  valid_BC = _take(plan.valid_BP, i, settings.chunk)
  source_BC = _take(plan.source_BP, i, settings.chunk)
  hidden_BCD = jnp.take_along_axis(hidden_BTD, source_BC[..., None], axis=1)
  # An empty slot reads some other token, whose hidden state may be NaN: 0 · NaN would reach unembed's gradient.
  hidden_ACD = _gather(settings.split, jnp.where(valid_BC[..., None], hidden_BCD, 0))
  logits_ACV = jnp.einsum('ACD,VD->ACV', hidden_ACD, unembed_VD, preferred_element_type=jnp.float32)
  axes = settings.split.vocab
  column_V = jnp.arange(unembed_VD.shape[0]) + (lax.axis_index(axes) * unembed_VD.shape[0] if axes else 0)
  real_V = column_V < settings.vocab
  chosen_ACV = (column_V == _take(target_AP, i, settings.chunk)[..., None]) & real_V
  return hidden_ACD, jnp.where(real_V, logits_ACV / settings.temperature, _NEVER), chosen_ACV


def _logsumexp(split, logits_ACV):
  if not split.vocab:
    return jax.nn.logsumexp(logits_ACV, axis=-1)
  top_AC = lax.pmax(logits_ACV.max(-1), split.vocab)
  return top_AC + jnp.log(lax.psum(jnp.exp(logits_ACV - top_AC[..., None]).sum(-1), split.vocab))


def _shared(split):
  """Axes whose devices have rows of their own and parts of one vocabulary."""
  return tuple(axis for axis in split.rows if axis in split.vocab)


def _gather(split, x_BX):
  axes = _shared(split)
  return lax.all_gather(x_BX, axes, axis=0, tiled=True) if axes else x_BX


def _own(split, x_AC):
  """The rows of this device among those that were gathered."""
  axes = _shared(split)
  if not axes:
    return x_AC
  rows = x_AC.shape[0] // lax.axis_size(axes)
  return lax.dynamic_slice_in_dim(x_AC, lax.axis_index(axes) * rows, rows, axis=0)


def _sum_to_own(split, x_ACD):
  """What the devices found of this device's rows, each for its part of the vocabulary, summed up."""
  axes = _shared(split)
  x_BCD = lax.psum_scatter(x_ACD, axes, scatter_dimension=0, tiled=True) if axes else x_ACD
  return _sum_over(tuple(axis for axis in split.vocab if axis not in axes), x_BCD)


def _sum_over(axes, x):
  return lax.psum(x, axes) if axes else x


def _take(x_BP, i, chunk):
  return lax.dynamic_slice_in_dim(x_BP, i * chunk, chunk, axis=1)


def _put(x_BP, x_BC, i):
  return lax.dynamic_update_slice_in_dim(x_BP, x_BC, i * x_BC.shape[1], axis=1)
