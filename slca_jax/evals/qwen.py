"""Prompts and calls as the Qwen function-calling handler of BFCL writes and reads them.

It formats raw text for a completions endpoint: the functions as BFCL describes them, without an envelope, the history
with reasoning dropped from closed turns, and of an assistant message that holds calls nothing but the calls. What it
does with odd texts is kept as it is, since scores are compared.

bfcl-eval (V4), model_handler/local_inference/qwen_fc.py; the format is Qwen3's chat template.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

Said = Mapping[str, Any]  # role and content; of an assistant also tool_calls and reasoning_content
Calls = list[tuple[str, dict[str, Any]]]

_CALL = re.compile(r'<tool_call>\n(.*?)\n</tool_call>', re.DOTALL)
_TOOLS = """# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>{functions}
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def prompt(messages: Sequence[Said], functions: Sequence[Mapping[str, Any]]) -> str:
  """The text that the assistant goes on from.

  Raises:
    KeyError, TypeError: a call of the history has no name or no arguments.
  """
  system = messages[0]['content'] if messages and messages[0]['role'] == 'system' else None
  parts = [] if system is None else [system]
  if functions:
    parts.append(_TOOLS.format(functions=''.join(f'\n{json.dumps(function)}' for function in functions)))
  head = '\n\n'.join(parts)
  out = [f'<|im_start|>system\n{head}<|im_end|>\n'] if parts else []
  question = _last_question(messages)
  for place, message in enumerate(messages):
    role, content = message['role'], message['content']
    if role == 'user' or (role == 'system' and place):
      out.append(f'<|im_start|>{role}\n{content}<|im_end|>\n')
    elif role == 'assistant':
      out.append(f'<|im_start|>assistant\n{_assistant(message, open_turn=place > question)}<|im_end|>\n')
    elif role == 'tool':
      neighbours = [messages[i]['role'] if 0 <= i < len(messages) else '' for i in (place - 1, place + 1)]
      before = '' if neighbours[0] == 'tool' else '<|im_start|>user'
      after = '' if neighbours[1] == 'tool' else '<|im_end|>\n'
      out.append(f'{before}\n<tool_response>\n{content}\n</tool_response>{after}')
  return ''.join([*out, '<|im_start|>assistant\n'])


def heard(text: str) -> dict[str, Any]:
  """The message that the history keeps of what the assistant said."""
  calls, reasoning, rest = _found(text), '', answer(text)
  if '</think>' in text:
    reasoning = text.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n')
  if calls:
    return {'role': 'assistant', 'content': '', 'tool_calls': calls, 'reasoning_content': reasoning}
  return {'role': 'assistant', 'content': rest, 'reasoning_content': reasoning}


def answer(text: str) -> str:
  """The text without its reasoning: what is judged."""
  return text.split('</think>')[-1].lstrip('\n') if '</think>' in text else text


def calls(text: str) -> Calls:
  """The calls of a text as single-turn categories read them; blocks that are no JSON are passed over.

  Raises:
    ValueError: a block is JSON but no call.
  """
  try:
    return [(str(call['name']), dict(call['arguments'].items())) for call in _found(answer(text))]
  except (KeyError, TypeError, AttributeError) as error:
    raise ValueError(f'a block is no call: {type(error).__name__}: {error}') from error


def executable(text: str) -> Calls:
  """The calls of a text as multi-turn categories read them: arguments may be a string of JSON.

  Raises:
    ValueError: a block is JSON but no call.
  """
  try:
    found = [(str(call['name']), call['arguments']) for call in _found(answer(text))]
    read = [(name, json.loads(given) if isinstance(given, str) else given) for name, given in found]
    return [(name, dict(arguments.items())) for name, arguments in read]
  except (KeyError, TypeError, AttributeError, RecursionError) as error:
    raise ValueError(f'a block is no call: {type(error).__name__}: {error}') from error


def _found(text: str) -> list[Any]:
  out = []
  for body in _CALL.findall(text):
    try:
      out.append(json.loads(body))
    except (ValueError, RecursionError):
      continue
  return out


def _last_question(messages: Sequence[Said]) -> int:
  """Where the open turn begins: at the last user message that is no tool's answer."""
  for place in range(len(messages) - 1, -1, -1):
    content = messages[place]['content']
    wrapped = content.startswith('<tool_response>') and content.endswith('</tool_response>')
    if messages[place]['role'] == 'user' and not wrapped:
      return place
  return len(messages) - 1


def _assistant(message: Said, *, open_turn: bool) -> str:
  content, reasoning = message['content'], message.get('reasoning_content', '')
  out = content
  if open_turn and reasoning:
    thought = reasoning.strip('\n')
    out = f'<think>\n{thought}\n</think>\n\n{content.lstrip(chr(10))}'
  made = message.get('tool_calls', ())
  for call in made:
    # The handler compares calls and not places: one that repeats the first one stands on the same line.
    separator = '\n' if content or call != made[0] else ''
    arguments = call['arguments']
    given = arguments if isinstance(arguments, str) else json.dumps(arguments)
    out += separator + '<tool_call>\n{"name": "' + call['name'] + f'", "arguments": {given}}}\n</tool_call>'
  return out
