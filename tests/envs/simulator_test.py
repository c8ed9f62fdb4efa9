"""Laws of the simulator's first stage."""

import asyncio

import pytest

from slca_jax.dialogue import Observation, Tool, ToolCall
from slca_jax.envs.guard import CallLimits
from slca_jax.envs.simulator import Simulator
from slca_jax.errors import EnvironmentFailure

BOOK = Tool(
  'book',
  'Books a room.',
  {
    'type': 'object',
    'properties': {
      'city': {'type': 'string'},
      'nights': {'type': 'integer'},
      'guests': {'type': 'array', 'items': {'type': 'object', 'properties': {'age': {'type': 'integer'}}}},
    },
    'required': ['city', 'nights'],
  },
)
NOW = Tool('now', 'The time.', {'type': 'object', 'properties': {}})


class Backend:
  """Answers with the tool's name and remembers what it was asked."""

  def __init__(self):
    self.asked = []

  async def __call__(self, tool, call):
    self.asked.append((tool, call))
    return Observation(f'from {tool.name if tool else None}')


def step(simulator, *calls):
  return asyncio.run(simulator.step([ToolCall(name, arguments) for name, arguments in calls]))


def test_valid_calls_reach_the_backend_with_their_tool():
  backend = Backend()
  assert step(Simulator((BOOK, NOW), backend), ('now', {}), ('book', {'city': 'Lyon', 'nights': 2})) == [
    Observation('from now'),
    Observation('from book'),
  ]
  assert backend.asked[1] == (BOOK, ToolCall('book', {'city': 'Lyon', 'nights': 2}))


def test_a_plain_function_answers_as_an_async_one_does():
  assert step(Simulator((NOW,), lambda tool, call: Observation(f'from {tool.name}')), ('now', {})) == [
    Observation('from now')
  ]


@pytest.mark.parametrize(
  ('call', 'words'),
  [
    (('cancel', {}), ['cancel']),
    (('book', {}), ['book', 'city, nights']),
    (('book', {'city': 'Lyon'}), ['nights']),
    (('book', {'city': 'Lyon', 'nights': 'two'}), ['nights', 'integer']),
    (('book', {'city': 'Lyon', 'nights': True}), ['nights', 'integer']),
    (('book', {'city': None, 'nights': 1}), ['city', 'string']),
    (
      ('book', {'city': 'Lyon', 'nights': 1, 'guests': [{'age': 3}, {'age': 'old'}]}),
      ['guests', '1', 'age', 'integer'],
    ),
  ],
)
def test_invalid_calls_are_told_why_and_never_reach_the_backend(call, words):
  backend = Backend()
  (seen,) = step(Simulator((BOOK, NOW), backend), call)
  assert not seen.ok
  for word in words:
    assert word in seen.content
  assert backend.asked == []


def test_the_same_fault_has_the_same_text():
  calls = [('book', {'city': 'Lyon', 'nights': 'two'})] * 2
  first, second = step(Simulator((BOOK,), Backend()), *calls)
  assert first == second


def test_a_whole_float_is_an_integer():
  assert step(Simulator((BOOK,), Backend()), ('book', {'city': 'Lyon', 'nights': 2.0}))[0].ok


def test_without_checks_everything_reaches_the_backend():
  seen = step(Simulator((BOOK,), Backend(), checks=False), ('cancel', {}), ('book', {'nights': 'two'}))
  assert seen == [Observation('from None'), Observation('from book')]


def test_a_backend_that_raises_or_hangs_is_an_observation():
  async def answer(tool, call):
    if call.arguments:
      raise RuntimeError('no idea')
    await asyncio.Event().wait()

  seen = step(Simulator((NOW,), answer, limits=CallLimits(deadline=0.05)), ('now', {'x': 1}), ('now', {}))  # type: ignore
  assert [one.ok for one in seen] == [False, False]
  assert 'no idea' in seen[0].content and 'did not answer' in seen[1].content


def test_a_backend_that_is_gone_is_a_dead_environment():
  async def answer(tool, call):
    raise EnvironmentFailure('connection lost')

  with pytest.raises(EnvironmentFailure, match='connection lost'):
    step(Simulator((NOW,), answer), ('now', {}))


def test_a_closed_simulator_is_dead():
  simulator = Simulator((NOW,), Backend())
  simulator.close()
  with pytest.raises(EnvironmentFailure, match='closed'):
    step(simulator, ('now', {}))
