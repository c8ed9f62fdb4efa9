"""Which tasks are kept: those that replay, that a teacher can do but not too easily, and of equals only a few."""

import asyncio
import collections
import dataclasses
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from slca_jax.config import require
from slca_jax.dialogue import Status, Steps, Task, ToolCall, Trajectory
from slca_jax.errors import EnvironmentFailure
from slca_jax.rewards.judge import states
from slca_jax.rewards.turns import turn_rewards
from slca_jax.toolverse.history import calls_before
from slca_jax.toolverse.inversion import Live, Open


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
  """A rollout of a teacher, and what it did to the world.

  Attributes:
    outputs: what the world answered to the calls that it accepted, uncut, in order.
    changes: how the database differs from how it began; None if no call was made.
  """

  trajectory: Trajectory
  outputs: tuple[str, ...] = ()
  changes: list[dict[str, Any]] | None = None


Solve = Callable[[Task, int], Awaitable[Attempt]]  # (task, number of the attempt) -> what the teacher did


@dataclasses.dataclass(frozen=True)
class Band:
  """How many of a teacher's attempts must and may succeed for a task to be kept.

  Attributes:
    attempts: k of Pass@k.
    least: successes without which a task is out of reach.
    most: successes beyond which it is too easy; 0 keeps even what always succeeds.
  """

  attempts: int = 8
  least: int = 1
  most: int = 0

  def __post_init__(self) -> None:
    most = self.most or self.attempts
    require(self.attempts >= 1, f'attempts is {self.attempts}; a teacher needs at least 1')
    require(
      0 <= self.least <= most <= self.attempts,
      f'least is {self.least} and most {self.most}; they need 0 <= least <= most <= attempts = {self.attempts}',
    )

  def __str__(self) -> str:
    return f'{self.least} to {self.most or self.attempts} of {self.attempts} times'

  def keeps(self, passes: 'Passes') -> bool:
    """Whether the successes lie in the band. Attempts that broke count as not made, so fewer can succeed."""
    return self.least <= passes.passed <= (self.most or self.attempts)


@dataclasses.dataclass(frozen=True, slots=True)
class Passes:
  """A teacher's attempts at a task: how many succeeded, and how many could be scored."""

  passed: int
  scored: int

  @property
  def rate(self) -> float | None:
    """The share that succeeded; None if none could be scored."""
    return self.passed / self.scored if self.scored else None


def replay_fault(task: Task, open_world: Open, *, any_order: bool = True) -> str:
  """Why the task's golden trace does not reproduce every output and the final database; '' if it does.

  Args:
    open_world: opens a fresh world of the task's blueprint.
    any_order: the calls of a stage must also give the same in the reverse order, since a policy may make them in any.

  ToolVerse, replay gate.
  """
  orders = (1, -1) if any_order and any(len(step) > 1 for step in task.gold) else (1,)
  for order in orders:
    try:
      with open_world() as world:
        fault = _differs(task, world, order)
    except EnvironmentFailure as error:
      fault = f'the world broke: {error}'
    if fault:
      return fault if order > 0 else f'in another order of its parallel calls: {fault}'
  return ''


async def teacher_rate(
  task: Task, solve: Solve, *, attempts: int = 8, passes: Callable[[Attempt], bool] | None = None
) -> Passes:
  """Pass@k of a teacher, whose attempts run concurrently.

  An attempt that failed through no fault of the teacher is not scored.

  Args:
    solve: one rollout of the teacher in a fresh world.
    attempts: k.
    passes: whether an attempt succeeded; `solved`, if not given.

  ToolVerse, teacher filter.
  """
  made = await asyncio.gather(*(solve(task, attempt) for attempt in range(attempts)))
  scored = [attempt for attempt in made if attempt.trajectory.status is not Status.FAILED]
  return Passes(sum((passes or solved)(attempt) for attempt in scored), len(scored))


def solved(attempt: Attempt) -> bool:
  """Whether the world ends as the golden trace leaves it and has answered all that it answers there, in any order and
  among other things, and the teacher's answer states the facts that the user asks for.
  """
  task, answer = attempt.trajectory.task, attempt.trajectory.answer or ''
  wanted = collections.Counter(output for step in task.meta['outputs'] for output in step)
  obtained = not wanted - collections.Counter(attempt.outputs)
  return obtained and attempt.changes == task.meta['changes'] and all(states(answer, fact) for fact in task.facts)


def full_trace(trajectory: Trajectory) -> bool:
  """Whether every golden turn is covered by the rollout's turn of the same number."""
  steps = sum(bool(step) for step in trajectory.task.gold)
  return all(reward == 1 for reward in turn_rewards(trajectory)[:steps])


def distinct(tasks: Iterable[Task]) -> list[Task]:
  """The tasks without those that ask for the same calls in the same world, or in the same words, as an earlier one."""
  seen: set[str] = set()
  kept = []
  for task in tasks:
    asked = json.dumps([task.blueprint, [m.content for m in task.messages]], ensure_ascii=False)
    done = json.dumps([task.blueprint, _written((c,) for c in calls_before(task)), _written(task.gold)], sort_keys=True)
    if asked not in seen and done not in seen:
      kept.append(task)
    seen |= {asked, done}
  return kept


def at_most(tasks: Iterable[Task], most: int = 10) -> list[Task]:
  """At most `most` tasks of each tool set, in their order; those are kept that cover its tools best.

  A tool set is a blueprint with the tools that are on offer. Of the tasks left, each choice takes the one whose tools
  were called least so far; of equals that with the longest chain, then the one that calls most tools, then the first.
  """
  require(most >= 1, f'most is {most}; a tool set keeps at least 1 task')
  sets = collections.defaultdict[tuple[str | None, frozenset[str]], list[int]](list)
  tasks = list(tasks)
  for place, task in enumerate(tasks):
    sets[task.blueprint, frozenset(tool.name for tool in task.tools)].append(place)
  kept = [place for places in sets.values() for place in _covering(tasks, places, most)]
  return [tasks[place] for place in sorted(kept)]


def _covering(tasks: Sequence[Task], places: Sequence[int], most: int) -> list[int]:
  used: collections.Counter[str] = collections.Counter()
  left, kept = list(places), []
  while left and len(kept) < most:
    names = {place: {call.name for step in tasks[place].gold for call in step} for place in left}
    worth = {
      place: (sum(16.0 ** -used[name] for name in called), tasks[place].meta.get('depth', 0), len(called), -place)
      for place, called in names.items()
    }
    best = max(left, key=worth.__getitem__)
    used.update(names[best])
    kept.append(best)
    left.remove(best)
  return kept


def _differs(task: Task, world: Live, order: int) -> str:
  """Where the golden trace comes out otherwise in this world."""
  told = [message.content for message in task.messages if message.role == 'tool']
  for call, content in zip(calls_before(task), told, strict=True):
    if (seen := world.call(call)).content != content:
      return f'{call.name} of the dialogue answers {seen.content[:200]!r}, not {content[:200]!r}'
  outputs = task.meta['outputs']
  for number, (step, expected) in enumerate(zip(task.gold, outputs, strict=True)):
    for call, content in list(zip(step, expected, strict=True))[::order]:
      seen = world.call(call)
      if not seen.ok or seen.content != content:
        return f'{call.name} of step {number + 1} answers {seen.content[:200]!r}, not {content[:200]!r}'
  if (left := world.changes()) != task.meta['changes']:
    return f'the database ends with the changes {str(left)[:300]}, not {str(task.meta["changes"])[:300]}'
  return ''


def _written(steps: Iterable[Sequence[ToolCall]] | Steps) -> list[list[str]]:
  return [
    sorted(json.dumps([call.name, dict(call.arguments)], sort_keys=True, ensure_ascii=False) for call in step)
    for step in steps
  ]
