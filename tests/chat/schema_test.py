"""Laws of checking calls against tool schemas."""

import gzip
import json
import pathlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slca_jax.chat.schema import compile_tool
from slca_jax.dialogue import Tool, ToolCall
from slca_jax.errors import SchemaError

NAN, INFINITY = float('nan'), float('inf')


def checked(parameters):
  return compile_tool(Tool('f', '', parameters))


def one(schema):
  """A tool with one parameter `x`."""
  return checked({'type': 'object', 'properties': {'x': schema}})


def kinds(tool, arguments):
  return [(violation.kind, violation.path) for violation in tool.violations(arguments)]


def accepts(tool, value):
  return not tool.check(ToolCall('f', {'x': value}))


@pytest.mark.parametrize(
  ('schema', 'good', 'bad'),
  [
    ({'type': 'integer'}, [3, 12.0, -0.0, 10**400], [True, False, 12.5, '3', None, NAN, INFINITY]),
    ({'type': 'number'}, [3, 12.5, 10**400], [True, '3', NAN, INFINITY, -INFINITY]),
    ({'type': 'boolean'}, [True, False], [0, 1, 'true']),
    ({'anyOf': [{'type': 'string'}, {'type': 'null'}]}, ['a', None], [1, True, []]),
    ({'type': ['string', 'null']}, ['a', None], [1, {}]),
    ({'type': 'string', 'nullable': True, 'enum': ['a']}, ['a', None], ['b', 1]),
    ({'type': 'integer', 'minimum': 1, 'exclusiveMinimum': True}, [2], [1, 0]),
    ({'type': 'integer', 'minimum': 1, 'exclusiveMinimum': False}, [1], [0]),
    ({'type': 'integer', 'maximum': 1, 'exclusiveMaximum': True}, [0], [1]),
    ({'exclusiveMinimum': True}, [0, -5], []),
    ({'type': 'array', 'items': [{'type': 'string'}, {'type': 'integer'}]}, [['a', 1], ['a']], [[1, 1], ['a', 'b']]),
    ({'type': 'array', 'items': [{}], 'additionalItems': False}, [[1]], [[1, 2]]),
    ({'dependencies': {'a': ['b'], 'c': {'required': ['d']}}}, [{}, {'a': 1, 'b': 2}], [{'a': 1}, {'c': 1}]),
    ({'type': 'object', 'id': 'http://a.b/c', '$schema': 'http://json-schema.org/draft-04/schema#'}, [{}], [1]),
    ({'type': 'string', 'enum': None, 'description': 3}, ['a'], [1, None]),
    ({'type': 'string', 'default': None}, ['a', None], [1]),
    ({'type': 'list', 'items': {'type': 'str'}, 'enum': ['a', 'b', 3]}, [['a'], []], [['c'], 'a', [3]]),
    ({'enum': [1, 'a', None]}, [1, 1.0, 'a', None], [True, 'b']),
    ({'type': 'number', 'multipleOf': 0.01}, [0.29, 19.99, 3, 10**400], [0.355]),
    ({'type': 'array', 'uniqueItems': True}, [[1, True, 'a']], [[1, 1]]),
    (True, [1, None], []),
    (False, [], [1]),
  ],
)
def test_drafts_and_unions(schema, good, bad):
  tool = one(schema)
  assert [value for value in good if not accepts(tool, value)] == []
  assert [value for value in bad if accepts(tool, value)] == []


@pytest.mark.parametrize(
  ('name', 'good', 'bad'),
  [
    ('dict', {}, []),
    ('Dict[str, int]', {}, 1),
    ('HashMap', {}, 'a'),
    ('float', 1, True),
    ('double', 0.5, '1'),
    ('int', 2, 2.5),
    ('tuple', [1], {}),
    ('List[int]', [1], 1),
    ('ArrayList', [], ''),
    ('str', 'a', 1),
    ('String', 'a', 1),
    ('str, optional', 'a', 1),
    ('Boolean', True, 1),
    ('float | None', None, 'a'),
    ('typing.List[a.b]', [], 1),
    ('any', {'a': [None]}, ...),
    ('', 3, ...),
    ('Optional[int]', None, ...),
    (['dict', 'null'], None, 1),
    (['string', 'any'], 1, ...),
  ],
)
def test_type_names_of_other_languages(name, good, bad):
  tool = one({'type': name})
  assert accepts(tool, good)
  assert bad is ... or not accepts(tool, bad)


def test_missing_types_and_others_are_told_apart_in_that_order():
  tool = checked(
    {
      'type': 'dict',
      'properties': {
        'city': {'type': 'string', 'required': True},
        'days': {'type': 'integer', 'minimum': 1},
        'filter': {'type': 'object', 'properties': {'tags': {'type': 'array', 'items': {'type': 'string'}}}},
        'limit': {'anyOf': [{'type': 'integer'}, {'type': 'null'}]},
      },
      'required': ['unit', 'city'],
    }
  )
  found = tool.violations({'days': 0, 'filter': {'tags': ['a', 3]}, 'limit': 'two', 'more': 1})
  assert [(v.kind, v.path, v.expected) for v in found] == [
    ('missing', 'unit', ''),
    ('missing', 'city', ''),
    ('type', 'filter.tags[1]', 'string'),
    ('type', 'limit', 'integer or null'),
    ('other', 'days', ''),
  ]
  assert found[2].text == "parameter 'filter.tags[1]' must be of type string, not integer"
  assert tool.check(ToolCall('f', {'city': 'Lyon', 'unit': 'C', 'more': 1})) == ()


def test_failed_union_is_explained_by_the_branch_that_came_furthest():
  tool = one(
    {'anyOf': [{'type': 'object', 'properties': {'a': {'type': 'integer'}}, 'required': ['a']}, {'type': 'null'}]}
  )
  assert kinds(tool, {'x': {'a': 'b'}}) == [('type', 'x.a')]
  assert kinds(tool, {'x': {}}) == [('missing', 'x.a')]
  assert kinds(tool, {'x': 3}) == [('type', 'x')]


def test_unknown_parameters_are_allowed_unless_the_schema_says_no():
  assert kinds(checked({'properties': {}}), {'new': 1}) == []
  assert kinds(checked({'properties': {}, 'additionalProperties': False}), {'new': 1}) == [('other', '')]


def test_call_of_another_tool_is_refused():
  assert checked({}).check(ToolCall('g', {})) == ("'g' was called, this is 'f'",)


def test_references_are_followed_wherever_they_point():
  tool = checked(
    {
      'properties': {
        'a': {'type': 'array', 'items': {'type': 'int'}},
        'b': {'$ref': '#/properties/a/items'},
        'c': {'$ref': '#/$defs/odd~1name~0%20x'},
        'tree': {'$ref': '#/definitions/Node'},
      },
      '$defs': {'odd/name~ x': {'type': 'str'}},
      'definitions': {'Node': {'type': 'object', 'properties': {'next': {'$ref': '#/definitions/Node'}}}},
    }
  )
  assert kinds(tool, {'a': [1], 'b': 2, 'c': 'd', 'tree': {'next': {'next': {}}}}) == []
  assert kinds(tool, {'b': 'x', 'c': 1, 'tree': {'next': {'next': 3}}}) == [
    ('type', 'b'),
    ('type', 'c'),
    ('type', 'tree.next.next'),
  ]


def nested(levels, key='properties'):
  schema = {}
  for _ in range(levels):
    schema = {'properties': {'a': schema}} if key == 'properties' else {key: [schema]}
  return schema


def circular():
  schema = {'type': 'object'}
  schema['properties'] = {'a': schema}
  return schema


@pytest.mark.parametrize(
  ('parameters', 'why'),
  [
    ({'properties': {'x': {'type': 'colour'}}}, 'at /properties/x: .colour. is no known type'),
    ({'properties': {'x': {'type': []}}}, 'empty'),
    ({'properties': {'x': {'type': [{'type': 'string'}]}}}, 'no known type'),
    ({'properties': {'type': 'object', 'properties': {}}}, 'at /properties/type: .object. is no schema'),
    ({'properties': ['a']}, 'no object of schemas'),
    ({'properties': {'x': 7}}, 'no schema'),
    ({'required': 'x'}, 'no list of names'),
    ({'required': [1]}, 'no list of names'),
    ({'type': 'array'}, 'always an object'),
    ('object', 'no schema'),
    (True, 'described by an object'),
    ({'anyOf': {}}, 'no list of schemas'),
    ({'properties': {'x': {'enum': 'a'}}}, "at /properties/x/enum: 'a' is not of type 'array'"),
    ({'properties': {'x': {'minimum': '1'}}}, 'at /properties/x/minimum'),
    ({'properties': {'x': {'pattern': '(['}}}, 'cannot be compiled'),
    ({'patternProperties': {'(': {}}}, 'cannot be compiled'),
    ({'dependencies': 3}, 'dependencies'),
    ({'$ref': 'http://example.com/schema.json'}, 'leaves the document'),
    ({'$ref': 'other.json#/a'}, 'leaves the document'),
    ({'$ref': 3}, 'leaves the document'),
    ({'$dynamicRef': '#a'}, 'not supported'),
    ({'properties': {'x': {'$ref': '#/$defs/none'}}}, r'/\$defs/none leads to no schema'),
    ({'properties': {'x': {'$ref': '#/default'}}, 'default': {}}, 'leads to no schema'),
    ({'$ref': '#'}, 'circle'),
    ({'$defs': {'a': {'$ref': '#/$defs/b'}, 'b': {'allOf': [{'$ref': '#/$defs/a'}]}}}, 'circle'),
    ({'properties': {'x': {'not': {'$ref': '#/properties/x'}}}}, 'circle'),
    (nested(70), 'deeper than 64'),
    (nested(100_000), 'deeper than 64'),
    (nested(70, 'anyOf'), 'deeper than 64'),
    (circular(), 'no JSON'),
    ({'default': {1, 2}}, 'no JSON'),
  ],
)
def test_schema_that_cannot_be_checked_is_refused_with_the_tool_and_the_reason(parameters, why):
  with pytest.raises(SchemaError, match=why) as refused:
    checked(parameters)
  assert "tool 'f': " in str(refused.value)
  assert len(str(refused.value)) < 400


def test_deep_arguments_end_in_a_reason():
  tool = checked({'properties': {'a': {'$ref': '#'}, 'b': {'enum': [1]}}, 'additionalProperties': False})
  for levels in (60, 70, 2000, 100_000):
    deep = {}
    for _ in range(levels):
      deep = {'a': deep}
    assert len(tool.check(ToolCall('f', deep))) == (levels > 64)
    assert len(tool.check(ToolCall('f', {'b': deep}))) == 1
  assert len(tool.check(ToolCall('f', {'a': circular()}))) == 1


def test_reasons_stay_short_and_few():
  tool = checked({'properties': {'x': {'type': 'array', 'items': {'enum': ['a']}}}})
  reasons = tool.check(ToolCall('f', {'x': ['b' * 100_000] * 100}))
  assert len(reasons) == 20 and max(map(len, reasons)) <= 200


def test_one_schema_is_compiled_once():
  first, second = one({'type': 'dict'}), one({'type': 'dict'})
  assert first.validator is second.validator


json_values = st.recursive(
  st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
  lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
  max_leaves=6,
)
words = st.sampled_from(
  ('string', 'dict', 'any', 'integer', 'object', '#', '#/$defs/a', '#/properties/x', 'a', 'x', '(')
)
numbers = st.sampled_from((0, 1, -1, 0.5, True, False, 10**400, 1e308, NAN))
keywords = st.sampled_from(
  [
    *('type', 'properties', 'items', 'required', 'anyOf', 'allOf', 'not', '$ref', '$defs', 'enum', 'const', 'minimum'),
    *('multipleOf', 'exclusiveMinimum', 'maxLength', 'pattern', 'additionalProperties', 'prefixItems', 'if', 'then'),
    *('uniqueItems', 'minItems', 'dependencies', 'patternProperties', 'propertyNames', 'nullable', 'a', 'x', '$id'),
  ]
)
schemas = st.recursive(
  words | numbers | st.none(),
  lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keywords, inner, max_size=4),
  max_leaves=12,
)


@given(st.dictionaries(keywords, schemas, max_size=4), st.dictionaries(st.sampled_from('ax') | st.text(), json_values))
@settings(max_examples=400, deadline=None)
def test_any_schema_compiles_or_is_refused_and_no_arguments_raise(parameters, arguments):
  try:
    tool = checked(parameters)
  except SchemaError:
    return
  assert all(isinstance(reason, str) for reason in tool.check(ToolCall('f', arguments)))


def test_real_schemas_compile_or_are_refused_with_a_reason(capsys):
  file = pathlib.Path(__file__).parents[2].parent / 'shared' / 'data' / 'toucan_tools.jsonl.gz'
  if not file.exists():
    pytest.skip(f'{file} is absent: 6,044 schemas of MCP servers to try')
  with gzip.open(file, 'rt', encoding='utf-8') as lines:
    rows = [json.loads(line) for line in lines]
  refused, start = [], time.process_time()
  for row in rows:
    try:
      compile_tool(Tool(row['full_name'], row['description'], row['input_schema'])).violations({'query': 1})
    except SchemaError as error:
      refused.append(str(error))
  with capsys.disabled():
    seconds = time.process_time() - start
    print(
      f'\n{len(rows) - len(refused)} of {len(rows)} real schemas compile ({seconds:.0f} s); refused:',
      *refused,
      sep='\n  ',
    )
  assert len(rows) - len(refused) == 6038
  assert all('/properties/type' in reason for reason in refused)  # a whole schema where parameters belong


def test_pattern_that_takes_exponentially_long_is_given_up_and_refused():
  tool = one({'type': 'string', 'pattern': '^(a|aa)+$'})
  start = time.process_time()
  reasons = tool.check(ToolCall('f', {'x': 'a' * 60 + 'b'}))
  assert 'could not be matched' in reasons[0] and time.process_time() - start < 5
  assert tool.check(ToolCall('f', {'x': 'aaa'})) == ()
