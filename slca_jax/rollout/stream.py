"""Groups of rollouts, collected in the order of the tasks while the trainer works on earlier ones.

Groups are numbered as the order deals their tasks: group n is the (n mod prompts)-th task of batch n // prompts. A step
takes the oldest `prompts` groups that are complete, so one slow rollout holds up its own group and no other.
"""

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

from slca_jax.dialogue import Scores, Task, Trajectory
from slca_jax.errors import SamplerError
from slca_jax.rollout.collect import Group, Rollouts, Scorer, roll_group, seed_of


class Position(TypedDict):
  """Which groups are settled, that is given or dropped: all before `next`, and those of `beyond`. Ready for JSON."""

  next: int
  beyond: list[int]


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
  """The rollouts of one step in order of group, then index, and how many groups were too old to be trained on."""

  trajectories: list[Trajectory]
  scores: list[Scores]
  dropped: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Job:
  """A group in the making, and the version of the weights that was published when it was started."""

  job: asyncio.Task[Group]
  version: int


class Stream:
  """A source of batches that can keep more of them in the making than the one that is waited for.

  With a `max_staleness` of 0 a batch is started when it is asked for and complete when it is given: strictly on-policy.
  With η > 0 the rollouts of the next η batches go on while the trainer works, and may be sampled by several versions of
  the weights; a group with a token older than η versions is dropped and counted.

  Args:
    deal: batch number -> its tasks, `prompts` of them.
    score: (trajectory, seed) -> its scores.
    position: where an earlier stream stopped, as `position` told.
  """

  def __init__(
    self,
    deal: Callable[[int], Sequence[Task]],
    world: Rollouts,
    score: Callable[..., Any],
    *,
    prompts: int,
    group_size: int,
    seed: int,
    max_staleness: int = 0,
    position: Position | None = None,
  ):
    self._deal, self._world, self._score = deal, world, score
    self._prompts, self._group_size, self._seed, self._lag = prompts, group_size, seed, max_staleness
    self._low, self._beyond = (position['next'], set(position['beyond'])) if position else (0, set[int]())
    self._jobs: dict[int, _Job] = {}
    self._gate: asyncio.Semaphore | None = None

  @property
  def position(self) -> Position:
    """Where another stream could go on."""
    return {'next': self._low, 'beyond': sorted(self._beyond)}

  @property
  def outstanding(self) -> int:
    """Groups that are in the making or wait to be taken."""
    return len(self._jobs)

  async def take(self, version: int, *, ahead: int | None = None) -> Taken:
    """The next batch, for a trainer whose weights have this version; the groups are numbered anew from 0.

    If the call is cancelled, nothing is lost: the next one goes on.

    Args:
      version: of the weights that were published last.
      ahead: how many further batches are made meanwhile, `max_staleness` if None; fewer towards the end of a run.

    Raises:
      SamplerError: the engine says that it samples with weights older than those last published.
    """
    dropped, wanted = 0, (1 + (self._lag if ahead is None else ahead)) * self._prompts
    while True:
      self._launch(version, wanted)
      whole = [number for number, job in sorted(self._jobs.items()) if job.job.done()]
      stale = [number for number in whole if version - self._oldest(number, version) > self._lag]
      for number in stale:
        logging.warning('group %d was sampled too long ago to be trained on at version %d', number, version)
        self._settle(number)
      dropped += len(stale)
      fresh = [number for number in whole if number not in stale][: self._prompts]
      if len(fresh) == self._prompts:
        groups = [self._settle(number) for number in fresh]
        return Taken(*_joined(groups), dropped)
      if not stale:
        pending = [job.job for job in self._jobs.values() if not job.job.done()]
        await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)

  async def close(self) -> None:
    """Cancels what is in the making; a stream made from `position` starts it again."""
    jobs, self._jobs = [job.job for job in self._jobs.values()], {}
    for job in jobs:
      job.cancel()
    await asyncio.gather(*jobs, return_exceptions=True)

  def _launch(self, version: int, wanted: int) -> None:
    if self._gate is None:
      self._gate = asyncio.Semaphore(self._world.sampler.concurrency)
    number = self._low
    while len(self._jobs) < wanted:
      if number not in self._beyond and number not in self._jobs:
        self._jobs[number] = _Job(asyncio.create_task(self._roll(number, self._gate)), version)
      number += 1

  async def _roll(self, number: int, gate: asyncio.Semaphore) -> Group:
    batch, place = divmod(number, self._prompts)
    seed = f'{self._seed}/{batch}'
    score: Scorer = functools.partial(self._score, seed=seed_of(seed, 'judge'))
    task = self._deal(batch)[place]
    return await roll_group(task, place, self._world, score, gate, group_size=self._group_size, seed=seed)

  def _oldest(self, number: int, version: int) -> int:
    job = self._jobs[number]
    versions = [v for t, _ in job.job.result() for turn in t.turns for v, _ in turn.versions]
    oldest = min(versions, default=version)
    if oldest < job.version:
      raise SamplerError(
        f'the engine sampled with version {oldest} of the weights after version {job.version} was published; '
        'its weights or its cache are stale'
      )
    return oldest

  def _settle(self, number: int) -> Group:
    self._beyond.add(number)
    while self._low in self._beyond:
      self._beyond.remove(self._low)
      self._low += 1
    return self._jobs.pop(number).job.result()


def _joined(groups: Sequence[Group]) -> tuple[list[Trajectory], list[Scores]]:
  rolled = [(dataclasses.replace(t, group=place), s) for place, group in enumerate(groups) for t, s in group]
  return [trajectory for trajectory, _ in rolled], [scores for _, scores in rolled]
