"""What a run says about itself: numbers of the rollouts, and the writers of metrics.jsonl, TensorBoard and the bar."""

import collections
import contextlib
import json
import math
import os
import pathlib
import statistics
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import tensorboardX
import tqdm

from slca_jax.dialogue import Scores, Status, Trajectory
from slca_jax.rollout.underway import Span, unwatched

Numbers = dict[str, float]
# By name what is added up, over rollouts and hosts: (total, None) of a count, (total, how many) of a mean; of a count
# whose name ends in max the largest is taken. Ready for JSON.
Tally = dict[str, tuple[float, float | None]]
_COUNTS = ('skipped_updates', '/tokens', '/dead_groups')


def settle(tallies: Sequence[Mapping[str, Sequence[float | None]]]) -> Numbers:
  """The numbers of several tallies taken together, as one of everything would give them."""
  out: Numbers = {}
  for name in dict.fromkeys(name for tally in tallies for name in tally):
    parts = [tally[name] for tally in tallies if name in tally]
    total = math.fsum(part[0] or 0 for part in parts)
    counts = [part[1] for part in parts if part[1] is not None]
    largest = max(part[0] or 0 for part in parts) if name.endswith('max') else total
    out[name] = total / max(1, sum(counts)) if counts else largest
  return out


def describe(trajectories: Sequence[Trajectory], scores: Sequence[Scores]) -> Numbers:
  """Means and counts of a set of rollouts. What nobody has is left out; it is not zero."""
  return settle([tally(trajectories, scores)])


def tally(trajectories: Sequence[Trajectory], scores: Sequence[Scores]) -> Tally:
  """What `describe` tells, such that several sets can be taken together."""
  out: Tally = {f'status/{s.value}': (sum(t.status is s for t in trajectories), None) for s in Status}
  alive = [(t, s) for t, s in zip(trajectories, scores, strict=True) if t.status is not Status.FAILED]
  means = {
    'reward/tool': (s.tool for _, s in alive),
    'reward/summary': (s.summary for _, s in alive),
    'reward/outcome': (s.outcome for _, s in alive),
    'reported/tool': (_reported(s, 'tool') for _, s in alive),
    'reported/summary': (_reported(s, 'summary') for _, s in alive),
    'reward/guarded': (float(s.guarded) for _, s in alive),
    'rollout/turns': (len(t.turns) for t, _ in alive),
    'rollout/tool_turns': (len(t.tool_turns) for t, _ in alive),
    'rollout/calls': (sum(len(turn.calls) for turn in t.turns) for t, _ in alive),
    'rollout/prompt_tokens': (len(t.prompt) for t, _ in alive),
    'rollout/sampled_tokens': (sum(len(turn.tokens) for turn in t.turns) for t, _ in alive),
    'rollout/observation_tokens': (sum(len(turn.reply) for turn in t.turns) for t, _ in alive),
    'rollout/refused_calls': (sum(not o.ok for o in t.observations) for t, _ in alive),
    'rollout/cut_observations': (sum(o.cut for o in t.observations) for t, _ in alive),
    'rollout/no_call': (float(not t.tool_turns) for t, _ in alive),
  }
  for name, values in means.items():
    count_mean(out, name, values)
  parts = [_numbers(s.why) for _, s in alive]
  for key in sorted({key for part in parts for key in part}):
    count_mean(out, f'score/{key}', (part.get(key) for part in parts))
  out['reward/absent'] = sum(not (_known(s.tool) and _known(s.summary)) for _, s in alive), None
  faults = collections.Counter(error for t, _ in alive for turn in t.turns for error in turn.parsed.errors)
  return out | {f'fault/{name}': (float(count), None) for name, count in sorted(faults.items())}


def staleness(trajectories: Sequence[Trajectory], version: int, dropped: int) -> Tally:
  """How old the tokens are that a trainer with this version learns from, in versions of the weights.

  `stale/mixed` is the share of rollouts that several versions sampled; `stale/dropped_groups` were too old to be used.
  """
  ages, tokens, mixed = [], [], 0
  for trajectory in trajectories:
    spans = [span for turn in trajectory.turns for span in turn.versions]
    mixed += len({sampled_by for sampled_by, _ in spans}) > 1
    ages += [version - sampled_by for sampled_by, _ in spans]
    tokens += [count for _, count in spans]
  total = sum(age * count for age, count in zip(ages, tokens, strict=True))
  return {
    'stale/mean': (total, sum(tokens)),
    'stale/max': (float(max(ages, default=0)), None),
    'stale/mixed': (mixed, len(trajectories)),
    'stale/dropped_groups': (float(dropped), None),
  }


def _reported(scores: Scores, channel: str) -> float | None:
  """A score as a report shows it: the penalty of a guarded rollout counts as 0."""
  return scores.why.get('reported', {}).get(channel)


def _numbers(why: Mapping[str, Any]) -> Numbers:
  """The numbers among the reasons of a score: flags, the parts of the process score and of a reward of one's own."""
  flat: Numbers = {key: value for key, value in why.items() if isinstance(value, int | float)}
  flat |= {f'own/{key}': value for key, value in why.get('parts', {}).items()}
  return flat | {key: value for key, value in why.get('process', {}).items() if isinstance(value, int | float)}


def count_mean(out: Tally, name: str, values: Iterable[float | None]) -> None:
  """Sets `out[name]` to the sum and the number of the values that are there; leaves it out if there are none."""
  known = [float(value) for value in values if _known(value)]
  if known:
    out[name] = math.fsum(known), len(known)


def put_mean(out: Numbers, name: str, values: Iterable[float | None]) -> None:
  """Sets `out[name]` to the mean of the numbers that are there; leaves it out if there are none."""
  known = [float(value) for value in values if _known(value)]
  if known:
    out[name] = statistics.fmean(known)


def over_updates(found: Sequence[Mapping[str, Any]]) -> Numbers:
  """The numbers of a step from those of its updates: counts add up, maxima keep the largest, the rest is averaged.

  What is measured on tokens of which an update had none, says its `…/tokens`, is left out of it.
  """
  known = [_without_the_unmeasured({name: float(value) for name, value in numbers.items()}) for numbers in found]

  def one(name: str) -> float:
    values = [numbers[name] for numbers in known if name in numbers]
    if name.endswith('_max'):
      return max(values)
    return sum(values) if name.endswith(_COUNTS) else sum(values) / len(values)

  return {name: one(name) for name in dict.fromkeys(name for numbers in known for name in numbers)}


def _without_the_unmeasured(numbers: Numbers) -> Numbers:
  empty = {name.removesuffix('/tokens') for name, value in numbers.items() if name.endswith('/tokens') and not value}
  measured = lambda name: 'group' in name or not empty.intersection(_measured_on(name))
  return {name: value for name, value in numbers.items() if name.endswith('/tokens') or measured(name)}


def _measured_on(name: str) -> tuple[str, ...]:
  """Whose tokens a number comes from: a conflict is one between the segments of a rollout."""
  if name == 'conflict/tool_tokens_turned':
    return ('tool',)
  return ('tool', 'summary') if name.startswith('conflict/') else (name.rpartition('/')[0],)


def _known(value: float | None) -> TypeGuard[float]:
  """Whether there is a number; NaN is none."""
  return value is not None and not math.isnan(value)


class Writer:
  """Appends metrics to `metrics.jsonl` and TensorBoard. A resumed run first drops what lies beyond its step.

  Args:
    silent: write nothing, as all hosts but the first.
  """

  def __init__(self, folder: pathlib.Path, *, resume_at: int = 0, silent: bool = False):
    self._file = None
    if silent:
      return
    folder.mkdir(parents=True, exist_ok=True)
    self._path = folder / 'metrics.jsonl'
    self._drop_from(resume_at)
    self._file = open(self._path, 'a', encoding='utf-8')  # noqa: SIM115 (lives as long as the run)
    self._board = tensorboardX.SummaryWriter(str(folder / 'tensorboard'), purge_step=resume_at or None)

  def write(self, step: int, numbers: Mapping[str, float]) -> None:
    """One line: the step and the numbers; a number that is not finite is written as null."""
    if self._file is None:
      return
    finite = {name: value if math.isfinite(value) else None for name, value in numbers.items()}
    self._file.write(json.dumps({'step': step, **finite}) + '\n')
    self._file.flush()
    for name, value in numbers.items():
      self._board.add_scalar(name, value, step)

  def close(self) -> None:
    """Ends both files."""
    if self._file is not None:
      self._file.close()
      self._board.close()

  def _drop_from(self, step: int) -> None:
    if not self._path.exists():
      return
    kept = [line for line in self._path.read_text('utf-8').splitlines(True) if _step_of(line) < step]
    part = self._path.with_suffix('.part')
    part.write_text(''.join(kept), 'utf-8')
    os.replace(part, self._path)


def _step_of(line: str) -> float:
  try:
    return json.loads(line)['step']
  except (ValueError, KeyError):
    return math.inf  # a line that a kill cut short


class Bar:
  """A progress bar over steps with time left and a few of the numbers."""

  def __init__(
    self, steps: int, *, done: int = 0, title: str = '', shown: Mapping[str, str] | None = None, silent: bool = False
  ):
    self._shown = dict(shown or {})
    self._bar = tqdm.tqdm(
      total=steps, initial=done, desc=title, unit='step', dynamic_ncols=True, mininterval=1.0, disable=silent
    )

  def advance(self, numbers: Mapping[str, float]) -> None:
    """One step further."""
    known = {label: f'{numbers[name]:.3g}' for label, name in self._shown.items() if name in numbers}
    self._bar.set_postfix(known, refresh=False)
    self._bar.update()

  def close(self) -> None:
    """Leaves the bar as it stands."""
    self._bar.close()


class Stopwatch:
  """Seconds by phase since the last reading: `with watch('update'): …`.

  Args:
    span: opens a span of the phase's name in a trace.
  """

  def __init__(self, span: Span = unwatched):
    self._span = span
    self._began: float | None = None
    self._seconds: collections.defaultdict[str, float] = collections.defaultdict(float)

  @contextlib.contextmanager
  def __call__(self, phase: str) -> Iterator[None]:
    """Counts what runs inside as that phase."""
    start = time.perf_counter()
    self._began = start if self._began is None else self._began
    try:
      with self._span(phase):
        yield
    finally:
      self._seconds[phase] += time.perf_counter() - start

  def read(self) -> Numbers:
    """Seconds per phase as `time/PHASE`; the clock starts anew."""
    out = {f'time/{phase}': seconds for phase, seconds in self._seconds.items()}
    self._seconds.clear()
    return out

  def lap(self) -> float:
    """Seconds since the last call, or since the first phase began."""
    now = time.perf_counter()
    before, self._began = now if self._began is None else self._began, now
    return now - before


def breakdown(times: Numbers, whole: float, busy: Mapping[str, float], waited: Mapping[str, float]) -> Numbers:
  """Where the seconds of a step went. All but `time/step`, `time/collect` and `time/busy/…` add up to the step.

  Args:
    times: `time/PHASE` of the phases, which follow each other; `time/collect` is split into what was waited for.
    whole: seconds of the step.
    busy, waited: as `Underway.read` tells.
  """
  parts = {name: seconds for name, seconds in times.items() if name != 'time/collect'}
  parts |= {f'time/{kind}': seconds for kind, seconds in waited.items()}
  idle = max(0.0, whole - sum(parts.values()))
  under_way = {f'time/busy/{kind}': seconds for kind, seconds in busy.items()}
  return times | parts | under_way | {'time/idle': idle, 'time/step': whole}
