"""Laws of rollouts in generated code: a world each, calls that are lost change nothing, everything replays."""

import asyncio
import json

import pytest

from slca_jax.dialogue import Message, Task, ToolCall
from slca_jax.envs.confined.changes import changes
from slca_jax.envs.executable import Executable, World
from slca_jax.envs.guard import CallLimits
from slca_jax.envs.sandbox import Code, Sandbox, SandboxSettings
from slca_jax.envs.sandboxed import Sandboxed
from slca_jax.envs.signature import tool_from_function
from slca_jax.envs.state import final_state, golden_state, replay
from slca_jax.errors import EnvironmentFailure

SOURCE = '''
import random
import time
import uuid
from datetime import datetime

def book(db, hotel: str) -> dict:
  """Books."""
  if hotel not in db['hotels']:
    raise ValueError(f'no hotel {hotel!r}')
  key = uuid.uuid4().hex[:8]
  db['bookings'][key] = {'hotel': hotel, 'at': datetime.now().isoformat()}
  return {'booking': key}

def draw(db) -> list:
  """Draws."""
  return [random.random(), time.time(), list({'b', 'a', 'c', 'd'})]

def spoil(db, how: str) -> str:
  """Writes and then does not answer."""
  db['hotels'].clear()
  if how == 'hang':
    while True:
      pass
  return spoil(db, how) if how == 'refuse' else 'x' * 10**9
'''


def book(db, hotel: str) -> dict:
  """Books."""
  db['bookings']['1'] = {'hotel': hotel}
  return {'booking': '1'}


def draw(db) -> list:
  """Draws."""
  return []


def spoil(db, how: str) -> str:
  """Writes and then does not answer."""
  return how


TOOLS = tuple(tool_from_function(function) for function in (book, draw, spoil))
PATIENT, HASTY = CallLimits(deadline=300.0), CallLimits(deadline=0.3)
DATABASE = {'hotels': {'H1': {'price': 90}, 'H2': {'price': 70}}, 'bookings': {}}


@pytest.fixture(scope='module')
def sandbox():
  one = Sandbox(SandboxSettings(least='limits'))
  yield one
  one.close()


@pytest.fixture
def world(sandbox):
  opened = []

  def world(source=SOURCE, database=DATABASE):
    code = Code(source, json.dumps(database))
    opened.append(Sandboxed(TOOLS, code, sandbox, limits=PATIENT))
    return opened[-1]

  yield world
  for one in opened:
    one.close()


def called(environment, name, **arguments):
  return environment.step([ToolCall(name, arguments)])


async def hung(environment):
  """The observation of a call that hangs: only for that one is there little patience."""
  environment._limits = HASTY
  [seen] = await called(environment, 'spoil', how='hang')
  environment._limits = PATIENT
  return seen


def test_every_rollout_has_its_own_world(world):
  async def law():
    first, second = world(), world()
    [seen] = await called(first, 'book', hotel='H1')
    assert seen.ok and len((await first.database())['bookings']) == 1
    assert (await second.database())['bookings'] == {}

  asyncio.run(law())


def test_chance_clock_and_sets_are_the_same_in_every_world_and_differ_from_call_to_call(world):
  async def law():
    first, second = world(), world()
    one = [(await called(first, 'draw'))[0].content for _ in range(2)]
    await called(second, 'book', hotel='H1')  # another call before does not change what is drawn
    assert one == [(await called(second, 'draw'))[0].content for _ in range(2)] and one[0] != one[1]
    assert json.loads(one[0])[1] == 1767258000.0  # 2026-01-01T09:00:00 UTC

  asyncio.run(law())


def test_calls_that_do_not_fit_and_refusals_are_observations(world):
  async def law():
    one = world()
    seen = await one.step([ToolCall('book', {}), ToolCall('nothing', {}), ToolCall('book', {'hotel': 'H9'})])
    assert [s.content for s in seen] == [
      'Error: the call of book lacks the required parameters: hotel.',
      "Error: there is no tool named 'nothing' here.",
      "Error: no hotel 'H9'",
    ]
    assert not any(s.ok for s in seen)

  asyncio.run(law())


def test_a_call_that_hangs_changes_nothing(world):
  async def law():
    one, other = world(), world()
    before = await called(one, 'book', hotel='H1')
    seen = await hung(one)
    assert not seen.ok and '0.3 seconds' in seen.content
    after = await called(one, 'book', hotel='H1')
    assert before != after and after[0].ok
    assert [before, after] == await replay(other, ((ToolCall('book', {'hotel': 'H1'}),),) * 2)
    assert await final_state(one) == await final_state(other)

  asyncio.run(law())


def test_a_call_that_is_cancelled_changes_nothing_and_the_next_call_gets_its_own_answer(world):
  async def law():
    one, other = world(), world()
    before = await called(one, 'book', hotel='H1')
    step = asyncio.create_task(called(one, 'spoil', how='hang'))
    for _ in range(20):  # it is sent at once, and never answered
      await asyncio.sleep(0)
    step.cancel()
    await asyncio.gather(step, return_exceptions=True)
    after = await called(one, 'book', hotel='H1')
    assert step.cancelled() and after[0].ok
    assert [before, after] == await replay(other, ((ToolCall('book', {'hotel': 'H1'}),),) * 2)

  asyncio.run(law())


def test_a_world_that_does_not_replay_ends_the_rollout(world):
  async def law():
    address = 'class A:\n  pass\n\nkept = []\n\ndef draw(db):\n  kept.append(A())\n  return repr(A())\n\n'
    one = world(address + 'def spoil(db, how):\n  while True:\n    pass\n')
    first = [(await called(one, 'draw'))[0].content for _ in range(3)]
    one._made[0] = (one._made[0][0], hash(''))  # as if it had answered something else
    await hung(one)
    with pytest.raises(EnvironmentFailure, match='draw answers differently when replayed'):
      await called(one, 'draw')
    assert len(first) == 3

  asyncio.run(law())


def test_a_closed_environment_refuses_steps(world):
  one = world()
  asyncio.run(called(one, 'draw'))
  one.close()
  one.close()
  with pytest.raises(EnvironmentFailure, match='closed'):
    asyncio.run(called(one, 'draw'))


def test_rollouts_run_at_the_same_time(world):
  async def law():
    worlds = [world() for _ in range(40)]
    seen = await asyncio.gather(*(called(one, 'book', hotel='H2') for one in worlds))
    assert len({one[0].content for one in seen}) == 1

  asyncio.run(law())


def test_changes_are_the_places_that_differ():
  before = {'a': 1, 'b': [1, 2, 3], 'c': {'d': {'e': 5}}, 'gone': 0}
  after = {'c': {'d': {'e': 6}}, 'b': [1, 9], 'a': 1, 'new': []}
  assert changes(before, after) == [
    {'path': ['b', 1], 'now': 9},
    {'path': ['b', 2], 'gone': True},
    {'path': ['c', 'd', 'e'], 'now': 6},
    {'path': ['gone'], 'gone': True},
    {'path': ['new'], 'now': []},
  ]
  assert changes(before, before) == []


def test_a_number_is_the_same_whatever_its_type_and_whatever_else_changed():
  paid, repaid = {'sum': 100, 'times': 2}, {'sum': 100.0, 'times': 2}
  assert changes({'sum': 100, 'times': 0}, paid) == changes({'sum': 100, 'times': 0}, repaid)
  assert changes({'sum': 100}, {'sum': 100.0}) == changes(100, 100.0) == []


def test_the_final_state_tells_a_rollout_that_did_what_the_golden_trace_does(world):
  golden = ((ToolCall('book', {'hotel': 'H1'}),),)
  task = Task('t', TOOLS, (Message('user', 'Book H1.'),), golden)
  right = [ToolCall('draw', {}), ToolCall('book', {'hotel': 'H9'}), ToolCall('book', {'hotel': 'H1'})]

  async def law():
    gold = await golden_state(task, lambda task, seed: world())
    for calls, same in ((right, True), ([ToolCall('book', {'hotel': 'H2'})], False), ([], False)):
      one = world()
      await one.step(calls)
      assert (await final_state(one) == gold) is same

  asyncio.run(law())


def test_worlds_of_functions_have_a_final_state_too():
  one = Executable(World(TOOLS, {'book': book, 'draw': draw, 'spoil': spoil}, inline=True), DATABASE)

  async def law():
    await called(one, 'book', hotel='H1')
    assert await final_state(one) == [{'path': ['bookings', '1'], 'now': {'hotel': 'H1'}}]

  asyncio.run(law())


def test_a_golden_trace_that_is_refused_does_not_replay(world):
  task = Task('t', TOOLS, (Message('user', 'Book H9.'),), ((ToolCall('book', {'hotel': 'H9'}),),))
  with pytest.raises(EnvironmentFailure, match="the golden book is refused: Error: no hotel 'H9'"):
    asyncio.run(golden_state(task, lambda task, seed: world()))
