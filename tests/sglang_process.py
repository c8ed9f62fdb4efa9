"""A real SGLang server on this machine's CPU as a process of its own."""

import contextlib
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator

import pytest
from ports import free_port

ROOT = pathlib.Path(__file__).parents[1]
VENV = os.environ.get('SLCA_SGLANG_VENV', '')

needs_sglang = [
  pytest.mark.skipif(not VENV, reason='no SGLang here: run `bash launch/test.sh --sglang`, or set SLCA_SGLANG_VENV')
]


class Process:
  """One server process on a port of its own, with whatever it starts."""

  def __init__(self, model: pathlib.Path, log: pathlib.Path):
    self.port = free_port()
    self.model, self.log, self.url = model, log, f'http://127.0.0.1:{self.port}'
    self.start()

  def start(self) -> None:
    """Starts it; it listens a while later."""
    command = ['bash', str(ROOT / 'launch/sglang.sh'), '--cpu', str(self.model), str(self.port)]
    with open(self.log, 'ab') as log:
      environment = os.environ | {'VENV': VENV}
      self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)

  def wait(self, seconds: float = 600) -> 'Process':
    """Returns once it is healthy."""
    end = time.monotonic() + seconds
    while time.monotonic() < end and self.process.poll() is None:
      try:
        with urllib.request.urlopen(f'{self.url}/health', timeout=30):
          return self
      except OSError:
        time.sleep(0.5)
    raise AssertionError(f'the server did not start:\n{self.log.read_text()[-3000:]}')

  def kill(self) -> None:
    """Ends it and its children, which share its process group."""
    with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
      os.killpg(self.process.pid, signal.SIGKILL)
    self.process.wait()


@contextlib.contextmanager
def served(model: pathlib.Path) -> Iterator[Process]:
  """A healthy server of a checkpoint; it ends with the block, for it keeps a core busy."""
  with tempfile.TemporaryDirectory() as folder:
    process = Process(model, pathlib.Path(folder) / 'log')
    try:
      yield process.wait()
    finally:
      process.kill()
