"""From a file of schemas to a folder of environments and tasks, and the same again without doing it twice."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

from slca_jax.config import build
from slca_jax.data.tasks import read_tasks
from slca_jax.errors import ConfigError
from slca_jax.toolverse.blueprint import load
from slca_jax.toolverse.run import ToolverseConfig, make

ROOT = pathlib.Path(__file__).parents[2]


def tool(name, *required):
  properties = {key: {'type': 'string'} for key in required}
  return {
    'name': name,
    'description': name,
    'inputSchema': {'type': 'object', 'properties': properties, 'required': required},
  }


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
  'changes, says', [({'schemas': ''}, 'schemas is empty'), ({'maker': 'model'}, r'endpoint\.model is empty')]
)
def test_what_cannot_run_is_refused_by_name(tmp_path, changes, says):
  with pytest.raises(ConfigError, match=says):
    make(settings(tmp_path, **changes))


def test_the_config_file_builds():
  spec = importlib.util.spec_from_file_location('configs_toolverse', ROOT / 'configs' / 'toolverse.py')
  assert spec is not None and spec.loader is not None
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  built = build(ToolverseConfig, module.get_config())
  assert built.tasks.most == 10 and built.maker == 'deterministic'


def test_the_launcher_prints_the_funnel(tmp_path):
  command = [sys.executable, 'launch/synthesize.py', f'--config.schemas={schemas_in(tmp_path)}']
  command += [f'--config.output={tmp_path / "run"}', '--config.tasks.samples=1', '--config.most_servers=1']
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
  assert done.returncode == 0, done.stderr
  assert '| servers | 1 | 4 |' in done.stdout
