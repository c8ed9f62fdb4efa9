"""What is told is not looked up, and what is looked up is not told: by the text and by the chain that is counted."""

import json
import random

import pytest
from travel import Plain, schema

from slca_jax.dialogue import Observation, Tool, ToolCall
from slca_jax.rewards.judge import states
from slca_jax.toolverse.arguments import Argument, Origin, Story, columns_of
from slca_jax.toolverse.graph import Edge, Link, ToolGraph
from slca_jax.toolverse.invention import some_words
from slca_jax.toolverse.inversion import Trace, invert, make_trace
from slca_jax.toolverse.telling import settled
from slca_jax.toolverse.wording import Brief, Made, given_away, template, unstated


def made(name, answer, /, **arguments):
  """A call whose arguments are (value, origin)."""
  call = ToolCall(name, {key: value for key, (value, _) in arguments.items()})
  given = {key: Argument(value, origin) for key, (value, origin) in arguments.items()}
  return Made(Tool(name, '', {}), call, Observation(json.dumps(answer)), given)


def told(value):
  return value, Origin('database', 'somewhere')


def copied(value, source, where, element=None):
  return value, Origin('output', where, source, element)


def question(*steps):
  return template(Brief((), tuple(steps)))


CITIES = {'cities': [{'name': 'Oslo', 'id': 'C71'}, {'name': 'Lima', 'id': 'C72'}, {'name': 'Rome', 'id': 'C73'}]}


def test_a_chain_of_copies_counts_each_call():
  steps = settled(
    [
      [made('list_cities', CITIES)],
      [made('get_city', {'mayor': 'M410'}, city_id=copied('C72', 'list_cities', 'cities[].id', 1))],
      [made('get_mayor', {}, mayor_id=copied('M410', 'get_city', 'mayor'))],
    ]
  )
  assert Trace(steps, ()).depth == 3
  assert 'for the one whose name is "Lima"' in question(*steps)
  assert not states(question(*steps), 'C72') and not states(question(*steps), 'M410')


@pytest.mark.parametrize('later', [False, True])
def test_a_value_that_the_user_gives_to_another_call_is_no_dependency(later):
  weather = [made('get_weather', {}, city=told('LIMA'))]
  steps = [
    [made('list_cities', CITIES)],
    [made('get_city', {}, name=copied('Lima', 'list_cities', 'cities[].name', 1))],
  ]
  found = settled([*steps, weather] if later else [weather, *steps])
  assert Trace(found, ()).depth == 1
  [city] = [call for step in found for call in step if call.call.name == 'get_city']
  assert city.arguments['name'].origin == Origin('database', 'somewhere')
  assert 'with name "Lima"' in question([city]).replace('using', 'with').replace('where', 'with').replace(' is ', ' ')


def test_a_key_that_an_answer_repeats_comes_from_where_it_came_before():
  steps = settled(
    [
      [made('list_cities', CITIES)],
      [made('get_city', {'id': 'C72', 'mayor': 'M410'}, city_id=copied('C72', 'list_cities', 'cities[].id', 1))],
      [made('get_weather', {}, city_id=copied('C72', 'get_city', 'id'))],
    ]
  )
  assert steps[2][0].arguments['city_id'].origin.source == 'list_cities'
  assert Trace(steps, ()).depth == 2


def test_what_a_call_was_told_is_no_news_in_its_answer():
  steps = settled(
    [
      [made('create_note', {'note': {'title': 'Cedar Lane', 'id': 'N55'}}, title=('Cedar Lane', Origin('schema')))],
      [made('find_note', {}, title=copied('Cedar Lane', 'create_note', 'note.title'))],
      [made('get_note', {}, note_id=copied('N55', 'create_note', 'note.id'))],
    ]
  )
  assert steps[1][0].arguments['title'].origin.kind == 'schema'
  assert steps[2][0].arguments['note_id'].origin.source == 'create_note' and Trace(steps, ()).depth == 2


def test_a_record_is_not_named_by_what_is_to_be_found_in_it():
  rows = {'cities': [{'name': 'Oslo', 'land': 'Norway'}, {'name': 'Lima', 'land': 'Peru'}]}
  name = copied('Lima', 'list_cities', 'cities[].name', 1)
  land = copied('Peru', 'list_cities', 'cities[].land', 1)
  one = settled([[made('list_cities', rows)], [made('get_city', {}, name=name)]])
  assert 'for the one whose land is "Peru"' in question(*one) and not states(question(*one), 'Lima')
  both = settled([[made('list_cities', rows)], [made('get_city', {}, name=name)], [made('get_land', {}, land=land)]])
  assert question(*both).count('for the one number 2 in the list') == 2
  assert not any(states(question(*both), value) for value in ('Lima', 'Peru'))


def test_a_label_that_holds_what_is_to_be_found_names_nothing():
  rows = {'hits': [{'title': 'Trains to Lima', 'city': 'Lima'}, {'title': 'Trains to Oslo', 'city': 'Oslo'}]}
  step = [made('get_city', {}, city=copied('Lima', 'search', 'hits[].city', 0))]
  assert 'for the one number 1 in the list' in question(*settled([[made('search', rows)], step]))


def test_short_values_are_equal_by_accident_unless_their_names_are():
  first = [made('list_pages', {'pages': [{'id': 7}]}, limit=told(7))]
  step = [made('get_page', {}, page_id=copied(7, 'list_pages', 'pages[].id', 0))]
  assert Trace(settled([first, step]), ()).depth == 2
  again = [made('get_note', {}, page_id=told(7.0))]
  assert Trace(settled([first, again, step]), ()).depth == 1


def test_a_list_and_the_values_inside_an_object_are_told_with_it():
  options = [made('start', {'path': 'out/tmp'}, options=told({'path': 'out/tmp', 'fast': True}))]
  copies = [made('stop', {}, paths=copied(['out/tmp'], 'start', 'path'))]
  assert settled([options, copies])[1][0].arguments['paths'].origin.kind == 'database'


def test_a_question_tells_which_value_stands_in_which_list():
  step = [made('draw', {}, lines=told([['ann', 'bob'], ['cid']]), tags=told(['x', 'y']), none=told([]))]
  text = question(step)
  assert '[["ann", "bob"], ["cid"]]' in text and '"x", "y"' in text and '[]' in text
  assert unstated(text, [step]) == () and unstated(text.replace('cid', 'dan'), [step]) == ('cid',)


def test_drawn_values_that_were_answered_before_are_copied():
  rows = {'pages': [{'title': f'Page {n}', 'text': 'old'} for n in range(3)]}
  tool = Tool('get_page_history', '', schema(title='string'))
  story = Story(random.Random(0))
  assert story.arguments(tool, (), columns_of(rows))['title'].origin.kind == 'database'
  story.outputs['search_pages'] = rows
  found = story.arguments(tool, (), columns_of(rows))['title']
  assert found.origin.kind == 'output' and rows['pages'][found.origin.element]['title'] == found.value


def test_a_label_is_searched_for_by_some_of_its_words():
  parts = {some_words('A field guide to coral reefs near Oslo', random.Random(seed)) for seed in range(20)}
  assert parts == {'coral reefs near Oslo', 'field guide to coral', 'guide to coral reefs'}
  assert {some_words('Ann Lindqvist', random.Random(seed)) for seed in range(8)} == {'Lindqvist'}
  assert some_words('Denver', random.Random(0)) == 'Denver' and some_words('a b c', random.Random(0)) == 'a b c'


def test_a_search_that_takes_whole_labels_alone_is_asked_for_one():
  tools = (Tool('search_pages', '', schema(query='string')),)
  rows = {'pages': [{'title': 'Old harbours in Denver'}, {'title': 'Night trains to Oslo'}]}
  functions = {'search_pages': lambda db, query: {'pages': [row for row in db['pages'] if row['title'] == query]}}
  open_world = lambda: Plain(tools, functions, rows)
  graph = ToolGraph(('search_pages',))
  [task] = invert('wiki', tools, graph, (('search_pages',),), open_world, seed=0)
  assert task.gold[0][0].arguments['query'] in [row['title'] for row in rows['pages']]


PETS = {'pets': [{'pet_id': 'P810', 'name': 'Rex', 'kind': 'dog'}, {'pet_id': 'P811', 'name': 'Tom', 'kind': 'cat'}]}
ZOO = (Tool('list_pets', '', schema()), Tool('get_pet', '', schema(pet_id='string')))
LINKED = ToolGraph(
  ('list_pets', 'get_pet'), (Edge('list_pets', 'get_pet', 'parameter', '', (Link('pets[].pet_id', 'pet_id'),)),)
)


def zoo():
  functions = {'list_pets': lambda db: db, 'get_pet': lambda db, pet_id: {'chip': f'{pet_id}-77', 'weight': 31}}
  return Plain(ZOO, functions, PETS)


def test_a_question_never_asks_for_what_it_says():
  for seed in range(6):
    [task] = invert('zoo', ZOO, LINKED, (('list_pets',), ('get_pet',)), zoo, seed=seed)
    [fact] = task.facts
    assert not states(task.question, fact) and not states(task.question, task.gold[1][0].arguments['pet_id'])


def test_a_writers_text_that_gives_a_key_away_is_not_taken():
  trace = make_trace(ZOO, LINKED, (('list_pets',), ('get_pet',)), zoo(), chance=random.Random(0))
  brief = Brief(ZOO, trace.steps, (), ('chip', 'P999-77'))
  key = trace.steps[1][0].call.arguments['pet_id']
  said = template(brief)
  assert given_away(said, brief) == () and unstated(said, trace.steps) == ()
  assert given_away(f'{said} It is {key}, and its chip is P999-77.', brief) == (key, 'P999-77')
  [task] = invert(
    'zoo', ZOO, LINKED, (('list_pets',), ('get_pet',)), zoo, seed=0, write=lambda b: f'{template(b)} P810 or P811.'
  )
  assert task.meta['writer'] == 'template'
