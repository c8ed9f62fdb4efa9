"""Which demonstrations share a row: planned from their sizes alone, so any step's rows are known without the others'.

A plan is a function of the sizes and the seed. A run that goes on from step 1,000 plans what a run from 0 planned, and
encodes nothing of the steps before.
"""

import bisect
import math
import random
from collections.abc import Iterator, Sequence

from slca_jax.errors import DataError


def best_fit(sizes: Sequence[int], length: int) -> list[list[int]]:
  """Rows of indices whose sizes sum to at most `length`: largest first, each into the fullest row that has room.

  Raises:
    DataError: a size exceeds the length.
  """
  rows: list[list[int]] = []
  rooms: list[tuple[int, int]] = []  # (room, row), ascending
  for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
    size = sizes[index]
    if size > length:
      raise DataError(f'item {index} has {size} tokens and fits no row of {length}')
    place = bisect.bisect_left(rooms, (size, -1))
    room, row = rooms.pop(place) if place < len(rooms) else (length, len(rows))
    if row == len(rows):
      rows.append([])
    rows[row].append(index)
    bisect.insort(rooms, (room - size, row))
  return rows


class RowPlan:
  """An endless order of full rows. Every epoch holds each item once; a batch may reach over the border of two epochs.

  An epoch's items are shuffled and packed in windows, and the rows of a window are shuffled: best fit sorts by size,
  and batches would go from long dialogues to short ones.
  """

  def __init__(self, sizes: Sequence[int], *, length: int, rows: int, window: int, seed: int):
    """Plans rows of at most `length` tokens, `rows` of them per batch. Items of size 0 are left out.

    Raises:
      DataError: nothing is left, or a size exceeds the length.
    """
    self._items = [index for index, size in enumerate(sizes) if size]
    if not self._items:
      raise DataError(
        f'not one of {len(sizes)} dialogues can be rendered and fits a row of {length} tokens, the last of '
        'batching.lengths; there is nothing to train on'
      )
    self._sizes, self._length, self._rows, self._window, self._seed = sizes, length, rows, window, seed
    self._starts = [0]  # row at which each epoch known so far begins
    self._epoch, self._packed = -1, list[list[int]]()

  @property
  def most_per_batch(self) -> int:
    """No batch holds more items: as many of the smallest as a row takes, in every row."""
    count = total = 0
    for size in sorted(self._sizes[index] for index in self._items):
      total += size
      if total > self._length:
        break
      count += 1
    return self._rows * count

  def steps(self, epochs: int) -> int:
    """Batches that show every item `epochs` times."""
    return math.ceil(self._start(epochs) / self._rows)

  def __call__(self, step: int) -> list[list[int]]:
    """The rows of batch `step`, counted from 0, each a list of indices into the sizes."""
    return [self._row(step * self._rows + i) for i in range(self._rows)]

  def _row(self, number: int) -> list[int]:
    while number >= self._starts[-1]:
      self._start(len(self._starts))
    epoch = bisect.bisect_right(self._starts, number) - 1
    return self._rows_of(epoch)[number - self._starts[epoch]]

  def _start(self, epoch: int) -> int:
    while len(self._starts) <= epoch:
      self._starts.append(self._starts[-1] + len(self._rows_of(len(self._starts) - 1)))
    return self._starts[epoch]

  def _rows_of(self, epoch: int) -> list[list[int]]:
    if epoch != self._epoch:
      self._packed, self._epoch = list(self._pack(epoch)), epoch
    return self._packed

  def _pack(self, epoch: int) -> Iterator[list[int]]:
    rng = random.Random(f'{self._seed}/epoch/{epoch}')
    order = list(self._items)
    rng.shuffle(order)
    for start in range(0, len(order), self._window):
      window = order[start : start + self._window]
      rows = best_fit([self._sizes[index] for index in window], self._length)
      rng.shuffle(rows)
      yield from ([window[place] for place in row] for row in rows)
