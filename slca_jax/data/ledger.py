"""What is remembered of each row while a data set is prepared: a few numbers, never its text.

Rows are met in chunks. Of each chunk the usable rows lie as JSON lines in one file, and their numbers in another that
appears last and whole: where it is, the chunk is done.
"""

import dataclasses
import io
import json
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from slca_jax.data.folders import write_whole

_KEPT = {
  'row': np.uint64,
  'dialogue': np.uint64,
  'content': np.uint64,
  'subset': np.uint32,
  'decomposed': np.bool_,
  'shown': np.bool_,
  'samples': np.uint16,
  'words': np.uint16,
}


class Entry(NamedTuple):
  """The numbers of one usable row.

  Attributes:
    row, dialogue, content: hashes of its id, of its dialogue's id, and of all but the ids.
    subset: the part of the source it belongs to.
    decomposed: its samples have earlier turns as context.
    shown: demonstrations can be made of it.
    samples: how many samples it gives; 0 if it is of several turns and too few of them call tools.
    shingles: of its opening, see `likeness`.
    line: its record, one line of JSON.
  """

  row: int
  dialogue: int
  content: int
  subset: str
  decomposed: bool
  shown: bool
  samples: int
  shingles: np.ndarray
  line: bytes


@dataclasses.dataclass(slots=True)
class Counts:
  """What happened to the rows of a chunk: how many were read, why how many were dropped, and examples of these."""

  read: int = 0
  dropped: dict[str, int] = dataclasses.field(default_factory=dict)
  examples: dict[str, list[tuple[int, str, str]]] = dataclasses.field(default_factory=dict)

  def drop(self, code: str, key: int, identity: str, why: str, *, most: int) -> None:
    """Counts a dropped row. Quoted are those with the smallest keys, so which ones does not depend on the order."""
    self.dropped[code] = self.dropped.get(code, 0) + 1
    self.add(code, [(key, identity, why)], most=most)

  def add(self, code: str, examples: Iterable[tuple[int, str, str]], *, most: int) -> None:
    """Takes more examples in and keeps `most` of them."""
    known = self.examples.get(code, [])
    self.examples[code] = sorted([*known, *examples])[:most]


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
  """The numbers of all usable rows, in the order of the input; see `Entry`. `subset` indexes the sorted `names`."""

  row: np.ndarray
  dialogue: np.ndarray
  content: np.ndarray
  subset: np.ndarray
  decomposed: np.ndarray
  shown: np.ndarray
  samples: np.ndarray
  names: tuple[str, ...]


class Ledger:
  """The chunks of a preparation in a folder."""

  def __init__(self, folder: pathlib.Path):
    self._folder = folder
    folder.mkdir(parents=True, exist_ok=True)

  @property
  def chunks(self) -> int:
    """How many chunks are done."""
    done = 0
    while self._numbers(done).exists():
      done += 1
    return done

  @property
  def complete(self) -> bool:
    """Whether there are no more chunks to come."""
    return (self._folder / 'complete').exists()

  def finish(self) -> None:
    """Says that all chunks are there."""
    (self._folder / 'complete').touch()

  def write(self, number: int, entries: list[Entry], counts: Counts, ids: list[int]) -> None:
    """Adds a chunk; it is there whole or not at all. `ids` are hashes of all ids that its rows gave away."""
    write_whole(self._lines(number), b''.join(entry.line + b'\n' for entry in entries))
    names = sorted({entry.subset for entry in entries})
    places = {name: place for place, name in enumerate(names)}
    columns: dict[str, Any] = {
      'row': [entry.row for entry in entries],
      'dialogue': [entry.dialogue for entry in entries],
      'content': [entry.content for entry in entries],
      'subset': [places[entry.subset] for entry in entries],
      'decomposed': [entry.decomposed for entry in entries],
      'shown': [entry.shown for entry in entries],
      'samples': [entry.samples for entry in entries],
      'words': [len(entry.shingles) for entry in entries],
    }
    arrays: dict[str, Any] = {name: np.array(values, _KEPT[name]) for name, values in columns.items()}
    arrays['shingles'] = np.concatenate([np.zeros(0, np.uint64), *(entry.shingles for entry in entries)])
    arrays['ids'] = np.array(ids, np.uint64)
    arrays['told'] = np.frombuffer(json.dumps([names, dataclasses.asdict(counts)]).encode(), np.uint8)
    content = io.BytesIO()
    np.savez(content, **arrays)
    write_whole(self._numbers(number), content.getvalue())

  def counts(self) -> Iterator[Counts]:
    """What happened in each chunk, in order."""
    for number in range(self.chunks):
      with np.load(self._numbers(number)) as arrays:
        yield Counts(**json.loads(arrays['told'].tobytes())[1])

  def ids(self) -> Iterator[int]:
    """The hashes of all ids that rows gave away, those of dropped rows included."""
    for number in range(self.chunks):
      with np.load(self._numbers(number)) as arrays:
        yield from arrays['ids'].tolist()

  def table(self) -> Table:
    """The numbers of all rows."""
    parts: dict[str, list[np.ndarray]] = {name: [np.zeros(0, kind)] for name, kind in _KEPT.items() if name != 'words'}
    tables: list[list[str]] = []
    for number in range(self.chunks):
      with np.load(self._numbers(number)) as arrays:
        tables.append(json.loads(arrays['told'].tobytes())[0])
        for name, column in parts.items():
          column.append(arrays[name])
    names = sorted({name for table in tables for name in table})
    order = {name: place for place, name in enumerate(names)}
    for index, table in enumerate(tables, 1):
      places = np.array([order[name] for name in table], _KEPT['subset'])
      parts['subset'][index] = places[parts['subset'][index]] if len(table) else parts['subset'][index]
    return Table(**{name: np.concatenate(column) for name, column in parts.items()}, names=tuple(names))

  def shingles(self) -> Iterator[np.ndarray]:
    """The shingles of each row's opening, in order."""
    for number in range(self.chunks):
      with np.load(self._numbers(number)) as arrays:
        yield from np.split(arrays['shingles'], np.cumsum(arrays['words'])[:-1]) if len(arrays['words']) else ()

  def lines(self, number: int) -> Iterator[bytes]:
    """The records of a chunk, each with its line break."""
    with open(self._lines(number), 'rb') as file:
      yield from file

  def sizes(self) -> list[int]:
    """How many usable rows each chunk has."""
    out = []
    for number in range(self.chunks):
      with np.load(self._numbers(number)) as arrays:
        out.append(len(arrays['row']))
    return out

  def _lines(self, number: int) -> pathlib.Path:
    return self._folder / f'{number:06d}.jsonl'

  def _numbers(self, number: int) -> pathlib.Path:
    return self._folder / f'{number:06d}.npz'
