"""A conversation with a script in another interpreter: one process, lines of JSON to it, lines of JSON from it.

Benchmarks pin versions that clash with those of this library and with each other, so each may live in an environment of
its own. Nothing of theirs is imported here. Questions carry a number that the answer repeats, so a script may answer in
any order.
"""

import asyncio
import contextlib
import itertools
import json
import os
import pathlib
import signal
import sys
from collections.abc import Sequence
from typing import Any

from slca_jax.errors import ConfigError, EnvironmentFailure

_LINE = 2**30  # bytes; a whole category of entries is one line
_SECONDS = 900.0  # a benchmark's imports can take a minute on a busy machine, a simulated user its time
_LAST_WORDS = 2000  # characters of a dead process's standard error that are told


class Bridge:
  """Asks the script. It starts when it is first asked and ends with `close`."""

  def __init__(
    self, script: pathlib.Path, arguments: Sequence[str] = (), *, python: str = '', seconds: float = _SECONDS
  ):
    """Names the script and its interpreter.

    Args:
      python: path of the interpreter; this one if ''.
      seconds: longest wait for an answer; the process is ended then.

    Raises:
      ConfigError: there is no such interpreter.
    """
    self._python = python or sys.executable
    if not pathlib.Path(self._python).is_file():
      raise ConfigError(f'python is {python!r}; there is no such interpreter')
    # Isolated: the script's own folder holds modules named like the standard library's and like the benchmarks.
    self._command = (self._python, '-I', str(script), *arguments)
    self._seconds = seconds
    self._talk: _Talk | None = None
    self._starting = asyncio.Lock()

  async def ask(self, do: str, **arguments: Any) -> Any:
    """The script's answer.

    Raises:
      EnvironmentFailure: the process died or took too long; it is started anew for the next question. Or the question
        is about something that the process before it held.
      ConfigError: the script refuses, and says why.
    """
    talk = await self._started()
    try:
      told = await asyncio.wait_for(talk.ask({'do': do, **arguments}), self._seconds)
    except TimeoutError as error:
      await talk.end()
      raise EnvironmentFailure(f'{self._python} did not answer {do!r} within {self._seconds:g} s') from error
    except EOFError as error:
      raise EnvironmentFailure(f'{self._python} ended at {do!r}: {error}') from error
    if 'lost' in told:
      raise EnvironmentFailure(f'{self._python} at {do!r}: {told["lost"]}')
    if 'refused' in told:
      raise ConfigError(f'{self._command[2]} in {self._python}: {told["refused"]}')
    return told['answer']

  async def close(self) -> None:
    """Ends the process. A second close does nothing."""
    if self._talk is not None:
      await self._talk.end()
      self._talk = None

  async def _started(self) -> '_Talk':
    async with self._starting:
      if self._talk is None or self._talk.ended:
        process = await asyncio.create_subprocess_exec(
          *self._command,
          stdin=asyncio.subprocess.PIPE,
          stdout=asyncio.subprocess.PIPE,
          stderr=asyncio.subprocess.PIPE,
          limit=_LINE,
          start_new_session=True,  # so that its own children end with it
        )
        self._talk = _Talk(process)
      return self._talk


class _Talk:
  """One process and the questions that it has not answered yet."""

  def __init__(self, process: asyncio.subprocess.Process):
    self._process = process
    self._numbers = itertools.count()
    self._open: dict[int, asyncio.Future[dict[str, Any]]] = {}
    self.ended = False
    self._errors = asyncio.create_task(_keep_end(process.stderr))
    self._reader = asyncio.create_task(self._read())

  async def ask(self, asked: dict[str, Any]) -> dict[str, Any]:
    """The answer as it came. Raises EOFError, with the process's last words, if none can come any more."""
    number, future = next(self._numbers), asyncio.get_running_loop().create_future()
    self._open[number] = future
    assert self._process.stdin is not None
    try:
      if self.ended:
        raise EOFError('it is gone')
      self._process.stdin.write(json.dumps({'number': number, **asked}).encode() + b'\n')
      with contextlib.suppress(ConnectionError):  # it died: the reader says so
        await self._process.stdin.drain()
      return await future
    finally:
      self._open.pop(number, None)

  async def end(self) -> None:
    """Kills the process and waits for its end."""
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self._process.pid, signal.SIGKILL)
    await self._process.wait()
    await self._reader

  async def _read(self) -> None:
    assert self._process.stdout is not None
    try:
      while line := await self._process.stdout.readline():
        told = json.loads(line)
        future = self._open.get(told['number'])
        if future is not None and not future.done():
          future.set_result(told)
    finally:
      self.ended = True
      words = (await self._errors).strip() or 'without a word'
      for future in self._open.values():
        if not future.done():
          future.set_exception(EOFError(words))


async def _keep_end(stream: asyncio.StreamReader | None) -> str:
  """Reads a stream to its end, so that its writer never waits, and returns the last of it."""
  assert stream is not None
  kept = b''
  while piece := await stream.read(65536):
    kept = (kept + piece)[-_LAST_WORDS:]
  return kept.decode('utf-8', 'replace')
