"""The pages cannot rot: code blocks run, every setting that they name exists, and every command's settings build."""

import ast
import asyncio
import importlib.util
import os
import pathlib
import re
import runpy
import shlex
import subprocess
import sys

import numpy as np
import pytest

from slca_jax import own
from slca_jax.arrays import Rewards
from slca_jax.config import build
from slca_jax.data.ksweep_run import KSweepConfig
from slca_jax.data.settings import Preparation
from slca_jax.data.tasks import read_dialogues, read_tasks
from slca_jax.dialogue import Message, Task, ToolCall
from slca_jax.evals.settings import EvaluateConfig
from slca_jax.evals.study_settings import StudyConfig
from slca_jax.ops.segments import segment_runs
from slca_jax.quickstart.experiment import QuickstartConfig
from slca_jax.train import rehearsal, worlds
from slca_jax.train.methods import changes
from slca_jax.train.settings import RLConfig, SFTConfig
from slca_jax.train.teacher_settings import SynthesizeConfig

pytestmark = pytest.mark.timeout(900)

ROOT = pathlib.Path(__file__).parents[1]
PAGES = [ROOT / 'README.md', *sorted((ROOT / 'docs').glob('*.md'))]
EXTENDING, TUTORIAL = ROOT / 'docs' / 'extending.md', ROOT / 'docs' / 'tutorial.md'
CLASSES = {
  'train_rl': RLConfig, 'train_sft': SFTConfig, 'prepare_data': Preparation, 'evaluate': EvaluateConfig,
  'ksweep': KSweepConfig, 'synthesize': SynthesizeConfig, 'study': StudyConfig, 'plan': RLConfig,
  'quickstart': QuickstartConfig,
}  # fmt: skip
KINDS = ('rl', 'sft', 'data', 'evaluate', 'study', 'toolverse', 'ksweep', 'quickstart')
LAUNCHED = re.compile(r'launch/(\w+)\.py$')
OMITTED = '…'  # stands for something of the reader's
LONGEST = 125  # columns of a page
MOST = 30  # lines of an example


def blocks(page, language):
  """The code blocks of a page in one language."""
  return re.findall(rf'^```{language}\n(.*?)^```$', page.read_text('utf-8'), re.MULTILINE | re.DOTALL)


def commands(text):
  """The words of every command of a shell script that starts a launcher, with the script's own variables filled in."""
  text = re.sub(r"<<'(\w+)'.*?\n\1\n", '\n', text, flags=re.DOTALL).replace('\\\n', ' ')
  variables = {}
  for name, quoted, plain in re.findall(r'^(?:export )?(\w+)=(?:"([^"]*)"|(\S+))', text, re.MULTILINE):
    variables[name] = re.sub(r'\$(\w+)', lambda found: variables.get(found[1], found[0]), quoted or plain)
  for line in text.splitlines():
    filled = re.sub(r'\$(\w+)', lambda found: variables.get(found[1], found[0]), line)
    words = shlex.split(filled.replace('[', ' ').replace(']', ' '), comments=True) if 'launch/' in filled else []
    if any(LAUNCHED.search(word) for word in words) and any(word.startswith('--config') for word in words):
      yield words


def shown(page):
  """All commands of a page's code blocks, indented ones included, and those that stand in its text."""
  text = page.read_text('utf-8')
  inline = [code for code in re.findall(r'`([^`\n]+)`', re.sub(r'^```.*?^```$', '', text, flags=re.M | re.S))]
  indented = '\n'.join(line[4:] for line in text.splitlines() if line.startswith('    '))
  for script in (''.join(blocks(page, 'bash')), *blocks(page, 'console'), indented, *inline):
    yield from commands(script)


def configured(words):
  """(launcher, ConfigDict with what the command sets); a value that is only hinted at, as in KEY=…, stays as it was."""
  launcher = next(found[1] for word in words if (found := LAUNCHED.search(word)))
  usual = re.search(r"DEFINE_config_file\(\s*'config', '([^']+)'", (ROOT / 'launch' / f'{launcher}.py').read_text())
  given = [word.removeprefix('--config=') for word in words if word.startswith('--config=') and OMITTED not in word]
  path, _, argument = (given or [usual[1]])[0].partition(':')
  config = loaded(path).get_config(*([argument] if argument else []))
  for word in words:
    if word.startswith('--config.') and word != '--config.KEY=VALUE':
      key, _, value = word.removeprefix('--config.').partition('=')
      put(config, key, value, word)
  return launcher, config


def loaded(path):
  spec = importlib.util.spec_from_file_location('config_of_a_page', ROOT / path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def put(config, key, value, word):
  *groups, last = key.split('.')
  for group in groups:
    assert group in config, f'{word}: there is no group {group!r}'
    config = config[group]
  assert last in config, f'{word}: {last!r} is not a setting'
  before = config[last]
  if value == OMITTED:
    return
  if isinstance(before, bool):
    config[last] = {'True': True, 'False': False, '': True}[value]
  elif isinstance(before, tuple):
    config[last] = ast.literal_eval(value) if value.startswith('(') else tuple(value.split(','))
  else:
    config[last] = type(before)(value) if before is not None else value


@pytest.fixture
def extended(tmp_path, monkeypatch):
  """A folder with the files of the page's Python blocks; where their names repeat, one below the other."""
  for code in blocks(EXTENDING, 'python'):
    name = re.match(r'# (\w+\.py)\n', code)[1]
    with open(tmp_path / name, 'a', encoding='utf-8') as file:
      file.write(code)
  monkeypatch.chdir(tmp_path)
  monkeypatch.syspath_prepend(tmp_path)
  yield tmp_path
  for module in ('worlds', 'rewards', 'estimators'):
    sys.modules.pop(module, None)


def own_task(extended):
  tools = own.load('worlds.py:TOOLS', setting='a')
  gold = ((ToolCall('get_price', {'item': 'Lamp'}),),)
  return Task('lamp', tools, (Message('user', 'What is a lamp?'),), gold, answer='31.', facts=('31',))


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_builds(page, extended):
  del extended  # where the files of docs/extending.md lie
  for words in shown(page):
    launcher, config = configured(words)
    told = build(CLASSES[launcher], config)
    assert isinstance(told, CLASSES[launcher]), words


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.name)
def test_every_setting_that_a_page_names_exists_somewhere(page):
  known = [loaded(f'configs/{name}.py').get_config() for name in KINDS]
  lines = [line for line in page.read_text('utf-8').splitlines() if 'is not a setting' not in line]  # shows a mistake
  for key in set(re.findall(r'--config\.([\w.]+\w)', '\n'.join(lines))) - {'KEY'}:
    assert any(_has(config, key) for config in known), f'{page.name}: --config.{key} is no setting'


def _has(config, key):
  for part in key.split('.'):
    if not hasattr(config, 'keys') or part not in config:
      return False
    config = config[part]
  return True


@pytest.mark.parametrize('page', [EXTENDING, TUTORIAL], ids=lambda page: page.name)
def test_pages_are_narrow_and_name_files_that_are_there(page):
  for number, line in enumerate(page.read_text('utf-8').splitlines(), 1):
    assert len(line) <= LONGEST, f'{page.name}:{number} has {len(line)} columns'
  for name in re.findall(r'\b(?:slca_jax|launch|configs|docs|benchmarks)/[\w/.]+\.(?:py|sh|md)\b', page.read_text()):
    assert (ROOT / name).is_file(), f'{page.name} names {name}'


def test_examples_are_short():
  for code in blocks(EXTENDING, 'python'):
    assert code.count('\n') <= MOST, code


def test_the_pages_worlds_answer(extended):
  task = own_task(extended)
  lamp, sofa = ToolCall('get_price', {'item': 'Lamp'}), ToolCall('get_price', {'item': 'Sofa'})
  open_shop = own.load('worlds.py:open_shop', setting='a')
  good, bad = asyncio.run(open_shop(task, 0).step([lamp, sofa]))
  assert (good.content, good.ok) == ('{"item": "Lamp", "price": 31}', True)
  assert not bad.ok and "there is no item 'Sofa'" in bad.content
  [seen] = asyncio.run(own.load('worlds.py:open_service', setting='a')(task, 0).step([lamp]))
  assert seen.content == '{"price": 31}'
  basket = own.load('worlds.py:Basket', setting='a')
  calls = [ToolCall('put', {'item': 'Lamp'}), ToolCall('take', {}), ToolCall('put', {'item': 'Chair'})]
  assert [seen.ok for seen in asyncio.run(basket(task, 0).step(calls))] == [True, False, True]
  assert asyncio.run(basket(task, 0).step(calls[:1]))[0].content == '1 in the basket'


def test_the_pages_commands_are_rehearsed_as_a_run_would(extended):
  rehearsed = 0
  for words in shown(EXTENDING):
    launcher, config = configured(words)
    if launcher == 'train_rl' and config.environment.backend != 'mcp':
      built = build(RLConfig, config)
      worlds.check_method(built.method, built.scoring)
      rehearsal.rehearse(built, [own_task(extended)])
      rehearsed += bool(rehearsal.sources(built))
  assert rehearsed == 3


def test_the_pages_estimator_takes_the_mean_of_the_others_as_its_baseline(extended):
  estimate = own.load('estimators.py:leave_one_out', setting='a')
  assert changes('estimators.py:leave_one_out')['method.options'] == {'tool_weight': 1.0, 'summary_weight': 1.0}
  sampled_BT = np.array([[0, 1, 0, 1]] * 3, bool)  # a call, what the world answers, an answer
  rollout_BT = np.array([[-1, i, i, i] for i in range(3)], np.int32)
  told_R = np.array([1.0, 0.5, 0.0], np.float32)
  summary_R = np.array([np.nan, 1.0, 0.0], np.float32)
  rewards = Rewards(told_R, summary_R, told_R, told_R[:, None], np.zeros(3, bool), np.zeros(3, np.int32))
  segments = segment_runs(sampled_BT, rollout_BT, np.ones(3, bool))
  advantage_BT = np.asarray(estimate(rewards, segments, rollout_BT, summary_weight=2.0))
  np.testing.assert_allclose(advantage_BT[:, 1], [0.75, 0.0, -0.75], atol=1e-6)  # 1 − (0.5 + 0)/2, 0.5 − (1 + 0)/2
  np.testing.assert_allclose(advantage_BT[:, 3], [0.0, 2.0, -2.0], atol=1e-6)  # one has no score: two are left


def test_the_page_can_be_tried_without_a_run(extended, capsys):
  runpy.run_path(str(extended / 'try_it.py'))
  first, second = capsys.readouterr().out.splitlines()
  assert '"price": 31' in first and second == "1.0 1.0 {'refused': 0.0, 'beyond': 0.0}"


def test_the_tutorials_data_and_tools_are_made_and_prepared(tmp_path):
  """The page's blocks up to the data, as a reader would paste them; what trains is left out."""
  script = ''.join(blocks(TUTORIAL, 'bash'))
  script = script[: script.index('python launch/train_sft.py')].replace('runs/tutorial', str(tmp_path / 'tutorial'))
  environment = os.environ | {'PATH': f'{pathlib.Path(sys.executable).parent}:{os.environ["PATH"]}', 'XLA_FLAGS': ''}
  environment['PYTHONPATH'] = str(ROOT)
  done = subprocess.run(
    ['bash', '-euo', 'pipefail', '-c', script], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, done.stderr
  folder = tmp_path / 'tutorial'
  tasks = read_tasks(folder / 'data' / 'tasks_train.jsonl')
  assert len(tasks) > 100 and all(task.gold and task.meta['recorded'] for task in tasks)
  assert len(read_dialogues(folder / 'data' / 'dialogues_train.jsonl')) > 100
  open_task = own.load(f'{folder / "shop.py"}:open_task', setting='a')
  for task in tasks[:20]:
    [seen, *_] = asyncio.run(open_task(task, 0).step(task.gold[0]))
    assert seen.content == task.meta['recorded'][0]['content']
