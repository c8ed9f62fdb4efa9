"""Branches: synthesised worlds whose tasks hand values on, replay, and keep what is trained on and held out apart."""

import functools
import json
import re

import pytest

from slca_jax.dialogue import Observation, Parsed, Status, ToolCall, Trajectory, Turn
from slca_jax.quickstart import branches
from slca_jax.rewards.judge import states
from slca_jax.toolverse.filters import replay_fault
from slca_jax.toolverse.making import TaskSettings
from slca_jax.toolverse.world import Trial

SETTINGS = TaskSettings(samples=14, most=14, width=1, shortest=3, longest=5, chains=0.0)


@pytest.fixture(scope='module')
def worlds():
  return branches.worlds('north')


@pytest.fixture(scope='module')
def workshop(worlds):
  return worlds[1]


@pytest.fixture(scope='module')
def tasks(workshop):
  return branches.tasks(workshop, SETTINGS)


def rollout(task, steps, answer='It is so.'):
  turn = lambda calls: Turn((), (), '', Parsed(tuple((call,) for call in calls)), (Observation(''),) * len(calls))
  turns = (*map(turn, steps), Turn((), (), answer, Parsed()))
  return Trajectory(task, 0, 0, (), turns, Status.FINISHED)


def changed(call):
  """The call with another key."""
  return ToolCall(call.name, {name: 99 if name.endswith('_id') else value for name, value in call.arguments.items()})


def test_tasks_hand_values_on_through_three_calls_and_replay(workshop, tasks):
  assert len(tasks) >= 4
  for task in tasks:
    assert 3 <= len(task.gold) <= 5
    assert task.meta['depth'] >= 3
    assert replay_fault(task, functools.partial(Trial, workshop)) == ''


def test_every_server_of_a_branch_becomes_a_world_with_all_its_tools(worlds):
  raw = branches.schemas('north')
  assert [world.name for world in worlds] == [f'{server["name"]}-north' for server in raw]
  assert [len(world.tools) for world in worlds] == [len(server['tools']) for server in raw]


def test_keys_of_a_branch_are_its_own_and_no_two_records_share_one(worlds):
  assert branches.schemas('north') == branches.schemas('north') != branches.schemas('south')
  for world in worlds:
    keys = [key for table in world.database.values() for key in table]
    assert len(keys) == len(set(keys))
    assert all(int(key) % 2 == 0 for key in keys)  # so that no key that is made is taken


def test_a_question_told_last_is_answered_by_no_earlier_call(tasks):
  told = [task for task in tasks if branches.told_last(task)]
  assert 0 < len(told) < len(tasks)
  for task in told:
    (fact,) = task.facts
    assert states(task.meta['outputs'][-1][0], fact)
    assert not any(states(step[0], fact) for step in task.meta['outputs'][:-1])


def test_held_out_questions_are_asked_nowhere_else(tasks):
  assert branches.apart(tasks[2:], tasks[:3]) == tasks[3:]


def test_a_flawless_demonstration_is_the_golden_trace(tasks):
  for task in tasks:
    dialogue = branches.demonstrate(task)
    assert tuple(message.calls for message in dialogue.messages if message.calls) == task.gold
    assert dialogue.messages[-1].content == task.answer


@pytest.mark.parametrize('fault, longer', [('wasteful', 1), ('forgetful', -1), ('hasty', -1)])
def test_a_faulty_demonstration_has_the_calls_of_its_fault(tasks, fault, longer):
  habits = {'workshop': branches.Habits(**{fault: 1.0})}
  able = [t for t in tasks if fault != 'forgetful' or any(s[0].name == 'update_repair' for s in t.gold[:-1])]
  assert able
  for task in able:
    messages = branches.demonstrate(task, habits).messages
    steps = [message.calls for message in messages if message.calls]
    assert len(steps) == len(task.gold) + longer
    assert [message.role for message in messages].count('tool') == len(steps)
    if fault == 'wasteful':
      assert steps[0] == steps[1]
    if fault == 'hasty':
      taken = {str(value) for value in task.gold[-1][0].arguments.values()}
      assert messages[-1].content.removeprefix('It is ').rstrip('.') in taken


def test_a_dialogue_with_other_keys_is_the_same_otherwise(tasks):
  dialogue = branches.demonstrate(tasks[0])
  other = branches.rekeyed(dialogue, 1)
  assert other.messages != dialogue.messages
  assert other.messages[0] == dialogue.messages[0]  # questions name no keys
  blank = lambda message: re.sub(r'\d\d', '..', f'{message.content} {message.calls}')
  assert list(map(blank, other.messages)) == list(map(blank, dialogue.messages))
  said = ''
  for message in other.messages:  # every key that is taken was told before
    taken = [value for call in message.calls for name, value in call.arguments.items() if name.endswith('_id')]
    assert all(f'_id": {key}' in said for key in taken)
    said += message.content
  assert other.messages[-1].content.split()[-1].rstrip('.') in said


def test_a_task_has_one_demonstration(tasks):
  for task in tasks:
    assert branches.demonstrate(task, branches.FLAWED) == branches.demonstrate(task, branches.FLAWED)


def test_a_rollout_reaches_the_goal_with_every_call_and_the_final_state(workshop, tasks):
  open_world = functools.partial(Trial, workshop)
  reached = lambda task, steps: branches.reached(rollout(task, steps), open_world)
  written = next(task for task in tasks if json.dumps(task.meta['changes']) != '[]')
  gold = written.gold
  assert reached(written, gold)
  assert reached(written, (gold[0], *gold))  # a look-up too many does no harm
  assert not reached(written, gold[:-1])
  assert not reached(written, (*gold[:-1], (changed(gold[-1][0]),)))
  create = next(step for step in gold if step[0].name.startswith('create'))
  assert not reached(written, (*gold, create))  # every call made, and another record
