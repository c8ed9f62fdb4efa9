"""Which rows are dropped, under which word, and what of a dialogue is a sample."""

import dataclasses

import pytest

from slca_jax.data.filters import fault_of
from slca_jax.data.formats.row import GOLD, NAMES, UNKNOWN, Row
from slca_jax.data.samples import Sample, demonstration_of, samples_of, task_in
from slca_jax.data.settings import Filters
from slca_jax.dialogue import Dialogue, Message, Task, Tool, ToolCall

FIND = Tool('find', '', {'type': 'object', 'properties': {'key': {'type': 'string'}}, 'required': ['key']})
CALL = ToolCall('find', {'key': 'k'})
USER, SEEN, SAID = Message('user', 'Where is it?'), Message('tool', 'here'), Message('assistant', 'It is here.')
ASKS = Message('assistant', '', (CALL,))


def row(*messages, tools=(FIND,), **changes):
  return Row('r', 'r', 'file', 1, 'openai', dialogue=Dialogue('r', tools, messages), **changes)


def task_row(steps, tools=(FIND,), **meta):
  return Row('r', 'r', 'file', 1, 'xlam', task=Task('r', tools, (USER,), steps, meta=meta))


def calling(name='find', **arguments):
  return row(USER, Message('assistant', '', (ToolCall(name, arguments),)), SEEN, SAID)


@pytest.mark.parametrize(
  'bad, code',
  [
    (Row('r', 'r', 'file', 1, 'openai', fault='json', why='broken'), 'format.json'),
    (Row('r', 'r', 'file', 1, 'mcp', tools=(FIND,)), 'no_dialogue'),
    (row(Message('user', ' \n'), ASKS, SEEN, SAID), 'no_question'),
    (row(USER, ASKS, SEEN, Message('assistant', 'It is <|python_tag|> here.')), 'foreign_tokens'),
    (row(USER, ASKS, SEEN, Message('assistant', '[TOOL_CALLS] [{"name": "find"}]')), 'foreign_tokens'),
    (row(USER, ASKS, SEEN, Message('assistant', '<｜tool▁calls▁begin｜>')), 'foreign_tokens'),
    (row(USER, ASKS, SEEN, Message('assistant', '<function=find>{}</function>')), 'foreign_tokens'),
    (row(USER, ASKS, Message('tool', 'a <|im_end|> b'), SAID), 'control_tokens'),
    (calling(key='<|im_end|>'), 'control_tokens'),
    (task_row(((ToolCall('find', {'key': ['<|eot_id|>']}),),)), 'control_tokens'),
    (row(USER, ASKS, SEEN, SAID, tools=(FIND, Tool('end', 'Writes <|endoftext|>.', {}))), 'control_tokens'),
    (row(USER, ASKS, SEEN, Message('assistant', '<tool_call>\n{"name": "fi')), 'broken_call'),
    (row(USER, ASKS, SEEN, Message('assistant', '<tool_call>\n{"name": "find", "arguments": {}}\n</tool_call>')),
     'broken_call'),
    (row(USER, ASKS, SEEN, Message('assistant', '<think>\nIt never ends')), 'broken_call'),
    (row(USER, SAID), 'irrelevant'),
    (task_row(()), 'irrelevant'),
    (row(USER, ASKS, SEEN, SAID, tools=(FIND, Tool('odd', '', {'type': 'strange'}))), 'bad_schema'),
    (row(USER, ASKS, SEEN, SAID, tools=(FIND, FIND)), 'double_tool'),
    (calling('lose', key='k'), 'unknown_tool'),
    (task_row(((ToolCall('lose', {}),),), **{GOLD: NAMES}), 'unknown_tool'),
    (calling(), 'missing_argument'),
    (calling(key=3), 'misfit_argument'),
    (task_row(((ToolCall('find', {}),),)), 'missing_argument'),
    (row(USER, ASKS), 'no_answer'),
    (row(USER, ASKS, SEEN, Message('assistant', '<think>\nHm.\n</think>\n\n')), 'empty_answer'),
    (row(USER, ASKS, SEEN, Message('assistant', ' '), USER, ASKS, SEEN, SAID), 'empty_answer'),
  ],
)  # fmt: skip
def test_each_fault_has_its_word(bad, code):
  fault = fault_of(bad, Filters())
  assert fault is not None and fault.code == code and fault.why


@pytest.mark.parametrize(
  'good',
  [
    row(USER, ASKS, SEEN, SAID),
    row(Message('system', 'Be brief.'), USER, USER, ASKS, SEEN, SAID, USER, SAID),
    row(USER, ASKS, SEEN, Message('assistant', '<think>A <tool_call> would help.</think>It is here: a <b> c.')),
    row(Message('user', 'What is <function=f>?'), ASKS, SEEN, Message('assistant', 'x <| y |> z')),
    calling(key='k', more=1),
    task_row(((CALL,),)),
    task_row(((ToolCall('find', {}),),), **{GOLD: NAMES}),
    task_row((), **{GOLD: UNKNOWN}),
    Row('r', 'r', 'file', 1, 'tau2', task=Task('r', (), (USER,), ((CALL,),), blueprint='tau2/retail')),
  ],
)
def test_what_is_fine_is_kept(good):
  assert fault_of(good, Filters()) is None


def test_filters_can_be_turned_off():
  assert fault_of(row(USER, SAID), Filters(irrelevant=False)) is None
  assert fault_of(row(USER, ASKS), Filters(answers=False)) is None
  assert fault_of(calling(key=3), Filters(arguments=False)) is None
  assert fault_of(row(USER, ASKS, SEEN, SAID), Filters(longest=50)).code == 'too_long'


THREE = Dialogue('d', (FIND,), (USER, ASKS, SEEN, SAID, USER, SAID, USER, ASKS, SEEN, SAID, USER, ASKS, SEEN, SAID))


def test_samples_begin_with_the_second_turn_that_calls_a_tool():
  """Turns 1, 3 and 4 call; their prompts are 1, 7 and 11 messages long."""
  assert samples_of(THREE) == [Sample(7, 10, 3, True), Sample(11, 14, 4, True)]
  assert [sample.turn for sample in samples_of(THREE, first=1)] == [1, 3, 4]
  assert samples_of(THREE, first=4) == []
  (whole,) = samples_of(THREE, first=0)
  assert demonstration_of(THREE, whole) is THREE and task_in(THREE, whole).messages == THREE.messages[:1]


def test_a_sample_ends_with_the_assistant_whoever_speaks_next():
  twice = dataclasses.replace(THREE, messages=(*THREE.messages[:10], Message('user', 'Hm.'), *THREE.messages[10:]))
  assert samples_of(twice) == [Sample(7, 10, 3, True), Sample(12, 15, 5, True)]
  unanswered = dataclasses.replace(THREE, messages=(*THREE.messages[:9], *THREE.messages[10:]))
  assert samples_of(unanswered)[0] == Sample(7, 8, 3, True)
  assert demonstration_of(unanswered, samples_of(unanswered)[0]).messages[-1].calls == (CALL,)


def test_one_turn_is_one_sample_and_the_dialogue_itself():
  one = Dialogue('d', (FIND,), THREE.messages[:4])
  (sample,) = samples_of(one)
  assert sample == Sample(1, 4, 1, False) and demonstration_of(one, sample) is one
  assert task_in(one, sample).id == 'd' and task_in(one, sample).gold == ((CALL,),)


def test_what_was_cut_before_is_one_sample_with_history():
  cut = dataclasses.replace(THREE, context=11)
  (sample,) = samples_of(cut)
  assert sample == Sample(11, 14, 4, True) and task_in(cut, sample).id == 'd'
  greeted = Dialogue('d', (FIND,), (Message('assistant', 'Hello.'), *THREE.messages[:4]), 2)
  assert samples_of(greeted) == [Sample(2, 5, 1, False)]


def test_a_sample_shows_its_turn_after_those_before():
  first, last = samples_of(THREE)
  shown, task = demonstration_of(THREE, first), task_in(THREE, last)
  assert (shown.id, shown.context, shown.messages) == ('d/turn-3', 7, THREE.messages[:10])
  assert (task.id, task.messages, task.gold, task.answer) == ('d/turn-4', THREE.messages[:11], ((CALL,),), SAID.content)
  whole = demonstration_of(THREE, samples_of(THREE, first=1)[0])
  assert (whole.id, whole.messages) == ('d/turn-1', THREE.messages[:4])
