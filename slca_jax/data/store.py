"""What a run made, on disk: records as JSON lines, arrays of packed rows through tensorstore; appended, read by index.

What an append wrote is there, whole, once it returns. What a killed one left behind is dropped when the store is opened
to write again; those who only read never see it.
"""

import dataclasses
import io
import json
import os
import pathlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from slca_jax.data.folders import settle, write_json
from slca_jax.data.tasks import task_from_json, task_to_json
from slca_jax.dialogue import Observation, Parsed, Scores, Status, Task, ToolCall, Trajectory, Turn
from slca_jax.errors import DataError

Folder = str | os.PathLike[str]


class Records:
  """JSON values in one file, a line each. Memory holds where each line begins."""

  def __init__(self, path: Folder, *, write: bool = True):
    """Opens the file, a new one if there is none.

    Args:
      write: to append; a torn end is then cut off. One process at a time may.

    Raises:
      DataError: there is no file to read, or a line is no JSON where it cannot be the torn end.
    """
    self._path, self._write = pathlib.Path(path), write
    if write:
      self._path.parent.mkdir(parents=True, exist_ok=True)
      self._path.touch()
    elif not self._path.exists():
      raise DataError(f'{path} does not exist')
    self._file = open(self._path, 'r+b' if write else 'rb')  # noqa: SIM115 (close() closes it)
    self._starts, self._end = self._scan()
    if write:
      self._file.truncate(self._end)

  def __len__(self) -> int:
    return len(self._starts)

  def __getitem__(self, index: int) -> Any:
    """The value of a line, from 0; negative ones count from the end."""
    at = range(len(self._starts))[index]
    end = self._starts[at + 1] if at + 1 < len(self._starts) else self._end
    self._file.seek(self._starts[at])
    return json.loads(self._file.read(end - self._starts[at]))

  def __iter__(self) -> Iterator[Any]:
    return (self[index] for index in range(len(self)))

  def append(self, values: Iterable[Any]) -> None:
    """Adds values; they are on disk when this returns."""
    if not self._write:
      raise DataError(f'{self._path} was opened to read; open it with write=True')
    lines = [json.dumps(value, ensure_ascii=False).encode() + b'\n' for value in values]
    self._file.seek(self._end)
    self._file.write(b''.join(lines))
    settle(self._file)
    for line in lines:
      self._starts.append(self._end)
      self._end += len(line)

  def keep(self, count: int) -> None:
    """Drops all but the first `count` values, for good."""
    if not self._write:
      raise DataError(f'{self._path} was opened to read; open it with write=True')
    if count < len(self._starts):
      self._end = self._starts[count]
      del self._starts[count:]
      self._file.truncate(self._end)
      settle(self._file)

  def close(self) -> None:
    """Closes the file."""
    self._file.close()

  def _scan(self) -> tuple[array, int]:
    starts, end, last = array('Q'), 0, b''
    self._file.seek(0, io.SEEK_SET)
    for line in self._file:
      if not line.endswith(b'\n'):
        break
      starts.append(end)
      end, last = end + len(line), line
    if starts and not _is_json(last):  # blocks of a file can reach the disk out of order
      end = starts.pop()
    return starts, end


class Trajectories:
  """Rollouts with their scores, in a folder: each task once, then one record per rollout."""

  def __init__(self, folder: Folder, *, write: bool = True):
    """Opens the folder; see `Records`."""
    path = pathlib.Path(folder)
    self._tasks = Records(path / 'tasks.jsonl', write=write)
    self._rollouts = Records(path / 'rollouts.jsonl', write=write)

  def __len__(self) -> int:
    return len(self._rollouts)

  def __getitem__(self, index: int) -> tuple[Trajectory, Scores]:
    """A rollout and its scores, equal to those that were appended."""
    record = self._rollouts[index]
    task = task_from_json(self._tasks[record['task']])
    return trajectory_from_json(record['trajectory'], task), Scores(
      **{**record['scores'], 'turns': tuple(record['scores']['turns'])}
    )

  def append(self, trajectories: Sequence[Trajectory], scores: Sequence[Scores]) -> None:
    """Adds rollouts; those of one task should come together, so that it is written once."""
    rows: dict[int, int] = {}
    tasks: list[Task] = []
    for trajectory in trajectories:
      if id(trajectory.task) not in rows:
        rows[id(trajectory.task)] = len(self._tasks) + len(tasks)
        tasks.append(trajectory.task)
    pairs = list(zip(trajectories, scores, strict=True))
    self._tasks.append(map(task_to_json, tasks))
    self._rollouts.append(
      {'task': rows[id(trajectory.task)], 'trajectory': trajectory_to_json(trajectory), 'scores': _scores(score)}
      for trajectory, score in pairs
    )

  def keep(self, count: int) -> None:
    """Drops all but the first `count` rollouts and their tasks, for good."""
    self._rollouts.keep(count)
    self._tasks.keep(1 + max((record['task'] for record in self._rollouts), default=-1))

  def close(self) -> None:
    """Closes the files."""
    self._tasks.close()
    self._rollouts.close()


class Arrays:
  """Rows of fixed-size arrays, such as packed tokens, in a folder: one zarr array per field, rows along axis 0."""

  def __init__(
    self, folder: Folder, fields: Mapping[str, tuple[str, tuple[int, ...]]] | None = None, *, rows: int = 64
  ):
    """Opens the folder to append if `fields` are given, else to read.

    Args:
      fields: dtype and shape of a row, as in {'tokens': ('int32', (4096,))}.
      rows: how many lie in one file; appending as many at once is fastest.

    Raises:
      DataError: there is nothing to read, or the folder holds other fields.
    """
    self._path, self._write = pathlib.Path(folder), fields is not None
    self._count_path = self._path / 'count.json'
    if not self._count_path.exists():
      if fields is None:
        raise DataError(f'{folder} holds no arrays: there is no count.json')
      self._path.mkdir(parents=True, exist_ok=True)
      write_json(self._count_path, {'rows': 0, 'chunk': rows, 'fields': _listed(fields)})
    told = json.loads(self._count_path.read_text('utf-8'))
    if fields is not None and told['fields'] != _listed(fields):
      raise DataError(f'{folder} holds the fields {told["fields"]}, not {_listed(fields)}; choose another folder')
    self._told = told
    self._arrays = {name: self._opened(name, kind, shape) for name, (kind, shape) in told['fields'].items()}

  def __len__(self) -> int:
    return self._told['rows']

  def __getitem__(self, index: int | slice) -> dict[str, np.ndarray]:
    """The fields of a row, or of a slice of rows [rows, …]."""
    rows = range(len(self))[index]  # the arrays themselves may be longer
    chosen = rows if isinstance(rows, int) else slice(rows.start, max(rows.start, rows.stop), rows.step)
    reads = {name: stored[chosen].read() for name, stored in self._arrays.items()}
    return {name: np.asarray(read.result()) for name, read in reads.items()}

  def append(self, arrays: Mapping[str, np.ndarray]) -> None:
    """Adds rows, each field [rows, …]; they are on disk when this returns.

    Raises:
      DataError: fields are missing, or have another shape or number of rows; nothing is written then.
    """
    if not self._write:
      raise DataError(f'{self._path} was opened to read; give the fields to append')
    start = len(self)
    count = self._checked(arrays)
    for name, stored in self._arrays.items():
      self._arrays[name] = stored.resize(exclusive_max=[start + count, *stored.shape[1:]]).result()
    for write in [self._arrays[name][start : start + count].write(values) for name, values in arrays.items()]:
      write.result()
    self._told = {**self._told, 'rows': start + count}
    write_json(self._count_path, self._told)  # the rows are there from here on

  def _checked(self, arrays: Mapping[str, np.ndarray]) -> int:
    wanted = {name: tuple(shape) for name, (_, shape) in self._told['fields'].items()}
    found = {name: values.shape[1:] for name, values in arrays.items()}
    if found != wanted or len({len(values) for values in arrays.values()}) != 1:
      raise DataError(f'rows have the shapes {found}; they must be {wanted}, the same number of each')
    return len(next(iter(arrays.values())))

  def _opened(self, name: str, kind: str, shape: Sequence[int]) -> Any:
    import tensorstore  # imported here: readers of data sets do without it

    rows = self._told['rows']
    metadata = {
      'shape': [rows, *shape],
      'data_type': kind,
      'chunk_grid': {'name': 'regular', 'configuration': {'chunk_shape': [self._told['chunk'], *shape]}},
      'codecs': [{'name': 'zstd', 'configuration': {'level': 3}}],
    }
    place = {'driver': 'zarr3', 'kvstore': {'driver': 'file', 'path': str((self._path / name).resolve())}}
    if not self._write:
      return tensorstore.open(place, read=True, open=True).result()
    if (self._path / name / 'zarr.json').exists():
      stored = tensorstore.open(place, read=True, write=True, open=True).result()
      return stored.resize(exclusive_max=[rows, *shape]).result()
    return tensorstore.open({**place, 'metadata': metadata}, read=True, write=True, create=True).result()


def trajectory_to_json(trajectory: Trajectory) -> dict[str, Any]:
  """The record of a rollout without its task; `trajectory_from_json` reads it back equal."""
  return {
    'group': trajectory.group,
    'index': trajectory.index,
    'status': trajectory.status.value,
    'error': trajectory.error,
    'prompt': trajectory.prompt,
    'turns': [_turn_to_json(turn) for turn in trajectory.turns],
  }


def _turn_to_json(turn: Turn) -> dict[str, Any]:
  # `dataclasses.asdict` would copy every token.
  parsed = turn.parsed
  return {
    'text': turn.text,
    'parsed': {
      'blocks': [[{'name': call.name, 'arguments': call.arguments} for call in block] for block in parsed.blocks],
      'errors': parsed.errors,
      'opens': parsed.opens,
      'closes': parsed.closes,
    },
    'observations': [dataclasses.asdict(seen) for seen in turn.observations],
    'tokens': turn.tokens,
    'logprobs': turn.logprobs,
    'reply': turn.reply,
    'versions': turn.versions,
  }


def _scores(scores: Scores) -> dict[str, Any]:
  return {field.name: getattr(scores, field.name) for field in dataclasses.fields(scores)}


def trajectory_from_json(record: Mapping[str, Any], task: Task) -> Trajectory:
  """The rollout of a record.

  Raises:
    KeyError, TypeError, ValueError: a field is missing or is not what it should be.
  """
  turns = tuple(_turn(turn) for turn in record['turns'])
  status = Status(record['status'])
  return Trajectory(task, record['group'], record['index'], tuple(record['prompt']), turns, status, record['error'])


def _turn(record: Mapping[str, Any]) -> Turn:
  parsed = record['parsed']
  blocks = tuple(tuple(ToolCall(**call) for call in block) for block in parsed['blocks'])
  return Turn(
    tokens=tuple(record['tokens']),
    logprobs=tuple(record['logprobs']),
    text=record['text'],
    parsed=Parsed(blocks, tuple(parsed['errors']), parsed['opens'], parsed['closes']),
    observations=tuple(Observation(**seen) for seen in record['observations']),
    reply=tuple(record['reply']),
    versions=tuple((version, count) for version, count in record['versions']),
  )


def _listed(fields: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, list[Any]]:
  return {name: [kind, list(shape)] for name, (kind, shape) in fields.items()}


def _is_json(line: bytes) -> bool:
  try:
    json.loads(line)
  except ValueError:
    return False
  return True
