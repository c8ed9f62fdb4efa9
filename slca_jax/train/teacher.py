"""A teacher for tasks: a checkpoint on the embedded engine, or servers, that tries tasks in fresh worlds."""

import asyncio
import functools
import pathlib
from collections.abc import Awaitable, Callable

import jax

from slca_jax import blocking
from slca_jax.chat.template import Template, load_template
from slca_jax.config import as_dict, require
from slca_jax.dialogue import Task
from slca_jax.envs.environment import Environment, Opener
from slca_jax.llm.answers import digest
from slca_jax.nn.hf_config import read_config
from slca_jax.rollout.collect import Rollouts, rarely_interrupted, run
from slca_jax.rollout.frozen import FrozenServers
from slca_jax.rollout.local import LocalSampler
from slca_jax.rollout.sampler import Sampler
from slca_jax.toolverse.filters import Attempt, Solve, full_trace, solved
from slca_jax.toolverse.teaching import Teacher, Watched
from slca_jax.toolverse.world import blueprint_opener
from slca_jax.train import policy
from slca_jax.train.run import hush
from slca_jax.train.teacher_settings import SynthesizeConfig, TeacherSettings

Work = Callable[[Solve], Awaitable[None]]


def teacher_of(config: SynthesizeConfig) -> Teacher | None:
  """The teacher of a run, None if it has none. What can be checked without its weights is checked here.

  Raises:
    ConfigError: there is no such checkpoint, the engine does not fit it, or a server does not answer or is too small.
    WeightsError, TemplateError: the checkpoint does not hold what it should.
  """
  settings = config.teacher
  if not settings.model.path:
    return None
  policy.check(settings.model)
  template = _checked(settings)
  passes = solved if settings.success == 'state' else _covers
  open_folder = functools.partial(
    blueprint_opener, str(pathlib.Path(config.output) / 'blueprints'), config.sandbox
  )  # the folder's blueprints are there when the first task is tried
  return Teacher(name_of(settings), settings.band, functools.partial(_run, settings, template, open_folder), passes)


def name_of(settings: TeacherSettings) -> str:
  """Who the teacher is and how it is asked, in words and as a digest; where its servers stand does not matter."""
  matters = {
    'model': as_dict(settings.model),
    'engine': settings.rollout.engine,
    'limits': as_dict(settings.rollout.limits),
    'decoding': as_dict(settings.rollout.decoding),
    'success': settings.success,
    'seed': settings.seed,
  }
  return f'{pathlib.Path(settings.model.path).name} {digest(matters)[:8]}'


async def teach(sampler: Sampler, template: Template, open_task: Opener, settings: TeacherSettings, work: Work) -> None:
  """Runs the work with a `solve` that makes rollouts on the engine, as many at once as it serves; closes the engine."""
  gate = asyncio.Semaphore(sampler.concurrency)
  rollout = settings.rollout

  async def solve(task: Task, number: int) -> Attempt:
    opened: list[Watched] = []

    def open_watched(task: Task, seed: int) -> Environment:
      opened.append(Watched(open_task(task, seed)))
      return opened[-1]

    world = Rollouts(sampler, template, open_watched, rollout.limits, rollout.decoding)
    async with gate:
      trajectory = await run(task, number, 0, world, seed=f'{settings.seed}/teacher')
    watched = opened[0] if opened else None
    return Attempt(trajectory, tuple(watched.outputs), watched.changed) if watched else Attempt(trajectory)

  try:
    await work(solve)
  finally:
    await sampler.close()


def _covers(attempt: Attempt) -> bool:
  return full_trace(attempt.trajectory)


def _checked(settings: TeacherSettings) -> Template:
  """The teacher's template, once its engine is known to fit."""
  rollout = settings.rollout
  if rollout.engine == 'sglang':
    template = load_template(settings.model.path, options=settings.model.template)
    blocking.run(_check_servers(_servers(settings, template)))
    return template
  folder = policy.resolve(settings.model.path)
  template = load_template(folder, options=settings.model.template)
  positions, context = read_config(folder).context, rollout.local.context
  require(context <= positions, f'rollout.local.context is {context}, the model has {positions} positions; lower it')
  stops = len(template.stop_ids)
  require(
    stops <= rollout.local.stop_ids,
    f'rollout.local.stop_ids is {rollout.local.stop_ids}; the model has {stops}, and every request would fail',
  )
  return template


async def _check_servers(servers: FrozenServers) -> None:
  try:
    await servers.check()
  finally:
    await servers.close()


def _servers(settings: TeacherSettings, template: Template) -> FrozenServers:
  limits = settings.rollout.limits
  longest = limits.prompt_tokens + limits.response_tokens
  return FrozenServers(settings.rollout.sglang, vocab=template.vocab_size, context=longest)


def _run(settings: TeacherSettings, template: Template, open_folder: Callable[[], Opener], work: Work) -> None:
  hush()
  if settings.rollout.engine == 'sglang':
    with rarely_interrupted():
      blocking.run(teach(_servers(settings, template), template, open_folder(), settings, work))
    return
  loaded = policy.load(settings.model, settings.mesh)
  with jax.set_mesh(loaded.mesh), rarely_interrupted():
    sampler = LocalSampler(loaded.graph, loaded.params, loaded.config, settings.rollout.local)
    blocking.run(teach(sampler, template, open_folder(), settings, work))
