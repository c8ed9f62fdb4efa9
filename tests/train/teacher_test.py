"""A teacher tries tasks in fresh worlds of their blueprints, on any engine; what cannot run is refused at once."""

import asyncio
import dataclasses
import json

import pytest
from fakes import ScriptedSampler, broken_engine
from raw_schemas import tool
from sglang_stand_in import StandIn

from slca_jax.chat.calls import render
from slca_jax.chat.template import Template, load_template
from slca_jax.config import build
from slca_jax.data.tasks import read_tasks
from slca_jax.dialogue import Status
from slca_jax.envs.sandbox import SandboxSettings
from slca_jax.errors import ConfigError, WeightsError
from slca_jax.nn.config import TransformerConfig
from slca_jax.quickstart.start import write_start
from slca_jax.toolverse.filters import full_trace, solved
from slca_jax.toolverse.run import make
from slca_jax.toolverse.world import blueprint_opener
from slca_jax.train.teacher import name_of, teach, teacher_of
from slca_jax.train.teacher_settings import SynthesizeConfig, TeacherSettings

NETWORK = TransformerConfig(layers=1, width=16, hidden=32, heads=2, kv_heads=1, head_dim=8, context=2048)
LIMITS = {'turns': 8, 'prompt_tokens': 1500, 'response_tokens': 500, 'turn_tokens': 8}


SHOP = [
  tool('list_customers'),
  tool('list_orders', 'customer_id'),
  tool('get_order', 'order_id'),
  tool('cancel_order', 'order_id'),
]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A folder with a random policy, the schemas of a shop, and a run without a teacher."""
  folder = tmp_path_factory.mktemp('teacher')
  write_start(folder / 'start', seed=0, network=NETWORK, samples=30)
  (folder / 'tools.json').write_text(json.dumps({'shop': {'tools': SHOP}}))
  make(config(folder))
  return folder


def config(folder, **teacher):
  tasks = {'samples': 6, 'most': 3, 'shortest': 2, 'longest': 4}
  values = {'schemas': str(folder / 'tools.json'), 'output': str(folder / 'run'), 'tasks': tasks, 'teacher': teacher}
  return build(SynthesizeConfig, values)


def random_teacher(folder, **changes):
  rollout = {'limits': LIMITS, 'local': {'slots': 4, 'context': 2048}}
  model = {'path': str(folder / 'start'), 'dtype': 'float32', 'remat': 'none'}
  return config(folder, **{'model': model, 'rollout': rollout, 'band': {'attempts': 2, 'least': 0}, **changes})


def tasks_of(folder):
  make(config(folder))
  return read_tasks(folder / 'run' / 'tasks.jsonl')


def attempts(folder, script, number=1):
  """What each attempt at each task was, made with a scripted engine in the tasks' worlds."""
  template = load_template(folder / 'start')
  tasks = {task.id: task for task in tasks_of(folder)}
  turns: dict[str, int] = {}

  def say(session, tokens):
    del tokens
    turns[session] = turns.get(session, -1) + 1
    task = next(task for name, task in tasks.items() if f'/{name}/' in session)
    return template.encode(script(task, turns[session]) + '<|im_end|>')

  sampler = ScriptedSampler(say if script else broken_engine, concurrency=2)
  settings = TeacherSettings(rollout=dataclasses.replace(TeacherSettings().rollout, limits=roomy()))
  made = []

  async def work(solve):
    made.extend(await asyncio.gather(*(solve(task, n) for task in tasks.values() for n in range(number))))

  open_task = blueprint_opener(str(folder / 'run' / 'blueprints'), SandboxSettings())
  asyncio.run(teach(sampler, template, open_task, settings, work))
  return made, sampler


def roomy():
  return dataclasses.replace(TeacherSettings().rollout.limits, turns=10)


def golden(task, turn):
  """What a perfect teacher says."""
  if turn < len(task.gold):
    return '\n'.join(map(render, task.gold[turn]))
  return f'Done: {", ".join(task.facts)}'


def test_a_teacher_that_plays_the_golden_trace_solves_every_task_by_state_and_by_trace(folder):
  made, sampler = attempts(folder, golden, number=2)
  assert len(made) == 6 and all(solved(one) and full_trace(one.trajectory) for one in made)
  assert [one.changes for one in made] == [one.trajectory.task.meta['changes'] for one in made]
  assert sampler.most_live <= 2 and len(set(sampler.released)) == 6


def test_calls_in_another_order_and_more_of_them_solve_by_state_only(folder):
  def script(task, turn):
    listing = '<tool_call>\n{"name": "list_customers", "arguments": {}}\n</tool_call>'
    return listing if turn == 0 else golden(task, turn - 1)

  made, _ = attempts(folder, script)
  assert all(map(solved, made)) and not any(full_trace(one.trajectory) for one in made)


def test_a_teacher_that_only_talks_solves_nothing(folder):
  made, _ = attempts(folder, lambda task, turn: f'All done: {", ".join(task.facts)}')
  assert made and not any(map(solved, made)) and {one.changes is None for one in made} == {True}


def test_a_broken_engine_fails_attempts_and_not_the_run(folder):
  made, _ = attempts(folder, None)
  assert {one.trajectory.status for one in made} == {Status.FAILED}


def test_the_embedded_engine_tries_tasks_once(folder):
  settings = random_teacher(folder)
  teacher = teacher_of(settings)
  table = make(settings, teacher=teacher)
  tasks = read_tasks(folder / 'run' / 'tasks.jsonl')
  assert tasks and all(task.meta['teacher']['passed'] == 0 and task.meta['teacher']['scored'] == 2 for task in tasks)
  assert table.splitlines()[-1].startswith('| tasks that a teacher solves 0 to 2 of 2 times | 1 |')

  def gone(work):
    raise AssertionError('the engine was opened again')

  assert make(settings, teacher=dataclasses.replace(teacher, run=gone)) == table
  hard = dataclasses.replace(random_teacher(folder, band={'attempts': 2}), output=settings.output)
  assert '| 0 |' in make(hard, teacher=dataclasses.replace(teacher, band=hard.teacher.band, run=gone)).splitlines()[-1]


def test_servers_try_tasks_with_the_weights_they_have(folder):
  server = StandIn(context=4096)
  try:
    rollout = {'engine': 'sglang', 'urls': server.url, 'limits': LIMITS}
    settings = random_teacher(folder, rollout=rollout)
    make(settings, teacher=teacher_of(settings))
    small = random_teacher(folder, rollout={**rollout, 'limits': {**LIMITS, 'prompt_tokens': 4000}})
    with pytest.raises(ConfigError, match='takes 4096 tokens, the longest rollout needs 4500'):
      teacher_of(small)
  finally:
    server.kill()
  tasks = read_tasks(folder / 'run' / 'tasks.jsonl')
  assert tasks and {task.meta['teacher']['scored'] for task in tasks} == {2}
  assert {path for path, _, _ in server.calls} == {'/server_info', '/generate'}
  with pytest.raises(ConfigError, match='does not listen'):
    teacher_of(settings)


def test_a_teachers_name_tells_what_matters_and_not_where_it_stands(folder):
  settings = random_teacher(folder).teacher
  assert name_of(settings).startswith('start ')
  moved = dataclasses.replace(settings.rollout, local=dataclasses.replace(settings.rollout.local, slots=8))
  assert name_of(dataclasses.replace(settings, rollout=moved)) == name_of(settings)
  warm = dataclasses.replace(settings.rollout, decoding=dataclasses.replace(settings.rollout.decoding, temperature=1.0))
  others = [{'rollout': warm}, {'success': 'trace'}, {'seed': 1}]
  assert len({name_of(settings), *(name_of(dataclasses.replace(settings, **other)) for other in others)}) == 4


@pytest.mark.parametrize(
  ('changes', 'says'),
  [
    ({'model': {'path': './nowhere'}}, "model.path is './nowhere'; there is no such folder"),
    ({'rollout': {'limits': LIMITS, 'local': {'context': 4096}}}, 'context is 4096, the model has 2048 positions'),
    ({'rollout': {'limits': LIMITS, 'local': {'context': 1024}}}, 'context is 1024'),
    ({'rollout': {'engine': 'sglang'}}, 'urls is empty'),
    ({'rollout': {'decoding': {'temperature': 0.0}}}, 'greedy attempts are all alike'),
    ({'band': {'attempts': 4, 'least': 3, 'most': 2}}, 'least is 3 and most 2'),
  ],
)
def test_a_teacher_that_cannot_run_is_refused_before_anything_is_made(folder, changes, says):
  with pytest.raises(ConfigError) as caught:
    teacher_of(random_teacher(folder, **changes))
  assert says in str(caught.value)


def test_a_folder_that_is_no_checkpoint_is_refused_and_no_path_is_no_teacher(folder, tmp_path):
  assert teacher_of(config(folder)) is None
  load_template(folder / 'start')
  for name in ('tokenizer.json', 'tokenizer_config.json', 'chat_template.jinja'):
    if (folder / 'start' / name).exists():
      (tmp_path / name).write_bytes((folder / 'start' / name).read_bytes())
  with pytest.raises(WeightsError, match=r'config\.json'):
    teacher_of(random_teacher(folder, model={'path': str(tmp_path)}))
  assert isinstance(load_template(tmp_path), Template)
