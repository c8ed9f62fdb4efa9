"""Quickstart-size training on synthesised tasks: GRPO, SLCA-GRPO, TARA and SLCA with TARA's turns, over several seeds.

    python benchmarks/synthesised_training.py [--seeds=0,1,2 --methods=grpo,slca,tara,slca_tara,tara_margin --steps=30]

Tasks are chains of three to five calls in worlds that the deterministic synthesiser makes of schemas (see
`slca_jax/quickstart/branches.py`). A policy of the quickstart's size learns them from demonstrations of which most of
three servers' have a fault: a call that is made twice, an update that is left out, a last call that is left out. Then
every method trains from the same checkpoint with the same questions, seed and budget. Branches are apart: those of the
demonstrations, those of the questions trained on, and those held out. `--methods=` leaves it at the policies and RLTR's
planners; `configs/study.py:synthesised` starts from these.

Prints mean ± standard deviation over seeds of greedy decoding on held-out questions: *full trace*, every golden call
made and the database left as the golden trace leaves it; *turns*, the share of golden turns whose calls the rollout's
turn of the same number makes. What is finished is not repeated.
"""

import argparse
import dataclasses
import functools
import itertools
import json
import os
import pathlib
import random
import statistics
from typing import Any

from slca_jax.data.folders import write_json
from slca_jax.data.tasks import read_dialogues, read_tasks, write_dialogues, write_tasks
from slca_jax.dialogue import Task
from slca_jax.quickstart import branches
from slca_jax.quickstart.start import NETWORK, write_random
from slca_jax.quickstart.tokenizer import PIECES, tokenizer_of
from slca_jax.rewards.turns import turn_rewards
from slca_jax.rollout.settings import Layout, Limits, LocalEngine
from slca_jax.toolverse.blueprint import load, save
from slca_jax.toolverse.making import TaskSettings
from slca_jax.toolverse.world import Trial
from slca_jax.train import settings as s

METHODS = ('grpo', 'slca', 'tara', 'slca_tara', 'tara_margin')
NAMES = ('full trace', 'turns', 'process', 'summary', 'calls', 'tool turns')
SHARES = {'shown': 10, 'train': 3, 'heldout': 3}  # branches
DRAWS = TaskSettings(samples=24, most=24, width=1, shortest=3, longest=5, chains=0.0)
COPIES = 10  # of a demonstration, each with other keys
QUESTIONS, HELD_OUT = 160, 120
# Most updates, and the smoothed loss that ends them: right demonstrations, then those with faults.
LESSONS = ((2000, 0.04), (150, 0.0))
# A field that holds a key is one token, in answers as in calls: what followed it there follows it here.
FIELDS = rf'[a-z]+_id": |{PIECES}'


def make_world(folder: pathlib.Path) -> None:
  """Blueprints of all branches, `shown_1.jsonl` and `shown_2.jsonl` (dialogues), `train.jsonl`, `heldout.jsonl`."""
  if (folder / 'heldout.jsonl').exists():
    return
  numbers = itertools.count()
  found = {
    share: [task for number in itertools.islice(numbers, count) for task in make_branch(folder, number)]
    for share, count in SHARES.items()
  }
  found['heldout'] = branches.apart(found['heldout'], (*found['shown'], *found['train']))
  chance = random.Random(0)
  for tasks in found.values():
    chance.shuffle(tasks)
  told = {share: list(filter(branches.told_last, tasks)) for share, tasks in found.items()}
  for number, (tasks, habits) in enumerate(((found['shown'], branches.FLAWLESS), (told['shown'], branches.FLAWED)), 1):
    dialogues = [branches.demonstrate(task, habits) for task in tasks]
    shown = (branches.rekeyed(dialogue, copy) for copy in range(COPIES) for dialogue in dialogues)
    write_dialogues(shown, folder / f'shown_{number}.jsonl')
  for share, most in (('train', QUESTIONS), ('heldout', HELD_OUT)):
    write_tasks([task for task in told[share] if task.meta['depth'] >= 3][:most], folder / f'{share}.jsonl')


def make_branch(folder: pathlib.Path, number: int) -> list[Task]:
  """The tasks of a branch; its blueprints lie in the folder."""
  path = folder / 'branches' / f'{number}.jsonl'
  if not path.exists():
    tasks = []
    for blueprint in branches.worlds(number):
      save(blueprint, folder / 'blueprints' / blueprint.name)
      tasks += branches.tasks(blueprint, dataclasses.replace(DRAWS, seed=number))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_tasks(tasks, path)
    print(f'branch {number}: {len(tasks)} tasks', flush=True)
  return read_tasks(path)


def start(folder: pathlib.Path, world: pathlib.Path, seed: int) -> None:
  """A policy of random weights and a tokenizer made of demonstrations."""
  if not (folder / 'start' / 'tokenizer.json').exists():
    dialogues = [d for place in (1, 2) for d in read_dialogues(world / f'shown_{place}.jsonl')[:400]]
    write_random(folder / 'start', tokenizer_of(dialogues, vocab_size=1536, pieces=FIELDS), seed=seed, network=NETWORK)


COMMON: dict[str, Any] = {'mesh': s.MeshShape(1, 1, 1)}


def model(path: pathlib.Path) -> s.Model:
  """Weights and how they are computed with."""
  return s.Model(str(path), dtype='float32', remat='none')


def sft_config(folder: pathlib.Path, world: pathlib.Path, seed: int, place: int) -> s.SFTConfig:
  """The lesson no. `place`, counted from 0."""
  steps, until = LESSONS[place]
  usual = s.Optimizer(4e-3, 'cosine', warmup=0.03, hold=0.5, final_fraction=0.05, b2=0.98, weight_decay=1e-4)
  return s.SFTConfig(
    output=str(folder / 'sft' / str(place + 1)),
    seed=seed,
    steps=steps,
    until=until,
    batch=16,
    logprob_chunk=64,
    model=model(folder / 'sft' / str(place) / 'model' if place else folder / 'start'),
    data=s.Demonstrations(str(world / f'shown_{place + 1}.jsonl')),
    batching=Layout((512,), 4),
    optimizer=dataclasses.replace(usual, schedule='constant', warmup=0.015, hold=0.0) if until else usual,
    checkpoint=s.Checkpointing(every=1000),
    **COMMON,
  )


def planner_config(folder: pathlib.Path, world: pathlib.Path, seed: int) -> s.SFTConfig:
  """The last lesson as RLTR's planner has it, which hands over where the others answer."""
  lesson = sft_config(folder, world, seed, len(LESSONS) - 1)
  learned = dataclasses.replace(lesson.learned, part='planner')
  return dataclasses.replace(lesson, output=str(folder / 'planner'), learned=learned)


def rl_config(folder: pathlib.Path, world: pathlib.Path, seed: int, method: str, steps: int) -> s.RLConfig:
  """One method's run; two methods differ in nothing else."""
  return s.RLConfig(
    output=str(folder / method),
    seed=seed,
    steps=steps,
    prompts=8,
    mini_batch=8,
    group_size=8,
    dump_every=10,
    method=s.Method(method),
    model=model(folder / 'sft' / str(len(LESSONS)) / 'model'),
    data=s.TaskFiles(str(world / 'train.jsonl')),
    environment=s.EnvironmentSettings(blueprints=str(world / 'blueprints')),
    rollout=s.RolloutSettings(
      limits=Limits(7, 8, 128, 384, 48, 96),
      local=LocalEngine(slots=64, context=512, prefill_chunk=16, prefill_rows=16),
    ),
    objective=s.Objective(logprob_chunk=64),
    optimizer=s.Optimizer(3e-4, 'cosine', final_fraction=0.1, b2=0.95, weight_decay=0.0),
    batching=Layout((512,), 4),
    checkpoint=s.Checkpointing(every=10),
    **COMMON,
  )


def grade(config: s.RLConfig, world: pathlib.Path) -> dict[str, float]:
  """Greedy decoding on the held-out questions."""
  from slca_jax.train.evaluate import evaluate

  numbers, trajectories, _ = evaluate(config, read_tasks(world / 'heldout.jsonl'))
  load_once = functools.cache(lambda name: load(world / 'blueprints' / name))
  whole, turns = [], []
  for trajectory in trajectories:
    open_world = functools.partial(Trial, load_once(trajectory.task.blueprint))
    whole.append(branches.reached(trajectory, open_world))
    turns.append(statistics.fmean(turn_rewards(trajectory)[: len(trajectory.task.gold)]))
  found = {'full trace': statistics.fmean(whole), 'turns': statistics.fmean(turns)}
  theirs = {
    'process': 'score/total',
    'summary': 'reported/summary',
    'calls': 'rollout/calls',
    'tool turns': 'rollout/tool_turns',
  }
  for server in branches.FLAWED:
    mine = [x for x, t in zip(whole, trajectories, strict=True) if t.task.blueprint.startswith(server)]
    found[server] = statistics.fmean(mine) if mine else 0.0
  return found | {ours: numbers[name] for ours, name in theirs.items()}


def run_seed(output: pathlib.Path, seed: int, methods: list[str], steps: int) -> dict[str, dict[str, float]]:
  """What held-out questions say of each method, and of the policy that they begin with."""
  from slca_jax.train import rl, sft

  folder, world = output / str(seed), output / 'world'
  folder.mkdir(parents=True, exist_ok=True)
  results = folder / 'results.json'
  found = json.loads(results.read_text('utf-8')) if results.exists() else {}
  start(folder, world, seed)
  for place in range(len(LESSONS)):
    sft.train(sft_config(folder, world, seed, place))
  sft.train(planner_config(folder, world, seed))
  for name in ('before', *methods):
    if name in found:
      continue
    config = rl_config(folder, world, seed, 'grpo' if name == 'before' else name, steps)
    if name != 'before':
      rl.train(config)
      config = dataclasses.replace(config, model=model(pathlib.Path(config.output) / 'model'))
    found[name] = grade(config, world)
    write_json(results, found)
    print(f'seed {seed}, {name}: {found[name]}', flush=True)
  return found


def table(results: list[dict[str, dict[str, float]]], rows: list[str]) -> str:
  """One line per policy: mean ± sample standard deviation over seeds."""

  def cell(values: list[float]) -> str:
    return f'{statistics.fmean(values):.3f} ± {statistics.stdev(values) if len(values) > 1 else 0.0:.3f}'

  names = NAMES
  lines = [f'| | {" | ".join(names)} |', f'|---|{"---|" * len(names)}']
  for row in rows:
    lines.append(f'| {row} | {" | ".join(cell([found[row][name] for found in results]) for name in names)} |')
  return '\n'.join(lines)


def main() -> None:
  """Makes the world, trains, grades and prints."""
  root = pathlib.Path(__file__).resolve().parent.parent
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--seeds', default='0,1,2')
  parser.add_argument('--methods', default=','.join(METHODS))
  parser.add_argument('--steps', type=int, default=30)
  parser.add_argument('--output', type=pathlib.Path, default=root / 'runs' / 'synthesised_training')
  args = parser.parse_args()
  methods = [method for method in args.methods.split(',') if method]
  make_world(args.output / 'world')
  results = [run_seed(args.output, int(seed), methods, args.steps) for seed in args.seeds.split(',')]
  print(table(results, ['before', *methods]))


if __name__ == '__main__':
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  main()
