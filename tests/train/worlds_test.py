"""Engines by their names, and what servers know a run by."""

import asyncio
import dataclasses
import pathlib
import shlex
import sys

import pytest

from slca_jax.chat.template import load_template
from slca_jax.config import as_dict
from slca_jax.dialogue import Message, Task, Tool, ToolCall
from slca_jax.errors import ConfigError, DataError, EnvironmentFailure, TemplateError
from slca_jax.quickstart.start import write_start
from slca_jax.quickstart.world import make_task
from slca_jax.rewards.protocols import Scoring
from slca_jax.rollout.settings import LocalEngine, SGLangServers
from slca_jax.train.run import remember
from slca_jax.train.settings import Method, RLConfig, RolloutSettings
from slca_jax.train.surroundings import EnvironmentSettings
from slca_jax.train.worlds import check_prompts, opener, require_gold, run_name


def served(output, **changes):
  servers = SGLangServers(**{'urls': 'http://a:1', **changes})
  return RLConfig(output=str(output), rollout=RolloutSettings(engine='sglang', sglang=servers))


def test_a_run_keeps_its_name_and_shares_it_with_no_other(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  assert run_name('runs/slca') == run_name(str(tmp_path / 'runs/slca'))
  assert run_name('runs/slca') != run_name('other/slca') and ':' not in run_name('runs/a:b')
  assert run_name('runs/slca').startswith('slca-')


def test_servers_may_move_when_a_run_is_resumed_but_the_engine_stays(tmp_path):
  remember(tmp_path, as_dict(served(tmp_path)))
  remember(tmp_path, as_dict(served(tmp_path, urls='http://b:2,http://c:3', retries=9)))
  with pytest.raises(ConfigError, match=r"\['rollout'\]\['engine'\]: 'sglang' -> 'local'"):
    remember(tmp_path, as_dict(dataclasses.replace(served(tmp_path), rollout=RolloutSettings())))


def test_tasks_whose_prompts_are_all_too_long_end_a_run_before_its_first_step(tmp_path):
  write_start(tmp_path, seed=0, samples=30)
  template, tasks = load_template(tmp_path), [make_task(0, 'train', index) for index in range(3)]
  sizes = [len(template.prompt(task.messages, task.tools)) for task in tasks]
  check_prompts(tasks, template, longest=min(sizes))
  with pytest.raises(DataError, match=f'{min(sizes)} to {max(sizes)} tokens, and rollout.limits.prompt_tokens is 4'):
    check_prompts(tasks, template, longest=4)


def test_a_task_that_cannot_be_rendered_ends_no_run_unless_none_can_be():
  class Reluctant:
    def prompt(self, messages, tools):
      if messages == ('odd',):
        raise TemplateError('roles must alternate')
      return (1, 2, 3)

  odd, fine = Task('a', (), ('odd',), ()), Task('b', (), ('fine',), ())
  check_prompts([odd, fine], Reluctant(), longest=3)
  with pytest.raises(TemplateError, match='roles must alternate'):
    check_prompts([odd, odd], Reluctant(), longest=3)


def test_the_context_of_the_embedded_engine_does_not_bind_servers(tmp_path):
  small = LocalEngine(context=64)
  assert RolloutSettings(engine='sglang', sglang=SGLangServers(urls='http://a:1'), local=small).engine == 'sglang'
  with pytest.raises(ConfigError, match='context is 64'):
    RolloutSettings(local=small)


def test_urls_of_the_rollouts_are_those_of_the_servers():
  settings = RolloutSettings(engine='sglang', urls='http://a:1,http://b:2')
  assert settings.sglang.servers == ('http://a:1', 'http://b:2')
  with pytest.raises(ConfigError, match='give one of them'):
    RolloutSettings(engine='sglang', urls='http://a:1', sglang=SGLangServers(urls='http://b:2'))


@pytest.mark.parametrize(('backend', 'blueprint'), [('recorded', 'mcp'), ('mcp', None)])
def test_tasks_of_an_mcp_server_open_it(backend, blueprint):
  pytest.importorskip('mcp', reason="needs pip install 'slca_jax[mcp]'")
  script = pathlib.Path(__file__).parents[1] / 'served.py'
  open_task = opener(EnvironmentSettings(backend=backend, mcp=shlex.join([sys.executable, str(script)])))
  task = Task('trip', (Tool('whisper', '', {'type': 'object'}),), (Message('user', 'Hello'),), blueprint=blueprint)
  world = open_task(task, 0)
  [seen] = asyncio.run(world.step([ToolCall('whisper', {})]))
  world.close()
  assert seen.ok and '"process"' in seen.content


def test_tasks_that_do_not_tell_their_calls_need_a_reward_that_does_not_ask():
  task = lambda name, meta: Task(name, (), (Message('user', 'Hello'),), meta=meta)
  tasks = [task('none needed', {}), task('open', {'gold': 'unknown'})]
  require_gold(tasks[:1], Method('slca'), Scoring())
  for method, scoring in ((Method('slca'), Scoring()), (Method('grpo', protocol='execution'), Scoring(referee='rule'))):
    with pytest.raises(DataError, match=r"1 of 2 tasks, 'open' first, do not say which calls are right"):
      require_gold(tasks, method, scoring)
  require_gold(tasks, Method('summary_only'), Scoring())
  require_gold(tasks, Method('rltr'), Scoring(completeness='judge'))
  require_gold(tasks, Method('grpo', protocol='mine.py:reward'), Scoring())


def test_gold_calls_of_tools_that_are_not_on_offer_end_a_run_before_its_first_step():
  gold = ((ToolCall('pay', {}),), (ToolCall('pai', {}),))
  task = Task('seven', (Tool('pay', '', {'type': 'object', 'properties': {}}),), (Message('user', 'Pay.'),), gold)
  with pytest.raises(DataError, match=r"task seven: a gold call is of 'pai', which is not on offer \(pay\)"):
    require_gold([task], Method('slca'), Scoring())
  require_gold([dataclasses.replace(task, gold=gold[:1])], Method('slca'), Scoring())
  require_gold([dataclasses.replace(task, tools=(), blueprint='mcp')], Method('slca'), Scoring())  # its world's


def test_a_world_that_nobody_offers_is_named_with_the_settings_that_would():
  task = Task('trip', (), (Message('user', 'Hello'),), blueprint='mcp')
  with pytest.raises(EnvironmentFailure, match=r"lives in 'mcp'.*environment\.mcp starts"):
    opener(EnvironmentSettings())(task, 0)
