"""Groups of rollouts, collected in the order of the tasks while the trainer works on earlier ones.

Groups are numbered as the order deals their tasks: group n is the (n mod prompts)-th task of batch n // prompts. A step
takes the oldest `prompts` groups that are complete, so one slow rollout holds up its own group and no other.

Of several hosts each has a stream of its own, which makes the groups at its places of every batch. Numbers, seeds and
positions are those of the whole, so a run may go on with another number of hosts.
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


def join(positions: Sequence[Position], places: Sequence[Sequence[int]], prompts: int) -> Position:
  """Where the streams of all hosts stand together; `places` are those of each."""
  told = [(position, own) for position, own in zip(positions, places, strict=True) if own]
  low = min(position['next'] for position, _ in told)
  beyond = {
    number
    for position, own in told
    for number in (*range(low, position['next']), *position['beyond'])
    if number % prompts in own
  }
  while low in beyond:
    beyond.remove(low)
    low += 1
  return {'next': low, 'beyond': sorted(beyond)}


@dataclasses.dataclass(frozen=True, slots=True)
class Taken:
  """The rollouts of one step in order of group, then index, and how many groups were too old to be trained on.

  A trajectory's group is its place in the step's batch.
  """

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
    position: where an earlier stream stopped, as `position` told, or several of them, as `join` does.
    places: which places of a batch are made here; all if None.
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
    places: Sequence[int] | None = None,
  ):
    self._deal, self._world, self._score = deal, world, score
    self._prompts, self._group_size, self._seed, self._lag = prompts, group_size, seed, max_staleness
    self._places = tuple(range(prompts) if places is None else places)
    self._low, self._beyond = (position['next'], set(position['beyond'])) if position else (0, set[int]())
    self._skip()
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
    """The next batch, or what of it is made here, for a trainer whose weights have this version.

    If the call is cancelled, nothing is lost: the next one goes on.

    Args:
      version: of the weights that were published last.
      ahead: how many further batches are made meanwhile, `max_staleness` if None; fewer towards the end of a run.

    Raises:
      SamplerError: the engine says that it samples with weights older than those last published.
    """
    size = len(self._places)
    dropped, wanted = 0, (1 + (self._lag if ahead is None else ahead)) * size
    while True:
      self._launch(version, wanted)
      whole = [number for number, job in sorted(self._jobs.items()) if job.job.done()]
      stale = [number for number in whole if version - self._oldest(number, version) > self._lag]
      for number in stale:
        logging.warning('group %d was sampled too long ago to be trained on at version %d', number, version)
        self._settle(number)
      dropped += len(stale)
      fresh = [number for number in whole if number not in stale][:size]
      if len(fresh) == size:
        groups = [self._settle(number) for number in fresh]
        return Taken(*_joined(groups, self._places), dropped)
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
      if self._is_ours(number) and number not in self._beyond and number not in self._jobs:
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
    self._skip()
    return self._jobs.pop(number).job.result()

  def _skip(self) -> None:
    while self._places and (self._low in self._beyond or not self._is_ours(self._low)):
      self._beyond.discard(self._low)
      self._low += 1

  def _is_ours(self, number: int) -> bool:
    return number % self._prompts in self._places


def _joined(groups: Sequence[Group], places: Sequence[int]) -> tuple[list[Trajectory], list[Scores]]:
  rolled = [
    (dataclasses.replace(t, group=place), s) for place, group in zip(places, groups, strict=True) for t, s in group
  ]
  return [trajectory for trajectory, _ in rolled], [scores for _, scores in rolled]
