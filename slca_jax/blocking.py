"""Coroutines for plain functions, also where an event loop runs already: the cells of a notebook run inside of one."""

import asyncio
import concurrent.futures
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar('T')


class Runner:
  """Runs coroutines to their end, one after another, in one event loop of its own.

  A thread that is inside a loop already cannot run another one. It waits then, and its loop with it, for a thread that
  can.
  """

  def __init__(self):
    self._runner = asyncio.Runner()
    self._thread: concurrent.futures.ThreadPoolExecutor | None = None

  def __enter__(self) -> 'Runner':
    return self

  def __exit__(self, *error: object) -> None:
    self.close()

  def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result. What interrupts the wait for it cancels it."""
    if not _inside_a_loop():
      return self._runner.run(coroutine)
    if self._thread is None:
      self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix='slca_jax-loop')
    future = self._thread.submit(self._runner.run, coroutine)
    try:
      return future.result()
    finally:
      if not future.done():
        loop = self._runner.get_loop()
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])

  def close(self) -> None:
    """Ends the loop. A second close does nothing."""
    if self._thread is None:
      self._runner.close()
      return
    self._thread.submit(self._runner.close).result()
    self._thread.shutdown()
    self._thread = None


def run(coroutine: Coroutine[Any, Any, T]) -> T:
  """The result of one coroutine, in a loop of its own."""
  with Runner() as runner:
    return runner.run(coroutine)


def _inside_a_loop() -> bool:
  try:
    asyncio.get_running_loop()
  except RuntimeError:
    return False
  return True
