"""Laws of what each method trains on."""

import asyncio
import math

import pytest

from slca_jax.config import build, defaults
from slca_jax.dialogue import Message, Observation, Parsed, Scores, Status, Task, Tool, ToolCall, Trajectory, Turn
from slca_jax.errors import ConfigError, JudgeFailure
from slca_jax.rewards.judge import Verdict
from slca_jax.rewards.protocols import PROTOCOLS, Scoring, check_protocol, score

TOOL = Tool('f', '', {'type': 'object', 'properties': {'x': {'type': 'integer'}}, 'required': ['x']})
GOLD = ((ToolCall('f', {'x': 1}), ToolCall('f', {'x': 2})),)
TASK = Task('t', (TOOL,), (Message('user', 'f of 1 and 2?'),), GOLD)
ANSWER = Turn((), (), 'done', Parsed())


class Says:
  """Gives the scripted scores in order, the last one for good; an exception is raised."""

  def __init__(self, *scores):
    self.scores, self.seeds = scores, []

  async def rate(self, trajectory, *, seed):
    self.seeds.append(seed)
    said = self.scores[min(len(self.seeds), len(self.scores)) - 1]
    if isinstance(said, Exception):
      raise said
    return Verdict(said, 'word', 'reason')


def step(*xs):
  calls = tuple((ToolCall('f', {'x': x}),) for x in xs)
  return Turn((), (), '', Parsed(calls, (), len(xs), len(xs)), tuple(Observation('1') for _ in xs))


def rollout(*turns, status=Status.FINISHED, error=''):
  return Trajectory(TASK, 0, 0, (), (*turns, ANSWER), status, error)


SERIAL, PARALLEL, OMITTED = rollout(step(1), step(2)), rollout(step(1, 2)), rollout()


def scored(trajectory, judge, **how) -> Scores:
  return asyncio.run(score(trajectory, judge, **how))


@pytest.mark.parametrize('protocol', ['slca', 'grpo', 'tara', 'slca_tara', 'support', 'guard_only', 'tool_only'])
def test_process_protocols_share_all_their_channels(protocol):
  seen = scored(SERIAL, Says(0.75), protocol=protocol)
  assert seen.tool == pytest.approx(0.7)
  assert seen.summary == 0.75
  assert seen.outcome == pytest.approx(1.45)
  assert seen.turns == (0.0, 0.0)
  assert not seen.guarded


def test_the_totals_tool_weight_scales_the_tool_reward():
  assert scored(PARALLEL, Says(0.5), options=Scoring(tool_weight=2.0)).outcome == pytest.approx(2.5)


@pytest.mark.parametrize('protocol', ['slca', 'grpo', 'tara', 'slca_tara', 'execution', 'summary_only'])
def test_the_guard_replaces_every_reward_but_the_judge_is_asked(protocol):
  judge = Says(1.0)
  seen = scored(OMITTED, judge, protocol=protocol, referee=Says(1.0))
  assert (seen.tool, seen.summary, seen.outcome, seen.guarded) == (0.0, -0.5, -0.5, True)
  assert judge.seeds == [0]
  assert seen.why['verdict']['score'] == 1.0
  assert seen.why['reported'] == {'tool': 0.0, 'summary': 0.0, 'outcome': 0.0}


def test_the_guard_holds_when_the_judge_fails():
  seen = scored(OMITTED, Says(JudgeFailure('gone')))
  assert (seen.tool, seen.summary, seen.outcome) == (0.0, -0.5, -0.5)
  assert seen.why['judge_failed']


def test_a_score_that_a_guarded_rollout_lacks_is_not_reported_as_zero():
  judged = Scoring(outcome='judge')
  seen = scored(OMITTED, Says(1.0), protocol='toolpo', options=judged, referee=Says(JudgeFailure('gone')))
  assert seen.why['reported'] == {'tool': 0.0, 'summary': 0.0, 'outcome': None}


def test_without_the_guard_the_judge_decides():
  seen = scored(OMITTED, Says(1.0), options=Scoring(guard=False))
  assert (seen.tool, seen.summary, seen.outcome, seen.guarded) == (0.0, 1.0, 1.0, False)


@pytest.mark.parametrize('said', [JudgeFailure('gone'), math.nan, math.inf, None])
def test_a_failed_judge_leaves_its_score_absent_and_the_others_there(said):
  seen = scored(PARALLEL, Says(said))
  assert (seen.summary, seen.outcome) == (None, None)
  assert seen.tool == pytest.approx(1.0)
  assert seen.why['judge_failed']


def test_a_failed_judge_can_count_as_zero():
  seen = scored(PARALLEL, Says(math.nan), options=Scoring(judge_failure=0.0))
  assert seen.summary == 0.0 and seen.outcome == pytest.approx(1.0)
  assert seen.why['judge_failed']


def test_a_failed_rollout_has_no_score_and_nobody_is_asked():
  judge = Says(1.0)
  seen = scored(rollout(step(1), status=Status.FAILED, error='the engine broke'), judge)
  assert seen == Scores(why={'failed': 'the engine broke'})
  assert judge.seeds == []


def test_toolpo_trains_on_actions_and_the_rule():
  seen = scored(SERIAL, Says(0.75), protocol='toolpo')
  assert (seen.tool, seen.outcome, seen.summary) == (1.0, 0.0, 0.75)
  assert scored(PARALLEL, Says(0.75), protocol='toolpo').outcome == 1.0
  omitted = scored(OMITTED, Says(0.75), protocol='toolpo')
  assert (omitted.tool, omitted.outcome) == (0.0, 0.0)


def test_toolpo_can_ask_a_referee():
  options = Scoring(outcome='judge')
  assert scored(SERIAL, Says(0.0), protocol='toolpo', options=options, referee=Says(1.0)).outcome == 1.0
  failed = scored(SERIAL, Says(0.0), protocol='toolpo', options=options, referee=Says(JudgeFailure('gone')))
  assert failed.outcome is None and failed.tool == 1.0 and failed.summary == 0.0
  assert failed.why['referee_failed'] and not failed.why['judge_failed']


def test_rltr_trains_on_the_plan():
  again = rollout(step(1), step(1, 2))
  assert scored(again, Says(1.0), protocol='rltr').tool == pytest.approx(0.9)
  broken = rollout(Turn((), (), '', Parsed((), ('broken',), 1, 0)))
  assert scored(broken, Says(1.0), protocol='rltr').tool == -1.0


def test_rltr_averages_the_completeness_that_came():
  referee = Says(1.0, JudgeFailure('gone'), 0.5)
  seen = scored(PARALLEL, Says(1.0), protocol='rltr', options=Scoring(completeness='judge'), referee=referee, seed=7)
  assert seen.tool == pytest.approx(0.75)
  assert referee.seeds == [7, 8, 9]


def test_execution_trains_on_solved_or_not():
  seen = scored(SERIAL, Says(0.5), protocol='execution', referee=Says(1.0))
  assert (seen.tool, seen.outcome) == (1.0, 1.5)
  lost = scored(SERIAL, Says(0.5), protocol='execution', referee=Says(math.nan))
  assert (lost.tool, lost.outcome, lost.summary) == (None, None, 0.5)


def test_summary_only_has_no_process_in_its_outcome():
  assert scored(SERIAL, Says(0.25), protocol='summary_only').outcome == 0.25


def test_why_holds_the_parts_behind_the_numbers():
  why = scored(PARALLEL, Says(0.75)).why
  assert why['success'] is True
  assert why['process']['total'] == pytest.approx(1.0) and why['process']['gold_calls'] == 2
  assert why['verdict'] == {'score': 0.75, 'word': 'word', 'reason': 'reason'}
  assert why['reported']['outcome'] == pytest.approx(1.75)


def test_a_protocol_that_cannot_run_is_refused():
  with pytest.raises(ConfigError, match='slca'):
    scored(PARALLEL, Says(1.0), protocol='scla')
  with pytest.raises(ConfigError, match='referee'):
    scored(PARALLEL, Says(1.0), protocol='execution')
  with pytest.raises(ConfigError, match='referee'):
    check_protocol('rltr', Scoring(completeness='judge'), has_referee=False)
  for protocol in PROTOCOLS:
    check_protocol(protocol, Scoring(), has_referee=True)


def test_scoring_is_built_from_a_config_and_checks_itself():
  config = defaults(Scoring)
  config.weights.format = 0.2
  config.weights.parallel = 0.2
  config.judge_failure = 0.0
  assert build(Scoring, config).weights.parallel == 0.2
  for bad in ({'penalty': 0.5}, {'success_at': 0.0}, {'samples': 0}, {'judge_failure': 2.0}, {'outcome': 'vote'}):
    with pytest.raises(ConfigError):
      build(Scoring, bad)


def test_a_rule_as_the_referee_needs_no_endpoint_but_a_plan_asks_one_all_the_same():
  check_protocol('execution', Scoring(referee='rule'), has_referee=False)
  check_protocol('toolpo', Scoring(outcome='judge', referee='rule'), has_referee=False)
  with pytest.raises(ConfigError, match='give it a referee'):
    check_protocol('rltr', Scoring(completeness='judge', referee='rule'), has_referee=False)
