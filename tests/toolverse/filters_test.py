"""Laws of the gates: what does not replay is dropped, teachers say what is too hard, and equals are kept once."""

import asyncio
import dataclasses
import random

import pytest
from travel import BOOK, CALENDAR, EVENT, EXPENSE, FUNCTIONS, GRAPH, OFFERED, Plain

from slca_jax.dialogue import Parsed, Status, Tool, ToolCall, Trajectory, Turn
from slca_jax.envs.executable import World, executable_opener
from slca_jax.errors import ConfigError, EnvironmentFailure
from slca_jax.toolverse.filters import (
  Attempt,
  Band,
  Passes,
  at_most,
  distinct,
  full_trace,
  replay_fault,
  solved,
  teacher_rate,
)
from slca_jax.toolverse.funnel import Row, markdown, of_tasks
from slca_jax.toolverse.history import calls_before, resuming
from slca_jax.toolverse.inversion import invert
from slca_jax.toolverse.sampling import sample_stages

STAGES = sample_stages(GRAPH, width=2, chance=random.Random(0)).stages
[TASK] = invert('travel', OFFERED, GRAPH, STAGES, Plain, seed=0)
FIRST, SECOND = invert('travel', OFFERED, GRAPH, STAGES, Plain, seed=0, turns=2)


def otherwise(name, function):
  return lambda: Plain(functions={**FUNCTIONS, name: function})


@pytest.mark.parametrize('task', [TASK, FIRST, SECOND])
def test_a_golden_trace_replays_as_often_as_one_likes(task):
  assert [replay_fault(task, Plain) for _ in range(3)] == ['', '', '']


def test_another_output_or_database_is_a_fault():
  def dearer(db, **arguments):
    return {**FUNCTIONS[BOOK](db, **arguments), 'total': 1}

  def twice(db, **arguments):
    FUNCTIONS[CALENDAR](db, **arguments)
    return FUNCTIONS[CALENDAR](db, **arguments)

  def refuse(db, **_):
    raise ValueError('closed')

  assert 'book_hotel of step 4 answers' in replay_fault(TASK, otherwise(BOOK, dearer))
  assert 'the database ends with the changes' in replay_fault(TASK, otherwise(CALENDAR, twice))
  assert "search_event of step 1 answers 'Error: closed'" in replay_fault(TASK, otherwise(EVENT, refuse))
  assert 'search_event of the dialogue answers' in replay_fault(SECOND, otherwise(EVENT, refuse))


def test_a_world_that_breaks_is_a_fault():
  def gone():
    raise EnvironmentFailure('killed')

  assert replay_fault(TASK, gone) == 'the world broke: killed'


def test_parallel_calls_must_come_out_the_same_in_any_order():
  # Both calls of the last stage count on one list, so the second one's answer depends on which came first.
  def counted(name):
    def function(db, **arguments):
      db['calendar'].append(name)
      return {**FUNCTIONS[name](db, **arguments), 'number': len(db['calendar'])}

    return function

  functions = {**FUNCTIONS, CALENDAR: counted(CALENDAR), EXPENSE: counted(EXPENSE)}
  open_world = lambda: Plain(functions=functions)
  [task] = invert('travel', OFFERED, GRAPH, STAGES, open_world, seed=0)
  assert replay_fault(task, open_world).startswith('in another order of its parallel calls: ')
  assert replay_fault(task, open_world, any_order=False) == ''


def rollout(task, steps, status=Status.FINISHED):
  turns = [Turn((), (), '', Parsed((tuple(step),))) for step in steps]
  turns += [Turn((), (), 'Done.', Parsed())] if status is Status.FINISHED else []
  return Trajectory(task, 0, 0, (), tuple(turns), status)


def test_a_teachers_passes_are_counted_and_broken_attempts_are_not():
  played = {
    0: rollout(TASK, TASK.gold),
    1: rollout(TASK, TASK.gold[:-1]),
    2: rollout(TASK, TASK.gold, Status.FAILED),
    3: rollout(TASK, [step[::-1] for step in TASK.gold], Status.OUT_OF_TURNS),
    4: rollout(TASK, [*TASK.gold, TASK.gold[0]]),
  }

  async def solve(task, attempt):
    await asyncio.sleep(0)
    return Attempt(played[attempt])

  by_trace = lambda attempt: full_trace(attempt.trajectory)
  passes = asyncio.run(teacher_rate(TASK, solve, attempts=5, passes=by_trace))
  assert passes == Passes(3, 4) and passes.rate == 0.75
  assert [full_trace(played[i]) for i in (0, 1, 3, 4)] == [True, False, True, True]
  assert asyncio.run(teacher_rate(TASK, solve, attempts=2)) == Passes(0, 2)  # the world was never called
  assert Passes(0, 0).rate is None


def test_a_task_is_solved_by_what_the_world_ends_as_answered_and_the_user_is_told():
  outputs = tuple(output for step in TASK.meta['outputs'] for output in step)
  changes = TASK.meta['changes']
  told = dataclasses.replace(rollout(TASK, ()), turns=(Turn((), (), f'It is {TASK.facts[0]}.', Parsed()),))
  assert TASK.facts and solved(Attempt(told, (*outputs[::-1], 'and more'), changes))
  assert not solved(Attempt(told, outputs, changes[:-1])) and not solved(Attempt(told, outputs))
  assert not solved(Attempt(told, outputs[1:], changes))
  assert not solved(Attempt(rollout(TASK, ()), outputs, changes))  # the user learns nothing
  silent = dataclasses.replace(told, task=dataclasses.replace(TASK, facts=()), turns=())
  assert solved(Attempt(silent, outputs, changes))


def test_the_band_says_which_difficulty_is_kept():
  kept = lambda band: [passed for passed in range(9) if band.keeps(Passes(passed, 8))]
  assert kept(Band()) == [1, 2, 3, 4, 5, 6, 7, 8]
  assert kept(Band(least=2, most=6)) == [2, 3, 4, 5, 6]
  assert str(Band()) == '1 to 8 of 8 times' and str(Band(least=2, most=6)) == '2 to 6 of 8 times'
  with pytest.raises(ConfigError, match='least is 5 and most 3'):
    Band(least=5, most=3)
  with pytest.raises(ConfigError, match='attempts is 0'):
    Band(attempts=0)


def test_tasks_that_ask_for_the_same_are_kept_once():
  again = dataclasses.replace(TASK, id='again', messages=FIRST.messages)
  reworded = dataclasses.replace(TASK, id='reworded', gold=())
  swapped = dataclasses.replace(again, id='swapped', gold=tuple(step[::-1] for step in TASK.gold))
  elsewhere = dataclasses.replace(TASK, id='elsewhere', blueprint='other')
  assert [task.id for task in distinct([TASK, again, reworded, swapped, elsewhere])] == [TASK.id, 'elsewhere']
  # The second turn does the same as a task that begins there, but after other calls.
  assert distinct([SECOND, dataclasses.replace(SECOND, messages=TASK.messages)])[1:]


def tool(name):
  return Tool(name, '', {'type': 'object', 'properties': {}})


def short(identity, *names, blueprint='b', offered='xyz'):
  gold = tuple((ToolCall(name, {}),) for name in names)
  return dataclasses.replace(
    TASK, id=identity, gold=gold, tools=tuple(map(tool, offered)), blueprint=blueprint, meta={}
  )


def test_a_tool_set_keeps_its_most_covering_tasks_in_order():
  tasks = [short('1', 'x'), short('2', 'x', 'y'), short('3', 'x', 'y'), short('4', 'z'), short('5', 'x', blueprint='c')]
  assert [task.id for task in at_most(tasks, 2)] == ['2', '4', '5']
  assert [task.id for task in at_most(tasks, 9)] == ['1', '2', '3', '4', '5']
  with pytest.raises(ConfigError, match='most is 0'):
    at_most(tasks, 0)


def test_the_funnel_counts_environments_tools_tasks_and_means():
  tasks = [short('1', 'x'), short('2', 'x', 'y', 'z'), short('3', 'x', 'y', blueprint='c', offered='xy')]
  assert of_tasks('kept', tasks) == Row('kept', 2, 5, 3, 2.0, 2.0)
  assert markdown([Row('built', 1200, 5000), of_tasks('kept', tasks), of_tasks('none', [])]) == (
    '| stage | environments | tools | tasks | mean steps | mean calls |\n'
    '|---|--:|--:|--:|--:|--:|\n'
    '| built | 1,200 | 5,000 | – | – | – |\n'
    '| kept | 2 | 5 | 3 | 2.00 | 2.00 |\n'
    '| none | 0 | 0 | 0 | – | – |\n'
  )


def test_a_rollout_in_the_middle_of_a_dialogue_finds_what_was_done_before():
  world = World(OFFERED, FUNCTIONS, inline=True)
  opener = executable_opener(world, lambda task: Plain().database())

  async def play(task):
    environment = resuming(opener)(task, 0)
    contents = [[seen.content for seen in await environment.step(step)] for step in task.gold]
    return contents, await environment.changes(), environment.close()

  for task in (TASK, FIRST, SECOND):
    contents, changes, _ = asyncio.run(play(task))
    assert contents == task.meta['outputs'] and changes == task.meta['changes']
  assert len(calls_before(SECOND)) == sum(map(len, FIRST.gold)) and calls_before(TASK) == ()
