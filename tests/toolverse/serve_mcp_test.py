"""The launcher serves a blueprint's world, sandbox and all."""

import asyncio
import contextlib
import pathlib
import sys

import pytest

pytest.importorskip('mcp', reason="needs pip install 'slca_jax[mcp]'")

from travel import schema

from slca_jax.dialogue import Tool, ToolCall
from slca_jax.envs.mcp_client import McpServer, mcp_environment
from slca_jax.envs.state import final_state
from slca_jax.errors import EnvironmentFailure
from slca_jax.toolverse.blueprint import Blueprint, save

LAUNCHER = pathlib.Path(__file__).parents[2] / 'launch' / 'serve_mcp.py'
SOURCE = """
def add(db, item: str):
  if item in db['list']:
    raise ValueError(f'{item} is on the list')
  db['list'].append(item)
  return {'count': len(db['list'])}
"""


def test_a_served_blueprint_answers_refuses_and_tells_its_changes(tmp_path):
  tool = Tool('add', 'Adds to the list.', schema(item='string'), schema(count='integer'), writes=True)
  save(Blueprint('shopping', (tool,), SOURCE, {'list': ['tea']}), tmp_path / 'shopping')
  server = McpServer((sys.executable, str(LAUNCHER), f'--blueprint={tmp_path / "shopping"}'))

  async def roll(world):
    return await world.step([ToolCall('add', {'item': item}) for item in ('milk', 'milk')]), await final_state(world)

  with contextlib.closing(mcp_environment(server)) as world:
    assert world.tools == (tool,)
    (added, again), left = asyncio.run(roll(world))
  assert (added.content, added.ok) == ('{"count": 2}', True)
  assert (again.content, again.ok) == ('Error: milk is on the list', False)
  assert left == [{'path': ['list', 1], 'now': 'milk'}]


def test_a_launcher_that_refuses_its_flags_is_a_failure_that_says_so(tmp_path):
  server = McpServer((sys.executable, str(LAUNCHER), f'--blueprint={tmp_path / "nowhere"}'))
  with pytest.raises(EnvironmentFailure, match='no such folder'):
    mcp_environment(server)
