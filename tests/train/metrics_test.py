"""Numbers of rollouts, and files that survive a kill."""

import json

import pytest

from slca_jax.dialogue import Observation, Parsed, Scores, Status, Task, ToolCall, Trajectory, Turn
from slca_jax.train.metrics import Stopwatch, Writer, describe

TASK = Task('t', (), ())


def trajectory(status=Status.FINISHED, calls=0, faults=()):
  blocks = tuple((ToolCall('f', {}),) for _ in range(calls))
  turn = Turn((1, 2), (0.0, 0.0), '', Parsed(blocks, faults), (Observation('x', False),), (3,))
  return Trajectory(TASK, 0, 0, (9,), (turn, Turn((4,), (0.0,), '', Parsed())), status)


def test_absent_scores_are_left_out_and_failed_rollouts_are_only_counted():
  trajectories = [
    trajectory(calls=2),
    trajectory(Status.OUT_OF_TOKENS, faults=('truncated',)),
    trajectory(Status.FAILED),
  ]
  scores = [Scores(0.5, None, None, why={'success': True, 'process': {'name': 1.0}}), Scores(1.0, 0.25), Scores()]
  numbers = describe(trajectories, scores)
  assert numbers['status/failed'] == numbers['status/finished'] == numbers['status/out_of_tokens'] == 1
  assert numbers['reward/tool'] == 0.75 and numbers['reward/summary'] == 0.25 and 'reward/outcome' not in numbers
  assert numbers['score/success'] == 1.0 and numbers['score/name'] == 1.0
  assert numbers['reward/absent'] == 1 and numbers['fault/truncated'] == 1
  assert numbers['rollout/calls'] == 1.0 and numbers['rollout/no_call'] == 0.5
  assert numbers['rollout/sampled_tokens'] == 3 and numbers['rollout/observation_tokens'] == 1


def test_reward_that_is_no_number_counts_as_absent():
  numbers = describe([trajectory()] * 3, [Scores(float('nan'), 0.5), Scores(0.5, float('nan')), Scores(0.5, 0.5)])
  assert numbers['reward/absent'] == 2 and numbers['reward/tool'] == numbers['reward/summary'] == 0.5


def test_no_rollouts_have_no_means():
  assert 'reward/tool' not in describe([trajectory(Status.FAILED)], [Scores()])


def test_resumed_writer_drops_what_lies_beyond_and_a_line_cut_short(tmp_path):
  writer = Writer(tmp_path)
  for step in (1, 2, 3):
    writer.write(step, {'loss': float(step), 'bad': float('nan')})
  writer.close()
  with open(tmp_path / 'metrics.jsonl', 'a', encoding='utf-8') as file:
    file.write('{"step": 4, "lo')
  writer = Writer(tmp_path, resume_at=3)
  writer.write(3, {'loss': 30.0})
  writer.close()
  lines = [json.loads(line) for line in (tmp_path / 'metrics.jsonl').read_text().splitlines()]
  assert [line['loss'] for line in lines] == [1.0, 2.0, 30.0]
  assert lines[0]['bad'] is None


def test_stopwatch_adds_up_by_phase_and_starts_anew():
  watch = Stopwatch()
  for _ in range(2):
    with watch('a'), watch('b'):
      pass
  assert set(watch.read()) == {'time/a', 'time/b'} and watch.read() == {}
  with pytest.raises(ZeroDivisionError), watch('c'):
    1 / 0  # noqa: B018
  assert 'time/c' in watch.read()
