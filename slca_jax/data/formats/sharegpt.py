"""Rows with `conversations` of {from, value}: LLaMA-Factory, APIGen-MT, Hermes, ToolACE, and SLCA-GRPO's own."""

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slca_jax.data.formats import pythonic
from slca_jax.data.formats.row import BadRow
from slca_jax.data.formats.tagged import heard, schemas_in, spoken
from slca_jax.data.formats.texts import load, shown
from slca_jax.data.formats.turns import Decoded, demonstration, id_of
from slca_jax.data.formats.values import by_name, calls_of, entries, tools_of
from slca_jax.dialogue import Message

_USER, _ASSISTANT = ('human', 'user'), ('gpt', 'assistant', 'model')
_RESULTS = ('observation', 'tool', 'function_response', 'tool_response')


def decode_sharegpt(record: Mapping[str, Any]) -> Decoded:
  """LLaMA-Factory's rows: calls in `function_call`, results in `observation`, tools and system beside them."""
  tools = tools_of(record.get('tools'))
  known = by_name(tools)
  messages = list(_system(record.get('system')))
  for speaker, text in turns_in(record):
    if speaker in ('function_call', 'tool_call'):
      messages.append(Message('assistant', '', calls_of(text, known)))
    elif speaker in _RESULTS:
      messages += _results(text, messages)
    elif speaker in _ASSISTANT:
      messages.append(spoken(text, known))
    else:
      messages.append(Message('user' if speaker in _USER else _system_role(speaker), text))
  return Decoded(demonstration(messages, tools, joint=True), id_of(record))


def decode_tagged(record: Mapping[str, Any]) -> Decoded:
  """Calls and results as tags in the text: Hermes, and SLCA-GRPO's released rows, whose results the user speaks.

  The system message that holds the tools is left out: whoever renders the dialogue states them in its own words.
  """
  turns = list(turns_in(record))
  dump = next((text for speaker, text in turns if speaker == 'system' and '<tools>' in text), '')
  tools = tools_of(record.get('tools')) or schemas_in(dump)
  known = by_name(tools)
  messages: list[Message] = []
  for speaker, text in turns:
    if speaker in _ASSISTANT:
      messages.append(spoken(text, known))
    elif speaker in _USER or speaker in _RESULTS:
      said = heard(text)
      messages += said if speaker in _USER or said[0].role == 'tool' else _results(text, messages)
    elif text is not dump:
      messages.append(Message(_system_role(speaker), text))
  _check_tags(messages)
  subset = str(record.get('subset_name') or record.get('category') or '')
  return Decoded(demonstration(messages, tools, joint=True), id_of(record), subset=subset)


def decode_toolace(record: Mapping[str, Any]) -> Decoded:
  """ToolACE's rows: tools in the system text, calls as `[name(key=value), …]`. The system text is left out."""
  tools = tools_of(_listed(record['system']))
  known = by_name(tools)
  messages: list[Message] = []
  for speaker, text in turns_in(record):
    if speaker in _ASSISTANT:
      calls = pythonic.calls_in(text, known)
      messages.append(Message('assistant', '' if calls else text, calls))
    elif speaker in _RESULTS:
      messages += _results(text, messages)
    else:
      messages.append(Message('user' if speaker in _USER else _system_role(speaker), text))
  return Decoded(demonstration(messages, tools, joint=True), id_of(record))


def turns_in(record: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
  """(who, what) of each turn. Raises BadRow for one that is not of strings."""
  for turn in entries(record['conversations'], 'messages'):
    speaker, text = (turn.get('from'), turn.get('value')) if isinstance(turn, Mapping) else (None, None)
    if not isinstance(speaker, str) or not isinstance(text, str):
      raise BadRow('role', f'{shown(turn)} is no turn; it needs the strings "from" and "value"')
    yield speaker, text


def _system(text: Any) -> Iterator[Message]:
  if isinstance(text, str) and text.strip():
    yield Message('system', text)


def _system_role(speaker: str) -> str:
  if speaker != 'system':
    raise BadRow('role', f'nobody knows who {shown(speaker)} is')
  return 'system'


def _results(text: str, messages: Sequence[Message]) -> list[Message]:
  """One result for each call, if the text is a list of as many values; else the text is their joint result."""
  count = len(messages[-1].calls) if messages else 0
  if count > 1:
    try:
      values = load(text, 'results')
    except BadRow:
      values = None
    if isinstance(values, list) and len(values) == count:
      return [
        Message('tool', value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)) for value in values
      ]
  return [Message('tool', text)]


def _check_tags(messages: Sequence[Message]) -> None:
  """Raises BadRow where results stand in the middle of a user's words: whose they are would be a guess."""
  for before, message in itertools.pairwise(messages):
    if before.calls and message.role == 'user' and '<tool_response>' in message.content:
      raise BadRow('results', f'words stand before a result: {shown(message.content)}')


def _listed(system: str) -> list[Any]:
  """The list of functions in ToolACE's system text: the first JSON list of objects in it."""
  decoder, place = json.JSONDecoder(), system.find('[')
  while place >= 0:
    try:
      value, _ = decoder.raw_decode(system, place)
    except (ValueError, RecursionError):
      value = None
    if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
      return value
    place = system.find('[', place + 1)
  raise BadRow('tools', f'no list of functions stands in {shown(system)}')
