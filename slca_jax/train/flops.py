"""FLOPs of a step: those the mathematics needs, by hand from shapes, and those a traced program executes.

Only matrix products count, 2 FLOPs per multiplication and addition.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

from jax.extend import core
from jax.interpreters import partial_eval

from slca_jax.nn.config import TransformerConfig
from slca_jax.train.hlo import Trips


@dataclasses.dataclass(frozen=True, slots=True)
class Load:
  """What a batch asks of a decoder.

  Attributes:
    tokens: those that go through the layers.
    pairs: a query and a key that it sees, summed over all queries.
    sampled: tokens whose log-prob is wanted.
  """

  tokens: int
  pairs: int
  sampled: int


def forward(config: TransformerConfig, load: Load) -> int:
  """FLOPs of one forward pass: 2·P·tokens + 4·N·H·L·pairs + 2·V·D·sampled, P the layers' matrix parameters."""
  c = config
  layer = c.width * c.head_dim * 2 * (c.heads + c.kv_heads) + 3 * c.width * c.hidden
  attention = 4 * c.heads * c.head_dim * c.layers * load.pairs
  return 2 * c.layers * layer * load.tokens + attention + 2 * c.vocab * c.width * load.sampled


def executed(closed: Any, trips: Trips, *, visited: float = 1.0) -> float:
  """FLOPs of a traced program on all devices together: recomputation included, dead code removed as a compiler would.

  Args:
    closed: `jitted.trace(...).jaxpr`.
    trips: turns of the loops whose number is data, as for `hlo.work`, or by 'file.py:function'; an unknown one counts
      as one.
    visited: share of a Pallas kernel's grid whose blocks are computed; the others are skipped.

  What the partitioner computes on several devices at once, since no axis of the mesh divides it, counts once.
  """
  live, _ = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
  return _count(live, trips, visited)


def _count(jaxpr: Any, trips: Trips, visited: float) -> float:
  return sum(_count_one(equation, trips, visited) for equation in jaxpr.eqns)


def _count_one(equation: Any, trips: Trips, visited: float) -> float:
  name, params = equation.primitive.name, equation.params
  if name == 'dot_general':
    (contracted, _), _ = params['dimension_numbers']
    shape = equation.invars[0].aval.shape
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(shape[axis] for axis in contracted)
  inner = [_count(jaxpr, trips, visited) for jaxpr in _inside(params)]
  if not any(inner):
    return 0
  if name == 'cond':
    return max(inner)
  return _times(name, params, equation, trips, visited) * sum(inner)


def _times(name: str, params: Any, equation: Any, trips: Trips, visited: float) -> float:
  """How often all devices together run what is inside an equation."""
  if name == 'scan':
    return params['length']
  if name == 'shard_map':  # axes that stay with the partitioner are whole inside
    return math.prod(params['mesh'].shape[axis] for axis in params['newly_manual_axes'])
  if name == 'pallas_call':
    return math.prod(params['grid_mapping'].grid) * visited
  if name == 'while':
    return next((trips[place] for place in _places(equation) if place in trips), 1.0)
  return 1.0


def _places(equation: Any) -> Iterator[str]:
  """'file.py:function' and 'file.py' of the Python calls that made an equation, from the innermost outwards."""
  traceback = equation.source_info.traceback
  for frame in traceback.frames if traceback is not None else ():
    file = frame.file_name.rpartition('/')[2]
    yield f'{file}:{frame.function_name.rpartition(".")[2]}'
    yield file


def _inside(params: Any) -> list[Any]:
  flat = [part for value in params.values() for part in (value if isinstance(value, tuple | list) else (value,))]
  jaxprs = [part.jaxpr if isinstance(part, core.ClosedJaxpr) else part for part in flat]
  return [jaxpr for jaxpr in jaxprs if hasattr(jaxpr, 'eqns')]
