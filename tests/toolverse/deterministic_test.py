import dataclasses
import datetime
import json
import pathlib
import random
import re

import pytest

from slca_jax.data.tasks import task_to_json
from slca_jax.dialogue import Tool, ToolCall
from slca_jax.envs.confined.changes import changes
from slca_jax.toolverse import blueprint as blueprints
from slca_jax.toolverse.deterministic import words
from slca_jax.toolverse.deterministic.banks import PLACES
from slca_jax.toolverse.deterministic.dealing import Deal
from slca_jax.toolverse.deterministic.planning import plan
from slca_jax.toolverse.deterministic.synthesise import DeterministicSettings, synthesise
from slca_jax.toolverse.deterministic.values import TODAY, examples, value
from slca_jax.toolverse.making import TaskSettings, make_tasks
from slca_jax.toolverse.schemas import ToolSet, read_schemas
from slca_jax.toolverse.testing import retest
from slca_jax.toolverse.world import Trial

TOUCAN = pathlib.Path(__file__).parents[3] / 'shared' / 'data' / 'toucan_tools.jsonl.gz'


def tool(name, description='', required=(), **properties):
  shown = {key: {'type': kind} if isinstance(kind, str) else kind for key, kind in properties.items()}
  return Tool(name, description, {'type': 'object', 'properties': shown, 'required': list(required)})


BOARD = ToolSet(
  'board',
  (
    tool('list_projects', 'List all projects.'),
    tool('search_tasks', 'Search tasks.', ['query'], query='string', limit='integer'),
    tool('list_tasks', 'List the tasks of a project.', ['project_id'], project_id='integer',
         status={'type': 'string', 'enum': ['open', 'done']}),
    tool('get_task', 'Get one task.', ['task_id'], task_id='string', api_key='string'),
    tool('create_task', 'Create a task.', ['project_id', 'title'], project_id='integer', title='string',
         due_date='string'),
    tool('update_task', 'Update a task.', ['task_id'], task_id='string', title='string', due_date='string'),
    tool('cancel_task', 'Cancel a task.', ['task_id'], task_id='string'),
    tool('delete_task', 'Delete a task.', ['task_id'], task_id='string'),
    tool('get_task_comments', 'Comments on a task.', ['task_id'], task_id='string'),
    tool('run_shell', 'Run a command.', ['command'], command='string'),
    tool('generate_report', 'Draw a report.', ['prompt'], prompt='string'),
  ),
)  # fmt: skip


@pytest.fixture(scope='module')
def board():
  outcome = synthesise(BOARD)
  assert outcome.blueprint is not None, outcome.reason
  return outcome


@pytest.fixture
def world(board):
  with Trial(board.blueprint) as trial:
    yield trial


@pytest.mark.parametrize(
  'name, cut',
  [
    ('getUserById', ['get', 'user', 'by', 'id']),
    ('HTTPServer-list_all', ['http', 'server', 'list', 'all']),
    ('npm search', ['npm', 'search']),
  ],
)
def test_names_are_cut_into_words(name, cut):
  assert words.split(name) == cut


@pytest.mark.parametrize(
  'many, one',
  [('categories', 'category'), ('boxes', 'box'), ('news', 'news'), ('addresses', 'address'), ('tasks', 'task')],
)
def test_singular_and_plural_are_each_others_inverse(many, one):
  assert words.singular(many) == one
  assert words.plural(one) == many


def test_what_cannot_be_understood_is_left_out_with_a_reason_and_the_rest_is_built(board):
  assert [one.name for one in board.blueprint.tools] == [one.name for one in BOARD.tools[:-2]]
  assert set(board.left_out) == {'run_shell', 'generate_report'}
  assert 'code or commands' in board.left_out['run_shell']


def test_every_test_passes_and_every_tool_is_tested(board):
  report = retest(board.blueprint)
  assert report.ok, report


def test_the_same_schemas_and_seed_give_the_same_bytes(board):
  again = synthesise(BOARD).blueprint
  assert blueprints.files(again) == blueprints.files(board.blueprint)
  first, second = (make_tasks(one, TaskSettings(samples=4)).tasks for one in (board.blueprint, again))
  assert [task_to_json(task) for task in first] == [task_to_json(task) for task in second]


def test_another_seed_gives_other_keys_titles_dates_and_tasks_of_the_same_tools(board):
  other = synthesise(BOARD, DeterministicSettings(seed=1)).blueprint
  assert other.source == board.blueprint.source
  assert [tool.name for tool in other.tools] == [tool.name for tool in board.blueprint.tools]
  rows, others = (list(one.database['tasks'].values()) for one in (board.blueprint, other))
  for field in ('task_id', 'project_id', 'title', 'due_date'):
    assert [row[field] for row in rows] != [row[field] for row in others], field
  assert not {row['task_id'] for row in rows} & {row['task_id'] for row in others} and retest(other).ok
  asked = [
    {task.question for task in make_tasks(one, TaskSettings(samples=4)).tasks} for one in (board.blueprint, other)
  ]
  assert not asked[0] & asked[1]


@pytest.mark.parametrize('seed', range(5))
def test_what_moves_a_record_is_tested_with_one_that_is_not_there_yet(seed):
  tools = (
    tool('list_doors', 'Doors.'),
    tool('activate_door', 'Activates.', ['door_id'], door_id='string'),
  )
  made = synthesise(ToolSet('doors', tools), DeterministicSettings(seed=seed)).blueprint
  assert retest(made).ok


def test_servers_of_equal_schemas_and_different_names_have_records_of_their_own(board):
  other = synthesise(dataclasses.replace(BOARD, name='desk')).blueprint
  assert other.database['tasks'].keys() != board.blueprint.database['tasks'].keys()


@pytest.mark.parametrize('seed', range(6))
def test_records_of_any_seed_are_distinct_readable_and_fit_together(seed):
  deal = Deal(seed)
  text, number = {'type': 'string'}, {'type': 'number'}
  at = lambda name, schema, index, noun='place': value(name, schema, noun=noun, index=index, deal=deal)
  known = {(place[0], place[1], place[2]) for place in PLACES}
  assert {(at('city', text, n), at('country', text, n), at('latitude', number, n)) for n in range(8)} == known
  for name in ('city_id', 'name', 'title', 'email', 'username', 'address'):
    assert len({at(name, text, n, 'user') for n in range(24)}) == 24, name
  assert re.fullmatch(r'CTY[A-Z]-\d{4}', at('city_id', text, 139))
  person = at('name', text, 3, 'user')
  assert at('email', text, 3, 'user') == f'{person[0]}{person.split()[1]}@mail.example'.lower()
  days = [datetime.date.fromisoformat(at('date', text, n)) for n in range(8)]
  assert days == sorted(set(days)) and days[0] < TODAY < days[-1]
  assert len({at('id', {'type': 'integer'}, n) // 1000 for n in range(102)}) == 1


def test_credentials_are_no_parameters_of_the_rewritten_tool(board):
  assert list(board.blueprint.tool['get_task'].parameters['properties']) == ['task_id']


def test_links_hold_keys_that_exist(board):
  database = board.blueprint.database
  projects = {row['project_id'] for row in database['projects'].values()}
  assert {row['project_id'] for row in database['tasks'].values()} <= projects
  assert {row['task_id'] for row in database['task_comments'].values()} <= set(database['tasks'])


def test_what_is_made_can_be_read_changed_moved_and_removed(world):
  project = world.value(ToolCall('list_projects', {}))['projects'][0]['project_id']
  made = world.value(ToolCall('create_task', {'project_id': project, 'title': 'Paint the door'}))
  key = {'task_id': made['task_id']}
  assert world.value(ToolCall('get_task', key))['task']['title'] == 'Paint the door'
  assert world.value(ToolCall('update_task', {**key, 'title': 'Oil the door'}))['task']['title'] == 'Oil the door'
  assert world.value(ToolCall('cancel_task', key))['task']['status'] == 'cancelled'
  with pytest.raises(ValueError, match='already'):
    world.value(ToolCall('cancel_task', key))
  world.value(ToolCall('delete_task', key))
  with pytest.raises(ValueError, match='no task'):
    world.value(ToolCall('get_task', key))
  assert world.changes() == []


def test_new_keys_follow_the_greatest_one_and_are_never_used_twice_at_once(world):
  make = lambda title: world.value(ToolCall('create_task', {'project_id': project, 'title': title}))['task_id']
  project = world.value(ToolCall('list_projects', {}))['projects'][0]['project_id']
  first, second = make('one'), make('two')
  assert int(second.rsplit('-', 1)[1]) == int(first.rsplit('-', 1)[1]) + 1


def test_a_parent_that_does_not_exist_is_refused_and_changes_nothing(world):
  with pytest.raises(ValueError, match='no project'):
    world.value(ToolCall('create_task', {'project_id': -1, 'title': 'x'}))
  assert world.changes() == []


def test_a_search_finds_records_by_their_words(world):
  row = next(iter(world.database()['tasks'].values()))
  found = world.value(ToolCall('search_tasks', {'query': row['title'].upper(), 'limit': 1}))
  assert found['tasks'][0]['task_id'] == row['task_id']
  assert world.value(ToolCall('search_tasks', {'query': 'zzz qqq'}))['count'] == 0


def test_keys_of_different_tables_are_never_equal_by_accident():
  tools = (
    tool('list_users', 'Users.'), tool('get_user', 'A user.', ['user_id'], user_id='integer'),
    tool('list_orders', 'Orders.'), tool('get_order', 'An order.', ['order_id'], order_id='integer'),
  )  # fmt: skip
  database = synthesise(ToolSet('shop', tools)).blueprint.database
  assert not set(database['users']) & set(database['orders'])


def test_examples_of_a_description_become_keys():
  symbol = {'type': 'string', 'description': "Ticker, e.g. 'ACME', 'BOLT'"}
  tools = (
    tool('get_quote', 'A quote.', ['symbol'], symbol=symbol),
    tool('get_news', 'News.', ['symbol'], symbol=symbol),
  )
  found = synthesise(ToolSet('stocks', tools)).blueprint
  assert [row['symbol'] for row in found.database['symbols'].values()][:2] == ['ACME', 'BOLT']


@pytest.mark.parametrize(
  'description, found',
  [
    ('City (e.g. Rome, Oslo)', ['Rome', 'Oslo']),
    ("such as 'bitcoin' or 'ether'", ['bitcoin', 'ether']),
    ('股票代码，例如BTC、ETH', ['BTC', 'ETH']),
    ('like {"a": 1}', []),
  ],
)
def test_examples_are_read_from_descriptions(description, found):
  assert examples({'type': 'string', 'description': description}) == found


def test_arithmetic_is_computed_not_looked_up():
  numbers = {'a': 'number', 'b': 'number'}
  tools = (tool('add', 'Adds.', ['a', 'b'], **numbers), tool('divide', 'Divides.', ['a', 'b'], **numbers))
  outcome = synthesise(ToolSet('sums', tools))
  with Trial(outcome.blueprint) as trial:
    assert trial.value(ToolCall('add', {'a': 20, 'b': 22}))['result'] == 42
    with pytest.raises(ValueError, match='zero'):
      trial.value(ToolCall('divide', {'a': 1, 'b': 0}))


def test_a_server_with_too_few_tools_is_dropped_with_the_count():
  outcome = synthesise(
    ToolSet('shell', (tool('run_shell', '', ['command'], command='string'), tool('list_files', 'Files.')))
  )
  assert outcome.blueprint is None
  assert '1 of 2' in outcome.reason


@pytest.mark.parametrize(
  'schema',
  [
    {
      'type': 'object',
      'properties': {'class': {'type': 'string'}, 'from': {'type': 'string'}, 'db': {'type': 'string'}},
    },
    {'type': 'object', 'properties': {'rows': {'anyOf': [{'type': 'null'}, {'type': 'integer'}]}, 'x-y': True, '': {}}},
    {'properties': {'type': {'type': ['string', 'null'], 'enum': [None, 'a', True]}}, 'required': 'type'},
    {
      'properties': {'kind': {'enum': ['a', 1, None, 2.5]}, 'level': {'type': 'integer', 'enum': ['1', 2]}},
      'required': ['kind', 'level'],
    },
    {'properties': {'id': {'enum': True, 'anyOf': 5}, 'top': {'type': 'integer', 'minimum': 'a', 'format': ['b']}}},
    {'type': 'object', 'properties': ['id']},
    {'type': 'object', 'properties': {'id': {'$ref': '#/nowhere'}, '日付': {'type': 'string'}}},
  ],
)
def test_strange_schemas_are_built_or_left_out_and_never_break(schema):
  tools = [
    Tool(name, 'Get """records""" \\ of\nkind', schema)
    for name in ('get_item', 'list-items', 'print', 'import', '検索')
  ]
  outcome = synthesise(ToolSet('strange', tuple(tools)))
  assert outcome.blueprint is not None, outcome.reason
  assert blueprints.faults(outcome.blueprint) == []
  assert retest(outcome.blueprint).failures == ()


def test_tasks_of_several_stages_that_hand_on_values_replay(board):
  made = make_tasks(board.blueprint, TaskSettings(samples=8))
  assert len(made.tasks) >= 2
  assert not {task.id for task in made.tasks} & set(made.unlike)
  assert made.depth >= 2 and max(len(task.gold) for task in made.tasks) >= 3


def test_plans_name_a_table_once_for_all_tools_of_a_thing():
  found = plan(BOARD.tools)
  assert sorted(found.tables) == ['project', 'task', 'task_comment']
  assert {operation.table for operation in found.operations} == set(found.tables)


@pytest.mark.skipif(not TOUCAN.exists(), reason='the list of real tools lies in ../shared/data')
def test_real_servers_are_built_and_their_tests_pass():
  sets = [one for one in read_schemas(TOUCAN) if len(one.tools) >= 3]
  for one in random.Random(5).sample(sets, 12):
    outcome = synthesise(one)
    assert outcome.blueprint is not None or outcome.reason
    if outcome.blueprint is not None:
      report = retest(outcome.blueprint)
      assert report.ok, (one.name, report.failures, report.untested)
      assert json.dumps(outcome.blueprint.database)
      assert changes(outcome.blueprint.database, outcome.blueprint.database) == []
