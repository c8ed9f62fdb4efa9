"""Rows with a `prompt` and what a right answer is: SLCA-GRPO's released RL and evaluation rows, verl's, verifiers'."""

import json
from collections.abc import Mapping
from typing import Any

from slca_jax.data.formats.chat import messages_of, prompt_task
from slca_jax.data.formats.row import GOLD, NAMES, UNKNOWN, BadRow, question_id
from slca_jax.data.formats.tagged import heard, schemas_in, spoken
from slca_jax.data.formats.texts import literal, load, shown
from slca_jax.data.formats.turns import Decoded, arrange
from slca_jax.data.formats.values import by_name, call_of, entries, plain, tools_of
from slca_jax.dialogue import Message, Steps, Task, Tool, ToolCall


def decode_slca(record: Mapping[str, Any]) -> Decoded:
  """SLCA-GRPO's rows for RL and evaluation, gold as names or as calls, flat or in steps, as a list or its JSON.

  A flat gold is one step, as the authors' reward reads it. The system message that holds the tools is left out.
  """
  truth = record['reward_model']['ground_truth']
  truth = load(truth, 'ground truth') if isinstance(truth, str) else truth
  tools = _schemas(record, truth)
  messages, dump = _history(record['prompt'], by_name(tools))
  tools = tools or schemas_in(dump)
  gold, named = gold_of(truth.get('gold_tool_calls'), by_name(tools))
  extra = record.get('extra_info') or {}
  meta: dict[str, Any] = {'data_source': str(record.get('data_source') or '')}
  if extra.get('original_turn_index') is not None:
    meta['turn'] = int(extra['original_turn_index'])
  if named:
    meta[GOLD] = NAMES
  task = Task('', tools, messages, gold, meta=meta)
  return Decoded(task, dialogue_id=_first_question(messages), subset=str(truth.get('subset_name') or ''))


def decode_verl(record: Mapping[str, Any]) -> Decoded:
  """A verl row of any other kind: the ground truth is the reference answer, and gold calls are unknown."""
  tools = tools_of(record.get('tools'))
  task = prompt_task(record, messages_of(entries(record['prompt'], 'messages'), tools), tools)
  truth, extra = record['reward_model'].get('ground_truth'), record.get('extra_info') or {}
  meta = {GOLD: UNKNOWN, 'data_source': str(record.get('data_source') or '')}
  if extra.get('tools_kwargs'):
    meta['tools_kwargs'] = extra['tools_kwargs']
  task = Task('', tools, task.messages, (), _answer(truth), meta=meta)
  return Decoded(task, dialogue_id=_first_question(task.messages), subset=str(record.get('ability') or ''))


def decode_verifiers(record: Mapping[str, Any]) -> Decoded:
  """A row of verifiers: prompt and answer, gold calls unknown; `info` is kept in the task's meta."""
  info = record.get('info')
  info = load(info, 'info') if isinstance(info, str) and info.strip() else info or {}
  listed = info.get('tools') if isinstance(info, Mapping) else None
  described = isinstance(listed, list) and bool(listed) and all(isinstance(one, Mapping) for one in listed)
  tools = tools_of(record.get('tools') or (listed if described else None))
  task = prompt_task(record, messages_of(entries(record['prompt'], 'messages'), tools), tools)
  answer, meta = record.get('answer'), {GOLD: UNKNOWN, 'info': info}
  task = Task('', tools, task.messages, (), _answer(answer) if answer else None, meta=meta)
  return Decoded(task, dialogue_id=_first_question(task.messages), subset=str(record.get('task') or ''))


def decode_prompt(record: Mapping[str, Any]) -> Decoded:
  """TRL's `prompt` alone, a list of messages: a task whose gold is unknown."""
  tools = tools_of(record.get('tools'))
  task = prompt_task(record, messages_of(entries(record['prompt'], 'messages'), tools), tools)
  task = Task('', tools, task.messages, meta={GOLD: UNKNOWN})
  return Decoded(task, dialogue_id=_first_question(task.messages))


def gold_of(value: Any, tools: Mapping[str, Tool]) -> tuple[Steps, bool]:
  """(steps of parallel calls, whether they are names alone). A flat list is one step.

  Raises:
    BadRow: names and calls are mixed, or a step is no list.
  """
  value = plain(value)
  written = isinstance(value, str)
  if written:
    value = literal(value) if value.strip() else []
  if value is None:
    return (), False
  if not isinstance(value, list):
    raise BadRow('gold', f'gold_tool_calls are {shown(value)}; they must be a list')
  nested = [isinstance(one, list) for one in value]
  if any(nested) and not all(nested):
    raise BadRow('gold', f'gold_tool_calls {shown(value)} mix steps and calls')
  steps = value if nested and all(nested) else [value]
  flat = [one for step in steps for one in step]
  if any(isinstance(one, list) for one in flat):
    raise BadRow('gold', f'gold_tool_calls {shown(value)} nest deeper than steps of calls')
  # A string is a name, unless it is an object's JSON.
  named = [isinstance(one, str) and not one.lstrip().startswith('{') for one in flat]
  if any(named) and not all(named):
    raise BadRow('gold', f'gold_tool_calls {shown(value)} mix names and calls')
  make = (lambda one: ToolCall(one, {})) if any(named) else (lambda one: call_of(one, tools, written=written))
  return tuple(tuple(make(one) for one in step) for step in steps if step), any(named)


def _schemas(record: Mapping[str, Any], truth: Mapping[str, Any]) -> tuple[Tool, ...]:
  """The tools of the column and of the ground truth, which must agree where both are there."""
  column, gold = tools_of(record.get('tools')), tools_of(truth.get('tool_schemas'))
  if column and gold and column != gold:
    raise BadRow('tools', 'the column tools and ground_truth.tool_schemas differ')
  tools, allowed = column or gold, plain(truth.get('allowed_tools'))
  names = {tool.name for tool in tools}
  if tools and allowed and set(allowed) != names:
    raise BadRow('tools', f'allowed_tools are {shown(allowed)}, the schemas are of {shown(sorted(names))}')
  return tools


def _history(prompt: Any, tools: Mapping[str, Tool]) -> tuple[tuple[Message, ...], str]:
  """(the messages of a prompt whose calls and results are tags in the text, the system text with the tools)."""
  messages, dump = list[Message](), ''
  for record in entries(prompt, 'messages'):
    role, text = record.get('role'), record.get('content')
    if not isinstance(text, str):
      raise BadRow('content', f'the content of a message is {shown(text)}; it must be text')
    if role == 'assistant':
      messages.append(spoken(text, tools))
    elif role == 'user':
      messages += heard(text)
    elif role == 'system' and '<tools>' in text:
      dump = text
    elif role in ('system', 'tool'):
      messages.append(Message(role, text))
    else:
      raise BadRow('role', f'the role {shown(role)} is not known')
  if not messages or messages[-1].role not in ('user', 'tool'):
    raise BadRow('no_question', 'the prompt does not end with a question')
  return arrange(messages, joint=True), dump


def _first_question(messages: tuple[Message, ...]) -> str:
  """Rows cut from one dialogue have its first question in common, and nothing else to tell."""
  return question_id(next((message.content for message in messages if message.role == 'user'), ''))


def _answer(truth: Any) -> str | None:
  return truth if truth is None or isinstance(truth, str) else json.dumps(plain(truth), ensure_ascii=False)
