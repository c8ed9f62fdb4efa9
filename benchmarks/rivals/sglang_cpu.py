"""A real SGLang server on this machine's CPU, for the benchmarks that need one."""

import contextlib
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def served(model: pathlib.Path, venv: pathlib.Path, *options: str, port: int = 0) -> Iterator[str]:
  """The address of a server of the checkpoint; it ends with the block.

  Args:
    venv: the environment that holds SGLang.
    options: of the server, beside its model and address.
    port: a free one if it is 0.
  """
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that blocks end, and the server too
  with socket.socket() as probe:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # one that has just ended there is no obstacle
    probe.bind(('127.0.0.1', port))
    port = probe.getsockname()[1]
  command = ['bash', str(ROOT / 'launch' / 'sglang.sh'), '--cpu', str(model), str(port), *options]
  log = model.parent / 'server.log'
  with open(log, 'wb') as out:
    server = subprocess.Popen(
      command, env=os.environ | {'VENV': str(venv.resolve())}, stdout=out, stderr=out, start_new_session=True
    )
  try:
    while True:
      if server.poll() is not None:
        raise SystemExit(log.read_text()[-2000:])
      with contextlib.suppress(OSError), urllib.request.urlopen(f'http://127.0.0.1:{port}/health', timeout=60):
        break
      time.sleep(1)
    yield f'http://127.0.0.1:{port}'
  finally:
    with contextlib.suppress(ProcessLookupError):
      os.killpg(server.pid, signal.SIGKILL)
    server.wait()
