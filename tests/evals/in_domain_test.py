"""Evaluations of a tiny policy: none of their rollouts is made twice, and what depends on them cannot change unseen."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from evaluation import NETWORK, evaluation, write_policy

from slca_jax.data.store import Trajectories
from slca_jax.data.tasks import write_tasks
from slca_jax.dialogue import Parsed, Scores, Status, Task, Trajectory, Turn
from slca_jax.errors import ConfigError
from slca_jax.evals import in_domain
from slca_jax.evals.measures import measures
from slca_jax.quickstart.start import write_start
from slca_jax.quickstart.world import make_task
from slca_jax.rollout.settings import Limits, LocalEngine
from slca_jax.train import settings as s

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = write_policy(tmp_path_factory.mktemp('evals'))
  write_tasks([make_task(0, 'heldout', index) for index in range(4)], folder / 'heldout.jsonl')
  return folder


def config(folder, output, **changes):
  return evaluation(folder, output, **{'tasks': str(folder / 'heldout.jsonl'), **changes})


def lines(path):
  return path.read_text().splitlines()


def test_evaluation_goes_on_with_what_is_missing_and_makes_nothing_twice(folder, tmp_path, monkeypatch):
  whole = in_domain.evaluate(config(folder, tmp_path / 'whole', samples=3))
  assert [(one.name, one.mode, one.tasks, one.rollouts) for one in whole] == [
    ('heldout', 'greedy', 4, 4),
    ('heldout', 'sampled', 4, 12),
  ]
  assert list(whole[1].pass_at) == [1, 2, 3] and not whole[0].pass_at
  sampled = tmp_path / 'parts' / 'heldout' / 'sampled'

  in_domain.evaluate(config(folder, tmp_path / 'parts', greedy=False, samples=2, limit=3, at_once=1))
  first = lines(sampled / 'results.jsonl')
  assert len(first) == 6
  # A kill between the two files leaves a rollout that has no result.
  (sampled / 'results.jsonl').write_text('\n'.join(first[:5]) + '\n' + first[5][:20])
  parts = in_domain.evaluate(config(folder, tmp_path / 'parts', samples=3))
  after = lines(sampled / 'results.jsonl')
  assert after[:5] == first[:5] and len(after) == 12
  assert parts == whole, 'neither order nor interruptions change a rollout'
  stored = Trajectories(sampled, write=False)
  made = [stored[i][0] for i in range(len(stored))]
  assert [(t.group, t.index) for t in made] == [(one['place'], one['index']) for one in map(json.loads, after)]
  assert len(made) == len({(t.group, t.index) for t in made}) == 12

  def refuse(*_):
    raise AssertionError('the model was loaded though nothing is missing')

  monkeypatch.setattr(in_domain.policy, 'load', refuse)
  assert in_domain.evaluate(config(folder, tmp_path / 'parts', samples=3)) == whole
  few = in_domain.evaluate(config(folder, tmp_path / 'parts', samples=2, limit=2))
  assert few[1].rollouts == 4, 'fewer are asked for than there are'
  for name in ('summary.json', 'table.md', 'table.tex', 'table.csv'):
    assert (tmp_path / 'parts' / name).exists()

  with pytest.raises(ConfigError, match='turns'):
    limits = Limits(turns=3, prompt_tokens=64, response_tokens=48, turn_tokens=12, observation_tokens=16)
    engine = dataclasses.replace(config(folder, tmp_path).rollout, limits=limits)
    in_domain.evaluate(config(folder, tmp_path / 'parts', rollout=engine))
  other = tmp_path / 'heldout.jsonl'
  write_tasks([make_task(1, 'heldout', 0)], other)
  with pytest.raises(ConfigError, match="holds results of other tasks by the name 'heldout'"):
    in_domain.evaluate(config(folder, tmp_path / 'parts', tasks=str(other)))


def test_failed_rollouts_are_counted_and_made_again_only_if_asked(folder, tmp_path):
  tight = s.RolloutSettings(
    limits=Limits(turns=2, prompt_tokens=5, response_tokens=48, turn_tokens=12, observation_tokens=16),
    local=LocalEngine(slots=8, context=128),
  )
  path = tmp_path / 'out' / 'heldout' / 'greedy' / 'results.jsonl'
  for redo, count in ((False, 2), (False, 2), (True, 4)):
    [found] = in_domain.evaluate(config(folder, tmp_path / 'out', rollout=tight, limit=2, redo_failed=redo))
    assert found.status == {'failed': 2} and not found.scores and len(lines(path)) == count
  assert 'the limit is 5' in json.loads(lines(path)[0])['error']


def test_a_model_that_answers_for_itself_as_the_summariser_says_what_it_says_alone(folder, tmp_path):
  alone = in_domain.evaluate(config(folder, tmp_path / 'alone', limit=2))
  summariser = config(folder, tmp_path).model
  assert in_domain.evaluate(config(folder, tmp_path / 'two', limit=2, summariser=summariser)) == alone
  write_start(tmp_path / 'other', seed=0, network=dataclasses.replace(NETWORK, context=256), samples=1)
  other = dataclasses.replace(summariser, path=str(tmp_path / 'other'))
  with pytest.raises(ConfigError, match='its tokenizer is not that of'):
    in_domain.evaluate(config(folder, tmp_path / 'mixed', limit=2, summariser=other))
  with pytest.raises(ConfigError, match=r'two stages need rollout\.engine=local'):
    servers = s.RolloutSettings(engine='sglang', urls='http://localhost:1')
    config(folder, tmp_path, rollout=servers, summariser=summariser)


def test_mark_of_weights_changes_with_any_of_them(tmp_path):
  path = tmp_path / 'model.safetensors'
  path.write_bytes(bytes(1000))
  before = in_domain.weights_mark(tmp_path)
  assert before == in_domain.weights_mark(tmp_path)
  path.write_bytes(bytes(500) + b'1' + bytes(499))
  assert in_domain.weights_mark(tmp_path) != before


def test_measures_of_a_rollout_are_its_scores_counts_and_lengths():
  turn = Turn((1, 2, 3), (0.0,) * 3, '', Parsed(), reply=(4, 5))
  trajectory = Trajectory(Task('t', (), ()), 0, 0, (9, 9), (turn, Turn((6,), (0.0,), '', Parsed())), Status.FINISHED)
  process = dict.fromkeys(('format', 'name', 'parallel', 'total', 'opens', 'closes', 'valid', 'calls'), 1)
  process |= {'key': 0.5, 'value': 0.25, 'gold_calls': 2}
  reported = {'tool': 1.0, 'summary': None, 'outcome': None}
  why = {'process': process, 'success': True, 'judge_failed': True, 'reported': reported}
  found = measures(trajectory, Scores(1.0, why=why))
  assert found['arguments'] == 0.375 and found['success'] == 1.0 and found['summary'] is None
  assert found['prompt_tokens'] == 2 and found['sampled_tokens'] == 4 and found['response_tokens'] == 6
  assert found['no_call'] == 1 and found['parsed'] == 0 and found['turns'] == 2 and found['gold_calls'] == 2
  assert measures(dataclasses.replace(trajectory, status=Status.FAILED), Scores(why={'failed': 'x'})) == {}


@pytest.mark.parametrize(
  ('arguments', 'says'),
  [
    ([], 'ConfigError: tasks is empty'),
    (['--config.sampels=3'], 'sampels'),
    (['--config=configs/evaluate.py:sampeld'], 'sampeld'),
    (['--compare=a'], '--compare takes two folders'),
    (['--compare=nowhere/a,nowhere/b'], "'nowhere/b' holds no evaluation"),
    (['--average=nowhere'], "'nowhere' holds no summary.json"),
  ],
)
def test_launcher_refuses_a_mistake_by_name(arguments, says):
  command = [sys.executable, str(ROOT / 'launch' / 'evaluate.py'), *arguments]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
  assert done.returncode != 0 and says in done.stderr
