"""Code of one's own, tried before anything is loaded: on imagined rollouts of a task, and on an imagined batch."""

import contextlib
import functools
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from slca_jax import blocking, own
from slca_jax.arrays import Rewards
from slca_jax.config import require
from slca_jax.data.folders import digest_of
from slca_jax.dialogue import Observation, Parsed, Status, Task, Trajectory, Turn
from slca_jax.envs.mcp_client import listed_tools
from slca_jax.errors import ConfigError, EnvironmentFailure
from slca_jax.ops.estimators import estimator_of
from slca_jax.ops.segments import segment_runs
from slca_jax.rewards.judge import Judge, RuleJudge, SolvedByRule
from slca_jax.rewards.protocols import score
from slca_jax.train import worlds
from slca_jax.train.settings import Method, RLConfig

_ROLLOUTS = 5  # two groups of two, and one that pads the batch


def rehearse(config: RLConfig, tasks: Sequence[Task]) -> None:
  """Tries what a run's settings name of one's own on its first task; does nothing where they name nothing.

  The world is opened and closed and not called; an MCP server is asked for its tools. Rewards and judges see two
  rollouts: one that makes the gold calls, each answered by '{}', and one that answers at once. The estimator sees a
  jitted batch in which a reward is absent.

  Raises:
    ConfigError: it cannot be loaded, breaks, or gives what cannot be used.
  """
  if own.is_own(config.method.estimator):
    _estimate(config.method, turns=config.rollout.limits.turns)
  judge = worlds.judge(config.judge) if own.is_own(config.judge.kind) else RuleJudge()
  if own.is_own(config.judge.kind) or own.is_own(config.method.rewards):
    for task, calls in itertools.product(tasks[:1], (True, False)):
      blocking.run(_score(imagined(task, calls), judge, config))
  worlds.check_offered(config.environment, tasks)
  first = {task.blueprint: task for task in reversed(tasks)}
  served = 'mcp' if 'mcp' in first else None if config.environment.backend == 'mcp' else ''
  if served in first:
    _ask_server(first[served], config)
  for name in (*worlds.TAU2, *((None,) if own.is_own(config.environment.backend) else ())):
    if name in first:
      _open(first[name], config)


def sources(config: RLConfig) -> tuple[str, ...]:
  """The files of one's own code that a run's settings name, once each; after `rehearse`."""
  named = config.method.estimator, config.method.rewards, config.environment.backend, config.judge.kind
  return tuple(dict.fromkeys(filter(None, map(own.source, filter(own.is_own, named)))))


def digests(config: RLConfig) -> dict[str, str]:
  """SHA-256 of each of `sources`, by its path."""
  return {path: digest_of(path) for path in sources(config)}


def imagined(task: Task, calls: bool) -> Trajectory:
  """A rollout of a task that nobody sampled: the gold calls if asked for, then an answer; of one token per turn."""

  def turn(text: str, *step) -> Turn:
    parsed = Parsed(tuple((call,) for call in step), opens=len(step), closes=len(step))
    return Turn((0,), (0.0,), text, parsed, (Observation('{}'),) * len(step), reply=(0,) if step else ())

  made = [turn('', *step) for step in task.gold if step] if calls else []
  return Trajectory(task, 0, 0, (0,), (*made, turn(task.answer or 'Done.')), Status.FINISHED)


def _estimate(method: Method, *, turns: int) -> None:
  row = jnp.array([0, 1, 1, 0, 1, 1, 0, 0], bool)  # prompt, calls, an observation, the answer, padding
  inside = jnp.array([0, 1, 1, 1, 1, 1, 0, 0], bool)
  rollout_BT = jnp.where(inside, jnp.arange(_ROLLOUTS, dtype=jnp.int32)[:, None], -1)
  segments = segment_runs(jnp.tile(row, (_ROLLOUTS, 1)), rollout_BT, jnp.ones(_ROLLOUTS, bool))
  told_R = jnp.array([1, 0, 0.5, jnp.nan, jnp.nan], jnp.float32)
  turn_RK = jnp.full((_ROLLOUTS, turns), jnp.nan, jnp.float32).at[:, 0].set(told_R)
  group_R = jnp.array([0, 0, 1, 1, -1], jnp.int32)
  rewards = Rewards(told_R, told_R, told_R, turn_RK, jnp.zeros(_ROLLOUTS, bool), group_R)
  name, shape = f'method.estimator is {method.estimator!r}', rollout_BT.shape
  try:
    estimate = jax.jit(functools.partial(estimator_of(method.estimator), **method.options))
    advantage_BT = estimate(rewards, segments, rollout_BT)
  except Exception as error:
    raise ConfigError(f'{name}; on a batch of {shape} tokens it fails: {own.told(error)}') from error
  fits = isinstance(advantage_BT, jax.Array) and advantage_BT.shape == shape and advantage_BT.dtype == jnp.float32
  found = f'{getattr(advantage_BT, "dtype", type(advantage_BT).__name__)}{list(getattr(advantage_BT, "shape", ()))}'
  require(fits, f'{name}; it returned {found} for {list(shape)} tokens; an advantage per token is float32')
  require(
    bool(jnp.isfinite(advantage_BT).all()),
    f'{name}; where a reward is absent (NaN) its advantages are not finite; `group_relative` leaves absent ones out',
  )


async def _score(trajectory: Trajectory, judge: Judge, config: RLConfig) -> None:
  """Raises ConfigError if the judge or the protocol breaks on the rollout."""
  what = f'on a rollout of task {trajectory.task.id} with {len(trajectory.tool_turns)} steps of calls it fails'
  protocol, options = config.method.rewards, config.scoring
  rated = (await score(trajectory, judge, protocol=protocol, options=options, referee=SolvedByRule())).why
  failed = rated['judge_failed'] and rated['verdict']['reason']
  require(not failed, f'judge.kind is {config.judge.kind!r}; {what}: {rated["verdict"]["reason"]}')
  error = rated.get('reward_error')
  require(not error, f'method.protocol is {config.method.protocol!r}; {what}: {error}')


def _ask_server(task: Task, config: RLConfig) -> None:
  """Raises ConfigError if the MCP server does not start, or lacks what a task's gold calls."""
  name = f'environment.mcp is {config.environment.mcp!r}'
  try:
    offered = {tool.name for tool in listed_tools(worlds.server_of(config.environment))}
  except EnvironmentFailure as error:
    raise ConfigError(f'{name}; it does not serve: {error}') from error
  lacking = {call.name for step in task.gold for call in step} - offered
  require(not lacking, f'{name}; task {task.id} calls {sorted(lacking)}, the server offers {sorted(offered)}')


def _open(task: Task, config: RLConfig) -> None:
  own_world = task.blueprint is None
  name = f'environment.backend is {config.environment.backend!r}' if own_world else f'the world is {task.blueprint!r}'
  try:
    with contextlib.closing(worlds.opener(config.environment)(task, 0)) as world:
      missing = [part for part in ('tools', 'step', 'close') if not hasattr(world, part)]
  except ConfigError:  # no such file, or none of that name in it
    raise
  except Exception as error:
    raise ConfigError(f'{name}; task {task.id} cannot be opened and closed: {own.told(error)}') from error
  require(not missing, f'{name}; the world of task {task.id} is a {type(world).__name__} without {missing}')
