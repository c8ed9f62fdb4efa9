"""Held-out tasks through the rollouts of training, scored by the rewards of training: greedy, sampled, or both.

Every rollout is on disk as soon as its task is done, and none is made twice: the same command goes on where it was
killed, and with more samples, tasks or files it makes what is missing.
"""

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import pathlib
from collections.abc import Iterator, Sequence

import jax

from slca_jax import blocking
from slca_jax.config import require
from slca_jax.data.folders import claimed
from slca_jax.data.tasks import read_tasks
from slca_jax.dialogue import Scores, Task, Trajectory
from slca_jax.errors import TemplateError
from slca_jax.evals import results
from slca_jax.evals.crew import do_all
from slca_jax.evals.measures import measures
from slca_jax.evals.results import Results
from slca_jax.evals.settings import GREEDY, EvaluateConfig, as_run, lasting, named_files
from slca_jax.evals.summary import Summary, summarise, write_summary
from slca_jax.rollout.collect import Rollouts, Scorer, rarely_interrupted, run
from slca_jax.rollout.two_stage import TwoStageSampler
from slca_jax.train import endpoints, policy, rehearsal, worlds
from slca_jax.train.run import hush, remember


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
  """One file of tasks under one way to decode, and which rollouts of it are missing, by the tasks' places."""

  name: str
  mode: str
  tasks: Sequence[Task]
  kept: Results
  missing: dict[int, list[int]]


def evaluate(config: EvaluateConfig) -> list[Summary]:
  """Rolls out what is missing, and writes `summary.json` and `table.md`, `.tex`, `.csv` to the output.

  Raises:
    ConfigError, DataError, WeightsError, TemplateError: before any rollout.
  """
  hush()
  files, settings, folder = named_files(config.tasks), as_run(config), pathlib.Path(config.output)
  worlds.check_method(settings.method, settings.scoring, has_referee=bool(settings.referee.model))
  policy.check(config.model)
  if config.summariser.path:
    policy.check(config.summariser)
  tasks = {name: read_tasks(path)[: config.limit or None] for name, path in files.items()}
  for name, path in files.items():
    require(bool(tasks[name]), f'{path} holds no task')
  every = [task for ours in tasks.values() for task in ours]
  worlds.require_gold(every, settings.method, settings.scoring)
  rehearsal.rehearse(settings, every)
  with claimed(folder):
    marks = {'weights': weights_mark(policy.resolve(config.model.path))}
    if config.summariser.path:
      marks['summariser_weights'] = weights_mark(policy.resolve(config.summariser.path))
    remember(folder, lasting(config) | marks, digests=rehearsal.digests(settings))
    results.remember_tasks(folder, files)
    with _opened(config, folder, tasks) as works:
      if any(work.missing for work in works):
        endpoints.probe(settings)
        loaded = policy.load(config.model, config.mesh)
        with jax.set_mesh(loaded.mesh), rarely_interrupted():
          blocking.run(_roll_out(config, loaded, works))
    summaries = [_summary(config, folder, name, mode) for name in files for mode in config.modes]
    write_summary(folder, summaries, config.intervals)
  return summaries


def weights_mark(folder: pathlib.Path) -> str:
  """A digest of a checkpoint's weights: of each file the name, the size and 16 stretches; retraining changes them."""
  digest = hashlib.sha256()
  for path in sorted(folder.glob('*.safetensors')):
    size = path.stat().st_size
    digest.update(f'{path.name} {size} '.encode())
    with open(path, 'rb') as file:
      for part in range(16):
        file.seek(size * part // 16)
        digest.update(file.read(65536))
  return digest.hexdigest()


@contextlib.contextmanager
def _opened(config: EvaluateConfig, folder: pathlib.Path, tasks: dict[str, list[Task]]) -> Iterator[list[Work]]:
  with contextlib.ExitStack() as held:
    works = []
    for name, ours in tasks.items():
      for mode, rollouts in config.modes.items():
        kept = held.enter_context(contextlib.closing(Results(folder / name / mode)))
        missing = kept.missing(len(ours), rollouts, redo_failed=config.redo_failed)
        works.append(Work(name, mode, ours, kept, missing))
    yield works


async def _roll_out(config: EvaluateConfig, loaded: policy.Loaded, works: Sequence[Work]) -> None:
  settings = as_run(config)
  asked = endpoints.connect(settings)
  score = functools.partial(worlds.scorer(settings, asked, disturbed=False), seed=0)
  world = worlds.rollouts(settings, loaded, loaded.params, asked, purpose='evaluate')
  greedy = dataclasses.replace(world.decoding, temperature=0.0, top_p=1.0)
  try:
    await world.sampler.publish(loaded.params, 0)
    if config.summariser.path:
      world = dataclasses.replace(world, sampler=await _two_stages(config, world))
    for work in works:
      decoding = greedy if work.mode == GREEDY else world.decoding
      await _do(work, dataclasses.replace(world, decoding=decoding), score, config)
  finally:
    await world.sampler.close()
    await asked.close()


async def _two_stages(config: EvaluateConfig, world: Rollouts) -> TwoStageSampler:
  """The world's engine with a summariser's behind it.

  Raises:
    ConfigError: the two models do not share their template.
  """
  summariser, settings = policy.load(config.summariser, config.mesh), as_run(config)
  require(
    summariser.template.stop_ids == world.template.stop_ids
    and summariser.template.vocab_size == world.template.vocab_size,
    f'summariser.path is {config.summariser.path!r}; its tokenizer is not that of {config.model.path!r}',
  )
  engine = worlds.sampler(settings, summariser, summariser.params, purpose='summarise')
  await engine.publish(summariser.params, 0)
  return TwoStageSampler(world.sampler, engine, world.template, reading=world.decoding.reading)


async def _do(work: Work, world: Rollouts, score: Scorer, config: EvaluateConfig) -> None:
  """Makes the missing rollouts, `at_once` tasks at a time."""
  gate = asyncio.Semaphore(world.sampler.concurrency)

  async def one(missing: tuple[int, list[int]]) -> None:
    place, indices = missing
    pairs = await _roll_task(work.tasks[place], indices, world, score, gate, seed=f'{config.seed}/{work.mode}')
    pairs = [(dataclasses.replace(trajectory, group=place), scores) for trajectory, scores in pairs]
    work.kept.append(pairs, [measures(trajectory, scores) for trajectory, scores in pairs])

  missing, title = list(work.missing.items()), f'{work.name}, {work.mode}'
  await do_all(missing, one, at_once=config.at_once, title=title, unit='task')


async def _roll_task(
  task: Task, indices: Sequence[int], world: Rollouts, score: Scorer, gate: asyncio.Semaphore, *, seed: str
) -> list[tuple[Trajectory, Scores]]:
  """Rollouts of one task with their scores. Their seeds come from its id, not from where it stands: over the files of
  a K-sweep a task meets the same chance.
  """
  prompt: tuple[int, ...] | None = None

  async def one(index: int) -> tuple[Trajectory, Scores]:
    nonlocal prompt
    async with gate:
      if prompt is None:
        with contextlib.suppress(TemplateError):  # the rollout says so itself
          prompt = world.template.prompt(task.messages, task.tools)
      trajectory = await run(task, 0, index, world, seed=seed, prompt=prompt)
    return trajectory, await score(trajectory)

  async with asyncio.TaskGroup() as crew:
    jobs = [crew.create_task(one(index)) for index in indices]
  return [job.result() for job in jobs]


def _summary(config: EvaluateConfig, folder: pathlib.Path, name: str, mode: str) -> Summary:
  records = results.read(folder, name, mode, limit=config.limit, rollouts=config.modes[mode])
  return summarise(name, mode, records, config.intervals)
