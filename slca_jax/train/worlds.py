"""From settings to the parts of a rollout: tasks, environments, judge and scorer, engine."""

import dataclasses
import functools
import hashlib
import inspect
import pathlib
import shlex
from collections.abc import Awaitable, Callable, Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from slca_jax.chat.template import Template
from slca_jax.config import nearest, require
from slca_jax.data.formats.row import GOLD, UNKNOWN
from slca_jax.data.tasks import read_tasks
from slca_jax.dialogue import Scores, Task, Trajectory
from slca_jax.envs.environment import Environment, Opener
from slca_jax.envs.executable import World, executable_opener
from slca_jax.envs.guard import CallLimits
from slca_jax.envs.mcp_client import McpServer, mcp_opener
from slca_jax.envs.recorded import recorded_opener
from slca_jax.envs.sgls import simulated_opener
from slca_jax.envs.tau2 import DOMAINS, tau2_opener
from slca_jax.errors import ConfigError, DataError, EnvironmentFailure, TemplateError
from slca_jax.nn import hosts
from slca_jax.nn.weights import named_tensors, save_hf
from slca_jax.ops.estimators import estimator_of
from slca_jax.own import is_own, load_function
from slca_jax.quickstart.world import MARKET
from slca_jax.rewards.judge import BiasedJudge, Judge, NoisyJudge, OwnJudge, RuleJudge, SolvedByRule
from slca_jax.rewards.llm_judge import CompletenessJudge, LLMJudge, SolvedJudge
from slca_jax.rewards.protocols import Scoring, check_protocol, needs_gold, score
from slca_jax.rollout.collect import Rollouts
from slca_jax.rollout.local import LocalSampler
from slca_jax.rollout.sampler import Sampler
from slca_jax.rollout.settings import SGLangServers
from slca_jax.rollout.sglang import SGLangSampler
from slca_jax.toolverse.world import blueprint_opener
from slca_jax.train.endpoints import NO_ENDPOINTS, Endpoints
from slca_jax.train.policy import Loaded, for_sampling
from slca_jax.train.settings import EnvironmentSettings, JudgeSettings, Method, RLConfig, TaskFiles, require_files
from slca_jax.train.surroundings import MARGIN

WORLDS: dict[str, World] = {'market': MARKET}  # by a task's blueprint
TAU2 = tuple(f'tau2/{name}' for name in DOMAINS)
_LOOKED_AT = 32  # tasks whose prompts are measured before a run

SeededScorer = Callable[..., Awaitable[Scores]]  # (trajectory, *, seed)


def read(data: TaskFiles) -> tuple[list[Task], list[Task]]:
  """(training tasks, held-out tasks).

  Raises:
    ConfigError: a file is missing or empty, or a task is in both.
    DataError: a line is no task.
  """
  require_files(data, 'tasks')
  tasks = read_tasks(data.train)
  heldout = read_tasks(data.heldout) if data.heldout else []
  for path, found in ((data.train, tasks), (data.heldout, heldout)):
    require(bool(found) or not path, f'{path} holds no task')
  shared = {task.id for task in tasks} & {task.id for task in heldout}
  require(
    not shared, f'{len(shared)} tasks stand in {data.train} and in {data.heldout}, {min(shared, default="")!r} first'
  )
  return tasks, heldout[: data.heldout_limit or None]


def require_gold(tasks: Sequence[Task], method: Method, scoring: Scoring) -> None:
  """Raises DataError for gold calls of tools that are not on offer, and for tasks that do not tell theirs.

  The latter only where calls are compared with gold calls; () says that none is right.
  """
  for task in tasks:
    offered = {tool.name for tool in task.tools}
    foreign = next((call.name for step in task.gold for call in step if call.name not in offered), None)
    if foreign and (offered or task.blueprint is None):  # without tools of its own it has those of its world
      raise DataError(
        f'task {task.id}: a gold call is of {foreign!r}, which is not on offer ({", ".join(sorted(offered))[:200]}); '
        'no rollout can make it, so add the tool to the task or leave the task out'
      )
  unknown = [task.id for task in tasks if task.meta.get(GOLD) == UNKNOWN]
  if unknown and needs_gold(method.rewards, scoring):
    raise DataError(
      f'{len(unknown)} of {len(tasks)} tasks, {unknown[0]!r} first, do not say which calls are right, and rewards '
      f'{method.rewards!r} compare with them; name a reward of your own (method.protocol=FILE.py:NAME), let a judge '
      'rate alone (summary_only; rltr with scoring.completeness=judge), or leave these tasks out'
    )


def check_prompts(tasks: Sequence[Task], template: Template, *, longest: int) -> None:
  """Raises DataError if all first tasks have prompts above `longest` tokens, TemplateError if none can be rendered."""
  sizes, failed = [], None
  for task in tasks[:_LOOKED_AT]:
    try:
      sizes.append(len(template.prompt(task.messages, task.tools)))
    except TemplateError as error:  # one such task is a group of failed rollouts
      failed = error
  if failed and not sizes:
    raise failed
  if min(sizes) > longest:
    raise DataError(
      f'the prompts of the first {len(sizes)} tasks have {min(sizes)} to {max(sizes)} tokens, and '
      f'rollout.limits.prompt_tokens is {longest}; raise it, and rollout.local.context and batching.lengths with it, '
      'or train on tasks with fewer tools and shorter dialogues'
    )


def check_offered(settings: EnvironmentSettings, tasks: Sequence[Task]) -> None:
  """Raises ConfigError for a folder that is not there, and for tasks that live in a world which nobody opens."""
  folder = pathlib.Path(settings.blueprints)
  require(folder.is_dir(), f'environment.blueprints is {settings.blueprints!r}; there is no such folder')  # '' is here
  named = {task.blueprint: task.id for task in reversed(tasks) if task.blueprint is not None}
  offered = {*WORLDS, *TAU2, *(('mcp',) if settings.mcp else ())}
  lost = [name for name in named if name not in offered and not (settings.blueprints and (folder / name).is_dir())]
  if lost:
    raise ConfigError(
      f'tasks live in {len(lost)} worlds that are not there, such as task {named[lost[-1]]} in {lost[-1]!r}; '
      'environment.blueprints names the folder of blueprints, environment.mcp the command of the server mcp'
    )


def check_method(method: Method, scoring: Scoring, *, has_referee: bool = False) -> None:
  """Raises ConfigError for an unknown estimator or option, naming the nearest known one, or a judge that is missing."""
  parameters = inspect.signature(estimator_of(method.estimator)).parameters.values()
  known = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
  for option, value in method.options.items():
    require(option in known, f'method.options: {method.estimator} has no {option!r}; {nearest(option, known)}')
    number = isinstance(value, int | float) and not isinstance(value, bool)
    require(number, f'method.options.{option} is {value!r} ({type(value).__name__}); it takes a number')
  check_protocol(method.rewards, scoring, has_referee=has_referee)


def server_of(settings: EnvironmentSettings) -> McpServer:
  """The user's MCP server. Raises ConfigError for a command that is none."""
  try:
    return McpServer(tuple(shlex.split(settings.mcp)))
  except ValueError as error:
    raise ConfigError(f'environment.mcp is {settings.mcp!r}, which is no command: {error}') from error


def opener(settings: EnvironmentSettings, endpoints: Endpoints = NO_ENDPOINTS) -> Opener:
  """Opens a task's executable world if it names one, its records or its simulator behind the checks otherwise.

  Raises:
    ConfigError: blueprints are to be run, and this machine confines them less than the settings ask for; or an MCP
      server is, and its client is not installed.
  """
  limits = CallLimits(deadline=settings.call_seconds, max_characters=settings.max_characters)
  worlds: dict[str, Opener] = {name: executable_opener(world, limits=limits) for name, world in WORLDS.items()}
  worlds |= dict.fromkeys(TAU2, tau2_opener(limits=limits))
  if settings.mcp:
    worlds['mcp'] = mcp_opener(server_of(settings), each=settings.mcp_each, limits=limits)
  backend = worlds['mcp'] if settings.backend == 'mcp' else recorded_opener(checks=settings.checks, limits=limits)
  if is_own(settings.backend):
    backend = load_function(settings.backend, 'task, seed', setting='environment.backend')
  if settings.backend == 'simulated' and endpoints.simulator is not None:
    backend = simulated_opener(
      endpoints.simulator,
      checks=settings.checks,
      definition=settings.definition,
      history=settings.history,
      recorded_first=settings.recorded_first,
      fresh=settings.fresh,
      limits=dataclasses.replace(limits, deadline=settings.simulator.deadline + MARGIN),
    )

  built = blueprint_opener(settings.blueprints, settings.sandbox, limits=limits) if settings.blueprints else None

  def open_task(task: Task, seed: int) -> Environment:
    if task.blueprint is None:
      return backend(task, seed)
    if task.blueprint in worlds:
      return worlds[task.blueprint](task, seed)
    if built is None:
      raise EnvironmentFailure(
        f'task {task.id} lives in {task.blueprint!r}; known worlds: {", ".join(worlds)}; '
        'environment.blueprints names a folder of others, environment.mcp starts the server of mcp'
      )
    return built(task, seed)

  return open_task


def judge(settings: JudgeSettings, endpoints: Endpoints = NO_ENDPOINTS) -> Judge:
  """The rule judge, one's own or the model behind the endpoint, biased and made noisy as the settings say."""
  rated: Judge = RuleJudge()
  if is_own(settings.kind):
    rated = OwnJudge(load_function(settings.kind, 'trajectory, *, seed', setting='judge.kind'))
  if settings.kind == 'llm' and endpoints.judge is not None:
    rated = LLMJudge(endpoints.judge, settings.most_characters)
  if settings.bias:
    rated = BiasedJudge(rated, settings.bias, settings.bias_turns)
  return NoisyJudge(rated, settings.noise) if settings.noise else rated


def referee(config: RLConfig, endpoints: Endpoints) -> Judge | None:
  """The second judge, if the protocol asks one: of a plan's completeness, or whether the task was solved."""
  if config.scoring.referee == 'rule' and config.method.rewards != 'rltr':
    return SolvedByRule()
  if endpoints.referee is None:
    return None
  kind = CompletenessJudge if config.method.rewards == 'rltr' else SolvedJudge
  return kind(endpoints.referee, config.judge.most_characters)


def scorer(config: RLConfig, endpoints: Endpoints = NO_ENDPOINTS, *, disturbed: bool = True) -> SeededScorer:
  """Scores a trajectory under the run's protocol; undisturbed, the judge has neither noise nor bias, for evaluation."""
  settings = config.judge if disturbed else dataclasses.replace(config.judge, noise=0.0, bias=0.0)
  return functools.partial(_score, judge=judge(settings, endpoints), referee=referee(config, endpoints), config=config)


async def _score(trajectory: Trajectory, *, seed: int, judge: Judge, referee: Judge | None, config: RLConfig) -> Scores:
  options = config.scoring
  return await score(trajectory, judge, protocol=config.method.rewards, options=options, referee=referee, seed=seed)


def sampler(config: RLConfig, loaded: Loaded, params: nnx.State, *, purpose: str = 'train') -> Sampler:
  """The engine the settings name: the embedded one with the policy's first weights, or servers, which know no weights
  before the first `publish`.
  """
  settings = config.rollout
  if settings.engine == 'local':
    return LocalSampler(loaded.graph, for_sampling(params), loaded.config, settings.local)
  run = f'{run_name(config.output)}-{purpose}'
  dtype = settings.sglang.dtype or loaded.config.param_dtype
  folder = pathlib.Path(settings.sglang.folder or pathlib.Path(config.output) / 'weights')
  return SGLangSampler(
    own_servers(settings.sglang),
    run=run,
    folder=folder / run,
    save=lambda params, path: save_hf(params, loaded.config, path, dtype=dtype),
    vocab=loaded.config.vocab,
    context=settings.limits.prompt_tokens + settings.limits.response_tokens,
    tensors=lambda params: named_tensors(params, loaded.config, dtype=dtype),
    needed=sum(leaf.size for leaf in jax.tree.leaves(params)) * jnp.dtype(dtype).itemsize,
  )


def published(config: RLConfig, params: nnx.State) -> nnx.State:
  """The parameters as the run's engine takes them: the embedded one has them on this host's own devices."""
  return for_sampling(params) if config.rollout.engine == 'local' else params


def own_servers(settings: SGLangServers) -> SGLangServers:
  """The servers that this host asks and gives weights to: one of every `jax.process_count()` in turn.

  Raises:
    ConfigError: a host would have none, or shares what cannot be shared.
  """
  count = jax.process_count()
  if count == 1:
    return settings
  require(
    len(settings.servers) >= count,
    f'{len(settings.servers)} servers for {count} processes; each has servers of its own, so name at least {count}',
  )
  require(not settings.router, f'sglang.router is {settings.router!r}; a router in front of all hosts is of no use')
  require(settings.transport == 'disk', f"sglang.transport is {settings.transport!r}; several processes use 'disk'")
  return dataclasses.replace(
    settings, urls=','.join(settings.servers[index] for index in hosts.share(len(settings.servers)))
  )


def run_name(output: str) -> str:
  """What servers know a run by: the same whenever it is resumed, and no other run's."""
  path = pathlib.Path(output).absolute()
  return f'{path.name}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}'.replace(':', '_')


def rollouts(
  config: RLConfig,
  loaded: Loaded,
  params: nnx.State,
  endpoints: Endpoints = NO_ENDPOINTS,
  *,
  purpose: str = 'train',
) -> Rollouts:
  """All that a rollout of this run needs beside its task, around a new engine.

  Args:
    purpose: keeps apart what uses servers under one output at the same time.

  Raises:
    ConfigError: the engine is too small for the model's stop ids, or larger than its context.
  """
  settings, stops = config.rollout, len(loaded.template.stop_ids)
  require(
    settings.engine != 'local' or stops <= settings.local.stop_ids,
    f'rollout.local.stop_ids is {settings.local.stop_ids}; the model has {stops}, and every request would fail',
  )
  return Rollouts(
    sampler(config, loaded, params, purpose=purpose),
    loaded.template,
    opener(config.environment, endpoints),
    settings.limits,
    settings.decoding,
  )
