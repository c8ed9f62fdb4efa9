"""Laws of traces and the tasks made of them: causes come first, what is done is done, and nothing is left to guess."""

import dataclasses
import itertools
import json
import random
import re

import pytest
from travel import BOOK, CALENDAR, DATABASE, DETAIL, EVENT, EXPENSE, FUNCTIONS, GRAPH, HOTELS, OFFERED, Plain, schema

from slca_jax.data.tasks import task_from_json, task_to_json
from slca_jax.dialogue import Observation, Tool
from slca_jax.errors import EnvironmentFailure
from slca_jax.rewards.judge import states
from slca_jax.toolverse.arguments import Story, columns_of
from slca_jax.toolverse.graph import Edge, Link, ToolGraph
from slca_jax.toolverse.invention import unused
from slca_jax.toolverse.inversion import Broken, invert, make_trace
from slca_jax.toolverse.sampling import sample_stages
from slca_jax.toolverse.wording import template, unstated

STAGES = sample_stages(GRAPH, width=2, chance=random.Random(0)).stages


def travel(seed=0, **options):
  made = invert('travel', OFFERED, GRAPH, STAGES, Plain, seed=seed, **options)
  assert not isinstance(made, Broken), made
  return made


def calls(task):
  return {call.name: dict(call.arguments) for step in task.gold for call in step}


def answers(task):
  steps = zip(task.gold, task.meta['outputs'], strict=True)
  return {c.name: json.loads(out) for step, outs in steps for c, out in zip(step, outs, strict=True)}


@pytest.mark.parametrize('seed', range(6))
def test_dependent_arguments_are_what_was_answered_before(seed):
  [task] = travel(seed)
  made, seen = calls(task), answers(task)
  assert [set(map(lambda call: call.name, step)) for step in task.gold] == [set(stage) for stage in STAGES]
  assert made[HOTELS] == {'location': seen[EVENT]['venue'], 'checkin_date': seen[EVENT]['date']}
  hotel = made[BOOK]['hotel_id']
  assert hotel in [row['hotel_id'] for row in seen[HOTELS]['hotels']] and made[DETAIL] == {'hotel_id': hotel}
  assert made[BOOK]['checkin_date'] == made[HOTELS]['checkin_date']
  assert made[EXPENSE] == {'booking_id': seen[BOOK]['booking_id'], 'amount': seen[BOOK]['total']}
  assert task.meta['depth'] == 4 and task.blueprint == 'travel' and task.tools == OFFERED


def test_context_comes_from_the_database_and_the_question_states_it():
  for seed in range(6):
    [task] = travel(seed)
    query = calls(task)[EVENT]['query']
    assert any(query in row['name'] for row in DATABASE['events'])
    assert states(task.question, query) and states(task.question, calls(task)[CALENDAR]['title'])
    assert not states(task.question, calls(task)[BOOK]['hotel_id'])


def test_one_of_several_records_is_named_by_what_it_alone_has():
  questions = [travel(seed)[0] for seed in range(12)]
  several = [task for task in questions if len(answers(task)[HOTELS]['hotels']) > 1]
  assert several and len(several) < len(questions)
  for task in several:
    name = {'H101': 'Guest House', 'H102': 'Tower'}[calls(task)[BOOK]['hotel_id']]
    assert f'for the one whose name is "{name}"' in task.question
  assert all('for the one' not in task.question for task in questions if task not in several)


def test_updates_are_seen_by_what_comes_after():
  [task] = travel()
  assert {change['path'][0] for change in task.meta['changes']} == {'bookings', 'calendar', 'expenses'}
  assert calls(task)[EXPENSE]['booking_id'] == 'B9001'
  assert DATABASE['bookings'] == {}


def test_contextual_arguments_are_drawn_from_the_database_as_it_stands():
  # Nothing is stored at first, so what is fetched can only be what was put.
  put = Tool('add_note', '', schema(title='string'), None, True)
  get = Tool('get_note', '', schema(note_id='string'))

  def add_note(db, title):
    db['notes'][f'N{len(db["notes"]) + 1}'] = {'title': title}
    return {'status': 'success'}

  functions = {'add_note': add_note, 'get_note': lambda db, note_id: db['notes'][note_id]}
  world = Plain((put, get), functions, {'notes': {}})
  graph = ToolGraph(('add_note', 'get_note'), (Edge('add_note', 'get_note'),))
  trace = make_trace((put, get), graph, (('add_note',), ('get_note',)), world, chance=random.Random(0))
  [[_], [fetched]] = trace.steps
  assert fetched.call.arguments == {'note_id': 'N1'}
  assert fetched.arguments['note_id'].origin.kind == 'database'
  assert trace.changes[0] == trace.changes[1] != []


def test_the_same_seed_makes_the_same_task_and_another_another():
  assert travel(3) == travel(3)
  assert len({travel(seed)[0].question for seed in range(4)}) == 4


def test_tasks_read_back_equal_from_their_lines():
  for task in travel(1, turns=2):
    assert task_from_json(json.loads(json.dumps(task_to_json(task)))) == task


@pytest.mark.parametrize('turns', [2, 3])
def test_a_user_of_several_turns_gives_a_task_for_each_that_goes_on_from_the_last(turns):
  tasks = travel(1, turns=turns)
  assert len(tasks) == turns and [task.meta['turn'] for task in tasks] == list(range(turns))
  assert sum((task.gold for task in tasks), ()) == travel(1)[0].gold
  for before, task in itertools.pairwise(tasks):
    begun = len(before.messages)
    assert task.messages[:begun] == before.messages
    told = task.messages[begun:]
    assert [m.calls for m in told if m.calls] == list(before.gold)
    assert [m.content for m in told if m.role == 'tool'] == [text for step in before.meta['outputs'] for text in step]
    assert [m.role for m in told[-2:]] == ['assistant', 'user'] and not told[-2].calls
  assert tasks[-1].meta['changes'] == travel(1)[0].meta['changes'] and tasks[0].meta['changes'] == []
  with pytest.raises(ValueError, match='turns is 6; 5 stages can be told in 1 to 5'):
    travel(turns=6)


def test_a_writers_text_is_taken_if_it_states_everything():
  texts = []

  def write(brief):
    texts.append(template(brief))
    return texts[-1].replace('search event', 'look the fair up')

  [task] = travel(0, write=write)
  assert 'look the fair up' in task.question and task.meta['writer'] == 'given' and task.facts == ('E1',)
  [task] = travel(0, write=lambda brief: template(brief).replace('expense id', 'number of it'))
  assert task.meta['writer'] == 'given' and task.facts == ()  # nobody asks for the fact
  [task] = travel(0, write=lambda brief: 'Book me a hotel.')
  assert task.question == texts[0] and task.meta['writer'] == 'template'


def test_what_a_text_leaves_out_is_named():
  trace = make_trace(OFFERED, GRAPH, STAGES, Plain(), chance=random.Random('10/0'))
  left_out = unstated('Book me a hotel.', trace.steps)
  assert trace.steps[0][0].call.arguments['query'] in left_out
  assert 'H102' not in left_out and 'B9001' not in left_out


def test_the_fact_that_is_asked_for_is_new_and_answered():
  [task] = travel()
  assert task.facts == ('E1',) and 'expense id' in task.question and not states(task.question, 'E1')


@pytest.mark.parametrize(
  ('name', 'function', 'reason'),
  [
    (HOTELS, lambda db, **_: {'hotels': []}, 'it found nothing'),
    (DETAIL, lambda db, **_: {'status': 'error', 'message': 'down'}, 'it answered .*down'),
    (EXPENSE, lambda db, booking_id, amount: FUNCTIONS[EXPENSE](db, 'B0', amount), 'no booking B0'),
    (
      BOOK,
      lambda db, **_: {'status': 'success'},
      'booking_id was to be booking_id of book_hotel, which was not answered',
    ),
  ],
)
def test_a_trace_breaks_at_the_tool_that_answers_nothing_to_build_on(name, function, reason):
  open_world = lambda: Plain(functions={**FUNCTIONS, name: function})
  made = invert('travel', OFFERED, GRAPH, STAGES, open_world, seed=0, attempts=2)
  assert isinstance(made, Broken)
  assert made.tool == (EXPENSE if name == BOOK else name)
  assert re.search(reason, made.reason)


def test_each_attempt_has_a_fresh_world_and_a_world_that_breaks_is_no_crash():
  opened = []

  def flaky():
    opened.append(Plain(functions={**FUNCTIONS, DETAIL: FUNCTIONS[DETAIL] if len(opened) == 2 else lambda db, **_: {}}))
    return opened[-1]

  assert not isinstance(invert('travel', OFFERED, GRAPH, STAGES, flaky, seed=0), Broken)
  assert len(opened) == 3 and opened[0].database()['bookings'] == {}

  def gone():
    raise EnvironmentFailure('no such world')

  assert invert('travel', OFFERED, GRAPH, STAGES, gone, seed=0) == Broken('', 'no such world')


def test_answers_that_were_cut_are_no_ground():
  class Cut(Plain):
    def call(self, call):
      return dataclasses.replace(super().call(call), cut=True)

  made = invert('travel', OFFERED, GRAPH, STAGES, Cut, seed=0, attempts=1)
  assert made.tool == EVENT and 'it answered more than' in made.reason


def test_parameters_are_filled_by_what_they_are_about():
  database = {
    'users': {'u1': {'name': 'Ann', 'email': 'ann@x.org'}},
    'orders': [{'id': 7, 'user_id': 'u1', 'status': 'open', 'note': None}],
    'settings': {'theme': 'dark'},
  }
  columns = columns_of(database)
  assert {(column.table, column.name) for column in columns} == {
    *(('users', name) for name in ('key', 'name', 'email')),
    *(('orders', name) for name in ('id', 'user_id', 'status')),
  }

  def drawn(tool):
    story = Story(random.Random(0))
    return {name: argument.value for name, argument in story.arguments(tool, (), columns).items()}

  assert drawn(Tool('list_orders', '', schema(user_id='string'))) == {'user_id': 'u1'}
  assert drawn(Tool('get_order', '', schema(id='integer'))) == {'id': 7}
  assert drawn(Tool('find_user', '', schema(query='string'))) == {'query': 'Ann'}
  assert drawn(Tool('get_user', '', schema(email='string'))) == {'email': 'ann@x.org'}
  enum = {'type': 'object', 'properties': {'status': {'type': 'string', 'enum': ['done']}}, 'required': ['status']}
  assert drawn(Tool('list_orders', '', enum)) == {'status': 'done'}
  assert list(drawn(Tool('update_order', '', schema(note='string?', status='string?'), None, True))) != []
  many = {'type': 'object', 'properties': {'user_ids': {'type': 'array', 'items': {'type': 'string'}}}}
  assert drawn(Tool('get_users', '', {**many, 'required': ['user_ids']})) == {'user_ids': ['u1']}


def test_what_belongs_to_a_record_is_copied_with_it():
  tool = Tool('update_page', '', schema(title='string', page_id='string', text='string'), None, True)
  rows = [{'page_id': f'P{n}', 'title': f'Page {n}', 'text': 'old'} for n in range(4)]
  for seed in range(4):
    story = Story(random.Random(seed))
    story.outputs['search_pages'] = {'pages': rows}
    edge = Edge('search_pages', 'update_page', 'parameter', '', (Link('pages[].page_id', 'page_id'),))
    found = story.arguments(tool, (edge,), columns_of({'pages': rows}))
    assert found['title'].value == found['page_id'].value.replace('P', 'Page ')
    assert found['title'].origin.kind == 'output' and found['text'].origin.kind == 'schema'


def test_an_update_finds_its_record_by_the_first_parameter_and_a_creation_has_a_name_of_its_own():
  columns = columns_of({'pages': [{'title': 'Home', 'text': 'old'}]})
  drawn = lambda tool: {n: a.value for n, a in Story(random.Random(0)).arguments(tool, (), columns).items()}
  changed = drawn(Tool('update_page', '', schema(title='string', text='string'), None, True))
  assert changed['title'] == 'Home' and changed['text'] != 'old'
  assert drawn(Tool('create_page', '', schema(title='string'), None, True))['title'] != 'Home'
  assert drawn(Tool('delete_page', '', schema(title='string'), None, True)) == {'title': 'Home'}


def test_a_refused_call_is_tried_with_columns_that_fit_less_well():
  tool = Tool('get_document', '', schema(name='string'))
  tables = {'documents': {'d1': {'name': 'plan'}}, 'items': [{'name': 'lamp'}]}
  functions = {'get_document': lambda db, name: {'got': name} if name == 'lamp' else int('no ' + name)}
  open_world = lambda: Plain((tool,), functions, tables)
  [task] = invert('shelf', (tool,), ToolGraph(('get_document',)), (('get_document',),), open_world, seed=0)
  assert calls(task) == {'get_document': {'name': 'lamp'}}
  first = Story(random.Random(0)).arguments(tool, (), columns_of(tables))
  assert first['name'].value == 'plan'


def test_a_fact_is_not_what_the_question_says_already():
  get = Tool('get_pet', '', schema(pet_id='string'))
  rows = {'pets': [{'pet_id': 'p1', 'name': 'Rex'}, {'pet_id': 'p2', 'name': 'Tom'}]}
  names = {'p1': 'Rex', 'p2': 'Tom'}
  functions = {'list_pets': lambda db: db, 'get_pet': lambda db, pet_id: {'name': names[pet_id]}}
  tools = (Tool('list_pets', '', schema()), get)
  edge = Edge('list_pets', 'get_pet', 'parameter', '', (Link('pets[].pet_id', 'pet_id'),))
  graph = ToolGraph(('list_pets', 'get_pet'), (edge,))
  open_world = lambda: Plain(tools, functions, rows)
  [task] = invert('zoo', tools, graph, (('list_pets',), ('get_pet',)), open_world, seed=0)
  assert 'whose name is' in task.question and task.facts == ()


def test_links_to_parameters_that_do_not_exist_are_ignored():
  story = Story(random.Random(0))
  story.outputs['find'] = {'id': 'a'}
  edge = Edge('find', 'show', 'parameter', '', (Link('id', 'nothing'), Link('id', 'it')))
  assert set(story.arguments(Tool('show', '', schema(it='string')), (edge,), ())) == {'it'}


def test_a_link_into_a_list_parameter_gives_a_list():
  tool = Tool('compare', '', {'type': 'object', 'properties': {'ids': {'type': 'array'}}, 'required': ['ids']})
  story = Story(random.Random(0))
  story.outputs['find'] = {'rows': [{'id': 'a'}]}
  edge = Edge('find', 'compare', 'parameter', '', (Link('rows[].id', 'ids'),))
  assert story.arguments(tool, (edge,), ())['ids'].value == ['a']


def test_an_observation_that_is_no_json_is_taken_as_text():
  class Spoken(Plain):
    def call(self, call):
      return Observation('The venue is here.') if call.name == EVENT else super().call(call)

  made = invert('travel', OFFERED, GRAPH, STAGES, Spoken, seed=0, attempts=1)
  assert made == Broken(HOTELS, 'location was to be venue of search_event, which was not answered')


USERS = {'users': {f'u{n}': {'user_id': f'u{n}', 'name': f'User {n}'} for n in (7, 11)}}


@pytest.mark.parametrize('name', ['create_user', 'register_user', 'insert_new_user'])
def test_what_makes_a_record_is_given_a_key_that_no_record_has(name):
  tool = Tool(name, '', schema(user_id='string', name='string'), None, True)
  for seed in range(5):
    found = Story(random.Random(seed)).arguments(tool, (), columns_of(USERS))
    assert int(found['user_id'].value.removeprefix('u')) > 11 and found['user_id'].origin.kind == 'schema'


def test_a_link_to_the_key_of_what_is_made_is_not_followed():
  story = Story(random.Random(0))
  story.outputs['list_users'] = {'users': list(USERS['users'].values())}
  edge = Edge('list_users', 'create_user', 'parameter', '', (Link('users[].user_id', 'user_id'),))
  found = story.arguments(Tool('create_user', '', schema(user_id='string'), None, True), (edge,), columns_of(USERS))
  assert found['user_id'].value not in USERS['users']


@pytest.mark.parametrize(
  ('name', 'parameter'), [('create_user_note', 'user_id'), ('book_user', 'user_id'), ('update_user', 'user_id')]
)
def test_keys_of_what_is_there_already_are_existing_ones(name, parameter):
  tool = Tool(name, '', schema(**{parameter: 'string'}), None, True)
  assert Story(random.Random(0)).arguments(tool, (), columns_of(USERS))[parameter].value in USERS['users']


def test_a_verb_that_may_make_something_gets_a_fresh_key_once_an_existing_one_was_refused():
  tool = Tool('add_user', '', schema(user_id='string'), None, True)

  def add_user(db, user_id):
    if user_id in db['users']:
      raise ValueError(f'user_id {user_id!r} is taken')
    db['users'][user_id] = {'user_id': user_id}
    return {'user_id': user_id}

  open_world = lambda: Plain((tool,), {'add_user': add_user}, USERS)
  [task] = invert('club', (tool,), ToolGraph(('add_user',)), (('add_user',),), open_world, seed=0)
  assert calls(task)['add_user']['user_id'] not in USERS['users']
  assert states(task.question, calls(task)['add_user']['user_id'])


@pytest.mark.parametrize(
  ('taken', 'kind', 'pattern'),
  [
    (('B-009', 'B-010'), 'string', r'B-01[1-9]'),
    ((3, 5), 'integer', r'[6-9]|1[0-4]'),
    (('Tall Oak',), 'string', r'\w+ \w+'),
    (('tall-oak',), 'string', r'\w+-\w+'),
  ],
)
def test_unused_values_look_like_those_that_are_taken(taken, kind, pattern):
  for seed in range(8):
    value = unused('code', {'type': kind}, taken, random.Random(seed))
    assert value not in taken and re.fullmatch(pattern, str(value)) and isinstance(value, int) == (kind == 'integer')
