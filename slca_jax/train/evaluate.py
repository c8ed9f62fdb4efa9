"""Greedy rollouts of a policy on tasks, scored: what it can do, before, between and after training."""

import dataclasses
import functools
from collections.abc import Sequence

import jax

from slca_jax import blocking
from slca_jax.dialogue import Scores, Status, Task, Trajectory
from slca_jax.rewards.outcome import format_violated
from slca_jax.rollout.collect import Rollouts, Scorer, collect, rarely_interrupted
from slca_jax.train import endpoints, policy, worlds
from slca_jax.train.metrics import Numbers, Tally, count_mean, settle, tally
from slca_jax.train.run import hush
from slca_jax.train.settings import RLConfig

Evaluation = tuple[Numbers, list[Trajectory], list[Scores]]


def evaluate(config: RLConfig, tasks: Sequence[Task]) -> Evaluation:
  """One greedy rollout per task by the checkpoint `config.model.path`: numbers, trajectories and scores.

  Limits, environment and protocol are the config's; the judge is neither noisy nor biased.

  Raises:
    ConfigError, WeightsError, TemplateError: before any rollout.
  """
  hush()
  worlds.check_method(config.method, config.scoring, has_referee=bool(config.referee.model))
  endpoints.probe(config)
  loaded = policy.load(config.model, config.mesh)
  with jax.set_mesh(loaded.mesh), rarely_interrupted():
    return blocking.run(_evaluate(config, loaded, tasks))


async def _evaluate(config: RLConfig, loaded: policy.Loaded, tasks: Sequence[Task]) -> Evaluation:
  asked = endpoints.connect(config)
  score = functools.partial(worlds.scorer(config, asked, disturbed=False), seed=0)
  world = worlds.rollouts(config, loaded, loaded.params, asked, purpose='evaluate')
  try:
    await world.sampler.publish(loaded.params, 0)
    found, trajectories, scores = await roll_greedily(tasks, world, score, seed=f'{config.seed}/heldout')
    return settle([found]) | asked.numbers(), trajectories, scores
  finally:
    await world.sampler.close()
    await asked.close()


async def roll_greedily(
  tasks: Sequence[Task], world: Rollouts, score: Scorer, *, seed: str, places: Sequence[int] | None = None
) -> tuple[Tally, list[Trajectory], list[Scores]]:
  """One greedy rollout per task: their tally, trajectories and scores.

  Beside what `describe` tells, `parse_rate` is the share of rollouts that called a tool and whose every block of calls
  could be read.

  Args:
    places: the number of each task, where these are some of more.
  """
  greedy = dataclasses.replace(world.decoding, temperature=0.0, top_p=1.0)
  world = dataclasses.replace(world, decoding=greedy)
  trajectories, scores = await collect(tasks, world, score, group_size=1, seed=seed, places=places)
  found = tally(trajectories, scores)
  count_mean(found, 'parse_rate', (parses(trajectory) for trajectory in trajectories))
  return found, trajectories, scores


def parses(trajectory: Trajectory) -> float | None:
  """1 if the rollout called a tool and every block of calls was readable, else 0; None if it failed.

  Whether a call that can be read also fits its tool's schema is the process score's to say.
  """
  if trajectory.status is Status.FAILED:
    return None
  return float(bool(trajectory.tool_turns) and not format_violated(trajectory.turns))
