"""What the runs of a study measured, read from their folders, and contrasts between methods."""

import dataclasses
import json
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slca_jax.evals import results
from slca_jax.evals.settings import GREEDY
from slca_jax.evals.statistics import Estimate, Spread, bootstrap, over_runs
from slca_jax.evals.study_claims import Claim
from slca_jax.evals.study_settings import START, Job, StudyConfig, runs

SFT = 'sft'
Scores = Mapping[str, Mapping[str, float | None]]  # measure: task: score


@dataclasses.dataclass(frozen=True, slots=True)
class Run:
  """A finished run: held-out scores by measure and task, and numbers of its training.

  Attributes:
    tasks: a digest of the held-out tasks; of runs that share it, equal ids are the same tasks.
  """

  scores: Scores
  training: Mapping[str, float]
  tasks: str = ''


@dataclasses.dataclass(frozen=True)
class Study:
  """All finished runs by (regime, method, seed); the start of a seed stands in every regime as method SFT."""

  config: StudyConfig
  runs: Mapping[tuple[str, str, int], Run]

  def regimes(self) -> list[str]:
    """Those of the grid with a finished run, in order."""
    return [r for r in self.config.regimes if any(regime == r and method != SFT for regime, method, _ in self.runs)]

  def methods(self, regime: str) -> list[str]:
    """The methods with a finished run, the start first."""
    there = {method for known, method, _ in self.runs if known == regime}
    named = dict.fromkeys((SFT, *self.config.methods, *self.config.sweep_methods))
    return [method for method in named if method in there]

  def seeds(self, regime: str, methods: Sequence[str]) -> list[int]:
    """Those in which every one of the methods is done."""
    return [seed for seed in self.config.seeds if all((regime, method, seed) in self.runs for method in methods)]

  def spread(self, regime: str, method: str, measure: str) -> Spread:
    """Mean and sample deviation over seeds."""
    seeds = self.seeds(regime, [method])
    return over_runs([self.mean(regime, method, seed, measure) for seed in seeds])

  def mean(self, regime: str, method: str, seed: int, measure: str) -> float | None:
    """A measure's mean over held-out tasks, or a number of the training."""
    run = self.runs[regime, method, seed]
    if measure in run.training:
      return run.training[measure]
    known = [value for value in run.scores.get(measure, {}).values() if value is not None]
    return statistics.fmean(known) if known else None

  def contrast(
    self, regime: str, weights: Mapping[str, float], measure: str = 'success'
  ) -> tuple[Estimate, dict[int, float]]:
    """Σ weight · score, with its interval over held-out tasks of all seeds, and of each seed alone.

    Tasks are paired: a draw takes a task with the scores of all methods, and of all seeds that have the same task.
    Numbers of the training are drawn by seeds.
    """
    drawn: dict[Any, list[float]] = {}
    by_seed: dict[int, float] = {}
    for seed in self.seeds(regime, list(weights)):
      found = self._contrasts(regime, weights, measure, seed)
      by_seed |= {seed: statistics.fmean(found.values())} if found else {}
      for unit, value in found.items():
        drawn.setdefault(unit, []).append(value)
    means = np.array([statistics.fmean(values) for values in drawn.values()], np.float64)
    [estimate] = bootstrap(means[:, None], self.config.intervals)
    return estimate, by_seed

  def of_claim(self, regime: str, claim: Claim) -> tuple[Estimate, dict[int, float]]:
    """The number of a claim; of methods of which the best is meant, the one with the highest mean is taken."""
    weights = dict(claim.weights)
    if claim.best_of:
      done = [method for method in claim.best_of if self.seeds(regime, [method]) == self.seeds(regime, list(weights))]
      if len(done) < len(claim.best_of):
        return Estimate(None, None, None, 0), {}
      weights[max(done, key=lambda method: self.spread(regime, method, claim.measure).mean or -math.inf)] = -1.0
    return self.contrast(regime, weights, claim.measure)

  def _contrasts(self, regime: str, weights: Mapping[str, float], measure: str, seed: int) -> dict[Any, float]:
    """Σ weight · score of each task that all methods have a score for, or of the seed for numbers of the training."""
    runs = {method: self.runs[regime, method, seed] for method in weights}
    if measure.startswith('grad'):
      tables = {method: {'training': run.training.get(measure)} for method, run in runs.items()}
    else:
      tables = {method: run.scores.get(measure, {}) for method, run in runs.items()}
    out: dict[Any, float] = {}
    for task in next(iter(tables.values())):
      known = [(weight, value) for method, weight in weights.items() if (value := tables[method].get(task)) is not None]
      if len(known) == len(weights):
        digest = '' if measure.startswith('grad') else next(iter(runs.values())).tasks
        out[digest or seed, task] = math.fsum(weight * value for weight, value in known)
    return out


def read(config: StudyConfig) -> Study:
  """Everything that is finished."""
  found: dict[tuple[str, str, int], Run] = {}
  regimes = dict.fromkeys((*config.regimes, *config.sweep))
  for seed in config.seeds:
    if start := read_job(config, Job(START, '', seed)):
      found |= {(regime, SFT, seed): start for regime in regimes}
  for job in runs(config):
    if done := read_job(config, job):
      found[job.regime, job.method, job.seed] = done
  return Study(config, found)


def read_job(config: StudyConfig, job: Job) -> Run | None:
  """What a job measured, None if it is not done."""
  folder = pathlib.Path(config.output) / job.name
  if not (folder / 'done.json').exists():
    return None
  records = results.read(folder / 'evaluate', 'heldout', GREEDY)
  scores = {measure: results.by_task(records, measure) for measure in results.measures_in(records)}
  return Run(
    scores, gradients(folder / 'run' / 'metrics.jsonl'), results.digests(folder / 'evaluate').get('heldout', '')
  )


def gradients(path: pathlib.Path) -> dict[str, float]:
  """Mean and deviation of the gradient's norm over the steps of a training; nothing where there was none."""
  if not path.exists():
    return {}
  lines = [json.loads(line) for line in path.read_text('utf-8').splitlines()]
  norms = [norm for line in lines if (norm := line.get('grad_norm')) is not None]  # null where none was finite
  if len(norms) < 2:
    return {}
  return {'grad_mean': statistics.fmean(norms), 'grad_std': statistics.stdev(norms)}
