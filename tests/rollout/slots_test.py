import numpy as np

from slca_jax.rollout.slots import Slots

CHUNK = 4


def ids(*numbers):
  return np.array(numbers, np.int32)


def begin(slots, session, ids_X):
  slot = slots.of(session)
  slot = slots.claim(session, ids_X) if slot is None else slot
  slots.assign(slot, ids_X)
  return slot


def drain(slots, running, *, rows=8):
  """All prefill steps that are left, with their ids as lists."""
  steps = []
  while (step := slots.step(running, rows=rows)) != ([], []):
    steps.append((step.copies, [(slot, start, ids_X.tolist()) for slot, start, ids_X in step.chunks]))
  return steps


def sample(slots, slot, *tokens):
  tokens_SM = np.full((len(slots.owner), 4), -1)
  tokens_SM[slot, : len(tokens)] = tokens
  slots.extend(tokens_SM)


def test_all_but_the_last_id_are_prefilled_by_chunks():
  slots = Slots(2, 16, chunk=CHUNK)
  slot = begin(slots, 'a', ids(1, 2, 3, 4, 5, 6, 7))
  assert drain(slots, [slot]) == [([], [(0, 0, [1, 2, 3, 4])]), ([], [(0, 4, [5, 6])])]
  assert not slots.unfilled(slot)


def test_a_prompt_is_prefilled_once_for_all_who_ask_at_the_same_time():
  slots = Slots(4, 16, chunk=CHUNK)
  prompt = ids(1, 2, 3, 4, 5, 6, 7)
  running = [begin(slots, name, prompt) for name in 'abcd']
  assert drain(slots, running) == [
    ([], [(0, 0, [1, 2, 3, 4])]),
    ([], [(0, 4, [5, 6])]),
    ([(0, 1, 6), (0, 2, 6), (0, 3, 6)], []),
  ]


def test_prompts_that_start_alike_share_whole_chunks():
  slots = Slots(2, 16, chunk=CHUNK)
  running = [begin(slots, 'a', ids(1, 2, 3, 4, 5, 6, 7)), begin(slots, 'b', ids(1, 2, 3, 4, 5, 9, 9))]
  assert drain(slots, running) == [
    ([], [(0, 0, [1, 2, 3, 4])]),
    ([(0, 1, 4)], [(0, 4, [5, 6]), (1, 4, [5, 9])]),
  ]


def test_strangers_do_not_wait_for_each_other_but_for_room():
  slots = Slots(3, 16, chunk=CHUNK)
  running = [begin(slots, str(i), ids(i, 2, 3)) for i in range(3)]
  assert drain(slots, running, rows=2) == [([], [(0, 0, [0, 2]), (1, 0, [1, 2])]), ([], [(2, 0, [2, 2])])]


def test_a_turn_prefills_only_what_is_new():
  slots = Slots(2, 32, chunk=CHUNK)
  slot = begin(slots, 'a', ids(1, 2, 3, 4, 5, 6, 7))
  drain(slots, [slot])
  sample(slots, slot, 8, 9)
  assert begin(slots, 'a', ids(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11)) == slot
  assert drain(slots, [slot]) == [([], [(0, 8, [9, 10])])]


def test_what_decoding_wrote_is_not_shared():
  slots = Slots(2, 32, chunk=CHUNK)
  first = begin(slots, 'a', ids(1, 2, 3, 4, 5))
  drain(slots, [first])
  sample(slots, first, 6, 7, 8, 9)
  second = begin(slots, 'b', ids(1, 2, 3, 4, 5, 6, 7, 8, 9))
  assert drain(slots, [second]) == [([(0, 1, 4)], [(1, 4, [5, 6, 7, 8])])]


def test_an_idle_slot_with_the_prefix_is_taken_over_without_a_copy():
  slots = Slots(3, 16, chunk=CHUNK)
  for name in 'abc':
    drain(slots, [begin(slots, name, ids(ord(name), 2, 3, 4, 5))])
  for name in 'cab':
    slots.release(name)
  slot = begin(slots, 'd', ids(ord('b'), 2, 3, 4, 5))
  assert slot == 1 and drain(slots, [slot]) == []


def test_without_a_prefix_the_longest_unused_slot_goes_first():
  slots = Slots(3, 16, chunk=CHUNK)
  for name in 'abc':
    begin(slots, name, ids(ord(name), 2))
  for name in 'cab':
    slots.release(name)
  assert [begin(slots, name, ids(7, 8)) for name in 'xyz'] == [2, 0, 1]
  assert slots.claim('w', ids(7, 8)) is None


def test_the_heir_of_a_prefix_that_never_came_computes_it():
  slots = Slots(2, 16, chunk=CHUNK)
  prompt = ids(1, 2, 3, 4, 5, 6, 7)
  running = [begin(slots, name, prompt) for name in 'ab']
  slots.step(running, rows=8)
  slots.release('a')
  assert drain(slots, [1]) == [([(0, 1, 4)], [(1, 4, [5, 6])])]


def test_forgotten_rows_are_prefilled_anew_with_their_samples():
  slots = Slots(1, 16, chunk=CHUNK)
  slot = begin(slots, 'a', ids(1, 2, 3))
  drain(slots, [slot])
  sample(slots, slot, 4, 5, 6)
  slots.forget()
  assert drain(slots, [slot]) == [([], [(0, 0, [1, 2, 3, 4])]), ([], [(0, 4, [5])])]


def test_a_spoilt_row_is_cleared_once_before_its_next_use():
  slots = Slots(1, 16, chunk=CHUNK)
  slots.spoil([0])
  slot = begin(slots, 'a', ids(1))
  assert drain(slots, [slot]) == [([(-1, 0, 16)], [])]
