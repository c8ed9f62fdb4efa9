"""Laws of ToolPO's and RLTR's rewards."""

import pytest

from slca_jax.dialogue import Observation, Parsed, Status, Task, Tool, ToolCall, Trajectory, Turn
from slca_jax.rewards.outcome import action_reward, format_violated, outcome_rule, plan_reward, refusals, repeats

NUMBER = {'type': 'number'}
TOOLS = (
  Tool('f', '', {'type': 'object', 'properties': {'x': NUMBER, 'y': NUMBER}, 'required': ['x']}),
  Tool('g', '', {'type': 'object', 'properties': {'x': NUMBER}}),
)


def f(**arguments):
  return ToolCall('f', arguments)


def g(**arguments):
  return ToolCall('g', arguments)


def turn(*calls, opens=None, seen=()):
  opens = len(calls) if opens is None else opens
  return Turn((), (), '', Parsed(tuple((call,) for call in calls), (), opens, len(calls)), tuple(seen))


def task(*gold):
  return Task('t', TOOLS, (), gold)


def test_action_is_the_share_of_gold_calls_that_some_call_covers():
  wanted = task((f(x=1, y=2), f(x=3)))
  assert action_reward([turn(f(x=1, y='2'), f(x=4))], wanted) == 0.5
  assert action_reward([turn(f(x=1)), turn(f(x=3, y=7))], wanted) == 0.5
  assert action_reward([turn()], wanted) == 0.0


def test_action_where_no_call_is_wanted_rewards_making_none():
  assert action_reward([turn()], task()) == 1.0
  assert action_reward([turn(g())], task()) == 0.0


def test_outcome_holds_when_everything_does():
  assert outcome_rule([turn(f(x=1), f(x=3)), turn()], task((f(x=1), f(x=3)))) == 1.0
  assert outcome_rule([turn()], task()) == 1.0


def test_outcome_asks_for_required_keys_only():
  assert outcome_rule([turn(f(x=1))], task((f(x=1, y=2),))) == 1.0


def test_outcome_asks_for_every_gold_key_where_the_tool_does_not_say():
  assert outcome_rule([turn(g())], task((g(x=1),))) == 0.0


@pytest.mark.parametrize(
  'turns',
  [
    [turn(f(x=1), opens=2), turn(f(x=3))],  # unbalanced tags
    [turn(f(x=1), f(x=3, y='high'))],  # a call that fails its schema
    [turn(f(x=1), f(x=3), f(x=3))],  # one call too many
    [turn(f(x=1), g(x=3))],  # another name
    [turn(f(x=1)), turn(f(x=3))],  # first step too small
    [turn(f(x=1), f(x=4))],  # a wrong value
    [turn()],  # nothing
  ],
)
def test_outcome_fails_when_anything_does(turns):
  assert outcome_rule(turns, task((f(x=1), f(x=3)))) == 0.0


def test_plan_pays_for_repeats_and_errors():
  assert plan_reward(0.8, repeats=2, errors=1, format_violation=False) == pytest.approx(0.4)
  assert plan_reward(1.0, repeats=0, errors=0, format_violation=True) == -1.0


def test_a_call_that_says_the_same_again_is_a_repeat():
  assert repeats([turn(f(x=1), f(x=2)), turn(f(x='1.0'), f(x=1), g(x=1))]) == 2
  assert repeats([]) == 0


def test_refusals_count_error_observations():
  turns = (turn(f(x=1), f(x=2), seen=[Observation('1'), Observation('no', ok=False)]), turn())
  assert refusals(Trajectory(task(), 0, 0, (), turns, Status.FINISHED)) == 1


def test_a_block_without_a_call_or_a_lone_tag_violates_the_format():
  assert not format_violated([turn(f(x=1)), turn()])
  assert format_violated([turn(f(x=1), opens=2)])
  assert format_violated([Turn((), (), '', Parsed((), ('broken',), 1, 1))])
