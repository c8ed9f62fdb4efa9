"""What BFCL's Qwen handler writes and reads: by hand, and side by side with it where its package is installed."""

import json
import subprocess

import pytest
from evaluation import bfcl_python

from slca_jax.chat.calls import render
from slca_jax.dialogue import ToolCall
from slca_jax.evals import qwen

CALL = {'name': 'f', 'arguments': {'a': 'é'}}
OTHER = {'name': 'g', 'arguments': '{"b": 1}'}
HISTORY = [
  {'role': 'system', 'content': 'be brief'},
  {'role': 'user', 'content': 'first'},
  {'role': 'assistant', 'content': '', 'reasoning_content': 'old', 'tool_calls': [CALL, CALL, OTHER]},
  {'role': 'tool', 'content': 'x'},
  {'role': 'tool', 'content': 'y'},
  {'role': 'assistant', 'content': 'done', 'reasoning_content': ''},
  {'role': 'user', 'content': 'second'},
  {'role': 'assistant', 'content': '', 'reasoning_content': 'new', 'tool_calls': [OTHER]},
  {'role': 'tool', 'content': 'z'},
]
# Runs where the official package is; the parsers of Java and JavaScript, which it imports, are not needed.
OFFICIAL = """
import json, os, sys, tempfile, types
os.environ['BFCL_PROJECT_ROOT'] = tempfile.mkdtemp()
for name in ('java', 'js'):
  module = types.ModuleType(f'bfcl_eval.model_handler.parser.{name}_parser')
  module.parse_java_function_call = module.parse_javascript_function_call = None
  sys.modules[module.__name__] = module
from bfcl_eval.model_handler.local_inference.qwen_fc import QwenFCHandler
from bfcl_eval.utils import load_dataset_entry
cases = json.load(sys.stdin)
for category in ('simple_python', 'live_multiple', 'irrelevance', 'multi_turn_base', 'multi_turn_miss_func'):
  cases += [[entry['question'][0], entry['function']] for entry in load_dataset_entry(category)[:5]]
print(json.dumps([[*case, QwenFCHandler._format_prompt(None, *case)] for case in cases]))
"""


def test_prompt_shows_functions_as_they_are_and_of_open_turns_the_reasoning():
  text = qwen.prompt(HISTORY, [{'name': 'f', 'parameters': {'type': 'dict'}}])
  head, rest = text.split('<|im_end|>\n', 1)
  assert head.startswith('<|im_start|>system\nbe brief\n\n# Tools\n')
  assert '<tools>\n{"name": "f", "parameters": {"type": "dict"}}\n</tools>' in head
  block = '<tool_call>\n{"name": "f", "arguments": {"a": "\\u00e9"}}\n</tool_call>'
  other = '<tool_call>\n{"name": "g", "arguments": {"b": 1}}\n</tool_call>'
  assert rest == (
    '<|im_start|>user\nfirst<|im_end|>\n'
    f'<|im_start|>assistant\n{block}{block}\n{other}<|im_end|>\n'
    '<|im_start|>user\n<tool_response>\nx\n</tool_response>\n<tool_response>\ny\n</tool_response><|im_end|>\n'
    '<|im_start|>assistant\ndone<|im_end|>\n'
    '<|im_start|>user\nsecond<|im_end|>\n'
    f'<|im_start|>assistant\n<think>\nnew\n</think>\n\n{other}<|im_end|>\n'
    '<|im_start|>user\n<tool_response>\nz\n</tool_response><|im_end|>\n'
    '<|im_start|>assistant\n'
  )


def test_prompts_equal_those_of_the_official_handler():
  cases = json.dumps([[HISTORY, []], [HISTORY, [CALL]], [HISTORY[1:2], []]])
  command = [bfcl_python(), '-c', OFFICIAL]
  done = subprocess.run(command, input=cases, capture_output=True, text=True, timeout=300)
  if 'ModuleNotFoundError' in done.stderr:
    pytest.skip(f"the official handler's own imports are not installed: {done.stderr.splitlines()[-1]}")
  rows = json.loads(done.stdout.splitlines()[-1])
  assert len(rows) == 28
  for messages, functions, text in rows:
    assert qwen.prompt(messages, functions) == text


@pytest.mark.parametrize(
  ('text', 'found'),
  [
    (render(ToolCall('f', {'a': 1})), [('f', {'a': 1})]),
    ('so\n' + render(ToolCall('f', {})) + '\n' + render(ToolCall('g', {'b': [1]})), [('f', {}), ('g', {'b': [1]})]),
    ('<tool_call>{"name": "f", "arguments": {}}</tool_call>', []),  # no line breaks, no block
    ('<tool_call>\n{"name": "f", }\n</tool_call>\n' + render(ToolCall('g', {})), [('g', {})]),
    ('<think>' + render(ToolCall('f', {})) + '</think>no', []),
    ('no call', []),
  ],
)
def test_blocks_that_are_no_json_are_passed_over_and_reasoning_is_not_judged(text, found):
  assert qwen.calls(text) == qwen.executable(text) == found


@pytest.mark.parametrize('body', ['{"arguments": {}}', '{"name": "f"}', '{"name": "f", "arguments": null}', '[1]', '3'])
def test_json_that_is_no_call_spoils_the_answer(body):
  for read in (qwen.calls, qwen.executable):
    with pytest.raises(ValueError, match='no call'):
      read(f'<tool_call>\n{body}\n</tool_call>')


def test_only_conversations_read_arguments_from_a_string():
  text = '<tool_call>\n{"name": "f", "arguments": "{\\"a\\": 1}"}\n</tool_call>'
  assert qwen.executable(text) == [('f', {'a': 1})]
  with pytest.raises(ValueError):
    qwen.calls(text)


def test_history_keeps_of_a_message_with_calls_nothing_but_these():
  text = '<think>\nwhy\n</think>\n\nI call.\n' + render(ToolCall('f', {'a': 1}))
  call = {'name': 'f', 'arguments': {'a': 1}}
  assert qwen.heard(text) == {'role': 'assistant', 'content': '', 'tool_calls': [call], 'reasoning_content': 'why'}
  assert qwen.heard('well')['content'] == 'well'
