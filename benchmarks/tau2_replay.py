"""Replays the gold actions of every task of τ²-bench: in our environments, and by its own means where users have tools.

    python benchmarks/tau2_replay.py [--domains=mock,airline,retail] [--python=/venvs/tau2/bin/python --most=3]

Needs an interpreter with tau2 (`slca_jax/envs/tau2.py` says how to get one) and pandas, which its evaluator imports. Of
each task it asks:

  state     do the gold actions leave the database that tau2's own environment has after them, by tau2's hash, and does
            tau2's environment evaluator, given the rollout as a trajectory, say so too (it makes the calls again and
            refuses a trajectory with an answer that is not its own)
  reward    does that evaluator give full reward; of tasks without gold actions it is not asked
  repeats   are two replays alike, in answers and in final state
  refusals  is refused what tau2 itself refuses, and nothing else

With `--python` the second replay goes through an MCP server that this interpreter runs, a process per rollout.

`--controls=airline,retail,telecom` asks of these domains, whose users may have tools, how many tasks tau2's environment
evaluator accepts after the gold actions of agent and user, and how many with nothing done. Expect, of the base split:

  airline   50/50, and 20 with nothing done
  retail    114/114, and 11
  telecom   114/114, and 20

`--domains= --controls=telecom` does nothing else.
"""

import asyncio
import pathlib
import time
from typing import Any

from absl import app, flags

from slca_jax.dialogue import Observation, Task
from slca_jax.envs.environment import Environment
from slca_jax.envs.mcp_client import McpServer, mcp_environment
from slca_jax.envs.state import final_state, replay
from slca_jax.envs.tau2 import DOMAINS, Domain, Tau2, load_domain
from slca_jax.evals.tau2_official import Official

_DOMAINS = flags.DEFINE_list('domains', list(DOMAINS), 'Which domains.')
_PYTHON = flags.DEFINE_string('python', '', 'An interpreter with tau2 and mcp, to replay through MCP servers.')
_CONTROLS = flags.DEFINE_list('controls', ['airline', 'retail', 'telecom'], 'Domains of gold actions and of none.')
_MOST = flags.DEFINE_integer('most', 0, 'At most so many tasks per domain; 0 for all.')

Rollout = tuple[list[list[Observation]], list[dict[str, Any]]]  # what it saw, and what it left


def official_end(domain: Domain, task: str) -> tuple[str, int]:
  """(tau2's hash of its database after the gold actions by tau2's own means, how many of them it refuses)."""
  refused = 0
  official = domain.official_tasks[task]
  environment = domain.fresh_official()
  beginning = official.initial_state
  if beginning is not None:
    environment.set_state(
      beginning.initialization_data, beginning.initialization_actions, beginning.message_history or []
    )
  for action in official.evaluation_criteria.actions or []:
    try:
      environment.make_tool_call(action.name, requestor=action.requestor, **action.arguments)
    except Exception:
      refused += 1
  return environment.get_db_hash(), refused


def evaluated(domain: Domain, task: Task, seen: list[list[Observation]]) -> tuple[bool, float]:
  """(does tau2's environment evaluator find the gold database after the rollout, the reward it gives)."""
  from tau2.data_model.message import AssistantMessage, ToolCall, ToolMessage
  from tau2.evaluator.evaluator_env import EnvironmentEvaluator

  official = domain.official_tasks[task.meta['tau2']]
  trajectory = list((official.initial_state.message_history if official.initial_state else None) or [])
  for number, ([call], [answer]) in enumerate(zip(task.gold, seen, strict=True)):
    made = ToolCall(id=str(number), name=call.name, arguments=dict(call.arguments))
    trajectory.append(AssistantMessage(role='assistant', tool_calls=[made]))
    trajectory.append(
      ToolMessage(id=str(number), role='tool', content=answer.content, requestor='assistant', error=not answer.ok)
    )
  found = EnvironmentEvaluator.calculate_reward(domain.fresh_official, official, trajectory)
  return found.db_check is None or found.db_check.db_match, found.reward


async def roll(environment: Environment, task: Task) -> Rollout:
  seen = await replay(environment, task.gold)
  return seen, await final_state(environment)


def check(domain: Domain, task: Task) -> dict[str, bool]:
  """What holds of the task."""
  environment: Tau2 = domain.open(task.meta['tau2'])
  seen, left = asyncio.run(roll(environment, task))
  again: Environment
  if _PYTHON.value:
    script = str(pathlib.Path(__file__).parents[1] / 'launch' / 'serve_mcp.py')
    command = (_PYTHON.value, script, f'--tau2={domain.name}', f'--task={task.meta["tau2"]}')
    again = mcp_environment(McpServer(command), tools=task.tools)
  else:
    again = domain.open(task.meta['tau2'])
  repeated = asyncio.run(roll(again, task))
  again.close()
  environment.close()
  end, refused = official_end(domain, task.meta['tau2'])
  match, reward = evaluated(domain, task, seen)
  return {
    'state': match and environment.official.get_db_hash() == end,
    'reward': reward == 1.0 or not task.gold,
    'repeats': repeated == (seen, left),
    'refusals': sum(not answer.ok for step in seen for answer in step) == refused,
  }


def control(name: str) -> None:
  """Prints what the controls solve of a domain."""
  official, start = Official(), time.perf_counter()
  tasks = official.tasks(name, 'base', False)[: _MOST.value or None]
  found = {task: official.controls(name, task) for task in tasks}
  solved = {what: sum(one[what] == 1 for one in found.values()) for what in ('gold', 'nothing')}
  seconds = time.perf_counter() - start
  print(f'{name:<8} gold {solved["gold"]}/{len(tasks)}, nothing {solved["nothing"]}/{len(tasks)}; {seconds:.0f} s')
  for task, one in found.items():
    if one['gold'] != 1:
      print(f'  {task}: gold actions get {one["gold"]:g}', flush=True)


def main(_: list[str]) -> None:
  for name in _CONTROLS.value:
    control(name)
  for name in _DOMAINS.value:
    domain = load_domain(name)
    tasks = domain.tasks()[: _MOST.value or None]
    start = time.perf_counter()
    found = [check(domain, task) for task in tasks]
    seconds = time.perf_counter() - start
    held = ', '.join(f'{what} {sum(row[what] for row in found)}/{len(found)}' for what in found[0])
    start = time.perf_counter()
    for task in tasks:
      domain.open(task.meta['tau2']).close()
    opened = (time.perf_counter() - start) / len(tasks)
    calls = sum(len(task.gold) for task in tasks)
    print(f'{name:<8} {held}; {calls} calls, {seconds:.0f} s, {opened * 1e3:.2f} ms an open', flush=True)
    for task, row in zip(tasks, found, strict=True):
      if not all(row.values()):
        print(f'  {task.id}: {", ".join(what for what, holds in row.items() if not holds)} does not hold')


if __name__ == '__main__':
  app.run(main)
