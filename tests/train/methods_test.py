"""Every method and ablation is a few settings, and changes nothing else."""

import importlib.util
import math
import pathlib

import pytest

from slca_jax.config import as_dict, build
from slca_jax.errors import ConfigError
from slca_jax.train import methods
from slca_jax.train.settings import RLConfig

ROOT = pathlib.Path(__file__).parents[2]
SIMULATOR = {'environment.simulator.base_url': 'http://localhost:1/v1'}
REFEREE = {'referee.base_url': 'http://localhost:1/v1', 'referee.model': 'judge'}
PLAIN = as_dict(RLConfig())


def built(name, more=()):
  return build(RLConfig, methods.changed(PLAIN, {**methods.changes(name), **dict(more)}))


def needs(name):
  """The endpoints that nobody but the user can name."""
  variant = methods.VARIANTS.get(name, ('', {}))[1]
  mocker = {'environment.simulator.model': 'mocker'} if name == 'no_sgls' else {}
  return {
    **(SIMULATOR | mocker if variant.get('environment.backend') == 'simulated' else {}),
    **(REFEREE if 'judge' in name or 'execution' in name else {}),
  }


@pytest.mark.parametrize('name', methods.names())
def test_every_method_builds_and_its_config_changes_what_it_says(name):
  spec = importlib.util.spec_from_file_location('configs_rl', ROOT / 'configs' / 'rl.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  config = module.get_config(name)
  config.update_from_flattened_dict(needs(name))
  ours, theirs = as_dict(build(RLConfig, config)), as_dict(built(name, needs(name)))
  for group in ('method', 'scoring', 'judge', 'environment'):
    assert ours[group] == theirs[group]
  assert ours['output'] == f'runs/{name}'


def test_variants_differ_from_their_method_in_what_they_list_alone():
  for name, (method, more) in methods.VARIANTS.items():
    expected = methods.changed(methods.changed(PLAIN, methods.changes(method)), more)
    assert methods.changed(PLAIN, methods.changes(name)) == expected


def test_weights_of_the_process_score_sum_to_one_in_every_sweep():
  for name in ('uniform', 'name_heavy', 'value_heavy'):
    assert math.isclose(sum(methods.VARIANTS[name][1].values()), 1.0)


def test_ratio_sweep_scales_the_tool_reward_of_the_unified_total():
  assert [built(f'ratio_{r}').scoring.tool_weight for r in ('0.5', '2', '3', '5')] == [0.5, 2.0, 3.0, 5.0]
  assert built('ratio_5').method.estimator == 'grpo'


def test_execution_by_rule_needs_no_endpoint():
  with pytest.raises(ConfigError, match='referee'):
    built('execution')
  assert built('execution', {'scoring.referee': 'rule'}).method.protocol == 'execution'


def test_unknown_method_names_the_nearest():
  with pytest.raises(ConfigError, match="'uniforn' is no method; did you mean 'uniform'"):
    methods.changes('uniforn')


def test_changing_settings_leaves_the_given_ones_alone():
  before = {'a': {'b': {'c': 1}, 'd': 2}}
  assert methods.changed(before, {'a.b.c': 3, 'a.e': 4}) == {'a': {'b': {'c': 3}, 'd': 2, 'e': 4}}
  assert before == {'a': {'b': {'c': 1}, 'd': 2}}
