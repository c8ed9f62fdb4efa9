"""Rollouts of an evaluation and what was measured of each, on disk: one folder per file of tasks and way to decode."""

import collections
import json
import pathlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from slca_jax.config import require
from slca_jax.data.folders import digest_of, write_json
from slca_jax.data.store import Records, Trajectories
from slca_jax.dialogue import Scores, Status, Trajectory

Record = dict[str, Any]  # place, index, task, status, error, measures
_NAMES = 'tasks.json'


class Results:
  """One folder: `rollouts.jsonl` with `tasks.jsonl` (`Trajectories`), and `results.jsonl` with a line for each rollout.

  A rollout is there once both have it: what a killed process wrote to the first alone is dropped.
  """

  def __init__(self, folder: pathlib.Path):
    self._records = Records(folder / 'results.jsonl')
    self._trajectories = Trajectories(folder)
    self._trajectories.keep(len(self._records))

  def missing(self, tasks: int, rollouts: int, *, redo_failed: bool = False) -> dict[int, list[int]]:
    """Which rollouts are still to be made, by the place of their task."""
    wanted = Status.FAILED.value if redo_failed else None
    done = {(one['place'], one['index']) for one in latest(self._records) if one['status'] != wanted}
    left = {place: [i for i in range(rollouts) if (place, i) not in done] for place in range(tasks)}
    return {place: indices for place, indices in left.items() if indices}

  def append(self, pairs: Sequence[tuple[Trajectory, Scores]], measured: Sequence[Mapping[str, float | None]]) -> None:
    """Adds the rollouts of one task; the trajectories' groups are the places."""
    self._trajectories.append([trajectory for trajectory, _ in pairs], [scores for _, scores in pairs])
    self._records.append(
      {
        'place': trajectory.group,
        'index': trajectory.index,
        'task': trajectory.task.id,
        'status': trajectory.status.value,
        'error': trajectory.error,
        'measures': dict(one),
      }
      for (trajectory, _), one in zip(pairs, measured, strict=True)
    )

  def close(self) -> None:
    """Closes the files."""
    self._records.close()
    self._trajectories.close()


def latest(records: Iterable[Record]) -> list[Record]:
  """The records by place and index; of a rollout that was made again, the last one."""
  newest = {(record['place'], record['index']): record for record in records}
  return [newest[key] for key in sorted(newest)]


def read(folder: pathlib.Path, name: str, mode: str, *, limit: int = 0, rollouts: int = 0) -> list[Record]:
  """The records of one file of tasks and one way to decode.

  Args:
    limit: most tasks, 0 for all.
    rollouts: most of each task, 0 for all.
  """
  records = Records(folder / name / mode / 'results.jsonl', write=False)
  try:
    return [
      one
      for one in latest(records)
      if (not limit or one['place'] < limit) and (not rollouts or one['index'] < rollouts)
    ]
  finally:
    records.close()


def known(folder: pathlib.Path) -> Iterator[tuple[str, str]]:
  """(name of the file of tasks, way to decode) of all results in a folder.

  Raises:
    ConfigError: it holds none.
  """
  require((folder / _NAMES).is_file(), f'{str(folder)!r} holds no evaluation; name the output of launch/evaluate.py')
  for name in digests(folder):
    for path in sorted((folder / name).glob('*/results.jsonl')):
      yield name, path.parent.name


def digests(folder: pathlib.Path) -> dict[str, str]:
  """The SHA-256 of each file of tasks that was evaluated here, by its name."""
  path = folder / _NAMES
  return json.loads(path.read_text('utf-8')) if path.exists() else {}


def remember_tasks(folder: pathlib.Path, files: Mapping[str, pathlib.Path]) -> None:
  """Keeps which tasks go by which name.

  Raises:
    ConfigError: a name stood for other tasks before.
  """
  before, now = digests(folder), {name: digest_of(path) for name, path in files.items()}
  for name, path in files.items():
    require(
      before.get(name, now[name]) == now[name],
      f'{str(folder)!r} holds results of other tasks by the name {name!r}; choose another output, or NAME={path}',
    )
  write_json(folder / _NAMES, before | now)


def by_task(records: Iterable[Record], measure: str) -> dict[str, float | None]:
  """The mean of a measure over each task's rollouts that have it, None where none has, by the task's id."""
  values: dict[str, list[float]] = collections.defaultdict(list)
  for record in records:
    value = record['measures'].get(measure)
    values[record['task']] += [] if value is None else [value]
  return {task: sum(known) / len(known) if known else None for task, known in values.items()}


def measures_in(records: Collection[Record]) -> list[str]:
  """The names of all measures that any rollout has."""
  return list(dict.fromkeys(name for record in records for name in record['measures']))
