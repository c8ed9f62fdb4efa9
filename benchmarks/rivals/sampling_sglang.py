"""A real SGLang server on this machine's CPU, for `benchmarks/sampling.py`; run by its environment's interpreter."""

import json
import pathlib
import sys
import time
import urllib.request

import numpy as np
from sglang_cpu import served


def call(url: str, prompt: list[int], batch: int, new: int) -> list[list[int]]:
  sampling = {'temperature': 0, 'max_new_tokens': new, 'ignore_eos': True, 'skip_special_tokens': False}
  body = json.dumps({'input_ids': [prompt] * batch, 'sampling_params': sampling}).encode()
  request = urllib.request.Request(f'{url}/generate', body, {'Content-Type': 'application/json'})
  with urllib.request.urlopen(request, timeout=600) as answer:
    return [sample['output_ids'] for sample in json.loads(answer.read())]


def main(folder: pathlib.Path, batches: list[int], new: int) -> None:
  prompts = np.load(folder / 'prompts.npy')
  found = {}
  most, venv = max(batches), pathlib.Path(sys.executable).parents[1]
  sizes = ['--max-running-requests', str(most), '--max-total-tokens', str(2 * most * (prompts.shape[1] + new))]
  with served(folder / 'model', venv, *sizes) as url:
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
