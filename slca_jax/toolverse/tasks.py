"""All tasks of one environment: graph, samples, traces, questions, and the gates that need no teacher.

made = make_tasks(blueprint, lambda: Trial(blueprint), TaskSettings(), seed=0)
write_tasks(made.tasks, 'tasks.jsonl')
for drop in made.dropped: print(drop.stage, drop.what, drop.reason)
"""

import collections
import dataclasses
import random

from slca_jax.config import require
from slca_jax.dialogue import Task
from slca_jax.errors import EnvironmentFailure
from slca_jax.toolverse.blueprint import Blueprint
from slca_jax.toolverse.filters import at_most, distinct, replay_fault
from slca_jax.toolverse.graph import Removal, ToolGraph, sanitise
from slca_jax.toolverse.inference import Seen, Suggest, infer, parsed
from slca_jax.toolverse.inversion import Broken, Open, invert
from slca_jax.toolverse.sampling import sample_cover
from slca_jax.toolverse.wording import Write


@dataclasses.dataclass(frozen=True)
class TaskSettings:
  """How the tasks of an environment are made.

  Attributes:
    samples: traces to try.
    width: calls that a stage may hold.
    shortest, longest: calls of a trace.
    user_turns: the most turns of the user that a trace is told in.
    most_sources: tools that a parameter may depend on.
    attempts: fresh worlds that a trace may try.
    replays: times that each golden trace is replayed.
    most: tasks kept of an environment.
  """

  samples: int = 30
  width: int = 2
  shortest: int = 3
  longest: int = 8
  user_turns: int = 1
  most_sources: int = 1
  attempts: int = 8
  replays: int = 2
  most: int = 10

  def __post_init__(self) -> None:
    for name in ('samples', 'width', 'shortest', 'user_turns', 'most_sources', 'attempts', 'replays', 'most'):
      value = getattr(self, name)
      require(value >= 1, f'{name} is {value}; at least 1 is needed')
    require(self.shortest <= self.longest, f'shortest is {self.shortest} and longest {self.longest}; no length fits')


@dataclasses.dataclass(frozen=True, slots=True)
class Drop:
  """Something that did not make it: at which stage (sample, trace, replay, duplicate, surplus), what, and why."""

  stage: str
  what: str
  reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Tasks:
  """What came of an environment.

  Attributes:
    tasks: kept.
    graph: acyclic; what was deleted for that is `removed`.
    dropped: what is missing, stage by stage.
    uncovered: tools that no kept task calls.
  """

  tasks: tuple[Task, ...]
  graph: ToolGraph
  removed: tuple[Removal, ...]
  dropped: tuple[Drop, ...]
  uncovered: tuple[str, ...]


def make_tasks(
  blueprint: Blueprint,
  open_world: Open,
  settings: TaskSettings,
  *,
  seed: int | str,
  write: Write | None = None,
  suggest: Suggest | None = None,
) -> Tasks:
  """The tasks of a blueprint that replay, distinct and at most `settings.most`, with an account of the others.

  Args:
    open_world: opens a fresh world of the blueprint.
    write: writes questions; the template does where it is None.
    suggest: more edges for the graph.
  """
  seen = watch(blueprint, open_world)
  graph = infer(blueprint.tools, seen=seen, suggest=suggest, most_sources=settings.most_sources)
  graph, removed = sanitise(graph)
  made, dropped = _traces(blueprint, graph, open_world, settings, seed, write)
  whole = []
  for task in made:
    fault = next((fault for _ in range(settings.replays) if (fault := replay_fault(task, open_world))), '')
    if fault:
      dropped.append(Drop('replay', task.id, fault))
    else:
      whole.append(task)
  unlike = distinct(whole)
  kept = at_most(unlike, settings.most)
  dropped += _missing('duplicate', whole, unlike, 'another task asks for the same')
  dropped += _missing(
    'surplus', unlike, kept, f'the environment has {settings.most} others that cover its tools better'
  )
  called = {call.name for task in kept for step in task.gold for call in step}
  uncovered = tuple(tool.name for tool in blueprint.tools if tool.name not in called)
  return Tasks(tuple(kept), graph, removed, tuple(dropped), uncovered)


def watch(blueprint: Blueprint, open_world: Open) -> list[Seen]:
  """The calls of the blueprint's tests that are answered, with their answers. A world that breaks ends its test."""
  found = []
  for test in blueprint.tests:
    try:
      with open_world() as world:
        for check in test.checks:
          answer = world.call(check.call)
          if answer.ok and not answer.cut:
            found.append(Seen(check.call, parsed(answer.content)))
    except EnvironmentFailure:
      continue
  return found


def _traces(
  blueprint: Blueprint,
  graph: ToolGraph,
  open_world: Open,
  settings: TaskSettings,
  seed: int | str,
  write: Write | None,
) -> tuple[list[Task], list[Drop]]:
  cover = sample_cover(
    graph,
    settings.samples,
    width=settings.width,
    shortest=settings.shortest,
    longest=settings.longest,
    seed=f'{seed}/{blueprint.name}',
  )
  made: list[Task] = []
  dropped = [Drop('sample', tool, reason) for tool, reason in cover.missed.items()]
  hopeless: collections.Counter[str] = collections.Counter()
  for number, sampled in enumerate(cover.samples):
    if any(hopeless[tool] >= 2 for tool in sampled.tools):
      dropped.append(Drop('trace', ' '.join(sampled.tools), 'one of its tools broke two traces before'))
      continue
    turns = random.Random(f'{seed}/{number}/turns').randint(1, min(settings.user_turns, len(sampled.stages)))
    tasks = invert(
      blueprint.name,
      blueprint.tools,
      graph,
      sampled.stages,
      open_world,
      seed=f'{seed}/{number}',
      write=write,
      turns=turns,
      attempts=settings.attempts,
    )
    if isinstance(tasks, Broken):
      hopeless[tasks.tool] += 1
      dropped.append(Drop('trace', tasks.tool, tasks.reason))
    else:
      made += tasks
  return made, dropped


def _missing(stage: str, before: list[Task], after: list[Task], reason: str) -> list[Drop]:
  kept = {task.id for task in after}
  return [Drop(stage, task.id, reason) for task in before if task.id not in kept]
