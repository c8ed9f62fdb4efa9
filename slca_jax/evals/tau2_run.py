"""A policy on τ²-bench: simulations on disk as soon as they end, pass^k per domain, and the controls beside them.

The same command goes on where it was killed, and with more domains or samples makes what is missing.
"""

import asyncio
import contextlib
import dataclasses
import json
import pathlib
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from slca_jax import blocking
from slca_jax.config import require
from slca_jax.data.folders import claimed, write_json
from slca_jax.evals import results, statistics, tables, tau2
from slca_jax.evals.bridge import Bridge
from slca_jax.evals.crew import do_all
from slca_jax.evals.in_domain import weights_mark
from slca_jax.evals.results import Record, Results
from slca_jax.evals.settings import GREEDY, EvaluateConfig, as_run, lasting
from slca_jax.evals.statistics import Estimate, Sampling
from slca_jax.evals.tables import Cell, Table
from slca_jax.rollout.collect import Rollouts, rarely_interrupted
from slca_jax.train import policy, worlds
from slca_jax.train.run import hush, remember

Controls = Mapping[str, Mapping[str, float]]  # of each task the rewards of gold actions and of doing nothing


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
  """The simulations of one domain under one way to decode that are missing, by the tasks' places."""

  domain: str
  mode: str
  tasks: Sequence[str]
  kept: Results
  missing: dict[int, list[int]]


def evaluate(config: EvaluateConfig) -> list[Table]:
  """Simulates what is missing and writes `summary.json` and `table.md`, `.tex`, `.csv` to the output.

  Raises:
    ConfigError, WeightsError, TemplateError: before any simulation.
  """
  hush()
  folder = pathlib.Path(config.output)
  tau2.user_of(config.tau2)
  policy.check(config.model)
  with claimed(folder):
    asked = dataclasses.asdict(config.tau2)
    for name in ('python', 'domains', 'controls', 'user_key_env'):
      del asked[name]
    remember(folder, lasting(config) | {'tau2': asked, 'weights': weights_mark(policy.resolve(config.model.path))})
    tasks, controls = blocking.run(_evaluate(config, folder))
    found = summary_tables(_read(config, folder, tasks), controls, config.intervals)
    write_json(folder / 'summary.json', [dataclasses.asdict(table) for table in found])
    tables.write(folder, 'table', found)
  return found


def _read(config: EvaluateConfig, folder: pathlib.Path, tasks: Mapping[str, Sequence[str]]):
  """The records by domain and way to decode."""
  return {
    (domain, mode): results.read(folder, domain, mode, limit=config.limit, rollouts=count)
    for domain in tasks
    for mode, count in config.modes.items()
  }


async def _evaluate(config: EvaluateConfig, folder: pathlib.Path) -> tuple[dict[str, list[str]], dict[str, Controls]]:
  official = Bridge(tau2.SCRIPT, python=config.tau2.python)
  try:
    tasks = {}
    for domain in config.tau2.chosen:
      ids = await official.ask('tasks', domain=domain, split=config.tau2.split, solo=config.tau2.solo)
      require(bool(ids), f'tau2 {domain} has no task for tau2.solo={config.tau2.solo}; leave it out of tau2.domains')
      tasks[domain] = ids[: config.limit or None]
    with contextlib.ExitStack() as held:
      works = []
      for domain, ids in tasks.items():
        for mode, count in config.modes.items():
          kept = held.enter_context(contextlib.closing(Results(folder / domain / mode)))
          missing = kept.missing(len(ids), count, redo_failed=config.redo_failed)
          works.append(Work(domain, mode, ids, kept, missing))
      if any(work.missing for work in works):
        await _simulate_all(config, works, official)
    controls = {}
    if config.tau2.controls:
      controls = {domain: await _controls(folder / domain, domain, ids, official) for domain, ids in tasks.items()}
    return tasks, controls
  finally:
    await official.close()


async def _simulate_all(config: EvaluateConfig, works: Sequence[Work], official: Bridge) -> None:
  loaded = policy.load(config.model, config.mesh)
  with jax.set_mesh(loaded.mesh), rarely_interrupted():
    world = worlds.rollouts(as_run(config), loaded, loaded.params, purpose='evaluate')
    greedy = dataclasses.replace(world.decoding, temperature=0.0, top_p=1.0)
    try:
      await world.sampler.publish(loaded.params, 0)
      for work in works:
        decoding = greedy if work.mode == GREEDY else world.decoding
        await _do(work, dataclasses.replace(world, decoding=decoding), official, config)
    finally:
      await world.sampler.close()


async def _do(work: Work, world: Rollouts, official: Bridge, config: EvaluateConfig) -> None:
  async def one(missing: tuple[int, int]) -> None:
    place, index = missing
    trajectory, scores = await tau2.simulate(
      work.domain, work.tasks[place], index, world, official, config.tau2, seed=f'{config.seed}/{work.mode}'
    )
    pair = dataclasses.replace(trajectory, group=place), scores
    work.kept.append([pair], [tau2.measures(*pair)])

  missing = [(place, index) for place, indices in work.missing.items() for index in indices]
  title = f'{work.domain}, {work.mode}'
  await do_all(missing, one, at_once=world.sampler.concurrency, title=title, unit='simulation')


async def _controls(folder: pathlib.Path, domain: str, tasks: Sequence[str], official: Bridge) -> Controls:
  """The controls of the tasks, from disk where they were made before: they take seconds each."""
  path = folder / 'controls.json'
  known: dict[str, dict[str, float]] = json.loads(path.read_text('utf-8')) if path.exists() else {}
  missing = [task for task in tasks if task not in known]
  made = await asyncio.gather(*(official.ask('controls', domain=domain, task=task) for task in missing))
  known |= dict(zip(missing, made, strict=True))
  if missing:
    write_json(path, known)
  return {task: known[task] for task in tasks}


def summary_tables(
  records: Mapping[tuple[str, str], Sequence[Record]], controls: Mapping[str, Controls], sampling: Sampling
) -> list[Table]:
  """pass^k for every k up to the number of simulations of a task, and how many tasks the controls solve."""
  most = max((_tries(found) for found in records.values()), default=0)
  sizes = range(1, most + 1)
  rows = tuple(_row(key, found, controls.get(key[0], {}), sizes, sampling) for key, found in records.items())
  names = ('domain', 'decoding', 'tasks', *(f'pass^{k}' for k in sizes), 'gold actions', 'doing nothing', 'failed')
  note = (
    f'Brackets hold {sampling.confidence:.0%} bootstrap intervals over tasks. Controls: tasks whose gold actions, and '
    "whose untouched world, tau2's environment evaluator accepts. Failed simulations are left out."
  )
  return [Table('τ²-bench', names, rows, note=note)]


def _row(
  key: tuple[str, str], found: Sequence[Record], controls: Controls, sizes: Sequence[int], sampling: Sampling
) -> tuple[Cell, ...]:
  tasks = list(dict.fromkeys(record['place'] for record in found))
  passed = {
    place: [r['measures']['success'] for r in found if r['place'] == place and r['measures']] for place in tasks
  }
  values = [[statistics.pass_all(len(tried), int(sum(tried)), k) for k in sizes] for tried in passed.values()]
  matrix = np.array([[np.nan if value is None else value for value in row] for row in values], np.float64)
  passes: list[Estimate] = statistics.bootstrap(matrix.reshape(len(tasks), len(sizes)), sampling)
  solved = [
    f'{sum(one[name] == 1 for one in controls.values())}/{len(controls)}' if controls else None
    for name in ('gold', 'nothing')
  ]
  return *key, len(tasks), *passes, *solved, sum(not record['measures'] for record in found)


def _tries(found: Sequence[Record]) -> int:
  return max((record['index'] + 1 for record in found), default=0)
