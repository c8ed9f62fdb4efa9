"""Tasks and demonstrations on disk, and the order in which training meets them.

A record is one line of JSON. Schemas and arguments stand in it as JSON *strings*: readers that infer one struct for a
whole column (Arrow) would otherwise fill every tool's arguments with every other tool's keys.
"""

import json
import os
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from slca_jax.chat.schema import compile_tool
from slca_jax.data.remembered import Remembered
from slca_jax.dialogue import Dialogue, Message, Steps, Task, Tool, ToolCall, check_context
from slca_jax.errors import DataError

Item = TypeVar('Item')
Record = TypeVar('Record', Task, Dialogue)
_ROLES = frozenset(('system', 'user', 'assistant', 'tool'))
_NO_CALLS = '[]'  # most messages; files of a million rows are worth the comparison
_ENCODER = json.JSONEncoder(ensure_ascii=False)  # `json.dumps` would make one for each text


class Order(Generic[Item]):
  """An endless shuffled order of items that depends on (seed, step) alone: resuming needs no more than the step.

  Every epoch is a permutation of its own; a batch may reach over the border of two epochs, so none is cut short.
  """

  def __init__(self, items: Sequence[Item], batch: int, *, seed: int):
    if not items:
      raise DataError('there are no tasks to train on')
    self._items, self._batch, self._seed = items, batch, seed
    self._epoch, self._permutation = -1, list[int]()

  def __call__(self, step: int) -> list[Item]:
    """The items of batch `step`, counted from 0."""
    return [self._item(step * self._batch + i) for i in range(self._batch)]

  def _item(self, index: int) -> Item:
    epoch, offset = divmod(index, len(self._items))
    if epoch != self._epoch:
      self._permutation = list(range(len(self._items)))
      random.Random(f'{self._seed}/epoch/{epoch}').shuffle(self._permutation)
      self._epoch = epoch
    return self._items[self._permutation[offset]]


def read_tasks(path: str | os.PathLike[str]) -> list[Task]:
  """The tasks of a JSONL file, in order.

  Raises:
    DataError: names the file, the line and what is wrong with it; also for an id that occurs twice, and for tools whose
      schema cannot be checked or that share a name.
  """
  return list(_records(path, _checked_task))


def stream_dialogues(path: str | os.PathLike[str]) -> Iterator[Dialogue]:
  """The demonstrations one at a time, of which the ids alone are held; raises as `read_tasks` does."""
  return _records(path, dialogue_from_json)


def read_dialogues(path: str | os.PathLike[str]) -> list[Dialogue]:
  """The demonstrations of a JSONL file, in order; raises as `read_tasks` does."""
  return list(stream_dialogues(path))


def write_tasks(tasks: Iterable[Task], path: str | os.PathLike[str]) -> int:
  """Writes one line per task and returns how many; the file appears whole or not at all."""
  return _write(map(task_to_json, tasks), path)


def write_dialogues(dialogues: Iterable[Dialogue], path: str | os.PathLike[str]) -> int:
  """Writes one line per demonstration, as `write_tasks` does."""
  return _write(map(dialogue_to_json, dialogues), path)


def _records(path: str | os.PathLike[str], decode: Callable[[dict[str, Any]], Record]) -> Iterator[Record]:
  seen: dict[str, int] = {}
  with open(path, 'rb') as file:  # as bytes, '\n' alone ends a line: JSON strings may hold U+2028
    for number, line in enumerate(file, 1):
      if not line.strip():
        continue
      try:
        record = decode(json.loads(line))
      except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f'{path}:{number}: {type(error).__name__}: {error}'
        if number == 1:
          reason += f'; rows of another format are prepared first: launch/prepare_data.py --config.input={path}'
        raise DataError(reason) from error
      if record.id in seen:
        raise DataError(
          f'{path}:{number}: id {record.id!r} already stands on line {seen[record.id]}; ids seed rollouts'
        )
      seen[record.id] = number
      yield record


def _write(records: Iterable[dict[str, Any]], path: str | os.PathLike[str]) -> int:
  count = 0
  with open(f'{path}.part', 'w', encoding='utf-8', newline='\n') as file:
    for record in records:
      file.write(json.dumps(record, ensure_ascii=False) + '\n')
      count += 1
  os.replace(f'{path}.part', path)
  return count


def _checked_task(record: dict[str, Any]) -> Task:
  task = task_from_json(record)
  names = [compile_tool(tool).tool.name for tool in task.tools]
  if len(set(names)) < len(names):
    raise ValueError(f'tools share a name: {", ".join(names)}; a call could mean either')
  return task


def task_to_json(task: Task) -> dict[str, Any]:
  """The record of a task; `task_from_json` reads it back equal."""
  return {
    'id': task.id,
    'tools': _tools_to_json(task.tools),
    'messages': _messages_to_json(task.messages),
    'gold': json.dumps([[_call_to_json(call) for call in step] for step in task.gold], ensure_ascii=False),
    'answer': task.answer,
    'facts': list(task.facts),
    'blueprint': task.blueprint,
    'meta': json.dumps(dict(task.meta), ensure_ascii=False),
  }


def task_from_json(record: dict[str, Any]) -> Task:
  """The task of a record.

  Raises:
    KeyError, TypeError, ValueError: a field is missing or is not what it should be.
  """
  messages = record['messages']
  if not messages or messages[-1]['role'] not in ('user', 'tool'):
    raise ValueError('the last message must be the user (or a tool); it is what the policy answers')
  return Task(
    id=str(record['id']),
    tools=_tools_from_json(record['tools']),
    messages=_messages_from_json(messages),
    gold=_gold_from_json(record['gold']),
    answer=_string_or_none(record.get('answer'), 'answer'),
    facts=_strings(record.get('facts') or [], 'facts'),
    blueprint=_string_or_none(record.get('blueprint'), 'blueprint'),
    meta=_meta_from_json(record.get('meta') or '{}'),
  )


def dialogue_to_json(dialogue: Dialogue) -> dict[str, Any]:
  """The record of a demonstration; `dialogue_from_json` reads it back equal."""
  return {
    'id': dialogue.id,
    'tools': _tools_to_json(dialogue.tools),
    'messages': _messages_to_json(dialogue.messages),
    'context': dialogue.context,
  }


def dialogue_from_json(record: dict[str, Any]) -> Dialogue:
  """The demonstration of a record; raises as `task_from_json` does."""
  messages = _messages_from_json(record['messages'])
  if not messages or messages[-1].role != 'assistant':
    raise ValueError('a demonstration ends with an assistant message')
  context = record.get('context')
  if context is not None:
    check_context([message.role for message in messages], context)
  return Dialogue(str(record['id']), _tools_from_json(record['tools']), messages, context)


def _messages_to_json(messages: Sequence[Message]) -> list[dict[str, Any]]:
  return [_message_to_json(message) for message in messages]


def _message_to_json(message: Message) -> dict[str, Any]:
  record = {'role': message.role, 'content': message.content, 'calls': _calls_to_json(message.calls)}
  return record if message.learn else record | {'learn': False}


def _messages_from_json(records: Sequence[dict[str, Any]]) -> tuple[Message, ...]:
  return tuple(map(_message_from_json, records))


def _message_from_json(record: dict[str, Any]) -> Message:
  learn = record.get('learn')  # null where a reader gave the key to every message
  if learn is not None and not isinstance(learn, bool):
    raise TypeError(f'learn is {learn!r}; it is true or false')
  role, content, calls = record['role'], record['content'], _calls_from_json(record.get('calls') or _NO_CALLS)
  if role not in _ROLES:  # templates leave out whom they do not know
    raise ValueError(f'the role is {role!r}; it is system, user, assistant or tool')
  if not isinstance(content, str):
    raise TypeError(f'the content of the {role} is {str(content)[:80]!r}; it must be a string')
  if calls and role != 'assistant':
    raise ValueError(f'{calls[0].name!r} is called by the {role}; calls stand on messages of the assistant')
  return Message(role, content, calls, learn is not False)


def _string_or_none(value: Any, what: str) -> str | None:
  if value is not None and not isinstance(value, str):
    raise TypeError(f'{what} is {str(value)[:80]!r}; it must be a string')
  return value


def _strings(values: Any, what: str) -> tuple[str, ...]:
  if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
    raise TypeError(f'{what} are {str(values)[:80]!r}; they must be a list of strings')
  return tuple(values)


def _tools_to_json(tools: Sequence[Tool]) -> str:
  return f'[{", ".join(map(_tool_text, tools))}]'


def _tools_from_json(text: str) -> tuple[Tool, ...]:
  tools = tuple(Tool(**tool) for tool in json.loads(text))
  for tool in tools:
    if not tool.well_typed:
      raise TypeError(f'{str(tool)[:80]} needs a name and a description, both strings, and an object of parameters')
  return tools


def _tool_to_json(tool: Tool) -> dict[str, Any]:
  return {
    'name': tool.name,
    'description': tool.description,
    'parameters': dict(tool.parameters),
    'returns': None if tool.returns is None else dict(tool.returns),
    'writes': tool.writes,
  }


_tool_text = Remembered[Tool, str](lambda tool: _ENCODER.encode(_tool_to_json(tool)), most=4096)


def _call_to_json(call: ToolCall) -> dict[str, Any]:
  return {'name': call.name, 'arguments': dict(call.arguments)}


def _call_from_json(record: dict[str, Any]) -> ToolCall:
  if not isinstance(record['arguments'], dict):
    raise TypeError(f'arguments of {record["name"]!r} are {record["arguments"]!r}; they must be an object')
  if not isinstance(record['name'], str):
    raise TypeError(f'the name of a call is {record["name"]!r}; it must be a string')
  return ToolCall(record['name'], record['arguments'])


def _gold_from_json(text: str) -> Steps:
  steps = json.loads(text)
  if not isinstance(steps, list) or not all(isinstance(step, list) for step in steps):
    raise TypeError(f'gold is {text[:80]!r}; it must be a list of steps, each a list of calls')
  return tuple(tuple(map(_call_from_json, step)) for step in steps)


def _meta_from_json(text: str) -> dict[str, Any]:
  meta = json.loads(text)
  if not isinstance(meta, dict):
    raise TypeError(f'meta is {text[:80]!r}; it must be an object')
  return meta


def _calls_to_json(calls: Sequence[ToolCall]) -> str:
  return _ENCODER.encode([_call_to_json(call) for call in calls]) if calls else _NO_CALLS


def _calls_from_json(text: str) -> tuple[ToolCall, ...]:
  return tuple(_call_from_json(record) for record in json.loads(text)) if text != _NO_CALLS else ()
