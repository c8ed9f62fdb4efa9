"""The market of the quickstart: tasks can be solved, only by asking, and never leak between splits."""

import collections
import json
import re

import pytest

from slca_jax.quickstart import world
from slca_jax.quickstart.world import FUNCTIONS, KINDS, TOOLS, make_task


def tasks(split, count=300, seed=3):
  return [make_task(seed, split, index) for index in range(count)]


def test_same_arguments_give_the_same_task():
  assert make_task(5, 'train', 17) == make_task(5, 'train', 17)
  assert make_task(5, 'train', 17) != make_task(6, 'train', 17)


@pytest.mark.parametrize('split', ['train', 'heldout'])
def test_gold_replays_and_returns_every_fact(split):
  for task in tasks(split):
    values = {}
    for step in task.gold:
      for call in step:
        result = FUNCTIONS[call.name](task.meta['database'], **call.arguments)
        first, last = result.values()
        values[first] = last
    for fact in task.facts:
      name, value = fact.split(' is ')
      assert values[name] == int(value)


def test_dependent_call_takes_its_ticker_from_the_first_steps_observation():
  for task in tasks('train'):
    if task.meta['kind'] not in ('chain', 'mixed'):
      continue
    (find,) = [call for call in task.gold[0] if call.name == 'find_ticker']
    (price,) = task.gold[1]
    assert FUNCTIONS['find_ticker'](task.meta['database'], **find.arguments)['ticker'] == price.arguments['ticker']
    assert price.arguments['ticker'] not in task.question


def test_kinds_have_the_steps_their_names_say():
  shapes = {kind: [len(step) for step in make_task(0, 'train', 0, kind=kind).gold] for kind in KINDS}
  assert shapes == {'one': [1], 'two': [2], 'three': [3], 'chain': [1, 1], 'mixed': [2, 1]}


def test_kinds_are_drawn_evenly():
  counts = collections.Counter(task.meta['kind'] for task in tasks('train', 1000))
  assert all(150 < counts[kind] < 250 for kind in KINDS)


def asked(task):
  return frozenset(re.findall('[A-Z][A-Za-z]{2,}', task.question)) - {'What', 'Tell', 'Look'}, frozenset(task.facts)


def test_no_held_out_combination_of_names_and_answers_is_trained_on():
  held_out = {asked(task) for task in tasks('heldout', 300)}
  assert all(len(names) == len(facts) for names, facts in held_out)
  assert not held_out & {asked(task) for seed in range(2) for task in tasks('train', 1500, seed)}


def test_tables_are_fresh_so_no_value_can_be_remembered():
  values, tickers = collections.defaultdict(set), collections.defaultdict(set)
  for task in tasks('train', 200):
    for name, value in (task.meta['database']['prices'] | task.meta['database']['rates']).items():
      values[name].add(value)
    for company, ticker in task.meta['database']['tickers'].items():
      tickers[company].add(ticker)
  assert min(map(len, values.values())) > 40
  assert min(map(len, tickers.values())) > 8


def test_unknown_name_is_refused():
  database = make_task(0, 'train', 0).meta['database']
  with pytest.raises(ValueError, match="no ticker named 'NOPE'"):
    world.get_price(database, 'NOPE')
  assert world.search(database, 'NOPE') == {'query': 'NOPE', 'known': False}


def test_no_two_tools_share_an_argument_key():
  keys = [key for tool in TOOLS for key in tool.parameters['properties']]
  assert len(keys) == len(set(keys))


def test_database_is_json_and_the_call_cannot_change_it():
  database = make_task(0, 'train', 0).meta['database']
  before = json.dumps(database)
  for name, arguments in make_task(0, 'train', 0).meta['serial']:
    FUNCTIONS[name](database, **arguments)
  assert json.dumps(database) == before


def test_two_facts_of_a_question_never_share_a_name():
  for task in tasks('train'):
    assert len({fact.split()[0] for fact in task.facts}) == len(task.facts)


def test_phrases_are_joined_as_one_writes_them():
  assert [world.enumerated(list('abc')[:n]) for n in (1, 2, 3)] == ['a', 'a and b', 'a, b and c']
