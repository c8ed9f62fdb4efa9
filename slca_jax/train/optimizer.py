"""AdamW with a schedule and gradient clipping, from settings."""

from typing import Any

import jax
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
  return optax.chain(
    optax.clip_by_global_norm(settings.clip_norm),
    optax.adamw(
      learning_rate(settings, updates),
      b1=settings.b1,
      b2=settings.b2,
      eps=settings.eps,
      weight_decay=settings.weight_decay,
      mask=_decayed,
    ),
  )


def _decayed(params: Any) -> Any:
  # Layers are stacked, so a norm's scale is [L, D]: names decide, not ranks.
  plain = lambda path: (
    not any(str(getattr(key, 'key', getattr(key, 'name', key))).startswith(('b_', 'ln_', 'norm')) for key in path)
  )
  return jax.tree_util.tree_map_with_path(lambda path, _: plain(path), params)
