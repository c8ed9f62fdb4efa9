"""From a row that was read to what is kept of it: its record and the numbers that decide where it goes."""

import dataclasses
import json
from typing import Any

from slca_jax.data.filters import Fault, fault_of
from slca_jax.data.formats.row import Row, dialogue_of, hashed
from slca_jax.data.ledger import Entry
from slca_jax.data.likeness import opening, shingles
from slca_jax.data.samples import has_history, prompt_length, samples_of, teaches
from slca_jax.data.settings import Preparation
from slca_jax.data.tasks import dialogue_to_json, task_to_json
from slca_jax.dialogue import Dialogue, Task
from slca_jax.errors import DataError

_ENCODER = json.JSONEncoder(ensure_ascii=False)  # `json.dumps` would make one for each text


def entry_of(row: Row, settings: Preparation) -> Entry | Fault:
  """What is kept of a row, or why nothing is."""
  if fault := fault_of(row, settings.filters):
    return fault
  try:
    if row.task is not None:
      return _task_entry(row, row.task, settings)
    if row.dialogue is not None:
      return _dialogue_entry(row, row.dialogue, settings)
  except (TypeError, UnicodeEncodeError, RecursionError) as error:  # parquet holds times and bytes as well
    return Fault('unwritable', f'the row cannot be written as JSON: {type(error).__name__}: {error}')
  raise RuntimeError(f'row {row.id!r} is neither task nor dialogue')  # the filters refuse it


def line_of(record: dict[str, Any], dialogue_id: str, subset: str) -> bytes:
  """The record as a line of JSON that also says which dialogue and subset it comes from."""
  return _headed(record['id'], dialogue_id, subset, _body(record))


def _dialogue_entry(row: Row, dialogue: Dialogue, settings: Preparation) -> Entry | Fault:
  context = prompt_length(dialogue)
  if not context or dialogue.messages[context - 1].role not in ('user', 'tool'):
    return Fault('no_question', 'the assistant does not answer the user or a tool')
  if not teaches(dialogue.messages[context:]):
    return Fault('nothing_learned', 'every message of the assistant is marked as context')
  samples = samples_of(dialogue, first=settings.decompose_from)
  several = not samples or samples[0].decomposed
  return _entry(row, dialogue_to_json(dialogue), dialogue, several, True, len(samples))


def _task_entry(row: Row, task: Task, settings: Preparation) -> Entry:
  record = task_to_json(dataclasses.replace(task, meta={**task.meta, 'subset': row.subset}))
  shown = _can_be_shown(task) and bool(task.answer or not settings.filters.answers)
  return _entry(row, record, task, has_history(task.messages), shown, 1)


def _entry(
  row: Row, record: dict[str, Any], value: Task | Dialogue, decomposed: bool, shown: bool, samples: int
) -> Entry:
  body = _body(record)
  return Entry(
    row=hashed(row.id),
    dialogue=hashed(row.dialogue_id),
    content=hashed(body),
    subset=row.subset,
    decomposed=decomposed,
    shown=shown,
    samples=samples,
    shingles=shingles(opening(value.messages)),
    line=_headed(row.id, row.dialogue_id, row.subset, body),
  )


def _can_be_shown(task: Task) -> bool:
  try:
    return bool(dialogue_of(task))
  except DataError:
    return False


def _body(record: dict[str, Any]) -> str:
  return _ENCODER.encode({key: value for key, value in record.items() if key != 'id'})


def _headed(identity: str, dialogue_id: str, subset: str, body: str) -> bytes:
  head = _ENCODER.encode({'id': identity, 'dialogue_id': dialogue_id, 'subset': subset})
  return f'{head[:-1]}, {body[1:]}'.encode()
