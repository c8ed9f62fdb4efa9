"""Estimators against numbers worked by hand and against brute force; intervals that cover what they should."""

import itertools
import math

import numpy as np
import pytest

from slca_jax.errors import ConfigError
from slca_jax.evals.statistics import Sampling, bootstrap, compare, over_runs, pass_all, pass_at

FEW = Sampling(resamples=2000)


def test_pass_at_and_pass_all_of_five_tries_with_two_passed():
  # C(5,3) = 10 sets; C(3,3) = 1 holds none that passed; C(2,2) = 1 of C(5,2) = 10 pairs passed both times.
  assert pass_at(5, 2, 3) == pytest.approx(1 - 1 / 10)
  assert pass_all(5, 2, 2) == pytest.approx(1 / 10)
  assert pass_at(5, 2, 1) == pass_all(5, 2, 1) == pytest.approx(2 / 5)
  assert pass_all(5, 2, 3) == 0 and pass_at(5, 0, 5) == 0 and pass_at(5, 5, 1) == pass_all(5, 5, 5) == 1


def test_too_few_tries_are_absent():
  assert pass_at(3, 3, 4) is None and pass_all(3, 3, 4) is None


@pytest.mark.parametrize('passed', range(5))
@pytest.mark.parametrize('k', range(1, 5))
def test_pass_estimates_are_the_mean_over_all_sets_of_k(passed, k):
  results = [True] * passed + [False] * (4 - passed)
  sets = list(itertools.combinations(results, k))
  assert pass_at(4, passed, k) == pytest.approx(sum(map(any, sets)) / len(sets))
  assert pass_all(4, passed, k) == pytest.approx(sum(map(all, sets)) / len(sets))


def test_interval_of_a_bernoulli_mean_is_that_of_the_normal_law():
  values = np.array([1.0] * 120 + [0.0] * 280)[:, None]
  [found] = bootstrap(values)
  half = 1.96 * math.sqrt(0.3 * 0.7 / 400)  # 0.0449
  assert found.mean == pytest.approx(0.3) and found.count == 400 and found.absent == 0
  assert found.low == pytest.approx(0.3 - half, abs=0.005) and found.high == pytest.approx(0.3 + half, abs=0.005)


def test_intervals_cover_the_mean_as_often_as_they_say():
  rng = np.random.default_rng(1)
  covered = 0
  for draw in range(200):
    [found] = bootstrap(rng.normal(1.0, 1.0, (40, 1)), Sampling(resamples=300, confidence=0.8, seed=draw))
    covered += found.low <= 1.0 <= found.high
  # 160 expected; four standard errors of a binomial with 200 draws are 23.
  assert 137 <= covered <= 183


def test_absent_results_take_no_part_and_are_counted():
  with_gaps = np.array([[1.0, np.nan], [0.0, np.nan], [np.nan, np.nan], [1.0, 0.5]])
  gaps, single = bootstrap(with_gaps, FEW)
  assert gaps.mean == pytest.approx(2 / 3) and gaps.count == 3 and gaps.absent == 1
  assert 0 <= gaps.low <= 2 / 3 <= gaps.high <= 1
  assert single.mean == 0.5 and single.low is None and single.high is None and single.absent == 3
  [nothing] = bootstrap(np.full((3, 1), np.nan), FEW)
  assert nothing.mean is None and nothing.low is None and nothing.count == 0 and nothing.absent == 3
  assert bootstrap(np.zeros((0, 1)), FEW)[0].mean is None


def test_equal_results_have_an_interval_of_no_width():
  [found] = bootstrap(np.full((7, 1), 0.25), FEW)
  assert (found.mean, found.low, found.high) == (0.25, 0.25, 0.25)


def test_same_seed_same_interval_however_many_draws_are_held_at_once(monkeypatch):
  values = np.random.default_rng(0).random((50, 2))
  whole = bootstrap(values, FEW)
  assert whole == bootstrap(values, FEW)
  assert whole[0] != bootstrap(values, Sampling(resamples=2000, seed=1))[0]
  monkeypatch.setattr('slca_jax.evals.statistics._CELLS', 5000)
  cut = bootstrap(values, FEW)
  assert [round(one.low, 12) for one in cut] == [round(one.low, 12) for one in whole]


def test_pairs_show_a_difference_that_lies_within_both_intervals():
  rng = np.random.default_rng(0)
  hard = rng.random(100)
  first = {f't{i}': hard[i] for i in range(100)}
  second = {f't{i}': hard[i] + 0.02 + 0.01 * rng.standard_normal() for i in range(100)}
  found = compare(first, second, FEW)
  assert found.is_clear and found.estimate.mean == pytest.approx(0.02, abs=0.004)
  alone = [bootstrap(np.array(list(run.values()))[:, None], FEW)[0] for run in (first, second)]
  assert alone[0].high > alone[1].low, 'unpaired intervals overlap'


def test_comparison_pairs_by_task_and_counts_the_rest():
  found = compare({'a': 0.0, 'b': 1.0, 'c': 0.5, 'd': None}, {'b': 0.5, 'a': 1.0, 'd': 1.0, 'e': 1.0}, FEW)
  # a: +1, b: −0.5; c, d and e have one side only.
  assert found.estimate.mean == 0.25 and found.first == 0.5 and found.second == 0.75
  assert (found.better, found.worse, found.unpaired) == (1, 1, 3) and not found.is_clear
  nothing = compare({'a': 1.0}, {'b': 1.0}, FEW)
  assert nothing.estimate.mean is None and nothing.first is None and nothing.unpaired == 2 and not nothing.is_clear


def test_spread_over_runs_is_the_sample_deviation():
  spread = over_runs([0.1, 0.2, 0.3, None, float('nan')])
  assert spread.mean == pytest.approx(0.2) and spread.std == pytest.approx(0.1) and spread.count == 3
  assert over_runs([0.5]).std is None and over_runs([None]).mean is None


def test_sampling_that_says_nothing_is_refused():
  with pytest.raises(ConfigError, match='resamples is 10; an interval needs at least 100'):
    Sampling(resamples=10)
  with pytest.raises(ConfigError, match='confidence is 95'):
    Sampling(confidence=95)
