"""Laws of worlds that run."""

import asyncio
import threading

import pytest
from fakes import run_leaping

from slca_jax.dialogue import Observation, Task, ToolCall
from slca_jax.envs.executable import Executable, World, executable_opener, fresh
from slca_jax.envs.guard import CallLimits
from slca_jax.envs.signature import tool_from_function
from slca_jax.errors import EnvironmentFailure


def price(database, ticker: str) -> float:
  """The price of a stock."""
  if ticker not in database['prices']:
    raise ValueError(f'{ticker} is not listed')
  return database['prices'][ticker]


def buy(database, ticker: str, count: int = 1) -> dict:
  """Buys stocks."""
  database['owned'][ticker] = database['owned'].get(ticker, 0) + count
  return dict(database['owned'])


def huge(database) -> str:
  """Ten megabytes."""
  del database
  return 'x' * 10_000_000


def broken(database) -> str:
  """Raises."""
  return database['no such table']


def odd(database) -> str:
  """Returns what JSON cannot hold."""
  return {'a', 'b'}  # type: ignore


FUNCTIONS = (price, huge, broken, odd)
TOOLS = (*map(tool_from_function, FUNCTIONS), tool_from_function(buy, writes=True))
TABLE = {function.__name__: function for function in (*FUNCTIONS, buy)}
DATABASE = {'prices': {'AAPL': 189.5, 'MSFT': 402.0}, 'owned': {}}


@pytest.fixture(params=[True, False], ids=['inline', 'threads'])
def world(request):
  return World(TOOLS, TABLE, inline=request.param)


def step(environment, *calls):
  return asyncio.run(environment.step([ToolCall(name, arguments) for name, arguments in calls]))


def test_calls_read_the_database_and_are_answered_in_order(world):
  seen = step(Executable(world, DATABASE), ('price', {'ticker': 'MSFT'}), ('price', {'ticker': 'AAPL'}))
  assert seen == [Observation('402.0'), Observation('189.5')]


def test_every_rollout_writes_to_its_own_copy(world):
  first, second = Executable(world, DATABASE), Executable(world, DATABASE)
  step(first, ('buy', {'ticker': 'AAPL', 'count': 2}))
  assert step(first, ('buy', {'ticker': 'AAPL'})) == [Observation('{"AAPL": 3}')]
  assert step(second, ('buy', {'ticker': 'AAPL'})) == [Observation('{"AAPL": 1}')]
  assert DATABASE['owned'] == {}


def test_writing_calls_of_one_step_apply_in_order(world):
  seen = step(Executable(world, DATABASE), *[('buy', {'ticker': 'AAPL'})] * 5)
  assert [one.content for one in seen] == [f'{{"AAPL": {count}}}' for count in range(1, 6)]


def test_a_tool_refuses_with_its_own_words(world):
  assert step(Executable(world, DATABASE), ('price', {'ticker': 'XX'})) == [
    Observation('Error: XX is not listed', ok=False)
  ]


def test_a_call_that_does_not_fit_its_tool_never_reaches_it(world):
  seen = step(
    Executable(world, DATABASE), ('sell', {}), ('buy', {}), ('buy', {'ticker': 'A', 'count': 'two'}), ('buy', {'x': 1})
  )
  assert [one.ok for one in seen] == [False] * 4
  assert 'sell' in seen[0].content and 'ticker' in seen[1].content and 'count' in seen[2].content


def test_a_crash_and_an_unfit_result_are_observations(world):
  seen = step(Executable(world, DATABASE), ('broken', {}), ('odd', {}), ('price', {'ticker': 'AAPL'}))
  assert [one.ok for one in seen] == [False, False, True]
  assert seen[0].content == "Error: KeyError: 'no such table'" and 'no JSON' in seen[1].content


def test_ten_megabytes_are_cut(world):
  seen = step(Executable(world, DATABASE, limits=CallLimits(max_characters=500)), ('huge', {}))
  assert seen[0].ok and len(seen[0].content) == 500


def test_a_tool_that_the_task_does_not_offer_does_not_exist(world):
  environment = Executable(world, DATABASE, tools=TOOLS[1:])
  assert environment.tools == TOOLS[1:]
  assert not step(environment, ('price', {'ticker': 'AAPL'}))[0].ok


def test_a_tool_that_changes_its_arguments_does_not_change_the_call():
  def greedy(database, items: list[str]) -> int:
    items.append('more')
    return len(items)

  world = World((tool_from_function(greedy),), {'greedy': greedy}, inline=True)
  call = ToolCall('greedy', {'items': ['one']})
  assert asyncio.run(Executable(world, {}).step([call, call])) == [Observation('2'), Observation('2')]
  assert call.arguments == {'items': ['one']}


def test_a_closed_world_is_dead(world):
  environment = Executable(world, DATABASE)
  environment.close()
  environment.close()
  with pytest.raises(EnvironmentFailure, match='closed'):
    step(environment, ('price', {'ticker': 'AAPL'}))


def test_a_hung_write_cannot_reach_the_database_afterwards():
  release, wrote, loop = threading.Event(), threading.Event(), None

  def hang(database) -> str:
    loop.leap_soon(300.0)
    release.wait()
    database['owned']['late'] = 1
    wrote.set()
    return 'late'

  tools = (tool_from_function(hang, writes=True), *TOOLS)
  environment = Executable(World(tools, {'hang': hang, **TABLE}), DATABASE, limits=CallLimits(deadline=300.0))

  async def scene():
    nonlocal loop
    loop = asyncio.get_running_loop()
    return await environment.step([ToolCall('hang', {}), ToolCall('buy', {'ticker': 'AAPL'})])

  seen = run_leaping(scene())
  assert [one.ok for one in seen] == [False, True]
  release.set()
  assert wrote.wait(300)
  assert environment.database['owned'] == {'AAPL': 1}


def test_rollouts_of_one_opener_share_the_count_of_hung_calls():
  release = threading.Event()

  def hang(database) -> str:
    release.wait()
    return 'late'

  tool = tool_from_function(hang)
  limits = CallLimits(deadline=0.05, max_abandoned=0)
  opener = executable_opener(World((tool,), {'hang': hang}), limits=limits)
  task = Task('t', (tool,), (), meta={'database': {}})
  assert not step(opener(task, 0), ('hang', {}))[0].ok
  with pytest.raises(EnvironmentFailure, match='1 hung tool calls'):
    step(opener(task, 1), ('hang', {}))
  release.set()


def test_a_task_without_database_is_a_failed_rollout_and_no_crash():
  with pytest.raises(EnvironmentFailure, match='t has no database'):
    executable_opener(World(TOOLS, TABLE))(Task('t', TOOLS, ()), 0)


def test_a_world_needs_a_function_for_every_tool():
  with pytest.raises(ValueError, match='price'):
    World(TOOLS, {'buy': buy})


async def later(database):
  return 'later'


def some(database):
  yield 'some'


async def streamed(database):
  yield 'streamed'


@pytest.mark.parametrize('function', [later, some, streamed])
def test_a_function_whose_call_does_nothing_yet_is_refused(function):
  with pytest.raises(ValueError, match='the function of price is async or yields'):
    World(TOOLS, {**TABLE, 'price': function})


def test_copies_are_deep_even_of_what_cannot_be_pickled():
  original = {'a': [1, {'b': 2}], 'f': lambda: 1}
  copied = fresh(original)
  copied['a'][1]['b'] = 3
  assert original['a'][1]['b'] == 2 and copied['f'] is original['f']
