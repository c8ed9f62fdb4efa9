"""BFCL's records, made by hand in its format, as tasks, demonstrations and a split without leaks; the real ones too."""

import importlib.util
import json

import pytest

from slca_jax.chat.checks import checks_of
from slca_jax.data import bfcl
from slca_jax.data.tasks import dialogue_from_json, dialogue_to_json, task_from_json, task_to_json
from slca_jax.dialogue import ToolCall
from slca_jax.errors import DataError

MEASURE = {
  'name': 'garden.measure',
  'description': 'Measures a bed of the garden.',
  'parameters': {
    'type': 'dict',
    'properties': {
      'length': {'type': 'float', 'description': 'In metres.'},
      'unit': {'type': 'string', 'description': 'Unit of the answer.'},
      'note': {'type': 'string', 'description': 'Kept with the answer.'},
    },
    'required': ['length', 'note'],
  },
}
PLANT = {
  'name': 'plant',
  'description': 'Plants something.',
  'parameters': {
    'type': 'dict',
    'properties': {
      'seed': {
        'type': 'dict',
        'properties': {'kind': {'type': 'string'}, 'depth': {'type': 'integer'}},
        'required': ['kind'],
      },
      'rows': {'type': 'array', 'items': {'type': 'dict', 'properties': {'at': {'type': 'integer'}}}},
      'days': {'type': 'array', 'items': {'type': 'integer'}},
    },
    'required': ['seed'],
  },
}


def record(identity, question, *tools):
  return {'id': identity, 'question': [[{'role': 'user', 'content': question}]], 'function': list(tools)}


@pytest.fixture
def folder(tmp_path):
  """Writes categories given as {name: [(record, accepted calls), ...]} and returns their folder."""

  def write(categories):
    (tmp_path / 'possible_answer').mkdir(exist_ok=True)
    for name, pairs in categories.items():
      answers = [{'id': one['id'], 'ground_truth': accepted} for one, accepted in pairs]
      for place, records in ((tmp_path, [one for one, _ in pairs]), (tmp_path / 'possible_answer', answers)):
        lines = ''.join(json.dumps(one) + '\n' for one in records)
        (place / f'BFCL_v4_{name}.json').write_text(lines, encoding='utf-8')
    return tmp_path

  return write


def test_gold_is_the_first_accepted_value_and_optional_arguments_are_left_out(folder):
  accepted = [{'garden.measure': {'length': [4, 4.0], 'unit': ['m', ''], 'note': ['', 'none']}}]
  (task,) = bfcl.read_bfcl(folder({'x': [(record('x_0', 'How long is it?', MEASURE), accepted)]}), ('x',))
  # `unit` may be left out; `note` is required, so a value is given though '' would do.
  assert task.gold == ((ToolCall('garden.measure', {'length': 4, 'note': 'none'}),),)
  assert task.question == 'How long is it?'
  assert task.meta == {'category': 'x', 'possible_answer': accepted}
  assert task.tools[0].parameters == MEASURE['parameters']


def test_values_inside_objects_are_chosen_as_well(folder):
  accepted = [
    {
      'plant': {
        'seed': [{'kind': ['oak', 'Oak'], 'depth': ['', 3]}],
        'rows': [[{'at': [2, 3]}, {'at': 5}]],
        'days': [[1, 2], [2, 1]],
      }
    }
  ]
  (task,) = bfcl.read_bfcl(folder({'x': [(record('x_0', 'Plant it.', PLANT), accepted)]}), ('x',))
  assert task.gold[0][0].arguments == {'seed': {'kind': 'oak'}, 'rows': [{'at': 2}, {'at': 5}], 'days': [1, 2]}


def test_parallel_calls_are_one_step_in_order(folder):
  accepted = [{'garden.measure': {'length': [n], 'note': ['a']}} for n in (3, 1, 2)]
  (task,) = bfcl.read_bfcl(folder({'x': [(record('x_0', 'All three.', MEASURE), accepted)]}), ('x',))
  assert [[call.arguments['length'] for call in step] for step in task.gold] == [[3, 1, 2]]


def test_a_task_whose_gold_its_own_tool_refuses_is_left_out(folder):
  good = (record('x_0', 'Good.', MEASURE), [{'garden.measure': {'length': [1], 'note': ['a']}}])
  bad = (record('x_1', 'Bad.', MEASURE), [{'garden.measure': {'length': ['long'], 'note': ['a']}}])
  assert [task.id for task in bfcl.read_bfcl(folder({'x': [bad, good]}), ('x',))] == ['x_0']


def test_a_demonstration_calls_sees_and_states_what_it_saw(folder):
  accepted = [{'garden.measure': {'length': [n], 'note': ['a']}} for n in (3, 1)]
  (task,) = bfcl.read_bfcl(folder({'x': [(record('x_0', 'Both.', MEASURE), accepted)]}), ('x',))
  dialogue = bfcl.demonstrate(task)
  assert [message.role for message in dialogue.messages] == ['user', 'assistant', 'tool', 'tool', 'assistant']
  assert dialogue.messages[1].calls == task.gold[0]
  results = [json.loads(message.content)['result'] for message in dialogue.messages[2:4]]
  assert results[0] != results[1]
  assert all(result in dialogue.messages[4].content for result in results)
  assert dialogue_from_json(json.loads(json.dumps(dialogue_to_json(dialogue)))) == dialogue == bfcl.demonstrate(task)
  assert task_from_json(json.loads(json.dumps(task_to_json(task)))) == task


def many(count):
  """Tasks of which each third asks the same as another and each fifth calls the same tool as another."""
  pairs = []
  for i in range(count):
    tool = {**MEASURE, 'name': f'tool_{i // 5 if i % 5 < 2 else 1000 + i}'}
    accepted = [{tool['name']: {'length': [i], 'note': ['a']}}]
    pairs.append((record(f'x_{i}', f'Question  {i // 3 if i % 3 < 2 else 1000 + i}?', tool), accepted))
  return pairs


def test_no_question_and_no_tool_of_the_gold_is_on_both_sides(folder):
  tasks = bfcl.read_bfcl(folder({'x': many(200)}), ('x',))
  train, heldout = bfcl.split(tasks, heldout=0.3)
  assert sorted(task.id for task in train + heldout) == sorted(task.id for task in tasks)
  assert 20 < len(heldout) < 100
  for traits in (lambda task: {task.question}, lambda task: {call.name for call in task.gold[0]}):
    assert not set().union(*map(traits, train)) & set().union(*map(traits, heldout))


def test_the_split_depends_on_ids_and_seed_alone(folder):
  tasks = bfcl.read_bfcl(folder({'x': many(60)}), ('x',))
  train, heldout = bfcl.split(tasks)
  again = bfcl.split(tasks[::-1])
  assert ([task.id for task in train], [task.id for task in heldout]) == tuple([t.id for t in side] for side in again)
  assert {task.id for task in heldout} != {task.id for task in bfcl.split(tasks, seed=1)[1]}
  assert bfcl.split(tasks, heldout=0.0)[1] == [] == bfcl.split(tasks, heldout=1.0)[0]


def test_broken_files_are_named(folder, tmp_path):
  with pytest.raises(DataError, match='possible_answer'):
    bfcl.data_folder(str(tmp_path))
  path = folder({'x': [(record('x_0', 'Hm?', MEASURE), [{'other': {}}])]})
  with pytest.raises(DataError, match='x_0 is no record'):
    bfcl.read_bfcl(path, ('x',))
  with pytest.raises(DataError, match=r'BFCL_v4_y\.json does not exist'):
    bfcl.read_bfcl(path, ('y',))
  (path / 'possible_answer' / 'BFCL_v4_x.json').write_text('')
  with pytest.raises(DataError, match='x_0 has no entry'):
    bfcl.read_bfcl(path, ('x',))
  (path / 'BFCL_v4_x.json').write_text('{"id": ')
  with pytest.raises(DataError, match='no JSON'):
    bfcl.read_bfcl(path, ('x',))


@pytest.mark.skipif(
  importlib.util.find_spec('bfcl_eval') is None,
  reason='needs the data of BFCL; pip install --no-deps bfcl-eval',
)
def test_the_real_tasks_are_read_whole():
  tasks = bfcl.read_bfcl(bfcl.data_folder(), (*bfcl.NON_LIVE, *bfcl.LIVE))
  assert len(tasks) > 2000
  for task in tasks:
    (step,) = task.gold
    assert step and not any(map(checks_of(task.tools).fault, step)), task.id
    bfcl.demonstrate(task)
  train, heldout = bfcl.split(tasks)
  assert not {task.question for task in train} & {task.question for task in heldout}
  assert 0.1 < len(heldout) / len(tasks) < 0.3
