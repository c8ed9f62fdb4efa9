"""Files and sources: every container reads alike, and what is cut, mixed or given twice is refused with its place."""

import copy
import gzip
import itertools
import json
import sys
import tracemalloc

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from records import ASK, DEMONSTRATIONS, OTHERS, PARALLEL, slca_rl

from slca_jax.data.formats import files
from slca_jax.data.formats.read import read
from slca_jax.data.formats.row import hashed
from slca_jax.data.formats.texts import load
from slca_jax.data.tasks import write_dialogues, write_tasks
from slca_jax.errors import DataError

ROW = copy.deepcopy(DEMONSTRATIONS['openai'])
ROW['messages'][0]['content'] = ASK.content  # a column of Arrow cannot mix text and parts
RECORDS = [
  ROW,
  {**ROW, 'messages': [{'role': 'user', 'content': 'line\u2028separator 🌱'}, ROW['messages'][-1]]},
]


def lines(records):
  return ''.join(json.dumps(record, ensure_ascii=False) + '\n' for record in records).encode()


def written(path, records):
  """The records in the file that the path's ending asks for."""
  text = json.dumps(records, ensure_ascii=False, indent=2).encode()
  data = {'.jsonl': lines(records), '.json': text}.get(path.suffix)
  if path.name.endswith('.gz'):
    data = gzip.compress(lines(records) if '.jsonl' in path.name else text)
  if data is None:
    parquet.write_table(pa.Table.from_pylist(records), path)
  else:
    path.write_bytes(data)
  return path


@pytest.mark.parametrize('name', ['a.jsonl', 'a.json', 'a.jsonl.gz', 'a.json.gz', 'a.parquet'])
def test_every_container_holds_the_same_rows(tmp_path, name):
  rows = list(read(written(tmp_path / name, RECORDS)))
  assert [row.dialogue.messages for row in rows] == [row.dialogue.messages for row in read(RECORDS)]
  assert rows[1].dialogue.messages[0].content == 'line\u2028separator 🌱'.encode('utf-16', 'surrogatepass').decode(
    'utf-16'
  )
  assert [row.id for row in rows] == ['a-1', 'a-2'] and [row.line for row in rows] == [1, 2]
  assert [row.source for row in rows] == [str(tmp_path / name)] * 2


def test_byte_order_mark_blank_lines_and_windows_ends_are_no_records(tmp_path):
  path = tmp_path / 'a.jsonl'
  path.write_bytes(b'\xef\xbb\xbf' + lines(RECORDS).replace(b'\n', b'\r\n\r\n'))
  assert [row.line for row in read(path)] == [1, 3]
  (tmp_path / 'b.json').write_bytes(b'\xef\xbb\xbf\n ' + json.dumps(RECORDS).encode())
  assert len(list(read(tmp_path / 'b.json'))) == 2


@pytest.mark.parametrize('data', [b'PK\x03\x04\x14\0\0\0', b'ARROW1\0\0', '{"id": "a"}\n'.encode('utf-16')])
def test_what_is_no_text_in_utf8_is_refused_as_such_and_not_as_cut(tmp_path, data):
  (tmp_path / 'a.jsonl').write_bytes(data)
  with pytest.raises(DataError, match=r'no text in UTF-8; it must be JSON lines or JSON'):
    list(read(tmp_path / 'a.jsonl', strict=False))


def test_one_object_over_several_lines_is_one_record(tmp_path):
  (tmp_path / 'tools.json').write_text(json.dumps(OTHERS['mcp'], indent=2))
  (row,) = read(tmp_path / 'tools.json')
  (tmp_path / 'tools.json').write_text(json.dumps(OTHERS['mcp']).replace('[', '[\n'))
  assert [row.tools] == [again.tools for again in read(tmp_path / 'tools.json')]
  assert [tool.name for tool in row.tools] == ['humidity', 'water']


def test_folders_and_globs_are_read_in_order_with_ids_of_their_own(tmp_path):
  (tmp_path / 'b').mkdir()
  written(tmp_path / 'b' / 'x.jsonl', RECORDS)
  written(tmp_path / 'a.parquet', RECORDS[:1])
  written(tmp_path / '.hidden.jsonl', RECORDS)
  (tmp_path / 'README.md').write_text('no data')
  assert [row.id for row in read(tmp_path)] == ['a-1', 'b/x-1', 'b/x-2']
  assert [row.id for row in read(str(tmp_path / '*' / '*.jsonl'))] == ['x-1', 'x-2']
  assert [row.id for row in read(tmp_path, limit=2)] == ['a-1', 'b/x-1']
  with pytest.raises(DataError, match='names no file that ends in'):
    list(read(tmp_path / 'nothing' / '*'))


def test_files_that_differ_in_their_endings_number_their_own_rows(tmp_path):
  for name in ('a.jsonl', 'a.parquet', 'b.jsonl'):
    written(tmp_path / name, RECORDS[:1])
  assert [row.id for row in read(tmp_path)] == ['a.jsonl-1', 'a.parquet-1', 'b-1']


def cut(path):
  data = path.read_bytes()
  path.write_bytes(data[: len(data) - 30])
  return path


@pytest.mark.parametrize('strict', [True, False])
@pytest.mark.parametrize('name', ['a.jsonl', 'a.json', 'a.jsonl.gz', 'a.json.gz', 'a.parquet'])
def test_a_cut_file_is_refused_however_lenient(tmp_path, name, strict):
  path = cut(written(tmp_path / name, RECORDS))
  with pytest.raises(DataError, match='cut') as caught:
    list(read(path, strict=strict))
  assert str(path) in str(caught.value)


def test_a_cut_file_of_many_records_still_gives_those_before(tmp_path):
  path = cut(written(tmp_path / 'a.json', RECORDS * 3))
  met = []
  with pytest.raises(DataError, match='record 6 of the list: the file is cut'):
    for row in read(path):
      met.append(row.id)
  assert met == [f'a-{i}' for i in range(1, 6)]


@pytest.mark.parametrize(
  ('text', 'says'),
  [
    (b'[{"a": 1} {"b": 2}]', "'{' follows; a comma or ] should"),
    (b'[{"a": NaN}]', 'NaN is no JSON'),
    (b'[{"a": 1, "a": 2}]', "'a' is there twice"),
    (b'[{"a": tru}, {"b": 1}, {"c": "some more text"}]', 'Expecting value'),
    (b'[] []', 'follows the end of the list'),
    (b'[{"a": "\xff"}]', "can't decode byte 0xff"),
    (b'{\n"a": 1,\n', 'neither one JSON object nor JSON lines'),
  ],
)
def test_json_that_is_broken_names_its_place(tmp_path, text, says):
  (tmp_path / 'a.json').write_bytes(text)
  with pytest.raises(DataError, match=r'a\.json') as caught:
    list(read(tmp_path / 'a.json', strict=False))
  assert says in str(caught.value)


def test_an_element_larger_than_what_is_read_at_once_is_whole(tmp_path):
  big = copy.deepcopy(RECORDS[0])
  big['messages'][0]['content'] = 'é"\\' * 1_500_000
  path = written(tmp_path / 'a.json', [RECORDS[0], big, RECORDS[1]])
  assert [len(row.dialogue.messages[0].content) for row in read(path)][1] == 4_500_000


def test_a_row_of_fifty_megabytes_is_a_row(tmp_path):
  big = copy.deepcopy(ROW)
  big['messages'][2]['content'] = 'x' * 50_000_000
  path = written(tmp_path / 'a.jsonl', [ROW, big, ROW])
  assert [len(row.dialogue.messages[3].content) for row in read(path)] == [2, 50_000_000, 2]


@pytest.mark.parametrize(
  ('bad', 'code', 'says'),
  [
    (b'{"messages": [}\n', 'json', 'a.jsonl:2: json: the row is no JSON'),
    (b'[1]\n', 'record', 'a.jsonl:2: record: [1] is no record'),
    (
      lines([OTHERS['xlam']]),
      'mixed',
      'a.jsonl:2: mixed: the file began with rows of the format openai, this one is of xlam',
    ),
    (b'{"text": "a"}\n', 'format', "a.jsonl:2: format: no known format has the keys ['text']"),
    (b'{"messages": [{"role": "user", "content": "\\ud800"}]}\n', 'json', 'surrogates not allowed'),
    (b'{"messages": [{"role": "user", "content": "' + b'\xff' + b'"}]}\n', 'json', "can't decode"),
    (b'{"messages": ' + b'[' * 100_000 + b'\n', 'json', 'RecursionError'),
  ],
)
def test_a_faulty_line_is_refused_or_handed_on_with_its_place(tmp_path, bad, code, says):
  path = tmp_path / 'a.jsonl'
  path.write_bytes(lines([ROW]) + bad + lines([ROW]))
  first, faulty, last = read(path, strict=False)
  assert (first.fault, faulty.fault, last.fault) == ('', code, '')
  assert says in faulty.why and faulty.line == 2 and faulty.id == 'a-2'
  assert faulty.dialogue is None and faulty.task is None and not faulty.tools
  with pytest.raises(DataError) as caught:
    list(read(path))
  assert says in str(caught.value)


def test_a_format_can_be_named_and_unknown_names_are_refused(tmp_path):
  path = written(tmp_path / 'a.jsonl', [ROW])
  assert next(read(path, format='trl')).dialogue.messages == PARALLEL
  with pytest.raises(DataError, match="'chatml' is no format; known are auto, tasks"):
    read(path, format='chatml')
  with pytest.raises(DataError, match=r"a\.jsonl:1: record: this is no row of the format xlam: KeyError: 'tools'"):
    list(read(written(tmp_path / 'a.jsonl', [{'query': 'x'}]), format='xlam'))


def test_an_id_that_comes_back_is_refused_across_files(tmp_path):
  written(tmp_path / 'a.jsonl', [DEMONSTRATIONS['toucan']])
  written(tmp_path / 'b.jsonl', [DEMONSTRATIONS['toucan']])
  with pytest.raises(DataError, match=r"b\.jsonl:1: duplicate_id: the id 'g-1' was already given"):
    list(read(tmp_path))
  assert [row.fault for row in read(tmp_path, strict=False)] == ['', 'duplicate_id']


def test_structs_that_arrow_filled_come_back_without_the_filling(tmp_path):
  other = copy.deepcopy(DEMONSTRATIONS['trl_completion'])
  other['tools'][0]['function']['name'] = 'rain'
  other['tools'][0]['function']['parameters'] = {'type': 'object', 'properties': {'day': {'type': 'string'}}}
  for call in other['completion'][0]['tool_calls']:
    call['function'] = {'name': 'rain', 'arguments': {'day': 'monday'}}
  for record in (first := copy.deepcopy(DEMONSTRATIONS['trl_completion']), other):
    for message in record['completion']:
      message['content'] = str(message['content'])
      if message['role'] == 'tool':
        del message['name']
  path = written(tmp_path / 'a.parquet', [first, other])
  filled = parquet.read_table(path).to_pylist()[1]['completion'][0]['tool_calls'][0]['function']['arguments']
  assert filled == {'bed': None, 'hour': None, 'day': 'monday'}
  rows = list(read(path))
  assert [row.dialogue.messages[1].calls[0].arguments for row in rows] == [{'bed': 'east'}, {'day': 'monday'}]
  assert rows[1].dialogue.tools[0].parameters == {'type': 'object', 'properties': {'day': {'type': 'string'}}}
  # The same filling in JSON lines, as a data set that was exported holds it.
  path = written(tmp_path / 'a.jsonl', parquet.read_table(path).to_pylist())
  assert [row.dialogue.messages[1].calls[0].arguments for row in read(path)][1] == {'day': 'monday'}


@pytest.mark.parametrize('gold', [[['humidity']], json.dumps([[{'name': 'humidity', 'arguments': {'hour': None}}]])])
def test_released_rows_are_read_from_parquet(tmp_path, gold):
  record = slca_rl(gold)
  (row,) = read(written(tmp_path / 'train.parquet', [record]))
  (same,) = read([record])
  assert row.task.gold == same.task.gold and row.task.messages == same.task.messages


def test_our_own_files_are_a_format_too(tmp_path):
  rows = [next(read([OTHERS['xlam']])), next(read([DEMONSTRATIONS['toucan']]))]
  write_tasks([rows[0].task], tmp_path / 't.jsonl')
  write_dialogues([rows[1].dialogue], tmp_path / 'd.jsonl')
  shown, task = read(tmp_path)
  assert (task.format, task.task) == ('tasks', rows[0].task)
  assert (shown.format, shown.dialogue) == ('dialogues', rows[1].dialogue)


def test_answers_of_benchmarks_lie_beside_their_questions(tmp_path):
  record = copy.deepcopy(OTHERS['bfcl'])
  answer = {'id': record['id'], **record.pop('_possible_answer')}
  path = tmp_path / 'BFCL_v4_simple_python.json'
  path.write_bytes(lines([record]))
  with pytest.raises(DataError, match='gold: simple_python_0 has no answer'):
    list(read(path))
  (tmp_path / 'possible_answer').mkdir()
  (tmp_path / 'possible_answer' / path.name).write_bytes(lines([answer]))
  from slca_jax.data.formats.benchmarks import answers_beside

  answers_beside.cache_clear()
  (row,) = read(tmp_path)
  assert row.subset == 'simple_python' and len(row.task.gold) == 1 and row.task.question == ASK.content


@pytest.mark.parametrize('name', ['many.jsonl', 'many.json', 'many.parquet'])
def test_memory_does_not_grow_with_the_input(tmp_path, name):
  row = copy.deepcopy(ROW)
  row['messages'][2]['content'] = 'x' * 10_000

  def peak(count):
    path = written(tmp_path / name, list(itertools.repeat(row, count)))
    tracemalloc.start()
    assert sum(1 for _ in read(path)) == count
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return most

  peak(10)
  few, many = peak(200), peak(600)  # 2 and 6 MB
  assert many < 1.1 * few + 200 * 400  # a hash of each id is kept


MANY = [{**ROW, 'id': f'm{i}' if i % 4 else '', 'tools': []} for i in range(37)]
MANY[7], MANY[30] = {'messages': [], 'tools': [], 'id': ''}, {**MANY[30], 'id': 'm5'}  # no row, and a double id


@pytest.mark.parametrize('name', ['a.jsonl', 'a.json', 'a.jsonl.gz', 'a.parquet'])
@pytest.mark.parametrize('skip', [0, 1, 5, 7, 8, 16, 25, 36, 37, 60])
def test_rows_after_those_passed_over_are_the_same(tmp_path, name, skip):
  path = tmp_path / name
  if name == 'a.parquet':
    parquet.write_table(pa.Table.from_pylist(MANY), path, row_group_size=8)
  else:
    written(path, MANY)
  whole = list(read(path, strict=False))
  assert [row.fault for row in whole if row.fault] == ['no_question', 'duplicate_id']
  seen = {hashed(row.id) for row in whole[:skip] if not row.fault}
  assert list(read(path, strict=False, skip=skip, seen=seen)) == whole[skip:]
  assert seen == {hashed(row.id) for row in whole if not row.fault}


def test_rows_passed_over_may_be_of_several_files_of_several_formats(tmp_path):
  written(tmp_path / 'a.jsonl', [ROW] * 3)
  (tmp_path / 'b.jsonl').write_bytes(b'{"torn"\n\n{"unknown": 1}\n' + lines([ROW, {'query': 'q'}, ROW]) + b'{]\n')
  dialogue = [{'role': 'User', 'text': 'Well?'}, {'role': 'AI', 'text': 'Dry.'}]
  (tmp_path / 'c.jsonl').write_bytes(lines(dialogue))
  (tmp_path / 'd.jsonl').write_bytes(lines([DEMONSTRATIONS['toucan']] * 2))
  whole = list(read(tmp_path, strict=False))
  assert [row.fault for row in whole] == [
    *('', '', ''), *('json', 'format', '', 'format', '', 'json'), '', *('', 'duplicate_id')
  ]  # fmt: skip
  for skip in range(len(whole) + 1):
    seen = {hashed(row.id) for row in whole[:skip] if not row.fault}
    assert list(read(tmp_path, strict=False, skip=skip, seen=seen)) == whole[skip:]
  assert [row.id for row in read([ROW, ROW, ROW], skip=1)] == ['row-2', 'row-3']


def test_rows_passed_over_are_not_decoded(tmp_path, monkeypatch):
  loaded = []
  monkeypatch.setattr(files, 'load', lambda text: loaded.append(text) or load(text))
  path = written(tmp_path / 'a.jsonl', [ROW] * 50)
  assert len(list(read(path, skip=47))) == 3 and len(loaded) <= 6
  assert not list(read(path, skip=47, limit=0))


def test_a_fault_among_rows_passed_over_is_none_of_ones_business(tmp_path):
  (tmp_path / 'a.jsonl').write_bytes(lines([ROW]) + b'{]\n' + lines([ROW]))
  assert [row.line for row in read(tmp_path / 'a.jsonl', skip=2)] == [3]
  with pytest.raises(DataError, match=r'a\.jsonl:2: json'):
    list(read(tmp_path / 'a.jsonl', skip=1))


def test_the_hub_needs_its_package(monkeypatch):
  monkeypatch.setitem(sys.modules, 'datasets', None)
  with pytest.raises(DataError, match=r'hf:garden/beds needs the package datasets; run pip install'):
    list(read('hf:garden/beds'))


def test_a_data_set_is_streamed_by_name(tmp_path):
  pytest.importorskip('datasets', reason='needs the package datasets; pip install datasets')
  (tmp_path / 'beds').mkdir()
  written(tmp_path / 'beds' / 'train.parquet', RECORDS)
  rows = list(read(f'hf:{tmp_path / "beds"}'))
  assert [row.dialogue.messages for row in rows] == [row.dialogue.messages for row in read(RECORDS)]
  with pytest.raises(DataError, match='split test'):
    list(read(f'hf:{tmp_path / "beds"}', split='test'))
