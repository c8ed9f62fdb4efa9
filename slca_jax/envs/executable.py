"""Worlds that run: Python functions over a dictionary database, a fresh copy of it for every rollout."""

import asyncio
import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slca_jax.chat.checks import checks_of
from slca_jax.dialogue import Observation, Task, Tool, ToolCall
from slca_jax.envs.confined.changes import changes
from slca_jax.envs.environment import Opener
from slca_jax.envs.guard import DEFAULT, CallLimits, Threads, answer_all, answer_one, as_text, bounded, refusal
from slca_jax.errors import EnvironmentFailure

Function = Callable[..., Any]  # (database, **arguments) -> a string, or anything that JSON can hold
_UNCALLED = (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)


@dataclasses.dataclass(frozen=True)
class World:
  """Tools and the functions behind them, by name.

  A function takes the database and the call's arguments by name; it refuses by raising ValueError with a text for the
  policy. `inline` promises that every function is quick and cannot hang: calls then run on the event loop, one after
  another, without a thread and without a deadline.
  """

  tools: tuple[Tool, ...]
  functions: Mapping[str, Function]
  inline: bool = False

  def __post_init__(self) -> None:
    missing = [tool.name for tool in self.tools if tool.name not in self.functions]
    if missing:
      raise ValueError(f'no function for the tools {", ".join(missing)}; known: {", ".join(self.functions)}')
    for name, function in self.functions.items():  # a call would return at once what nobody awaits or draws from
      if any(kind(function) for kind in _UNCALLED):
        raise ValueError(f'the function of {name} is async or yields; give a plain one, which runs in a thread')


class Executable:
  """The environment of one rollout in a world, over its own copy of the database."""

  def __init__(
    self,
    world: World,
    database: Any,
    *,
    tools: Sequence[Tool] | None = None,
    limits: CallLimits = DEFAULT,
    threads: Threads | None = None,
  ):
    """Opens the world.

    Args:
      world: what can be called.
      database: copied here; the rollout never sees or changes the original.
      tools: the tools on offer, if they are not all of the world's.
      limits: patience with a call.
      threads: where blocking functions run; environments of one run share it.
    """
    self.tools = tuple(world.tools if tools is None else tools)
    self._world = world
    self._beginning, self._database = database, fresh(database)
    self._checks = checks_of(self.tools)
    self._limits = limits
    self._threads = threads or Threads(max_abandoned=limits.max_abandoned)
    self._shared_with_hung = False
    self._open = True

  @property
  def database(self) -> Any:
    """The rollout's database as it stands."""
    return self._database

  async def changes(self) -> list[dict[str, Any]]:
    """How the database differs from how it began."""
    return changes(self._beginning, self._database)

  async def step(self, calls: Sequence[ToolCall]) -> list[Observation]:
    """One observation per call, in order. Calls run concurrently; if one of them writes, in order, one by one.

    Raises:
      EnvironmentFailure: the environment was closed, or too many of its calls hang.
    """
    if not self._open:
      raise EnvironmentFailure('a call to an environment that was closed')
    if self._world.inline:
      return [self._inline(call) for call in calls]
    if any(self._writes(call) for call in calls):
      return [await answer_one(call, self._in_thread, limits=self._limits) for call in calls]
    return await answer_all(calls, self._in_thread, limits=self._limits)

  def close(self) -> None:
    """Refuses further steps and lets the database go."""
    self._open = False
    self._beginning = self._database = None

  def _inline(self, call: ToolCall) -> Observation:
    try:
      return bounded(self._respond(call, self._database), limits=self._limits)
    except EnvironmentFailure:
      raise
    except (Exception, SystemExit) as error:
      return refusal(error, limits=self._limits)

  async def _in_thread(self, call: ToolCall) -> Observation:
    database = self._current_database()
    try:
      return await self._threads.run(lambda: self._respond(call, database))
    except asyncio.CancelledError:
      self._shared_with_hung = True
      raise

  def _current_database(self) -> Any:
    """The database, without the functions that hang: whatever they still write goes to the copy they hold."""
    if self._shared_with_hung:
      try:
        self._database = fresh(self._database)
      except Exception as error:
        raise EnvironmentFailure(f'a hung call is changing the database: {error}') from error
      self._shared_with_hung = False
    return self._database

  def _writes(self, call: ToolCall) -> bool:
    tool = self._checks.tool(call.name)
    return tool is not None and tool.writes

  def _respond(self, call: ToolCall, database: Any) -> Observation:
    fault = self._checks.fault(call)
    if fault is not None:
      return Observation(fault, ok=False)
    result = self._world.functions[call.name](database, **fresh(call.arguments))
    return result if isinstance(result, Observation) else Observation(as_text(result))


def executable_opener(
  world: World,
  database_of: Callable[[Task], Any] = lambda task: task.meta['database'],
  *,
  limits: CallLimits = DEFAULT,
) -> Opener:
  """Opens a task's tools of `world` over `database_of(task)`. All rollouts share one count of hung calls."""
  threads = Threads(max_abandoned=limits.max_abandoned)

  def open_world(task: Task, seed: int) -> Executable:
    del seed  # the functions are as they are
    try:
      database = database_of(task)
    except Exception as error:
      raise EnvironmentFailure(f'task {task.id} has no database: {type(error).__name__}: {error}') from error
    return Executable(world, database, tools=task.tools, limits=limits, threads=threads)

  return open_world


def fresh(value: Any) -> Any:
  """A deep copy. A pickle round trip is about five times as fast as copy.deepcopy, which takes what pickle refuses."""
  try:
    return pickle.loads(pickle.dumps(value, pickle.HIGHEST_PROTOCOL))
  except (pickle.PicklingError, TypeError, AttributeError):
    return copy.deepcopy(value)
