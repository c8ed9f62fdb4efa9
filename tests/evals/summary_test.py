"""Results on disk and what is told of them: absent stays absent, comparisons pair tasks, K-sweeps get their tables."""

import json

import pytest

from slca_jax.config import build
from slca_jax.data.folders import write_json
from slca_jax.errors import ConfigError
from slca_jax.evals import results
from slca_jax.evals.settings import EvaluateConfig, named_files
from slca_jax.evals.statistics import Sampling
from slca_jax.evals.summary import average, compare, summarise, tables, write_summary
from slca_jax.evals.tables import markdown

FEW = Sampling(resamples=200)


def record(place, index=0, status='finished', **measures):
  return {'place': place, 'index': index, 'task': f't{place}', 'status': status, 'error': '', 'measures': measures}


def evaluated(folder, records, *, name='heldout', digest='1'):
  """A folder as an evaluation leaves it."""
  (folder / name / 'greedy').mkdir(parents=True)
  lines = ''.join(json.dumps(one) + '\n' for one in records)
  (folder / name / 'greedy' / 'results.jsonl').write_text(lines)
  write_json(folder / 'tasks.json', {name: digest})
  write_summary(folder, [summarise(name, 'greedy', results.read(folder, name, 'greedy'), FEW)], FEW)
  return folder


def test_means_are_over_tasks_and_what_is_absent_is_counted_not_zero():
  records = [
    record(0, 0, process=1.0, summary=0.5),
    record(0, 1, process=0.5, summary=None),
    record(1, 0, process=0.0, summary=None),
    record(1, 1, status='failed'),
    record(2, 0, status='failed'),
  ]
  found = summarise('heldout', 'sampled', records, FEW)
  # Task 0 has 0.75, task 1 has 0; task 2 has nothing.
  assert found.scores['process'].mean == 0.375 and found.scores['process'].absent == 1
  assert (
    found.scores['summary'].mean == 0.5 and found.scores['summary'].count == 1 and found.scores['summary'].absent == 2
  )
  assert (found.tasks, found.rollouts, found.status) == (3, 5, {'finished': 3, 'failed': 2})


def test_pass_rates_are_over_tasks_with_enough_rollouts():
  outcomes = {0: [1, 1, 0, 0], 1: [0, 0, 0, 0], 2: [1, 1]}
  records = [record(place, i, success=float(s)) for place, passed in outcomes.items() for i, s in enumerate(passed)]
  found = summarise('heldout', 'sampled', records, FEW)
  assert list(found.pass_at) == list(found.pass_all) == [1, 2, 4]
  assert found.pass_at[1].mean == pytest.approx((0.5 + 0 + 1) / 3)
  # Of two among four with two passed: 1 − C(2,2)/C(4,2) = 5/6 hold one, C(2,2)/C(4,2) = 1/6 hold two.
  assert found.pass_at[2].mean == pytest.approx((5 / 6 + 0 + 1) / 3)
  assert found.pass_all[2].mean == pytest.approx((1 / 6 + 0 + 1) / 3)
  assert found.pass_at[4].mean == 0.5 and found.pass_at[4].absent == 1
  assert not summarise('heldout', 'greedy', [record(0, success=1.0)], FEW).pass_at


def test_nothing_but_failures_has_no_scores_and_still_a_table():
  found = summarise('heldout', 'greedy', [record(0, status='failed')], FEW)
  assert not found.scores
  [scores, *_] = tables([found], FEW)
  assert '| heldout | greedy | 1 | – | – |' in markdown(scores)


def test_rollout_that_was_made_again_counts_once_as_it_is_now():
  again = [record(0, status='failed'), record(1, process=0.0), record(0, process=1.0)]
  assert [one['status'] for one in results.latest(again)] == ['finished', 'finished']


def test_sweep_gets_a_table_for_each_kind_of_distractors_by_growing_size():
  names = ['hard_k20', 'hard_k5', 'random_k5', 'bench.hard_k0', 'bench.hard_k5', 'heldout', 'hard_kx']
  found = [summarise(name, 'greedy', [record(0, process=0.5, success=1.0)], FEW) for name in names]
  hard, random, other = [table for table in tables(found, FEW) if table.columns[0] == 'K']
  assert hard.title.startswith('Hard distractors') and [row[0] for row in hard.rows] == [5, 20]
  assert [row[0] for row in random.rows] == [5]
  assert other.title.startswith('bench, hard distractors') and [row[0] for row in other.rows] == [0, 5]


def test_comparison_pairs_tasks_and_tells_when_it_is_clear(tmp_path):
  first = evaluated(tmp_path / 'a', [record(i, process=0.25 + i / 100, turns=3.0) for i in range(20)])
  second = evaluated(tmp_path / 'b', [record(i, process=0.5 + i / 100) for i in range(1, 21)])
  [table] = compare(first, second, FEW)
  rows = {row[0]: row for row in table.rows}
  _, before, after, found, clear, higher, lower, tasks, unpaired = rows['process']
  assert found.estimate.mean == pytest.approx(0.25) and after - before == pytest.approx(0.25)
  assert (clear, higher, lower, tasks, unpaired) == ('yes', 19, 0, 19, 2)
  assert rows['turns'][3].estimate.mean is None and rows['turns'][8] == 20
  assert '| process |' in markdown(table) and 'a → b' in table.title


def test_comparison_of_what_cannot_be_compared_is_refused(tmp_path):
  first = evaluated(tmp_path / 'a', [record(0, process=1.0)])
  with pytest.raises(ConfigError, match='have no file of tasks and way to decode in common'):
    compare(first, evaluated(tmp_path / 'b', [record(0, process=1.0)], name='other'), FEW)
  with pytest.raises(ConfigError, match="'heldout' stands for different tasks"):
    compare(first, evaluated(tmp_path / 'c', [record(0, process=1.0)], digest='2'), FEW)
  with pytest.raises(ConfigError, match='holds no evaluation'):
    compare(first, tmp_path / 'nowhere', FEW)


def test_average_over_runs_is_mean_and_sample_deviation(tmp_path):
  runs = [evaluated(tmp_path / str(i), [record(0, process=value)]) for i, value in enumerate([0.25, 0.5, 0.75])]
  [row] = average(runs).rows
  cells = dict(zip(average(runs).columns, row, strict=True))
  assert cells['runs'] == 3 and (cells['process'].mean, cells['process'].std) == (0.5, 0.25)
  assert cells['summary'].mean is None


def test_benchmarks_are_not_averaged_as_tasks_of_ones_own(tmp_path):
  write_json(tmp_path / 'summary.json', [{'title': 'BFCL V4', 'columns': ['category'], 'rows': []}])
  with pytest.raises(ConfigError, match='is of a benchmark, whose numbers'):
    average([tmp_path])


def test_files_go_by_their_stems_or_a_name_of_their_own(tmp_path):
  for name in ('a.jsonl', 'b.jsonl'):
    (tmp_path / name).write_text('')
  found = named_files(f'{tmp_path}/a.jsonl, other={tmp_path}/b.jsonl')
  assert list(found) == ['a', 'other'] and found['other'].name == 'b.jsonl'


@pytest.mark.parametrize(
  ('tasks', 'says'),
  [
    ('', 'tasks is empty'),
    ('{0}/none.jsonl', 'there is no such file'),
    ('{0}/a.jsonl,{0}/a.jsonl', "names two files 'a'"),
    ('x/y={0}/a.jsonl', "'x/y' cannot name a folder"),
  ],
)
def test_files_that_cannot_be_told_apart_are_refused(tmp_path, tasks, says):
  (tmp_path / 'a.jsonl').write_text('')
  with pytest.raises(ConfigError, match=says):
    named_files(tasks.format(tmp_path))


@pytest.mark.parametrize(
  ('change', 'says'),
  [
    ({'greedy': False}, 'greedy is False and samples 0; nothing would be rolled out'),
    ({'samples': -1}, 'samples is -1'),
    ({'at_once': 0}, 'at_once is 0'),
    ({'judge': {'noise': 0.3}}, 'those are for training'),
    ({'rollout': {'decoding': {'temperature': 0.0}}}, 'greedy rollouts are made by greedy=True'),
    ({'judge': {'kind': 'llm'}}, 'judge.endpoint.model is empty'),
    ({'intervals': {'resamples': 1}}, 'resamples is 1'),
  ],
)
def test_evaluation_that_cannot_run_is_refused(change, says):
  with pytest.raises(ConfigError) as caught:
    build(EvaluateConfig, change)
  assert says in str(caught.value)
