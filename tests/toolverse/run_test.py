"""From a file of schemas to a folder of environments and tasks, and the same again without doing it twice."""

import collections
import importlib.util
import json
import pathlib
import re
import subprocess
import sys

import pytest
from endpoint import BROKEN, Play, ScriptedEndpoint
from raw_schemas import tool

from slca_jax.config import build
from slca_jax.data.tasks import read_tasks
from slca_jax.dialogue import Parsed, Status, Trajectory, Turn
from slca_jax.errors import ConfigError, SamplerError
from slca_jax.toolverse.blueprint import load
from slca_jax.toolverse.filters import Attempt, Band
from slca_jax.toolverse.run import ToolverseConfig, make
from slca_jax.toolverse.teaching import Teacher
from slca_jax.train.teacher_settings import SynthesizeConfig

ROOT = pathlib.Path(__file__).parents[2]


SERVERS = {
  'shop': {
    'tools': [
      tool('list_customers'),
      tool('list_orders', 'customer_id'),
      tool('get_order', 'order_id'),
      tool('cancel_order', 'order_id'),
    ]
  },
  'Shop': {'tools': [tool('list_invoices'), tool('get_invoice', 'invoice_id'), tool('delete_invoice', 'invoice_id')]},
  'shell': {'tools': [tool('run_command', 'command'), tool('execute_script', 'script')]},
}


def schemas_in(folder):
  path = folder / 'servers.json'
  path.write_text(json.dumps(SERVERS))
  return str(path)


def settings(folder, **changes):
  small = {'tasks': {'samples': 4, 'most': 3, 'shortest': 2}}
  return build(ToolverseConfig, {'schemas': schemas_in(folder), 'output': str(folder / 'run'), **small, **changes})


def test_schemas_become_environments_tasks_reasons_and_a_funnel_and_a_second_run_makes_nothing(tmp_path):
  table = make(settings(tmp_path))
  run = tmp_path / 'run'
  names = sorted(path.name for path in (run / 'blueprints').iterdir())
  assert names == ['shop', 'shop-2']
  assert {one.name for one in (load(run / 'blueprints' / name) for name in names)} == set(names)
  tasks = read_tasks(run / 'tasks.jsonl')
  assert {task.blueprint for task in tasks} <= set(names) and len(tasks) >= 3
  notes = [json.loads(line) for line in (run / 'servers.jsonl').read_text().splitlines()]
  assert [bool(note['dropped']) for note in notes] == [False, False, True]
  assert set(notes[2]['left_out']) == {'run_command', 'execute_script'}
  assert '| servers | 3 | 9 |' in table and '| tests pass | 2 | 7 |' in table
  made = (run / 'made.jsonl').read_bytes()
  before = (run / 'tasks.jsonl').read_bytes()
  assert make(settings(tmp_path)) == table
  assert (run / 'made.jsonl').read_bytes() == made and (run / 'tasks.jsonl').read_bytes() == before


@pytest.mark.parametrize(
  'changes, says',
  [
    ({'schemas': ''}, 'schemas is empty'),
    ({'maker': 'model'}, r'endpoint\.model is empty'),
    ({'most_servers': -1}, 'most_servers is -1'),
  ],
)
def test_what_cannot_run_is_refused_by_name(tmp_path, changes, says):
  with pytest.raises(ConfigError, match=says):
    make(settings(tmp_path, **changes))


def test_what_a_small_sandbox_refused_is_made_again_in_a_larger_one(tmp_path):
  assert '| tests pass | 0 |' in make(settings(tmp_path, sandbox={'most_result': 20}))
  assert '| tests pass | 2 |' in make(settings(tmp_path))


def test_no_two_servers_share_a_folder_whatever_they_are_called(tmp_path):
  servers = [{'name': name, **SERVERS['Shop']} for name in ('Shop', 'shop', 'shop 2')]
  (tmp_path / 'three.json').write_text(json.dumps(servers))
  make(settings(tmp_path, schemas=str(tmp_path / 'three.json')))
  names = sorted(path.name for path in (tmp_path / 'run' / 'blueprints').iterdir())
  assert names == ['shop', 'shop-2', 'shop-2-2']


def worded(request):
  """A scripted model: ready for a probe, one edge for a graph, and a question out of all that must be stated."""
  text = request['messages'][-1]['content']
  if 'pairs of which' in text:
    return json.dumps({'pairs': [{'first': 'get_order', 'then': 'cancel_order', 'why': 'look first'}]})
  block = re.search(r'```json\n(.*?)\n```', text, re.S)
  if not block:
    return 'ready'
  actions = [action for step in json.loads(block[1]) for action in step]
  said = [
    [action.get('given', {}), [part.get('pick') for part in action.get('found', {}).values()]] for action in actions
  ]
  return json.dumps({'question': f'Do this, and nothing else, please: {said}'})


def test_models_word_questions_and_propose_edges_once(tmp_path):
  with ScriptedEndpoint(worded) as server:
    endpoint = {'base_url': server.url, 'model': 'scripted', 'output_price': 1.0}
    config = settings(tmp_path, writer=endpoint, proposer=endpoint)
    table = make(config)
    first = len(server.requests)
    assert make(config) == table and len(server.requests) == first + 2  # one probe of each
  tasks, [shop, other, _] = read_tasks(tmp_path / 'run' / 'tasks.jsonl'), notes(tmp_path)
  written = [task for task in tasks if task.meta['writer'] == 'given']
  assert shop['asked']['edges'] == other['asked']['edges'] == 1
  assert shop['asked']['question'] + other['asked']['question'] == len(written) == len(tasks)
  assert all(task.question.startswith('Do this') for task in written)
  assert shop['cost']['completion_tokens'] >= 20 and shop['cost']['cost'] > 0
  page = (tmp_path / 'run' / 'graphs' / 'shop.html').read_text()
  assert 'a model says: look first' in page


def notes(folder):
  return [json.loads(line) for line in (folder / 'run' / 'servers.jsonl').read_text().splitlines()]


def test_what_an_endpoint_did_not_answer_is_asked_by_the_next_run(tmp_path):
  down = [True]
  script = lambda request: BROKEN if down[0] and request['max_tokens'] > 16 else worded(request)
  with ScriptedEndpoint(script) as server:
    endpoint = {'base_url': server.url, 'model': 'scripted', 'retries': 0}
    config = settings(tmp_path, proposer=endpoint)
    make(config)
    assert notes(tmp_path)[0]['unanswered'] == 1 and not (tmp_path / 'run' / 'made.jsonl').exists()
    down[0] = False
    make(config)
  assert notes(tmp_path)[0]['unanswered'] == 0 and len((tmp_path / 'run' / 'made.jsonl').read_text().splitlines()) == 2


def test_an_endpoint_that_cannot_be_used_is_refused_before_anything_is_made(tmp_path):
  with pytest.raises(ConfigError, match=r"writer\.base_url is ''"):
    make(settings(tmp_path, writer={'model': 'scripted'}))
  with ScriptedEndpoint(Play(status=401, body='{}')) as server, pytest.raises(ConfigError, match='status 401'):
    make(settings(tmp_path, writer={'model': 'scripted', 'base_url': server.url}))
  assert not (tmp_path / 'run').exists()


class Taught:
  """A teacher that solves what its script says, counted."""

  def __init__(self, solves, **band):
    self.tried, self.opened = collections.Counter(), 0
    self._solves, self._band = solves, Band(**{'attempts': 4, **band})

  def teacher(self, name='scripted'):
    return Teacher(name, self._band, self._run)

  def _run(self, work):
    import asyncio

    self.opened += 1
    asyncio.run(work(self._solve))

  async def _solve(self, task, number):
    self.tried[task.id] += 1
    status = self._solves(task, number)
    if status is None:
      return Attempt(Trajectory(task, 0, number, (), (), Status.FAILED, 'the engine is gone'))
    said = Turn((), (), ' '.join(task.facts), Parsed())
    trajectory = Trajectory(task, 0, number, (), (said,), Status.FINISHED)
    outputs = tuple(output for step in task.meta['outputs'] for output in step)
    return Attempt(trajectory, outputs if status else (), task.meta['changes'])


def test_a_teacher_keeps_what_it_solves_neither_never_nor_always(tmp_path):
  make(settings(tmp_path))
  names = [task.id for task in read_tasks(tmp_path / 'run' / 'tasks.jsonl')]
  passes = {name: (0, 2, 4)[place % 3] for place, name in enumerate(names)}
  school = Taught(lambda task, number: number < passes[task.id], most=3)
  table = make(settings(tmp_path), teacher=school.teacher())
  kept = read_tasks(tmp_path / 'run' / 'tasks.jsonl')
  assert [task.id for task in kept] == [name for name in names if passes[name] == 2] != []
  assert all(task.meta['teacher'] == {'name': 'scripted', 'passed': 2, 'scored': 4, 'rate': 0.5} for task in kept)
  row = next(line for line in table.splitlines() if 'a teacher solves 1 to 3 of 4 times' in line)
  assert f'| {len(kept)} |' in row
  assert set(school.tried.values()) == {4} and set(school.tried) == set(names)


def test_attempts_are_kept_and_other_bands_need_no_engine(tmp_path):
  school = Taught(lambda task, number: number == 0)
  make(settings(tmp_path), teacher=school.teacher())
  tried = dict(school.tried)
  harder = Taught(lambda task, number: True, least=2)
  assert '| 0 |' in make(settings(tmp_path), teacher=harder.teacher()).splitlines()[-1]
  assert not harder.opened and school.tried == tried
  other = Taught(lambda task, number: True)
  make(settings(tmp_path), teacher=other.teacher('another'))
  assert other.opened == 1 and set(other.tried) == set(tried)


def test_attempts_that_broke_are_not_scored_and_tried_again(tmp_path):
  make(settings(tmp_path))
  first = read_tasks(tmp_path / 'run' / 'tasks.jsonl')[0].id
  flaky = Taught(lambda task, number: None if task.id == first or number == 3 else True)
  make(settings(tmp_path), teacher=flaky.teacher())
  kept = read_tasks(tmp_path / 'run' / 'tasks.jsonl')
  assert first not in {task.id for task in kept} and {task.meta['teacher']['scored'] for task in kept} == {3}
  well = Taught(lambda task, number: True)
  make(settings(tmp_path), teacher=well.teacher())
  assert set(well.tried) == {first} and first in {t.id for t in read_tasks(tmp_path / 'run' / 'tasks.jsonl')}


def test_a_teacher_that_tries_nothing_ends_the_run(tmp_path):
  gone = Taught(lambda task, number: None)
  with pytest.raises(SamplerError, match=r'no attempt at any of \d+ tasks could be scored: .*the engine is gone'):
    make(settings(tmp_path), teacher=gone.teacher())


def test_the_config_file_builds():
  spec = importlib.util.spec_from_file_location('configs_toolverse', ROOT / 'configs' / 'toolverse.py')
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  built = build(SynthesizeConfig, module.get_config())
  assert built.tasks.most == 10 and built.maker == 'deterministic'
  assert not (built.writer.model or built.proposer.model or built.teacher.model.path)


def test_the_launcher_prints_the_funnel(tmp_path):
  command = [sys.executable, 'launch/synthesize.py', f'--config.schemas={schemas_in(tmp_path)}']
  command += [f'--config.output={tmp_path / "run"}', '--config.tasks.samples=1', '--config.most_servers=1']
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  assert '| servers | 1 | 4 |' in done.stdout


@pytest.mark.parametrize(
  ('argument', 'says'),
  [
    ('--config.teacher.model.path=./nowhere', "ConfigError: model.path is './nowhere'; there is no such folder"),
    ('--config.teacher.band.most=9', 'least is 1 and most 9'),
    ('--config.proposer.model=x', "ConfigError: proposer.base_url is ''"),
    ('--config.output=/dev/null/run', 'ConfigError: /dev/null/run cannot be written: Not a directory'),
  ],
)
def test_the_launcher_refuses_what_cannot_run(tmp_path, argument, says):
  command = [sys.executable, 'launch/synthesize.py', f'--config.schemas={schemas_in(tmp_path)}']
  command += [f'--config.output={tmp_path / "run"}', argument]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 1 and says in done.stderr and not (tmp_path / 'run').exists()
