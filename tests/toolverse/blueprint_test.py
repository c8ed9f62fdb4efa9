"""Laws of blueprints: a folder that reads back equal, whose faults are named, and whose tests run in the sandbox."""

import dataclasses
import json

import pytest

from slca_jax.dialogue import Message, Task, Tool, ToolCall
from slca_jax.envs.sandbox import SandboxSettings
from slca_jax.errors import DataError, EnvironmentFailure
from slca_jax.toolverse.blueprint import Blueprint, Check, UnitTest, diff, faults, load, save
from slca_jax.toolverse.testing import holds, retest
from slca_jax.toolverse.world import Trial, blueprint_opener
from slca_jax.train import worlds
from slca_jax.train.surroundings import EnvironmentSettings

SOURCE = '''"""A hotel."""


def search_hotels(db, city: str, most: int = 5):
  return {'hotels': [row for row in db['hotels'] if row['city'] == city][:most]}


def book_hotel(db, hotel_id: str):
  if all(row['id'] != hotel_id for row in db['hotels']):
    raise ValueError(f'no hotel {hotel_id}')
  db['bookings'].append({'hotel_id': hotel_id})
  return {'status': 'booked'}
'''


def schema(**properties):
  required = [name for name, kind in properties.items() if not kind.endswith('?')]
  kinds = {name: {'type': kind.rstrip('?')} for name, kind in properties.items()}
  return {'type': 'object', 'properties': kinds, 'required': required}


SEARCH = Tool('search_hotels', 'Searches.', schema(city='string', most='integer?'))
BOOK = Tool('book_hotel', 'Books.', schema(hotel_id='string'), None, True)
HOTEL = Blueprint(
  name='hotel',
  tools=(SEARCH, BOOK),
  source=SOURCE,
  database={'hotels': [{'id': 'H1', 'city': 'Rome'}, {'id': 'H2', 'city': 'Köln'}], 'bookings': []},
  tests=(
    UnitTest('finds', (Check(ToolCall('search_hotels', {'city': 'Rome'}), {'has': {'hotels': [{'id': 'H1'}]}}),), []),
    UnitTest(
      'books',
      (
        Check(ToolCall('book_hotel', {'hotel_id': 'H2'}), {'equals': {'status': 'booked'}}),
        Check(ToolCall('book_hotel', {'hotel_id': 'H9'}), {'error': 'no hotel'}),
      ),
      [{'path': ['bookings', 0], 'now': {'hotel_id': 'H2'}}],
    ),
  ),
  provenance={'schemas': 'by hand'},
)


def test_a_folder_reads_back_equal_and_can_be_read_by_people(tmp_path):
  save(HOTEL, tmp_path / 'hotel')
  assert load(tmp_path / 'hotel') == HOTEL
  assert (tmp_path / 'hotel' / 'functions.py').read_text('utf-8') == SOURCE
  assert 'Köln' in (tmp_path / 'hotel' / 'database.json').read_text('utf-8')
  assert sorted(path.name for path in (tmp_path / 'hotel').iterdir()) == [
    'blueprint.json', 'database.json', 'functions.py', 'tests.json'
  ]  # fmt: skip


def test_a_diff_shows_what_changed_and_nothing_else():
  assert diff(HOTEL, HOTEL) == ''
  lines = diff(HOTEL, dataclasses.replace(HOTEL, source=SOURCE.replace('[:most]', ''))).splitlines()
  assert lines[:2] == ['--- before/functions.py', '+++ after/functions.py']
  assert sum(line.startswith(('+', '-')) for line in lines) == 4


BROKEN = {
  'functions.py: line 5: open is not offered': {'source': SOURCE.replace('return', 'open("x")\n  return', 1)},
  'functions.py: no function book_hotel; write one': {'source': SOURCE.replace('def book_hotel', 'def book')},
  "does not take 'most', which its schema offers": {'source': SOURCE.replace(', most: int = 5', '')},
  "needs 'city', which its schema does not know": {'tools': (dataclasses.replace(SEARCH, parameters={}), BOOK)},
  "needs 'city', which its schema leaves out at will": {
    'tools': (dataclasses.replace(SEARCH, parameters=schema(city='string?', most='integer?')), BOOK)
  },
  "blueprint.json: two tools are named 'book_hotel'": {'tools': (SEARCH, BOOK, BOOK)},
  "blueprint.json: the schema of 'odd' cannot be compiled": {
    'tools': (SEARCH, BOOK, Tool('odd', '', {'type': 'object', 'properties': {'a': {'type': 'no such type'}}}))
  },
  'blueprint.json: there are no tools': {'tools': ()},
  "blueprint.json: now is 'soon'": {'now': 'soon'},
  'database.json: it is a list': {'database': []},
  'database.json: it is no JSON': {'database': {'a': float('nan')}},
  "tests.json: 'finds' calls 'fly', which is no tool": {
    'tests': (UnitTest('finds', (Check(ToolCall('fly', {})),)),)
  },
  "tests.json: 'odd' expects": {'tests': (UnitTest('odd', (Check(ToolCall('book_hotel', {}), {'is': 1}),)),)},
}  # fmt: skip


@pytest.mark.parametrize('text', BROKEN)
def test_each_fault_names_its_file_and_a_remedy(text, tmp_path):
  broken = dataclasses.replace(HOTEL, **BROKEN[text])
  assert any(text in fault for fault in faults(broken)), faults(broken)
  with pytest.raises(DataError):
    save(broken, tmp_path)
  assert not list(tmp_path.iterdir())


def test_folders_that_are_none_are_refused_by_file(tmp_path):
  with pytest.raises(DataError, match=r'blueprint\.json.*a blueprint has the files blueprint\.json, functions\.py'):
    load(tmp_path)
  save(HOTEL, tmp_path)
  (tmp_path / 'tests.json').write_text('[{"name": "x"}]')
  with pytest.raises(DataError, match='missing or misplaced'):
    load(tmp_path)
  (tmp_path / 'tests.json').write_text('[{"name": "x", "calls": [{"name": "y", "arguments": "abc"}]}]')
  with pytest.raises(DataError, match='missing or misplaced'):
    load(tmp_path)
  (tmp_path / 'tests.json').write_text('[')
  with pytest.raises(DataError, match=r'tests\.json: no JSON'):
    load(tmp_path)
  (tmp_path / 'blueprint.json').write_text('{"format": 2}')
  with pytest.raises(DataError, match='format is 2; this version reads 1'):
    load(tmp_path)


@pytest.mark.parametrize('head', [{'name': 5}, {'tools': [{'name': 'a', 'description': '', 'parameters': []}]}])
def test_a_head_of_other_types_is_refused(head, tmp_path):
  save(HOTEL, tmp_path)
  path = tmp_path / 'blueprint.json'
  path.write_text(json.dumps({**json.loads(path.read_text()), **head}))
  with pytest.raises(DataError, match='missing or misplaced'):
    load(tmp_path)


@pytest.fixture(scope='module', autouse=True)
def level():
  """These functions are our own: they may run on any machine."""
  from slca_jax.envs.sandbox import shared_sandbox

  return shared_sandbox(SandboxSettings(least='limits'))


def test_tests_run_in_the_sandbox_and_say_what_they_found(level):
  assert retest(HOTEL, sandbox=level).ok
  report = retest(dataclasses.replace(HOTEL, source=SOURCE.replace("'booked'", "'lost'")), sandbox=level)
  assert report.passed == ('finds',) and not report.ok
  assert str(report.failures[0]).startswith("books, call 1: it returned {'status': 'lost'}, not {'status': 'booked'}")
  assert retest(dataclasses.replace(HOTEL, tests=HOTEL.tests[:1]), sandbox=level).untested == ('book_hotel',)


def test_a_blueprint_that_answers_by_address_is_not_deterministic(level):
  source = SOURCE.replace("{'status': 'booked'}", "{'status': 'booked', 'by': repr(book_hotel.__class__)}")
  assert any('__class__' in fault for fault in faults(dataclasses.replace(HOTEL, source=source)))


def test_a_part_holds_in_its_whole():
  assert holds({'a': [{'b': 1, 'c': 2}, 5]}, {'a': [{'c': 2}]})
  assert not holds({'a': [{'b': 1}]}, {'a': [{'b': 2}]})
  assert not holds({'a': True}, {'a': 1}) and holds(5.0, 5)


def test_a_trial_answers_call_by_call(level):
  with Trial(HOTEL, sandbox=level) as trial:
    assert trial.value(ToolCall('search_hotels', {'city': 'Rome'})) == {'hotels': [{'id': 'H1', 'city': 'Rome'}]}
    with pytest.raises(ValueError, match='no hotel H7'):
      trial.value(ToolCall('book_hotel', {'hotel_id': 'H7'}))
    assert trial.call(ToolCall('book_hotel', {'hotel_id': 'H1'})).content == '{"status": "booked"}'
    assert trial.database()['bookings'] == [{'hotel_id': 'H1'}]
    assert trial.changes() == [{'path': ['bookings', 0], 'now': {'hotel_id': 'H1'}}]


def task(blueprint, tools=HOTEL.tools):
  return Task('t', tools, (Message('user', 'Book H1.'),), blueprint=blueprint)


def test_training_opens_a_task_whose_blueprint_is_a_folder(tmp_path):
  import asyncio

  save(HOTEL, tmp_path / 'trips' / 'hotel')
  settings = EnvironmentSettings(blueprints=str(tmp_path), sandbox=SandboxSettings(least='limits'))
  environment = worlds.opener(settings)(task('trips/hotel'), 0)
  [seen] = asyncio.run(environment.step([ToolCall('book_hotel', {'hotel_id': 'H1'})]))
  assert json.loads(seen.content) == {'status': 'booked'}
  environment.close()


def test_what_a_task_cannot_open_is_named(tmp_path):
  save(HOTEL, tmp_path / 'in' / 'hotel')
  save(HOTEL, tmp_path / 'out')
  open_task = blueprint_opener(str(tmp_path / 'in'), SandboxSettings(least='limits'))
  with pytest.raises(EnvironmentFailure, match='leads out of'):
    open_task(task('../out'), 0)
  with pytest.raises(EnvironmentFailure, match='a blueprint has the files'):
    open_task(task('nothing'), 0)
  with pytest.raises(EnvironmentFailure, match="hotel has no tool 'fly'; known: search_hotels, book_hotel"):
    open_task(task('hotel', (Tool('fly', '', {}),)), 0)
  with pytest.raises(EnvironmentFailure, match=r'environment\.blueprints names a folder'):
    worlds.opener(EnvironmentSettings())(task('hotel'), 0)
