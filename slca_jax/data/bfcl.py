"""Single-turn tasks of the Berkeley Function Calling Leaderboard (package bfcl-eval, data files only).

A record holds a question and function documents; a second file of the same name holds, for every argument of every
right call, the list of accepted values. BFCL runs no function, so results are invented where they are needed.
"""

import hashlib
import importlib.util
import json
import logging
import pathlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slca_jax.chat.checks import checks_of
from slca_jax.dialogue import Dialogue, Message, Task, Tool, ToolCall
from slca_jax.envs.recorded import invent
from slca_jax.errors import DataError

NON_LIVE = ('simple_python', 'multiple', 'parallel', 'parallel_multiple')
LIVE = ('live_simple', 'live_multiple', 'live_parallel', 'live_parallel_multiple')
ACCEPTED = 'possible_answer'  # key of a task's meta: the accepted values of every gold call, as BFCL has them


def data_folder(folder: str = '') -> pathlib.Path:
  """The folder of BFCL's files: the one given, or that of the installed package, which is not imported.

  Raises:
    DataError: there is none.
  """
  if folder:
    path = pathlib.Path(folder)
  else:
    spec = importlib.util.find_spec('bfcl_eval')
    if spec is None or not spec.submodule_search_locations:
      raise DataError('bfcl-eval is not installed; run pip install --no-deps bfcl-eval, or name the folder of its data')
    path = pathlib.Path(spec.submodule_search_locations[0]) / 'data'
  if not (path / ACCEPTED).is_dir():
    raise DataError(f'{path} has no folder {ACCEPTED}; name the folder "data" of the package bfcl-eval')
  return path


def read_bfcl(folder: pathlib.Path, categories: Sequence[str] = NON_LIVE) -> list[Task]:
  """The tasks of some categories, in order. Gold is one step of parallel calls with the first accepted values.

  An argument that may be left out is left out. `meta` holds the category and, under ACCEPTED, all accepted values. A
  task whose gold call does not fit its own tool (there are a few) cannot be solved here: it is left out and logged.

  Raises:
    DataError: a file is missing, or a record is broken or has no answer.
  """
  return [task for category in categories for task in _read_category(folder, category)]


def demonstrate(task: Task) -> Dialogue:
  """The gold calls in one turn, their invented results, and an answer that states these."""
  calls = tuple(call for step in task.gold for call in step)
  seed = zlib.crc32(task.id.encode())
  seen = [invent(None, call, seed=seed) for call in calls]
  results = [Message('tool', json.dumps(value, ensure_ascii=False)) for value in seen]
  answer = Message('assistant', _stating([value['result'] for value in seen]))
  return Dialogue(task.id, task.tools, (*task.messages, Message('assistant', '', calls), *results, answer))


def split(tasks: Sequence[Task], *, heldout: float = 0.2, seed: int = 0) -> tuple[list[Task], list[Task]]:
  """(training tasks, held-out tasks), each in an order that mixes the categories.

  Tasks that ask the same, or whose gold calls share a tool, fall on one side together, so no question and no tool that
  is to be called there was trained on. The side depends on the group's ids and the seed alone.

  Args:
    heldout: share of the groups that is held out.
  """
  sides: tuple[list[Task], list[Task]] = ([], [])
  for group in _connected(tasks):
    chance = _hash(f'{seed}/{min(task.id for task in group)}') / 2**64
    sides[chance < heldout].extend(group)
  for side in sides:
    side.sort(key=lambda task: _hash(f'{seed}/order/{task.id}'))
  return sides


def _read_category(folder: pathlib.Path, category: str) -> Iterator[Task]:
  name = f'BFCL_v4_{category}.json'
  answers = {str(record['id']): record for record in _records(folder / ACCEPTED / name)}
  for record in _records(folder / name):
    identity = str(record.get('id'))
    if identity not in answers:
      raise DataError(f'{folder / name}: {identity} has no entry in {ACCEPTED}')
    try:
      task = decode(identity, category, record, answers[identity]['ground_truth'])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
      raise DataError(f'{folder / name}: {identity} is no record of BFCL: {type(error).__name__}: {error}') from error
    calls = [call for step in task.gold for call in step]
    fault = next(filter(None, map(checks_of(task.tools).fault, calls)), None)
    if fault is None:
      yield task
    else:
      logging.warning('%s is left out, its gold call would be refused: %s', identity, fault)


def _records(path: pathlib.Path) -> list[dict[str, Any]]:
  if not path.is_file():
    raise DataError(f'{path} does not exist; it should hold one JSON record a line')
  with open(path, encoding='utf-8', newline='\n') as file:
    try:
      return [json.loads(line) for line in file if line.strip()]
    except ValueError as error:
      raise DataError(f'{path} holds a line that is no JSON: {error}') from error


def decode(identity: str, category: str, record: Mapping[str, Any], accepted: Sequence[Mapping[str, Any]]) -> Task:
  """The task of a record and the accepted values of its calls; no calls at all need no tool.

  Raises:
    KeyError, TypeError, ValueError, IndexError, AttributeError: the record is of another kind.
  """
  (dialogue,) = record['question']  # several turns would need several answers
  tools = tuple(Tool(tool['name'], tool['description'], tool['parameters']) for tool in record['function'])
  schemas = {tool.name: tool.parameters for tool in tools}
  gold = tuple(
    ToolCall(name, _first_values(arguments, schemas[name])) for call in accepted for name, arguments in call.items()
  )
  messages = tuple(Message(message['role'], message['content']) for message in dialogue)
  return Task(identity, tools, messages, (gold,) if gold else (), meta={'category': category, ACCEPTED: list(accepted)})


def _first_values(accepted: Mapping[str, Any], schema: Any) -> dict[str, Any]:
  """Of each argument the first accepted value; '' among them says that an optional one may be left out."""
  schema = schema if isinstance(schema, Mapping) else {}
  required, properties = schema.get('required', ()), schema.get('properties', {})
  out = {}
  for name, values in accepted.items():
    values = values if isinstance(values, list) else [values]  # inside objects a lone value can stand for its list
    if '' in values and name not in required:
      continue
    stated = [value for value in values if value != '']
    out[name] = _plain(stated[0], properties.get(name, {})) if stated else ''
  return out


def _plain(value: Any, schema: Any) -> Any:
  """An accepted value without the lists of alternatives that stand inside objects."""
  if isinstance(value, Mapping):
    return _first_values(value, schema)
  if isinstance(value, list):
    items = schema.get('items', {}) if isinstance(schema, Mapping) else {}
    return [_plain(item, items) for item in value]
  return value


def _stating(results: Sequence[str]) -> str:
  *most, last = results
  if not most:
    return f'The result is {last}.'
  return f'The results are, in this order, {", ".join(most)} and {last}.'


def _connected(tasks: Sequence[Task]) -> list[list[Task]]:
  """The tasks in groups that share neither a question nor a tool of the gold calls, by union and find."""
  above: dict[str, str] = {}

  def root(key: str) -> str:
    while above.setdefault(key, key) != key:
      key = above[key]
    return key

  for task in tasks:
    question = ' '.join(task.question.casefold().split())
    for key in (f'question {question}', *(f'tool {call.name}' for step in task.gold for call in step)):
      above[root(f'task {task.id}')] = root(key)
  groups: dict[str, list[Task]] = {}
  for task in tasks:
    groups.setdefault(root(f'task {task.id}'), []).append(task)
  return list(groups.values())


def _hash(text: str) -> int:
  return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], 'big')
