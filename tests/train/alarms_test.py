"""Alarms on numbers made up for them: each rings for what it is for, and for nothing else."""

import json
import logging
import math
import pathlib

import pytest

from slca_jax.errors import ConfigError
from slca_jax.train.alarms import RULES, Alarms, Scale, history
from slca_jax.train.diagnostic_settings import Diagnostics

SCALE = Scale(groups=8, rollouts=32)
WELL = {
  'tool/entropy': 0.1,
  'tool/tokens': 300.0,
  'summary/entropy': 0.4,
  'summary/tokens': 100.0,
  'kl': 0.01,
  'tool/dead_groups': 2.0,
  'summary/dead_groups': 0.0,
  'score/judge_failed': 0.0,
  'score/referee_failed': 0.02,
  'score/reward_failed': 0.0,
  'status/failed': 1.0,
  'sampler/kl': 1e-4,
  'skipped_updates': 0.0,
  'grad_norm': 0.5,
}
SETTINGS = Diagnostics(window=4, quiet=3)


def run(steps, settings=SETTINGS, **options):
  """What is told of each step."""
  alarms = Alarms(settings, SCALE, **options)
  return [alarms(number, step) for number, step in enumerate(steps, 1)]


def ringing(told):
  return {name.removeprefix('alarms/') for name, value in told.items() if name.startswith('alarms/') and value}


def test_run_that_is_well_rings_nothing_and_every_alarm_is_told(caplog):
  told = run([WELL] * 4)[-1]
  assert ringing(told) == set() and not caplog.records
  assert {name.removeprefix('alarms/') for name in told if name.startswith('alarms/')} == set(RULES)


@pytest.mark.parametrize(
  ('changes', 'kind'),
  [
    ({'tool/entropy': 0.001, 'summary/entropy': 0.004}, 'entropy'),
    ({'kl': 0.6}, 'kl'),
    ({'kl': math.nan}, 'kl'),
    ({'tool/dead_groups': 5.0}, 'dead_tool_groups'),
    ({'summary/dead_groups': 5.0}, 'dead_summary_groups'),
    ({'score/judge_failed': 0.06}, 'judge_failures'),
    ({'score/referee_failed': 0.06}, 'referee_failures'),
    ({'score/reward_failed': 0.06}, 'reward_failures'),
    ({'status/failed': 2.0}, 'failed_rollouts'),
    ({'sampler/kl': 0.02}, 'sampler_gap'),
    ({'skipped_updates': 1.0}, 'skipped_updates'),
  ],
)
def test_each_alarm_rings_for_its_own_number_with_advice(changes, kind, caplog):
  with caplog.at_level(logging.WARNING):
    told = run([{**WELL, **changes}] * 4)
  assert ringing(told[-1]) == {kind}
  assert kind in caplog.text and RULES[kind].advice in caplog.text


def test_every_alarm_is_explained_with_its_limit():
  text = (pathlib.Path(__file__).parents[2] / 'docs' / 'metrics.md').read_text('utf-8')
  for kind, rule in RULES.items():
    [line] = [line for line in text.splitlines() if line.startswith('|') and f'`alarms/{kind}`' in line]
    if rule.setting:
      assert f'`diagnostics.{rule.setting}`, {getattr(Diagnostics(), rule.setting):g}' in line


def test_half_of_the_groups_may_be_dead_and_a_limit_itself_does_not_ring():
  assert not ringing(run([{**WELL, 'tool/dead_groups': 4.0}])[0])
  assert not ringing(run([{**WELL, 'score/judge_failed': 0.05}])[0])


def test_entropy_counts_tokens_of_both_segments_and_waits_for_a_whole_window():
  # (300 · 0.001 + 100 · 0.02) / 400 = 0.00575 is not below 0.005; with 0.015 it is 0.0045.
  steps = [{**WELL, 'tool/entropy': 0.001, 'summary/entropy': 0.02}] * 4
  assert not ringing(run(steps)[-1])
  told = run([{**step, 'summary/entropy': 0.015} for step in steps])
  assert [ringing(one) for one in told] == [set(), set(), set(), {'entropy'}]
  assert 'alarms/entropy' not in told[0]
  only_tools = {name: value for name, value in steps[0].items() if not name.startswith('summary/')}
  assert ringing(run([only_tools] * 4)[-1]) == {'entropy'}


def test_one_bad_step_does_not_move_a_mean_over_the_window():
  steps = [WELL, WELL, WELL, {**WELL, 'score/judge_failed': 0.1}]
  assert not ringing(run(steps)[-1])
  assert ringing(run([*steps, {**WELL, 'score/judge_failed': 0.15}])[-1]) == {'judge_failures'}


def test_what_was_not_measured_is_not_told():
  assert run([{}]) == [{}]


def test_kind_warns_once_in_a_while_and_others_meanwhile(caplog):
  steps = [{**WELL, 'kl': 1.0}] * 3 + [{**WELL, 'kl': 1.0, 'skipped_updates': 1.0}] * 2
  with caplog.at_level(logging.WARNING):
    told = run(steps)
  assert all('kl' in ringing(one) for one in told)
  assert [record.getMessage().split(':')[0] for record in caplog.records if ' kl ' in record.getMessage()] == [
    'step 1',
    'step 4',
  ]
  assert sum('skipped_updates' in record.getMessage() for record in caplog.records) == 1
  caplog.clear()
  run(steps, silent=True)
  assert not caplog.records


def test_deviation_of_the_gradient_is_over_the_window_and_goes_on_after_a_resume(tmp_path):
  norms = [1.0, 2.0, 3.0, 4.0, 6.0]
  steps = [{'grad_norm': norm} for norm in norms]
  told = run(steps)
  assert 'gradient/norm_std' not in told[0]
  # 2, 3, 4, 6: mean 3.75, squares 3.0625 + 0.5625 + 0.0625 + 5.0625 = 8.75 over 3.
  assert told[-1]['gradient/norm_std'] == pytest.approx((8.75 / 3) ** 0.5)
  lines = ''.join(json.dumps({'step': i, **step}) + '\n' for i, step in enumerate(steps[:4], 1))
  (tmp_path / 'metrics.jsonl').write_text(lines)
  assert run(steps[4:], history=history(tmp_path, SETTINGS.window)) == told[4:]
  assert history(tmp_path / 'none', 4) == []
  (tmp_path / 'metrics.jsonl').write_text(lines + '{"step": 5, "grad_')  # a kill cut it short
  assert run(steps[4:], history=history(tmp_path, 9)) == told[4:]


def test_numbers_that_are_null_in_the_file_are_passed_over():
  assert 'gradient/norm_std' not in run([WELL], history=[{'grad_norm': None, 'kl': None}])[0]


def test_a_number_that_was_none_rings_no_window_and_a_resumed_run_tells_the_same():
  steps = [{**WELL, 'sampler/kl': math.nan, 'tool/entropy': math.nan}, *[WELL] * 3]
  stored = [{**steps[0], 'sampler/kl': None, 'tool/entropy': None}, *steps[1:3]]  # as metrics.jsonl has them
  told = run(steps)
  assert [ringing(one) for one in told] == [set()] * 4
  assert run(steps[3:], history=stored) == told[3:]


@pytest.mark.parametrize(
  ('values', 'says'),
  [
    ({'every': -1}, 'every is -1'),
    ({'window': 1}, 'window is 1'),
    ({'quiet': 0}, 'quiet is 0'),
    ({'kl': -0.1}, 'kl is -0.1'),
    ({'dead_groups': 50}, 'dead_groups is 50; it is a share'),
  ],
)
def test_limits_that_mean_nothing_are_refused(values, says):
  with pytest.raises(ConfigError, match=says):
    Diagnostics(**values)
