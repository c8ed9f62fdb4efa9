"""What a reader of data sets hands on: a row with its origin, and the two views of it, demonstration and task."""

import dataclasses
import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from slca_jax.dialogue import Dialogue, Message, Task, Tool
from slca_jax.errors import DataError

GOLD = 'gold'  # key of a task's meta where its gold is less than calls in full: one of the two values below
NAMES, UNKNOWN = 'names', 'unknown'
RECORDED = 'recorded'  # key of a task's meta: what its gold calls returned, as environments play it back


class BadRow(DataError):
  """A row that is not what its format says. `code` is a word for counters, the message says what was seen."""

  def __init__(self, code: str, message: str):
    super().__init__(message)
    self.code = code


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
  """One row of a data set. Exactly one of `dialogue`, `task`, `tools` and `fault` is set.

  Attributes:
    id: unique within what is read: the row's own id, else its file and line.
    dialogue_id: equal for rows cut from one dialogue; nothing with one dialogue_id may be on two sides of a split.
    source: the file or hub name.
    line: the line of a text file, else the row's number; from 1.
    format: which format it was read as.
    subset: what the source calls the part it belongs to, '' if nothing.
    dialogue: a demonstration.
    task: a question with its gold. `task.meta[GOLD]` is NAMES if the source names tools but not their arguments, and
      UNKNOWN if it says nothing of calls; without the key, gold is complete and () says that no tool is needed.
    tools: tools alone.
    meta: what else the source says of the row, such as its judges' scores.
    fault: why the row cannot be used, as a word; only where faults are let through.
    why: the fault in a sentence, with file and line.
  """

  id: str
  dialogue_id: str
  source: str
  line: int
  format: str
  subset: str = ''
  dialogue: Dialogue | None = None
  task: Task | None = None
  tools: tuple[Tool, ...] = ()
  meta: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  fault: str = ''
  why: str = ''


def turns_of(dialogue: Dialogue) -> Iterator[int]:
  """For each user turn that the assistant answers, how many leading messages make its prompt, in order."""
  for index, (message, after) in enumerate(itertools.pairwise(dialogue.messages), 1):
    if message.role == 'user' and after.role == 'assistant':
      yield index


def task_of(dialogue: Dialogue, *, context: int | None = None) -> Task:
  """The task that the demonstration solves in one user turn.

  Gold are the calls of that turn, a step for each message that calls; `answer` is the turn's last message, if it calls
  nothing; `meta['recorded']` is what the calls returned, where there is one result for each.

  Args:
    context: how many leading messages are the prompt, one of `turns_of`; by default the dialogue's own context, and
      without one the messages before the first by the assistant. What follows the next user message is left out.

  Raises:
    DataError: the prompt does not end with a user or a tool.
  """
  messages = dialogue.messages
  if context is None:
    context = dialogue.context
  if context is None:
    context = next((i for i, message in enumerate(messages) if message.role == 'assistant'), len(messages))
  if not 0 < context <= len(messages) or messages[context - 1].role not in ('user', 'tool'):
    raise DataError(f'dialogue {dialogue.id}: {context} leading messages are no prompt; it ends with a user or a tool')
  end = next((i for i in range(context, len(messages)) if messages[i].role == 'user'), len(messages))
  turn = messages[context:end]
  gold = tuple(message.calls for message in turn if message.calls)
  answer = turn[-1].content if turn and turn[-1].role == 'assistant' and not turn[-1].calls else None
  meta = {RECORDED: recorded} if (recorded := list(_recorded(turn))) else {}
  return Task(dialogue.id, dialogue.tools, messages[:context], gold, answer, meta=meta)


def dialogue_of(task: Task) -> Dialogue:
  """The demonstration of a task's gold: its steps with their recorded results, and its answer.

  The dialogue may end with calls, if there is nothing after them.

  Raises:
    DataError: gold is not known in full, a result is missing before another turn, or there is nothing to show.
  """
  if GOLD in task.meta:
    raise DataError(f'task {task.id}: its gold calls are not known in full, so they cannot be shown')
  recorded = list(task.meta.get(RECORDED, ()))
  messages = list(task.messages)
  for number, step in enumerate(task.gold, 1):
    messages.append(Message('assistant', '', step))
    if number == len(task.gold) and not task.answer:
      break
    messages += [Message('tool', _result(task, recorded, call.name, call.arguments)) for call in step]
  if task.answer:
    messages.append(Message('assistant', task.answer))
  if len(messages) == len(task.messages):
    raise DataError(f'task {task.id}: neither gold calls nor an answer, so there is nothing to show')
  return Dialogue(task.id, task.tools, tuple(messages), len(task.messages))


def hashed(text: str) -> int:
  """64 bits that stand for a text: enough for many millions of ids."""
  return int.from_bytes(hashlib.blake2b(text.encode('utf-8', 'replace'), digest_size=8).digest(), 'little')


def question_id(question: str) -> str:
  """An id for a dialogue whose source gives none: of its first question, white space and case apart."""
  return 'q' + hashlib.sha256(' '.join(question.casefold().split()).encode()).hexdigest()[:16]


def _recorded(turn: tuple[Message, ...]) -> Iterator[dict[str, Any]]:
  for index, message in enumerate(turn):
    results = []
    for after in turn[index + 1 :]:
      if after.role != 'tool':
        break
      results.append(after.content)
    if len(results) == len(message.calls):  # else nobody knows which result is whose
      for call, content in zip(message.calls, results, strict=True):
        yield {'name': call.name, 'arguments': dict(call.arguments), 'content': content}


def _result(task: Task, recorded: list[dict[str, Any]], name: str, arguments: Mapping[str, Any]) -> str:
  """The first record of the call that was not used yet; the last use of equal calls is theirs alone."""
  for index, record in enumerate(recorded):
    if record['name'] == name and record['arguments'] == arguments:
      return recorded.pop(index)['content']
  raise DataError(f'task {task.id}: no recorded result of {name!r}, which another turn follows')
