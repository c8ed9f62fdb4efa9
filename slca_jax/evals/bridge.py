"""A conversation with a script in another interpreter: one process, a line of JSON to it, a line of JSON from it.

Benchmarks pin versions that clash with those of this library and with each other, so each may live in an environment of
its own. Nothing of theirs is imported here.
"""

import asyncio
import contextlib
import json
import os
import pathlib
import signal
import sys
from collections.abc import Sequence
from typing import Any

from slca_jax.errors import ConfigError, EnvironmentFailure

_LINE = 2**30  # bytes; a whole category of entries is one line
_SECONDS = 600.0  # a benchmark's imports can take a minute on a busy machine
_LAST_WORDS = 2000  # characters of a dead process's standard error that are told


class Bridge:
  """Asks the script one thing after another. It starts when it is first asked and ends with `close`."""

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
    self._process: asyncio.subprocess.Process | None = None
    self._turn = asyncio.Lock()

  async def ask(self, do: str, **arguments: Any) -> Any:
    """The script's answer.

    Raises:
      EnvironmentFailure: the process died or took too long; it is started anew for the next question.
      ConfigError: the script refuses, and says why.
    """
    async with self._turn:
      try:
        line = await asyncio.wait_for(self._exchange({'do': do, **arguments}), self._seconds)
      except (TimeoutError, OSError, ValueError) as error:
        await self._end()
        raise EnvironmentFailure(f'{self._python} did not answer {do!r}: {type(error).__name__} {error}') from error
      if not line:
        raise EnvironmentFailure(f'{self._python} ended at {do!r}: {await self._last_words()}')
    told = json.loads(line)
    if 'refused' in told:
      raise ConfigError(f'{self._command[2]} in {self._python}: {told["refused"]}')
    return told['answer']

  async def close(self) -> None:
    """Ends the process. A second close does nothing."""
    async with self._turn:
      await self._end()

  async def _exchange(self, asked: dict[str, Any]) -> bytes:
    if self._process is None:
      self._process = await asyncio.create_subprocess_exec(
        *self._command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        limit=_LINE,
        start_new_session=True,  # so that its own children end with it
      )
      self._listening = asyncio.create_task(_keep_end(self._process.stderr))
    assert self._process.stdin is not None and self._process.stdout is not None
    self._process.stdin.write(json.dumps(asked).encode() + b'\n')
    with contextlib.suppress(ConnectionError):  # it died: reading says so
      await self._process.stdin.drain()
    return await self._process.stdout.readline()

  async def _last_words(self) -> str:
    said = await self._listening
    await self._end()
    return said.strip() or 'without a word'

  async def _end(self) -> None:
    process, self._process = self._process, None
    if process is None:
      return
    with contextlib.suppress(ProcessLookupError):
      os.killpg(process.pid, signal.SIGKILL)
    await process.wait()
    await self._listening


async def _keep_end(stream: asyncio.StreamReader | None) -> str:
  """Reads a stream to its end, so that its writer never waits, and returns the last of it."""
  assert stream is not None
  kept = b''
  while piece := await stream.read(65536):
    kept = (kept + piece)[-_LAST_WORDS:]
  return kept.decode('utf-8', 'replace')
