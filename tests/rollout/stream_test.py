"""Batches collected while the trainer works: what is started when, what is given, dropped, and made again."""

import asyncio

import pytest
from fakes import ScriptedEnvironment, ScriptedSampler

from slca_jax.chat.template import Template
from slca_jax.dialogue import Message, Scores, Task, Tool
from slca_jax.errors import SamplerError
from slca_jax.quickstart.tokenizer import make_tokenizer
from slca_jax.quickstart.world import make_task
from slca_jax.rollout.collect import Rollouts, collect, seed_of
from slca_jax.rollout.sampler import Sample
from slca_jax.rollout.settings import Decoding, Limits
from slca_jax.rollout.stream import Stream, join

TOOL = Tool('get_price', 'Price.', {'type': 'object', 'properties': {}})
TEMPLATE = Template(make_tokenizer([make_task(0, 'train', index) for index in range(20)]))
ANSWER = TEMPLATE.encode('42<|im_end|>')


class Engine(ScriptedSampler):
  """Answers with the version it has; the sessions of `slow` tasks wait for `gate`."""

  def __init__(self, *slow):
    super().__init__(lambda session, tokens: ANSWER, concurrency=64)
    self.version, self.slow, self.gate = 0, slow, asyncio.Event()

  async def generate(self, tokens, *, session, **options):
    version = self.version
    self.requests.append({'session': session})
    if session.split('/')[2] in self.slow:
      await self.gate.wait()
    await asyncio.sleep(0)
    return Sample(tuple(ANSWER), (-0.5,) * len(ANSWER), 'stop', ((version, len(ANSWER)),))


def deal(batch):
  return [Task(f'task{2 * batch + i}', (TOOL,), (Message('user', 'What?'),)) for i in range(2)]


def world_of(engine):
  open_environment = lambda task, seed: ScriptedEnvironment(lambda call: '42')
  return Rollouts(engine, TEMPLATE, open_environment, Limits(), Decoding())


async def score(trajectory, *, seed):
  return Scores(outcome=float(seed))


def stream_of(engine, lag=0, *, score=score, position=None, places=None):
  options = dict(prompts=2, group_size=2, seed=7, max_staleness=lag, position=position, places=places)
  return Stream(deal, world_of(engine), score, **options)


def ids(taken):
  return [trajectory.task.id for trajectory in taken.trajectories[::2]]


async def idle(turns=50):
  for _ in range(turns):
    await asyncio.sleep(0)


def test_strict_batches_are_those_of_collecting_each_by_itself():
  async def streamed():
    engine = Engine()
    stream, batches = stream_of(engine), []
    for engine.version in range(2):
      batches.append(await stream.take(engine.version))
    return batches, stream.outstanding

  async def collected(step):
    engine = Engine()
    engine.version = step
    seed = f'7/{step}'
    rate = lambda trajectory: score(trajectory, seed=seed_of(seed, 'judge'))
    return await collect(deal(step), world_of(engine), rate, group_size=2, seed=seed)

  batches, outstanding = asyncio.run(streamed())
  assert outstanding == 0
  for step, taken in enumerate(batches):
    trajectories, scores = asyncio.run(collected(step))
    assert taken.trajectories == trajectories and taken.scores == scores and taken.dropped == 0
    assert [(t.group, t.index) for t in trajectories] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.parametrize('lag', [0, 1, 2])
def test_so_many_batches_are_in_the_making_beyond_the_one_that_was_given(lag):
  async def run():
    engine = Engine()
    stream = stream_of(engine, lag)
    await stream.take(0)
    await idle()
    started = len({request['session'].split('/')[2] for request in engine.requests})
    outstanding = stream.outstanding
    await stream.close()
    return started, outstanding

  assert asyncio.run(run()) == (2 + 2 * lag, 2 * lag)


def test_slow_group_holds_up_no_other_and_is_given_when_it_is_done():
  async def run():
    engine = Engine('task0')
    stream = stream_of(engine, 3)
    first = ids(await stream.take(0))
    position = stream.position
    engine.gate.set()
    await idle()
    engine.version = 1
    return first, position, ids(await stream.take(1, ahead=1)), stream.position

  assert asyncio.run(run()) == (
    ['task1', 'task2'],
    {'next': 0, 'beyond': [1, 2]},
    ['task0', 'task3'],
    {'next': 4, 'beyond': []},
  )


def test_nothing_is_started_that_nobody_would_take():
  async def run():
    engine = Engine()
    stream = stream_of(engine, 2)
    for engine.version, ahead in enumerate((1, 0)):
      await stream.take(engine.version, ahead=ahead)
    await idle()
    return stream.outstanding, len(engine.requests), stream.position

  assert asyncio.run(run()) == (0, 8, {'next': 4, 'beyond': []})


def test_group_with_a_token_that_is_too_old_is_dropped_and_counted():
  async def run():
    engine = Engine('task0')
    stream = stream_of(engine, 1)
    taken = []
    for engine.version in range(3):
      if engine.version == 2:
        engine.gate.set()
        await idle()
      taken.append(await stream.take(engine.version))
    await stream.close()
    return [ids(one) for one in taken], [one.dropped for one in taken], stream.position['next']

  batches, dropped, low = asyncio.run(run())
  assert batches == [['task1', 'task2'], ['task3', 'task4'], ['task5', 'task6']]
  assert dropped == [0, 0, 1] and low == 7


def test_stream_from_a_position_makes_again_what_was_not_given():
  async def run():
    before = stream_of(Engine('task0'), 1)
    await before.take(0)
    await before.close()
    engine = Engine()
    after = stream_of(engine, position=before.position)
    return ids(await after.take(0)), ids(await after.take(0)), {r['session'] for r in engine.requests}

  first, second, sessions = asyncio.run(run())
  assert first == ['task0', 'task3'] and second == ['task4', 'task5']
  assert '7/0/task0/0/0' in sessions and '7/1/task3/1/1' in sessions  # the seeds of their own batch and place


def test_cancelled_take_loses_nothing():
  async def run():
    engine = Engine('task0')
    stream = stream_of(engine)
    waiting = asyncio.ensure_future(stream.take(0))
    await idle()
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    engine.gate.set()
    return ids(await stream.take(0)), len(engine.requests)

  assert asyncio.run(run()) == (['task0', 'task1'], 4)


def test_engine_with_stale_weights_is_found_out():
  with pytest.raises(SamplerError, match='version 0 of the weights after version 1'):
    asyncio.run(stream_of(Engine()).take(1))


def test_our_own_bug_raises():
  async def broken(trajectory, *, seed):
    raise ZeroDivisionError

  async def run():
    stream = stream_of(Engine(), score=broken)
    try:
      await stream.take(0)
    finally:
      await stream.close()

  with pytest.raises(BaseExceptionGroup):
    asyncio.run(run())


def test_streams_of_two_hosts_make_what_one_makes():
  async def take(places):
    engine = Engine()
    stream, made = stream_of(engine, places=places), []
    for engine.version in range(2):
      taken = await stream.take(engine.version)
      made += [(engine.version, t, s) for t, s in zip(taken.trajectories, taken.scores, strict=True)]
    return made, stream.position

  whole, position = asyncio.run(take(None))
  (first, a), (second, b) = asyncio.run(take([0])), asyncio.run(take([1]))
  by_place = lambda row: (row[0], row[1].group, row[1].index)
  assert sorted([*first, *second], key=by_place) == whole
  assert join([a, b], [[0], [1]], 2) == position == {'next': 4, 'beyond': []}


def test_host_without_a_place_takes_nothing_at_once_and_has_no_say_in_the_position():
  async def take():
    stream = stream_of(Engine(), places=[])
    return await stream.take(0), stream.position

  taken, position = asyncio.run(take())
  assert taken.trajectories == [] and join([{'next': 6, 'beyond': []}, position], [[0, 1], []], 2)['next'] == 6


def test_positions_of_hosts_that_ran_apart_join_to_the_first_group_that_any_left_open():
  # Host 0 has settled 0, 2 and 6, host 1 all of 1, 3, 5 and 7: what is open is 4.
  told = [{'next': 4, 'beyond': [6]}, {'next': 9, 'beyond': []}]
  assert join(told, [[0], [1]], 2) == {'next': 4, 'beyond': [5, 6, 7]}


def test_run_goes_on_with_another_number_of_hosts():
  async def take(places, position):
    engine = Engine()
    return ids(await stream_of(engine, 0, position=position, places=places).take(0))

  position = {'next': 4, 'beyond': [5, 6, 7]}
  assert asyncio.run(take(None, position)) == ['task4', 'task8']
  assert asyncio.run(take([0], position)) == ['task4'] and asyncio.run(take([1], position)) == ['task9']
