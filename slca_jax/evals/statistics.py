"""How sure a score is: intervals of means over tasks, differences between runs, spreads over runs, pass@k and pass^k.

A result that could not be had is NaN here and takes part in nothing; how many there were is always told.
"""

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TypeGuard

import numpy as np

from slca_jax.config import require

_CELLS = 4_000_000  # draws that are held at once


@dataclasses.dataclass(frozen=True, slots=True)
class Sampling:
  """How bootstrap intervals are made: percentiles of means over tasks that are drawn anew with replacement.

  Attributes:
    resamples: how often the tasks are drawn.
    confidence: share of the means that lie in an interval.
    seed: of the draws.
  """

  resamples: int = 10_000
  confidence: float = 0.95
  seed: int = 0

  def __post_init__(self):
    require(self.resamples >= 100, f'resamples is {self.resamples}; an interval needs at least 100')
    require(0 < self.confidence < 1, f'confidence is {self.confidence}; it lies between 0 and 1, 0.95 is usual')


SAMPLING = Sampling()


@dataclasses.dataclass(frozen=True, slots=True)
class Estimate:
  """A mean over tasks and its interval; None where there are too few: no task for a mean, one for an interval.

  Attributes:
    count: tasks that have the result.
    absent: tasks that do not.
  """

  mean: float | None
  low: float | None
  high: float | None
  count: int
  absent: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Difference:
  """The second run's mean less the first's over the tasks that both have, its interval, and what it comes from.

  Attributes:
    first, second: the means of the two over these tasks.
    better, worse: tasks where the second run scores higher, lower.
    unpaired: tasks that only one of them has a result for.
  """

  estimate: Estimate
  first: float | None
  second: float | None
  better: int
  worse: int
  unpaired: int

  @property
  def is_clear(self) -> bool:
    """Whether the interval leaves out 0."""
    low, high = self.estimate.low, self.estimate.high
    return low is not None and high is not None and not low <= 0 <= high


@dataclasses.dataclass(frozen=True, slots=True)
class Spread:
  """Mean and sample standard deviation over runs; of one run there is no deviation."""

  mean: float | None
  std: float | None
  count: int


def pass_at(tries: int, passed: int, k: int) -> float | None:
  """pass@k, the chance that at least one of k rollouts of a task passes, without bias; None for fewer than k tries.

  1 − C(n − c, k) / C(n, k), the share of the sets of k among the n tries that hold one of the c that passed.

  Chen et al. (arXiv:2107.03374), eq. 1.
  """
  return None if tries < k else 1 - math.comb(tries - passed, k) / math.comb(tries, k)


def pass_all(tries: int, passed: int, k: int) -> float | None:
  """pass^k, the chance that all of k rollouts of a task pass, without bias; None for fewer than k tries.

  C(c, k) / C(n, k)

  τ-bench (arXiv:2406.12045), section 4.
  """
  return None if tries < k else math.comb(passed, k) / math.comb(tries, k)


def bootstrap(values_NM: np.ndarray, sampling: Sampling = SAMPLING) -> list[Estimate]:
  """The mean of each of M results over N tasks and its percentile interval; NaN is absent.

  The same draws serve all results, so two results of the same tasks can be compared.
  """
  values_NM = np.asarray(values_NM, np.float64)
  known_NM = np.isfinite(values_NM)
  counts = known_NM.sum(0)
  means_SM = _resampled(np.where(known_NM, values_NM, 0), known_NM.astype(np.float64), sampling)
  out = []
  for column, count in enumerate(counts.tolist()):
    absent = len(values_NM) - count
    if not count:
      out.append(Estimate(None, None, None, 0, absent))
      continue
    mean = math.fsum(values_NM[known_NM[:, column], column]) / count
    low, high = _interval(means_SM[:, column], sampling.confidence) if count > 1 else (None, None)
    out.append(Estimate(mean, low, high, count, absent))
  return out


def compare(
  first: Mapping[str, float | None], second: Mapping[str, float | None], sampling: Sampling = SAMPLING
) -> Difference:
  """How much better the second run does, by the tasks' ids; an interval of the differences, task by task.

  Pairs take away what is common to both: how hard the drawn tasks are.
  """
  known = [{task: value for task, value in run.items() if _is_known(value)} for run in (first, second)]
  both = [task for task in known[0] if task in known[1]]
  a, b = (np.array([run[task] for task in both], np.float64) for run in known)
  [estimate] = bootstrap((b - a)[:, None], sampling)
  unpaired = len({*known[0], *known[1]}) - len(both)
  mean = lambda values: float(values.mean()) if len(values) else None
  return Difference(estimate, mean(a), mean(b), int((b > a).sum()), int((b < a).sum()), unpaired)


def over_runs(values: Sequence[float | None]) -> Spread:
  """Mean and sample deviation of the runs that have the result."""
  known = [float(value) for value in values if _is_known(value)]
  if not known:
    return Spread(None, None, 0)
  return Spread(statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None, len(known))


def _is_known(value: float | None) -> TypeGuard[float]:
  return value is not None and math.isfinite(value)


def _resampled(values_NM: np.ndarray, known_NM: np.ndarray, sampling: Sampling) -> np.ndarray:
  """Means [resamples, M] over tasks drawn with replacement; NaN where a draw holds no known result."""
  tasks, rng, out = len(values_NM), np.random.default_rng(sampling.seed), []
  if not tasks:
    return np.full((0, values_NM.shape[1]), np.nan)
  at_once = max(1, _CELLS // tasks)
  for start in range(0, sampling.resamples, at_once):
    rows = min(at_once, sampling.resamples - start)
    drawn = rng.integers(0, tasks, (rows, tasks)) + np.arange(rows)[:, None] * tasks
    times_SN = np.bincount(drawn.ravel(), minlength=rows * tasks).reshape(rows, tasks).astype(np.float64)
    with np.errstate(invalid='ignore'):
      out.append((times_SN @ values_NM) / (times_SN @ known_NM))
  return np.concatenate(out)


def _interval(means_S: np.ndarray, confidence: float) -> tuple[float, float]:
  tail = 50 * (1 - confidence)
  low, high = np.nanpercentile(means_S, [tail, 100 - tail])
  return float(low), float(high)
