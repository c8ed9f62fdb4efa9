"""Records as text: every word is there, brackets stand around what is learned, colours only where they belong."""

import io
import pathlib
import re
import subprocess
import sys

import pytest

from slca_jax.chat.template import Template
from slca_jax.data.formats.row import Row
from slca_jax.data.show import explain, paint, spans_of_dialogue, token_texts, wants_color
from slca_jax.dialogue import Dialogue, Message, Task, Tool, ToolCall
from slca_jax.quickstart.tokenizer import make_tokenizer
from slca_jax.quickstart.world import make_task

ROOT = pathlib.Path(__file__).parents[2]
TOOL = Tool('find', 'Finds.', {'type': 'object', 'properties': {'key': {'type': 'string'}}})
CALL = ToolCall('find', {'key': 'été 🌧️'})
DIALOGUE = Dialogue('d', (TOOL,), (
  Message('system', 'Be brief.'), Message('user', 'Where is it? 東京'), Message('assistant', 'Looking.', (CALL,)),
  Message('tool', 'here'), Message('assistant', 'It is here.'),
))  # fmt: skip
ESCAPES = re.compile(r'\x1b\[[\d;]*m')


@pytest.fixture(scope='module')
def template():
  return Template(make_tokenizer([make_task(0, 'train', index) for index in range(4)]))


def row(**changes):
  return Row('d', 'd', 'file', 3, 'openai', 'one', **changes)


def test_without_a_tokenizer_messages_are_shown_with_what_is_learned_in_brackets():
  text = explain(row(dialogue=DIALOGUE))
  assert text.startswith('d  (file:3, openai, one)\ntools: find\n')
  learned = re.findall('⟦(.+?)⟧', text.split('learned\n', 1)[1], re.DOTALL)
  assert learned == [
    'Looking.\n<tool_call>\n{"name": "find", "arguments": {"key": "été 🌧️"}}\n</tool_call>', 'It is here.'
  ]  # fmt: skip


def test_context_and_turns_that_are_not_learned_have_no_brackets():
  unlearned = Message('assistant', 'Looking.', (CALL,), learn=False)
  dialogue = Dialogue('d', (TOOL,), (*DIALOGUE.messages[:2], unlearned, *DIALOGUE.messages[3:]))
  assert re.findall('⟦(.+?)⟧', paint(spans_of_dialogue(dialogue)), re.DOTALL) == ['It is here.']
  late = Dialogue('d', (TOOL,), (*DIALOGUE.messages, Message('user', 'And?'), Message('assistant', 'No.')), 6)
  assert re.findall('⟦(.+?)⟧', paint(spans_of_dialogue(late)), re.DOTALL) == ['No.']


def test_tokens_with_their_marks_are_those_of_training(template):
  spans = list(spans_of_dialogue(DIALOGUE, template))
  pieces = template.dialogue(DIALOGUE.messages, DIALOGUE.tools)
  assert [span.learned for span in spans] == [piece.learnable for piece in pieces for _ in piece.tokens]
  assert ''.join(span.text for span in spans) == ''.join(template.decode(piece.tokens, stops=True) for piece in pieces)
  parts = [span.part for span in spans if span.text]
  assert list(dict.fromkeys(parts)) == ['prompt', 'tool', 'world', 'summary']
  learned = ''.join(span.text for span in spans if span.learned and span.part == 'summary')
  assert learned == 'It is here.<|im_end|>'
  assert f'tokens: {len(spans)}, of which {sum(span.learned for span in spans)} are learned' in explain(
    row(dialogue=DIALOGUE), template
  )


def test_a_character_of_several_tokens_stands_with_its_last_one(template):
  tokens = template.encode('a🌧b')
  texts = list(token_texts(tokens, template))
  assert len(texts) == len(tokens) and ''.join(texts) == 'a🌧b' and '🌧' in texts


def test_colours_change_no_word_and_end_on_each_line(template):
  spans = list(spans_of_dialogue(DIALOGUE, template))
  colored = paint(spans, color=True)
  assert ESCAPES.sub('', colored) == ''.join(span.text for span in spans)
  for line in colored.splitlines():
    assert line.count('\x1b[0m') == len(re.findall(r'\x1b\[(?!0m)[\d;]*m', line))
  assert '\x1b[' not in explain(row(dialogue=DIALOGUE), template)


def test_data_cannot_steer_the_terminal():
  sly = Dialogue('d', (), (Message('user', 'a\x1b[2Jb\rc\u202ed'), Message('assistant', 'e')))
  assert r'a\x1b[2Jb\rc\u202ed' in explain(row(dialogue=sly))


def test_tasks_show_their_gold_and_faulty_rows_their_fault():
  task = Task('d', (TOOL,), (Message('user', 'Where?'),), ((CALL,),), 'There.', ('fact',), meta={'gold': 'names'})
  text = explain(row(task=task))
  for part in (
    'Where?',
    'gold, step 1:',
    '"été 🌧️"',
    'gold is not complete: names',
    'answer: There.',
    'facts: ["fact"]',
  ):
    assert part in text
  assert explain(row(fault='json', why='file:3: no JSON')).endswith('cannot be used: file:3: no JSON\n')


def test_colours_are_for_terminals_that_want_them():
  class Terminal(io.StringIO):
    def isatty(self):
      return True

  assert wants_color(Terminal(), {'TERM': 'xterm'}) and wants_color(Terminal(), {'NO_COLOR': ''})
  assert not wants_color(io.StringIO(), {}) and not wants_color(Terminal(), {'NO_COLOR': '1'})
  assert not wants_color(Terminal(), {'TERM': 'dumb'})


def test_the_launcher_shows_a_record_by_its_index(tmp_path):
  (tmp_path / 'a.jsonl').write_text(
    ''.join(f'{{"messages": [{{"role": "user", "content": "q{i}"}}, {{"role": "assistant", "content": "a{i}"}}]}}\n'
            for i in range(3))
  )  # fmt: skip
  run = lambda *arguments: subprocess.run(
    [sys.executable, str(ROOT / 'launch' / 'explain.py'), *arguments], check=False, capture_output=True, text=True
  )
  done = run(f'--data={tmp_path / "a.jsonl"}', '--index=1')
  assert done.returncode == 0 and '⟦a1⟧' in done.stdout and 'q0' not in done.stdout
  assert 'Refused: index is 3;' in run(f'--data={tmp_path / "a.jsonl"}', '--index=3').stderr
  assert run().returncode and run('--data=/nowhere').returncode
