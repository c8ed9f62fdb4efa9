"""The page's data: nothing in it can end its element, hide or run; reasons add up to the rewards they explain."""

import json
import re

import pytest

from slca_jax.chat.template import Template
from slca_jax.dialogue import Message, Parsed, Scores, Status, Task, Tool, ToolCall, Trajectory, Turn
from slca_jax.quickstart.tokenizer import make_tokenizer
from slca_jax.quickstart.world import make_task
from slca_jax.report.example import omission_case, write_example
from slca_jax.report.model import Model
from slca_jax.report.page import page_of, to_json, write_report
from slca_jax.report.reading import sampled_in
from slca_jax.report.reasons import reasons_of
from slca_jax.report.terminal import rollout_text
from slca_jax.report.texts import Texts, visible
from slca_jax.rewards.process import Weights, process_score

HOSTILE = '</script><script>alert(1)</script><!--<script>&lt;\u2028\u2029\u202e\x00\x1b[31m\ud800\ufeff'


def test_json_holds_nothing_that_ends_a_script_and_reads_back_equal():
  text = to_json({HOSTILE: [HOSTILE]})
  assert text.isascii() and not set('<>&') & set(text)
  assert json.loads(text) == {HOSTILE: [HOSTILE]}


def test_a_page_has_the_elements_of_its_template_alone_and_forbids_all_other_scripts():
  page = page_of(Model({'run': HOSTILE, '@@script@@': '@@data@@'}, [{'prompt': HOSTILE}]))
  assert len(re.findall('<script', page)) == len(re.findall('</script', page)) == 3
  assert 'alert(1)</' not in page and 'http://' not in page.replace('http://www.w3.org/2000/svg', '')
  assert re.search(r'default-src &#x27;none&#x27;; script-src &#x27;sha256-[\w+/=]+&#x27;; style-src', page)


def test_what_steers_or_hides_is_shown_by_a_sign():
  assert visible('a\tb\nc é 語 🙂') == 'a\tb\nc é 語 🙂'
  assert visible('\x00\x1b[2J\x7f\x85') == '␀␛[2J␡⟨U+0085⟩'
  assert visible('\u202eevil\u2066\u200b\u2028\ud800') == '⟨U+202E⟩evil⟨U+2066⟩⟨U+200B⟩⟨U+2028⟩⟨U+D800⟩'


@pytest.fixture(scope='module')
def template():
  return Template(make_tokenizer(make_task(0, 'train', index) for index in range(8)))


def test_texts_of_tokens_make_up_the_turn_also_where_a_character_is_cut(template):
  texts = Texts(template)
  whole = template.encode('price of 語 and 🙂')
  for tokens in (whole, whole[:-1], whole[:1]):
    rows = texts.turn(Turn(tokens, (-1.0,) * len(tokens), '', Parsed()))
    assert len(rows) == len(tokens)
    assert ''.join(texts.rows[row][0] for row in rows) == template.decode(tokens)
  assert len(texts.rows) == len({tuple(row) for row in texts.rows})


def test_words_stand_for_tokens_where_no_tokenizer_is_known():
  texts = Texts(None)
  rows = texts.turn(Turn((1, 2), (-1.0, -1.0), 'one  two one', Parsed()))
  assert [texts.rows[row] for row in rows] == [['one'], ['  two'], [' one']] and not texts.exact


TOOL = Tool('look', '', {'type': 'object', 'properties': {'at': {'type': 'string'}}, 'required': ['at']})
TASK = Task('t', (TOOL,), (Message('user', 'Where?'),), gold=((ToolCall('look', {'at': 'Rome', 'for': 2}),),))


def scored(*calls, errors=()):
  size = len(calls) + len(errors)
  turn = Turn((5,), (-1.0,), 'x', Parsed(tuple((call,) for call in calls), errors, size, size))
  trajectory = Trajectory(TASK, 0, 0, (1,), (turn,), Status.FINISHED)
  process = process_score(trajectory.turns, TASK)
  parts = {name: getattr(process, name) for name in process.__dataclass_fields__}
  return trajectory, Scores(
    process.total, why={'process': parts, 'verdict': {'score': None, 'word': '', 'reason': 'x'}}
  )


def test_parts_add_up_and_each_argument_is_told_apart():
  trajectory, scores = scored(ToolCall('look', {'at': ' ROME ', 'how': 1}), ToolCall('look', {}), errors=('no_json',))
  why = reasons_of(trajectory, scores, Weights())
  assert sum(part['score'] * part['weight'] for part in why['parts']) == pytest.approx(scores.tool)
  [pair] = why['matches']
  assert {row['key']: row['state'] for row in pair['arguments']} == {'at': 'same', 'for': 'missing', 'how': 'extra'}
  assert [call['name'] for call in why['extra']] == ['look']
  assert [fault['text'].split(':')[0] for fault in why['faults']] == ['a block could not be read', 'Error']


def test_without_a_call_every_part_says_so_and_a_failed_rollout_has_none():
  why = reasons_of(*scored(), Weights())
  assert not why['matches'][0]['made'] and all('no call was made' in part['why'] for part in why['parts'][1:])
  failed = Trajectory(TASK, 0, 0, (1,), (), Status.FAILED, 'the engine\x1b is gone')
  assert reasons_of(failed, Scores(), Weights())['failed'] == 'the engine␛ is gone'


def test_an_advantage_that_is_no_number_is_absent_and_long_names_keep_their_columns(tmp_path):
  write_example(tmp_path / 'run')
  own = tmp_path / 'own.py'
  own.write_text(
    'import jax.numpy as jnp\ndef lost(rewards, segments, rollout_BT):\n  return jnp.full(rollout_BT.shape, jnp.nan)\n'
  )
  config = json.loads((tmp_path / 'run' / 'config.json').read_text())
  config['method']['estimator'] = f'{own}:lost'
  (tmp_path / 'run' / 'config.json').write_text(json.dumps(config))
  page = write_report(tmp_path / 'run').read_text()
  assert '"advantages":[[null,null,null,null],[-1.437626,' in page
  first, *rows = rollout_text(tmp_path / 'run', '1.0.1').splitlines()[1:7]
  assert [len(row) for row in rows] == [len(first)] * 5


def test_a_rollout_is_printed_with_its_advantages_and_reasons(tmp_path):
  write_example(tmp_path)
  text = rollout_text(tmp_path, '1.0.1')
  assert re.search(r'SLCA +-1\.438 +-1\.438 +-1\.438 +\+1\.414', text) and re.search(r'GRPO +\+1\.148', text)
  assert 'process score 0.650' in text and '⟦Apple stands at 232.15' in text and 'Both prices, well put' in text
  guarded = next(one for one in sampled_in(tmp_path) if one.scores.guarded)
  assert guarded.trajectory.task.id == omission_case()[0].id
  narrow = rollout_text(tmp_path, '1.0.1', width=30)  # 10 characters of label and two advantages of 9
  rows = (
    r'advantage +turn 1 +turn 2',
    r'advantage +turn 3 +answer',
    r'SLCA +-1\.438 +-1\.438',
    r'SLCA +-1\.438 +\+1\.414',
  )
  for row in rows:
    assert re.search(f'^{row}$', narrow, re.MULTILINE)
  assert 'replaced by the penalty' in rollout_text(tmp_path, '1.1.3', color=True)
  with pytest.raises(ValueError, match='the rollouts there are 1, 2, 3, 4'):
    rollout_text(tmp_path, '1.0.9')
  with pytest.raises(ValueError, match='step 1 has no group 7; its groups are 0, 1'):
    rollout_text(tmp_path, '1.7.1')
  with pytest.raises(ValueError, match=r'step\.group\.rollout'):
    rollout_text(tmp_path, 'first')
