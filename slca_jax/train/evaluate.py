"""Greedy rollouts of a checkpoint on tasks, scored: what a policy can do, before, between and after training."""

import asyncio
import dataclasses
import functools
from collections.abc import Sequence

import jax

from slca_jax.dialogue import Scores, Status, Task, Trajectory
from slca_jax.rewards.outcome import format_violated
from slca_jax.rollout.collect import Rollouts, collect
from slca_jax.train import policy, worlds
from slca_jax.train.metrics import Numbers, describe, put_mean
from slca_jax.train.settings import RLConfig


def evaluate(config: RLConfig, tasks: Sequence[Task]) -> tuple[Numbers, list[Trajectory], list[Scores]]:
  """One greedy rollout per task by the checkpoint `config.model.path`: numbers, trajectories and scores.

  Limits, environment and protocol are the config's; the judge is neither noisy nor biased. Beside `describe`,
  `parse_rate` is the share of rollouts that called a tool and whose every call block could be read.

  Raises:
    ConfigError, WeightsError, TemplateError: before any rollout.
  """
  worlds.check_method(config.method)
  score = functools.partial(worlds.scorer(config, disturbed=False), seed=0)
  loaded = policy.load(config.model, config.mesh)
  with jax.set_mesh(loaded.mesh):
    found = asyncio.run(_collect(config, loaded, tasks, score))
  numbers = describe(*found)
  put_mean(numbers, 'parse_rate', (parses(trajectory) for trajectory in found[0]))
  return numbers, *found


def parses(trajectory: Trajectory) -> float | None:
  """1 if the rollout called a tool and every block of calls was readable, else 0; None if it failed.

  Whether a call that can be read also fits its tool's schema is the process score's to say.
  """
  if trajectory.status is Status.FAILED:
    return None
  return float(bool(trajectory.tool_turns) and not format_violated(trajectory.turns))


async def _collect(
  config: RLConfig, loaded: policy.Loaded, tasks: Sequence[Task], score
) -> tuple[list[Trajectory], list[Scores]]:
  greedy = dataclasses.replace(config.rollout.decoding, temperature=0.0, top_p=1.0)
  sampler = worlds.sampler(config, loaded, loaded.params)
  world = Rollouts(sampler, loaded.template, worlds.opener(config.environment), config.rollout.limits, greedy)
  try:
    return await collect(tasks, world, score, group_size=1, seed=f'{config.seed}/heldout')
  finally:
    await sampler.close()
