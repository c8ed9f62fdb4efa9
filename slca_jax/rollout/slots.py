"""What the cache's rows hold, as the host knows it: who owns a slot, which ids lie in it, whose prefix may be shared.

Ids whose keys and values came from prefill chunks alone, cut at multiples of the chunk from the row's start, are
*pure*: any other request with these ids would compute the same bits. Only pure prefixes go from one session to another,
and only whole chunks of them or all that the other needs, so sharing never shows in a result. What decoding wrote stays
with its session.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

NOBODY = -1  # an id that no token has


class Step(NamedTuple):
  """One prefill call: first copies as (source or -1 to clear, target, positions), then chunks as (slot, start, ids)."""

  copies: list[tuple[int, int, int]]
  chunks: list[tuple[int, int, np.ndarray]]


class Slots:
  """The table of slots. It changes together with the device's cache, between two device calls.

  Attributes:
    ids_SX: ids of each slot's row, prompt and samples, known or still to be prefilled; NOBODY beyond.
    length_S: how many ids that is.
    held_S: how many of them have keys and values in the cache.
    pure_S: how many of those are pure.
    owner: the session each slot serves.
  """

  def __init__(self, slots: int, context: int, *, chunk: int):
    self.ids_SX = np.full((slots, context), NOBODY, np.int32)
    self.length_S, self.held_S, self.pure_S = (np.zeros(slots, np.int64) for _ in range(3))
    self.owner: list[str | None] = [None] * slots
    self._chunk = chunk
    self._spoilt_S = np.zeros(slots, bool)
    self._used_S = np.zeros(slots, np.int64)
    self._clock = 0

  def of(self, session: str) -> int | None:
    """The slot that serves `session`."""
    return self.owner.index(session) if session in self.owner else None

  def claim(self, session: str, ids_X: np.ndarray) -> int | None:
    """An idle slot for a new session: the one with the longest usable prefix, else the longest unused; None if none."""
    idle = [slot for slot, owner in enumerate(self.owner) if owner is None]
    if not idle:
      return None
    usable_S = self._usable(self._common(ids_X[:-1]), self.pure_S, len(ids_X) - 1)
    slot = max(idle, key=lambda slot: (usable_S[slot], -self._used_S[slot]))
    self.owner[slot] = session
    # What decoding wrote belonged to the last session.
    self.held_S[slot] = self.pure_S[slot]
    return slot

  def release(self, session: str) -> None:
    """Makes the session's slot idle. What it holds stays until another session needs the room."""
    slot = self.of(session)
    if slot is not None:
      self._clock += 1
      self.owner[slot], self._used_S[slot] = None, self._clock

  def assign(self, slot: int, ids_X: np.ndarray) -> None:
    """Sets the row's ids and keeps the part of the cache that fits them; the last id is left for decoding."""
    need = len(ids_X) - 1
    held = int(min(self._common(ids_X[:-1])[slot], self.held_S[slot]))
    if held <= self.pure_S[slot]:
      held = int(self._usable(held, held, need))
      self.pure_S[slot] = held
    self.held_S[slot], self.length_S[slot] = held, len(ids_X)
    self.ids_SX[slot, : len(ids_X)], self.ids_SX[slot, len(ids_X) :] = ids_X, NOBODY

  def extend(self, tokens_SM: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Appends sampled ids (negative: none) to the rows; returns (rows, steps, columns), from where to where."""
    rows, steps = np.nonzero(tokens_SM >= 0)
    columns = self.length_S[rows] + steps
    self.ids_SX[rows, columns] = tokens_SM[rows, steps]
    count_S = np.bincount(rows, minlength=len(self.owner))
    self.length_S += count_S
    self.held_S[count_S > 0] = self.length_S[count_S > 0] - 1
    return rows, steps, columns

  def unfilled(self, slot: int) -> bool:
    """Whether ids before the slot's last one still lack keys and values."""
    return self.held_S[slot] < self.length_S[slot] - 1

  def forget(self) -> None:
    """Empties every row of the cache, in name: the weights have changed."""
    self.held_S[:] = self.pure_S[:] = 0

  def spoil(self, slots: Sequence[int]) -> None:
    """Marks rows that hold NaN: nothing in them is used again, and they are cleared before their next use."""
    self.held_S[slots] = self.pure_S[slots] = 0
    self._spoilt_S[slots] = True

  def step(self, running: Sequence[int], *, rows: int) -> Step:
    """The next prefill call for slots in order of arrival, and the table as it is after that call.

    A slot whose missing prefix another one holds gets a copy. One whose prefix an earlier arrival is about to compute
    waits for it, so that a prompt is prefilled once however many ask for it at the same time.
    """
    copies = [(-1, slot, self.ids_SX.shape[1]) for slot in running if self._spoilt_S[slot]]
    self._spoilt_S[list(running)] = False
    ready, goal_S = [], self.pure_S.copy()
    for slot in filter(self.unfilled, running):
      waits = False
      if self.held_S[slot] == self.pure_S[slot]:
        donor, waits = self._donor(slot, goal_S)
        goal_S[slot] = self.length_S[slot] - 1
        if donor is not None:
          copies.append((donor, slot, int(self.held_S[slot])))
      if not waits and self.unfilled(slot):
        ready.append(slot)
    # Chunks come after all copies: what they write is nobody's prefix before the next step.
    return Step(copies, [self._chunk_of(slot) for slot in ready[:rows]])

  def _chunk_of(self, slot):
    start = int(self.held_S[slot])
    end = min(start + self._chunk, int(self.length_S[slot]) - 1)
    if self.pure_S[slot] == start:
      self.pure_S[slot] = end
    self.held_S[slot] = end
    return slot, start, self.ids_SX[slot, start:end].copy()

  def _donor(self, slot, goal_S):
    """(slot to copy from now, whether to wait for more), the copy already entered in the table."""
    need = int(self.length_S[slot]) - 1
    common_S = self._common(self.ids_SX[slot, :need])
    common_S[slot] = 0
    ready_S = self._usable(common_S, self.pure_S, need)
    donor = int(ready_S.argmax())
    promised = self._usable(common_S, goal_S, need).max()
    if promised > max(ready_S[donor], self.held_S[slot]):
      return None, True
    if ready_S[donor] <= self.held_S[slot]:
      return None, False
    self.held_S[slot] = self.pure_S[slot] = ready_S[donor]
    return donor, False

  def _common(self, ids_X):
    """How many leading ids each row has in common with `ids_X`."""
    differs_SX = self.ids_SX[:, : len(ids_X)] != ids_X
    return (
      np.where(differs_SX.any(1), differs_SX.argmax(1), len(ids_X)) if len(ids_X) else np.zeros(len(self.owner), int)
    )

  def _usable(self, common, pure, need):
    """The part of a shared prefix that ends where a chunk ends, or that is all a request needs."""
    common = np.minimum(common, pure)
    return np.where(common >= need, need, common // self._chunk * self._chunk)
