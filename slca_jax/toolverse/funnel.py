"""What is left after each stage of making environments and tasks, as a table."""

import dataclasses
import statistics
from collections.abc import Iterable, Sequence

from slca_jax.dialogue import Task
from slca_jax.toolverse.blueprint import Blueprint


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
  """What there is after a stage. `tasks` is None, and `steps` with it, before there can be any.

  Attributes:
    steps: mean number of golden steps of a task.
    calls: mean number of golden calls of a task.
  """

  stage: str
  environments: int
  tools: int
  tasks: int | None = None
  steps: float | None = None
  calls: float | None = None


def of_blueprints(stage: str, blueprints: Iterable[Blueprint]) -> Row:
  """The row of environments without tasks."""
  sizes = [len(blueprint.tools) for blueprint in blueprints]
  return Row(stage, len(sizes), sum(sizes))


def of_tasks(stage: str, tasks: Sequence[Task]) -> Row:
  """The row of tasks: the environments they live in, and the tools on offer there."""
  tools = {(task.blueprint, tool.name) for task in tasks for tool in task.tools}
  return Row(
    stage,
    len({task.blueprint for task in tasks}),
    len(tools),
    len(tasks),
    statistics.fmean(len(task.gold) for task in tasks) if tasks else None,
    statistics.fmean(sum(map(len, task.gold)) for task in tasks) if tasks else None,
  )


def markdown(rows: Iterable[Row]) -> str:
  """The rows as a Markdown table.

  ToolVerse, table 6.
  """
  lines = ['| stage | environments | tools | tasks | mean steps | mean calls |', '|---|--:|--:|--:|--:|--:|']
  for row in rows:
    cells = [row.stage, f'{row.environments:,}', f'{row.tools:,}', '–' if row.tasks is None else f'{row.tasks:,}']
    cells += ['–' if mean is None else f'{mean:.2f}' for mean in (row.steps, row.calls)]
    lines.append(f'| {" | ".join(cells)} |')
  return '\n'.join(lines) + '\n'
