"""Engines by their names, and what servers know a run by."""

import asyncio
import dataclasses
import pathlib
import shlex
import sys

import pytest

from slca_jax.config import as_dict
from slca_jax.dialogue import Message, Task, Tool, ToolCall
from slca_jax.errors import ConfigError, EnvironmentFailure
from slca_jax.rollout.settings import LocalEngine, SGLangServers
from slca_jax.train.run import remember
from slca_jax.train.settings import RLConfig, RolloutSettings
from slca_jax.train.surroundings import EnvironmentSettings
from slca_jax.train.worlds import opener, run_name


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


def test_tasks_of_an_mcp_server_open_it():
  pytest.importorskip('mcp', reason="needs pip install 'slca_jax[mcp]'")
  script = pathlib.Path(__file__).parents[1] / 'served.py'
  open_task = opener(EnvironmentSettings(mcp=shlex.join([sys.executable, str(script)])))
  task = Task('trip', (Tool('whisper', '', {'type': 'object'}),), (Message('user', 'Hello'),), blueprint='mcp')
  world = open_task(task, 0)
  [seen] = asyncio.run(world.step([ToolCall('whisper', {})]))
  world.close()
  assert seen.ok and '"process"' in seen.content


def test_a_world_that_nobody_offers_is_named_with_the_settings_that_would():
  task = Task('trip', (), (Message('user', 'Hello'),), blueprint='mcp')
  with pytest.raises(EnvironmentFailure, match=r"lives in 'mcp'.*environment\.mcp starts"):
    opener(EnvironmentSettings())(task, 0)
