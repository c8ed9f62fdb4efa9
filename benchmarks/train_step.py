"""One train step of ours beside plain PyTorch + transformers, TRL and tunix: same weights, batch and loss, in one run.

python benchmarks/train_step.py [--shape=long|wide] [--trl=PYTHON] [--tunix=PYTHON] [--repeats=3]

A step is what a batch costs after sampling: log-probs of the policy and of a reference, forward and backward of the
clipped loss with k3, and AdamW; float32. Every contestant is a process of its own, warmed up by one step; ours runs
first and last, so that a machine that drifts is seen. PyTorch runs in this interpreter; TRL and tunix, whose pins
differ, each in an environment of its own:

  python -m venv E && E/bin/pip install trl torch==2.13.0          → --trl=E/bin/python
  python -m venv F && F/bin/pip install google-tunix               → --tunix=F/bin/python

Prints seconds (the median), seconds until the first step is done (loading and compiling), the peak of resident memory,
loss and gradient norm, and how far log-probs of policy and reference are from ours.
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

SHAPES = {'long': (4, 16, 1024, 128), 'wide': (8, 8, 512, 128)}  # prompts, responses of each, tokens of both
CONFIG = TransformerConfig(
  vocab=4096, layers=4, width=256, hidden=768, heads=4, kv_heads=2, head_dim=64, context=4096, qkv_bias=True
)
HERE = pathlib.Path(__file__).resolve().parent
RIVALS = {name: f'train_step_{name}.py' for name in ('torch', 'trl', 'tunix')}

_SHAPE = flags.DEFINE_enum('shape', 'long', SHAPES, '4 prompts x 16 of 1,024 + 128 tokens, or 8 x 8 of 512 + 128.')
_REPEATS = flags.DEFINE_integer('repeats', 3, 'Timed steps of each.')
_TORCH = flags.DEFINE_string('torch', sys.executable, 'Interpreter with torch and transformers; empty leaves it out.')
_TRL = flags.DEFINE_string('trl', '', 'Interpreter of an environment with trl.')
_TUNIX = flags.DEFINE_string('tunix', '', 'Interpreter of an environment with google-tunix.')


def write_case(folder: pathlib.Path, shape: tuple[int, int, int, int]) -> None:
  """A policy, a reference near it, and a batch whose responses are a call, its observation and an answer."""
  tokenizer = make_tokenizer(make_task(0, 'train', index) for index in range(20))
  for far, name in enumerate(('policy', 'reference')):
    _, params = nnx.split(Transformer(CONFIG, rngs=nnx.Rngs(0)), nnx.Param)
    params = jax.tree.map(lambda x, grown=1 + 0.3 * far: x * grown, params)
    save_hf(params, CONFIG, folder / name)
    tokenizer.save_pretrained(str(folder / name))
  groups, size, prompt, response = shape
  rng = np.random.default_rng(0)
  sampled_RT = np.ones((groups * size, response), np.int32)
  sampled_RT[:, response // 3 : 2 * response // 3] = 0
  reward_R = rng.random(groups * size).astype(np.float32)
  reward_GN = reward_R.reshape(groups, size)
  advantage_GN = (reward_GN - reward_GN.mean(1, keepdims=True)) / (reward_GN.std(1, ddof=1, keepdims=True) + 1e-6)
  np.savez(
    folder / 'batch.npz',
    prompt_GP=rng.integers(0, CONFIG.vocab, (groups, prompt), np.int32),
    response_RT=rng.integers(0, CONFIG.vocab, (groups * size, response), np.int32),
    sampled_RT=sampled_RT,
    reward_R=reward_R,
    advantage_R=advantage_GN.reshape(-1),
  )


def run(python: str, script: str, folder: pathlib.Path) -> dict:
  """'seconds', 'first', 'peak', 'loss' and 'norm' of a contestant, empty if it failed; NAME.npz has its log-probs."""
  command = [python, str(HERE / 'rivals' / script), str(folder), str(_REPEATS.value)]
  done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
  if done.returncode:  # what the others measure is still worth a table
    print(f'{" ".join(command)} ended with {done.returncode}; its messages stand above', file=sys.stderr)
    return {}
  return json.loads(done.stdout.splitlines()[-1])


def gaps(folder: pathlib.Path, name: str) -> tuple[float, float]:
  """Largest differences of old and reference log-probs to ours, over sampled tokens."""
  ours, other = np.load(folder / 'ours.npz'), np.load(folder / f'{name}.npz')
  sampled_RT = np.load(folder / 'batch.npz')['sampled_RT'] > 0
  return tuple(float(np.abs(ours[key] - other[key])[sampled_RT].max()) for key in ('old_RT', 'ref_RT'))


def main(_: list[str]) -> None:
  """Runs all contestants and prints the table."""
  folder = pathlib.Path(tempfile.mkdtemp(prefix='train_step_'))
  try:
    compare(folder, SHAPES[_SHAPE.value])
  finally:
    shutil.rmtree(folder)


def compare(folder: pathlib.Path, shape: tuple[int, int, int, int]) -> None:
  """Runs all contestants on one case and prints their rows."""
  write_case(folder, shape)
  pythons = {'torch': _TORCH.value, 'trl': _TRL.value, 'tunix': _TUNIX.value}
  runs = {'ours': (sys.executable, 'train_step_ours.py')}
  runs |= {name: (python, RIVALS[name]) for name, python in pythons.items() if python}
  runs['ours again'] = runs['ours']
  tried = {name: run(*command, folder) for name, command in runs.items()}
  results = {name: found for name, found in tried.items() if found}
  base = statistics.median(results['ours']['seconds'] + results['ours again']['seconds'])
  print(f'{shape[0]} prompts x {shape[1]} responses, {shape[2]} + {shape[3]} tokens')
  titles = '', 's per step', 'against ours', 'first step s', 'peak GiB', 'loss', 'gradient norm', 'log-probs differ by'
  print('| ' + ' | '.join(titles) + ' |')
  print('|---' * len(titles) + '|')
  for name, found in results.items():
    middle = statistics.median(found['seconds'])
    far = '' if name.startswith('ours') else ', '.join(f'{gap:.1e}' for gap in gaps(folder, name))
    print(
      f'| {name} | {middle:.2f} | {middle / base:.2f}x | {found["first"]:.1f} | {found["peak"]:.2f} '
      f'| {found["loss"]:.6f} | {found["norm"]:.6f} | {far} |'
    )
  for name in sorted({*tried, *pythons} - set(results)):
    print(f'{name}: not measured, {"it failed" if name in tried else "no interpreter was given"}')


if __name__ == '__main__':
  app.run(main)
