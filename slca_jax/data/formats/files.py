"""Records of files and of the hub, one at a time: JSON lines, JSON, parquet, each opened by what it holds."""

import collections
import functools
import glob
import gzip
import os
import pathlib
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, BinaryIO, NamedTuple

from slca_jax.data.formats.elements import Elements
from slca_jax.data.formats.row import BadRow
from slca_jax.data.formats.texts import load, shown
from slca_jax.data.formats.values import plain
from slca_jax.errors import DataError

Source = str | os.PathLike[str] | Iterable[Mapping[str, Any]]
HUB = 'hf:'
_ENDINGS = ('.jsonl', '.json', '.parquet', '.jsonl.gz', '.json.gz')
_HEAD = 4096  # bytes by which a file's kind is told
_BATCH = 16  # rows of parquet that are decoded at once; one can hold many megabytes
_UNREADABLE = (OSError, EOFError, zlib.error)


Numbered = tuple[int, dict[str, Any] | BadRow | None]


class Part(NamedTuple):
  """One file: `stem` names it within the source, `records` opens it, passing over as many records as one says.

  Records come with their lines (in files without lines: their numbers), from 1. A BadRow stands for what could not be
  read as a record, None for one that is passed over; most files need not be decoded for that.
  """

  name: str
  stem: str
  path: pathlib.Path | None
  records: Callable[[int], Iterator[Numbered]]


def parts(source: Source, *, split: str) -> Iterator[Part]:
  """The files of a source in the order of their names; each is opened when its records are asked for.

  Raises:
    DataError: there is none, or (while records are read) one is cut or cannot be read.
  """
  if not isinstance(source, str | os.PathLike):
    yield Part('records', 'row', None, lambda passed: _passing(map(plain, source), passed))
    return
  text = os.fspath(source)
  if text.startswith(HUB):
    hub = text.removeprefix(HUB)
    yield Part(text, hub, None, lambda passed: _passing(_hub(hub, split), passed))
    return
  for path, stem in _files(text):
    yield Part(str(path), stem, path, functools.partial(_records, path))


def _files(text: str) -> Iterator[tuple[pathlib.Path, str]]:
  path = pathlib.Path(text)
  if path.is_file():
    yield path, _stem(path.name)
    return
  if path.is_dir():
    found, root = [p for p in path.rglob('*') if p.name.endswith(_ENDINGS)], path
  else:
    found = [pathlib.Path(name) for name in glob.glob(text, recursive=True)]
    root = pathlib.Path(os.path.commonpath([p.parent for p in found])) if found else path
  inner = [p for p in sorted(found) if p.is_file() and not _aside(p.relative_to(root))]
  if not inner:
    raise DataError(f'{text} names no file that ends in {", ".join(_ENDINGS)}')
  names = [file.relative_to(root).as_posix() for file in inner]
  stems = collections.Counter(map(_stem, names))
  for file, name in zip(inner, names, strict=True):  # rows are numbered by it: a.json and a.jsonl are two files
    yield file, _stem(name) if stems[_stem(name)] == 1 else name


def _aside(path: pathlib.PurePath) -> bool:
  """Hidden files, and answers that lie beside the questions of a benchmark."""
  return any(part.startswith('.') or part == 'possible_answer' for part in path.parts)


def _stem(name: str) -> str:
  ending = next((ending for ending in sorted(_ENDINGS, key=len, reverse=True) if name.endswith(ending)), '')
  return name.removesuffix(ending)


def _records(path: pathlib.Path, passed: int) -> Iterator[Numbered]:
  try:
    with open(path, 'rb') as file:
      head = file.read(_HEAD)
    if head.startswith(b'PAR1') or path.suffix == '.parquet':
      yield from _parquet(path, passed)
      return
    zipped = head.startswith(b'\x1f\x8b')
    if b'\0' in head and not zipped:  # no JSON in UTF-8 has one
      raise DataError(
        f'{path} begins with {shown(head[:8])}, which is no text in UTF-8; it must be JSON lines or JSON, both also '
        'gzipped, or parquet'
      )
    with gzip.open(path) if zipped else open(path, 'rb') as file:
      yield from _text(path, file, passed)  # type: ignore[arg-type]
  except _UNREADABLE as error:
    raise DataError(f'{path} cannot be read to its end, it may be cut: {type(error).__name__}: {error}') from error


def _text(path: pathlib.Path, file: BinaryIO, passed: int) -> Iterator[Numbered]:
  """JSON lines, a list of records, or one record that is spread over lines."""
  first = file.readline()
  while first and not first.strip(b'\xef\xbb\xbf \t\r\n'):
    first = file.readline()
  head = first.removeprefix(b'\xef\xbb\xbf').lstrip()
  file.seek(0)
  if head.startswith(b'['):
    yield from _passing((_checked(value) for _, value in Elements(path, file)), passed)
  elif head.strip() == b'{' or ('.json' in path.suffixes and not _complete(head)):
    yield from _passing([_whole(path, file)], passed)
  else:
    yield from _lines(path, file, passed)


def _lines(path: pathlib.Path, file: BinaryIO, passed: int) -> Iterator[Numbered]:
  for number, line in enumerate(file, 1):  # as bytes, '\n' alone ends a line: JSON strings may hold U+2028
    text = line.removeprefix(b'\xef\xbb\xbf') if number == 1 else line
    if not text.strip():
      continue
    if passed:
      passed -= 1
      yield number, None
      continue
    try:
      yield number, _record(load(text))
    except BadRow as error:
      if not line.endswith(b'\n'):
        raise DataError(f'{path}:{number}: the file ends inside this line, it is cut; {error}') from error
      yield number, error


def _passing(records: Iterable[dict[str, Any] | BadRow], passed: int) -> Iterator[Numbered]:
  for number, record in enumerate(records, 1):
    yield number, None if number <= passed else record


def _checked(value: Any) -> dict[str, Any] | BadRow:
  try:
    return _record(value)
  except BadRow as error:
    return error


def _complete(line: bytes) -> bool:
  try:
    load(line)
  except BadRow:
    return False
  return True


def _whole(path: pathlib.Path, file: BinaryIO) -> dict[str, Any] | BadRow:
  try:
    return _record(load(file.read()))
  except BadRow as error:
    raise DataError(f'{path} is neither one JSON object nor JSON lines, or it is cut: {error}') from error


def _record(value: Any) -> dict[str, Any]:
  if not isinstance(value, dict):
    raise BadRow('record', f'{shown(value)} is no record; it must be an object')
  return value


def _parquet(path: pathlib.Path, passed: int) -> Iterator[Numbered]:
  """Groups of rows that are passed over as a whole are not read."""
  import pyarrow
  import pyarrow.parquet as parquet

  try:
    with parquet.ParquetFile(path) as file:
      sizes = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
      done = 0
      while sizes and done + sizes[0] <= passed:
        done += sizes.pop(0)
      yield from ((number, None) for number in range(1, done + 1))
      groups = list(range(file.num_row_groups - len(sizes), file.num_row_groups))
      for batch in file.iter_batches(_BATCH, row_groups=groups):
        skipped = min(max(0, passed - done), batch.num_rows)
        yield from ((number, None) for number in range(done + 1, done + 1 + skipped))
        yield from enumerate(unfilled_rows(batch.slice(skipped)), done + 1 + skipped)
        done += batch.num_rows
  except (pyarrow.ArrowException, ValueError, *_UNREADABLE) as error:  # ValueError: bytes that are no text
    raise DataError(f'{path} is no whole parquet file, it may be cut: {error}') from error


def unfilled_rows(batch: Any) -> Iterator[dict[str, Any]]:
  """The records of an Arrow batch. In structs, a null is the filling of a key that the record never had: left out."""
  types = {field.name: field.type for field in batch.schema}
  for record in batch.to_pylist(maps_as_pydicts='strict'):
    yield {key: _unfilled(value, types[key]) for key, value in record.items() if value is not None}


def _unfilled(value: Any, kind: Any) -> Any:
  from pyarrow import types

  if isinstance(value, dict) and types.is_struct(kind):
    return {key: _unfilled(item, kind.field(key).type) for key, item in value.items() if item is not None}
  if isinstance(value, list) and hasattr(kind, 'value_type') and not types.is_map(kind):
    return [_unfilled(item, kind.value_type) for item in value]
  return value


def _hub(name: str, split: str) -> Iterator[dict[str, Any]]:
  """The rows of a data set of the hub, streamed; its structs are Arrow's, so their nulls are left out too."""
  try:
    import datasets  # pyright: ignore[reportMissingImports]
  except ImportError as error:
    raise DataError(f'{HUB}{name} needs the package datasets; run pip install datasets, or give a file') from error
  path, _, config = name.partition(':')
  try:
    rows = datasets.load_dataset(path, config or None, split=split, streaming=True)
    for batch in rows.with_format('arrow').iter(1):
      yield next(unfilled_rows(batch))
  except (OSError, ValueError, RuntimeError) as error:
    if isinstance(error, DataError):
      raise
    raise DataError(f'{HUB}{name} (split {split}) cannot be read: {type(error).__name__}: {error}') from error
