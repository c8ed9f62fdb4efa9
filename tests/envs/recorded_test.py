"""Laws of recorded answers and of the values invented beside them."""

import asyncio
import json

import jsonschema
import pytest

from slca_jax.dialogue import Observation, Task, Tool, ToolCall
from slca_jax.envs.recorded import invent, recorded_opener
from slca_jax.errors import EnvironmentFailure

RETURNS = {
  'type': 'object',
  'properties': {
    'status': {'type': 'string', 'enum': ['success', 'error']},
    'city': {'type': 'string'},
    'degrees': {'type': 'number', 'minimum': -40, 'maximum': 50},
    'hours': {'type': 'array', 'items': {'$ref': '#/$defs/hour'}, 'minItems': 1},
    'alarm': {'type': ['boolean', 'null']},
    'wind': {'anyOf': [{'type': 'integer', 'maximum': 5}, {'type': 'null'}]},
    'source': {'const': 'station'},
  },
  'required': ['status', 'city', 'degrees', 'hours', 'alarm', 'wind', 'source'],
  '$defs': {'hour': {'type': 'object', 'properties': {'rain': {'type': 'boolean'}}, 'required': ['rain']}},
}
PARAMETERS = {'type': 'object', 'properties': {'city': {'type': 'string'}}, 'required': ['city']}
WEATHER = Tool('weather', '', PARAMETERS, RETURNS)
PLAIN = Tool('plain', '', PARAMETERS)
RECORDED = [
  {'name': 'weather', 'arguments': {'city': 'Lyon'}, 'content': '21 degrees'},
  {'name': 'weather', 'arguments': {'city': 'Oslo'}, 'content': {'degrees': -3}},
  {'name': 'weather', 'arguments': {'city': 'Atlantis'}, 'content': 'no such city', 'ok': False},
]
TASK = Task('t', (WEATHER, PLAIN), (), meta={'recorded': RECORDED})


def step(*calls, seed=0, task=TASK, **how):
  environment = recorded_opener(**how)(task, seed)
  return asyncio.run(environment.step([ToolCall(name, arguments) for name, arguments in calls]))


def test_a_recorded_call_gets_its_record_however_it_is_spelled():
  assert step(('weather', {'city': ' LYON'}), ('weather', {'city': 'Oslo'}), ('weather', {'city': 'Atlantis'})) == [
    Observation('21 degrees'),
    Observation('{"degrees": -3}'),
    Observation('no such city', ok=False),
  ]


def test_an_unrecorded_call_gets_a_value_that_fits_its_schema():
  for seed in range(20):
    (seen,) = step(('weather', {'city': 'Rome'}), seed=seed)
    value = json.loads(seen.content)
    jsonschema.validate(value, RETURNS)
    assert seen.ok and value['city'] == 'Rome'


def test_an_invented_value_depends_on_seed_tool_and_arguments_alone():
  rome, lima = ('plain', {'city': 'Rome'}), ('plain', {'city': 'Lima'})
  assert step(rome, lima) == [step(rome)[0], step(lima)[0]]
  assert step(rome) != step(lima)
  assert step(rome) != step(rome, seed=1)


def test_without_a_return_schema_the_value_says_that_it_worked():
  assert json.loads(step(('plain', {'city': 'Rome'}))[0].content)['status'] == 'success'


def test_an_invalid_call_is_not_answered_from_records():
  assert not step(('weather', {}))[0].ok
  assert step(('nowhere', {}), checks=False)[0].ok


def test_a_recursive_schema_ends():
  returns = {'type': 'object', 'properties': {'next': {'$ref': '#'}, 'value': {'type': 'integer'}}}
  assert invent(Tool('list', '', PARAMETERS, returns), ToolCall('list', {}), seed=0)['next']['value'] >= 1


@pytest.mark.parametrize(
  'returns',
  [
    {'type': 'array', 'items': {'type': 'integer'}, 'minItems': 10**12},
    {'type': 'object', 'properties': {f'p{i}': {'$ref': '#'} for i in range(30)}},
    {'type': 'array', 'items': {'$ref': '#'}, 'minItems': 50},
  ],
)
def test_a_schema_of_endless_values_ends_soon(returns):
  text = json.dumps(invent(Tool('wide', '', PARAMETERS, returns), ToolCall('wide', {}), seed=0))
  assert len(text) < 100_000


@pytest.mark.parametrize(
  'returns', [{'$ref': '#/nowhere'}, {'type': 'dict'}, {'items': 3, 'type': 'array'}, {'properties': {'x': True}}]
)
def test_a_faulty_return_schema_does_no_harm(returns):
  json.dumps(invent(Tool('odd', '', PARAMETERS, returns), ToolCall('odd', {}), seed=0))


def test_a_faulty_record_is_named():
  with pytest.raises(EnvironmentFailure, match='task bad has the record'):
    step(task=Task('bad', (PLAIN,), (), meta={'recorded': [{'name': 'plain'}]}))
