"""Code of one's own is tried before anything is loaded, fills its channels, and ends no run when it breaks."""

import asyncio
import dataclasses
import pathlib
import shlex
import sys
import textwrap

import pytest

from slca_jax.data.tasks import write_tasks
from slca_jax.dialogue import ToolCall
from slca_jax.errors import ConfigError
from slca_jax.nn.config import TransformerConfig
from slca_jax.quickstart.start import write_start
from slca_jax.quickstart.world import make_task
from slca_jax.rewards.judge import RuleJudge, Verdict
from slca_jax.rewards.protocols import score
from slca_jax.train import metrics, rehearsal, rl, run, worlds
from slca_jax.train import settings as s
from slca_jax.train.surroundings import EnvironmentSettings, JudgeSettings

TASK = dataclasses.replace(make_task(0, 'train', 0, kind='two'), blueprint=None)


@pytest.fixture
def named(tmp_path):
  """Writes a file of code and returns how a setting names something in it."""

  def write(text, name):
    path = tmp_path / f'code_{len(list(tmp_path.glob("code_*")))}.py'
    path.write_text(textwrap.dedent(text))
    return f'{path}:{name}'

  return write


def configured(**changes):
  return s.RLConfig(**{'group_size': 2, **changes})


def test_settings_without_code_of_ones_own_are_not_rehearsed():
  rehearsal.rehearse(configured(), [TASK])
  assert rehearsal.sources(configured()) == () and rehearsal.digests(configured()) == {}


ESTIMATOR = """
    import jax.numpy as jnp
    from slca_jax.ops.advantages import group_relative, route_segments
    def centred(rewards, segments, rollout_BT, *, weight=1.0):
      told_R = weight * group_relative(rewards.tool_R, rewards.group_R, scaled=False)
      return route_segments(told_R, told_R, rollout_BT, segments)
    def per_rollout(rewards, segments, rollout_BT):
      return group_relative(rewards.tool_R, rewards.group_R)
    def not_a_number(rewards, segments, rollout_BT):
      told_R = rewards.tool_R - jnp.mean(rewards.tool_R)
      return jnp.where(rollout_BT < 0, 0, told_R[rollout_BT])
    def traced(rewards, segments, rollout_BT):
      return 1.0 if rewards.tool_R[0] > 0 else 0.0
    def nothing(rewards, segments, rollout_BT):
      pass
"""


def test_an_estimator_of_ones_own_takes_options_and_the_rewards_of_slca(named):
  name = named(ESTIMATOR, 'centred')
  method = s.Method(name, {'weight': 2.0})
  assert method.rewards == 'slca'
  worlds.check_method(method, configured().scoring)
  rehearsal.rehearse(configured(method=method), [TASK])
  with pytest.raises(ConfigError, match="has no 'wieght'; did you mean 'weight'"):
    worlds.check_method(s.Method(name, {'wieght': 2.0}), configured().scoring)


@pytest.mark.parametrize(
  ('name', 'says'),
  [
    ('per_rollout', r'returned float32\[5\] for \[5, 8\] tokens'),
    ('not_a_number', 'where a reward is absent'),
    ('traced', r'it fails: TracerBoolConversionError.*\(code_0.py:13\)'),
    ('nothing', 'returned NoneType'),
    ('centered', "did you mean 'centred'"),
  ],
)
def test_an_estimator_that_cannot_be_used_is_refused(named, name, says):
  with pytest.raises(ConfigError, match=f'(?s)method.estimator is .*{says}'):
    rehearsal.rehearse(configured(method=s.Method(named(ESTIMATOR, name))), [TASK])


REWARDS = """
    from slca_jax.rewards.protocols import Channels, total
    def frugal(seen, referee):
      calls = sum(len(turn.calls) for turn in seen.trajectory.turns)
      return Channels(1 - 0.1 * calls, total(0.5, seen), parts={'calls': calls})
    async def refereed(seen, referee):
      return Channels((await referee(0)).score, None)
    def breaks(seen, referee):
      if seen.trajectory.task.id == 'bad':
        raise KeyError('latency')
      return Channels(1.0, 1.0)
    def a_number(seen, referee):
      return 1.0
    def infinite(seen, referee):
      return Channels(float('inf'), 0.0)
"""


def scored(name, task=TASK, **options):
  return asyncio.run(score(rehearsal.imagined(task, True), RuleJudge(), protocol=name, **options))


def test_a_protocol_of_ones_own_fills_its_channels_and_its_parts_become_metrics(named):
  name = named(REWARDS, 'frugal')
  rehearsal.rehearse(configured(method=s.Method('slca', protocol=name)), [TASK])
  got = scored(name)
  assert got.tool == pytest.approx(0.8) and got.outcome == pytest.approx(0.5 + got.summary)
  assert got.why['parts'] == {'calls': 2.0} and got.why['reward_failed'] is False
  numbers = metrics.describe([rehearsal.imagined(TASK, True)], [got])
  assert numbers['score/own/calls'] == 2.0 and numbers['score/reward_failed'] == 0.0


def test_a_protocol_of_ones_own_may_wait_for_the_second_judge(named):
  class Says:
    async def rate(self, trajectory, *, seed):
      return Verdict(0.25)

  assert scored(named(REWARDS, 'refereed'), referee=Says()).tool == 0.25


def test_a_reward_that_breaks_in_a_run_is_absent_and_says_where(named):
  name = named(REWARDS, 'breaks')
  rehearsal.rehearse(configured(method=s.Method('slca', protocol=name)), [TASK])
  got = scored(name, dataclasses.replace(TASK, id='bad'))
  assert got.tool is None and got.outcome is None and got.summary is not None
  assert got.why['reward_failed'] is True and got.why['reward_error'] == "KeyError: 'latency' (code_0.py:10)"


@pytest.mark.parametrize(
  ('name', 'says'),
  [('a_number', 'returned float; it returns Channels'), ('infinite', 'a reward is inf'), ('frugl', "mean 'frugal'")],
)
def test_a_protocol_that_cannot_be_used_is_refused(named, name, says):
  with pytest.raises(ConfigError, match=f'method.protocol is .*{says}'):
    rehearsal.rehearse(configured(method=s.Method('slca', protocol=named(REWARDS, name))), [TASK])


JUDGES = """
    from slca_jax.rewards.judge import Verdict
    def short(trajectory, *, seed):
      return 1.0 if len(trajectory.answer or '') < 80 else 0.0
    async def worded(trajectory, *, seed):
      return Verdict(0.5, 'acceptable', 'because')
    def abstains(trajectory, *, seed):
      return None
    def breaks(trajectory, *, seed):
      return trajectory.latency
"""


def test_a_judge_of_ones_own_scores_answers(named):
  rates = lambda name: asyncio.run(
    worlds.judge(JudgeSettings(kind=named(JUDGES, name))).rate(rehearsal.imagined(TASK, True), seed=0)
  )
  assert rates('short') == Verdict(1.0) and rates('worded').reason == 'because' and rates('abstains').score is None
  rehearsal.rehearse(configured(judge=JudgeSettings(kind=named(JUDGES, 'abstains'))), [TASK])
  with pytest.raises(ConfigError, match=r'judge.kind is .* fails: AttributeError: .*latency.*\(code_\d.py:10\)'):
    rehearsal.rehearse(configured(judge=JudgeSettings(kind=named(JUDGES, 'breaks'))), [TASK])


WORLDS = """
    from slca_jax.dialogue import Observation
    from slca_jax.envs.simulator import Simulator
    async def answer(tool, call):
      return Observation(call.name.upper())
    def open_task(task, seed):
      return Simulator(task.tools, answer)
    def no_step(task, seed):
      class World:
        tools = ()
        def close(self): ...
      return World()
    def breaks(task, seed):
      return task.meta['no such thing']
    def without_a_seed(task):
      return open_task(task, 0)
"""


def test_a_world_of_ones_own_answers_tasks_without_a_blueprint(named):
  environment = EnvironmentSettings(backend=named(WORLDS, 'open_task'))
  rehearsal.rehearse(configured(environment=environment), [TASK])
  call = ToolCall('get_price', {'ticker': 'BAKO'})
  open_task = worlds.opener(environment)
  assert asyncio.run(open_task(TASK, 0).step([call]))[0].content == 'GET_PRICE'
  in_the_market = make_task(0, 'train', 0)
  assert 'price' in asyncio.run(open_task(in_the_market, 0).step([call]))[0].content


@pytest.mark.parametrize(
  ('name', 'says'),
  [
    ('no_step', "is a World without \\['step'\\]"),
    ('breaks', r"cannot be opened and closed: KeyError: 'no such thing' \(code_0.py:14\)"),
    ('without_a_seed', r'it is called with \(task, seed\)'),
  ],
)
def test_a_world_that_cannot_be_used_is_refused(named, name, says):
  with pytest.raises(ConfigError, match=f'environment.backend is .*{says}'):
    rehearsal.rehearse(configured(environment=EnvironmentSettings(backend=named(WORLDS, name))), [TASK])


def test_mcp_as_the_backend_needs_the_servers_command():
  with pytest.raises(ConfigError, match="mcp is empty; backend 'mcp' needs the command"):
    EnvironmentSettings(backend='mcp')


def test_server_that_does_not_start_or_lacks_what_is_called_is_refused():
  pytest.importorskip('mcp', reason="needs pip install 'slca_jax[mcp]'")
  served = shlex.join([sys.executable, str(pathlib.Path(__file__).parents[1] / 'served.py')])
  backend = lambda command: configured(environment=EnvironmentSettings(backend='mcp', mcp=command))
  whispers = dataclasses.replace(TASK, gold=((ToolCall('whisper', {}),),))
  rehearsal.rehearse(backend(served), [whispers])
  with pytest.raises(
    ConfigError, match=r"environment\.mcp is .*task t calls \['mumble'\], the server offers \[.*'whisper'"
  ):
    rehearsal.rehearse(backend(served), [dataclasses.replace(TASK, id='t', gold=((ToolCall('mumble', {}),),))])
  with pytest.raises(ConfigError, match=r'environment\.mcp is .*nothing\.py.*it does not serve: '):
    rehearsal.rehearse(backend(f'{sys.executable} nothing.py'), [whispers])
  with pytest.raises(ConfigError, match='which is no command: No closing quotation'):
    rehearsal.rehearse(backend("python 'served.py"), [whispers])
  rehearsal.rehearse(backend('nothing'), [dataclasses.replace(TASK, blueprint='market')])  # nobody opens it


def test_worlds_that_are_not_there_are_refused(tmp_path):
  (tmp_path / 'shop').mkdir()
  here = configured(environment=EnvironmentSettings(blueprints=str(tmp_path)))
  tasks = [dataclasses.replace(TASK, id=name, blueprint=name) for name in ('shop', 'market', 'farm', 'mill')]
  rehearsal.rehearse(here, tasks[:2])
  with pytest.raises(ConfigError, match=r"2 worlds that are not there, such as task farm in 'farm'; environment\.blue"):
    rehearsal.rehearse(here, tasks)
  with pytest.raises(ConfigError, match=r"blueprints is '.*/nowhere'; there is no such folder"):
    rehearsal.rehearse(configured(environment=EnvironmentSettings(blueprints=f'{tmp_path}/nowhere')), [TASK])


def test_code_that_changed_is_another_run(named, tmp_path):
  name = named(REWARDS, 'frugal')
  config = configured(method=s.Method('slca', protocol=name))
  rehearsal.rehearse(config, [TASK])
  run.remember(tmp_path, {}, digests=rehearsal.digests(config))
  run.remember(tmp_path, {}, digests=rehearsal.digests(config))
  with open(rehearsal.sources(config)[0], 'a') as file:
    file.write('# changed\n')
  with pytest.raises(ConfigError, match='sha256'):
    run.remember(tmp_path, {}, digests=rehearsal.digests(config))


def test_a_run_trains_on_code_of_ones_own(named, tmp_path):
  write_start(
    tmp_path / 'start', seed=0, samples=30,
    network=TransformerConfig(layers=1, width=16, hidden=32, heads=2, kv_heads=1, head_dim=8, context=512),
  )  # fmt: skip
  write_tasks(
    [dataclasses.replace(make_task(0, 'train', i), blueprint=None, meta={}) for i in range(4)], tmp_path / 't'
  )
  config = s.RLConfig(
    output=str(tmp_path / 'run'), steps=1, prompts=2, mini_batch=2, group_size=2,
    model=s.Model(path=str(tmp_path / 'start'), dtype='float32', remat='none'),
    data=s.TaskFiles(str(tmp_path / 't')),
    method=s.Method(named(ESTIMATOR, 'centred'), {'weight': 2.0}, named(REWARDS, 'frugal')),
    judge=JudgeSettings(kind=named(JUDGES, 'short')),
    environment=EnvironmentSettings(backend=named(WORLDS, 'open_task')),
    rollout=s.RolloutSettings(
      limits=s.Limits(prompt_tokens=96, response_tokens=64, turn_tokens=16, turns=3),
      local=s.LocalEngine(slots=4, context=256, prefill_chunk=16),
    ),
    batching=s.Layout((256,), micro_rows=8),
  )  # fmt: skip
  numbers = rl.train(config)
  assert numbers['score/reward_failed'] == 0 and numbers['score/own/calls'] >= 0 and numbers['status/failed'] == 0
