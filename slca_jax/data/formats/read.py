"""Rows of a data set, whatever format it comes in, one at a time."""

import contextlib
import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any

from slca_jax.data.formats.files import Numbered, Part, Source, parts
from slca_jax.data.formats.known import ALIASES, FORMATS, Format, Record, detect
from slca_jax.data.formats.row import BadRow, Row, hashed, question_id
from slca_jax.data.formats.turns import Decoded
from slca_jax.dialogue import Dialogue, Task
from slca_jax.errors import DataError


def read(
  source: Source,
  *,
  format: str = 'auto',
  split: str = 'train',
  skip: int = 0,
  seen: set[int] | None = None,
  limit: int | None = None,
  strict: bool = True,
) -> Iterator[Row]:
  """The rows of a data set in order, one at a time: memory does not grow with the input, but for a hash of each id.

  Args:
    source: a file (.jsonl, .json, both also .gz, .parquet), a folder or a glob of them, `hf:owner/name` or
      `hf:owner/name:config` for a data set of the hub, or records in memory.
    format: a name of FORMATS or ALIASES, or 'auto': the format of each file's first row, which its others must share.
    split: which split of a hub data set; files are read whole.
    skip: pass over so many rows; of files, they are not decoded where their format does not need it.
    seen: hashes of the ids that rows had which were passed over, see `hashed`: another row with one of them is faulty.
      Those of all rows that are read are added.
    limit: at most so many rows, without those passed over.
    strict: raise at the first faulty row; otherwise hand it on with `fault` and `why`. A file that is cut or cannot be
      read at all is refused either way.

  Raises:
    DataError: names file, line and what was seen.
  """
  format = ALIASES.get(format, format)
  if format != 'auto' and format not in FORMATS:
    raise DataError(f'{format!r} is no format; known are auto, {", ".join([*FORMATS, *ALIASES])}')
  rows = _rows(source, format, split, skip, set() if seen is None else seen)
  return itertools.islice(_faultless(rows) if strict else rows, limit)


def _rows(source: Source, format: str, split: str, skip: int, seen: set[int]) -> Iterator[Row]:
  for part in parts(source, split=split):
    for row in _part(part, format, skip):
      if row is not None and not row.fault:
        row = _once(row, seen)
      if not skip and row is not None:
        yield row
      skip = max(0, skip - 1)


def _faultless(rows: Iterator[Row]) -> Iterator[Row]:
  for row in rows:
    if row.fault:
      raise DataError(row.why)
    yield row


def _part(part: Part, format: str, skip: int) -> Iterator[Row | None]:
  """The rows of a file, None for those that were passed over: at most `skip`, the first ones."""
  name = '' if format == 'auto' else format
  if skip and not name and part.path:
    name = _detected(part, among=skip)
  passed = skip if part.path and not (name and FORMATS[name].whole) else 0
  records = part.records(passed)
  for line, record in records:
    if record is None:
      yield None
      continue
    try:
      if isinstance(record, BadRow):
        raise record
      name = _agreed(record, name, forced=format != 'auto')
      if FORMATS[name].whole:
        record = _gathered(record, records, FORMATS[name])
      yield _row(FORMATS[name](record, part.path), part, line, name)
    except BadRow as error:
      yield _faulty(f'{part.stem}-{line}', part.name, line, name, error)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RecursionError) as error:
      if isinstance(error, DataError):
        raise
      why = f'this is no row of the format {name}: {type(error).__name__}: {error}'
      yield _faulty(f'{part.stem}-{line}', part.name, line, name, BadRow('record', why))


def _detected(part: Part, *, among: int) -> str:
  """The format of the first record that has one, among the first ones; '' if none has."""
  for _, record in itertools.islice(part.records(0), among):
    with contextlib.suppress(BadRow):
      if record is not None and not isinstance(record, BadRow):
        return detect(record)
  return ''


def _agreed(record: Record, name: str, *, forced: bool) -> str:
  """The format of the file, by this record if it is the first. Raises BadRow if the record is of another one."""
  if not name:
    return detect(record)
  if not forced and not FORMATS[name].fits(record):
    raise BadRow('mixed', f'the file began with rows of the format {name}, this one is of {detect(record)}')
  return name


def _gathered(first: Record, records: Iterator[Numbered], format: Format) -> Record:
  lines = [first]
  for _, record in records:
    if isinstance(record, BadRow):
      raise record
    if record is None or not format.fits(record):
      raise BadRow('mixed', 'the file holds one dialogue, a message a line, and something else')
    lines.append(record)
  return {'lines': lines}


def _row(decoded: Decoded, part: Part, line: int, name: str) -> Row:
  value, identity = decoded.value, decoded.id or f'{part.stem}-{line}'
  dialogue_id = decoded.dialogue_id or decoded.id
  views: dict[str, Any] = {'tools': value}
  if isinstance(value, Task | Dialogue):
    if not dialogue_id:
      dialogue_id = question_id(next((message.content for message in value.messages if message.role == 'user'), ''))
    views = {'task' if isinstance(value, Task) else 'dialogue': dataclasses.replace(value, id=identity)}
  if isinstance(value, Task):
    _check_names(value)
  return Row(identity, dialogue_id or identity, part.name, line, name, decoded.subset, meta=decoded.meta, **views)


def _check_names(task: Task) -> None:
  """Raises BadRow for tools that share a name. A demonstration may have them: its calls are not executed."""
  names = [tool.name for tool in task.tools]
  if len(set(names)) < len(names):
    double = next(name for name in names if names.count(name) > 1)
    raise BadRow('tools', f'two different tools are called {double!r}; a call could mean either')


def _once(row: Row, seen: set[int]) -> Row:
  """The row, faulty if its id was met before."""
  key = hashed(row.id)
  if key not in seen:
    seen.add(key)
    return row
  error = BadRow('duplicate_id', f'the id {row.id!r} was already given to another row; ids seed rollouts')
  return _faulty(row.id, row.source, row.line, row.format, error)


def _faulty(identity: str, source: str, line: int, name: str, error: BadRow) -> Row:
  return Row(identity, identity, source, line, name, fault=error.code, why=f'{source}:{line}: {error.code}: {error}')
