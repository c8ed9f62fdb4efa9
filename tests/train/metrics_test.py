"""Numbers of rollouts, and files that survive a kill."""

import json
import time

import pytest

from slca_jax.dialogue import Observation, Parsed, Scores, Status, Task, ToolCall, Trajectory, Turn
from slca_jax.train.metrics import Stopwatch, Writer, breakdown, describe, settle, tally

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


def test_a_part_of_a_reward_is_averaged_whatever_its_name():
  why = [{'parts': {'climax': value}} for value in (0.25, 0.75)]
  told = [tally([trajectory()], [Scores(0.5, why=one)]) for one in why]
  assert settle(told)['score/own/climax'] == 0.5
  assert settle([{'stale/max': (2.0, None)}, {'stale/max': (5.0, None)}]) == {'stale/max': 5.0}


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


def test_parts_of_a_step_add_up_to_it_and_collecting_is_split_by_what_was_waited_for():
  times = {'time/collect': 10.0, 'time/update': 4.0, 'time/publish': 1.0}
  busy = {'sample': 9.0, 'environment': 6.0, 'judge': 2.0}
  found = breakdown(times, 20.0, busy, {'sample': 7.0, 'environment': 1.5, 'judge': 0.5})
  parts = {name: value for name, value in found.items() if name not in ('time/step', 'time/collect')}
  assert sum(value for name, value in parts.items() if not name.startswith('time/busy/')) == found['time/step'] == 20.0
  assert found['time/idle'] == 6.0  # one second of collecting in which nothing was under way, and five between phases
  assert found['time/collect'] == 10.0 and found['time/busy/environment'] == 6.0


def test_laps_begin_with_the_first_phase():
  watch = Stopwatch()
  assert watch.lap() == 0
  with watch('a'):
    time.sleep(0.01)
  assert watch.lap() >= watch.read()['time/a'] >= 0.01
