"""Laws of reading calls out of a text that a policy wrote."""

import json
import pathlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slca_jax.chat.calls import parse, render
from slca_jax.chat.decoding import Fault, decode
from slca_jax.dialogue import ToolCall

READINGS = ('strict', 'release', 'lenient')
_FILE = pathlib.Path(__file__).parent / 'tool_call_texts.jsonl'
_LINES = _FILE.read_text(encoding='utf-8').splitlines()


def block(body):
  return f'<tool_call>\n{body}\n</tool_call>'


HUGE = [
  ('very_long_digit_string', block('{"name": "pay", "arguments": {"amount": ' + '9' * 5000 + '}}'), 'number_too_long'),
  ('deep_nesting', block('{"name": "f", "arguments": {"f": ' + '[' * 100_000 + ']' * 100_000 + '}}'), 'too_deep'),
  ('deep_objects', block('{"a":' * 100_000 + '1' + '}' * 100_000), 'too_deep'),
]
CASES = [json.loads(line) for line in _LINES] + [
  {'id': name, 'text': text, 'calls': [], 'error': error, 'lenient': None} for name, text, error in HUGE
]

by_case = pytest.mark.parametrize('case', CASES, ids=[case['id'] for case in CASES])


def as_json(parsed):
  return json.dumps([{'name': c.name, 'arguments': c.arguments} for c in parsed.calls], sort_keys=True)


@by_case
def test_strict_reading(case):
  parsed = parse(case['text'])
  assert as_json(parsed) == json.dumps(case['calls'], sort_keys=True)
  assert parsed.errors == ((case['error'],) if case['error'] else ())


@by_case
def test_lenient_reading(case):
  wanted = case['calls'] if case['lenient'] is None else case['lenient']
  assert as_json(parse(case['text'], reading='lenient')) == json.dumps(wanted, sort_keys=True)


@pytest.mark.parametrize('case', CASES[: len(_LINES)], ids=[case['id'] for case in CASES[: len(_LINES)]])
@pytest.mark.parametrize('reading', READINGS)
def test_cut_generation_yields_no_call_that_its_closed_blocks_do_not(case, reading):
  text = case['text']
  whole = as_json(parse(text, reading=reading))
  for end in range(0, len(text), max(1, len(text) // 60)):
    cut = parse(text[:end], reading=reading, finished=False)
    assert len(cut.blocks) <= text[:end].count('</tool_call>') + text[:end].count('</tools>') + text[:end].count('```')
    if '</think>' not in text:  # before that tag it was not known to be reasoning
      assert as_json(cut)[1:-1] in whole


def test_tags_are_counted_outside_reasoning_and_strings_only():
  text = '<think>' + block('{}') + '</think>' + block('{"name": "f", "arguments": {"a": "<tool_call></tool_call>"}}')
  parsed = parse(text + '</tool_call>' + '<tool_call>')
  assert (parsed.opens, parsed.closes, len(parsed.blocks)) == (2, 2, 1)
  assert parsed.errors == ('missing_open_tag', 'no_json_after_tag')


def test_reasoning_that_began_in_the_prompt_takes_all_before_its_end():
  call = block('{"name": "f", "arguments": {}}')
  for tag in ('think', 'thinking'):
    parsed = parse(f'maybe {call} or <tool_call> not</{tag}>{call}')
    assert (len(parsed.calls), parsed.errors, parsed.opens, parsed.closes) == (1, (), 1, 1)


def test_one_bad_block_does_not_take_its_neighbours():
  good = block('{"name": "f", "arguments": {}}')
  for bad in ('<tool_call>\n{"name": "f, "arguments": {}}\n</tool_call>', '<tool_call>\n{"name": \n', block('')):
    parsed = parse(good + bad + good)
    assert (len(parsed.blocks), parsed.errors) == (2, ('invalid_json',))
  assert parse('<tool_call>{"name": "f", "arguments": {}}\n' + good).errors == ('missing_close_tag',)


@pytest.mark.parametrize(
  ('body', 'error'),
  [
    ('[{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {"a": 1}}]', 'not_an_object'),
    ('{"name": "f", "parameters": {"a": 1}}', 'missing_arguments'),
    ('{"name": "f", "arguments": "{\\"a\\": 1}"}', 'arguments_not_object'),
  ],
)
def test_release_reading_takes_what_the_strict_one_names(body, error):
  assert parse(block(body)).errors == (error,)
  for reading in ('release', 'lenient'):
    parsed = parse(block(body), reading=reading)
    assert len(parsed.blocks) == 1 and not parsed.errors
    assert set(map(repr, parsed.calls)) == {repr(ToolCall('f', {'a': 1}))}


def test_release_reading_repairs_nothing():
  for case in CASES:
    assert as_json(parse(case['text'], reading='release')) == json.dumps(case['calls'], sort_keys=True)
  assert parse(block('[]'), reading='release').errors == ('missing_name',)
  assert parse(block('[{"name": "f", "arguments": {}}, 3]'), reading='release').errors == ('not_an_object',)
  assert parse(block('{"name": "f", "arguments": "[1]"}'), reading='release').errors == ('arguments_not_object',)


def test_python_literals_of_data_sets_are_read_exactly():
  body = repr({'name': 'f', 'arguments': json.dumps({'text': "it's\nnew", 'path': 'C:\\x'})})
  assert parse(block(body), reading='lenient').calls == (ToolCall('f', {'text': "it's\nnew", 'path': 'C:\\x'}),)


@pytest.mark.parametrize(
  ('text', 'code'),
  [
    ('{"a": 1e999}', 'number_out_of_range'),
    ('-Infinity', 'invalid_json'),
    ('{"a": 1, "a": 1}', 'duplicate_key'),
    ('"\\ud800"', 'lone_surrogate'),
    ('{"\ud800": 1}', 'lone_surrogate'),
    ('\u00a0{}', 'invalid_json'),
    ('[' * 65 + ']' * 65, 'too_deep'),
    ('-' + '1' * 308, 'number_too_long'),
  ],
)
def test_decode_names_the_fault(text, code):
  with pytest.raises(Fault, match=code):
    decode(text)


def test_decode_takes_the_largest_of_what_it_takes():
  assert decode('"\\ud83d\\ude00"') == '😀'
  assert float(decode('9' * 308)) > 0
  decode('[' * 64 + ']' * 64)


json_values = st.recursive(
  st.none()
  | st.booleans()
  | st.integers(-(10**40), 10**40)
  | st.floats(allow_nan=False, allow_infinity=False)
  | st.text(),
  lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
  max_leaves=8,
)


@given(st.text(min_size=1), st.dictionaries(st.text(), json_values, max_size=4))
@settings(max_examples=150, deadline=None)
def test_every_reading_gives_a_rendered_call_back(name, arguments):
  call = ToolCall(name, arguments)
  for reading in ('strict', 'release'):
    parsed = parse(f'Let me see. {render(call)}{render(call)}', reading=reading)
    assert parsed.calls == (call, call) and parsed.opens == parsed.closes == 2


words = (
  '<tool_call> </tool_call> <think> </think> <thinking> </thinking> <tools> </tools> ``` ```json <function=f> '
  '<parameter=a> </parameter> { } [ ] " \' \\ : , {} {"name": "f", "name" "arguments" "f" {"a" NaN Infinity 1e999 True '
  '\\u \\ud800 // /* <|im_end|> null -0'
)
fragments = st.sampled_from(words.split()) | st.sampled_from(
  ['\n', ' ', '\ufeff', '{"name": "f", "arguments": {"a": 1}}', '\x00', '9' * 400, '{' * 70]
)


@given(st.lists(fragments | st.text(st.characters(), max_size=6), max_size=40).map(''.join), st.booleans())
@settings(max_examples=600, deadline=None)
def test_no_string_raises_and_every_call_can_be_written_again(text, finished):
  for reading in READINGS:
    parsed = parse(text, reading=reading, finished=finished)
    for call in parsed.calls:
      assert isinstance(call.name, str) and isinstance(call.arguments, dict)
      json.dumps(call.arguments, ensure_ascii=False, allow_nan=False).encode('utf-8')
    assert len(parsed.blocks) <= max(parsed.opens, parsed.closes) or reading == 'lenient'
    assert parsed.opens <= text.count('<tool_call>') and parsed.closes <= text.count('</tool_call>')


@pytest.mark.parametrize('reading', READINGS)
def test_time_grows_no_faster_than_the_text(reading):
  words = (
    '<tool_call> </tool_call> { [ " \\ < <think> </think> ``` <tools> <parameter= 9 // \ufeff {\' {"a":[ {"a":1}, '
  )
  words += '<tool_call>{ <tool_call>{" <tool_call>{\\" <tool_call>{} <tool_call>{"a":'
  pieces = [*words.split(), ' ', '<tool_call>{"\n', '<tool_call><function=f><parameter=a>']
  start = time.thread_time()
  for piece in pieces:
    parse('<tool_call>' + piece * 20_000, reading=reading)
    parse('<tool_call>{"a": ' + piece * (15_000 // len(piece)) + '</tool_call>', reading=reading)
    parse("<tool_call>{'a': '" + piece * (15_000 // len(piece)) + '</tool_call>', reading=reading)
    assert time.thread_time() - start < 30, piece  # 1 s of the processor for all pieces, minutes for one if it squares
