"""Records, rollouts and arrays on disk: read back equal by index, torn ends dropped."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from slca_jax.data.store import Arrays, Records, Trajectories
from slca_jax.dialogue import Message, Observation, Parsed, Scores, Status, Task, Tool, ToolCall, Trajectory, Turn
from slca_jax.errors import DataError

FIELDS = {'tokens': ('int32', (5,)), 'learned': ('bool', (5,)), 'weight': ('float32', ())}


def rollout(task, index, *, status=Status.FINISHED):
  call = ToolCall('find', {'key': 'ключ', 'n': 1})
  parsed = Parsed(((call, call), (call,)), ('truncated',), 4, 3)
  turn = Turn((5, 6), (-0.125, -1.5), 'text\u2028', parsed, (Observation('seen', False, True),), (7,), ((0, 1), (3, 1)))
  return Trajectory(task, 2, index, (1, 2, 3), (turn, Turn((8,), (-0.25,), 'end', Parsed())), status, 'why')


def task(name):
  return Task(name, (Tool('find', '', {'type': 'object'}),), (Message('user', 'Where?'),), meta={'a': [1]})


def test_records_are_read_by_index_and_kept_over_opening(tmp_path):
  first = Records(tmp_path / 'r.jsonl')
  first.append([{'a': 1}, 'two\u2028\n', None])
  first.append([[4]])
  assert (len(first), first[1], first[-1]) == (4, 'two\u2028\n', [4])
  first.close()
  again = Records(tmp_path / 'r.jsonl')
  again.append([5])
  assert list(again) == [{'a': 1}, 'two\u2028\n', None, [4], 5]
  with pytest.raises(IndexError):
    again[5]


@pytest.mark.parametrize('torn', [b'{"b": ', b'"half', b'{"b": 2}', b'\0\0\0\0', b'{"b": \n'])
def test_a_torn_end_is_dropped_and_written_over(tmp_path, torn):
  Records(tmp_path / 'r.jsonl').append([{'a': 1}])
  with open(tmp_path / 'r.jsonl', 'ab') as file:
    file.write(torn)
  assert list(Records(tmp_path / 'r.jsonl', write=False)) == [{'a': 1}]
  assert (tmp_path / 'r.jsonl').read_bytes().endswith(torn)  # those who read change nothing
  store = Records(tmp_path / 'r.jsonl')
  store.append([3])
  assert (tmp_path / 'r.jsonl').read_text() == '{"a": 1}\n3\n'


def test_readers_neither_write_nor_make_files(tmp_path):
  with pytest.raises(DataError, match='does not exist'):
    Records(tmp_path / 'none.jsonl', write=False)
  Records(tmp_path / 'r.jsonl').append([1])
  with pytest.raises(DataError, match='opened to read'):
    Records(tmp_path / 'r.jsonl', write=False).append([2])
  with pytest.raises(DataError, match=r'no count\.json'):
    Arrays(tmp_path / 'none')


def test_rollouts_and_scores_come_back_equal(tmp_path):
  store = Trajectories(tmp_path)
  one, other = task('one'), task('other')
  rollouts = [rollout(one, 0), rollout(one, 1, status=Status.FAILED), rollout(other, 0)]
  scores = [Scores(0.5, None, 1.0, (0.25, 1.0), True, {'why': [1]}), Scores(), Scores(summary=-0.5)]
  store.append(rollouts[:2], scores[:2])
  store.append(rollouts[2:], scores[2:])
  again = Trajectories(tmp_path, write=False)
  assert [again[i] for i in range(len(again))] == list(zip(rollouts, scores, strict=True))
  assert len((tmp_path / 'tasks.jsonl').read_text().splitlines()) == 2


def test_what_is_not_kept_is_written_over(tmp_path):
  store = Trajectories(tmp_path)
  one, other, third = task('one'), task('other'), task('third')
  store.append([rollout(one, 0), rollout(other, 0)], [Scores(0.5), Scores(1.0)])
  store.append([rollout(third, 0)], [Scores()])
  store.keep(1)
  assert len(store) == 1 and store[0] == (rollout(one, 0), Scores(0.5))
  store.append([rollout(third, 3)], [Scores(0.25)])
  store.close()
  again = Trajectories(tmp_path, write=False)
  assert [again[i] for i in range(len(again))] == [(rollout(one, 0), Scores(0.5)), (rollout(third, 3), Scores(0.25))]
  assert [json.loads(line)['id'] for line in (tmp_path / 'tasks.jsonl').read_text().splitlines()] == ['one', 'third']
  with pytest.raises(DataError, match='opened to read'):
    again.keep(0)
  records = Records(tmp_path / 'rollouts.jsonl')
  records.keep(5)
  assert len(records) == 2
  records.keep(0)
  assert not (tmp_path / 'rollouts.jsonl').read_bytes()


def rows(start, count):
  tokens = np.arange(start * 5, (start + count) * 5, dtype=np.int32).reshape(count, 5)
  return {'tokens': tokens, 'learned': tokens % 3 == 0, 'weight': np.arange(start, start + count, dtype=np.float32)}


def equal(found, wanted):
  return all(np.array_equal(found[name], wanted[name]) and found[name].dtype == wanted[name].dtype for name in wanted)


def test_arrays_are_read_by_row_and_slice(tmp_path):
  store = Arrays(tmp_path / 'a', FIELDS, rows=4)
  for start, count in ((0, 3), (3, 7), (10, 1)):
    store.append(rows(start, count))
  read = Arrays(tmp_path / 'a')
  assert len(read) == 11 and equal(read[:], rows(0, 11)) and equal(read[2:9], rows(2, 7))
  assert read[4]['tokens'].tolist() == [20, 21, 22, 23, 24] and read[-1]['weight'] == 10
  assert len(read[5:5]['tokens']) == 0 and equal(read[20:], rows(11, 0))
  with pytest.raises(IndexError):
    read[11]


def test_rows_beyond_the_count_were_never_there(tmp_path):
  Arrays(tmp_path / 'a', FIELDS, rows=4).append(rows(0, 6))
  told = json.loads((tmp_path / 'a' / 'count.json').read_text())
  (tmp_path / 'a' / 'count.json').write_text(json.dumps(told | {'rows': 5}))
  assert equal(Arrays(tmp_path / 'a')[:], rows(0, 5))
  store = Arrays(tmp_path / 'a', FIELDS)
  store.append(rows(5, 4))
  assert equal(store[:], rows(0, 9))


def test_arrays_of_another_shape_are_refused_whole(tmp_path):
  store = Arrays(tmp_path / 'a', FIELDS)
  store.append(rows(0, 2))
  for bad in ({**rows(2, 1), 'weight': np.zeros(2, np.float32)}, {'tokens': rows(2, 1)['tokens']}, {
      **rows(2, 1), 'tokens': np.zeros((1, 4), np.int32)}):  # fmt: skip
    with pytest.raises(DataError, match='rows have the shapes'):
      store.append(bad)
  assert equal(store[:], rows(0, 2))
  with pytest.raises(DataError, match='holds the fields'):
    Arrays(tmp_path / 'a', {'tokens': ('int32', (6,))})
  with pytest.raises(DataError, match='opened to read'):
    Arrays(tmp_path / 'a').append(rows(2, 1))


KILLED = """
import itertools, sys
import numpy as np
from slca_jax.data.store import Arrays, Records
records, arrays = Records(sys.argv[1] + '/r.jsonl'), Arrays(sys.argv[1] + '/a', {'n': ('int64', (64,))}, rows=4)
for i in itertools.count():
  records.append([{'i': i, 'text': 'x' * 2000}])
  arrays.append({'n': np.full((3, 64), i)})
  print(i, flush=True)
"""


def test_what_was_appended_before_a_kill_is_there(tmp_path):
  process = subprocess.Popen([sys.executable, '-c', KILLED, tmp_path], stdout=subprocess.PIPE, text=True)
  done = -1
  for line in process.stdout:
    done = int(line)
    if done == 20:
      os.kill(process.pid, signal.SIGKILL)
      break
  rest = process.stdout.read().split()
  process.wait()
  done = int(rest[-1]) if rest else done
  records, arrays = Records(tmp_path / 'r.jsonl'), Arrays(tmp_path / 'a', {'n': ('int64', (64,))}, rows=4)
  assert [record['i'] for record in records] == list(range(len(records))) and len(records) in (done + 1, done + 2)
  assert len(arrays) in (3 * done + 3, 3 * done + 6)
  assert arrays[:]['n'][:, 0].tolist() == [i // 3 for i in range(len(arrays))]
  arrays.append({'n': np.full((2, 64), -1)})
  assert arrays[-3:]['n'][:, 0].tolist() == [(len(arrays) - 3) // 3, -1, -1]


def test_opening_records_needs_no_tensorstore():
  code = 'import sys, slca_jax.data.store, slca_jax.data.pipeline; sys.exit("tensorstore" in sys.modules)'
  assert subprocess.run([sys.executable, '-c', code], check=False).returncode == 0
