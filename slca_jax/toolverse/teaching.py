"""The teacher gate: a teacher tries each task several times, and those stay that it solves neither never nor too often.

Tools for worlds know no engines: whoever has one hands over a `Teacher` that opens it (`train/teacher.py` does).
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from slca_jax.data.tasks import task_to_json
from slca_jax.dialogue import Observation, Status, Task, Tool, ToolCall
from slca_jax.envs.environment import Environment
from slca_jax.envs.state import final_state
from slca_jax.errors import SamplerError
from slca_jax.llm.answers import digest
from slca_jax.toolverse.filters import Attempt, Band, Passes, Solve, solved, teacher_rate
from slca_jax.toolverse.journal import Journal

_AT_ONCE = 64  # tasks that are tried at the same time; the engine says how many rollouts are


@dataclasses.dataclass(frozen=True, slots=True)
class Teacher:
  """Who tries the tasks, and what is asked of it.

  Attributes:
    name: says who it is and how it is sampled; under another name, tasks are tried anew.
    band: how many attempts there are, and how many of them must and may succeed.
    run: opens the engine, runs the work with it to its end, and closes it.
    passes: whether an attempt succeeded.
  """

  name: str
  band: Band
  run: Callable[[Callable[[Solve], Awaitable[None]]], None]
  passes: Callable[[Attempt], bool] = solved


class Watched:
  """An environment that remembers what it answered, and what its database has become.

  Attributes:
    outputs: the answers to calls that were accepted, uncut, in order.
    changed: how the database differs from how it began; None before the first step.
  """

  def __init__(self, environment: Environment):
    self._environment = environment
    self.outputs: list[str] = []
    self.changed: list[dict[str, Any]] | None = None

  @property
  def tools(self) -> tuple[Tool, ...]:
    """The tools on offer here."""
    return self._environment.tools

  async def step(self, calls: Sequence[ToolCall]) -> list[Observation]:
    """One observation per call, in order.

    Raises:
      EnvironmentFailure: as the environment does, or it has no database.
    """
    seen = list(await self._environment.step(calls))
    self.outputs += [one.content for one in seen if one.ok]
    self.changed = await final_state(self._environment)
    return seen

  def close(self) -> None:
    """Frees what the world holds."""
    self._environment.close()


def taught(tasks: Sequence[Task], teacher: Teacher, journal: Journal) -> list[Task]:
  """The tasks in the teacher's band, in order, with what it did in their `meta['teacher']`.

  Tasks that the journal knows are not tried again, and where it knows all the engine is not opened.

  Raises:
    SamplerError: not one attempt at any task could be scored; says why.
  """
  keys = [_key(task, teacher) for task in tasks]
  open_tasks = [(key, task) for key, task in zip(keys, tasks, strict=True) if journal.get(key) is None]
  if open_tasks:
    _try_all(open_tasks, teacher, journal)
  kept = []
  for key, task in zip(keys, tasks, strict=True):
    record = journal.get(key)
    if record is not None and teacher.band.keeps(Passes(record['passed'], record['scored'])):
      kept.append(dataclasses.replace(task, meta={**task.meta, 'teacher': _told(record, teacher)}))
  return kept


def _key(task: Task, teacher: Teacher) -> str:
  return digest({'task': task_to_json(task), 'teacher': teacher.name, 'attempts': teacher.band.attempts})


def _told(record: dict[str, Any], teacher: Teacher) -> dict[str, Any]:
  passed, scored = record['passed'], record['scored']
  return {'name': teacher.name, 'passed': passed, 'scored': scored, 'rate': passed / scored}


def _try_all(open_tasks: Sequence[tuple[str, Task]], teacher: Teacher, journal: Journal) -> None:
  """Tries the tasks and writes what came of each to the journal. Tasks of which no attempt could be scored are left
  out, to be tried again by the next run.
  """
  errors: list[str] = []

  async def work(solve: Solve) -> None:
    gate = asyncio.Semaphore(_AT_ONCE)

    async def noted(task: Task, number: int) -> Attempt:
      attempt = await solve(task, number)
      if attempt.trajectory.status is Status.FAILED:
        errors.append(f'{task.id}: {attempt.trajectory.error}')
      return attempt

    async def one(key: str, task: Task) -> None:
      async with gate:
        passes = await teacher_rate(task, noted, attempts=teacher.band.attempts, passes=teacher.passes)
      if passes.scored:
        journal.put(key, {'task': task.id, 'passed': passes.passed, 'scored': passes.scored})

    async with asyncio.TaskGroup() as crew:
      for key, task in open_tasks:
        crew.create_task(one(key, task))

  teacher.run(work)
  if not any(journal.get(key) for key, _ in open_tasks):
    raise SamplerError(f'no attempt at any of {len(open_tasks)} tasks could be scored: {(errors or ["no reason"])[0]}')
