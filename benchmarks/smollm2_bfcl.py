"""Official BFCL single-turn scores of SmolLM2-135M before SFT, after it and after a short RL, by three paths.

    python benchmarks/smollm2_real.py                                   # first: trains into runs/smollm2
    python benchmarks/smollm2_bfcl.py --bfcl=PYTHON --sglang=VENV [--limit=20] [--context=4096]

The harness (`bfcl generate` and `bfcl evaluate`) asks a real SGLang server on the CPU, the code of `launch/evaluate.py`
asks the same server, and the embedded engine; all of them the same first `--limit` entries of every category (0: all
3,641), in a window of `--context` tokens, greedily. PYTHON is an interpreter whose environment holds bfcl-eval with
transformers and soundfile, VENV one made by `launch/sglang.sh --install-cpu`. What is answered is kept: the same
command goes on, and with a higher limit asks what is missing. Entries that were trained on are told apart from those
held out.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from rivals.sglang_cpu import served

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from configs import evaluate  # noqa: E402 (the path to it is set above)
from slca_jax.config import build  # noqa: E402
from slca_jax.data.folders import write_json  # noqa: E402
from slca_jax.evals import bfcl_run  # noqa: E402
from slca_jax.evals.benchmark_settings import BfclSettings  # noqa: E402
from slca_jax.evals.bfcl import Official  # noqa: E402
from slca_jax.evals.settings import EvaluateConfig  # noqa: E402
from slca_jax.evals.statistics import Sampling  # noqa: E402

STAGES = {'before': 'base', 'after SFT': 'sft/model', 'after RL': 'rl/model'}
PATHS = ('harness', 'sglang', 'embedded')
HANDLER = 'Qwen/Qwen3-0.6B-FC'  # the harness's name of the prompts; the weights are the server's
TRAINED = ('simple_python', 'multiple', 'parallel', 'parallel_multiple')
_SPARE = 16  # tokens that our path wants free beside the window
AT_ONCE = 8  # requests: what the CPU server takes
Answers = dict[str, dict[str, Any]]  # by id: category, valid and said, of one stage and path


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
  """What is asked, and by what: the command line, and the ids by category."""

  flags: argparse.Namespace
  ids: dict[str, list[str]]

  def folder(self, stage: str, path: str) -> pathlib.Path:
    """Where the answers of a stage and path are kept."""
    return self.flags.output / path / stage.replace(' ', '_')

  def model(self, stage: str) -> pathlib.Path:
    """The checkpoint."""
    return (self.flags.runs / STAGES[stage]).resolve()


def ours(asked: Asked, stage: str, path: str, url: str = '') -> None:
  """Asks what is missing as `launch/evaluate.py` does."""
  flags, settings = asked.flags, evaluate.get_config('bfcl')
  settings.output, settings.limit = str(asked.folder(stage, path)), flags.limit
  settings.model.path, settings.model.dtype = str(asked.model(stage)), 'float32'
  settings.bfcl.python, settings.bfcl.categories = str(flags.bfcl), ','.join(asked.ids)
  limits, local = settings.rollout.limits, settings.rollout.local
  limits.prompt_tokens, limits.response_tokens = flags.context * 3 // 4, flags.context - flags.context * 3 // 4
  limits.step_seconds, local.context, local.slots = 7200.0, flags.context, AT_ONCE
  if url:
    settings.rollout.engine, settings.rollout.urls = 'sglang', url
    settings.rollout.sglang.concurrency, settings.rollout.sglang.request_seconds = AT_ONCE, 7200.0
  bfcl_run.evaluate(build(EvaluateConfig, settings))


def our_answers(asked: Asked, stage: str, path: str) -> Answers:
  """What was answered and judged so far."""
  out: Answers = {}
  for category, ids in asked.ids.items():
    if (asked.folder(stage, path) / category / 'results.jsonl').exists():
      found = {one['id']: one for one in bfcl_run.latest(asked.folder(stage, path) / category)}
      out |= {id: found[id] | {'said': found[id].get('said')} for id in ids if id in found}
  return out


def harness(asked: Asked, stage: str, url: str) -> None:
  """Has the harness ask what is missing of the server, and judge all that was answered."""
  folder, model = asked.folder(stage, 'harness'), asked.model(stage)
  known = _harness_lines(folder, 'result')
  missing = {category: [id for id in ids if id not in known] for category, ids in asked.ids.items()}
  window = folder / 'tokenizer'
  window.mkdir(parents=True, exist_ok=True)
  for file in (*model.glob('tokenizer*.json'), model / 'config.json'):
    shutil.copy(file, window)
  config = json.loads((model / 'config.json').read_text('utf-8'))
  write_json(window / 'config.json', config | {'max_position_embeddings': asked.flags.context})
  write_json(folder / 'test_case_ids_to_generate.json', {name: ids for name, ids in missing.items() if ids})
  environment = os.environ | {
    'BFCL_PROJECT_ROOT': str(folder.resolve()),
    'REMOTE_OPENAI_BASE_URL': f'{url}/v1',
    'REMOTE_OPENAI_TOKENIZER_PATH': str(window.resolve()),  # its window, not the model's
    'HF_HUB_OFFLINE': '1',
  }
  program = str(pathlib.Path(asked.flags.bfcl).parent / 'bfcl')
  generate = [program, 'generate', '--model', HANDLER, '--run-ids', '--backend', 'sglang', '--skip-server-setup']
  generate += ['--local-model-path', str(model), '--temperature', '0', '--num-threads', str(AT_ONCE)]
  judge = [program, 'evaluate', '--model', HANDLER, '--test-category', ','.join(asked.ids), '--partial-eval']
  with open(folder / 'log.txt', 'a', encoding='utf-8') as log:
    for command in ([generate] if any(missing.values()) else []) + [judge]:
      done = subprocess.run(command, env=environment, stdout=log, stderr=log)
      if done.returncode:
        raise SystemExit(f'{" ".join(command)} ended with {done.returncode}; {log.name} says why')


def harness_answers(asked: Asked, stage: str) -> Answers:
  """What the harness was answered, and what it says of it: its score files name what is wrong."""
  folder = asked.folder(stage, 'harness')
  results, wrong = _harness_lines(folder, 'result'), _harness_lines(folder, 'score')
  wanted = [(category, id) for category, ids in asked.ids.items() for id in ids if id in results]
  return {
    id: {'id': id, 'category': category, 'valid': id not in wrong, 'said': results[id]['result']}
    for category, id in wanted
  }


def _harness_lines(folder: pathlib.Path, kind: str) -> dict[str, dict[str, Any]]:
  found: dict[str, dict[str, Any]] = {}
  for file in (folder / kind).rglob(f'*_{kind}.json'):
    lines = [json.loads(line) for line in file.read_text('utf-8').splitlines() if line.strip()]
    found |= {one['id']: one for one in lines if 'id' in one}
  return found


def answers(asked: Asked, stage: str, path: str) -> Answers:
  """What was answered so far by one path."""
  return harness_answers(asked, stage) if path == 'harness' else our_answers(asked, stage, path)


def timed(asked: Asked, stage: str, path: str, work: Callable[[], None]) -> None:
  """Does the work and notes how many entries it asked and how long that took, the start of its programs included."""
  before, start = len(answers(asked, stage, path)), time.perf_counter()
  work()
  asked_now, seconds = len(answers(asked, stage, path)) - before, time.perf_counter() - start
  with open(asked.flags.output / 'times.jsonl', 'a', encoding='utf-8') as file:
    file.write(json.dumps({'stage': stage, 'path': path, 'entries': asked_now, 'seconds': seconds}) + '\n')
  print(f'{stage}, {path}: {asked_now} entries in {seconds:.0f} s', flush=True)


def missing(asked: Asked, stage: str, path: str) -> bool:
  """Whether a path has entries left to ask."""
  return len(answers(asked, stage, path)) < sum(map(len, asked.ids.values()))


def table(asked: Asked) -> str:
  """Accuracies by group of categories, as the leaderboard means them, side by side; and how many texts are equal."""
  found = {(stage, path): answers(asked, stage, path) for stage in asked.flags.stages for path in asked.flags.paths}
  found = {column: given for column, given in found.items() if given}
  groups = BfclSettings().groups
  groups = {name: groups[name] for name in ('non_live', 'live', 'irrelevance', 'relevance')}
  rows = [['', 'entries', *(f'{stage}, {path}' for stage, path in found)]]
  for name, categories in groups.items():
    ids = [id for category in categories for id in asked.ids.get(category, ())]
    rows += [_row(name.replace('_', '-'), ids, found, pooled=name == 'live')] if ids else []
  for name, ids in sides(asked).items():
    rows.append(_row(f'{", ".join(TRAINED)}: {name}', ids, found))
  every = [id for ids in asked.ids.values() for id in ids]
  texts = [f'{_equal(found, stage, path, every)}' for stage, path in found]
  rows.append(["texts equal to the harness's", str(len(every)), *texts])
  lines = ['| ' + ' | '.join(row) + ' |' for row in rows]
  return '\n'.join([lines[0], '|---' * len(rows[0]) + '|', *lines[1:]])


def _row(label: str, ids: Sequence[str], found: dict[tuple[str, str], Answers], *, pooled: bool = False) -> list[str]:
  cells = []
  for given in found.values():
    held = [given[id] for id in ids if id in given]
    mean = bfcl_run.over_categories(held, 'valid', Sampling(resamples=100), pooled=pooled).mean if held else None
    cells.append('–' if mean is None else f'{mean:.3f}' + (f' of {len(held)}' if len(held) < len(ids) else ''))
  return [label, str(len(ids)), *cells]


def _equal(found: dict[tuple[str, str], Answers], stage: str, path: str, ids: Iterable[str]) -> str:
  theirs, given = found.get((stage, 'harness'), {}), found[stage, path]
  both = [id for id in ids if id in theirs and id in given]
  return f'{sum(theirs[id]["said"] == given[id]["said"] for id in both)}/{len(both)}' if path != 'harness' else ''


def sides(asked: Asked) -> dict[str, list[str]]:
  """Entries of the trained categories: in the training split, held out, and in neither for their length or faults."""
  known = {}
  for side in ('train', 'heldout'):
    lines = (asked.flags.runs / 'data' / f'tasks_{side}.jsonl').read_text('utf-8').splitlines()
    known[side] = {json.loads(line)['id'] for line in lines}
  ids = [id for category in TRAINED for id in asked.ids.get(category, ())]
  return {
    'training split': [id for id in ids if id in known['train']],
    'held out': [id for id in ids if id in known['heldout']],
    'in neither': [id for id in ids if id not in known['train'] | known['heldout']],
  }


def estimate(asked: Asked, sizes: dict[str, int]) -> str:
  """What all entries and the first 20 of each category take, by the seconds per entry that were measured: more than it
  will be where few were asked, since each path starts once."""
  spent: dict[tuple[str, str], list[float]] = {}
  for line in (asked.flags.output / 'times.jsonl').read_text('utf-8').splitlines():
    one = json.loads(line)
    entries, seconds = spent.get((one['stage'], one['path']), [0, 0.0])
    spent[one['stage'], one['path']] = [entries + one['entries'], seconds + one['seconds']]
  whole, some = sum(sizes.values()), sum(min(size, 20) for size in sizes.values())
  each = {key: seconds / entries for key, (entries, seconds) in spent.items() if entries}
  lines = [f'{stage}, {path}: {one:.2f} s per entry' for (stage, path), one in each.items()]
  total = sum(each.values())
  lines.append(
    f'all of these: {whole * total / 3600:.1f} h for {whole} entries, {some * total / 60:.0f} min for {some}'
  )
  return '\n'.join(lines)


async def entry_ids(python: pathlib.Path, categories: Sequence[str]) -> dict[str, list[str]]:
  """The ids of all entries, by category."""
  official = Official(python=str(python))
  try:
    return {category: [entry.id for entry in await official.entries(category)] for category in categories}
  finally:
    await official.close()


def run(asked: Asked) -> None:
  """Asks what is missing, one model after another: with one server each, then embedded."""
  for stage in asked.flags.stages:
    remote = [path for path in asked.flags.paths if path != 'embedded' and missing(asked, stage, path)]
    if remote:
      length = asked.flags.context + _SPARE
      options = ('--context-length', str(length), '--max-total-tokens', str(AT_ONCE * length))
      with served(asked.model(stage), asked.flags.sglang, *options, port=asked.flags.port) as url:
        if 'harness' in remote:  # first: ours gives the server its weights anew
          timed(asked, stage, 'harness', lambda stage=stage, url=url: harness(asked, stage, url))
        if 'sglang' in remote:
          timed(asked, stage, 'sglang', lambda stage=stage, url=url: ours(asked, stage, 'sglang', url))
    if 'embedded' in asked.flags.paths and missing(asked, stage, 'embedded'):
      timed(asked, stage, 'embedded', lambda stage=stage: ours(asked, stage, 'embedded'))


def main() -> None:
  """Asks, then prints the table and what the rest would take."""
  names = lambda text: [name for name in text.split(',') if name]
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--bfcl', type=pathlib.Path, required=True, help='an interpreter with bfcl-eval')
  parser.add_argument('--sglang', type=pathlib.Path, required=True, help='an environment with SGLang')
  parser.add_argument('--runs', type=pathlib.Path, default=ROOT / 'runs' / 'smollm2')
  parser.add_argument('--output', type=pathlib.Path, default=ROOT / 'runs' / 'smollm2_bfcl')
  parser.add_argument('--limit', type=int, default=0, help='entries of each category, 0 for all')
  parser.add_argument('--categories', default='single_turn', help="categories or groups, as BfclSettings' are")
  parser.add_argument('--context', type=int, default=4096, help='most tokens of prompt and answer')
  parser.add_argument('--port', type=int, default=30117, help='of the server; the same one when going on')
  parser.add_argument('--paths', type=names, default=list(PATHS))
  parser.add_argument('--stages', type=names, default=list(STAGES))
  parser.add_argument('--show', action='store_true', help='ask nothing, print what there is')
  flags = parser.parse_args()
  flags.output.mkdir(parents=True, exist_ok=True)
  every = asyncio.run(entry_ids(flags.bfcl, BfclSettings(categories=flags.categories).chosen))
  asked = Asked(flags, {category: ids[: flags.limit or None] for category, ids in every.items()})
  if not flags.show:
    run(asked)
  print(f'\n{table(asked)}\n')
  with contextlib.suppress(FileNotFoundError):
    print(estimate(asked, {category: len(ids) for category, ids in every.items()}))


if __name__ == '__main__':
  main()
