"""The embedded engine, for `benchmarks/sampling.py`."""

import asyncio
import json
import os
import pathlib
import sys
import time

os.environ['JAX_PLATFORMS'] = 'cpu'

import numpy as np

from slca_jax.nn.hf_config import read_config
from slca_jax.nn.transformer import abstract_model
from slca_jax.nn.weights import load_hf
from slca_jax.rollout.local import LocalSampler
from slca_jax.rollout.settings import LocalEngine


async def call(sampler: LocalSampler, prompt: list[int], batch: int, new: int) -> list[tuple[int, ...]]:
  ask = lambda session: sampler.generate(
    prompt, session=session, max_tokens=new, temperature=0.0, top_p=1.0, stop=(), seed=0
  )
  samples = await asyncio.gather(*[ask(str(i)) for i in range(batch)])
  for i in range(batch):
    await sampler.release(str(i))
  return [sample.tokens for sample in samples]


async def measure(loaded, prompts: np.ndarray, batch: int, new: int) -> dict:
  size = prompts.shape[1]
  options = LocalEngine(slots=batch, prompts=1, siblings=batch, context=size + new, own=new, hasten=False)
  sampler = LocalSampler(*loaded, options)
  seconds = []
  for prompt in prompts.tolist():
    start = time.perf_counter()
    tokens = await call(sampler, prompt, batch, new)
    seconds.append(time.perf_counter() - start)
  await sampler.close()
  return {'seconds': seconds[1:], 'tokens': tokens}


def main(folder: pathlib.Path, batches: list[int], new: int) -> None:
  config = read_config(folder / 'model')
  model = abstract_model(config)[0], load_hf(folder / 'model', config), config
  prompts = np.load(folder / 'prompts.npy')
  print(json.dumps({batch: asyncio.run(measure(model, prompts, batch, new)) for batch in batches}))


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]), [int(batch) for batch in sys.argv[2].split(',')], int(sys.argv[3]))
