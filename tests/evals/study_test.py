"""A study makes what is missing, survives failures and interruptions, and says what its numbers say."""

import dataclasses
import json
import os
import pathlib
import signal

import numpy as np
import pytest

from slca_jax.config import as_dict, build, defaults
from slca_jax.data.folders import write_json
from slca_jax.errors import ConfigError
from slca_jax.evals import study, study_claims, study_results, study_tables
from slca_jax.evals.statistics import Estimate, Sampling
from slca_jax.evals.study_settings import (
  Job,
  StudyConfig,
  assignments,
  base_of,
  evaluation_settings,
  is_planner,
  job_of,
  judge_of,
  mark,
  needed,
  run_settings,
  runs,
  selected,
)
from slca_jax.quickstart import breakeven
from slca_jax.rewards.judge import verdict_of
from slca_jax.train.checkpoint import same_run

CELLS = ('slca', 'summary_to_tool', 'tool_to_summary', 'both_open')


def config(folder='runs/study', **changes):
  fields = {'seeds': (0, 1), 'methods': ('grpo', 'slca'), 'intervals': Sampling(resamples=200)}
  return StudyConfig(output=str(folder), **{**fields, **changes})


def test_grid_has_every_run_once_and_sweeps_their_methods_alone():
  grid = config(methods=('grpo', 'slca', 'tara'), regimes=('plain', 'bias=0.25'), sweep=('bias=0.25', 'bias=0.5'))
  names = [job.name for job in runs(grid)]
  assert len(names) == len(set(names)) == 2 * (3 + 3 + 2)
  assert 'bias=0.5/slca/1' in names and 'bias=0.5/tara/1' not in names


def test_selection_is_by_patterns_and_none_is_refused():
  assert [job.name for job in selected(config(select='bias*/slca/*, noise*/grpo/1'))] == [
    'bias=0.25/slca/0',
    'noise=0.3/grpo/1',
    'bias=0.25/slca/1',
  ]
  with pytest.raises(ConfigError, match="select is 'biased/"):
    selected(config(select='biased/*'))


@pytest.mark.parametrize(
  ('text', 'judge'),
  [
    ('plain', {}),
    ('noise=0.3', {'noise': 0.3}),
    ('noise=0.1+bias=0.425+bias_turns=2', {'noise': 0.1, 'bias': 0.425, 'bias_turns': 2}),
  ],
)
def test_regimes_say_how_the_judge_is_disturbed(text, judge):
  assert judge_of(text) == judge


@pytest.mark.parametrize('text', ['', 'noise', 'noise=x', 'nose=0.3', 'noise=0.3,bias=0.2', 'noise=-1'])
def test_other_regimes_are_refused(text):
  with pytest.raises(ConfigError, match='is no regime'):
    config(regimes=(text,))


@pytest.mark.parametrize(
  ('changes', 'says'),
  [
    ({'methods': ('slac',)}, "did you mean 'slca'"),
    ({'seeds': ()}, 'seeds or methods is empty'),
    ({'world': 'own'}, 'rl.data.heldout is empty'),
    ({'changes': 'steps'}, "changes holds 'steps'"),
    ({'overrides': ('rltr: steps=2',)}, "overrides names 'rltr'"),
    ({'overrides': ('slca steps=2',)}, "overrides holds 'slca steps=2'"),
    ({'overrides': ('slca: steps',)}, "overrides holds 'steps'"),
  ],
)
def test_settings_that_cannot_work_are_refused(changes, says):
  with pytest.raises(ConfigError, match=says):
    config(**changes)


def test_methods_of_a_regime_differ_in_their_method_and_folder_alone():
  ours, theirs = (as_dict(run_settings(config(), Job('noise=0.3', method, 0))) for method in ('slca', 'grpo'))
  changed = same_run(ours, theirs)
  assert changed and all(line.startswith(("['method']", "['output']")) for line in changed)
  assert ours['judge']['noise'] == 0.3 and ours['judge']['bias'] == 0.0


def test_changes_reach_every_run_and_overrides_one_method():
  grid = config(changes='steps=2; optimizer.learning_rate=1e-4', overrides=('slca: group_size=4',))
  mine, theirs = (run_settings(grid, Job('plain', method, 1)) for method in ('slca', 'grpo'))
  assert (mine.steps, mine.group_size, mine.optimizer.learning_rate, mine.seed) == (2, 4, 1e-4, 1)
  assert (theirs.steps, theirs.group_size) == (2, 16)
  assert assignments('a.b = [1, 2]; c=x') == {'a.b': [1, 2], 'c': 'x'}


def test_a_config_file_overrides_settings_of_any_method():
  file = defaults(StudyConfig)
  file.methods = ('grpo', 'slca', 'ratio_0.5')
  file.overrides = ('ratio_0.5: optimizer.learning_rate=1e-4; model.path=elsewhere', 'ratio_0.5: steps=3')
  grid = build(StudyConfig, file)
  made, other = (run_settings(grid, Job('plain', method, 0)) for method in ('ratio_0.5', 'grpo'))
  assert (made.optimizer.learning_rate, made.model.path, made.steps) == (1e-4, 'elsewhere', 3)
  assert other.model.path != 'elsewhere' and other.steps != 3


def test_evaluations_are_alike_whatever_was_trained(tmp_path):
  grid = config(tmp_path, methods=('slca', 'uniform', 'rltr'))
  write = tmp_path / 'start' / '0' / 'heldout.jsonl'
  write.parent.mkdir(parents=True)
  write.write_text('')
  mine, theirs, planned = (evaluation_settings(grid, Job('bias=0.25', m, 0)) for m in ('slca', 'uniform', 'rltr'))
  assert mine.scoring == theirs.scoring and mine.judge.bias == 0.0
  assert not mine.summariser.path and planned.summariser.path == base_of(grid, 0)['model']['path']


def test_planners_start_from_demonstrations_of_their_own():
  grid = config(methods=('slca', 'rltr'))
  assert is_planner('rltr_judge') and not is_planner('slca')
  assert [job.name for job in needed(grid, Job('plain', 'rltr', 1))] == ['start/1', 'planner/1']
  assert run_settings(grid, Job('plain', 'rltr', 1)).model.path.endswith('planner/1/sft/model')


def test_own_runs_put_the_seed_into_their_paths():
  rl = {'data': {'train': 't/{seed}.jsonl', 'heldout': 'h.jsonl'}, 'model': {'path': 'm/{seed}'}}
  grid = {'world': 'own', 'rl': rl, 'methods': ('slca', 'rltr'), 'seeds': (3,)}
  grid = build(StudyConfig, grid | {'overrides': ('rltr: model.path=p/{seed}',)})
  made, planner = (run_settings(grid, Job('plain', method, 3)) for method in ('slca', 'rltr'))
  assert planner.model.path == 'p/3'
  assert (made.model.path, made.data.train, made.seed) == ('m/3', 't/3.jsonl', 3)
  assert [job.name for job in needed(grid, Job('plain', 'rltr', 3))] == ['start/3']


@pytest.fixture
def mine(tmp_path, monkeypatch):
  """A folder of estimators of one's own, which is where the study is started."""
  (tmp_path / 'mine.py').write_text('def half(rewards, segments, rollout_BT, *, share=0.5): ...\n')
  (tmp_path / 'other.py').write_text('def half(rewards, segments, rollout_BT): ...\n')
  monkeypatch.chdir(tmp_path)
  heldout(tmp_path / 'study')
  return tmp_path / 'mine.py'


def test_an_estimator_of_ones_own_is_a_method_like_any_other(mine):
  grid = config('study', methods=('slca', 'mine.py:half'), overrides=('mine.py:half: group_size=4',))
  job = job_of(grid, 'noise=0.3/half/1')
  assert job == Job('noise=0.3', 'mine.py:half', 1) and job.name == 'noise=0.3/half/1'
  made = run_settings(grid, job)
  assert (made.method.estimator, made.method.options, made.group_size) == ('mine.py:half', {'share': 0.5}, 4)
  with pytest.raises(ConfigError, match=r"'mine\.py:half' and 'other\.py:half' would share a folder"):
    config('study', methods=('mine.py:half',), sweep_methods=('other.py:half',))


def test_a_run_counts_as_made_only_by_the_code_that_it_was_made_with(mine):
  grid = config('study', methods=('slca', 'mine.py:half'))
  marks = lambda: [mark(grid, Job('plain', method, 0)) for method in grid.methods]
  slca, half = marks()
  mine.write_text(mine.read_text() + '# other code\n')
  assert marks()[0] == slca and marks()[1] != half


# ---- Numbers.


def scored(**scores):
  """A study of one regime with these successes by method: a list of seeds, each a list of tasks."""
  methods = tuple(scores)
  grid = config(methods=methods, regimes=('plain',), seeds=tuple(range(len(scores[methods[0]]))))
  found = {
    ('plain', method, seed): study_results.Run(
      {'success': dict(enumerate(map(float, tasks)))}, {'grad_std': 1.0 + seed}
    )
    for method, seeds in scores.items()
    for seed, tasks in enumerate(seeds)
  }
  return study_results.Study(grid, found)


def test_contrasts_are_paired_by_task_and_told_by_seed():
  found = scored(slca=[[1, 1, 0, 1], [1, 1, 1, 1]], grpo=[[0, 1, 0, 1], [0, 0, 1, 1]])
  estimate, by_seed = found.contrast('plain', {'slca': 1.0, 'grpo': -1.0})
  assert estimate.mean == pytest.approx(3 / 8) and by_seed == {0: 0.25, 1: 0.5}
  assert estimate.count == 8 and 0 <= estimate.low < estimate.mean < estimate.high
  assert found.spread('plain', 'slca', 'success').mean == pytest.approx(0.875)


def test_a_task_that_several_seeds_share_is_drawn_once_with_all_of_them():
  outcomes = [1, 0, 0, 1, 1, 0, 1, 0]
  runs = lambda seeds, digest: {
    ('plain', method, seed): study_results.Run(
      {'success': dict(enumerate(float(method == 'slca' and right) for right in outcomes))}, {}, digest
    )
    for method in ('slca', 'grpo')
    for seed in seeds
  }
  weights = {'slca': 1.0, 'grpo': -1.0}
  grid = config(methods=('slca', 'grpo'), regimes=('plain',), seeds=(0, 1, 2))
  [one, _], [same, by_seed], [other, _] = (
    study_results.Study(grid, runs(seeds, digest)).contrast('plain', weights)
    for seeds, digest in (((0,), 'a'), ((0, 1, 2), 'a'), ((0, 1, 2), ''))
  )
  assert same == one and by_seed == dict.fromkeys((0, 1, 2), 0.5)  # three looks at eight tasks are eight tasks
  assert (same.count, other.count) == (8, 24) and other.high - other.low < same.high - same.low


def test_a_training_without_gradients_is_left_out_of_their_contrast_and_is_no_zero():
  found = scored(slca=[[1], [1]], grpo=[[0], [0]])
  found.runs['plain', 'slca', 1].training.clear()
  estimate, by_seed = found.contrast('plain', {'grpo': 1.0, 'slca': -1.0}, 'grad_std')
  assert by_seed == {0: 0.0} and estimate.count == 1 and estimate.mean == 0.0


def test_support_effects_are_those_of_the_cell_means():
  # Cells 0.9 (both closed), 0.5 (summary → tool open), 0.8 (tool → summary open), 0.2 (both open).
  means = dict(zip(CELLS, (0.9, 0.5, 0.8, 0.2), strict=True))
  found = scored(**{cell: [[mean, mean]] for cell, mean in means.items()})
  effects = {name: found.contrast('plain', weights)[0].mean for name, weights in study_claims.SUPPORT.items()}
  assert effects == pytest.approx(
    {'closing summary → tool': 0.5, 'closing tool → summary': 0.2, 'interaction': -0.2}
  )  # ((0.9−0.5)+(0.8−0.2))/2, ((0.9−0.8)+(0.5−0.2))/2, (0.9−0.5)−(0.8−0.2)


def test_the_best_of_several_is_the_one_with_the_highest_mean():
  found = scored(slca=[[0.9, 0.9]], grpo=[[0.1, 0.3]], ratio_2=[[0.7, 0.5]])
  claim = study_claims.Claim('', '', {'slca': 1.0}, best_of=('grpo', 'ratio_2'))
  assert found.of_claim('plain', claim)[0].mean == pytest.approx(0.3)
  absent = dataclasses.replace(claim, best_of=('grpo', 'ratio_5'))
  assert found.of_claim('plain', absent)[0].mean is None


@pytest.mark.parametrize(
  ('interval', 'seeds', 'close', 'said'),
  [
    ((0.1, 0.3), (0.1, 0.3), None, 'holds'),
    ((0.1, 0.3), (-0.1, 0.5), None, 'holds on average'),
    ((-0.3, -0.1), (-0.1, -0.3), None, 'the opposite'),
    ((-0.3, -0.1), (0.1, -0.5), None, 'the opposite on average'),
    ((-0.1, 0.3), (0.1, 0.3), None, 'cannot be told'),
    ((0.0, 0.0), (0.0, 0.0), None, 'cannot be told'),
    ((None, None), (), None, 'not measured'),
    ((-0.01, 0.04), (0.0,), 0.05, 'holds'),
    ((0.01, 0.09), (0.0,), 0.05, 'cannot be told'),
    ((0.06, 0.09), (0.0,), 0.05, 'the opposite'),
  ],
)
def test_verdicts_come_from_interval_and_seeds(interval, seeds, close, said):
  assert study_claims.verdict(Estimate(0.1, *interval, 9), dict(enumerate(seeds)), close=close) == said


def test_claims_name_known_methods_and_only_tried_ones_are_told():
  names = {name for claim in study_claims.CLAIMS for name in (*claim.weights, *claim.best_of)}
  StudyConfig(methods=tuple(names))
  found = scored(slca=[[1] * 10, [1] * 10], grpo=[[0, 1] * 5, [1, 0] * 5])
  told = study_tables.claims_as_json(found)
  assert {one['claim'] for one in told} == {
    claim.text for claim in study_claims.CLAIMS if {*claim.weights, *claim.best_of} <= {'slca', 'grpo'}
  }
  first = told[0]
  assert first['verdict'] == 'holds' and first['estimate']['mean'] == 0.5 and first['by_seed'] == {0: 0.5, 1: 0.5}


def test_tables_show_scores_effects_claims_and_failures():
  rng = np.random.default_rng(0)
  found = scored(**{cell: rng.integers(0, 2, (2, 6)).tolist() for cell in (*CELLS, 'grpo')})
  titles = [table.title for table in study_tables.tables(found, {'plain/tara/0': 'a\nlast words'})]
  assert titles == [
    'Judge plain: scores',
    'Judge plain: behaviour and gradients',
    'Judge plain: support control',
    'Claims',
    'Runs that failed',
  ]


def test_gradients_are_told_of_a_trainings_steps(tmp_path):
  path = tmp_path / 'metrics.jsonl'
  assert study_results.gradients(path) == {}
  path.write_text('\n'.join(json.dumps({'grad_norm': norm}) for norm in (1.0, 2.0, 3.0)))
  assert study_results.gradients(path) == {'grad_mean': 2.0, 'grad_std': 1.0}
  path.write_text('\n'.join(json.dumps({'grad_norm': norm}) for norm in (1.0, None, 3.0)) + '\n{"step": 4}')
  assert study_results.gradients(path) == {'grad_mean': 2.0, 'grad_std': pytest.approx(2**0.5)}


def test_paths_break_even_where_the_judges_words_take_more_than_the_calls_gain():
  found = {path.kind: path for path in breakeven.paths()}
  assert found['three'].gain == pytest.approx(0.3) and found['mixed'].gain == pytest.approx(0.3 + 0.25 / 7)
  for path in found.values():
    assert path.price(path.bias) > path.gain >= path.price(path.bias - 0.001)
  assert found['three'].price(0.25) == 1.0 - verdict_of(0.5).score


def test_judges_that_like_other_numbers_of_turns_have_arithmetics_of_their_own():
  # Three look-ups, 3 turns → 1, gain 0.3, bias 0.25. Short of 3: rated 1 → 0.5. Short of 6: rated 0.25 → 0.
  config = StudyConfig(regimes=('bias=0.25', 'noise=0.3', 'bias=0.25+bias_turns=6'))
  told = study_tables.tables(study_results.Study(config, {}), {})
  sums = {
    table.title.split()[-1]: dict((row[0], row[-1]) for row in table.rows)
    for table in told
    if 'bias off' in table.title
  }
  assert {turns: found['three'] for turns, found in sums.items()} == pytest.approx({'3': -0.2, '6': 0.05})


# ---- Processes.


@pytest.fixture
def scripted(monkeypatch):
  """Jobs that do as they are told by their name instead of training: {name: a line of Python}."""
  told: dict[str, str] = {}

  def spawn(self, job):
    place = pathlib.Path(self._config.output) / job.name
    place.mkdir(parents=True, exist_ok=True)
    done = {'cpu_seconds': 2.0, 'resumed': False, 'settings': mark(self._config, job)}
    finish = f'import pathlib; pathlib.Path({str(place / "done.json")!r}).write_text({json.dumps(done)!r})'
    with open(self._log(job), 'ab') as log:
      return study.subprocess.Popen([study.sys.executable, '-c', told.get(job.name, finish)], stdout=log, stderr=log)

  monkeypatch.setattr(study.Crew, '_spawn', spawn)
  monkeypatch.setattr(study.study_tables, 'read', lambda grid: study_results.Study(grid, {}))
  return told


def heldout(folder, seeds=(0, 1)):
  for seed in seeds:
    (folder / 'start' / str(seed)).mkdir(parents=True, exist_ok=True)
    (folder / 'start' / str(seed) / 'heldout.jsonl').write_text('')


def test_failures_are_shown_and_tried_again_and_nothing_is_made_twice(tmp_path, scripted):
  heldout(tmp_path)
  grid, said = config(tmp_path, jobs=2), []
  scripted['noise=0.3/slca/1'] = 'import sys; sys.exit("no luck")'
  text = study.run(grid, say=said.append)
  assert 'no luck' in text and list(study.failures(grid)) == study.left(grid) == ['noise=0.3/slca/1']
  assert said[0].startswith('8 of 8 runs and 2 starts are to be made, about 60 CPU seconds each (as run_seconds says)')
  assert sum(line.endswith(': done') for line in said) == 9
  scripted.clear()
  again: list[str] = []
  assert 'no luck' not in study.run(grid, say=again.append)
  assert again[0].startswith('1 of 8 runs and 0 starts are to be made, about 2 CPU seconds each (as 7 runs took')
  assert len(again) == 2 and not study.failures(grid)


def test_a_start_that_fails_takes_its_seeds_runs_along(tmp_path, scripted):
  heldout(tmp_path)
  grid = config(tmp_path, regimes=('plain',))
  scripted['start/0'] = 'import sys; sys.exit("SFT learned nothing")'
  study.run(grid, say=lambda _: None)
  assert set(study.failures(grid)) == {'start/0', 'plain/grpo/0', 'plain/slca/0'}
  assert all(study.is_done(grid, Job('plain', method, 1)) for method in grid.methods)


def test_finished_runs_of_other_settings_are_refused(tmp_path, scripted):
  heldout(tmp_path)
  study.run(config(tmp_path, regimes=('plain',)), say=lambda _: None)
  study.run(config(tmp_path, regimes=('plain',), methods=('grpo', 'slca', 'tara')), say=lambda _: None)
  with pytest.raises(ConfigError, match='was made with other settings'):
    study.run(config(tmp_path, regimes=('plain',), changes='steps=7'), say=lambda _: None)


def test_asked_to_stop_it_ends_its_processes_and_records_no_failure(tmp_path, scripted):
  heldout(tmp_path)
  grid, said = config(tmp_path, seeds=(0,), regimes=('plain',)), []
  # The process asks its parent to stop, and then waits to be ended.
  scripted['plain/grpo/0'] = f'import os, signal; os.kill({os.getpid()}, signal.SIGTERM); signal.pause()'
  before = signal.getsignal(signal.SIGTERM)
  study.run(grid, say=said.append)
  assert signal.getsignal(signal.SIGTERM) is before
  assert said[-1] == '[2/3] plain/grpo/0: stopped; the same command goes on'
  assert not study.failures(grid) and study.left(grid) == ['plain/grpo/0', 'plain/slca/0']


def test_tables_of_no_study_are_refused(tmp_path):
  with pytest.raises(ConfigError, match='holds no study'):
    study.report(config(tmp_path))


def test_the_settings_that_a_process_reads_are_those_of_the_study(tmp_path):
  grid = config(tmp_path, changes='steps=2', sweep=('bias=0.5',))
  write_json(tmp_path / 'study.json', as_dict(grid))
  assert build(StudyConfig, json.loads((tmp_path / 'study.json').read_text())) == grid
