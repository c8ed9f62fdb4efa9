"""Answers from a task's recorded observations; for calls without a record, values of the right shape from a seed."""

import dataclasses
import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from slca_jax.chat.loose import loosely_equal
from slca_jax.dialogue import Observation, Task, Tool, ToolCall
from slca_jax.envs.environment import Opener
from slca_jax.envs.guard import DEFAULT, CallLimits
from slca_jax.envs.simulator import Simulator
from slca_jax.errors import EnvironmentFailure

_NAMES = ('amber', 'birch', 'cedar', 'delta', 'ember', 'fjord', 'grove', 'harbor', 'iris', 'juniper', 'lagoon', 'maple')
_DEPTH = 6  # levels of an invented value; recursive schemas end there
_MOST = 2000  # values of an invented value: wide recursive schemas and large `minItems` end there


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
  """What a call once returned."""

  call: ToolCall
  seen: Observation


class Recorded:
  """Plays a backend from records: the first whose call says loosely the same, else an invented value.

  An invented value has the shape of the tool's `returns`, or is a small object with a status; it depends on the seed,
  the tool and the arguments alone, so equal calls agree.
  """

  def __init__(self, records: Sequence[Record], *, seed: int):
    self._records = tuple(records)
    self._seed = seed

  async def __call__(self, tool: Tool | None, call: ToolCall) -> Observation:
    """The observation of a call that passed the checks."""
    seen = look_up(self._records, call)
    return seen or Observation(json.dumps(invent(tool, call, seed=self._seed), ensure_ascii=False))


def look_up(records: Sequence[Record], call: ToolCall) -> Observation | None:
  """What the first record whose call says loosely the same holds; None if there is none."""
  for record in records:
    if record.call.name == call.name and loosely_equal(record.call.arguments, call.arguments):
      return record.seen
  return None


def records_of(task: Task) -> tuple[Record, ...]:
  """The task's records: `meta['recorded']`, a list of {name, arguments, content} and optionally ok.

  Raises:
    EnvironmentFailure: an entry is not of that form.
  """
  records = []
  for entry in task.meta.get('recorded', ()):
    try:
      call = ToolCall(entry['name'], dict(entry['arguments']))
      content = entry['content']
      text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
      records.append(Record(call, Observation(text, bool(entry.get('ok', True)))))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
      raise EnvironmentFailure(
        f'task {task.id} has the record {str(entry)[:200]}, which lacks name, arguments or content: {error!r}'
      ) from error
  return tuple(records)


def recorded_opener(*, checks: bool = True, limits: CallLimits = DEFAULT) -> Opener:
  """Opens a task's tools behind the simulator's checks, answered from its records."""

  def open_recorded(task: Task, seed: int) -> Simulator:
    return Simulator(task.tools, Recorded(records_of(task), seed=seed), checks=checks, limits=limits)

  return open_recorded


def invent(tool: Tool | None, call: ToolCall, *, seed: int) -> Any:
  """A value of the shape of the tool's `returns`; without one, a small object that says what was done.

  Types, properties, enumerations and whole-number bounds are kept; patterns, formats and lengths are not. A value of
  more than some thousand parts is cut short.

  Args:
    tool: None where an unknown tool was let through.
    call: its arguments are repeated where the result has a property of the same name.
    seed: equal seeds and calls give equal values.
  """
  arguments = json.dumps(call.arguments, sort_keys=True, ensure_ascii=False, default=str)
  chance = random.Random(f'{seed}/{call.name}/{arguments}')
  if tool is not None and tool.returns:
    return _Inventor(tool.returns, call.arguments, chance).value(tool.returns, 0)
  return {'status': 'success', 'result': f'{chance.choice(_NAMES)}-{chance.randrange(1000, 10000)}'}


class _Inventor:
  """Draws values that fit a schema, echoing arguments."""

  def __init__(self, root: Mapping[str, Any], arguments: Mapping[str, Any], chance: random.Random):
    self._root, self._arguments, self._chance = root, arguments, chance
    self._left = _MOST

  def value(self, schema: Any, depth: int, name: str = '') -> Any:
    """A value of the schema's shape; texts are made from `name`, the field's."""
    self._left -= 1
    schema = self._resolved(schema)
    if 'const' in schema:
      return schema['const']
    if isinstance(schema.get('enum'), list) and schema['enum']:
      return self._chance.choice(schema['enum'])
    for union in ('anyOf', 'oneOf'):
      if isinstance(schema.get(union), list) and schema[union]:
        return self.value(schema[union][0], depth + 1, name) if depth < _DEPTH else None
    kind = self._kind(schema)
    if kind == 'object':
      return self._object(schema, depth)
    if kind == 'array':
      length = self._bound(schema, 'minItems', 'maxItems', 2) if depth < _DEPTH else 0
      length = min(length, max(0, self._left))
      return [self.value(schema.get('items', {}), depth + 1, name) for _ in range(length)]
    return self._scalar(kind, schema, name)

  def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
    properties = schema.get('properties')
    if not isinstance(properties, Mapping) or depth >= _DEPTH or self._left < 0:
      return {}
    return {
      key: self._arguments[key] if self._repeats(key, part) else self.value(part, depth + 1, key)
      for key, part in properties.items()
    }

  def _repeats(self, key: str, schema: Any) -> bool:
    """Whether an argument of that name is what the schema asks for."""
    schema = self._resolved(schema)
    if 'enum' in schema or 'const' in schema:
      return False
    return key in self._arguments and isinstance(self._arguments[key], str) and self._kind(schema) == 'string'

  def _scalar(self, kind: str, schema: Mapping[str, Any], name: str) -> Any:
    if kind == 'integer':
      return self._bound(schema, 'minimum', 'maximum', 100)
    if kind == 'number':
      return float(self._bound(schema, 'minimum', 'maximum', 100))
    if kind == 'boolean':
      return self._chance.random() < 0.5
    if kind == 'null':
      return None
    return f'{name or "value"}-{self._chance.choice(_NAMES)}'

  def _bound(self, schema: Mapping[str, Any], low: str, high: str, span: int) -> int:
    """A whole number in the schema's bounds, within `span` of one of them."""
    least, most = schema.get(low), schema.get(high)
    least = math.ceil(least) if _is_number(least) else None
    most = math.floor(most) if _is_number(most) else None
    if least is None:
      least = 1 if most is None or most >= 1 else most - span
    most = least + span if most is None else min(most, least + span)
    return self._chance.randint(least, max(least, most))

  def _resolved(self, schema: Any) -> Mapping[str, Any]:
    """The schema behind local references; {} for what is no schema or cannot be found."""
    for _ in range(_DEPTH):
      if not isinstance(schema, Mapping):
        return {}
      reference = schema.get('$ref')
      if not isinstance(reference, str) or not reference.startswith('#'):
        return schema
      schema = self._root
      for part in reference.removeprefix('#').split('/')[1:]:
        schema = schema.get(part.replace('~1', '/').replace('~0', '~')) if isinstance(schema, Mapping) else None
    return {}

  @staticmethod
  def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get('type')
    if isinstance(kind, list):
      kind = next((name for name in kind if name != 'null'), 'null')
    if not isinstance(kind, str):
      kind = 'object' if 'properties' in schema else 'string'
    return _PYTHON_TYPES.get(kind, kind)


_PYTHON_TYPES = {
  'dict': 'object',
  'float': 'number',
  'int': 'integer',
  'list': 'array',
  'tuple': 'array',
  'bool': 'boolean',
}


def _is_number(value: Any) -> TypeGuard[int | float]:
  return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
