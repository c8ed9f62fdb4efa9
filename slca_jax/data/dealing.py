"""Deals the usable records out to the files of the sides, so that a killed run goes on after its last whole chunk."""

import json
import pathlib
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import tqdm

from slca_jax.data.division import HELDOUT, NOWHERE, RL, SFT, Division
from slca_jax.data.entries import line_of
from slca_jax.data.folders import settle, write_json
from slca_jax.data.formats.row import dialogue_of
from slca_jax.data.ledger import Ledger, Table
from slca_jax.data.samples import Sample, demonstration_of, samples_of, task_in
from slca_jax.data.tasks import dialogue_from_json, dialogue_to_json, task_from_json, task_to_json
from slca_jax.dialogue import Dialogue
from slca_jax.errors import DataError

TRAIN_DIALOGUES, TRAIN_TASKS = 'dialogues_train.jsonl', 'tasks_train.jsonl'
HELDOUT_DIALOGUES, HELDOUT_TASKS = 'dialogues_heldout.jsonl', 'tasks_heldout.jsonl'
FILES = (TRAIN_DIALOGUES, TRAIN_TASKS, HELDOUT_DIALOGUES, HELDOUT_TASKS)
_JOURNAL = 'dealt.json'
_GOLD = b'"gold"'  # of a task's record; a dialogue may only happen to hold it


class Taken(NamedTuple):
  """What is taken of a row: see `Division` for `side` and `take`, `Entry` for `decomposed`."""

  side: int
  take: int
  decomposed: bool


def deal(ledger: Ledger, table: Table, division: Division, folder: pathlib.Path, *, first: int) -> dict[str, int]:
  """Writes FILES to the folder, or the rest of them, and returns how many lines each has.

  Args:
    first: which tool-calling turn of several is the first that becomes a sample.
  """
  journal = folder / _JOURNAL
  state = json.loads(journal.read_text('utf-8')) if journal.exists() else {'chunk': 0, 'files': {}}
  files = {name: _reopened(folder / name, state['files'].get(name, (0, 0))[0]) for name in FILES}
  lines = {name: state['files'].get(name, (0, 0))[1] for name in FILES}
  sizes = ledger.sizes()
  row = sum(sizes[: state['chunk']])
  try:
    with tqdm.tqdm(total=sum(sizes), initial=row, desc='write', unit=' rows', disable=None) as bar:
      for chunk in range(state['chunk'], len(sizes)):
        for line in ledger.lines(chunk):
          taken = Taken(int(division.side[row]), int(division.take[row]), bool(table.decomposed[row]))
          for name, written in lines_of(line, taken, first=first):
            files[name].write(written + b'\n')
            lines[name] += 1
          row += 1
        for file in files.values():
          settle(file)
        write_json(journal, {'chunk': chunk + 1, 'files': {name: (files[name].tell(), lines[name]) for name in FILES}})
        bar.update(sizes[chunk])
  finally:
    for file in files.values():
      file.close()
  return lines


def lines_of(line: bytes, taken: Taken, *, first: int) -> Iterator[tuple[str, bytes]]:
  """(file, line) for each record that a row gives to its side."""
  side, take, decomposed = taken
  if side == NOWHERE:
    return
  line = line.rstrip(b'\n')
  if side == SFT and not decomposed and _GOLD not in line:
    yield TRAIN_DIALOGUES, line  # a demonstration as it is
    return
  record = json.loads(line)
  if 'gold' in record:
    yield from _of_task(line, record, side)
    return
  tools = record['tools']  # as it stands: nothing here looks into it
  dialogue = dialogue_from_json({**record, 'tools': '[]'})
  samples = samples_of(dialogue, first=first)
  for sample in [samples[take]] if side == HELDOUT else samples[:take]:
    if side != RL:
      name = HELDOUT_DIALOGUES if side == HELDOUT else TRAIN_DIALOGUES
      yield name, _demonstration(line, record, dialogue, sample)
    if side != SFT:
      task = task_to_json(task_in(dialogue, sample))
      task['tools'] = tools
      task['meta'] = json.dumps({**json.loads(task['meta']), 'subset': record['subset']}, ensure_ascii=False)
      yield HELDOUT_TASKS if side == HELDOUT else TRAIN_TASKS, _traced(task, record)


def _demonstration(line: bytes, record: dict[str, Any], dialogue: Dialogue, sample: Sample) -> bytes:
  shown = demonstration_of(dialogue, sample)
  if shown is dialogue:
    return line
  return _traced({**dialogue_to_json(shown), 'tools': record['tools']}, record)


def _of_task(line: bytes, record: dict[str, Any], side: int) -> Iterator[tuple[str, bytes]]:
  if side != SFT:
    yield HELDOUT_TASKS if side == HELDOUT else TRAIN_TASKS, line
  if side != RL:
    try:
      shown = dialogue_to_json(dialogue_of(task_from_json(record)))
    except DataError:  # to train on, none such is drawn; a held-out one is asked, not shown
      return
    yield HELDOUT_DIALOGUES if side == HELDOUT else TRAIN_DIALOGUES, _traced(shown, record)


def _traced(made: dict[str, Any], record: dict[str, Any]) -> bytes:
  return line_of(made, record['dialogue_id'], record['subset'])


def _reopened(path: pathlib.Path, size: int) -> BinaryIO:
  """The file with its first `size` bytes; what lies beyond was written after the last whole chunk."""
  path.touch()
  file = open(path, 'r+b')  # noqa: SIM115 (the caller closes it)
  file.truncate(size)
  file.seek(size)
  return file
