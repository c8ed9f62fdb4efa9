"""A run at a glance: its curves, how many rollouts came how far, and where the time went."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from slca_jax.dialogue import Status

Numbers = Mapping[str, float | None]
Json = dict[str, Any]
_POINTS = 240  # of a curve: more than a page is wide are not seen
# What the page shows first; everything else is one click away.
FIRST = (
  'reward/tool', 'reward/summary', 'score/success', 'heldout/score/success', 'rollout/tool_turns', 'kl', 'grad_norm',
  'tool/entropy', 'summary/entropy', 'tool/clip', 'tool/dead_groups', 'conflict/tool_down_summary_up',
  'sampler/gap_mean', 'tokens_per_second',
)  # fmt: skip


def overview_of(metrics: Sequence[Numbers]) -> Json:
  """`curves`: name to [steps, values]; `first`: names to begin with; `funnel`: [stage, count]; `time`: [phase, s]."""
  curves = {name: _curve(metrics, name) for name in sorted({name for line in metrics for name in line} - {'step'})}
  curves = {name: curve for name, curve in curves.items() if curve[0] and not name.startswith(('time/', 'status/'))}
  return {
    'steps': len(metrics),
    'curves': curves,
    'first': [name for name in FIRST if name in curves],
    'funnel': _funnel(metrics),
    'time': sorted(_phases(metrics).items(), key=lambda item: -item[1]),
  }


def _curve(metrics: Sequence[Numbers], name: str) -> list[list[float]]:
  """[steps, values] of at most _POINTS points, each the mean of its neighbours."""
  known = [(line.get('step') or 0, value) for line in metrics if _is_number(value := line.get(name))]
  size = -(-len(known) // _POINTS) or 1
  parts = [known[start : start + size] for start in range(0, len(known), size)]
  mean = lambda part, place: statistics.fmean(point[place] for point in part)
  return [[round(mean(part, 0), 1) for part in parts], [float(f'{mean(part, 1):.5g}') for part in parts]]


def _funnel(metrics: Sequence[Numbers]) -> list[list[Any]]:
  """How many rollouts of the run came how far, from all that were begun to those that succeeded."""
  statuses = _totals(metrics, 'status/')
  if not statuses:
    return []
  begun = sum(statuses.values())
  alive = lambda line: sum(_of(line, f'status/{s.value}') for s in Status if s is not Status.FAILED)
  share = lambda name: round(sum(alive(line) * _of(line, name) for line in metrics))
  usable = begun - statuses.get(Status.FAILED.value, 0)
  stages = [
    ['begun', begun],
    ['usable', usable],
    ['called a tool', usable - share('rollout/no_call')],
    ['reached an answer', statuses.get(Status.FINISHED.value, 0)],
    ['successful', share('score/success')],
  ]
  return [[name, int(count)] for name, count in stages]


def _totals(metrics: Sequence[Numbers], prefix: str) -> dict[str, float]:
  names = {name for line in metrics for name in line if name.startswith(prefix)}
  return {name.removeprefix(prefix): round(sum(_of(line, name) for line in metrics), 3) for name in sorted(names)}


def _phases(metrics: Sequence[Numbers]) -> dict[str, float]:
  """Seconds of the run by parts that add up: no whole beside its parts, and nothing that goes on beside others."""
  totals = _totals(metrics, 'time/')
  wholes = ('step', 'collect') if 'step' in totals else ()
  return {name: value for name, value in totals.items() if name not in wholes and not name.startswith('busy/')}


def _of(line: Numbers, name: str) -> float:
  value = line.get(name)
  return value if _is_number(value) else 0.0


def _is_number(value: Any) -> TypeGuard[float]:
  return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
