"""The quickstart over several seeds: mean ± standard deviation of every greedy, held-out number, as a Markdown table.

python benchmarks/quickstart_seeds.py [--seeds=0,1,2,3,4 --output=runs/quickstart_seeds]

Each seed runs as a process of its own, one after another; a seed that is done is not repeated. The last lines say, for
every seed and judge, how far SLCA-GRPO raised success, where its summary score ended and whether its tool turns fell.
"""

import json
import os
import pathlib
import statistics
import subprocess
import sys

from absl import app, flags

_SEEDS = flags.DEFINE_list('seeds', ['0', '1', '2', '3', '4'], 'Seeds of data, policy, sampling and judge.')
_OUTPUT = flags.DEFINE_string('output', 'runs/quickstart_seeds', 'A folder per seed is made in it.')

ROOT = pathlib.Path(__file__).parents[1]
NAMES = ('process', 'success', 'summary', 'tool_turns', 'calls')
REGIMES = ('noisy', 'biased')


def run(seed: str) -> dict:
  """The summary of a seed's quickstart."""
  folder = pathlib.Path(_OUTPUT.value).absolute() / seed
  if not (folder / 'summary.json').exists():
    command = [
      sys.executable,
      str(ROOT / 'launch' / 'quickstart.py'),
      f'--config.seed={seed}',
      f'--config.output={folder}',
    ]
    environment = {'JAX_PLATFORMS': 'cpu', 'JAX_COMPILATION_CACHE_DIR': str(ROOT / '.cache' / 'jax'), **os.environ}
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False)
    if done.returncode:
      sys.exit(f'seed {seed} ended with status {done.returncode}; what it wrote is in {folder}')
  return json.loads((folder / 'summary.json').read_text('utf-8'))


def cell(values: list[float]) -> str:
  """Mean ± sample standard deviation."""
  spread = statistics.stdev(values) if len(values) > 1 else 0.0
  return f'{statistics.fmean(values):.3f} ± {spread:.3f}'


def table(summaries: list[dict]) -> str:
  """One line per policy."""
  rows = {'before': [summary['before'] for summary in summaries]}
  for regime in REGIMES:
    for method in ('grpo', 'slca'):
      rows[f'{regime} judge, {method}'] = [summary[regime][method] for summary in summaries]
  head = f'| | {" | ".join(name.replace("_", " ") for name in NAMES)} |\n|---|{"---|" * len(NAMES)}'
  lines = (f'| {label} | {" | ".join(cell([r[n] for r in found]) for n in NAMES)} |' for label, found in rows.items())
  return '\n'.join([head, *lines])


def claims(seed: str, summary: dict) -> str:
  """What SLCA-GRPO changed in one seed, by judge."""
  before, parts = summary['before'], []
  for regime in REGIMES:
    after = summary[regime]['slca']
    gain, turns = after['success'] - before['success'], after['tool_turns'] - before['tool_turns']
    parts.append(f'{regime}: success {gain:+.3f}, summary {after["summary"]:.3f}, tool turns {turns:+.2f}')
  return f'seed {seed}: {"; ".join(parts)}; {sum(summary["seconds"].values()):.0f} s'


def main(_: list[str]) -> None:
  """Runs the seeds and prints the table."""
  summaries = {seed: run(seed) for seed in _SEEDS.value}
  print(table(list(summaries.values())))
  print('\n'.join(claims(seed, summary) for seed, summary in summaries.items()))


if __name__ == '__main__':
  app.run(main)
