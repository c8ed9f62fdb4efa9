"""Rows with `messages`: OpenAI's and TRL's, Toucan's for training and from its teachers, ms-swift's.

They differ in how a call and its result are written; all ways are read wherever they stand, tags in the text included.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slca_jax.data.formats.row import BadRow
from slca_jax.data.formats.tagged import heard, spoken
from slca_jax.data.formats.texts import shown
from slca_jax.data.formats.turns import Decoded, arrange, demonstration, id_of
from slca_jax.data.formats.values import by_name, call_of, calls_of, entries, text_of, tools_of
from slca_jax.dialogue import Dialogue, Message, Task, Tool, ToolCall

_ROLES = {'developer': 'system', 'function': 'tool', 'tool_response': 'tool', 'observation': 'tool'}
_CALLS = ('tool_call', 'function_call')
_REASONING = ('reasoning_content', 'reasoning', 'thinking')
_KEPT = ('target_tools', 'question_quality_assessment', 'response_quality_assessment')


@dataclasses.dataclass(frozen=True, slots=True)
class _Said:
  """A message with the ids that pair calls and results, '' where there is none."""

  message: Message
  ids: tuple[str, ...] = ()
  name: str = ''


def decode_messages(record: Mapping[str, Any]) -> Decoded:
  """The demonstration of a row with `messages` and `tools`, which older rows call `conversations` and `functions`."""
  tools = tools_of(record.get('tools') or record.get('functions'))
  said = record['conversations'] if record.get('messages') is None else record['messages']
  messages = messages_of(entries(said, 'messages'), tools)
  return Decoded(demonstration(messages, tools), id_of(record), meta=_meta(record), subset=_subset(record))


def decode_teacher(record: Mapping[str, Any]) -> Decoded:
  """The demonstration of a teacher's row of Toucan. Its system message repeats the tools and is left out."""
  tools = tools_of(record.get('available_tools'))
  messages = messages_of(entries(record['messages'], 'messages'), tools)
  messages = [message for message in messages if message.role != 'system']
  return Decoded(demonstration(messages, tools), id_of(record), meta=_meta(record), subset=_subset(record))


def decode_completion(record: Mapping[str, Any]) -> Decoded:
  """TRL's `prompt` and `completion`, both lists of messages: the prompt is context, whatever it holds."""
  tools = tools_of(record.get('tools'))
  prompt = arrange(messages_of(entries(record['prompt'], 'messages'), tools))
  said = messages_of(entries(record['completion'], 'messages'), tools)
  shown_ = demonstration([*prompt, *said], tools)
  if shown_.messages[: len(prompt)] != prompt:
    raise BadRow('unfinished', 'the completion goes on with a message that the prompt began')
  return Decoded(Dialogue('', tools, shown_.messages, len(prompt)), id_of(record), subset=_subset(record))


def messages_of(records: Sequence[Any], tools: Sequence[Tool]) -> list[Message]:
  """Messages in which every result stands where its call does: by id, else by name, else by position.

  Raises:
    BadRow: a role or a content that is not understood, or a result whose call cannot be told.
  """
  known = by_name(tools)
  said = [one for record in records for one in _said(record, known)]
  return list(_paired(said))


def prompt_task(record: Mapping[str, Any], messages: Sequence[Message], tools: Sequence[Tool]) -> Task:
  """A task without gold from a prompt: the messages up to the question."""
  ordered = arrange(messages)
  if not ordered or ordered[-1].role not in ('user', 'tool'):
    raise BadRow('no_question', f'the prompt of {shown(record.get("id", "a row"))} does not end with a question')
  return Task('', tuple(tools), ordered)


def _said(record: Any, tools: Mapping[str, Tool]) -> Iterator[_Said]:
  if not isinstance(record, Mapping) or not isinstance(record.get('role'), str):
    raise BadRow('role', f'{shown(record)} is no message; it needs a role and content')
  role = _ROLES.get(record['role'], record['role'])
  content = record.get('content')
  if role in _CALLS:
    yield _Said(Message('assistant', '', calls_of(content, tools), _is_learned(record)))
  elif role == 'assistant':
    calls, ids = _calls(record, tools)
    text = _reasoned(record) + text_of(content)
    message = Message('assistant', text, calls) if calls else spoken(text, tools)
    yield _Said(message if _is_learned(record) else dataclasses.replace(message, learn=False), ids)
  elif role == 'tool':
    name, text = record.get('name'), text_of(content, result=True)
    results = heard(text)  # without the tags, which templates write themselves
    whole = len(results) > 1 or results[0].role != 'tool'
    said = Message('tool', text) if whole else results[0]
    yield _Said(said, (id_of(record, 'tool_call_id'),), name if isinstance(name, str) else '')
  elif role in ('system', 'user'):
    text = text_of(content)
    if text or role == 'user':
      yield _Said(Message(role, text))
  else:
    raise BadRow('role', f'the role {shown(record["role"])} is not known')


def _calls(record: Mapping[str, Any], tools: Mapping[str, Tool]) -> tuple[tuple[ToolCall, ...], tuple[str, ...]]:
  old = record.get('function_call')
  given = entries(record.get('tool_calls'), 'call') or ([old] if isinstance(old, Mapping) else [])
  ids = [id_of(one, 'id') if isinstance(one, Mapping) else '' for one in given]
  return tuple(call_of(one, tools) for one in given), tuple(ids)


def _reasoned(record: Mapping[str, Any]) -> str:
  reasoning = next((record[key] for key in _REASONING if isinstance(record.get(key), str)), '')
  return f'<think>\n{reasoning}\n</think>\n\n' if reasoning else ''


def _is_learned(record: Mapping[str, Any]) -> bool:
  """By OpenAI's `weight` of an assistant's message, 0 or 1, or ms-swift's `loss`: 0 keeps it as context."""
  weight, loss = record.get('weight'), record.get('loss')
  if weight is not None and (isinstance(weight, bool) or weight not in (0, 1)):
    raise BadRow('weight', f'the weight of a message is {shown(weight)}; it is 0 (context) or 1 (learned)')
  if loss is not None and loss not in (0, 1):
    raise BadRow('weight', f'the loss of a message is {shown(loss)}; it is false (context) or true (learned)')
  return weight != 0 and loss != 0


def _paired(said: Sequence[_Said]) -> Iterator[Message]:
  """The messages with each stretch of results in the order of the calls before it."""
  calls: list[tuple[str, str]] = []
  place = 0
  while place < len(said):
    one = said[place]
    if one.message.role != 'tool':
      if one.message.role != 'assistant':
        calls = []
      calls += zip((call.name for call in one.message.calls), one.ids or [''] * len(one.message.calls), strict=True)
      yield one.message
      place += 1
      continue
    end = next((i for i in range(place, len(said)) if said[i].message.role != 'tool'), len(said))
    yield from _in_order(calls, said[place:end])
    calls, place = [], end


def _in_order(calls: Sequence[tuple[str, str]], results: Sequence[_Said]) -> list[Message]:
  ids, given = [identity for _, identity in calls], [result.ids[0] for result in results]
  if all(given) and all(ids):
    if sorted(ids) != sorted(given) or len(set(ids)) < len(ids):
      raise BadRow('results', f'results of the calls {shown(given)} follow the calls {shown(ids)}')
    return [results[given.index(identity)].message for identity in ids]
  names, said = [name for name, _ in calls], [result.name for result in results]
  if all(said) and said != names:
    if sorted(said) != sorted(names) or len(set(names)) < len(names):
      raise BadRow('results', f'results of {shown(said)} follow calls of {shown(names)}')
    return [results[said.index(name)].message for name in names]
  return [result.message for result in results]


def _subset(record: Mapping[str, Any]) -> str:
  return str(record.get('subset_name') or record.get('subset') or '')


def _meta(record: Mapping[str, Any]) -> dict[str, Any]:
  return {key: record[key] for key in _KEPT if record.get(key) not in (None, '')}
