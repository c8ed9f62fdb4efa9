"""ToolRL's rows: instruction, dialogue and answer as one text each, with tags of their own."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from slca_jax.data.formats.row import BadRow, question_id
from slca_jax.data.formats.tagged import CLOSE, OPEN, values_in
from slca_jax.data.formats.texts import load, shown
from slca_jax.data.formats.turns import Decoded, arrange, demonstration
from slca_jax.data.formats.values import by_name, call_of, flat_schema, tools_of
from slca_jax.dialogue import Message, Task, Tool

_TOOLS, _STEPS = '**Available Tools**', '**Steps for Each Turn**'
_HISTORY = '**Dialogue Records History**'
_TOOL = re.compile(
  r'^(\d+)\. Name: (.*)\nDescription: ([\s\S]*?)\nParameters: (.*)$\n?(?=\d+\. Name: |\s*\Z)', re.MULTILINE
)
_PART = re.compile(r'\s*<(user|think|tool_call|obs|response)>')


def decode_toolrl(record: Mapping[str, Any]) -> Decoded:
  """The task of a verl row: gold is the one step that its ground truth calls, the answer what it responds."""
  texts = {message['role']: message['content'] for message in record['prompt']}
  tools, messages = _tools(texts['system']), _history(texts['user'])
  said = _spoken(record['reward_model']['ground_truth'], tools)
  if not messages or messages[-1].role not in ('user', 'tool'):
    raise BadRow('no_question', f'the records do not end with a question: {shown(texts["user"][-80:])}')
  words = re.sub(r'<think>.*?</think>\s*', '', said.content, flags=re.DOTALL)
  gold = (said.calls,) if said.calls else ()
  task = Task('', tools, messages, gold, words or None, meta={'data_source': str(record['data_source'])})
  split = str((record.get('extra_info') or {}).get('split') or '')
  return Decoded(task, dialogue_id=_dialogue_id(messages), subset=split)


def decode_toolrl_sft(record: Mapping[str, Any]) -> Decoded:
  """The demonstration of an instruction row. All that was said before is its prompt; reasoning stays in <think>."""
  tools, messages = _tools(record['instruction']), _history(record['input'])
  shown_ = demonstration([*messages, _spoken(record['output'], tools)], tools, joint=True)
  if len(shown_.messages) != len(messages) + 1:
    raise BadRow('no_question', 'the records end with the assistant; there is nothing to answer')
  dialogue = type(shown_)('', tools, shown_.messages, len(messages))
  return Decoded(dialogue, dialogue_id=_dialogue_id(messages))


def _tools(instruction: str) -> tuple[Tool, ...]:
  _, found, rest = instruction.partition(_TOOLS)
  listed, end, _ = rest.partition(_STEPS)
  if not found or not end:
    raise BadRow('tools', f'{_TOOLS} and {_STEPS} do not both stand in {shown(instruction)}')
  matches = list(_TOOL.finditer(listed))
  count = len(re.findall(r'^\d+\. Name: ', listed, re.MULTILINE))
  if [int(match[1]) for match in matches] != list(range(1, count + 1)):
    raise BadRow('tools', f'of {count} tools, {len(matches)} could be read in {shown(listed)}')
  return tools_of(
    [
      {'name': match[2], 'description': match[3], 'parameters': flat_schema(load(match[4], 'tools'))}
      for match in matches
    ]
  )


def _history(text: str) -> tuple[Message, ...]:
  """The messages of the records; <obs> holds the joint result of the calls before it."""
  _, found, rest = text.partition(_HISTORY)
  messages, pending = list[Message](), ''
  for kind, body, source in _elements(rest if found else text):
    if kind in ('think', 'tool_call', 'response'):
      pending += source
      continue
    if pending:
      messages.append(_spoken(pending, ()))
      pending = ''
    messages.append(Message('user' if kind == 'user' else 'tool', body))
  if pending:
    messages.append(_spoken(pending, ()))
  return arrange(messages, joint=True)


def _spoken(text: str, tools: tuple[Tool, ...]) -> Message:
  """One turn of the assistant: reasoning and response are its words, in this order, whatever stands between."""
  words, calls, known = list[str](), [], by_name(tools)
  for kind, body, source in _elements(text):
    if kind == 'think':
      words.append(source.strip())
    elif kind == 'response':
      words.append(body)
    elif kind == 'tool_call':
      calls += [call_of(value, known, written=True) for value in values_in(body)]
    else:
      raise BadRow('role', f'<{kind}> stands in what the assistant says: {shown(text)}')
  if not words and not calls:
    raise BadRow('unfinished', f'neither a call nor a response in {shown(text)}')
  return Message('assistant', '\n'.join(words), tuple(calls))


def _elements(text: str) -> Iterator[tuple[str, str, str]]:
  """(tag, body, the whole element) of each element in order; tags inside a body are its text."""
  place = 0
  while text[place:].strip():
    match = _PART.match(text, place)
    if match is None:
      raise BadRow('role', f'{shown(text[place:].strip())} stands outside of all tags')
    end = _end(text, match[1], match.end())
    body = text[match.end() : end].strip()
    yield match[1], body, text[match.start() : end + len(match[1]) + 3]
    place = end + len(match[1]) + 3


def _end(text: str, kind: str, start: int) -> int:
  """Where the element's closing tag stands: the first one after which nothing or another element comes."""
  closing = CLOSE if kind == OPEN[1:-1] else f'</{kind}>'
  end = text.find(closing, start)
  while end >= 0:
    after = end + len(closing)
    if not text[after:].strip() or _PART.match(text, after):
      return end
    end = text.find(closing, end + 1)
  raise BadRow('role', f'<{kind}> never ends in {shown(text)}')


def _dialogue_id(messages: tuple[Message, ...]) -> str:
  return question_id(next((message.content for message in messages if message.role == 'user'), ''))
