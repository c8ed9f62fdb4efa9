"""The comparison is fair, and a policy that learned nothing is not compared."""

import pathlib

import pytest

from slca_jax.config import as_dict
from slca_jax.errors import Diverged
from slca_jax.quickstart.experiment import METHODS, QuickstartConfig, check_start, heldout_tasks, rl_config
from slca_jax.train.checkpoint import same_run
from slca_jax.train.settings import JudgeSettings

CONFIG = QuickstartConfig(heldout=20)


def settings(regime, method):
  return rl_config(CONFIG, pathlib.Path('runs'), regime, method)


@pytest.mark.parametrize('regime', ['noisy', 'biased'])
def test_methods_differ_in_nothing_but_their_name_and_folder(regime):
  ours, theirs = (as_dict(settings(regime, method)) for method in METHODS)
  # Equal seeds and tasks are equal places in a batch, on which alone sampling, environments and judges' noise depend.
  assert same_run(ours, theirs) == [
    "['method']['estimator']: 'slca' -> 'grpo'",
    f"['output']: 'runs/{regime}/slca' -> 'runs/{regime}/grpo'",
  ]


def test_regimes_differ_in_their_judge_alone():
  assert settings('noisy', 'slca').judge == JudgeSettings(noise=0.3)
  assert settings('biased', 'slca').judge == JudgeSettings(bias=0.25, bias_turns=3)
  changed = same_run(as_dict(settings('noisy', 'slca')), as_dict(settings('biased', 'slca')))
  assert {line.split(']')[0] for line in changed} == {"['judge'", "['output'"}


def test_every_evaluation_asks_the_same_questions():
  assert heldout_tasks(CONFIG) == heldout_tasks(CONFIG) and len(heldout_tasks(CONFIG)) == 20


@pytest.mark.parametrize('changes', [{'score/format': 0.9}, {'reported/summary': 0.5}])
def test_supervised_policy_without_format_or_answers_ends_the_run(changes):
  learned = {'score/format': 1.0, 'reported/summary': 0.95}
  check_start(learned, CONFIG)
  with pytest.raises(Diverged, match=f'held-out {next(iter(changes))} is'):
    check_start({**learned, **changes}, CONFIG)
