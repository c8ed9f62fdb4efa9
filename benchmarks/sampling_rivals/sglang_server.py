"""A real SGLang server on this machine's CPU, for `benchmarks/sampling.py`; run by its environment's interpreter."""

import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]


@contextlib.contextmanager
def served(model: pathlib.Path, requests: int, tokens: int) -> Iterator[str]:
  """The address of a server that runs so many requests at once; it ends with the block."""
  with socket.socket() as probe:
    probe.bind(('127.0.0.1', 0))
    port = probe.getsockname()[1]
  sizes = ['--max-running-requests', str(requests), '--max-total-tokens', str(tokens)]
  command = ['bash', str(ROOT / 'launch' / 'sglang.sh'), '--cpu', str(model), str(port), *sizes]
  environment = os.environ | {'VENV': str(pathlib.Path(sys.executable).parents[1])}
  log = model.parent / 'sglang.log'
  with open(log, 'wb') as out:
    server = subprocess.Popen(command, env=environment, stdout=out, stderr=out, start_new_session=True)
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


def call(url: str, prompt: list[int], batch: int, new: int) -> list[list[int]]:
  sampling = {'temperature': 0, 'max_new_tokens': new, 'ignore_eos': True, 'skip_special_tokens': False}
  body = json.dumps({'input_ids': [prompt] * batch, 'sampling_params': sampling}).encode()
  request = urllib.request.Request(f'{url}/generate', body, {'Content-Type': 'application/json'})
  with urllib.request.urlopen(request, timeout=600) as answer:
    return [sample['output_ids'] for sample in json.loads(answer.read())]


def main(folder: pathlib.Path, batches: list[int], new: int) -> None:
  prompts = np.load(folder / 'prompts.npy')
  found = {}
  with served(folder / 'model', max(batches), 2 * max(batches) * (prompts.shape[1] + new)) as url:
    for batch in batches:
      seconds = []
      for prompt in prompts.tolist():
        start = time.perf_counter()
        tokens = call(url, prompt, batch, new)
        seconds.append(time.perf_counter() - start)
      found[batch] = {'seconds': seconds[1:], 'tokens': tokens}
      urllib.request.urlopen(urllib.request.Request(f'{url}/flush_cache', b''), timeout=60).close()
  print(json.dumps(found))


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]), [int(batch) for batch in sys.argv[2].split(',')], int(sys.argv[3]))
