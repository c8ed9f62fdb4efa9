"""τ²-bench's domains are themselves when opened here, and rollouts share what none of them writes."""

import asyncio

import pytest

pytest.importorskip('tau2', reason='needs tau2; the docstring of slca_jax.envs.tau2 says how to install it')

from slca_jax.dialogue import ToolCall
from slca_jax.envs.state import final_state, golden_state, replay
from slca_jax.envs.tau2 import Records, load_domain, tau2_opener
from slca_jax.errors import ConfigError, EnvironmentFailure


def test_records_are_copied_when_a_writing_tool_takes_hold_of_them():
  beginning = {'a': [1], 'b': [2], 'c': [3]}
  table = Records(beginning)
  assert table['a'] is beginning['a'] and table.differing() == []
  table.writing = True
  table['a'].append(4)
  table.get('b')
  [*_, last] = table.values()
  last.append(5)
  assert table.pop('c') == [3, 5] and table.pop('d', None) is None
  table['e'] = [6]
  assert beginning == {'a': [1], 'b': [2], 'c': [3]}
  assert dict(table) == {'a': [1, 4], 'b': [2], 'e': [6]}
  assert set(table.differing()) == {'a', 'b', 'c', 'e'}


@pytest.mark.parametrize(('name', 'most'), [('mock', 9), ('retail', 4)])
def test_gold_actions_leave_the_official_final_state(name, most):
  domain, hashes = load_domain(name), []
  untouched = domain.fresh_official().get_db_hash()
  for task in domain.tasks()[:most]:
    environment, official = domain.open(task.meta['tau2']), domain.fresh_official()
    seen = asyncio.run(replay(environment, task.gold))
    beginning = domain.official_tasks[task.meta['tau2']].initial_state
    if beginning is not None:
      official.set_state(
        beginning.initialization_data, beginning.initialization_actions, beginning.message_history or []
      )
    for [call], [answer] in zip(task.gold, seen, strict=True):
      try:
        expected = official.to_json_str(official.make_tool_call(call.name, **call.arguments))
      except Exception as error:
        expected = f'Error: {error}'
      assert answer.content == expected
    hashes.append(environment.official.get_db_hash())
    assert hashes[-1] == official.get_db_hash()
  assert len(set(hashes)) > 2
  assert domain.fresh_official().get_db_hash() == untouched


def test_rollouts_of_a_task_begin_alike_and_do_not_see_each_other():
  [task] = [task for task in load_domain('mock').tasks() if task.id == 'tau2/mock/create_task_1']
  opened = tau2_opener()
  one, other = opened(task, 0), opened(task, 1)
  asyncio.run(replay(one, task.gold))
  assert asyncio.run(final_state(other)) == []
  assert asyncio.run(final_state(one)) == asyncio.run(golden_state(task, opened)) != []


def test_changes_name_what_was_written_and_nothing_else():
  environment = load_domain('mock').open()
  asyncio.run(environment.step([ToolCall('update_task_status', {'task_id': 'task_1', 'status': 'completed'})]))
  assert asyncio.run(environment.changes()) == [{'path': ['tasks', 'task_1', 'status'], 'now': 'completed'}]


def test_tools_say_which_of_them_write():
  writes = {tool.name: tool.writes for tool in load_domain('mock').offered}
  assert writes == {
    'create_task': True, 'get_users': False, 'update_task_status': True, 'transfer_to_human_agents': False,
  }  # fmt: skip


def test_refusals_are_observations():
  calls = [
    ToolCall('update_task_status', {'task_id': 'task_99', 'status': 'completed'}),
    ToolCall('assert_task_status', {'task_id': 'task_1', 'expected_status': 'pending'}),
    ToolCall('create_task', {'nobody': 1}),
    ToolCall('create_task', {'tool_name': 'x', 'requestor': 'user'}),
  ]
  seen = asyncio.run(load_domain('mock').open().step(calls))
  assert [answer.ok for answer in seen] == [False] * 4
  assert seen[0].content == 'Error: Task task_99 not found'
  assert seen[1].content == "Error: there is no tool named 'assert_task_status' here."


def test_powers_do_not_stop_the_process():
  seen = asyncio.run(
    load_domain('retail').open().step([ToolCall('calculate', {'expression': e}) for e in ('9**9**9**9', '2 + 3')])
  )
  assert [(answer.ok, answer.content) for answer in seen] == [
    (False, 'Error: Invalid characters in expression'), (True, '5.0'),
  ]  # fmt: skip


def test_unknown_domains_and_tasks_are_named():
  with pytest.raises(ConfigError, match='telecom'):
    load_domain('telecom')
  with pytest.raises(EnvironmentFailure, match='no task'):
    load_domain('mock').open('nowhere')
