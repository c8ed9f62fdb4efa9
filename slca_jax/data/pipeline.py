"""A data set in four phases: filter, hold out, decompose, split. Held in memory are a few numbers of each row.

Reading comes first and keeps what can be used as our own records, chunk by chunk, with the numbers that decide. These
say where every row goes; then the records are dealt out. A run that was killed goes on where it was with the same
command; the files appear once all of them are whole and passed the check for leakage.
"""

import hashlib
import itertools
import json
import logging
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import tqdm

from slca_jax.config import as_dict, require
from slca_jax.data import funnel
from slca_jax.data.dealing import FILES, HELDOUT_TASKS, TRAIN_DIALOGUES, TRAIN_TASKS, deal
from slca_jax.data.division import Division, divide
from slca_jax.data.entries import entry_of
from slca_jax.data.filters import Fault
from slca_jax.data.folders import claimed, write_json, write_whole
from slca_jax.data.formats.files import parts
from slca_jax.data.formats.read import read
from slca_jax.data.formats.row import Row, hashed
from slca_jax.data.leakage import check_leakage
from slca_jax.data.ledger import Counts, Entry, Ledger, Table
from slca_jax.data.settings import Preparation
from slca_jax.errors import ConfigError, DataError

REPORT, TABLE = 'report.json', 'report.md'
_WORK = '.preparing'  # of the output folder: what a killed run left, and the next one goes on with
_BYTES = 16 << 20  # of records, after which a chunk ends early
_QUOTED = 5


def prepare(settings: Preparation) -> funnel.Report:
  """Writes the files of a data set's sides and the report of its funnel, which it returns.

  In `output`: `dialogues_train.jsonl` (SFT), `tasks_train.jsonl` (RL), `tasks_heldout.jsonl` and
  `dialogues_heldout.jsonl` (the same samples, those of them that can be shown), `report.json`, `report.md`. Each line
  names its `dialogue_id` and `subset`. If all of it is there already, nothing is done.

  Raises:
    ConfigError: input or output is missing, or output holds what other settings made.
    DataError: the input cannot be read, has too little for what is asked, or gives held-out questions away.

  SLCA-GRPO (arXiv:2609.29050), C.1.
  """
  require(bool(settings.input), 'input is empty; name a file, a folder or glob of files, or hf:owner/name')
  require(bool(settings.output), 'output is empty; name a folder')
  folder = pathlib.Path(settings.output)
  with claimed(folder):
    identity = _identity(settings)
    work = folder / _WORK
    _refuse_other(folder, identity, resumed=(work / REPORT).exists())
    if (folder / REPORT).exists():
      shutil.rmtree(work, ignore_errors=True)  # a run that was killed at its very end left it
      return json.loads((folder / REPORT).read_text('utf-8'))
    _open(work, identity)
    if not (work / REPORT).exists():
      write_json(work / REPORT, _prepare(settings, work) | {'identity': identity, 'settings': as_dict(settings)})
    return _publish(work, folder)


def _prepare(settings: Preparation, work: pathlib.Path) -> funnel.Report:
  ledger = Ledger(work / 'rows')
  _read(settings, ledger)
  counts, table = funnel.merged(ledger.counts(), examples=settings.examples), ledger.table()
  if not len(table.row):
    raise DataError(f'not one row of {settings.input} can be used: {funnel.reasons(counts)}')
  division = divide(table, ledger.shingles, settings)
  _quote(counts, ledger, table, division, settings.examples)
  report = funnel.report_of(counts, table, division)
  _require_training(report, settings)
  if settings.near_duplicates == 'fail':
    _refuse_near(ledger, table, division)
  lines = deal(ledger, table, division, work, first=settings.decompose_from)
  training = [work / name for name in (TRAIN_DIALOGUES, TRAIN_TASKS)]
  check_leakage(training, [work / HELDOUT_TASKS], similarity=settings.similarity)
  return report | {'files': lines}


def _require_training(report: funnel.Report, settings: Preparation) -> None:
  """Raises DataError if something was to be trained on and nothing is left for it."""
  if not (settings.sft.size or settings.rl.size) or any(sum(side.values()) for side in _training(report)):
    return
  held = report['heldout']
  raise DataError(
    f'nothing is left to train on: of {report["filter"]["kept"]} rows {held["single"] + held["decomposed"]} are held '
    f'out, {held["set_aside"]} are of their dialogues, {held["near_heldout"]} open with nearly their questions and '
    f'{report["decompose"]["no_later_tool_turn"]} have too few turns that call tools; lower heldout.size, raise '
    'similarity, or set decompose_from to 1'
  )


def _training(report: funnel.Report) -> list[dict[str, int]]:
  return [report['split'][side] for side in ('sft', 'rl')]


def _read(settings: Preparation, ledger: Ledger) -> None:
  """Reads and filters, from where a killed run was."""
  if ledger.complete:
    return
  done = sum(counts.read for counts in ledger.counts())
  limit = settings.limit or None
  options: dict[str, Any] = {'format': settings.format, 'split': settings.split, 'limit': limit and limit - done}
  rows = read(settings.input, skip=done, seen=set(ledger.ids()), strict=False, **options)
  with tqdm.tqdm(total=limit, initial=done, desc='read', unit=' rows', disable=None) as bar:
    for number in itertools.count(ledger.chunks):
      entries, counts, ids = _chunk(rows, settings)
      if not counts.read:
        break
      ledger.write(number, entries, counts, ids)
      bar.update(counts.read)
  ledger.finish()


def _chunk(rows: Iterator[Row], settings: Preparation) -> tuple[list[Entry], Counts, list[int]]:
  """(what is kept of the next rows, what happened to them, the hashes of the ids they were given)."""
  entries, counts, ids, size = list[Entry](), Counts(), list[int](), 0
  while counts.read < settings.chunk and size < _BYTES and (row := next(rows, None)) is not None:
    counts.read += 1
    key, entry = hashed(row.id), entry_of(row, settings)
    if not row.fault:
      ids.append(key)
    if isinstance(entry, Fault):
      counts.drop(entry.code, key, row.id, entry.why, most=settings.examples)
    else:
      entries.append(entry)
      size += len(entry.line)
  return entries, counts, ids


def _quote(counts: Counts, ledger: Ledger, table: Table, division: Division, most: int) -> None:
  """Adds examples of the rows that are dropped because of others."""
  reasons = {
    'duplicate': (division.duplicate, 'another row says the same'),
    'near_heldout': (division.leaking, 'its dialogue opens with nearly a held-out question'),
    'no_later_tool_turn': (~division.duplicate & (table.samples == 0), 'too few of its turns call tools'),
  }
  for code, (marked, why) in reasons.items():
    rows = np.flatnonzero(marked)
    rows = rows[np.argsort(table.row[rows])][:most]
    told = _records(ledger, set(rows.tolist()))
    if told:
      counts.add(code, [(int(table.row[row]), record['id'], why) for row, record in told.items()], most=most)


def _refuse_near(ledger: Ledger, table: Table, division: Division) -> None:
  """Raises DataError if a row that could be trained on opens with nearly a held-out question."""
  near = np.flatnonzero(division.near >= 0)
  if not len(near):
    return
  named = near[np.argsort(table.row[near])][:_QUOTED]
  told = _records(ledger, {*named.tolist(), *division.near[named].tolist()})
  pairs = [
    f'{told[row]["id"]!r} and {told[held]["id"]!r}' for row, held in zip(named, division.near[named], strict=True)
  ]
  raise DataError(
    f'{len(near)} rows open with nearly a held-out question, such as {"; ".join(pairs)}; '
    'near_duplicates=drop keeps them out of the training files'
  )


def _records(ledger: Ledger, wanted: set[int]) -> dict[int, dict[str, Any]]:
  out, row = {}, 0
  for chunk, size in enumerate(ledger.sizes()):
    here = {index for index in wanted if row <= index < row + size}
    if here:
      out |= {row + i: json.loads(line) for i, line in enumerate(ledger.lines(chunk)) if row + i in here}
    row += size
  return out


def _identity(settings: Preparation) -> str:
  """What was asked of which files: equal for a run and its resumption."""
  asked = {key: value for key, value in as_dict(settings).items() if key not in ('output', 'chunk')}
  files = []
  for part in parts(settings.input, split=settings.split):
    told = part.path.stat() if part.path else None
    files.append((part.name, told and told.st_size, told and told.st_mtime_ns))
  return hashlib.sha256(json.dumps([asked, files], sort_keys=True).encode()).hexdigest()


def _refuse_other(folder: pathlib.Path, identity: str, *, resumed: bool) -> None:
  report = folder / REPORT
  if report.exists():
    found = json.loads(report.read_text('utf-8'))
    if found.get('identity') == identity:
      return
    before, now = found.get('settings'), 'other settings or files'
    raise ConfigError(f'output {folder} holds what {now} made ({_shown(before)}); choose another one or remove it')
  there = [name for name in FILES if (folder / name).exists()]
  if there and not resumed:
    raise ConfigError(f'output {folder} already holds {", ".join(there)}; choose another one')


def _shown(settings: Any) -> str:
  keys = ('input', 'seed', 'limit')
  return ', '.join(f'{key}={settings.get(key)!r}' for key in keys) if isinstance(settings, dict) else 'unknown'


def _open(work: pathlib.Path, identity: str) -> None:
  """The folder of unfinished work; what other settings or files left there is of no use."""
  stamp = work / 'identity'
  if work.exists() and (not stamp.exists() or stamp.read_text('utf-8') != identity):
    logging.warning('%s was left by a run with other settings or files; it is begun anew', work)
    shutil.rmtree(work)
  work.mkdir(exist_ok=True)
  write_whole(stamp, identity.encode())


def _publish(work: pathlib.Path, folder: pathlib.Path) -> funnel.Report:
  report = json.loads((work / REPORT).read_text('utf-8'))
  for name in FILES:
    if (work / name).exists():  # a killed run may have moved some
      os.replace(work / name, folder / name)
  write_whole(folder / TABLE, funnel.markdown(report).encode())
  os.replace(work / REPORT, folder / REPORT)
  shutil.rmtree(work)
  return report
