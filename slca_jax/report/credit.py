"""What each method would give to every run of the same rollouts, by the estimators that training uses.

An advantage is the same for all tokens of a run, so each run stands in the batch as a single token.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from slca_jax import blocking
from slca_jax.arrays import NONE, SUMMARY, TOOL
from slca_jax.dialogue import Scores, Status, Trajectory
from slca_jax.ops.estimators import estimator_of
from slca_jax.ops.segments import Unfinished, segment_runs
from slca_jax.report.reading import Sampled, Settings
from slca_jax.rewards.judge import Verdict
from slca_jax.rewards.protocols import needs_referee, protocol_of, score
from slca_jax.rollout.batching import to_rewards

LABELS = {'slca': 'SLCA', 'grpo': 'GRPO', 'toolpo': 'ToolPO', 'rltr': 'RLTR', 'tara': 'TARA'}
RULES = {
  'slca': 'tool tokens: Â_tool · summary tokens: Â_sum',
  'grpo': 'all tokens: Â of R_tool + R_sum',
  'toolpo': 'all tokens: Â of the outcome · tool tokens also: Â of the action reward',
  'rltr': 'tool tokens: Â of the plan · summary tokens: 0',
  'tara': 'every turn: its own Â, and half of what a right one led to',
}
# Which channels a method's advantages come from.
_NEEDS = {'slca': ('tool', 'summary'), 'grpo': ('outcome',), 'toolpo': ('tool', 'outcome'), 'rltr': ('tool',)}
SEGMENT_NAMES = {NONE: 'none', TOOL: 'tool', SUMMARY: 'summary'}


@dataclasses.dataclass(frozen=True, slots=True)
class Credit:
  """One method on many rollouts.

  Attributes:
    scores: the rewards it would be given, per rollout.
    advantages: per rollout, of each run; all tokens of a run have this one.
    absent: why it cannot be shown, '' if it can.
  """

  name: str
  label: str
  rule: str
  scores: tuple[Scores, ...]
  advantages: tuple[tuple[float, ...], ...]
  absent: str = ''


@dataclasses.dataclass(frozen=True, slots=True)
class _Recalled:
  """A judge that repeats the verdict it gave in the run."""

  verdict: Verdict

  async def rate(self, trajectory: Trajectory, *, seed: int) -> Verdict:
    """The verdict."""
    return self.verdict


def credits_of(sampled: Sequence[Sampled], settings: Settings) -> list[Credit]:
  """The run's own method first, as it was trained, then the others of LABELS at their defaults.

  The run's own rewards are the stored ones. Those of the others follow from the stored rollout and the stored verdict
  on its answer; nobody is asked anything.
  """
  own = settings.method.estimator
  names = [own, *(name for name in LABELS if name != own)]
  known: dict[Any, tuple[Scores, ...]] = {protocol_of(settings.protocol): tuple(one.scores for one in sampled)}
  scores = []
  for name in (settings.protocol, *names[1:]):
    if protocol_of(name) not in known:
      known[protocol_of(name)] = blocking.run(_scores(sampled, name, settings))
    scores.append(known[protocol_of(name)])
  tables = _advantages(sampled, scores, names, settings)
  return [
    Credit(
      name,
      LABELS.get(name, name),
      RULES.get(name, 'see ops/estimators.py'),
      scores[place],
      tables[place],
      _absent(name, scores[place], settings) if place else '',
    )
    for place, name in enumerate(names)
  ]


def runs_of(trajectory: Trajectory) -> list[list[int]]:
  """The turns of each run: one, unless nothing that the world wrote stands between two. None for a failed rollout."""
  runs: list[list[int]] = []
  begun = False
  for index, turn in enumerate(() if trajectory.status is Status.FAILED else trajectory.turns):
    if turn.tokens:
      if not begun:
        runs.append([])
      runs[-1].append(index)
      begun = True
    begun = begun and not turn.reply
  return runs


def run_rows(trajectories: Sequence[Trajectory]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
  """(sampled_BT, rollout_BT, finished_R) with one row per rollout and one sampled token per run, at even places."""
  counts = np.array([len(runs_of(trajectory)) for trajectory in trajectories])
  place = np.arange(2 * max(1, counts.max(initial=0)))
  inside_BT = place[None, :] < 2 * counts[:, None]
  sampled_BT = inside_BT & (place % 2 == 0)[None, :]
  rollout_BT = np.where(inside_BT, np.arange(len(counts))[:, None], -1).astype(np.int32)
  finished_R = np.array([trajectory.status is Status.FINISHED for trajectory in trajectories], bool)
  return sampled_BT, rollout_BT, finished_R


def segments_of(trajectories: Sequence[Trajectory], *, unfinished: Unfinished) -> list[tuple[str, ...]]:
  """'tool', 'summary' or 'none' of each run of each rollout."""
  kinds = jax.jit(lambda *rows: segment_runs(*rows, unfinished=unfinished).segment_BT)(*run_rows(trajectories))
  return [tuple(SEGMENT_NAMES[int(kind)] for kind in row) for row in _by_run(kinds, trajectories)]


def _advantages(
  sampled: Sequence[Sampled], scores: Sequence[tuple[Scores, ...]], names: Sequence[str], settings: Settings
) -> list[tuple[tuple[float, ...], ...]]:
  """Of each method, per rollout and run; the first one with the run's own options. One program for all of them."""
  trajectories = [one.trajectory for one in sampled]
  met = {key: i for i, key in enumerate(dict.fromkeys(one.key[:2] for one in sampled))}
  groups = [met[one.key[:2]] for one in sampled]
  rewards = [to_rewards(trajectories, told, settings.turns, groups=groups) for told in scores]
  options = [settings.method.options, *({} for _ in names[1:])]

  @jax.jit
  def estimate(rewards: Any, rows: Any) -> Any:
    segments = segment_runs(*rows, unfinished=settings.objective.unfinished)
    return [
      estimator_of(name)(told, segments, rows[1], **chosen)
      for name, told, chosen in zip(names, rewards, options, strict=True)
    ]

  tables = estimate(rewards, run_rows(trajectories))
  return [tuple(tuple(map(float, row)) for row in _by_run(table, trajectories)) for table in tables]


def _by_run(table_BT: jax.Array, trajectories: Sequence[Trajectory]) -> list[np.ndarray]:
  """Per rollout, the entries of its runs."""
  runs = np.asarray(table_BT)[:, ::2]
  return [row[: len(runs_of(trajectory))] for row, trajectory in zip(runs, trajectories, strict=True)]


async def _scores(sampled: Sequence[Sampled], protocol: str, settings: Settings) -> tuple[Scores, ...]:
  if needs_referee(protocol, settings.scoring):
    return (Scores(),) * len(sampled)

  async def one(rollout: Sampled) -> Scores:
    verdict = rollout.scores.why.get('verdict')
    if verdict is None:
      return Scores()
    judge = _Recalled(Verdict(**verdict))
    return await score(rollout.trajectory, judge, protocol=protocol, options=settings.scoring)

  return tuple([await one(rollout) for rollout in sampled])


def _absent(name: str, scores: Sequence[Scores], settings: Settings) -> str:
  if needs_referee(name, settings.scoring):
    return f'{LABELS.get(name, name)} asks a second judge here, and this run kept no verdict of one'
  missing = [
    channel for channel in _NEEDS.get(name, ()) if all(not _known(getattr(score, channel)) for score in scores)
  ]
  return f'no rollout has a reward in the channel {missing[0]}' if missing else ''


def _known(value: float | None) -> bool:
  return value is not None and math.isfinite(value)
