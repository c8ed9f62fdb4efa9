"""Tasks on disk and the order of training."""

import collections
import dataclasses
import json
import re

import pytest

from slca_jax.data import tasks as files
from slca_jax.data.tasks import Order
from slca_jax.dialogue import Dialogue, Message, Task, Tool, ToolCall
from slca_jax.errors import DataError

TOOL = Tool(
  'find', 'Finds.', {'type': 'object', 'properties': {'q': {'type': ['string', 'null']}}}, {'type': 'object'}, True
)
TASK = Task(
  id='a',
  tools=(TOOL,),
  messages=(
    Message('user', 'line\u2028separator'),
    Message('assistant', '', (ToolCall('find', {'q': None}),)),
    Message('tool', '{}'),
  ),
  gold=((ToolCall('find', {'q': 'x'}), ToolCall('find', {})), (ToolCall('find', {'q': 1.5}),)),
  answer='x',
  facts=('x is 1',),
  blueprint='market',
  meta={'database': {'x': [1, None]}},
)


def test_tasks_and_demonstrations_come_back_equal(tmp_path):
  assert files.write_tasks([TASK], tmp_path / 't.jsonl') == 1
  assert files.read_tasks(tmp_path / 't.jsonl') == [TASK]
  shown = Dialogue('d', (TOOL,), (*TASK.messages, Message('assistant', 'done')), context=1)
  files.write_dialogues([shown], tmp_path / 'd.jsonl')
  assert files.read_dialogues(tmp_path / 'd.jsonl') == [shown]


@pytest.mark.parametrize(
  ('line', 'says'),
  [
    ('{"id": "b", "too', 't.jsonl:2: JSONDecodeError'),
    ('{"id": "b", "tools": "[]", "messages": [], "gold": "[]"}', 'last message must be the user'),
    ('{"id": "b", "messages": [{"role": "user", "content": "q"}], "gold": "[]"}', "t.jsonl:2: KeyError: 'tools'"),
    (
      '{"id": "b", "tools": "[]", "messages": [{"role": "user", "content": "q"}],'
      ' "gold": "[[{\\"name\\": \\"f\\", \\"arguments\\": \\"{}\\"}]]"}',
      'must be an object',
    ),
    (
      '{"id": "b", "tools": "[]", "messages": [{"role": "user", "content": "q"}], "gold": "[]", "facts": "12"}',
      "facts are '12'; they must be a list",
    ),
    ('[' * 100_000, 't.jsonl:2: RecursionError'),
    ('\udcff', 't.jsonl:2: UnicodeDecodeError'),
  ],
)
def test_bad_line_is_named(tmp_path, line, says):
  files.write_tasks([TASK], tmp_path / 't.jsonl')
  with open(tmp_path / 't.jsonl', 'ab') as file:
    file.write(line.encode('utf-8', 'surrogateescape') + b'\n')
  with pytest.raises(DataError) as caught:
    files.read_tasks(tmp_path / 't.jsonl')
  assert says in str(caught.value) and 'prepare_data' not in str(caught.value)


def test_file_of_another_format_says_what_makes_it_one(tmp_path):
  (tmp_path / 'xlam.jsonl').write_text('{"query": "q", "answers": "[]", "tools": "[]"}\n')
  for read in (files.read_tasks, files.read_dialogues):
    with pytest.raises(
      DataError, match=rf"1: KeyError: 'messages'; .*prepare_data\.py --config\.input={tmp_path}/xlam"
    ):
      read(tmp_path / 'xlam.jsonl')


@pytest.mark.parametrize(
  ('tools', 'says'),
  [
    ((Tool('f', '', {'type': 'object', 'properties': {'x': {'type': 'thing'}}}),), "tool 'f': at /properties/x"),
    ((Tool('f', '', {'properties': {'x': {'$ref': '#/nowhere'}}}),), 'leads to no schema'),
    ((Tool('f', '', {}), Tool('f', '', {})), 'tools share a name: f, f'),
  ],
)
def test_task_whose_calls_could_not_be_checked_is_refused_when_it_is_read(tmp_path, tools, says):
  files.write_tasks([TASK, dataclasses.replace(TASK, id='b', tools=tools)], tmp_path / 't.jsonl')
  with pytest.raises(DataError, match=r't\.jsonl:2') as caught:
    files.read_tasks(tmp_path / 't.jsonl')
  assert says in str(caught.value)


_ASKED = {'role': 'user', 'content': 'q'}
_SAID = {'role': 'assistant', 'content': 'a'}


@pytest.mark.parametrize(
  ('fields', 'says'),
  [
    ({'messages': [{'role': 'function', 'content': '42'}, _ASKED]}, "role is 'function'"),
    ({'messages': [{'role': 'user', 'content': None}]}, 'content of the user is'),
    ({'messages': [{**_ASKED, 'calls': '[{"name": "f", "arguments": {}}]'}]}, "'f' is called by the user"),
    ({'gold': '[{"name": "f", "arguments": {}}]'}, 'list of steps'),
    ({'gold': '[[{"name": 3, "arguments": {}}]]'}, 'name of a call is 3'),
    ({'answer': 3}, "answer is '3'"),
    ({'meta': '[]'}, "meta is '[]'"),
    ({'tools': '[{"name": "f", "description": null, "parameters": {}}]'}, 'both strings'),
  ],
)
def test_field_of_another_type_is_refused_where_it_stands(tmp_path, fields, says):
  record = {'id': 'a', 'tools': '[]', 'messages': [_ASKED], 'gold': '[]'} | fields
  (tmp_path / 't.jsonl').write_text(json.dumps(record) + '\n')
  with pytest.raises(DataError, match=f't.jsonl:1: .*{re.escape(says)}'):
    files.read_tasks(tmp_path / 't.jsonl')


@pytest.mark.parametrize('context', [0, -1, 3, 4, '1', True])
@pytest.mark.parametrize('messages', [[_ASKED, _ASKED, _SAID], [_ASKED, _SAID, _SAID]])
def test_context_ends_where_the_assistant_begins(tmp_path, messages, context):
  record = {'id': 'a', 'tools': '[]', 'messages': messages, 'context': context}
  (tmp_path / 'd.jsonl').write_text(json.dumps(record) + '\n')
  with pytest.raises(DataError, match=f'd.jsonl:1: .*context is {context!r}'):
    files.read_dialogues(tmp_path / 'd.jsonl')
  (tmp_path / 'd.jsonl').write_text(json.dumps(record | {'context': 2 if messages[1] == _ASKED else 1}) + '\n')
  assert len(files.read_dialogues(tmp_path / 'd.jsonl')) == 1


def test_id_that_occurs_twice_is_refused(tmp_path):
  files.write_tasks([TASK, TASK], tmp_path / 't.jsonl')
  with pytest.raises(DataError, match=r"t.jsonl:2: id 'a' already stands on line 1"):
    files.read_tasks(tmp_path / 't.jsonl')


def test_every_epoch_meets_every_item_once_and_batches_cross_the_border():
  order = Order(list(range(10)), 4, seed=3)
  met = [item for step in range(5) for item in order(step)]  # 20 items: two epochs
  assert sorted(met[:10]) == sorted(met[10:]) == list(range(10)) and met[:10] != met[10:]


def test_order_of_a_step_does_not_depend_on_the_steps_before():
  fresh, used = Order('abcdefg', 3, seed=0), Order('abcdefg', 3, seed=0)
  met = [used(step) for step in range(12)]
  assert [fresh(step) for step in reversed(range(12))] == met[::-1]
  assert Order('abcdefg', 3, seed=1)(0) != met[0]
  assert max(collections.Counter(x for batch in met for x in batch).values()) - 36 // 7 <= 1


def test_no_tasks_is_an_error():
  with pytest.raises(DataError, match='no tasks'):
    Order([], 2, seed=0)
