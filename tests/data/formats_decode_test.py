"""A row of every format, read as what it means; what has no single meaning is refused."""

import copy
import json

import numpy as np
import pytest
import records
from records import ASK, DEMONSTRATIONS, EAST, HUMIDITY, OTHERS, PARALLEL, SAID, SCHEMA, WEST

from slca_jax.data.formats.known import FORMATS, detect
from slca_jax.data.formats.read import read
from slca_jax.data.formats.row import dialogue_of, task_of, turns_of
from slca_jax.data.tasks import dialogue_from_json, dialogue_to_json, task_from_json, task_to_json
from slca_jax.dialogue import Dialogue, Message, Task, Tool, ToolCall
from slca_jax.errors import DataError


def one(record, **options):
  (row,) = read([record], **options)
  return row


def fault(record, **options):
  return one(record, strict=False, **options).fault


@pytest.mark.parametrize('name', DEMONSTRATIONS)
def test_demonstrations_of_every_format_say_the_same(name):
  row = one(DEMONSTRATIONS[name])
  assert row.format == name == one(DEMONSTRATIONS[name], format=name).format
  assert row.dialogue.messages == PARALLEL
  assert row.dialogue.tools == (HUMIDITY,)
  assert row.task is None and not row.fault


@pytest.mark.parametrize('name', [*DEMONSTRATIONS, *OTHERS])
def test_every_row_comes_back_equal_from_our_own_files(name):
  row = one({**DEMONSTRATIONS, **OTHERS}[name])
  if row.dialogue:
    record = json.loads(json.dumps(dialogue_to_json(row.dialogue)))
    assert dialogue_from_json(record) == row.dialogue == one(record).dialogue
    assert one(record).format == 'dialogues'
  if row.task:
    record = json.loads(json.dumps(task_to_json(row.task)))
    assert task_from_json(record) == row.task == one(record).task
    assert one(record).format == 'tasks'


def test_every_format_has_an_example_here():
  assert set(FORMATS) == {*DEMONSTRATIONS, *OTHERS, 'apibank', 'tasks', 'dialogues'}
  assert {name: detect(record) for name, record in {**DEMONSTRATIONS, **OTHERS}.items()} == {
    name: name for name in {**DEMONSTRATIONS, **OTHERS}
  }


def test_older_names_of_messages_and_tools_say_the_same():
  row = DEMONSTRATIONS['openai']
  older = {'id': row.get('id', ''), 'functions': [entry['function'] for entry in row['tools']]}
  older['conversations'] = row['messages']
  assert detect(older) == 'openai'
  assert one(older).dialogue == one(row).dialogue


def test_ids_and_subsets_are_the_sources():
  toucan, teacher = one(DEMONSTRATIONS['toucan']), one(DEMONSTRATIONS['toucan_teacher'])
  assert (toucan.id, toucan.dialogue_id, toucan.subset, toucan.dialogue.id) == ('g-1', 'g-1', 'greenhouse', 'g-1')
  assert toucan.meta == {'target_tools': 'Green House::humidity'}
  assert teacher.meta == {'response_quality_assessment': '{"completeness": {"score": 5}}'}
  openai, tagged = one(DEMONSTRATIONS['openai']), one(DEMONSTRATIONS['slca_sft'])
  assert openai.id == 'row-1'
  assert openai.dialogue_id == tagged.dialogue_id  # the same question may be the same dialogue


@pytest.mark.parametrize(
  ('gold', 'steps', 'mark'),
  [
    (['humidity', 'humidity'], ((ToolCall('humidity', {}),) * 2,), {'gold': 'names'}),
    ([{'name': 'humidity', 'arguments': {'bed': 'east'}}], ((EAST,),), {}),
    ([{'name': 'humidity', 'parameters': '{"bed": "east"}'}], ((EAST,),), {}),
    ([[{'name': 'humidity', 'arguments': '{"bed": "east"}'}], [WEST]], ((EAST,), (WEST,)), {}),
    ('[[{"name": "humidity", "arguments": {"bed": "west", "hour": null}}]]', ((WEST,),), {}),
    (np.array(['humidity'], dtype=object), ((ToolCall('humidity', {}),),), {'gold': 'names'}),
    (np.array([np.array([{'name': 'humidity', 'arguments': '{"bed": "east"}'}])], dtype=object), ((EAST,),), {}),
    ([['humidity'], ['humidity']], ((ToolCall('humidity', {}),), (ToolCall('humidity', {}),)), {'gold': 'names'}),
    ([{'name': 'humidity', 'arguments': None}], ((ToolCall('humidity', {}),),), {}),
    ([], (), {}),
    ('[]', (), {}),
    (None, (), {}),
  ],
)
def test_gold_of_the_released_rows_in_all_its_variants(gold, steps, mark):
  if isinstance(gold, list):
    gold = json.loads(json.dumps(gold, default=lambda call: {'name': call.name, 'arguments': call.arguments}))
  row = one(records.slca_rl(gold))
  assert row.task.gold == steps
  assert row.task.meta == {'data_source': 'toucan_toolcall', 'turn': 1, **mark}
  assert row.task.tools == (HUMIDITY,)
  asked = [(message.role, message.content, len(message.calls)) for message in row.task.messages]
  assert asked == [
    ('user', 'How is the east?', 0),
    ('assistant', '', 1),
    ('tool', '40', 0),
    ('assistant', 'Dry.', 0),
    ('user', ASK.content, 0),
  ]
  assert row.subset == 'tool_call'


@pytest.mark.parametrize('gold', [7, ['humidity', {'name': 'humidity'}], [['humidity'], 'humidity'], [[['humidity']]]])
def test_gold_that_is_no_gold_is_refused(gold):
  assert fault(records.slca_rl(gold)) in ('gold', 'call')


def test_schemas_of_released_rows_are_found_in_column_truth_or_prompt_and_must_agree():
  row = records.slca_rl([])
  without = copy.deepcopy(row)
  del without['tools']
  assert one(without).task.tools == (HUMIDITY,)
  del without['reward_model']['ground_truth']['tool_schemas']
  assert one(without).task.tools == (HUMIDITY,)
  other = json.dumps([{'name': 'humidity', 'description': 'Another.', 'parameters': SCHEMA}])
  assert fault({**row, 'tools': other}) == 'tools'
  row['reward_model']['ground_truth']['allowed_tools'] = ['rain']
  assert fault(row) == 'tools'


def test_rows_of_one_dialogue_share_its_id():
  first, second = records.slca_rl([]), records.slca_rl([])
  second['prompt'] = second['prompt'][:2]
  second['extra_info'] = {'original_turn_index': 0}
  rows = list(read([first, second]))
  assert rows[0].dialogue_id == rows[1].dialogue_id and rows[0].id != rows[1].id


def test_toolrl_is_read_with_its_history_reasoning_and_tools():
  row, shown = one(OTHERS['toolrl']), one(OTHERS['toolrl_sft'])
  assert row.task.gold == ((EAST, WEST),) and row.subset == 'test'
  assert row.task.answer is None
  assert [tool.name for tool in row.task.tools] == ['humidity', 'Wet (or dry)']
  assert row.task.tools[1].description == 'Two\nlines.'
  assert row.task.tools[0].parameters['required'] == ['bed']
  assert row.task.messages == (
    Message('user', 'How is the east?'),
    Message('assistant', '<think> Look. </think>', (EAST,)),
    Message('tool', '[{"name": "humidity", "results": 40}]'),
    Message('assistant', '<think> Say so. </think>\nDry.'),
    ASK,
  )
  assert shown.dialogue.messages == (
    *row.task.messages,
    Message('assistant', '<think> Not <tool_call> yet. </think>', (EAST, WEST)),
  )
  assert shown.dialogue.context == 5
  assert shown.dialogue_id == row.dialogue_id


def test_rows_without_gold_say_so():
  for name in ('verl', 'verifiers', 'stabletoolbench', 'trl_prompt'):
    task = one(OTHERS[name]).task
    assert task.gold == () and task.meta['gold'] == 'unknown', name
    with pytest.raises(DataError, match='not known in full'):
      dialogue_of(task)
  assert one(OTHERS['verl']).task.answer == '41' == one(OTHERS['verifiers']).task.answer


def test_benchmarks_and_lists_of_tools():
  assert one(OTHERS['xlam']).task.gold == ((EAST, WEST),)
  assert one(OTHERS['bfcl']).task.gold == ((EAST,),) == one(OTHERS['acebench']).task.gold
  tau = one(OTHERS['tau2']).task
  assert (tau.gold, tau.facts, tau.blueprint) == (((EAST,), (WEST,)), ('40',), 'tau2/garden')
  (api,) = one(OTHERS['stabletoolbench']).task.tools
  assert api.name == 'get_2nd_humidity_for_green_house'
  assert api.parameters['required'] == ['bed'] and api.parameters['properties']['hour']['type'] == 'number'
  humidity, water = one(OTHERS['mcp']).tools
  assert humidity == Tool('humidity', 'Humidity of a bed.', SCHEMA, {'type': 'object'})
  assert water.writes
  assert one({'jsonrpc': '2.0', 'id': 1, 'result': OTHERS['mcp']}).tools == (humidity, water)
  assert (
    one({'full_name': 'house-humidity', 'name': 'humidity', 'input_schema': SCHEMA}).tools[0].name == 'house-humidity'
  )


def test_api_bank_is_one_dialogue_a_file(tmp_path):
  (tmp_path / 'a.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in records.API_BANK))
  (row,) = read(tmp_path / 'a.jsonl')
  assert [message.role for message in row.dialogue.messages] == ['user', 'assistant', 'tool', 'assistant']
  assert json.loads(row.dialogue.messages[2].content) == {'percent': 40}
  assert fault(records.API_BANK[1]) == 'no_question'


def with_messages(*messages):
  return {'tools': DEMONSTRATIONS['openai']['tools'], 'messages': list(messages)}


def calling(*calls, content=None):
  return {'role': 'assistant', 'content': content, 'tool_calls': [{'function': call} for call in calls]}


USER, END = {'role': 'user', 'content': 'Well?'}, {'role': 'assistant', 'content': 'Dry.'}
CALL = {'name': 'humidity', 'arguments': {'bed': 'east'}}


@pytest.mark.parametrize(
  ('messages', 'code'),
  [
    ([USER, calling(CALL), END], 'results'),  # a call nobody answered
    ([USER, calling(CALL, CALL), {'role': 'tool', 'content': '1'}, END], 'results'),
    ([USER, {'role': 'tool', 'content': '1'}, END], 'results'),
    ([USER], 'unfinished'),
    ([USER, calling(CALL), {'role': 'tool', 'content': '1'}], 'unfinished'),
    ([END], 'no_question'),
    ([USER, {'role': 'critic', 'content': 'Hm.'}, END], 'role'),
    ([{'role': 'user', 'content': [{'type': 'image', 'url': 'x'}]}, END], 'content'),
    ([USER, calling({'arguments': {}}), {'role': 'tool', 'content': '1'}, END], 'call'),
    ([USER, calling({'name': 'humidity', 'arguments': '{"bed": '}), {'role': 'tool', 'content': '1'}, END], 'call'),
    ([USER, calling({'name': 'humidity', 'arguments': [1]}), {'role': 'tool', 'content': '1'}, END], 'call'),
  ],
)
def test_dialogues_that_do_not_add_up_are_refused(messages, code):
  assert fault(with_messages(*messages)) == code
  with pytest.raises(DataError, match=f'^records:1: {code}: '):
    one(with_messages(*messages))


def test_results_without_an_owner_are_refused_and_names_can_tell_it():
  calls = [{'name': 'humidity', 'arguments': {'bed': 'east'}}, {'name': 'rain', 'arguments': {}}]
  swapped = [{'role': 'tool', 'name': 'rain', 'content': 'no'}, {'role': 'tool', 'name': 'humidity', 'content': '40'}]
  row = one(with_messages(USER, calling(*calls), *swapped, END))
  assert [message.content for message in row.dialogue.messages[2:4]] == ['40', 'no']
  swapped[0]['name'] = 'snow'
  assert fault(with_messages(USER, calling(*calls), *swapped, END)) == 'results'


def test_a_result_in_tags_is_what_stands_in_them():
  result = {'role': 'tool', 'content': '<tool_response>\n{"damp": 40}\n</tool_response>'}
  assert one(with_messages(USER, calling(CALL), result, END)).dialogue.messages[2] == Message('tool', '{"damp": 40}')


@pytest.mark.parametrize('ids', [('a', 'b'), (1, 2), (0, 1)])
def test_results_stand_with_their_calls_whatever_the_ids_are(ids):
  asked = calling(CALL, {'name': 'humidity', 'arguments': {'bed': 'west'}})
  for call, identity in zip(asked['tool_calls'], ids, strict=True):
    call['id'] = identity
  swapped = [{'role': 'tool', 'tool_call_id': ids[1], 'content': '30'}]
  swapped += [{'role': 'tool', 'tool_call_id': ids[0], 'content': '40'}]
  row = one(with_messages(USER, asked, *swapped, END))
  assert [message.content for message in row.dialogue.messages[2:4]] == ['40', '30']


def test_parallel_calls_are_one_step_whether_in_one_message_or_several():
  results = [{'role': 'tool', 'content': '1'}] * 2
  together = one(with_messages(USER, calling(CALL, CALL), *results, END)).dialogue
  apart = one(with_messages(USER, calling(CALL), calling(CALL), *results, END)).dialogue
  serial = one(with_messages(USER, calling(CALL), results[0], calling(CALL), results[1], END)).dialogue
  assert together.messages == apart.messages
  assert [len(message.calls) for message in serial.messages] == [0, 1, 0, 1, 0, 0]


def test_words_before_a_call_join_it_and_a_greeting_is_no_target():
  greeting = {'role': 'assistant', 'content': 'Hello!'}
  looking = {'role': 'assistant', 'content': 'Looking.'}
  row = one(with_messages(greeting, USER, looking, calling(CALL), {'role': 'tool', 'content': '1'}, END))
  assert row.dialogue.context == 2
  assert row.dialogue.messages[2] == Message('assistant', 'Looking.', (EAST,))


def weighted(*weights):
  said = [{'role': 'assistant', 'content': f'Words {index}.', 'weight': one} for index, one in enumerate(weights)]
  return with_messages(*(message for one in said for message in (USER, one)))


def test_messages_of_weight_zero_are_context():
  calls = {**calling(CALL), 'weight': 0}
  row = one(with_messages(USER, calls, {'role': 'tool', 'content': '1', 'weight': 0}, END))
  assert [message.learn for message in row.dialogue.messages] == [True, False, True, True]
  row = one(weighted(0, 1, None, 1.0, 0.0))
  assert [message.learn for message in row.dialogue.messages[1::2]] == [False, True, True, True, False]
  assert dialogue_from_json(dialogue_to_json(row.dialogue)) == row.dialogue
  tagged = {'role': 'assistant', 'content': '<tool_call>\n{"name": "f"}\n</tool_call>', 'weight': 0}
  row = one(with_messages(USER, tagged, {'role': 'tool', 'content': '1'}, END))
  assert row.dialogue.messages[1] == Message('assistant', '', (ToolCall('f', {}),), learn=False)


@pytest.mark.parametrize('weight', [0.5, -1, 2, '0', True, [0], float('nan')])
def test_other_weights_are_refused(weight):
  assert fault(weighted(weight)) == 'weight'


def test_a_loss_of_false_keeps_a_message_as_context():
  row = one(with_messages(USER, {**END, 'loss': False}, USER, {**END, 'loss': True}))
  assert [message.learn for message in row.dialogue.messages] == [True, False, True, True]
  assert fault(with_messages(USER, {**END, 'loss': 0.5})) == 'weight'


@pytest.mark.parametrize('key', ['reasoning_content', 'reasoning', 'thinking'])
def test_reasoning_beside_the_content_is_thought(key):
  row = one(with_messages(USER, {**END, 'reasoning_content': None, key: 'Beds are dry.'}))
  assert row.dialogue.messages[1].content == '<think>\nBeds are dry.\n</think>\n\nDry.'


def test_our_own_rows_are_told_by_what_openais_never_hold():
  said = [{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': 'b', 'learn': False}]
  said += [{'role': 'user', 'content': 'c'}, {'role': 'assistant', 'content': 'd'}]
  row = one({'id': 'x', 'tools': '[]', 'messages': said})
  assert (row.format, [message.learn for message in row.dialogue.messages]) == ('dialogues', [True, False, True, True])
  del said[1]['learn']
  row = one({'id': 'x', 'tools': '[]', 'messages': said, 'context': 3})
  assert (row.format, row.dialogue.context) == ('dialogues', 3)
  row = one({'id': 'x', 'tools': '[]', 'messages': said[:1], 'gold': '[[{"name": "f", "arguments": {}}]]'})
  assert (row.format, row.task.gold) == ('tasks', ((ToolCall('f', {}),),))
  assert one({'id': 'x', 'tools': '[]', 'messages': said, 'context': 'Of a page.'}).format == 'openai'


def test_prepared_lines_keep_their_dialogue_and_subset():
  shown, task = one(DEMONSTRATIONS['openai']).dialogue, one(OTHERS['xlam']).task
  for record in (dialogue_to_json(shown), task_to_json(task)):
    row = one({**record, 'dialogue_id': 'd', 'subset': 's'})
    assert (row.id, row.dialogue_id, row.subset) == (record['id'], 'd', 's')


def test_an_id_of_null_is_none():
  rows = list(read([{**OTHERS['xlam'], 'id': None}] * 2))
  assert [row.id for row in rows] == ['row-1', 'row-2']


def test_half_a_character_in_a_result_is_text_and_in_a_call_no_call():
  def sharegpt(results):
    calls = json.dumps([CALL, CALL])
    said = [('human', 'Well?'), ('function_call', calls), ('observation', results), ('gpt', 'Dry.')]
    tools = json.dumps(DEMONSTRATIONS['openai']['tools'])
    return one({'tools': tools, 'conversations': [{'from': who, 'value': text} for who, text in said]})

  assert [m.content for m in sharegpt('["40", "30"]').dialogue.messages[2:4]] == ['40', '30']
  assert [m.content for m in sharegpt('["\\ud83d", "30"]').dialogue.messages[2:-1]] == ['["\\ud83d", "30"]']
  objects = '<tool_call>\n{"name": "humidity", "arguments": {"bed": "\\ud83d"}}\n{"name": "humidity"}\n</tool_call>'
  assert fault(with_messages(USER, {'role': 'assistant', 'content': objects})) == 'call'
  assert fault({**OTHERS['xlam'], 'tools': [{'name': 'f', 'description': '\ud83d', 'parameters': {}}]}) == 'json'


def test_a_turn_is_learned_as_a_whole_or_not_at_all():
  looking = {'role': 'assistant', 'content': 'Looking.', 'weight': 0}
  rest = ({'role': 'tool', 'content': '1'}, END)
  assert fault(with_messages(USER, looking, calling(CALL), *rest)) == 'weight'
  row = one(with_messages(USER, looking, {**calling(CALL), 'weight': 0}, *rest))
  assert row.dialogue.messages[1] == Message('assistant', 'Looking.', (EAST,), learn=False)


def test_nulls_stay_where_they_were_written_and_go_where_arrow_filled_them():
  def arguments(given):
    messages = [USER, calling({'name': 'humidity', 'arguments': given}), {'role': 'tool', 'content': '1'}, END]
    return one(with_messages(*messages)).dialogue.messages[1].calls[0].arguments

  assert arguments({'bed': 'east', 'hour': None}) == {'bed': 'east', 'hour': None}  # the schema allows it
  assert arguments({'bed': 'east', 'depth': 1, 'wind': None}) == {'bed': 'east', 'depth': 1}  # no such parameter
  assert arguments('{"bed": null}') == {'bed': None}  # a string is never filled
  assert arguments({'bed': None, 'hour': 3}) == {'hour': 3}  # not allowed: a filling


def test_null_keywords_of_schemas_are_fillings_but_a_default_of_null_alone_is_meant():
  def schema(parameters):
    return one({'tools': [{'name': 'f', 'inputSchema': parameters}]}).tools[0].parameters

  meant = {'type': 'object', 'properties': {'x': {'type': 'string', 'default': None, 'enum': ['a', None]}}}
  assert schema(meant) == meant
  filled = {'type': 'object', 'properties': {'x': {'type': 'string', 'default': None, 'enum': None}, 'y': None}}
  assert schema(filled) == {'type': 'object', 'properties': {'x': {'type': 'string'}}}
  tricky = {'type': 'object', 'properties': {'default': {'type': 'string'}, 'properties': {'type': 'object'}}}
  assert schema(tricky) == tricky


def test_numpy_records_are_read_as_their_lists():
  record = OTHERS['slca_rl']
  boxed = {**record, 'prompt': np.array(record['prompt'], dtype=object)}
  boxed['extra_info'] = {'original_turn_index': np.int64(1)}
  boxed['reward_model'] = copy.deepcopy(record['reward_model'])
  boxed['reward_model']['ground_truth']['allowed_tools'] = np.array(['humidity'])
  assert one(boxed).task == one(record).task


@pytest.mark.parametrize('name', ['slca_sft', 'hermes', 'toolace'])
def test_calls_that_cannot_be_read_are_no_words(name):
  record = copy.deepcopy(DEMONSTRATIONS[name])
  (turn,) = [
    turn for turn in record['conversations'] if 'bed' in turn['value'] and turn['from'] in ('gpt', 'assistant')
  ]
  turn['value'] = turn['value'].replace('"east"', '"east')
  assert fault(record) == 'call'


def test_calls_as_tags_are_calls_in_formats_that_have_another_way_too():
  text = '<tool_call>\n{"name": "humidity", "arguments": {"bed": "east"}}\n</tool_call>'
  row = one(with_messages(USER, {'role': 'assistant', 'content': text}, {'role': 'tool', 'content': '1'}, END))
  assert row.dialogue.messages[1] == Message('assistant', '', (EAST,))
  turns = [('human', 'Well?'), ('gpt', text), ('observation', '1'), ('gpt', 'Dry.')]
  record = {'conversations': [{'from': who, 'value': what} for who, what in turns]}
  assert one(record).dialogue.messages == row.dialogue.messages
  assert fault(with_messages(USER, {'role': 'assistant', 'content': text[:-3]})) == 'call'


def test_tags_in_strings_and_thoughts_are_text():
  record = copy.deepcopy(DEMONSTRATIONS['slca_sft'])
  call = {'name': 'humidity', 'arguments': {'bed': 'a </tool_call> b'}}
  text = f'<think>No <tool_call> now.</think>\nLet me see.\n<tool_call>\n{json.dumps(call)}\n</tool_call>'
  record['conversations'][2]['value'] = text
  record['conversations'][3]['value'] = '<tool_response>\n40\n</tool_response>'
  said = one(record).dialogue.messages[1]
  assert said.content == '<think>No <tool_call> now.</think>\nLet me see.'
  assert said.calls == (ToolCall('humidity', {'bed': 'a </tool_call> b'}),)
  record['conversations'][2]['value'] = text + '\nDone.'
  assert fault(record) == 'call'


@pytest.mark.parametrize(
  ('text', 'arguments'),
  [
    ('[Air Quality API(city="Lille")]', [{'city': 'Lille'}]),
    (
      "[Air Quality API(from='a, b', x=[1, {'k': (2, 3)}], ok=true, no=None)]",
      [{'from': 'a, b', 'x': [1, {'k': [2, 3]}], 'ok': True, 'no': None}],
    ),
    ('[Air Quality API(q="say \\"hi\\" (now)"), Air Quality API()]', [{'q': 'say "hi" (now)'}, {}]),
    ('[see (1) and (2)] is what I mean', []),
    ('Nothing to call.', []),
  ],
)
def test_calls_in_brackets(text, arguments):
  tool = {'name': 'Air Quality API', 'description': '', 'parameters': {'type': 'dict', 'properties': {}}}
  turns = [('user', 'Well?'), ('assistant', text), *([('tool', '{}')] if arguments else []), ('assistant', 'So.')]
  record = {
    'system': f'Call these: {json.dumps([tool])}',
    'conversations': [{'from': who, 'value': what} for who, what in turns],
  }
  assert [dict(call.arguments) for call in one(record).dialogue.messages[1].calls] == arguments


@pytest.mark.parametrize(
  'text',
  [
    '[Air Quality API(city="Lille"',
    '[Air Quality API(Lille)]',
    '[Air Quality API(a=1, a=2)]',
    '[Air Quality API(a=b)]',
  ],
)
def test_calls_in_brackets_that_are_broken_are_refused(text):
  record = copy.deepcopy(DEMONSTRATIONS['toolace'])
  record['system'] = record['system'].replace('"humidity"', '"Air Quality API"')
  record['conversations'][1]['value'] = text
  assert fault(record) == 'call'


def test_tools_that_share_a_name_are_refused_in_tasks_alone():
  other = {'name': 'humidity', 'description': 'Of the air.', 'parameters': SCHEMA}
  twice = [json.loads(OTHERS['xlam']['tools'])[0], other]
  assert fault({**OTHERS['xlam'], 'tools': json.dumps(twice)}) == 'tools'
  shown = {**DEMONSTRATIONS['toucan'], 'tools': json.dumps(twice)}
  assert len(one(shown).dialogue.tools) == 2
  same = json.dumps([twice[0], twice[0]])
  assert len(one({**OTHERS['xlam'], 'tools': same}).task.tools) == 1


def test_a_demonstration_and_its_task_turn_into_each_other():
  dialogue = Dialogue(
    'd', (HUMIDITY,), (*PARALLEL, ASK, Message('assistant', '', (EAST,)), Message('tool', '41'), SAID)
  )
  assert list(turns_of(dialogue)) == [1, 6]
  first, second = (task_of(dialogue, context=context) for context in turns_of(dialogue))
  assert first.messages == (ASK,) and first.gold == ((EAST, WEST),) and first.answer == SAID.content
  assert [record['content'] for record in first.meta['recorded']] == ['40', '61']
  assert second.messages == dialogue.messages[:6] and second.gold == ((EAST,),)
  assert dialogue_of(first) == Dialogue('d', (HUMIDITY,), PARALLEL, 1)
  assert dialogue_of(second) == Dialogue('d', (HUMIDITY,), dialogue.messages, 6)
  assert task_of(dialogue_of(first)) == first
  with pytest.raises(DataError, match='are no prompt'):
    task_of(dialogue, context=2)
  with pytest.raises(DataError, match='no recorded result'):
    dialogue_of(Task('t', (HUMIDITY,), (ASK,), ((EAST,), (WEST,))))
  assert dialogue_of(Task('t', (HUMIDITY,), (ASK,), ((EAST,),))).messages == (ASK, Message('assistant', '', (EAST,)))
