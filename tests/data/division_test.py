"""Where rows go: whole dialogues, exact counts, evenly over subsets, whatever the order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slca_jax.data.division import HELDOUT, NOWHERE, RL, SFT, allotted, divide
from slca_jax.data.formats.row import hashed
from slca_jax.data.ledger import Table
from slca_jax.data.likeness import shingles
from slca_jax.data.settings import Portion, Preparation
from slca_jax.errors import DataError


def table(rows):
  """Rows of (id, dialogue, content, subset, decomposed, shown, samples)."""
  columns = list(zip(*rows, strict=True)) or [()] * 7
  names = tuple(sorted(set(columns[3])))
  return Table(
    row=np.array([hashed(f'row {one}') for one in columns[0]], np.uint64),
    dialogue=np.array([hashed(f'dialogue {one}') for one in columns[1]], np.uint64),
    content=np.array([hashed(f'content {one}') for one in columns[2]], np.uint64),
    subset=np.array([names.index(one) for one in columns[3]], np.uint16),
    decomposed=np.array(columns[4], np.bool_),
    shown=np.array(columns[5], np.bool_),
    samples=np.array(columns[6], np.uint16),
    names=names,
  )


def apart(count):
  return lambda: iter([shingles(f'one{i} two{i} three{i}') for i in range(count)])


def single(count, subset='a'):
  return [(f'{subset}{i}', f'{subset}{i}', f'{subset}{i}', subset, False, True, 1) for i in range(count)]


ROWS = st.lists(
  st.tuples(
    st.integers(0, 25), st.integers(0, 40), st.sampled_from('ab'), st.booleans(), st.booleans(), st.integers(0, 4)
  ),
  max_size=40,
).map(lambda rows: [(i, *row) for i, row in enumerate(rows)])
SIZES = st.sampled_from([0.0, 0.2, 0.5, 1.0, 3.0, -1.0])


@settings(max_examples=150, deadline=None)
@given(ROWS, SIZES, SIZES, SIZES, st.integers(0, 3), st.permutations(range(40)))
def test_no_dialogue_is_on_two_sides_and_no_order_matters(rows, heldout, sft, rl, seed, order):
  if heldout == -1 or (sft == -1 and rl == -1):
    return
  asked = Preparation(heldout=Portion(heldout), sft=Portion(sft), rl=Portion(rl), seed=seed)
  told = table(rows)
  try:
    division = divide(told, apart(len(rows)), asked)
  except DataError as error:
    assert 'asks for' in str(error)
    return
  for one in (HELDOUT, SFT, RL):
    for other in {HELDOUT, SFT, RL} - {one}:
      assert not set(told.dialogue[division.side == one]) & set(told.dialogue[division.side == other])
  assert all(told.shown[division.side == SFT])
  assert not division.duplicate[division.side != NOWHERE].any()
  training = np.isin(division.side, (SFT, RL))
  assert (division.take[training] <= told.samples[training]).all() and (division.take[training] > 0).all()
  held = division.side == HELDOUT
  assert len(set(told.dialogue[held])) == held.sum() and (division.take[held] < told.samples[held]).all()
  if heldout >= 1:
    assert held.sum() == heldout
  for side, size in ((SFT, sft), (RL, rl)):
    if size >= 1 or size == 0:
      assert division.take[division.side == side].sum() == size
  order = [place for place in order if place < len(rows)]
  shuffled = table([rows[place] for place in order])
  distinct = list(apart(len(rows))())
  again = divide(shuffled, lambda: iter([distinct[place] for place in order]), asked)
  assert (again.side == division.side[order]).all() and (again.take == division.take[order]).all()


def test_subsets_and_kinds_keep_their_shares():
  """Of 60 + 30 + 10 dialogues a tenth is held out: 6, 3 and 1."""
  rows = single(60, 'a') + single(30, 'b') + [(f'c{i}', f'c{i}', f'c{i}', 'c', True, True, 2) for i in range(10)]
  told = table(rows)
  division = divide(told, apart(100), Preparation(heldout=Portion(10.0), sft=Portion(0.5), rl=Portion(-1.0)))
  held = division.side == HELDOUT
  assert [int(held[told.subset == code].sum()) for code in range(3)] == [6, 3, 1]
  samples = [int(division.take[(told.subset == code) & (division.side == SFT)].sum()) for code in range(3)]
  assert samples == [27, 13, 9]  # half of 54 + 27 + 18 = 99 is 49; 13.36 and 26.7 and 8.9 round to 13, 27, 9


def test_a_share_of_decomposed_samples_is_kept_exactly():
  rows = single(20) + [(f'm{i}', f'm{i}', f'm{i}', 'a', True, True, 3) for i in range(8)]
  told = table(rows)
  asked = Preparation(heldout=Portion(4.0, 0.25), sft=Portion(0.0), rl=Portion(15.0, 1 / 3))
  division = divide(told, apart(28), asked)
  assert (division.side == HELDOUT)[told.decomposed].sum() == 1
  rl = division.side == RL
  assert division.take[rl & told.decomposed].sum() == 5 and division.take[rl & ~told.decomposed].sum() == 10


def test_the_rest_of_a_dialogue_that_was_cut_is_used_by_nobody():
  """Three dialogues of three samples: SFT takes 4, so one dialogue whole and one third of the next."""
  rows = [(f'm{i}', f'm{i}', f'm{i}', 'a', True, True, 3) for i in range(3)]
  division = divide(table(rows), apart(3), Preparation(heldout=Portion(0.0), sft=Portion(4.0), rl=Portion(-1.0)))
  assert sorted(division.take[division.side == SFT]) == [1, 3]
  assert division.take[division.side == RL].tolist() == [3]


def test_equal_rows_count_once_and_the_same_one_stays():
  rows = [(name, name, 'same', 'a', False, True, 1) for name in 'pqr']
  for order in ((0, 1, 2), (2, 1, 0)):
    told = table([rows[place] for place in order])
    division = divide(told, apart(3), Preparation(heldout=Portion(0.0), sft=Portion(0.0), rl=Portion(-1.0)))
    assert told.row[~division.duplicate] == min(told.row)


def test_what_opens_like_a_held_out_question_is_kept_from_training_with_its_dialogue():
  rows = single(10)
  texts = ['where does the train to Lille leave from today'] * 2 + [f'a{i} b{i} c{i}' for i in range(8)]
  asked = Preparation(heldout=Portion(9.0), sft=Portion(0.0), rl=Portion(-1.0))
  division = divide(table(rows), lambda: iter(map(shingles, texts)), asked)
  left = int(np.flatnonzero(division.side != HELDOUT)[0])
  if left < 2:
    assert division.near[left] == 1 - left and division.side[left] == NOWHERE
  else:
    assert division.near[left] == -1 and division.side[left] == RL


def test_rows_that_cannot_be_shown_go_to_rl():
  rows = [(i, i, i, 'a', False, i % 2 == 0, 1) for i in range(10)]
  division = divide(table(rows), apart(10), Preparation(heldout=Portion(0.0), sft=Portion(5.0), rl=Portion(-1.0)))
  assert division.side.tolist() == [SFT, RL] * 5
  with pytest.raises(DataError, match=r'sft\.size asks for 6 samples; there are 5'):
    divide(table(rows), apart(10), Preparation(heldout=Portion(0.0), sft=Portion(6.0), rl=Portion(-1.0)))


def test_allotment_gives_largest_remainders_what_is_left():
  assert allotted(10, np.array([55, 35, 10])).tolist() == [6, 3, 1]  # 5.5, 3.5, 1.0
  assert allotted(0, np.array([3, 4])).tolist() == [0, 0]
  assert allotted(7, np.array([3, 4])).tolist() == [3, 4]
  assert allotted(0, np.array([0, 0])).tolist() == [0, 0]
