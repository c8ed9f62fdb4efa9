"""AdamW with a schedule and gradient clipping, from settings."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from slca_jax.train.settings import Optimizer


def learning_rate(settings: Optimizer, updates: int) -> optax.Schedule:
  """The rate at each of `updates` optimiser updates."""
  peak, last = settings.learning_rate, settings.learning_rate * settings.final_fraction
  warm, held = round(settings.warmup * updates), round(settings.hold * updates)
  rest = max(1, updates - warm - held)
  after = {
    'constant': optax.constant_schedule(peak),
    'cosine': optax.cosine_decay_schedule(peak, rest, settings.final_fraction),
    'linear': optax.linear_schedule(peak, last, rest),
  }[settings.schedule]
  rise = optax.linear_schedule(0.0, peak, max(1, warm))
  return optax.join_schedules([rise, optax.constant_schedule(peak), after], [warm, warm + held])


def make(settings: Optimizer, updates: int) -> optax.GradientTransformation:
  """The gradient transformation for a run of `updates` updates."""
  rule = optax.chain(
    optax.clip_by_global_norm(settings.clip_norm),
    optax.adamw(
      learning_rate(settings, updates),
      b1=settings.b1,
      b2=settings.b2,
      eps=settings.eps,
      weight_decay=settings.weight_decay,
      mask=_decayed,
      mu_dtype=settings.momentum_dtype,
    ),
  )
  return with_master(rule) if settings.master else in_stored_type(rule)


class MasterState(NamedTuple):
  """Float32 copies of the parameters, and the rule's own state."""

  master: Any
  rule: optax.OptState


def with_master(rule: optax.GradientTransformation) -> optax.GradientTransformation:
  """`rule` on float32 copies of parameters that are stored in less, which are then their rounding."""

  def init(params: Any) -> Any:
    if _is_whole(params):
      return rule.init(params)
    master = _cast(params, jnp.float32)
    return MasterState(master, rule.init(master))

  def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
    if not isinstance(state, MasterState):
      return rule.update(updates, state, params)
    moves, inner = rule.update(_cast(updates, jnp.float32), state.rule, state.master)
    master = jax.tree.map(jnp.add, state.master, moves)
    # In float32, so that what is added to the stored parameters lands on the copy and is rounded once.
    return jax.tree.map(jnp.subtract, master, _cast(params, jnp.float32)), MasterState(master, inner)

  return optax.GradientTransformation(init, update)


def in_stored_type(rule: optax.GradientTransformation) -> optax.GradientTransformation:
  """`rule` on gradients in the parameters' own type, so that its state keeps that type."""

  def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
    return rule.update(jax.tree.map(lambda update, p: update.astype(p.dtype), updates, params), state, params)

  return optax.GradientTransformation(rule.init, update)


def _is_whole(params: Any) -> bool:
  return all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(params))


def _cast(tree: Any, dtype: Any) -> Any:
  return jax.tree.map(lambda x: x.astype(dtype), tree)


def _decayed(params: Any) -> Any:
  # Layers are stacked, so a norm's scale is [L, D]: names decide, not ranks.
  plain = lambda path: (
    not any(str(getattr(key, 'key', getattr(key, 'name', key))).startswith(('b_', 'ln_', 'norm')) for key in path)
  )
  return jax.tree_util.tree_map_with_path(lambda path, _: plain(path), params)
