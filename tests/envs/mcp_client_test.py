"""An environment served over standard streams is, to a rollout, the environment itself."""

import asyncio
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import time

import pytest

pytest.importorskip('mcp', reason="needs pip install 'slca_jax[mcp]'")

import travel

from slca_jax.dialogue import Message, Task, Tool, ToolCall
from slca_jax.envs import mcp_client
from slca_jax.envs.executable import Executable, World
from slca_jax.envs.guard import CallLimits
from slca_jax.envs.mcp_client import McpServer, listed_tools, mcp_environment, mcp_opener
from slca_jax.envs.state import final_state, golden_state
from slca_jax.errors import ConfigError, EnvironmentFailure

SCRIPT = pathlib.Path(__file__).parents[1] / 'served.py'
SERVER = McpServer((sys.executable, str(SCRIPT)), start_seconds=300.0)
SEARCH = ToolCall('search_event', {'query': 'fair'})
BOOK = ToolCall('book_hotel', {'hotel_id': 'H101', 'checkin_date': '2026-09-18'})
WHISPER = ToolCall('whisper', {})


OFFERED = repr({'tools': [{'name': 'whisper', 'inputSchema': {'type': 'object'}}]})
EXTRA = (Tool('die', '', travel.schema()), Tool('whisper', '', travel.schema()))


def task(*steps):
  return Task('trip', (*travel.OFFERED, *EXTRA), (Message('user', 'Plan it.'),), gold=tuple(steps))


def alive(process):
  try:
    os.kill(process, 0)
  except ProcessLookupError:
    return False
  return pathlib.Path(f'/proc/{process}/stat').read_text().rpartition(')')[2].split()[0] != 'Z'


def ended(process, *, seconds=300):
  end = time.monotonic() + seconds
  while alive(process) and time.monotonic() < end:
    time.sleep(0.05)
  return not alive(process)


def scripted(tmp_path, *silent, **answers):
  """A server that introduces itself, gives these answers by method, to `silent` methods none, and refuses others."""
  hello = "{'protocolVersion': message['params']['protocolVersion'], 'capabilities': {'tools': {}}, 'serverInfo': NAME}"
  told = {'initialize': hello} | {name.replace('_', '/'): answer for name, answer in answers.items()}
  cases = ''.join(f'  elif method == {method!r}:\n    answer(result={result})\n' for method, result in told.items())
  program = tmp_path / 'scripted.py'
  program.write_text(
    f"""
import json, sys
NAME = {{'name': 'scripted', 'version': '1'}}
def answer(**said):
  print(json.dumps({{'jsonrpc': '2.0', 'id': message['id'], **said}}), flush=True)
for line in sys.stdin:
  message = json.loads(line)
  method = message['method']
  if method in {silent!r} or 'id' not in message:
    continue
{cases}  else:
    answer(error={{'code': -32601, 'message': 'no'}})
""",
    encoding='utf-8',
  )
  return McpServer((sys.executable, str(program)), start_seconds=300.0)


def test_served_tools_are_the_environments_tools():
  tools = listed_tools(SERVER)
  assert tools[: len(travel.OFFERED)] == travel.OFFERED
  assert [tool.name for tool in tools[len(travel.OFFERED) :]] == ['die', 'whisper']


def test_a_served_rollout_sees_and_does_what_a_local_one_does():
  calls = [SEARCH, ToolCall('search_hotels', {'location': 'Congress Centre', 'checkin_date': '2026-09-18'}), BOOK]
  wrong = [ToolCall('book_hotel', {}), ToolCall('get_hotel_detail', {'hotel_id': 'H9'}), ToolCall('fly', {})]

  async def roll(world):
    seen = [await world.step([call]) for call in [*calls, *wrong]]
    return seen, await final_state(world)

  local = Executable(World(travel.OFFERED, travel.FUNCTIONS, inline=True), travel.DATABASE)
  served = mcp_environment(SERVER)
  try:
    assert asyncio.run(roll(served)) == asyncio.run(roll(local))
  finally:
    served.close()


def test_golden_traces_replay_through_a_server_and_each_rollout_is_fresh():
  opened = mcp_opener(SERVER)
  expected = [{'path': ['bookings', 'B9001'], 'now': {'hotel_id': 'H101', 'date': '2026-09-18'}}]
  trip = task((SEARCH,), (BOOK,))

  async def both():
    return await asyncio.gather(golden_state(trip, opened), golden_state(trip, opened))

  assert asyncio.run(both()) == [expected, expected]


def test_a_shared_server_is_one_process_and_outlives_a_rollout():
  opened, trip = mcp_opener(SERVER, each='run'), task()
  first, second = opened(trip, 0), opened(trip, 1)
  [one] = asyncio.run(first.step([WHISPER]))
  first.close()
  with pytest.raises(EnvironmentFailure, match='closed'):
    asyncio.run(first.step([WHISPER]))
  [two] = asyncio.run(second.step([WHISPER]))  # another event loop
  assert one.ok and one == two
  with pytest.raises(EnvironmentFailure, match='dead'):
    asyncio.run(second.step([ToolCall('die', {})]))
  third = opened(trip, 2)
  [other] = asyncio.run(third.step([WHISPER]))
  assert other.ok and other != one
  third._connection.close()


def test_closing_ends_the_process():
  world = mcp_environment(SERVER, tools=EXTRA)
  [seen] = asyncio.run(world.step([WHISPER]))
  process = json.loads(seen.content)['process']
  assert alive(process)
  world.close()
  world.close()
  assert ended(process)


def test_a_server_that_nobody_closed_ends_with_the_interpreter():
  code = f"""
import asyncio
from slca_jax.dialogue import ToolCall
from slca_jax.envs.mcp_client import McpServer, mcp_environment
world = mcp_environment(McpServer({SERVER.command!r}))
print(asyncio.run(world.step([ToolCall("whisper", {{}})]))[0].content)
"""
  done = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
  assert ended(json.loads(done.stdout)['process'])


def test_a_server_that_dies_is_a_failure_that_tells_its_last_words():
  world = mcp_environment(SERVER)
  with pytest.raises(EnvironmentFailure, match=r'served\.py.* is dead.*out of luck'):
    asyncio.run(world.step([ToolCall('die', {})]))
  with pytest.raises(EnvironmentFailure):
    asyncio.run(world.step([SEARCH]))
  world.close()


def test_a_call_that_hangs_is_an_observation_and_the_next_one_is_not_its_victim():
  world = mcp_environment(McpServer((*SERVER.command, 'slow'), start_seconds=300.0), limits=CallLimits(deadline=0.5))
  [hung] = asyncio.run(world.step([ToolCall('get_hotel_detail', {'hotel_id': 'H101'})]))
  world._limits = CallLimits(deadline=300.0)
  [answered] = asyncio.run(world.step([SEARCH]))
  assert not hung.ok and 'did not answer within 0.5 seconds' in hung.content
  assert answered.ok
  world.close()


def test_a_server_that_never_answers_a_question_is_a_failure(tmp_path, monkeypatch):
  server = scripted(tmp_path, 'tools/list', 'resources/read')
  monkeypatch.setattr(mcp_client, '_READ_SECONDS', 0.5)
  with pytest.raises(EnvironmentFailure, match=r'gave no answer within 0\.5 seconds'):
    mcp_environment(server)
  world = mcp_environment(server, tools=EXTRA)
  with contextlib.closing(world), pytest.raises(EnvironmentFailure, match='gave no answer within'):
    asyncio.run(final_state(world))


def test_a_list_of_tools_without_end_is_a_failure(tmp_path, monkeypatch):
  server = scripted(tmp_path, tools_list="{'tools': [], 'nextCursor': str(message['id'])}")
  monkeypatch.setattr(mcp_client, '_READ_SECONDS', 0.5)
  with pytest.raises(EnvironmentFailure, match='gave no answer within'):
    mcp_environment(server)


def test_tools_that_are_none_are_a_failure(tmp_path):
  with pytest.raises(EnvironmentFailure, match='answers what is no MCP'):
    mcp_environment(scripted(tmp_path, tools_list="{'tools': [{'name': 5}]}"))


def test_a_byte_that_is_no_text_costs_no_more_than_itself(tmp_path):
  server = scripted(tmp_path, tools_list=OFFERED, tools_call="{'content': [{'type': 'text', 'text': 'fair'}]}")
  program = pathlib.Path(server.command[1])
  program.write_text(
    program.read_text('utf-8').replace('  message = json', "  sys.stdout.buffer.write(b'\\xff\\n')\n  message = json"),
    encoding='utf-8',
  )
  with contextlib.closing(mcp_environment(server, tools=EXTRA, limits=CallLimits(deadline=300.0))) as world:
    assert [asyncio.run(world.step([WHISPER]))[0].content for _ in range(2)] == ['fair', 'fair']


def test_parts_of_an_answer_that_are_no_text_are_named(tmp_path):
  parts = [
    {'type': 'text', 'text': 'see'},
    {'type': 'image', 'data': 'AAAA', 'mimeType': 'image/png'},
    {'type': 'resource_link', 'uri': 'file:///a.txt', 'name': 'a', 'mimeType': 'text/plain'},
    {'type': 'resource', 'resource': {'uri': 'file:///b.bin', 'blob': 'AAAA'}},
    {'type': 'resource', 'resource': {'uri': 'file:///c.txt', 'text': 'inside'}},
  ]
  server = scripted(tmp_path, tools_list=OFFERED, tools_call=repr({'content': parts}))
  with contextlib.closing(mcp_environment(server, tools=EXTRA)) as world:
    [seen] = asyncio.run(world.step([WHISPER]))
  assert seen.content.split('\n') == [
    'see', '[image image/png]', '[resource_link file:///a.txt]', '[file:///b.bin]', 'inside'
  ]  # fmt: skip


def test_a_server_that_does_not_start_is_a_failure():
  with pytest.raises(EnvironmentFailure, match=r'introduce itself within 0\.5 seconds'):
    mcp_environment(McpServer((*SERVER.command, 'mute'), start_seconds=0.5))
  with pytest.raises(EnvironmentFailure, match='no_such_program'):
    mcp_environment(McpServer(('no_such_program',)))
  with pytest.raises(EnvironmentFailure, match='No module named'):
    mcp_environment(McpServer((sys.executable, '-m', 'no_such_module')))
  with pytest.raises(ConfigError, match='command is empty'):
    McpServer(())
