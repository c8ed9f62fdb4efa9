"""What the cache holds, as the host knows it: which prompt lies in a stem, who owns a slot, and what is missing.

A session's first prompt, all but its last id, lies in a stem that all sessions with the same prompt read; what follows
is the slot's own. Stems are filled by chunks alone, cut at multiples of the chunk from the row's start: any prompt with
these ids would compute the same bits. So a stem serves all prompts that it begins with, and one that starts alike takes
over whole chunks; sharing never shows in a result. What lies behind a stem stays with its session.

On several shards every device sees its own slots and stems only, so a session's slot and stem lie on one shard.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

NOBODY = -1  # an id that no token has
NONE = -1  # no stem


class Step(NamedTuple):
  """One prefill call, shard by shard, with indices that count from the shard's first stem and slot.

  Attributes:
    copies: of stems, as (source, target).
    prompts: at most one piece of a prompt per shard, as (stem, slot, shared positions, first position, ids).
    turns: pieces of what follows prompts, alike.
  """

  copies: list[list[tuple[int, int]]]
  prompts: list[list[tuple[int, int, int, int, np.ndarray]]]
  turns: list[list[tuple[int, int, int, int, np.ndarray]]]

  def __bool__(self):
    return any(map(any, self))


class Slots:
  """The table of slots and stems. It changes together with the device's cache, between two device calls.

  Attributes:
    ids_SX: ids of each slot's row, prompt and samples, known or still to be prefilled; NOBODY beyond.
    length_S: how many ids that is.
    stem_S, seat_S: where the first `shared_S` of them lie.
    own_S: how many ids behind the stem have keys and values in the cache.
    owner: the session each slot serves.
    slot_PR: the slot in each seat; NOBODY for none.
  """

  def __init__(
    self,
    slots: int,
    context: int,
    *,
    chunk: int,
    stems: int | None = None,
    siblings: int = 1,
    turn_chunk: int | None = None,
    shards: int = 1,
  ):
    stems = slots if stems is None else stems
    self.ids_SX, self._ids_PX = (np.full((rows, context), NOBODY, np.int32) for rows in (slots, stems))
    self.length_S, self.shared_S, self.own_S, self.seat_S = (np.zeros(slots, np.int64) for _ in range(4))
    self.stem_S = np.full(slots, NONE)
    self.owner: list[str | None] = [None] * slots
    self.slot_PR = np.full((stems, siblings), NOBODY)
    self._length_P, self._held_P, self._used_P = (np.zeros(stems, np.int64) for _ in range(3))
    self._shard_S, self._shard_P = np.arange(slots) * shards // slots, np.arange(stems) * shards // stems
    self._chunk, self._turn_chunk, self._shards = chunk, turn_chunk or chunk, shards
    self._used_S = np.zeros(slots, np.int64)
    self._clock = 0

  def of(self, session: str) -> int | None:
    """The slot that serves `session`."""
    return self.owner.index(session) if session in self.owner else None

  def claim(self, session: str, ids_X: np.ndarray) -> int | None:
    """A slot for a new session, with a seat at its prompt; None if there is no room for one of the two.

    A stem with the prompt goes first, then the free one with the longest usable prefix, then the longest unused one on
    the shard with the most idle slots.
    """
    idle_S = np.array([owner is None for owner in self.owner])
    idle_by_shard = np.bincount(self._shard_S[idle_S], minlength=self._shards)
    need = len(ids_X) - 1
    stem = self._stem_for(ids_X[:need], idle_by_shard) if need else NONE
    if not idle_S.any() or stem is None:
      return None
    if need:
      idle_S &= self._shard_S == self._shard_P[stem]
    # Sessions spread over the shards; among slots of a shard the longest unused comes first.
    slot = min(np.nonzero(idle_S)[0], key=lambda slot: (-idle_by_shard[self._shard_S[slot]], self._used_S[slot]))
    self.owner[slot], self.stem_S[slot], self.shared_S[slot] = session, stem, need
    self.length_S[slot] = self.own_S[slot] = 0
    if need:
      self.seat_S[slot] = np.nonzero(self.slot_PR[stem] == NOBODY)[0][0]
      self.slot_PR[stem, self.seat_S[slot]] = slot
    return int(slot)

  def _stem_for(self, ids_X, idle_by_shard):
    """A stem with a free seat and an idle slot beside it that holds `ids_X`, or is free to; None if there is none."""
    common_P = _common(self._ids_PX, ids_X)
    room_P = (self.slot_PR == NOBODY).any(1) & (idle_by_shard[self._shard_P] > 0)
    same = np.nonzero(room_P & (common_P >= len(ids_X)))[0]
    if len(same):
      return max(same, key=lambda stem: (self._held_P[stem], -stem))
    free = np.nonzero(room_P & (self.slot_PR == NOBODY).all(1))[0]
    if not len(free):
      return None
    usable_P = self._usable(np.minimum(common_P, self._held_P), len(ids_X))
    stem = max(free, key=lambda stem: (usable_P[stem], idle_by_shard[self._shard_P[stem]], -self._used_P[stem]))
    self._held_P[stem], self._length_P[stem] = usable_P[stem], len(ids_X)
    self._ids_PX[stem, : len(ids_X)], self._ids_PX[stem, len(ids_X) :] = ids_X, NOBODY
    return stem

  def release(self, session: str) -> None:
    """Makes the session's slot and seat idle. What its stem holds stays until another prompt needs the room."""
    slot = self.of(session)
    if slot is None:
      return
    self._clock += 1
    self.owner[slot], self._used_S[slot] = None, self._clock
    if self.stem_S[slot] != NONE:
      self._used_P[self.stem_S[slot]] = self._clock
      self.slot_PR[self.stem_S[slot], self.seat_S[slot]] = NOBODY
      self.stem_S[slot] = NONE

  def assign(self, slot: int, ids_X: np.ndarray) -> bool:
    """Sets the row's ids and keeps what fits them; False, and nothing done, where they begin unlike the slot's prompt.

    The last id is left for decoding.
    """
    shared, stem = int(self.shared_S[slot]), self.stem_S[slot]
    if len(ids_X) <= shared or (shared and _common(self._ids_PX[[stem]], ids_X[:shared])[0] < shared):
      return False
    common = int(_common(self.ids_SX[[slot]], ids_X[:-1])[0]) if self.length_S[slot] else 0
    self.own_S[slot] = min(max(common - shared, 0), self.own_S[slot])
    self.length_S[slot] = len(ids_X)
    self.ids_SX[slot, : len(ids_X)], self.ids_SX[slot, len(ids_X) :] = ids_X, NOBODY
    return True

  def extend(self, tokens_SM: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Appends sampled ids (negative: none) to the rows; returns (rows, steps, columns), from where to where."""
    rows, steps = np.nonzero(tokens_SM >= 0)
    columns = self.length_S[rows] + steps
    self.ids_SX[rows, columns] = tokens_SM[rows, steps]
    grew_S = np.bincount(rows, minlength=len(self.owner))
    self.length_S += grew_S
    self.own_S = np.where(grew_S > 0, self.length_S - 1 - self.shared_S, self.own_S)
    return rows, steps, columns

  def unfilled(self, slot: int) -> bool:
    """Whether ids before the slot's last one still lack keys and values."""
    return bool(self._stem_lacks(slot) or self.own_S[slot] < self.length_S[slot] - 1 - self.shared_S[slot])

  def _stem_lacks(self, slot):
    return self.stem_S[slot] != NONE and self._held_P[self.stem_S[slot]] < self.shared_S[slot]

  def forget(self) -> None:
    """Empties the cache, in name: the weights have changed."""
    self._held_P[:] = 0
    self.own_S[:] = 0

  def places(self) -> tuple[np.ndarray, np.ndarray]:
    """(place_S, slot_PR) as decoding wants them: counted from the shard's first, the shard's own number for none."""
    stems, seats = self.slot_PR.shape
    local_P = self.stem_S % (stems // self._shards)
    place_S = np.where(self.stem_S == NONE, stems // self._shards * seats, local_P * seats + self.seat_S)
    slots = len(self.owner) // self._shards
    return place_S, np.where(self.slot_PR == NOBODY, slots, self.slot_PR % slots).astype(np.int32)

  def step(self, running: Sequence[int], *, rows: int) -> Step:
    """The next prefill call for slots in order of arrival, and the table as it is after that call.

    A stem whose missing prefix another one of its shard holds gets a copy. One whose prefix an earlier arrival is about
    to compute waits for it, so that what prompts begin with is computed once however many ask at the same time.

    Args:
      rows: most pieces of turns.
    """
    step = Step(*([[] for _ in range(self._shards)] for _ in range(3)))
    ready, goal_P = [], self._held_P.copy()
    for stem in dict.fromkeys(int(self.stem_S[slot]) for slot in running if self._stem_lacks(slot)):
      shard = self._shard_P[stem]
      donor, waits = self._donor(stem, goal_P)
      goal_P[stem] = self._length_P[stem]
      if donor is not None:
        step.copies[shard].append((self._local(donor, self._shard_P), self._local(stem, self._shard_P)))
      if not waits and self._held_P[stem] < self._length_P[stem]:
        ready.append(stem)
    # Pieces come after all copies: what they write is nobody's prefix before the next step.
    held_P = self._held_P.copy()
    for stem in ready:
      if not step.prompts[self._shard_P[stem]]:
        step.prompts[self._shard_P[stem]].append(self._prompt_piece(stem))
    for slot in filter(self.unfilled, running):
      pieces, stem = step.turns[self._shard_S[slot]], self.stem_S[slot]
      # A stem may be longer than what this session shares of it, and whoever shares the rest may be elsewhere.
      if len(pieces) < rows // self._shards and (stem == NONE or held_P[stem] >= self.shared_S[slot]):
        pieces.append(self._turn_piece(slot))
    return step

  def _local(self, index, shard_X):
    """An index counted from the first one of its shard."""
    return int(index) % (len(shard_X) // self._shards)

  def _prompt_piece(self, stem):
    start = int(self._held_P[stem])
    end = self._held_P[stem] = min(start + self._chunk, int(self._length_P[stem]))
    return self._local(stem, self._shard_P), 0, self._ids_PX.shape[1], start, self._ids_PX[stem, start:end].copy()

  def _turn_piece(self, slot):
    shared = int(self.shared_S[slot])
    start = shared + int(self.own_S[slot])
    end = min(start + self._turn_chunk, int(self.length_S[slot]) - 1)
    self.own_S[slot] = end - shared
    stem = self._local(max(self.stem_S[slot], 0), self._shard_P)
    return stem, self._local(slot, self._shard_S), shared, start, self.ids_SX[slot, start:end].copy()

  def _donor(self, stem, goal_P):
    """(stem to copy from now, whether to wait for more), the copy already entered in the table."""
    need = int(self._length_P[stem])
    common_P = _common(self._ids_PX, self._ids_PX[stem, :need])
    common_P[self._shard_P != self._shard_P[stem]] = common_P[stem] = 0
    ready_P = self._usable(np.minimum(common_P, self._held_P), need)
    donor = int(ready_P.argmax())
    promised = self._usable(np.minimum(common_P, goal_P), need).max()
    if promised > max(ready_P[donor], self._held_P[stem]):
      return None, True
    if ready_P[donor] <= self._held_P[stem]:
      return None, False
    self._held_P[stem] = ready_P[donor]
    return donor, False

  def _usable(self, common, need):
    """The part of a shared prefix that ends where a chunk ends, or that is all a prompt needs."""
    return np.where(common >= need, need, common // self._chunk * self._chunk)


def _common(ids_RX, ids_X):
  """How many leading ids each row has in common with `ids_X`."""
  if not len(ids_X):
    return np.zeros(len(ids_RX), int)
  differs_RX = ids_RX[:, : len(ids_X)] != ids_X
  return np.where(differs_RX.any(1), differs_RX.argmax(1), len(ids_X))
