"""Tokens per second of the embedded engine beside transformers, tunix and a real SGLang server: one model, one CPU.

    python benchmarks/sampling.py [--tunix=PYTHON --sglang=PYTHON --batches=1,8,32 --repeats=5]

A random Qwen2 of 256 x 4 layers with 4,096 ids in float32; a prompt of 256 ids that the whole batch shares, 64 new
tokens each, greedy. Every call brings a new prompt, so nobody profits from the last one. Every contestant is a process
of its own, warmed up by one call per batch size; ours runs first and last, so that a machine that drifts is seen. A
call counts from its ids to the last one's tokens, prefill and, with SGLang, HTTP included. transformers runs in this
interpreter; tunix and SGLang, whose pins differ, each in an environment of its own:

    python -m venv E && E/bin/pip install google-tunix               → --tunix=E/bin/python
    bash launch/sglang.sh --install-cpu F                            → --sglang=F/bin/python

Prints the median tokens per second of each, how many times as many ours makes, and the share of greedy tokens that are
the same as ours. Then what ours computes at least: the FLOPs of its matrix products, and how many of them a second.
"""

import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import jax
import numpy as np
from absl import app, flags
from flax import nnx

from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.transformer import Transformer
from slca_jax.nn.weights import save_hf
from slca_jax.quickstart.tokenizer import make_tokenizer
from slca_jax.quickstart.world import make_task

_BATCHES = flags.DEFINE_list('batches', ['1', '8', '32'], 'Rollouts of one prompt.')
_REPEATS = flags.DEFINE_integer('repeats', 5, 'Timed calls of each.')
_TRANSFORMERS = flags.DEFINE_string('transformers', sys.executable, 'Interpreter with it; empty leaves it out.')
_TUNIX = flags.DEFINE_string('tunix', '', 'Interpreter of an environment with google-tunix.')
_SGLANG = flags.DEFINE_string('sglang', '', "Interpreter of an environment with SGLang's CPU build.")

PROMPT, NEW = 256, 64
CONFIG = TransformerConfig(
  vocab=4096,
  layers=4,
  width=256,
  hidden=768,
  heads=4,
  kv_heads=2,
  head_dim=64,
  context=2048,
  qkv_bias=True,
  tied=False,
)
RIVALS = pathlib.Path(__file__).resolve().parent / 'rivals'


def write_case(folder: pathlib.Path) -> None:
  """A checkpoint whose logits have a spread of about 1, and prompts: one to warm up, then one per call."""
  _, params = nnx.split(Transformer(CONFIG, rngs=nnx.Rngs(0)), nnx.Param)
  params['unembed'] = params['unembed'].replace(params['unembed'][...] * 4)
  save_hf(params, CONFIG, folder / 'model')
  make_tokenizer(make_task(0, 'train', index) for index in range(20)).save_pretrained(str(folder / 'model'))
  np.save(folder / 'prompts.npy', np.random.default_rng(0).integers(3, CONFIG.vocab, (_REPEATS.value + 1, PROMPT)))


def run(python: str, script: str, folder: pathlib.Path) -> dict[str, dict]:
  """By batch size: 'seconds' of each timed call, and 'tokens' of the last one."""
  command = [python, str(RIVALS / script), str(folder), ','.join(_BATCHES.value), str(NEW)]
  done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
  if done.returncode:
    raise RuntimeError(f'{" ".join(command)} ended with {done.returncode}; its messages stand above')
  return json.loads(done.stdout.splitlines()[-1])


def gigaflops(batch: int) -> float:
  """10⁹ FLOPs of all matrix products of a call: the prompt once, then every new token but the last, at its length."""
  c = CONFIG
  weights = c.layers * c.width * (2 * c.heads * c.head_dim + 2 * c.kv_heads * c.head_dim + 3 * c.hidden)
  seen = sum(range(PROMPT)) + batch * sum(range(PROMPT, PROMPT + NEW))
  products = weights * (PROMPT - 1 + batch * NEW) + c.vocab * c.width * batch * NEW
  return 2e-9 * (products + 2 * c.layers * c.heads * c.head_dim * seen)


def table(results: dict[str, dict[str, dict]]) -> None:
  """Prints a row per contestant."""
  batches, ours = _BATCHES.value, [results['ours'], results['ours again']]
  median = lambda runs, batch: statistics.median(second for found in runs for second in found[batch]['seconds'])
  print('| | ' + ' | '.join(f'batch {batch}, tokens/s | ours is | same tokens' for batch in batches) + ' |')
  print('|---' * (1 + 3 * len(batches)) + '|')
  for name, found in results.items():
    cells = []
    for batch in batches:
      seconds = median([found], batch)
      same = np.mean(np.array(found[batch]['tokens']) == np.array(ours[0][batch]['tokens']))
      cells.append(f'{int(batch) * NEW / seconds:,.0f} | {seconds / median(ours, batch):.2f}x | {same:.0%}')
    print(f'| {name} | ' + ' | '.join(cells) + ' |')
  for batch in batches:
    work, seconds = gigaflops(int(batch)), median(ours, batch)
    print(f'batch {batch}: ours takes {1000 * seconds:.0f} ms for {work:.2f} GFLOP, {work / seconds:.0f} GFLOP/s')


def main(_: list[str]) -> None:
  """Runs all contestants and prints the table."""
  folder = pathlib.Path(tempfile.mkdtemp(prefix='sampling_'))
  scripts = {
    'transformers': (_TRANSFORMERS.value, 'sampling_transformers.py'),
    'tunix': (_TUNIX.value, 'sampling_tunix.py'),
    'sglang': (_SGLANG.value, 'sampling_sglang.py'),
  }
  try:
    write_case(folder)
    jax.clear_caches()
    results = {'ours': run(sys.executable, 'sampling_ours.py', folder)}
    results |= {name: run(python, script, folder) for name, (python, script) in scripts.items() if python}
    results['ours again'] = run(sys.executable, 'sampling_ours.py', folder)
    table(results)
    for name, (python, _script) in scripts.items():
      if not python:
        print(f'{name}: not measured, no interpreter was given')
  finally:
    shutil.rmtree(folder)


if __name__ == '__main__':
  app.run(main)
