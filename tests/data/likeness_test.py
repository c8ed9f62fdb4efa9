"""Questions that are nearly the same: exactly those whose Jaccard index reaches the bound."""

import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slca_jax.data.leakage import check_leakage
from slca_jax.data.likeness import Neighbours, jaccard, opening, shingles, words
from slca_jax.data.tasks import write_tasks
from slca_jax.dialogue import Message, Task
from slca_jax.errors import DataError

TEXTS = st.lists(st.sampled_from('abcd'), min_size=1, max_size=12).map(' '.join)


@settings(max_examples=200, deadline=None)
@given(st.lists(TEXTS, max_size=8), TEXTS, st.sampled_from([0.3, 0.5, 0.8, 1.0]))
def test_no_neighbour_is_missed_and_none_invented(known, text, similarity):
  sets = [shingles(one) for one in known]
  near = Neighbours(sets, similarity=similarity).nearest(shingles(text))
  wanted = [i for i, one in enumerate(sets) if jaccard(shingles(text), one) >= similarity]
  assert near == (wanted[0] if wanted else None)


def test_pairs_of_words_are_compared_without_case_and_punctuation():
  """a b c d has 3 pairs, a b c e shares 2 of them: 2 / 4."""
  assert jaccard(shingles('a b c d'), shingles('A, b; c: e!')) == 0.5
  assert (shingles('Where is LILLE?') == shingles('where is lille')).all()
  assert len(shingles('one')) == 1 and len(shingles('?!')) == 0
  assert jaccard(shingles('?'), shingles('!')) == 0.0


def test_signs_without_spaces_are_words():
  assert words('東京の天気 now') == ['東', '京', 'の', '天', '気', 'now']
  assert words('Ｆｕｌｌ widths') == ['full', 'widths']


def test_hashes_do_not_depend_on_the_process():
  first, second = (zlib.crc32(word) for word in (b'alpha', b'beta'))
  pair = (first * 0x9E3779B97F4A7C15 + second) % 2**64
  mixed = ((pair ^ (pair >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
  assert shingles('Alpha, beta!').tolist() == [mixed ^ (mixed >> 27)]


def test_a_greeting_is_no_opening():
  said = [Message('user', 'Hi!'), Message('assistant', 'Hello.'), Message('user', 'Where does my train leave from?')]
  assert opening(said) == 'Hi! Where does my train leave from?'
  assert opening([*said[2:], Message('user', 'And when?')]) == 'Where does my train leave from?'
  assert opening([]) == ''


def record(identity, question):
  return Task(identity, (), (Message('user', question),))


def test_leaks_between_finished_files_are_found(tmp_path):
  held = [record('h', 'where does the train to lille leave from'), record('i', 'who painted the ceiling of the chapel')]
  write_tasks(held, tmp_path / 'held.jsonl')
  train = lambda name, *tasks: (write_tasks(tasks, tmp_path / name), tmp_path / name)[1]
  fine = train('fine.jsonl', record('t', 'how long does a letter to lyon take'))
  check_leakage([fine], [tmp_path / 'held.jsonl'])
  same = train('same.jsonl', record('h', 'something else altogether, as it seems'))
  with pytest.raises(DataError, match="'h' is of the dialogue 'h', which is held out"):
    check_leakage([fine, same], [tmp_path / 'held.jsonl'])
  near = train('near.jsonl', record('n', 'Where does the train to Lille leave from?'))
  with pytest.raises(DataError, match=r"1 leaks.*'n' asks 'Where does the train to Lille"):
    check_leakage([near], [tmp_path / 'held.jsonl'])
  with pytest.raises(DataError, match=r'1 dialogues are in both .*fine\.jsonl and .*also\.jsonl'):
    check_leakage([fine, train('also.jsonl', record('t', 'a question of its own'))], [tmp_path / 'held.jsonl'])


def test_sets_of_nothing_have_no_neighbours():
  assert Neighbours([], similarity=0.8).nearest(shingles('a b')) is None
  assert Neighbours([np.zeros(0, np.uint64)], similarity=0.8).nearest(np.zeros(0, np.uint64)) is None
