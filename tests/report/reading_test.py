"""What a run left is read whole: steps spread evenly, hosts joined, log-probs beside their rollouts."""

import json

import numpy as np
import pytest

from slca_jax.arrays import Experience, Rewards, TokenBatch
from slca_jax.dialogue import Message, Parsed, Scores, Status, Task, Trajectory, Turn
from slca_jax.errors import ConfigError, DataError
from slca_jax.report.overview import overview_of
from slca_jax.report.reading import metrics_of, sampled_in, settings_of
from slca_jax.train.dumps import dump
from slca_jax.train.logp_dumps import dump_logps, logps_of

TASK = Task('t', (), (Message('user', 'Where?'),))


def rollout(group, index):
  return Trajectory(TASK, group, index, (1,), (Turn((5, 6), (-0.5, -1.0), 'x', Parsed()),), Status.FINISHED)


def leave(run, step, groups, *, host=''):
  rollouts = [rollout(group, index) for group in groups for index in range(2)]
  dump(run / 'rollouts' / f'step_{step:06d}{host}', rollouts, [Scores(0.5, 0.5, 1.0)] * len(rollouts))


def test_steps_are_left_out_evenly_and_groups_stay_whole(tmp_path):
  for step in range(1, 10):
    leave(tmp_path, step, range(2))
  assert len(sampled_in(tmp_path)) == 36
  assert sorted({one.step for one in sampled_in(tmp_path, most=12)}) == [1, 5, 9]
  assert [one.key for one in sampled_in(tmp_path, most=3)] == [(9, 0, 0), (9, 0, 1), (9, 1, 0), (9, 1, 1)]
  assert [one.key for one in sampled_in(tmp_path, most=2)] == [(9, 0, 0), (9, 0, 1)]
  assert {one.step for one in sampled_in(tmp_path, steps=(4, 2))} == {2, 4}


def test_a_step_that_is_being_written_hides_no_other(tmp_path):
  leave(tmp_path, 1, [0])
  leave(tmp_path, 2, [])  # nothing of it yet, or for ever where the run was killed
  leave(tmp_path, 3, [0])
  torn = tmp_path / 'rollouts' / 'step_000003' / 'rollouts.jsonl'
  torn.write_bytes(torn.read_bytes()[:40])
  assert [one.key for one in sampled_in(tmp_path)] == [(1, 0, 0), (1, 0, 1)]
  with pytest.raises(DataError, match=r'steps \[2\]'):
    sampled_in(tmp_path, steps=(2,))


def test_hosts_of_a_step_are_joined_in_order_of_groups(tmp_path):
  leave(tmp_path, 1, [1, 3], host='_host0')
  leave(tmp_path, 1, [0, 2], host='_host1')
  # A host's devices may hold rows of what another one rolled out.
  dump_logps(tmp_path / 'rollouts' / 'step_000001_host0', {1: {'old': [-1.0, -2.0]}}, first=0, group_size=2)
  sampled = sampled_in(tmp_path)
  assert [one.key[1] for one in sampled] == [0, 0, 1, 1, 2, 2, 3, 3]
  assert [bool(one.logps) for one in sampled] == [False, True, *[False] * 6]


def test_what_is_not_there_is_named(tmp_path):
  with pytest.raises(DataError, match='no rollouts'):
    sampled_in(tmp_path)
  leave(tmp_path, 1, [0])
  with pytest.raises(DataError, match=r'\[7\]'):
    sampled_in(tmp_path, steps=(7,))
  (tmp_path / 'config.json').write_text(json.dumps({'method': {'estimater': 'slca'}}))
  with pytest.raises(ConfigError, match='estimater'):
    settings_of(tmp_path)


def test_log_probs_of_a_step_lie_beside_its_rollouts(tmp_path):
  leave(tmp_path, 1, range(2))
  rollout_BT = np.array([[-1, 0, 0, 1, 1, 1], [-1, 3, 3, 2, 2, -1]])
  sampled_BT = np.array([[0, 1, 1, 1, 0, 1], [0, 1, 1, 1, 1, 0]], bool)
  old_BT = -np.arange(12.0).reshape(2, 6) / 8
  nothing = np.zeros(1)
  batch = TokenBatch(
    *(nothing,) * 2, rollout_BT, *(nothing,) * 2, sampled_BT, nothing, nothing, Rewards(*(nothing,) * 6)
  )
  experience = Experience(batch, None, None, old_BT, 2 * old_BT)
  logps = logps_of(experience, new_logp_BT=old_BT - 1)
  assert logps[1] == {'old': [-0.375, -0.625], 'ref': [-0.75, -1.25], 'new': [-1.375, -1.625]}
  dump_logps(tmp_path / 'rollouts' / 'step_000001', logps, first=0, group_size=2)
  found = {one.key: one.logps for one in sampled_in(tmp_path)}
  assert found[1, 0, 1]['old'] == [-0.375, -0.625] and found[1, 1, 1]['old'] == [-0.875, -1.0]


def test_a_later_mini_batch_is_added_and_a_step_made_again_starts_anew(tmp_path):
  for _ in range(2):
    dump_logps(tmp_path, {0: {'old': [-1.0]}}, first=0, group_size=2)
    dump_logps(tmp_path, {1: {'old': [-2.0]}}, first=3, group_size=2)
  lines = [json.loads(line) for line in (tmp_path / 'logps.jsonl').read_text().splitlines()]
  assert [(line['group'], line['index']) for line in lines] == [(0, 0), (3, 1)]


def test_the_funnel_counts_rollouts_of_all_steps_and_torn_lines_are_left_out(tmp_path):
  line = {'step': 1, 'status/finished': 6, 'status/failed': 2, 'status/out_of_turns': 2, 'kl': None, 'time/collect': 3}
  lines = [line | {'rollout/no_call': 0.25, 'score/success': 0.5}, line | {'step': 2, 'score/success': 0.25, 'kl': 0.5}]
  (tmp_path / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, lines)) + '\n{"step": 3, "k')
  found = overview_of(metrics_of(tmp_path))
  stages = {'begun': 20, 'usable': 16, 'called a tool': 14, 'reached an answer': 12, 'successful': 6}
  assert dict(found['funnel']) == stages
  assert found['time'] == [('collect', 6)] and found['curves']['kl'] == [[2], [0.5]]


def test_long_curves_are_thinned_to_means():
  [steps, values] = overview_of([{'step': i + 1, 'loss': float(i % 2)} for i in range(1000)])['curves']['loss']
  assert len(steps) == 200 and values[0] == pytest.approx(0.4) and steps[0] == 3
