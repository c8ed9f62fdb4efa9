"""What the report says a token receives is what training gives it; the paper's case has the paper's numbers."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from slca_jax.dialogue import Message, Parsed, Scores, Status, Task, ToolCall, Trajectory, Turn
from slca_jax.ops.estimators import ESTIMATORS
from slca_jax.ops.segments import segment_runs
from slca_jax.report.credit import credits_of, runs_of, segments_of
from slca_jax.report.example import write_example
from slca_jax.report.reading import Sampled, Settings, sampled_in, settings_of
from slca_jax.rewards.protocols import Scoring
from slca_jax.rollout.batching import to_batch
from slca_jax.rollout.settings import Layout
from slca_jax.train.settings import Method, Objective

TASK = Task('t', (), (Message('user', 'Where?'),), gold=((ToolCall('look', {}),),))


@pytest.fixture(scope='module')
def example(tmp_path_factory):
  """(rollouts, credits by method) of the example run."""
  run = tmp_path_factory.mktemp('example')
  write_example(run)
  sampled = sampled_in(run)
  return sampled, {credit.name: credit for credit in credits_of(sampled, settings_of(run))}


def of_first_group(credit):
  """(advantage of the first run, of the last run) of the four rollouts of the paper's case."""
  return np.array([(values[0], values[-1]) for values in credit.advantages[:4]]).T


def test_the_paper_s_case_has_its_process_scores(example):
  sampled, _ = example
  assert [one.scores.tool for one in sampled[:4]] == pytest.approx([0.65, 1.0, 1.0, 0.9])
  parts = sampled[0].scores.why['process']
  assert [parts[name] for name in ('format', 'name', 'key', 'value', 'parallel')] == pytest.approx([1, 0.8, 1, 1, 0])


def test_the_paper_s_case_has_the_advantages_of_both_methods(example):
  _, credits = example
  tool, summary = of_first_group(credits['slca'])
  np.testing.assert_allclose(tool, [-1.437626, 0.680981, 0.680981, 0.075665], atol=2e-5)
  np.testing.assert_allclose(summary, [1.414210, -0.707105, 0, -0.707105], atol=2e-5)
  for total in of_first_group(credits['grpo']):
    np.testing.assert_allclose(total, [1.147919, -0.601291, 0.491965, -1.038593], atol=2e-5)


def test_other_methods_get_the_rewards_of_their_own_protocol(example):
  _, credits = example
  assert [score.tool for score in credits['toolpo'].scores[:4]] == pytest.approx([1, 1, 1, 0.5])  # gold calls covered
  assert [score.outcome for score in credits['toolpo'].scores[:4]] == [0, 1, 1, 0]  # all of it right at once
  assert [score.tool for score in credits['rltr'].scores[:4]] == pytest.approx([1, 1, 1, 0.3])  # one call was refused
  assert not any(credit.absent for credit in credits.values())


def test_a_method_whose_rewards_are_absent_says_so(example):
  sampled, _ = example
  settings = Settings(scoring=Scoring(outcome='judge', completeness='judge'))
  absent = {credit.name: credit.absent for credit in credits_of(sampled, settings)}
  assert 'second judge' in absent['toolpo'] and 'second judge' in absent['rltr']
  assert not absent['slca'] and not absent['grpo'] and not absent['tara']


def drawn(rng, group, index, *, status=Status.FINISHED):
  """A rollout of random turns; the reply of some is missing, so that two turns are one run."""
  turns = []
  for _ in range(int(rng.integers(1, 5))):
    tokens = tuple(map(int, rng.integers(5, 50, rng.integers(0, 4))))
    reply = tuple(map(int, rng.integers(5, 50, rng.integers(0, 3))))
    turns.append(Turn(tokens, (-0.5,) * len(tokens), 'x', Parsed(), (), reply))
  return Trajectory(TASK, group, index, (1, 2), tuple(turns), status)


def random_scores(rng, width):
  number = lambda: None if rng.random() < 0.15 else float(rng.random())
  return Scores(number(), number(), number(), tuple(map(float, rng.integers(0, 2, width))), bool(rng.random() < 0.2))


@pytest.mark.parametrize(('estimator', 'unfinished'), [('slca_tara', 'summary'), ('tara', 'tool'), ('support', 'drop')])
def test_runs_receive_what_the_estimator_gives_their_tokens_in_a_training_batch(estimator, unfinished):
  rng = np.random.default_rng(7)
  ends = [Status.FINISHED, Status.OUT_OF_TOKENS, Status.FAILED, Status.OUT_OF_TURNS]
  trajectories = [drawn(rng, g, i, status=ends[(g * i) % 4]) for g in range(3) for i in range(4)]
  scores = [random_scores(rng, 3) for _ in trajectories]
  options = {'summary_to_tool': 0.5} if estimator == 'support' else {}
  settings = Settings(method=Method(estimator, options), objective=Objective(unfinished=unfinished), turns=3)
  sampled = [Sampled(1, *pair) for pair in zip(trajectories, scores, strict=True)]
  batch = to_batch(trajectories, scores, Layout(lengths=(128,), micro_rows=1), turns=3)
  sampled_BT, rollout_BT, finished_R = map(jnp.asarray, (batch.sampled_BT, batch.rollout_BT, batch.finished_R))
  segments = segment_runs(sampled_BT, rollout_BT, finished_R, unfinished=unfinished)
  advantage_BT = np.asarray(ESTIMATORS[estimator](batch.rewards, segments, rollout_BT, **options))
  kinds = segments_of(trajectories, unfinished=unfinished)
  for r, (values, trajectory) in enumerate(zip(credits_of(sampled, settings)[0].advantages, trajectories, strict=True)):
    here = (np.asarray(batch.rollout_BT) == r) & np.asarray(batch.sampled_BT)
    runs = runs_of(trajectory)
    sizes = [sum(len(trajectory.turns[turn].tokens) for turn in run) for run in runs]
    np.testing.assert_allclose(advantage_BT[here], np.repeat(values, sizes), atol=1e-6)
    told = np.repeat([{'tool': 0, 'summary': 1, 'none': -1}[kind] for kind in kinds[r]], sizes)
    np.testing.assert_array_equal(np.asarray(segments.segment_BT)[here], told)


def test_the_run_s_own_method_uses_its_own_options(example):
  sampled, credits = example
  halved = Settings(method=Method('slca', {'tool_weight': 0.5}))
  own = credits_of(sampled[:4], halved)[0]
  np.testing.assert_allclose(of_first_group(own)[0], 0.5 * of_first_group(credits['slca'])[0], atol=1e-6)


def test_groups_of_different_steps_are_not_compared(example):
  sampled, credits = example
  twice = [*sampled[:4], *(dataclasses.replace(one, step=2) for one in sampled[:4])]
  found = credits_of(twice, Settings())[0].advantages
  assert found[:4] == found[4:] == credits['slca'].advantages[:4]
