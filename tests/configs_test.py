"""Every config file builds, and the launchers refuse what cannot run at once and by name."""

import importlib.util
import inspect
import pathlib
import subprocess
import sys

import pytest

from slca_jax.config import as_dict, build
from slca_jax.errors import ConfigError
from slca_jax.evals.settings import EvaluateConfig
from slca_jax.evals.study_settings import StudyConfig
from slca_jax.ops.estimators import ESTIMATORS
from slca_jax.quickstart.experiment import QuickstartConfig, run
from slca_jax.rewards.protocols import PROTOCOLS, Scoring
from slca_jax.train import worlds
from slca_jax.train.run import remember
from slca_jax.train.settings import Method, RLConfig, SFTConfig

ROOT = pathlib.Path(__file__).parents[1]


def load(name):
  spec = importlib.util.spec_from_file_location(f'configs_{name}', ROOT / 'configs' / f'{name}.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.mark.parametrize('method', sorted(load('rl').METHODS))
def test_rl_configs_build_with_a_known_estimator_and_protocol(method):
  built = build(RLConfig, load('rl').get_config(method))
  worlds.check_method(built.method, built.scoring)
  assert built.method.protocol in PROTOCOLS and built.group_size == 16 and built.optimizer.learning_rate == 1e-6


def test_ablation_without_sgls_is_slca_in_an_unguided_simulated_world():
  config, plain = load('rl').get_config('no_sgls'), load('rl').get_config('slca')
  with pytest.raises(ConfigError, match=r'environment\.simulator\.model is empty'):
    build(RLConfig, config)
  for one in (config, plain):
    one.environment.backend = 'simulated'
    one.environment.simulator.model, one.environment.simulator.base_url = 'mocker', 'http://localhost:1/v1'
  differ = {
    'output': 'runs/no_sgls',
    'environment': {**as_dict(build(RLConfig, plain))['environment'], 'checks': False, 'definition': False},
  }
  assert as_dict(build(RLConfig, config)) == as_dict(build(RLConfig, plain)) | differ


@pytest.mark.parametrize(
  ('name', 'argument', 'cls'),
  [
    ('sft', None, SFTConfig),
    ('quickstart', None, QuickstartConfig),
    ('smollm2', 'sft', SFTConfig),
    ('smollm2', 'rl', RLConfig),
    ('evaluate', None, EvaluateConfig),
    ('evaluate', 'sampled', EvaluateConfig),
    ('evaluate', 'bfcl', EvaluateConfig),
    ('evaluate', 'tau2', EvaluateConfig),
    ('evaluate', 'ksweep', EvaluateConfig),
    ('study', None, StudyConfig),
    ('study', 'synthesised', StudyConfig),
  ],
)
def test_other_configs_build(name, argument, cls):
  config = load(name).get_config(*([argument] if argument else []))
  assert isinstance(build(cls, config), cls)


def test_a_study_takes_a_run_of_a_file_of_ones_own(tmp_path):
  own = tmp_path / 'mine.py'
  own.write_text(
    'from slca_jax.config import defaults\nfrom slca_jax.train.settings import RLConfig\n'
    'def get_config(steps="3"):\n  config = defaults(RLConfig)\n  config.steps = int(steps)\n'
    '  config.data.heldout = "h.jsonl"\n  return config\n'
  )
  study = load('study')
  assert build(StudyConfig, study.get_config(str(own))).rl.steps == 3
  assert build(StudyConfig, study.get_config(f'{own}:5')).rl.steps == 5
  with pytest.raises(ConfigError, match=r'rl\.data\.heldout is empty'):
    build(StudyConfig, study.get_config('own'))
  with pytest.raises(ValueError, match='is no Python file'):
    study.get_config('quickstrat')


@pytest.mark.parametrize(('part', 'name'), [('sft', 'steps'), ('sft', 'seed'), ('rl', 'seed'), ('rl', 'output')])
def test_quickstart_refuses_settings_that_would_have_no_effect(part, name):
  config = load('quickstart').get_config()
  config[part][name] = 'x' if name == 'output' else 7
  with pytest.raises(ConfigError, match=f'{part}.{name} is .*; the experiment sets it'):
    build(QuickstartConfig, config)


def test_quickstart_does_not_go_on_in_a_folder_of_other_settings(tmp_path):
  remember(tmp_path, as_dict(QuickstartConfig(output=str(tmp_path), tasks=100)))
  with pytest.raises(ConfigError, match=r"\['tasks'\]: 100 -> 240"):
    run(QuickstartConfig(output=str(tmp_path)))


def test_every_estimator_has_a_protocol_of_its_name():
  assert set(ESTIMATORS) <= set(PROTOCOLS)


@pytest.mark.parametrize(
  ('change', 'says'),
  [
    ({'group_size': 1}, 'group_size is 1; advantages need at least 2 rollouts per prompt'),
    ({'prompts': 10, 'mini_batch': 4}, 'prompts 10 cannot be split into mini-batches of 4'),
    ({'batching': {'lengths': (1024,)}}, 'batching.lengths ends at 1024'),
    ({'rollout': {'local': {'context': 4096}}}, 'local.context is 4096'),
    ({'rollout': {'local': {'own': 4096}}}, 'local.own is 4096'),
    ({'rollout': {'engine': 'sglang'}}, 'urls is empty; name the servers'),
    ({'rollout': {'engine': 'sglang', 'sglang': {'urls': 'localhost'}}}, "'localhost' is no address"),
    ({'rollout': {'decoding': {'temperature': 0.0}}}, 'greedy rollouts are all alike'),
    ({'rollout': {'limits': {'turns': 0}}}, 'turns is 0; it must be positive'),
    ({'optimizer': {'learning_rate': 0.0}}, 'learning_rate is 0.0; it must be positive'),
    ({'objective': {'dual_clip': 0.5}}, 'dual_clip is 0.5'),
    ({'steps': -5}, 'steps is -5; it counts, so it is at least 0'),  # would export the model untrained
    ({'steps': 0, 'epochs': 0}, 'steps and epochs are both 0'),
    ({'eval_every': -1}, 'eval_every is -1'),
    ({'data': {'heldout_limit': -1}}, 'heldout_limit is -1'),
    ({'mesh': {'tensor': 0}}, "'tensor': 0}; each is positive, or -1 for the rest"),
    ({'mesh': {'data': -1}}, 'only one of them may be -1'),
    ({'environment': {'call_seconds': 0.0}}, 'call_seconds is 0.0; it must be positive'),
  ],
)
def test_combination_that_cannot_run_is_refused(change, says):
  with pytest.raises(ConfigError) as caught:
    build(RLConfig, change)
  assert says in str(caught.value)


def test_protocol_that_needs_a_judge_no_setting_gives_is_refused_at_once():
  with pytest.raises(ConfigError, match='give it a referee'):
    worlds.check_method(Method('slca', protocol='execution'), Scoring())


def test_unknown_estimators_and_options_name_the_nearest():
  with pytest.raises(ConfigError, match="'sclca'; did you mean 'slca'"):
    worlds.check_method(Method('sclca'), Scoring())
  with pytest.raises(ConfigError, match="no 'tool_wieght'; did you mean 'tool_weight'"):
    worlds.check_method(Method('slca', {'tool_wieght': 2.0}), Scoring())
  with pytest.raises(ConfigError, match=r"method.options.tool_weight is '2' \(str\); it takes a number"):
    worlds.check_method(Method('slca', {'tool_weight': '2'}), Scoring())


def test_every_estimator_has_a_config_and_its_options_stand_at_their_defaults():
  methods = load('rl').METHODS
  assert {estimator for estimator, _, _ in methods.values()} == set(ESTIMATORS)
  for name, (estimator, options, _) in methods.items():
    parameters = inspect.signature(ESTIMATORS[estimator]).parameters
    assert name in ('summary_to_tool', 'tool_to_summary', 'both_open') or options == {
      o: parameters[o].default for o in options
    }


@pytest.mark.parametrize(
  ('arguments', 'says'),
  [
    (
      ['--config=configs/rl.py:slca', '--config.group_sise=4'],
      "ConfigError: --config.group_sise=4: 'group_sise' is not a setting; did you mean 'group_size'?",
    ),
    (
      ['--config=configs/rl.py:slca', '--config.group_size=many'],
      'ConfigError: --config.group_size=many: it takes a whole number',
    ),
    (
      ['--config=configs/rl.py:slca', '--config.batching.lengths=(256,'],
      'ConfigError: --config.batching.lengths=(256,: it takes values in brackets',
    ),
    (['--config=configs/rl.py:slca', '--config.steps.x=3'], "--config.steps.x: 'steps' is no group of settings"),
    (['--config=configs/rl.py:slca', '--config.group_size=1'], 'ConfigError: config: group_size is 1'),
    (
      ['--config=configs/rl.py:sclca'],
      "ConfigError: --config=configs/rl.py:sclca: 'sclca' is no method; configs/rl.py",
    ),
    (['--config=rl.py', '--config.steps=3'], 'ConfigError: --config cannot be read: [Errno 2] No such file or dir'),
    (['--config=configs/rl.py:slca'], 'model.path is empty'),
    (
      [
        '--config=configs/rl.py:slca',
        '--config.rollout.engine=sglang',
        '--config.rollout.sglang.urls=http://a,http://b',
      ],
      'model.path is empty',
    ),
    (['--config=configs/rl.py:slca', '--config.method.options.tool_weight=2'], 'model.path is empty'),
    (['--config=configs/rl.py:slca', '--config.objectiv.kl', '0'], "'objectiv' is not a setting; did you mean 'obj"),
    (
      ['--config=configs/rl.py:slca', '--config.method.options.weight=2'],
      'ConfigError: --config.method.options.weight=2',
    ),
  ],
)
def test_launcher_refuses_a_mistake_by_name(arguments, says):
  command = [sys.executable, str(ROOT / 'launch' / 'train_rl.py'), *arguments]
  done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
  assert done.returncode != 0 and says in done.stderr and 'Traceback' not in done.stderr
