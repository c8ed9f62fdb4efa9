"""Dialogues to imitate: right in format and answer, mostly wasteful in the calls they make."""

import json
import random
from collections.abc import Sequence

from slca_jax.dialogue import Message, Steps, Task, ToolCall
from slca_jax.quickstart.world import FUNCTIONS

EFFICIENT_SHARE = 0.2


def demonstrate(
  task: Task, *, efficient: bool | None = None, efficient_share: float = EFFICIENT_SHARE
) -> tuple[Message, ...]:
  """The whole dialogue: question, calls with what the tools return, answer.

  Args:
    efficient: whether it takes the gold steps; decided by the task's id if None, so that a task has one demonstration.
    efficient_share: how often it does then.
  """
  if efficient is None:
    efficient = random.Random(f'demonstration/{task.id}').random() < efficient_share
  steps = task.gold if efficient else wasteful_steps(task)
  turns = [message for step in steps for message in (Message('assistant', '', step), *_returns(task, step))]
  return (*task.messages, *turns, Message('assistant', task.answer or ''))


def wasteful_steps(task: Task) -> Steps:
  """One call at a time, after a search that tells nothing; before a single look-up, a glance at the market as well.

  Three plain look-ups go without the search: they are slow enough.
  """
  calls = [ToolCall(name, arguments) for name, arguments in task.meta['serial']]
  lookups = []
  if len(task.facts) < 3:
    (first,) = calls[0].arguments.values()
    lookups.append(ToolCall('search', {'query': first}))
  if len(calls) == 1:
    lookups.insert(0, ToolCall('market_status', {}))
  return tuple((call,) for call in (*lookups, *calls))


def _returns(task: Task, step: Sequence[ToolCall]) -> list[Message]:
  database = task.meta['database']
  return [Message('tool', json.dumps(FUNCTIONS[call.name](database, **call.arguments))) for call in step]
