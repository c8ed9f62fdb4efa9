"""The sampler of tunix, for `benchmarks/sampling.py`."""

import json
import os
import pathlib
import sys
import time

os.environ['JAX_PLATFORMS'] = 'cpu'

import numpy as np
from tunix.generate.sampler import CacheConfig, Sampler
from tunix_qwen2 import load


class Ids:
  """A tokenizer for text that is a list of ids already."""

  def encode(self, text: str, **_) -> list[int]:
    return [int(word) for word in text.split()]

  def decode(self, ids: list[int], **_) -> str:
    return ' '.join(map(str, ids))

  def bos_id(self) -> int:
    return 0  # falsy: none is put in front

  def eos_id(self) -> int:
    return -1

  def pad_id(self) -> int:
    return -1


def main(folder: pathlib.Path, batches: list[int], new: int) -> None:
  config, model = load(folder / 'model')
  prompts = np.load(folder / 'prompts.npy')
  size = prompts.shape[1]
  sampler = Sampler(model, Ids(), CacheConfig(size + new, config.num_layers, config.num_kv_heads, config.head_dim))
  found = {}
  for batch in batches:
    seconds = []
    for prompt in prompts:
      text = ' '.join(map(str, prompt))
      start = time.perf_counter()
      made = sampler([text] * batch, max_generation_steps=new, max_prompt_length=size)
      tokens = [np.asarray(row).tolist() for row in made.tokens]
      seconds.append(time.perf_counter() - start)
    found[batch] = {'seconds': seconds[1:], 'tokens': tokens}
  print(json.dumps(found))


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]), [int(batch) for batch in sys.argv[2].split(',')], int(sys.argv[3]))
