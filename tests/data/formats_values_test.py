"""Laws of argument decoding: however arguments are written down, what comes out is what went in, or it is refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slca_jax.chat.schema import compile_tool
from slca_jax.data.formats.pythonic import calls_in
from slca_jax.data.formats.row import BadRow
from slca_jax.data.formats.tagged import heard, schemas_in, spoken, values_in
from slca_jax.data.formats.texts import literal, load
from slca_jax.data.formats.values import call_of, flat_schema, plain, text_of, tool_of, tools_of
from slca_jax.dialogue import Message, Tool, ToolCall

TEXT = st.text(st.characters(exclude_categories=['Cs']), max_size=12) | st.sampled_from(
  ["it's", '"', '\\', '\n', '\u2028', '</tool_call>', '<tool_call>', 'null', 'True', '{', "'", '], [', '), f(x=']
)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
  SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)
ARGUMENTS = st.dictionaries(TEXT, VALUES, max_size=4)
WAYS = [
  lambda a: {'name': 'f', 'arguments': a},
  lambda a: {'name': 'f', 'arguments': json.dumps(a)},
  lambda a: {'name': 'f', 'arguments': json.dumps(a, ensure_ascii=False)},
  lambda a: {'name': 'f', 'arguments': repr(a)},
  lambda a: {'name': 'f', 'arguments': json.dumps(json.dumps(a))},
  lambda a: {'name': 'f', 'parameters': a},
  lambda a: {'name': 'f', 'arguments': None, 'parameters': json.dumps(a)},
  lambda a: {'type': 'function', 'id': 'x', 'function': {'name': 'f', 'arguments': a}},
  lambda a: json.dumps({'name': 'f', 'arguments': a}),
  lambda a: repr({'name': 'f', 'arguments': json.dumps(a)}),
]


def same(value, other):
  """JSON equality: 1 is not True, and 1 is not 1.0."""
  return json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)


@settings(deadline=None, max_examples=60)
@given(arguments=ARGUMENTS, way=st.sampled_from(WAYS))
def test_arguments_come_out_as_they_went_in_however_they_are_written(arguments, way):
  call = call_of(way(arguments), {})
  assert call.name == 'f' and same(call.arguments, arguments)


@settings(deadline=None, max_examples=60)
@given(arguments=st.lists(ARGUMENTS, min_size=1, max_size=3), python=st.booleans(), together=st.booleans())
def test_blocks_give_back_their_calls_whatever_tags_stand_in_strings(arguments, python, together):
  write = repr if python else json.dumps
  calls = [{'name': 'f', 'arguments': one} for one in arguments]
  bodies = [calls] if together else calls
  text = 'Words.\n' + '\n'.join(f'<tool_call>\n{write(body)}\n</tool_call>' for body in bodies)
  said = spoken(text, {})
  assert said.content == 'Words.'
  assert same([call.arguments for call in said.calls], arguments)


@settings(deadline=None, max_examples=60)
@given(
  arguments=st.lists(
    st.dictionaries(st.from_regex(r'[a-z_][a-z_ -]{0,5}[a-z]', fullmatch=True), VALUES, max_size=3),
    min_size=1,
    max_size=3,
  )
)
def test_calls_in_brackets_give_back_their_arguments(arguments):
  name = 'A tool (v1.2)/x'
  listed = [f'{name}({", ".join(f"{key}={value!r}" for key, value in one.items())})' for one in arguments]
  calls = calls_in(f'[{", ".join(listed)}]', {name: Tool(name, '', {})})
  assert [call.name for call in calls] == [name] * len(arguments)
  assert same([call.arguments for call in calls], arguments)


@settings(deadline=None, max_examples=100)
@given(st.text(max_size=30) | st.binary(max_size=10).map(repr))
def test_no_text_makes_a_reader_fail_in_any_other_way_than_refusing(text):
  for read in (
    literal,
    load,
    values_in,
    lambda t: spoken(t, {}),
    heard,
    schemas_in,
    lambda t: calls_in(t, {}),
    tools_of,
  ):
    try:
      read(text)
    except BadRow as error:
      assert str(error) and error.code


@pytest.mark.parametrize('given_', [None, '', '{}', ' ', 'null', {}, 'absent'])
def test_no_arguments_in_any_writing_are_an_empty_object(given_):
  value = {'name': 'f'} if given_ == 'absent' else {'name': 'f', 'arguments': given_}
  assert call_of(value, {}) == ToolCall('f', {})


@pytest.mark.parametrize(
  'text',
  [
    '{"a": NaN}',
    "{'a': {1, 2}}",
    "{'a': b'x'}",
    '{1: 2}',
    '{"a": 1, "a": 2}',
    "{'a': 1, 'a': 2}",
    "{'a': 1e999}",
    "{'a': 1j}",
    "{'a': open('x')}",
    "{'a': '\\ud800'}",
    '{"a": "\\ud800"}',
    '{"a": 1} {"b": 2}',
    '{"a": 1,}x',
    '{"a": ' + '[' * 100 + ']' * 100 + '}',
    '{"a": ' + '1' * 5000 + '}',
    '[1]',
    '7',
    'city=Lille',
  ],
)
def test_arguments_without_one_meaning_are_refused(text):
  with pytest.raises(BadRow) as caught:
    call_of({'name': 'f', 'arguments': text}, {})
  assert caught.value.code == 'call'


@pytest.mark.parametrize('key', ['args', 'input', 'kwargs'])
def test_arguments_under_another_key_are_refused_and_not_left_out(key):
  with pytest.raises(BadRow, match=f"'f' stand under '{key}'"):
    call_of({'name': 'f', key: {'x': 1}}, {})
  assert call_of({'name': 'f', key: {}}, {}) == call_of({'name': 'f', key: None}, {}) == ToolCall('f', {})
  assert call_of({'name': 'f', key: {'x': 1}, 'arguments': '{}'}, {}) == ToolCall('f', {})


@pytest.mark.parametrize('value', [None, 3, {}, {'name': ''}, {'name': 3}, {'function': 'f'}, [], 'f(x)'])
def test_what_is_no_call_is_refused(value):
  with pytest.raises(BadRow):
    call_of(value, {})


def test_tools_in_every_style_and_parameters_that_are_listed_by_name():
  schema = {'type': 'object', 'properties': {'type': {'type': 'string'}}}
  for entry in (
    {'name': 'f', 'description': None, 'parameters': schema},
    {'type': 'function', 'function': {'name': 'f', 'parameters': json.dumps(schema)}},
    {'name': 'f', 'inputSchema': schema, 'annotations': None},
    json.dumps({'name': 'f', 'input_schema': schema}),
  ):
    assert tool_of(entry) == Tool('f', '', schema)
  listed = {'type': {'type': 'str'}, 'n': {'type': 'int, optional'}, 'm': {'type': 'int', 'default': 3}}
  assert tool_of({'name': 'f', 'parameters': listed}).parameters == {
    'type': 'object',
    'properties': listed,
    'required': ['type'],
  }
  said = {'a': {'type': 'str', 'required': False}, 'b': {'type': 'str', 'optional': True}, 'c': {'type': 'str'}}
  assert flat_schema(said)['required'] == ['c']
  checked = compile_tool(tool_of({'name': 'f', 'parameters': said}))
  assert checked.check(ToolCall('f', {'c': ''})) == () != checked.check(ToolCall('f', {}))
  python = tool_of(
    {'name': 'f', 'parameters': {'of': {'type': 'Callable[[float], float]'}, 'at': {'type': 'List[int]'}}}
  )
  assert compile_tool(python).check(ToolCall('f', {'of': 'x**2', 'at': [1]})) == ()
  assert flat_schema({}) == {'type': 'object', 'properties': {}, 'required': []}
  assert tool_of({'name': 'f', 'parameters': {}}).parameters == {}
  assert (
    tool_of({'name': 'f'}).parameters
    == {'type': 'object', 'properties': {}}
    == tool_of({'name': 'f', 'parameters': None}).parameters
  )
  for entry in ({}, {'name': 'f', 'parameters': [1]}, 'f', 3):
    with pytest.raises(BadRow):
      tool_of(entry)


def test_results_are_split_by_their_tags_and_what_the_user_adds_stays():
  assert heard('<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>\nAnd now?') == [
    Message('tool', '1'),
    Message('tool', '2'),
    Message('user', 'And now?'),
  ]
  assert heard('What does <tool_response> mean?') == [Message('user', 'What does <tool_response> mean?')]
  with pytest.raises(BadRow, match='never ends'):
    heard('<tool_response>\n1')


def test_schemas_are_those_of_the_last_element_that_holds_any():
  one = json.dumps({'name': 'f', 'parameters': {}})
  two = "{'name': 'g', 'parameters': {}}"
  text = f'Inside <tools></tools> tags:\n<tools>\n{one}\n{two}\n</tools>'
  assert [tool.name for tool in schemas_in(text)] == ['f', 'g']
  assert [tool.name for tool in schemas_in(f'<tools>[{one}]</tools>')] == ['f']
  assert schemas_in('<tools></tools>') == ()
  with pytest.raises(BadRow):
    schemas_in('<tools>\nlater\n</tools>')


def test_content_is_text_or_parts_of_text():
  assert text_of([{'type': 'text', 'text': 'a'}, {'type': 'text', 'text': 'b'}]) == 'ab'
  assert text_of({'a': 'é'}, result=True) == '{"a": "é"}' and text_of([1], result=True) == '[1]'
  for value in (3, {'a': 1}, [1], [{'type': 'image'}]):
    with pytest.raises(BadRow):
      text_of(value)


def test_plain_keeps_what_is_plain():
  value = {'a': [1, 'b', None, (2.5, True)]}
  assert plain(value) == {'a': [1, 'b', None, [2.5, True]]}
