"""What is wrong with a call, given the tools on offer: the same fixed texts for simulators, worlds and rewards."""

import collections
from collections.abc import Sequence

from slca_jax.chat.schema import CheckedTool, compile_tool
from slca_jax.dialogue import Tool, ToolCall
from slca_jax.errors import SchemaError

_REMEMBERED = 512  # tool sets whose compiled schemas are kept
_CALLS = 4096  # calls of a tool set whose faults are kept: the environment asks first, the rewards ask again


class Checks:
  """The checks of one set of tools, in order: the tool exists, nothing required is absent, the types fit.

  SLCA-GRPO (arXiv:2609.29050), §3.4, stage 1.
  """

  def __init__(self, tools: Sequence[Tool]):
    self._tools = {tool.name: tool for tool in tools}
    self._compiled: dict[str, CheckedTool | SchemaError] = {}  # filled as tools are called: most never are
    self._faults: collections.OrderedDict[int, tuple[ToolCall, str | None]] = collections.OrderedDict()

  def tool(self, name: str) -> Tool | None:
    """The tool of that name, None if it is not on offer."""
    return self._tools.get(name)

  def required(self, name: str) -> frozenset[str] | None:
    """The parameters that the tool requires, None if it is unknown or does not say."""
    compiled = self._checked(name) if name in self._tools else None
    required = compiled.schema.get('required') if isinstance(compiled, CheckedTool) else None
    return None if required is None else frozenset(required)

  def fault(self, call: ToolCall) -> str | None:
    """What the policy is told about a call that cannot be made, None about one that can."""
    known = self._faults.get(id(call))  # by identity, as arguments cannot be hashed; keeping the call keeps its id
    if known is not None and known[0] is call:
      return known[1]
    fault = self._fault(call)
    self._faults[id(call)] = (call, fault)
    if len(self._faults) > _CALLS:
      self._faults.popitem(last=False)
    return fault

  def _fault(self, call: ToolCall) -> str | None:
    if call.name not in self._tools:
      return f'Error: there is no tool named {call.name!r} here.'
    compiled = self._checked(call.name)
    if isinstance(compiled, SchemaError):  # readers of data refuse such tools; nothing may break on one that slipped by
      return f'Error: {call.name} cannot be called: {compiled}'
    violations = compiled.violations(call.arguments)
    if not violations:
      return None
    absent = [violation.path for violation in violations if violation.kind == 'missing']
    if absent:
      return f'Error: the call of {call.name} lacks the required parameters: {", ".join(absent)}.'
    return f'Error: the call of {call.name} does not fit: {"; ".join(violation.text for violation in violations)}.'

  def _checked(self, name: str) -> CheckedTool | SchemaError:
    if name not in self._compiled:
      try:
        self._compiled[name] = compile_tool(self._tools[name])
      except SchemaError as error:
        self._compiled[name] = error
    return self._compiled[name]


_cache: collections.OrderedDict[int, tuple[Sequence[Tool], Checks]] = collections.OrderedDict()


def checks_of(tools: tuple[Tool, ...]) -> Checks:
  """The checks of a set of tools, compiled once: all rollouts of a task share the tuple.

  The key is the tuple's identity (schemas are dicts and cannot be hashed); keeping the tuple keeps its id from reuse.
  """
  known = _cache.get(id(tools))
  if known is not None and known[0] is tools:
    _cache.move_to_end(id(tools))
    return known[1]
  checks = Checks(tools)
  _cache[id(tools)] = (tools, checks)
  while len(_cache) > _REMEMBERED:
    _cache.popitem(last=False)
  return checks
