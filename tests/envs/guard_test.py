"""Laws of the guard: whatever a tool does, the step ends with one observation per call, in order."""

import asyncio
import subprocess
import sys
import threading
import time

import pytest
from fakes import run_leaping

from slca_jax.dialogue import Observation, ToolCall
from slca_jax.envs.guard import CallLimits, Threads, answer_all, answer_one, as_text, bounded, cut, refusal
from slca_jax.errors import ConfigError, EnvironmentFailure

LIMITS = CallLimits(deadline=300.0, max_characters=1000, max_error_characters=120)
SHORT = CallLimits(deadline=0.05)


def call(name):
  return ToolCall(name, {})


def test_parallel_calls_run_at_once_and_are_answered_in_order():
  arrived = []

  async def answer(asked):
    arrived.append(asked.name)
    while len(arrived) < 3:  # nobody is answered before everybody has asked
      await asyncio.sleep(0)
    for _ in range({'a': 9, 'b': 5, 'c': 1}[asked.name]):  # the first to ask is the last to be answered
      await asyncio.sleep(0)
    return Observation(asked.name.upper())

  seen = asyncio.run(answer_all([call('a'), call('b'), call('c')], answer, limits=LIMITS))
  assert [one.content for one in seen] == ['A', 'B', 'C']


def test_an_exception_is_an_observation_and_spares_the_other_calls():
  async def answer(asked):
    if asked.name == 'bad':
      raise KeyError('lost')
    return Observation('fine')

  seen = asyncio.run(answer_all([call('bad'), call('good')], answer, limits=LIMITS))
  assert seen == [Observation("Error: KeyError: 'lost'", ok=False), Observation('fine')]


@pytest.mark.parametrize('odd', [None, 'a string', Observation(None), Observation(b'bytes')])  # type: ignore
def test_an_answer_that_is_no_observation_is_an_error_of_its_call_alone(odd):
  async def answer(asked):
    return odd if asked.name == 'odd' else Observation('fine')

  seen = asyncio.run(answer_all([call('odd'), call('good')], answer, limits=LIMITS))
  assert [one.ok for one in seen] == [False, True]


def test_a_dead_world_is_no_observation():
  async def answer(asked):
    if asked.name == 'bad':
      raise EnvironmentFailure('the server is gone')
    return Observation('fine')

  with pytest.raises(EnvironmentFailure, match='server is gone'):
    asyncio.run(answer_all([call('good'), call('bad')], answer, limits=LIMITS))


def test_an_answer_that_ignores_its_cancellation_is_left_behind():
  release = None

  async def answer(asked):
    nonlocal release
    release = asyncio.Event()
    while not release.is_set():
      try:
        await release.wait()
      except asyncio.CancelledError:
        continue
    return Observation('too late')

  async def scene():
    seen = await answer_one(call('stubborn'), answer, limits=SHORT)
    release.set()
    return seen

  seen = asyncio.run(scene())
  assert not seen.ok and 'stubborn' in seen.content and '0.05 seconds' in seen.content


def test_a_hung_function_neither_blocks_the_loop_nor_is_it_waited_for():
  release = threading.Event()
  threads = Threads()

  async def answer(asked):
    if asked.name == 'hung':
      return await threads.run(lambda: release.wait() and Observation('late'))
    seen = await threads.run(lambda: Observation('1'))
    asyncio.get_running_loop().leap(LIMITS.deadline)  # now the deadline passes
    return seen

  async def scene():
    seen = await answer_all([call('hung'), call('quick')], answer, limits=LIMITS)
    assert threads.abandoned == 1
    return seen

  seen = run_leaping(scene())
  assert [one.ok for one in seen] == [False, True]
  release.set()
  until = time.monotonic() + 300
  while threads.abandoned and time.monotonic() < until:
    time.sleep(0.001)
  assert threads.abandoned == 0  # a call that came back is no burden any more


def test_too_many_hung_calls_are_a_dead_world():
  release = threading.Event()
  threads = Threads(max_abandoned=1)

  async def answer(asked):
    return await threads.run(release.wait)

  async def scene():
    for _ in range(2):
      assert not (await answer_one(call('hung'), answer, limits=SHORT)).ok
    await answer_one(call('hung'), answer, limits=SHORT)

  with pytest.raises(EnvironmentFailure, match='2 hung tool calls'):
    asyncio.run(scene())
  release.set()


def test_a_hung_function_does_not_keep_the_interpreter():
  script = """
import asyncio, threading
from slca_jax.dialogue import ToolCall
from slca_jax.envs.guard import CallLimits, Threads, answer_one
threads = Threads()
answer = lambda call: threads.run(threading.Event().wait)
print(asyncio.run(answer_one(ToolCall('f', {}), answer, limits=CallLimits(deadline=0.05))).ok)
"""
  ended = subprocess.run([sys.executable, '-c', script], capture_output=True, text=True, timeout=500)
  assert (ended.returncode, ended.stdout, ended.stderr) == (0, 'False\n', '')


@pytest.mark.parametrize('error', [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration()])
def test_a_tool_cannot_end_the_run(error):
  def tool():
    raise error

  seen = asyncio.run(answer_one(call('f'), lambda _: Threads().run(tool), limits=LIMITS))
  assert not seen.ok


def test_cancelling_a_step_counts_its_calls_as_abandoned():
  started, release = threading.Event(), threading.Event()
  threads = Threads()

  def hang():
    started.set()
    release.wait()

  async def scene():
    step = asyncio.ensure_future(answer_all([call('f')], lambda _: threads.run(hang), limits=LIMITS))
    while not started.is_set():
      await asyncio.sleep(0.001)
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
      await step
    await asyncio.sleep(0)
    return threads.abandoned

  assert asyncio.run(scene()) == 1
  release.set()


def test_a_refusal_speaks_for_itself_and_other_errors_are_named():
  assert refusal(ValueError('no such city'), limits=LIMITS) == Observation('Error: no such city', ok=False)
  assert refusal(ZeroDivisionError('x'), limits=LIMITS).content == 'Error: ZeroDivisionError: x'
  assert len(refusal(RuntimeError('x' * 10_000), limits=LIMITS).content) <= 120


def test_an_error_that_cannot_be_printed_is_still_an_observation():
  class Mute(Exception):
    def __str__(self):
      raise RuntimeError

  assert 'Mute' in refusal(Mute(), limits=LIMITS).content


def test_ten_megabytes_lose_their_middle():
  text = 'a' * 5_000_000 + 'b' * 5_000_000
  seen = bounded(Observation(text), limits=LIMITS)
  assert len(seen.content) == 1000
  assert seen.content.startswith('a' * 400) and seen.content.endswith('b' * 400)
  assert 'left out' in seen.content and seen.cut
  assert not bounded(Observation('short'), limits=LIMITS).cut


def test_a_text_that_fits_is_not_touched():
  assert cut('x' * 100, 100) == 'x' * 100
  assert len(cut('x' * 101, 100)) == 100


def test_lone_surrogates_never_reach_a_tokenizer():
  assert bounded(Observation('a\ud800b'), limits=LIMITS).content == 'a?b'


def test_results_become_json_once_and_for_all():
  assert as_text('plain') == 'plain'
  assert as_text({'b': [1, 2.5, None, True], 'a': 'é'}) == '{"b": [1, 2.5, null, true], "a": "é"}'
  assert as_text(None) == 'null'


def deep():
  out = []
  for _ in range(100_000):
    out = [out]
  return out


@pytest.mark.parametrize('result', [{1, 2}, object(), float('nan'), {'x': float('inf')}, b'bytes', {(1, 2): 3}])
def test_results_that_are_no_json_are_refused(result):
  with pytest.raises(ValueError, match='no JSON'):
    as_text(result)


def test_cyclic_and_bottomless_results_are_refused():
  cycle = []
  cycle.append(cycle)
  for result in (cycle, deep()):
    with pytest.raises(ValueError, match='no JSON'):
      as_text(result)


@pytest.mark.parametrize('bad', [{'deadline': 0.0}, {'max_characters': 5}, {'max_abandoned': -1}])
def test_limits_without_sense_are_refused(bad):
  with pytest.raises(ConfigError):
    CallLimits(**bad)
