import random

import numpy as np
import pytest

from slca_jax.rollout.slots import Slots

CHUNK = 4


def ids(*numbers):
  return np.array(numbers, np.int32)


def begin(slots, session, ids_X):
  slot = slots.of(session)
  slot = slots.claim(session, ids_X) if slot is None else slot
  assert slot is not None and slots.assign(slot, ids_X)
  return slot


def drain(slots, running, *, rows=8):
  """All prefill steps that are left, on one shard: copies, pieces of prompts and of turns, with ids as lists."""
  steps = []
  while step := slots.step(running, rows=rows):
    [copies], prompts, turns = step.copies, *([p for shard in part for p in shard] for part in step[1:])
    steps.append(
      (
        copies,
        [(stem, start, ids_X.tolist()) for stem, _, _, start, ids_X in prompts],
        [(slot, shared, start, ids_X.tolist()) for _, slot, shared, start, ids_X in turns],
      )
    )
  return steps


def sample(slots, slot, *tokens):
  tokens_SM = np.full((len(slots.owner), 4), -1)
  tokens_SM[slot, : len(tokens)] = tokens
  slots.extend(tokens_SM)


def test_all_but_the_last_id_are_prefilled_by_chunks():
  slots = Slots(2, 16, chunk=CHUNK)
  slot = begin(slots, 'a', ids(1, 2, 3, 4, 5, 6, 7))
  assert drain(slots, [slot]) == [([], [(0, 0, [1, 2, 3, 4])], []), ([], [(0, 4, [5, 6])], [])]
  assert not slots.unfilled(slot)


def test_siblings_share_one_prompt_and_copy_nothing():
  slots = Slots(4, 16, chunk=CHUNK, stems=2, siblings=4)
  prompt = ids(1, 2, 3, 4, 5, 6, 7)
  running = [begin(slots, name, prompt) for name in 'abcd']
  assert drain(slots, running) == [([], [(0, 0, [1, 2, 3, 4])], []), ([], [(0, 4, [5, 6])], [])]
  assert slots.stem_S.tolist() == [0] * 4 and slots.slot_PR[0].tolist() == running


def test_a_session_on_the_beginning_of_a_longer_prompt_does_not_wait_for_its_rest():
  slots = Slots(2, 16, chunk=CHUNK, stems=1, siblings=2)
  running = [begin(slots, 'long', ids(1, 2, 3, 4, 5, 6, 7, 8)), begin(slots, 'short', ids(1, 2, 3, 4, 9))]
  drain(slots, running)
  slots.forget()  # new weights, while `long` is busy elsewhere
  short = begin(slots, 'short', ids(1, 2, 3, 4, 9, 6, 5))
  assert drain(slots, [short]) == [([], [(0, 0, [1, 2, 3, 4])], []), ([], [], [(short, 4, 4, [9, 6])])]
  assert not slots.unfilled(short)


def test_siblings_beyond_the_seats_get_a_copy():
  slots = Slots(4, 16, chunk=CHUNK, stems=2, siblings=2)
  prompt = ids(1, 2, 3, 4, 5, 6, 7)
  running = [begin(slots, name, prompt) for name in 'abc']
  assert drain(slots, running)[-1] == ([(0, 1)], [], [])
  assert slots.stem_S[running].tolist() == [0, 0, 1]


def test_a_prompt_that_ends_inside_a_stem_sits_on_it():
  slots = Slots(2, 16, chunk=CHUNK, stems=1, siblings=2)
  running = [begin(slots, 'a', ids(1, 2, 3, 4, 5, 6, 7)), begin(slots, 'b', ids(1, 2, 3))]
  drain(slots, running)
  assert slots.shared_S.tolist() == [6, 2] and slots.stem_S.tolist() == [0, 0]


def test_prompts_that_start_alike_share_whole_chunks():
  slots = Slots(2, 16, chunk=CHUNK)
  running = [begin(slots, 'a', ids(1, 2, 3, 4, 5, 6, 7)), begin(slots, 'b', ids(1, 2, 3, 4, 5, 9, 9))]
  assert drain(slots, running) == [
    ([], [(0, 0, [1, 2, 3, 4])], []),
    ([(0, 1)], [(0, 4, [5, 6])], []),
    ([], [(1, 4, [5, 9])], []),
  ]


def test_a_turn_prefills_only_what_is_new():
  slots = Slots(2, 32, chunk=CHUNK, turn_chunk=1)
  slot = begin(slots, 'a', ids(1, 2, 3, 4, 5, 6, 7))
  drain(slots, [slot])
  sample(slots, slot, 8, 9)
  assert begin(slots, 'a', ids(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)) == slot
  assert drain(slots, [slot]) == [([], [], [(0, 6, 8, [9])]), ([], [], [(0, 6, 9, [10])])]


def test_a_turn_that_rewrites_an_answer_fills_it_anew_from_there():
  slots = Slots(1, 32, chunk=CHUNK)
  slot = begin(slots, 'a', ids(1, 2, 3))
  drain(slots, [slot])
  sample(slots, slot, 4, 5, 6)
  begin(slots, 'a', ids(1, 2, 3, 4, 7, 8, 9))
  assert drain(slots, [slot]) == [([], [], [(0, 2, 4, [7, 8])])]


def test_a_turn_that_rewrites_the_prompt_needs_another_seat():
  slots = Slots(1, 32, chunk=CHUNK)
  slot = begin(slots, 'a', ids(1, 2, 3))
  assert not slots.assign(slot, ids(1, 9, 3, 4)) and not slots.assign(slot, ids(1, 2))


def test_what_decoding_wrote_is_not_shared():
  slots = Slots(2, 32, chunk=CHUNK)
  first = begin(slots, 'a', ids(1, 2, 3, 4, 5))
  drain(slots, [first])
  sample(slots, first, 6, 7, 8, 9)
  second = begin(slots, 'b', ids(1, 2, 3, 4, 5, 6, 7, 8, 9))
  assert drain(slots, [second]) == [([(0, 1)], [(1, 4, [5, 6, 7, 8])], [])]


def test_an_idle_stem_with_the_prompt_is_taken_over():
  slots = Slots(3, 16, chunk=CHUNK)
  for name in 'abc':
    drain(slots, [begin(slots, name, ids(ord(name), 2, 3, 4, 5))])
  for name in 'cab':
    slots.release(name)
  slot = begin(slots, 'd', ids(ord('b'), 2, 3, 4, 5))
  assert slots.stem_S[slot] == 1 and drain(slots, [slot]) == []


def test_without_a_prefix_the_longest_unused_slot_and_stem_go_first():
  slots = Slots(3, 16, chunk=CHUNK)
  for name in 'abc':
    begin(slots, name, ids(ord(name), 2))
  for name in 'cab':
    slots.release(name)
  taken = [begin(slots, name, ids(ord(name), 8)) for name in 'xyz']
  assert taken == slots.stem_S[taken].tolist() == [2, 0, 1]
  assert slots.claim('w', ids(7, 8)) is None


def test_a_prompt_waits_for_a_free_stem_even_where_slots_are_idle():
  slots = Slots(4, 16, chunk=CHUNK, stems=1, siblings=4)
  begin(slots, 'a', ids(1, 2))
  assert slots.claim('b', ids(3, 4)) is None and slots.claim('c', ids(1, 5)) == 1
  slots.release('a')
  assert slots.claim('b', ids(3, 4)) is None
  slots.release('c')
  assert slots.claim('b', ids(3, 4)) is not None


def test_the_heir_of_a_prefix_that_never_came_computes_it():
  slots = Slots(2, 16, chunk=CHUNK)
  prompt = ids(1, 2, 3, 4, 5, 6, 7)
  running = [begin(slots, name, prompt) for name in 'ab']
  slots.step(running, rows=8)
  slots.release('a')
  assert drain(slots, [1]) == [([(0, 1)], [(1, 4, [5, 6])], [])]


def test_after_new_weights_prompts_are_filled_anew_once_and_then_what_follows_them():
  slots = Slots(2, 16, chunk=CHUNK, stems=1, siblings=2)
  running = [begin(slots, name, ids(1, 2, 3)) for name in 'ab']
  drain(slots, running)
  for slot in running:
    sample(slots, slot, 4, 5, 6)
  slots.forget()
  assert drain(slots, running) == [
    ([], [(0, 0, [1, 2])], []),
    ([], [], [(0, 2, 2, [3, 4, 5]), (1, 2, 2, [3, 4, 5])]),
  ]


def test_a_session_of_one_id_has_no_stem():
  slots = Slots(2, 16, chunk=CHUNK, stems=1, siblings=2)
  slot = begin(slots, 'a', ids(1))
  assert drain(slots, [slot]) == [] and slots.stem_S[slot] == -1
  place_S, _ = slots.places()
  assert place_S[slot] == 2


def test_on_shards_a_group_stays_on_one_and_the_next_goes_elsewhere():
  slots = Slots(4, 16, chunk=CHUNK, stems=2, siblings=2, shards=2)
  taken = [begin(slots, name, ids(prompt, 2, 3)) for name, prompt in zip('abcd', (7, 7, 8, 8), strict=True)]
  assert taken == [0, 1, 2, 3] and slots.stem_S.tolist() == [0, 0, 1, 1]
  step = slots.step(taken, rows=2)
  assert [[(stem, ids_X.tolist()) for stem, *_, ids_X in shard] for shard in step.prompts] == [
    [(0, [7, 2])],
    [(0, [8, 2])],
  ]
  place_S, slot_PR = slots.places()
  assert place_S.tolist() == [0, 1, 0, 1] and slot_PR.tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize('seed', range(3))
def test_whatever_happens_seats_and_slots_agree(seed):
  random, slots = np.random.default_rng(seed), Slots(6, 32, chunk=CHUNK, stems=4, siblings=2, shards=2)
  for turn in range(200):
    name = str(random.integers(9))
    if slots.of(name) is not None and random.random() < 0.5:
      slots.release(name)
    elif slots.of(name) is None:
      prompt = ids(*random.integers(0, 2, random.integers(1, 9)))
      slot = slots.claim(name, prompt)
      assert slot is None or slots.assign(slot, prompt)
    if turn % 7 == 0:
      slots.step([slot for slot, owner in enumerate(slots.owner) if owner is not None], rows=4)
    for slot, owner in enumerate(slots.owner):
      stem = slots.stem_S[slot]
      if owner is None or stem < 0:
        assert not (slots.slot_PR == slot).any()
      else:
        assert slots.slot_PR[stem, slots.seat_S[slot]] == slot and (slots.slot_PR == slot).sum() == 1
        assert slot // 3 == stem // 2


class Simulated:
  """A table with a cache of which each entry says what it was computed from."""

  def __init__(self, chance, *, slots, stems, siblings, shards):
    self.chance, self.shards = chance, shards
    self.table = Slots(slots, 40, chunk=CHUNK, stems=stems, siblings=siblings, turn_chunk=3, shards=shards)
    self.stems, self.slots = ([[None] * 40 for _ in range(rows)] for rows in (stems, slots))
    self.weights, self.busy = 0, {}

  def entry(self, row, place):
    return self.weights, *row[: place + 1]

  def require(self, row, stem, slot, end):
    """All before `end` that the slot reads was computed with these weights, from these ids."""
    shared = int(self.table.shared_S[slot])
    read = [*self.stems[stem][:shared], *self.slots[slot]]
    assert read[:end] == [self.entry(row, place) for place in range(end)]

  def ask(self, session, row):
    row = np.array(row, np.int32)
    slot = self.table.of(session)
    if slot is None or not self.table.assign(slot, row):
      self.table.release(session)
      slot = self.table.claim(session, row)
      self.busy.pop(session, None)
      if slot is None:
        return
      assert self.table.assign(slot, row)
    self.busy[session] = True

  def fill(self, step):
    stems, slots = len(self.stems) // self.shards, len(self.slots) // self.shards
    for shard, copies in enumerate(step.copies):
      for source, target in copies:
        self.stems[shard * stems + target] = list(self.stems[shard * stems + source])
    for shard, pieces in enumerate(step.prompts):
      for stem, _, _, start, ids_X in pieces:
        stem += shard * stems
        row = self.table._ids_PX[stem].tolist()
        assert self.stems[stem][:start] == [self.entry(row, place) for place in range(start)]
        for place in range(start, start + len(ids_X)):
          self.stems[stem][place] = self.entry(row, place)
    for shard, pieces in enumerate(step.turns):
      for stem, slot, shared, start, ids_X in pieces:
        slot += shard * slots
        row = self.table.ids_SX[slot].tolist()
        self.require(row, shard * stems + stem, slot, start)
        for place in range(start, start + len(ids_X)):
          self.slots[slot][place - shared] = self.entry(row, place)

  def decode(self, running):
    tokens_SM = np.full((len(self.slots), 3), -1)
    for slot in running:
      length, shared = int(self.table.length_S[slot]), int(self.table.shared_S[slot])
      row = self.table.ids_SX[slot].tolist()[:length]
      self.require(row, int(self.table.stem_S[slot]), slot, length - 1)
      drawn = [self.chance.randrange(5) for _ in range(self.chance.randint(1, 3))][: 39 - length]
      tokens_SM[slot, : len(drawn)] = drawn
      for place in range(length - 1, length - 1 + len(drawn)):
        self.slots[slot][place - shared] = self.entry(row + drawn, place)
    self.table.extend(tokens_SM)


@pytest.mark.parametrize('sizes', [(4, 4, 1, 1), (6, 3, 3, 1), (8, 4, 2, 2), (4, 2, 2, 1)], ids=str)
@pytest.mark.parametrize('seed', range(3))
def test_nothing_is_read_that_was_not_computed_whoever_comes_goes_and_changes_weights(seed, sizes):
  chance = random.Random(f'{seed}/{sizes}')
  cache = Simulated(chance, **dict(zip(('slots', 'stems', 'siblings', 'shards'), sizes, strict=True)))
  opening = [chance.randrange(5) for _ in range(20)]  # of all prompts: some are the beginning of others
  for number in range(200):
    for session in list(cache.busy):
      if chance.random() < (0.1 if cache.busy[session] else 0.3):  # cancelled, or the next turn
        slot = cache.table.of(session)
        row = cache.table.ids_SX[slot].tolist()[: cache.table.length_S[slot]]
        if len(row) > 28 or chance.random() < 0.3:
          cache.table.release(session)
          del cache.busy[session]
        else:
          cache.ask(session, row + [chance.randrange(5) for _ in range(chance.randrange(6))])
    if chance.random() < 0.5:
      cache.ask(f's{number}', opening[: chance.randint(1, 19)] + [chance.randrange(5)] * chance.randrange(2))
    if chance.random() < 0.05:
      cache.weights += 1
      cache.table.forget()
    running = [cache.table.of(session) for session, busy in cache.busy.items() if busy]
    if step := cache.table.step(running, rows=4):
      cache.fill(step)
    elif running:
      cache.decode(running)
      cache.busy = {session: busy and chance.random() < 0.5 for session, busy in cache.busy.items()}
