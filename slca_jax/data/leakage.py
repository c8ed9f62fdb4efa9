"""Whether what is trained on gives away what is held out: read from the finished files, not from how they were made."""

import json
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from slca_jax.data.formats.row import hashed
from slca_jax.data.likeness import Neighbours, opening, shingles
from slca_jax.dialogue import Message
from slca_jax.errors import DataError

Path = str | os.PathLike[str]
_QUOTED = 5  # leaks that an error names
_LETTERS = 80  # of a question


def check_leakage(training: Sequence[Path], heldout: Sequence[Path], *, similarity: float = 0.8) -> None:
  """Passes if no dialogue is in two of the training files or both in training and held out, nor is a question.

  Files are those of tasks or dialogues. Two rows are of one dialogue if their `dialogue_id` is the same, or, without
  one, their id. Questions count as the same from a Jaccard index of `similarity` on, see `likeness`.

  Raises:
    DataError: names the first leaks.
  """
  leaks = list(_leaks(training, heldout, similarity))
  if leaks:
    more = f' and {len(leaks) - _QUOTED} more' if len(leaks) > _QUOTED else ''
    raise DataError(f'{len(leaks)} leaks between the sides: {"; ".join(leaks[:_QUOTED])}{more}')


def _leaks(training: Sequence[Path], heldout: Sequence[Path], similarity: float) -> Iterator[str]:
  ids, dialogues, questions = set[str](), set[str](), list[str]()
  for record in _records(heldout):
    ids.add(str(record['id']))
    dialogues.add(_dialogue(record))
    questions.append(_opening(record))
  known = Neighbours(map(shingles, questions), similarity=similarity)
  sides: list[np.ndarray] = []
  for path in training:
    met = array('Q')
    for record in _records([path]):
      met.append(hashed(_dialogue(record)))
      question = _opening(record)
      if str(record['id']) in ids or _dialogue(record) in dialogues:
        yield f'{path}: {record["id"]!r} is of the dialogue {_dialogue(record)!r}, which is held out'
      elif (near := known.nearest(shingles(question))) is not None:
        yield f'{path}: {record["id"]!r} asks {question[:_LETTERS]!r}, held out is {questions[near][:_LETTERS]!r}'
    sides.append(np.unique(np.frombuffer(met, np.uint64)))
    for other, before in zip(training, sides[:-1], strict=False):
      if common := len(np.intersect1d(sides[-1], before, assume_unique=True)):
        yield f'{common} dialogues are in both {other} and {path}'


def _records(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
  for path in paths:
    with open(path, 'rb') as file:
      for line in file:
        if line.strip():
          yield json.loads(line)


def _dialogue(record: dict[str, Any]) -> str:
  return str(record.get('dialogue_id') or record['id'])


def _opening(record: dict[str, Any]) -> str:
  return opening([Message(message['role'], message['content']) for message in record['messages']])
