"""From a blueprint to the tasks in it: its graph, samples of it, traces, and the gates that need no teacher.

report = await run_tests(blueprint)
made = make_tasks(blueprint, TaskSettings())
made.tasks            # each replayed `replays` times with equal outputs and database
made.graph, made.removed, made.left_out
"""

import dataclasses
import functools
from collections.abc import Mapping

from slca_jax.config import require
from slca_jax.dialogue import Task
from slca_jax.envs.sandbox import Sandbox
from slca_jax.toolverse.blueprint import Blueprint
from slca_jax.toolverse.fields import schema_leaves
from slca_jax.toolverse.filters import at_most, distinct, replay_fault
from slca_jax.toolverse.graph import Removal, ToolGraph, sanitise
from slca_jax.toolverse.inference import Seen, Suggest, infer
from slca_jax.toolverse.inversion import Broken, Open, invert
from slca_jax.toolverse.sampling import Sampled, sample_cover
from slca_jax.toolverse.wording import Write
from slca_jax.toolverse.world import Trial


@dataclasses.dataclass(frozen=True, slots=True)
class TaskSettings:
  """How tasks are made.

  Attributes:
    samples: parts of the graph that are drawn; some break, some are dropped.
    most: tasks kept of one environment.
    width: tools of one stage.
    shortest, longest: calls of a task.
    chains: share of the samples that begin at the end of a long chain of values handed on, where the graph has one, for
      wide graphs in which the tool used least, with which the others begin, rarely stands there.
    turns: how often the user speaks.
    replays: how often a task must replay.
    seed: of every draw.
  """

  samples: int = 20
  most: int = 10
  width: int = 2
  shortest: int = 3
  longest: int = 8
  chains: float = 0.0
  turns: int = 1
  replays: int = 2
  seed: int = 0

  def __post_init__(self):
    for name in ('samples', 'most', 'width', 'shortest', 'turns', 'replays'):
      require(getattr(self, name) >= 1, f'{name} is {getattr(self, name)}; it is at least 1')
    require(0 <= self.chains <= 1, f'chains is {self.chains}; it is a share and lies in [0, 1]')
    require(self.longest >= self.shortest, f'longest is {self.longest}; it is at least shortest = {self.shortest}')


@dataclasses.dataclass(frozen=True)
class MadeTasks:
  """The tasks of an environment and what became of the rest.

  Attributes:
    graph: acyclic.
    removed: edges that were deleted to make it so.
    traced: tasks that were made, before any gate.
    tasks: those that replay, without repetitions, at most as many as asked for.
    unreached: tools in no sample, with the reason.
    broken: samples whose trace could not be made.
    unlike: tasks that did not replay, with the reason.
  """

  blueprint: Blueprint
  graph: ToolGraph
  removed: tuple[Removal, ...]
  traced: tuple[Task, ...]
  tasks: tuple[Task, ...]
  unreached: Mapping[str, str]
  broken: tuple[Broken, ...]
  unlike: Mapping[str, str]

  @property
  def depth(self) -> int:
    """The longest chain, over all tasks, of calls each of which takes what the one before it answered."""
    return max((task.meta['depth'] for task in self.tasks), default=0)


def make_tasks(
  blueprint: Blueprint,
  settings: TaskSettings,
  *,
  sandbox: Sandbox | None = None,
  suggest: Suggest | None = None,
  write: Write | None = None,
) -> MadeTasks:
  """The tasks of a tested environment. An event loop that it is called in stands still.

  Args:
    suggest: proposes further edges of the graph.
    write: words the questions of the tasks that are kept; a template does where it is None.
  """
  open_world = functools.partial(Trial, blueprint, sandbox=sandbox)
  # Equal values are a guess, which is taken only where a schema does not tell what a tool answers.
  told = all(any(schema_leaves(tool.returns)) for tool in blueprint.tools)
  seen = () if told else seen_in_tests(blueprint, sandbox=sandbox)
  graph, removed = sanitise(infer(blueprint.tools, seen=seen, suggest=suggest))
  cover = sample_cover(
    graph, settings.samples, width=settings.width, shortest=settings.shortest, longest=settings.longest,
    seed=f'{settings.seed}/{blueprint.name}', chains=settings.chains,
  )  # fmt: skip
  made = [
    _tasks_of(sample, number, graph, blueprint, settings, open_world) for number, sample in enumerate(cover.samples)
  ]
  broken = tuple(one for one in made if isinstance(one, Broken))
  sample_of = {task.id: number for number, one in enumerate(made) if not isinstance(one, Broken) for task in one}
  traced = tuple(task for one in made if not isinstance(one, Broken) for task in one)
  unlike = {task.id: fault for task in traced if (fault := _unlike(task, open_world, settings.replays))}
  kept = at_most(distinct(task for task in traced if task.id not in unlike), settings.most)
  if write is not None:  # only now: most of what is drawn is dropped, and a trace comes out the same again
    numbers = dict.fromkeys(sample_of[task.id] for task in kept)
    again = [_tasks_of(cover.samples[n], n, graph, blueprint, settings, open_world, write) for n in numbers]
    worded = {task.id: task for one in again if not isinstance(one, Broken) for task in one}
    kept = distinct(_same_trace(task, worded.get(task.id)) for task in kept)
  return MadeTasks(blueprint, graph, removed, traced, tuple(kept), cover.missed, broken, unlike)


def _tasks_of(
  sample: Sampled,
  number: int,
  graph: ToolGraph,
  blueprint: Blueprint,
  settings: TaskSettings,
  open_world: Open,
  write: Write | None = None,
) -> tuple[Task, ...] | Broken:
  return invert(
    blueprint.name, blueprint.tools, graph, sample.stages, open_world, seed=f'{settings.seed}/{number}',
    turns=min(settings.turns, len(sample.stages)), write=write,
  )  # fmt: skip


def _same_trace(task: Task, worded: Task | None) -> Task:
  """The task in other words, if it is the same otherwise."""
  same = worded is not None and (worded.gold, worded.meta['outputs']) == (task.gold, task.meta['outputs'])
  return worded if worded is not None and same else task


def seen_in_tests(blueprint: Blueprint, *, sandbox: Sandbox | None = None) -> list[Seen]:
  """The accepted calls of the blueprint's tests and what they answered; they show which values travel."""
  seen = []
  for test in blueprint.tests:
    with Trial(blueprint, sandbox=sandbox) as trial:
      for check in test.checks:
        try:
          seen.append(Seen(check.call, trial.value(check.call)))
        except ValueError:
          continue
  return seen


def _unlike(task: Task, open_world: Open, replays: int) -> str:
  return next((fault for _ in range(replays) if (fault := replay_fault(task, open_world))), '')
