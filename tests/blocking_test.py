"""A plain function gets a coroutine's result wherever it is called, and ends it if it stops waiting."""

import asyncio
import signal
import sys
import threading
import time

import pytest

from slca_jax import blocking


async def twice(value):
  await asyncio.sleep(0)
  return 2 * value


def plain(value):
  return blocking.run(twice(value))


async def inside(function, *arguments):
  return function(*arguments)


def test_a_plain_function_may_be_called_inside_a_loop_and_outside():
  assert plain(3) == asyncio.run(inside(plain, 3)) == 6


def test_what_a_coroutine_raises_reaches_the_caller():
  async def breaks():
    raise ValueError('no')

  with pytest.raises(ValueError, match='no'):
    blocking.run(breaks())
  with pytest.raises(ValueError, match='no'):
    asyncio.run(inside(lambda: blocking.run(breaks())))


async def loop():
  return asyncio.get_running_loop()


def test_one_runner_is_one_loop_until_it_is_closed():
  def run_two():
    with blocking.Runner() as runner:
      first, second = runner.run(loop()), runner.run(loop())
      assert first is second
    runner.close()
    assert first.is_closed()

  run_two()
  asyncio.run(inside(run_two))


def waits(thread):
  """Whether a thread is inside of a function named `result`."""
  frame = sys._current_frames()[thread.ident]
  while frame is not None and frame.f_code.co_name != 'result':
    frame = frame.f_back
  return frame is not None


def test_an_interrupt_of_the_wait_cancels_the_coroutine():
  begun, ended, main = threading.Event(), threading.Event(), threading.main_thread()

  async def endless():
    begun.set()
    try:
      await asyncio.Event().wait()
    finally:
      ended.set()

  def interrupt():
    begun.wait()
    while not waits(main):
      time.sleep(0.001)
    signal.pthread_kill(main.ident, signal.SIGINT)

  def wait():
    threading.Thread(target=interrupt).start()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a kernel's, in place of the outer loop's
    try:
      with pytest.raises(KeyboardInterrupt):
        blocking.run(endless())
    finally:
      signal.signal(signal.SIGINT, before)

  asyncio.run(inside(wait))
  assert ended.is_set()
