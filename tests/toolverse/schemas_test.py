import gzip
import json

import pytest

from slca_jax.errors import DataError
from slca_jax.toolverse.schemas import read_document, read_schemas

TOOL = {
  'name': 'get_pet',
  'description': 'A pet.',
  'inputSchema': {'type': 'object', 'properties': {'id': {'type': 'string'}}},
}


def names(sets):
  return [(one.name, [tool.name for tool in one.tools]) for one in sets]


@pytest.mark.parametrize(
  'document',
  [
    {'tools': [TOOL]},
    {'jsonrpc': '2.0', 'id': 1, 'result': {'tools': [TOOL]}},
    [TOOL],
    [{'type': 'function', 'function': {**TOOL, 'parameters': TOOL['inputSchema']}}],
  ],
  ids=['list result', 'answer', 'plain list', 'chat functions'],
)
def test_every_layout_of_a_tool_list_reads_the_same(document):
  (one,) = read_document(document, name='pets')
  assert names([one]) == [('pets', ['get_pet'])]
  assert one.tools[0].parameters['properties'] == {'id': {'type': 'string'}}


def test_servers_keep_their_own_names():
  document = {'pets': {'tools': [TOOL]}, 'zoo': {'tools': [TOOL], 'serverInfo': {'name': 'Zoo of Oslo'}}}
  assert names(read_document(document)) == [('pets', ['get_pet']), ('Zoo of Oslo', ['get_pet'])]


def test_json_lines_are_grouped_by_server_and_invalid_tools_left_out(tmp_path):
  row = lambda file, name, valid: {'server': 'S', 'server_file': file, 'name': name, 'input_schema': {}, 'valid': valid}
  rows = [row('1.a_labeled.json', 'x', True), row('2.b_labeled.json', 'y', True), row('1.a_labeled.json', 'z', False)]
  path = tmp_path / 'tools.jsonl.gz'
  path.write_bytes(gzip.compress('\n'.join(map(json.dumps, rows)).encode()))
  assert names(read_schemas(path)) == [('1.a', ['x']), ('2.b', ['y'])]


def test_openapi_operations_become_tools_with_path_query_and_body_parameters():
  document = {
    'openapi': '3.0.0',
    'info': {'title': 'Pets'},
    'paths': {
      '/pets/{petId}': {
        'parameters': [{'$ref': '#/components/parameters/PetId'}],
        'get': {'operationId': 'showPet', 'summary': 'Info of a pet'},
        'delete': {},
      },
      '/pets': {
        'post': {
          'parameters': [{'name': 'X-Key', 'in': 'header', 'schema': {'type': 'string'}}],
          'requestBody': {'content': {'application/json': {'schema': {'$ref': '#/components/schemas/Pet'}}}},
        }
      },
    },
    'components': {
      'parameters': {'PetId': {'name': 'petId', 'in': 'path', 'schema': {'type': 'integer'}}},
      'schemas': {
        'Pet': {'allOf': [{'$ref': '#/components/schemas/Named'}, {'properties': {'tag': {'type': 'string'}}}]},
        'Named': {'properties': {'name': {'type': 'string'}}, 'required': ['name']},
      },
    },
  }
  (one,) = read_document(document)
  shown = {
    tool.name: (list(tool.parameters['properties']), tool.parameters['required'], tool.writes) for tool in one.tools
  }
  assert one.name == 'Pets'
  assert shown == {
    'showPet': (['petId'], ['petId'], False),
    'delete_pet_by_petId': (['petId'], ['petId'], True),
    'create_pet': (['name', 'tag'], ['name'], True),
  }


def test_a_reference_in_a_circle_ends():
  node = {'properties': {'child': {'$ref': '#/components/schemas/Node'}}}
  body = {'content': {'application/json': {'schema': {'$ref': '#/components/schemas/Node'}}}}
  document = {
    'openapi': '3.1.0',
    'paths': {'/n': {'post': {'requestBody': body}}},
    'components': {'schemas': {'Node': node}},
  }
  (one,) = read_document(document)
  assert list(one.tools[0].parameters['properties']) == ['child']


def test_an_operations_parameter_replaces_the_paths_and_each_is_required_once():
  place = lambda name, where, **more: {'name': name, 'in': where, 'schema': {'type': 'string'}, **more}
  path = [place('id', 'path', required=True), place('day', 'query', required=True)]
  own = [place('id', 'path', required=True), place('day', 'query', description='optional here')]
  whole = {'allOf': [{'required': ['a']}, {'required': ['a', 'b']}]}
  body = {'content': {'application/json': {'schema': {'properties': {'part': whole}}}}}
  operation = {'parameters': own, 'requestBody': body}
  (one,) = read_document({'openapi': '3.1.0', 'paths': {'/x/{id}': {'parameters': path, 'put': operation}}})
  parameters = one.tools[0].parameters
  assert list(parameters['properties']) == ['id', 'day', 'part'] and parameters['required'] == ['id']
  assert parameters['properties']['day']['description'] == 'optional here'
  assert parameters['properties']['part']['required'] == ['a', 'b']


def test_parameters_may_be_anything_be_in_a_media_type_or_be_none():
  given = [
    {'name': 'any', 'in': 'query', 'schema': True},
    {'name': 'media', 'in': 'query', 'content': {'application/json': {'schema': {'type': 'integer'}}}},
    {'name': 'text', 'in': 'query'},
    {'in': 'query', 'schema': {'type': 'string'}},
  ]
  (one,) = read_document({'openapi': '3.1.0', 'paths': {'/x': {'get': {'parameters': given}}}})
  assert one.tools[0].parameters['properties'] == {'any': {}, 'media': {'type': 'integer'}, 'text': {'type': 'string'}}


@pytest.mark.parametrize('name', ['tools.json', 'tools.jsonl'])
def test_what_others_write_into_descriptions_is_read(tmp_path, name):
  path = tmp_path / name
  entry = json.dumps({**TOOL, 'server': 'pets', 'description': 'one\u2028two CUT'}, ensure_ascii=False)
  path.write_text(
    '\ufeff' + entry.replace('CUT', '\\ud83d').join('[]' if name == 'tools.json' else ['', '\r\n']), 'utf-8'
  )
  (one,) = read_schemas(path)
  assert one.tools[0].description == 'one\u2028two ?'


@pytest.mark.parametrize(
  'text, says',
  [('[' * 100_000, 'not JSON'), ('{', 'not JSON'), ('{"a": 1}', 'tools/list'), ('[3]', 'object with a name')],
)
def test_what_is_no_tool_list_is_refused_with_the_remedy(tmp_path, text, says):
  path = tmp_path / 'tools.json'
  path.write_text(text)
  with pytest.raises(DataError, match=says):
    read_schemas(path)


def test_a_broken_line_is_named(tmp_path):
  path = tmp_path / 'tools.jsonl'
  path.write_text(json.dumps({**TOOL, 'server': 'pets'}) + '\n{"name":')
  with pytest.raises(DataError, match='line 2'):
    read_schemas(path)
