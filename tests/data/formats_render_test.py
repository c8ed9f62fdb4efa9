"""What is read renders, and the masks of a demonstration mark exactly what the assistant said.

Real rows are those of ../shared/data, if it is there. Real tokenizers are the folders in $SLCA_JAX_TOKENIZERS (such as
qwen2.5, qwen3 and smollm2, each with tokenizer.json and a chat template); two small ones are always tested.
"""

import functools
import json
import os
import pathlib
import re

import pytest
from records import DEMONSTRATIONS, OTHERS

from slca_jax.chat.calls import render
from slca_jax.chat.template import Template, load_template
from slca_jax.data.formats.read import read
from slca_jax.data.formats.row import GOLD, dialogue_of, task_of, turns_of
from slca_jax.data.tasks import read_dialogues, read_tasks, write_dialogues, write_tasks
from slca_jax.quickstart.tokenizer import make_tokenizer
from slca_jax.quickstart.world import make_task

SHARED = pathlib.Path(__file__).parents[2].parent / 'shared' / 'data'
REAL = os.environ.get('SLCA_JAX_TOKENIZERS', '')
NAMES = ['small', 'plain', *(sorted(os.listdir(REAL)) if REAL else ['real'])]
FILES = {
  'toucan_preview/toucan_toolcall_sft.preview.jsonl': ('toucan', 5),
  'toucan_preview/toucan_toolcall_rl.preview.jsonl': ('slca_rl', 5),
  'toolrl/rlla_sft.json': ('toolrl_sft', 400),
  'toolrl/test.parquet': ('toolrl', 80),
}
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason=f'needs real rows in {SHARED}')

_PLAIN = (
  "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
  "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@functools.cache
def template(name):
  if name == 'real':
    pytest.skip('needs folders of tokenizers in $SLCA_JAX_TOKENIZERS')
  if name in ('small', 'plain'):
    tokenizer = make_tokenizer([make_task(0, 'train', index) for index in range(30)])
    return Template(tokenizer, options={'chat_template': _PLAIN} if name == 'plain' else None)
  return load_template(pathlib.Path(REAL) / name)


@functools.cache
def rows_of(name):
  return list(read(SHARED / name))


def worked_examples():
  """The examples that are whole rows; what they leave out with dots is put in."""
  examples = json.loads((SHARED / 'dataset_formats.json').read_text('utf-8'))
  toolrl = examples['toolrl_rlla_parquet']['prompt'][0]
  toolrl['content'] = toolrl['content'].replace('Parameters: {...}\n ...', 'Parameters: {}\n**Steps for Each Turn**')
  line = examples['apibank_line']
  examples['apibank_line'] = [{'role': 'User', 'text': 'Price?'}, line, {'role': 'AI', 'text': 'It is 1.'}]
  return examples


def plain_words(text):
  """The text with white space folded and empty reasoning left out: templates are free in both."""
  text = re.sub(r'<think>\s*</think>', '', text)
  return ' '.join(re.sub(r'(</?think>)', r' \1 ', text).split())


def expected(message, *, raw):
  """What the assistant says, as text. Some templates put a name between quotes as it stands."""
  written = lambda call: f'{{"name": "{call.name}", "arguments": {json.dumps(call.arguments, ensure_ascii=False)}}}'
  blocks = [f'<tool_call>\n{written(call)}\n</tool_call>' if raw else render(call) for call in message.calls]
  return plain_words('\n'.join([message.content, *blocks]))


def check_masks(dialogue, template):
  """The learnable spans are the assistant's messages after the prompt, each with its end; the others are not."""
  pieces = template.dialogue(dialogue.messages, dialogue.tools, context=dialogue.context)
  roles = [message.role for message in dialogue.messages]
  start = roles.index('assistant') if dialogue.context is None else dialogue.context
  said = [message for message in dialogue.messages[start:] if message.role == 'assistant']
  spans = [template.decode(piece.tokens, stops=True) for piece in pieces if piece.learnable]
  end = template.decode(template.stop_ids[:1], stops=True)
  assert len(spans) == len(said)
  for message, span in zip(said, spans, strict=True):
    assert span.endswith(end) and span.count(end) == 1
    words = plain_words(span.removesuffix(end))
    assert words in (expected(message, raw=True), expected(message, raw=False))
  assert [piece.learnable for piece in pieces] == [False, True] * len(said)
  worlds = [template.decode(piece.tokens, stops=True) for piece in pieces if not piece.learnable]
  header = worlds[0][worlds[0].rindex('<|im_start|>') :]
  assert all(text.endswith(header) for text in worlds)
  seen = [message.content for message in dialogue.messages[start:] if message.role in ('tool', 'user')]
  assert all(any(content in text for text in worlds[1:]) for content in seen)


def check_row(row, template):
  if row.dialogue:
    check_masks(row.dialogue, template)
    for context in turns_of(row.dialogue):
      template.prompt(task_of(row.dialogue, context=context).messages, row.dialogue.tools)
  if row.task:
    assert template.prompt(row.task.messages, row.task.tools)
    if GOLD not in row.task.meta and (row.task.gold or row.task.answer) and len(row.task.gold) < 2:
      check_masks(dialogue_of(row.task), template)


@pytest.mark.parametrize('name', NAMES)
def test_rows_of_every_format_render_and_masks_mark_what_the_assistant_said(name):
  for record in [*DEMONSTRATIONS.values(), *OTHERS.values()]:
    for row in read([record]):
      check_row(row, template(name))


@needs_shared
@pytest.mark.parametrize('file', FILES)
@pytest.mark.parametrize('name', NAMES)
def test_real_rows_render_and_masks_mark_what_the_assistant_said(name, file):
  tokenizer = template(name)
  for row in rows_of(file)[:: 10 if name in ('small', 'plain') else 1]:
    check_row(row, tokenizer)


@needs_shared
@pytest.mark.parametrize('file', FILES)
def test_every_real_row_is_read_and_comes_back_equal_from_our_files(tmp_path, file):
  rows = rows_of(file)
  assert ({row.format for row in rows}, len(rows)) == ({FILES[file][0]}, FILES[file][1])
  dialogues = [row.dialogue for row in rows if row.dialogue]
  tasks = [row.task for row in rows if row.task]
  write_dialogues(dialogues, tmp_path / 'd.jsonl')
  write_tasks(tasks, tmp_path / 't.jsonl')
  assert read_dialogues(tmp_path / 'd.jsonl') == dialogues and read_tasks(tmp_path / 't.jsonl') == tasks
  assert len(dialogues) + len(tasks) == len(rows)


@needs_shared
@pytest.mark.parametrize('name', NAMES)
def test_every_worked_example_is_read_and_rendered(name, tmp_path):
  for kind, example in worked_examples().items():
    path = tmp_path / f'{kind}.jsonl'
    lines = example if isinstance(example, list) else [example]
    path.write_text(''.join(json.dumps(line) + '\n' for line in lines), encoding='utf-8')
    (row,) = read(path)
    check_row(row, template(name))
    if row.dialogue:
      write_dialogues([row.dialogue], tmp_path / 'own')
      assert read_dialogues(tmp_path / 'own') == [row.dialogue]
    elif row.task:
      write_tasks([row.task], tmp_path / 'own')
      assert read_tasks(tmp_path / 'own') == [row.task]
    else:
      assert row.tools and kind == 'mcp_tools_list'


@needs_shared
def test_calls_and_results_of_real_rows_are_those_of_their_source():
  """Against the raw rows, counted in another way than they are read."""
  file = 'toucan_preview/toucan_toolcall_sft.preview.jsonl'
  raw = map(json.loads, (SHARED / file).read_bytes().splitlines())
  for record, row in zip(raw, rows_of(file), strict=True):
    roles = [message['role'] for message in json.loads(record['messages'])]
    messages = row.dialogue.messages
    assert sum(len(message.calls) for message in messages) == roles.count('tool_call')
    assert [m.content for m in messages if m.role == 'tool'] == [
      m['content'] for m in json.loads(record['messages']) if m['role'] == 'tool_response'
    ]
    assert messages[0].content == record['question'] and row.id == record['uuid']
    assert {call.name for m in messages for call in m.calls} <= {tool.name for tool in row.dialogue.tools}
  rows = rows_of('toolrl/rlla_sft.json')
  outputs = [record['output'] for record in json.loads((SHARED / 'toolrl/rlla_sft.json').read_text('utf-8'))]
  for output, row in zip(outputs, rows, strict=True):
    written = re.findall(r'^\{"name": .*\}$', output.rpartition('<tool_call>\n')[2], re.MULTILINE)
    assert [{'name': c.name, 'parameters': c.arguments} for c in row.dialogue.messages[-1].calls] == list(
      map(json.loads, written)
    )


@needs_shared
def test_every_listed_tool_of_real_servers_is_read():
  rows = list(read(SHARED / 'toucan_tools.jsonl.gz'))
  assert len(rows) == 6044 and all(len(row.tools) == 1 for row in rows)
