"""Which rows are held out, and which go to SFT and RL: whole dialogues, evenly over subsets, by hash and seed alone."""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from slca_jax.data.formats.row import hashed
from slca_jax.data.ledger import Table
from slca_jax.data.likeness import Neighbours
from slca_jax.data.settings import AS_THEY_COME, REST, Portion, Preparation
from slca_jax.errors import DataError

NOWHERE, HELDOUT, SFT, RL = range(4)


@dataclasses.dataclass(frozen=True, slots=True)
class Division:
  """Where each row goes.

  Attributes:
    side: NOWHERE, HELDOUT, SFT or RL.
    take: how many of the row's samples are taken, the first ones; of a held-out row, which one, from 0.
    duplicate: another row says the same.
    near: the index of a held-out row whose opening is nearly the same, -1 if there is none.
    leaking: such a row, or another one of its dialogue.
  """

  side: np.ndarray
  take: np.ndarray
  duplicate: np.ndarray
  near: np.ndarray
  leaking: np.ndarray


class Divider:
  """Draws portions of rows. Dialogues are drawn by the hash of (seed, dialogue), so the input's order has no say."""

  def __init__(self, table: Table, settings: Preparation):
    self._table, self._settings = table, settings
    _, self._unit = np.unique(table.dialogue, return_inverse=True)
    key = scattered(table.dialogue, settings.seed)
    self._order = np.lexsort((table.row, table.dialogue, key))  # rows of a dialogue stand together
    self._key = key
    self._stratum = self._strata()

  def duplicates(self) -> np.ndarray:
    """Marks of rows that say what another one says; the one with the smallest hash of its id stays."""
    table = self._table
    order = np.lexsort((table.row, table.content))
    same = np.zeros(len(order), np.bool_)
    same[order[1:]] = table.content[order[1:]] == table.content[order[:-1]]
    return same

  def heldout(self, usable: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(marks of held-out rows, which of its samples each gives): one row of each drawn dialogue stands for it."""
    first = self._first_rows(usable)
    drawn = self.draw(first, first.astype(np.int64), self._settings.heldout, 'heldout') > 0
    samples = np.maximum(1, self._table.samples).astype(np.uint64)
    return drawn, (self._key // np.uint64(7) % samples).astype(np.int64)

  def whole(self, marked: np.ndarray) -> np.ndarray:
    """The marks, spread to all rows of the dialogues of which one is marked."""
    return np.bincount(self._unit, weights=marked, minlength=1)[self._unit] > 0

  def draw(
    self, usable: np.ndarray, weights: np.ndarray, portion: Portion, name: str, *, base: int | None = None
  ) -> np.ndarray:
    """How many samples [rows] of each usable row are drawn, dialogue by dialogue.

    Args:
      weights: how many samples each row has.
      base: what a share is a share of; by default all usable samples.

    Raises:
      DataError: there are not as many as the portion asks for.
    """
    weights = np.where(usable, weights, 0)
    totals = np.bincount(self._stratum, weights=weights, minlength=self._strata_count).astype(np.int64)
    wanted = self._wanted(totals, portion, name, int(totals.sum()) if base is None else base)
    order = self._order[np.argsort(self._stratum[self._order], kind='stable')]
    before = np.cumsum(weights[order]) - weights[order]
    starts = np.concatenate([[0], np.cumsum(totals)[:-1]])[self._stratum[order]]
    taken = np.zeros(len(order), np.int64)
    taken[order] = np.clip(wanted[self._stratum[order]] - (before - starts), 0, weights[order])
    return taken

  def _wanted(self, totals: np.ndarray, portion: Portion, name: str, base: int) -> np.ndarray:
    """Samples to draw from each stratum; even ones are of single turns, odd ones decomposed."""
    have = int(totals.sum())
    size = have if portion.size == REST else portion.size
    size = int(size) if portion.size == REST or size >= 1 else int(size * base + 1e-9)
    if portion.decomposed == AS_THEY_COME:
      _require(size, have, f'{name}.size', 'samples')
      return allotted(size, totals)
    many = round(size * portion.decomposed)
    wanted = np.zeros_like(totals)
    for kind, count, what in ((0, size - many, 'samples of one turn'), (1, many, 'decomposed samples')):
      _require(count, int(totals[kind::2].sum()), f'{name}.size {portion.size:g}', what)
      wanted[kind::2] = allotted(count, totals[kind::2])
    return wanted

  def _strata(self) -> np.ndarray:
    """The stratum of each row: its dialogue's subset and whether that is decomposed, as its first row has them."""
    table = self._table
    own = table.subset.astype(np.int64) * 2 + table.decomposed
    first = np.full(self._unit.max(initial=-1) + 1, -1, np.int64)
    first[self._unit[self._order[::-1]]] = own[self._order[::-1]]  # the last to be written is the first in order
    self._strata_count = 2 * max(1, len(table.names))
    return first[self._unit]

  def _first_rows(self, usable: np.ndarray) -> np.ndarray:
    order = self._order[usable[self._order]]
    first = np.ones(len(order), np.bool_)
    first[1:] = self._unit[order[1:]] != self._unit[order[:-1]]
    out = np.zeros(len(usable), np.bool_)
    out[order[first]] = True
    return out


def divide(table: Table, shingles: Callable[[], Iterator[np.ndarray]], settings: Preparation) -> Division:
  """Where each row goes: duplicates nowhere, then the held-out ones, then, of what is like none of those, SFT and RL.

  Args:
    shingles: gives those of every row's opening, in order; called twice.

  Raises:
    DataError: a portion asks for more than there is.
  """
  divider = Divider(table, settings)
  duplicate = divider.duplicates() if settings.filters.duplicates else np.zeros(len(table.row), np.bool_)
  usable = ~duplicate & (table.samples > 0)
  heldout, which = divider.heldout(usable)
  open_ = usable & ~divider.whole(heldout)
  near = nearly_heldout(heldout, open_, shingles, settings.similarity)
  leaking = open_ & divider.whole(near >= 0)
  open_ &= ~leaking
  side = np.where(heldout, HELDOUT, NOWHERE).astype(np.uint8)
  take = np.where(heldout, which, 0)
  sides = {'sft': (SFT, settings.sft, open_ & ~divider.whole(open_ & ~table.shown)), 'rl': (RL, settings.rl, open_)}
  bases = {name: int(table.samples[usable].sum()) for name, (_, _, usable) in sides.items()}
  for name in sorted(sides, key=lambda name: (sides[name][1].size == REST, sides[name][1].decomposed == AS_THEY_COME)):
    code, portion, usable = sides[name]
    free = usable & ~divider.whole(side > HELDOUT)
    drawn = divider.draw(free, table.samples, portion, name, base=bases[name])
    side[drawn > 0], take[drawn > 0] = code, drawn[drawn > 0]
  return Division(side, take, duplicate, near, leaking)


def nearly_heldout(
  heldout: np.ndarray, asked: np.ndarray, shingles: Callable[[], Iterator[np.ndarray]], similarity: float
) -> np.ndarray:
  """For each row that is `asked` about, the index of a held-out row with nearly the same opening, -1 without one."""
  rows = np.flatnonzero(heldout)
  known = Neighbours((one.copy() for one, held in zip(shingles(), heldout, strict=True) if held), similarity=similarity)
  out = np.full(len(heldout), -1, np.int64)
  for index, one in enumerate(shingles()):
    found = known.nearest(one) if asked[index] else None
    if found is not None:
      out[index] = rows[found]
  return out


def allotted(size: int, totals: np.ndarray) -> np.ndarray:
  """`size` divided in proportion to `totals`, in whole numbers: largest remainders get what is left, none too much."""
  have = int(totals.sum())
  if not have:
    return np.zeros_like(totals)
  exact = [divmod(size * int(total), have) for total in totals]
  out = np.array([whole for whole, _ in exact], totals.dtype)
  for index in sorted(range(len(exact)), key=lambda i: (-exact[i][1], i))[: size - int(out.sum())]:
    out[index] += 1
  return out


def scattered(hashes: np.ndarray, seed: int) -> np.ndarray:
  """Another hash of each hash, for the seed."""
  odd = np.uint64(hashed(f'seed/{seed}') | 1)
  mixed = (hashes ^ (hashes >> np.uint64(31))) * odd
  mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
  return mixed ^ (mixed >> np.uint64(32))


def _require(wanted: int, have: int, name: str, what: str) -> None:
  if wanted > have:
    raise DataError(f'{name} asks for {wanted:,} {what}; there are {have:,}. Lower it, or give a share below 1')
