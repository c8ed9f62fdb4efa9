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


@pytest.mark.parametrize('text, says', [('{', 'not JSON'), ('{"a": 1}', 'tools/list'), ('[3]', 'object with a name')])
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
