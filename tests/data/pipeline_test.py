"""The preparation of a data set as a whole: what its files hold, in whatever order rows come and whatever kills it."""

import dataclasses
import datetime
import importlib.util
import json
import pathlib
import random
import signal
import subprocess
import sys
import tracemalloc

import pytest

from slca_jax.config import build
from slca_jax.data.dealing import FILES
from slca_jax.data.formats.known import ALIASES, FORMATS
from slca_jax.data.ledger import Ledger
from slca_jax.data.pipeline import prepare
from slca_jax.data.settings import Filters, Portion, Preparation
from slca_jax.data.tasks import read_dialogues, read_tasks
from slca_jax.errors import ConfigError, DataError

ROOT = pathlib.Path(__file__).parents[2]
WORDS = [a + b for a in ('ba', 'ke', 'li', 'mo', 'nu', 'ra', 'se', 'ti') for b in ('lan', 'rel', 'sis', 'tor', 'mun')]
TOOL = {
  'name': 'find',
  'description': 'Finds a thing.',
  'parameters': {'type': 'object', 'properties': {'key': {'type': 'string'}}, 'required': ['key']},
}


def load(folder, name):
  spec = importlib.util.spec_from_file_location(f'loaded_{name}', ROOT / folder / f'{name}.py')
  module = importlib.util.module_from_spec(spec)
  sys.modules[spec.name] = module
  spec.loader.exec_module(module)
  return module


def question(number):
  return f'Number {number}: ' + ' '.join(random.Random(number).choices(WORDS, k=20))


def row(number, *, turns=1, quiet=(), asked=None, identity=None, subset='one', key='k', answer='It is found.'):
  """A row in OpenAI's style; turns named in `quiet` call nothing."""
  messages = []
  for turn in range(turns):
    text = (question(number) if asked is None else asked) if not turn else f'And {turn} of {number}?'
    messages.append({'role': 'user', 'content': text})
    if turn not in quiet:
      call = {'type': 'function', 'function': {'name': 'find', 'arguments': json.dumps({'key': f'{key}{turn}'})}}
      messages += [{'role': 'assistant', 'content': '', 'tool_calls': [call]}, {'role': 'tool', 'content': 'seen'}]
    messages.append({'role': 'assistant', 'content': f'{answer} {number}/{turn}'})
  return {
    'id': identity or f'd{number}',
    'subset': subset,
    'tools': [{'type': 'function', 'function': TOOL}],
    'messages': messages,
  }


def write(path, rows):
  path.write_text(''.join(json.dumps(one) + '\n' for one in rows), 'utf-8')
  return path


def settings(source, output, **changes):
  usual = Preparation(
    input=str(source), output=str(output), heldout=Portion(6.0, 1 / 3), sft=Portion(0.5), rl=Portion(-1.0), chunk=16
  )
  return dataclasses.replace(usual, **changes)


def lines(folder, name):
  return [json.loads(line) for line in (folder / name).read_text('utf-8').splitlines()]


def contents(folder):
  report = json.loads((folder / 'report.json').read_text('utf-8'))
  del report['settings']  # they name the folder
  return {'report': report, **{name: (folder / name).read_bytes() for name in FILES}}


def rows_of_many_kinds(count=60):
  return [row(n, turns=1 + n % 3, subset=('one', 'two')[n % 2]) for n in range(count)]


def test_each_phase_counts_what_it_did(tmp_path):
  """20 single turns; 9 dialogues of 3 turns, of which 3 call no tool in the last one and so give 1 sample and not 2;
  1 dialogue of two turns whose first calls nothing, so that it gives none; 4 rows with a fault, 1 that says twice what
  another one said."""
  rows = [row(n) for n in range(20)]
  rows += [row(20 + n, turns=3, quiet=(2,) if n < 3 else ()) for n in range(9)]
  rows += [row(30, turns=2, quiet=(0,))]
  rows += [row(31, quiet=(0,)), row(32, answer='<|python_tag|>'), {'messages': 'x', 'tools': []}]
  rows += [row(33) | {'tools': []}, row(5, identity='again')]
  report = prepare(settings(write(tmp_path / 'in.jsonl', rows), tmp_path / 'out', format='openai'))
  assert report['read'] == 35
  assert report['filter']['dropped'] == {
    'duplicate': 1, 'foreign_tokens': 1, 'format.json': 1, 'irrelevant': 1, 'unknown_tool': 1
  }  # fmt: skip
  assert report['filter']['kept'] == 30
  assert {code: [one['id'] for one in found] for code, found in report['examples'].items()} == {
    'duplicate': [report['examples']['duplicate'][0]['id']], 'foreign_tokens': ['d32'], 'format.json': ['in-33'],
    'irrelevant': ['d31'], 'no_later_tool_turn': ['d30'], 'unknown_tool': ['d33'],
  }  # fmt: skip
  assert report['examples']['duplicate'][0]['id'] in ('d5', 'again')
  assert report['heldout'] == {'single': 4, 'decomposed': 2, 'set_aside': 0, 'near_heldout': 0}
  held = {line['dialogue_id'] for line in lines(tmp_path / 'out', 'tasks_heldout.jsonl')}
  assert len(held) == 6
  longer = [n for n in range(20, 29) if f'd{n}' not in held]
  decomposed = sum(1 if n < 23 else 2 for n in longer)
  assert report['decompose'] == {'rows': 24, 'no_later_tool_turn': 1, 'single': 16, 'decomposed': decomposed}
  sft, rl = (sum(report['split'][side].values()) for side in ('sft', 'rl'))
  assert sft == (16 + decomposed) // 2
  assert sft + rl + report['split']['unused'] == 16 + decomposed
  assert report['files'] == {
    'dialogues_train.jsonl': sft, 'tasks_train.jsonl': rl, 'dialogues_heldout.jsonl': 6, 'tasks_heldout.jsonl': 6
  }  # fmt: skip


def test_every_count_of_a_synthetic_toucan_is_as_it_was_put_in(tmp_path):
  synthetic = load('benchmarks', 'toucan_synthetic')
  synthetic.POOL.extend(synthetic.make_tool(index) for index in range(30))
  synthetic.write(tmp_path / 'in.jsonl', 1000)
  report = prepare(synthetic.settings_of(tmp_path / 'in.jsonl', tmp_path / 'out', 1000))
  synthetic.check(report, tmp_path / 'out', 1000)


def test_files_read_as_tasks_and_dialogues_with_history_as_context(tmp_path):
  source = write(tmp_path / 'in.jsonl', rows_of_many_kinds())
  prepare(settings(source, tmp_path / 'out'))
  for task in read_tasks(tmp_path / 'out' / 'tasks_train.jsonl'):
    number, _, turn = task.id.partition('/turn-')
    assert task.messages[-1].role == 'user' and len(task.gold) == 1
    assert task.gold[0][0].arguments == {'key': f'k{int(turn or 1) - 1}'}
    assert task.answer == f'It is found. {number[1:]}/{int(turn or 1) - 1}'
    assert len(task.messages) == 1 + 4 * (int(turn or 1) - 1)
    assert task.meta['recorded'][0]['content'] == 'seen' and task.meta['subset'] in ('one', 'two')
  cut = [d for d in read_dialogues(tmp_path / 'out' / 'dialogues_train.jsonl') if '/turn-' in d.id]
  assert cut and all(d.context == len(d.messages) - 3 and d.messages[d.context - 1].role == 'user' for d in cut)
  assert {d.id.partition('-')[2] for d in cut} <= {'2', '3'}


def test_nothing_depends_on_the_order_of_the_input(tmp_path):
  rows = rows_of_many_kinds()
  for number, seed in enumerate((None, 1, 2)):
    if seed is not None:
      random.Random(seed).shuffle(rows)
    prepare(settings(write(tmp_path / f'{number}.jsonl', rows), tmp_path / f'{number}', chunk=16 + number))
  for name in FILES:
    once, *others = (sorted((tmp_path / f'{n}' / name).read_bytes().splitlines()) for n in range(3))
    assert once and all(once == other for other in others)


def test_another_seed_divides_otherwise(tmp_path):
  source = write(tmp_path / 'in.jsonl', rows_of_many_kinds())
  for seed in (0, 1):
    prepare(settings(source, tmp_path / f'{seed}', seed=seed))
  assert contents(tmp_path / '0')['tasks_heldout.jsonl'] != contents(tmp_path / '1')['tasks_heldout.jsonl']


def test_rows_of_one_dialogue_stay_together(tmp_path):
  """Tasks cut from 20 dialogues, each of which is known by its first question alone."""
  rows = []
  for n in range(20):
    history = [{'role': 'user', 'content': question(n)}, {'role': 'assistant', 'content': 'Well.'}]
    for turn in range(3):
      asked = [*history, {'role': 'user', 'content': f'{turn}?'}] if turn else history[:1]
      truth = {'gold_tool_calls': [{'name': 'find', 'arguments': {'key': 'k'}}], 'tool_schemas': json.dumps([TOOL])}
      rows.append({
        'prompt': asked, 'data_source': 'x', 'tools': json.dumps([TOOL]), 'extra_info': {'original_turn_index': turn},
        'reward_model': {'style': 'rule', 'ground_truth': truth},
      })  # fmt: skip
  report = prepare(settings(write(tmp_path / 'in.jsonl', rows), tmp_path / 'out', heldout=Portion(5.0), sft=Portion()))
  held = {line['dialogue_id'] for line in lines(tmp_path / 'out', 'tasks_heldout.jsonl')}
  trained = [line['dialogue_id'] for line in lines(tmp_path / 'out', 'tasks_train.jsonl')]
  assert len(held) == 5 and not held & set(trained) and len(trained) == 45
  assert report['heldout']['set_aside'] == 10


def test_turns_of_weight_zero_are_context_and_rows_of_nothing_else_are_dropped(tmp_path):
  rows = [row(number, turns=3) for number in range(4)]
  for number, turns in enumerate(((), (1,), (1, 2), (0, 1, 2))):  # which turns of each row are context
    turn = -1
    for message in rows[number]['messages']:
      turn += message['role'] == 'user'
      if message['role'] == 'assistant' and turn in turns:
        message['weight'] = 0
  write(tmp_path / 'in.jsonl', rows)
  nothing = Portion(0)
  report = prepare(settings(tmp_path / 'in.jsonl', tmp_path / 'o', heldout=nothing, sft=Portion(-1), rl=nothing))
  assert report['filter']['dropped'] == {'nothing_learned': 1}
  assert report['decompose'] == {'rows': 3, 'no_later_tool_turn': 1, 'single': 0, 'decomposed': 3}
  made = read_dialogues(tmp_path / 'o' / 'dialogues_train.jsonl')
  assert sorted(one.id for one in made) == ['d0/turn-2', 'd0/turn-3', 'd1/turn-3']
  assert all(message.learn for one in made for message in one.messages[one.context :])


def repeated_questions():
  """Each question is asked twice, the second time with another last word and other keys."""
  rows = [row(n) for n in range(30)]
  return rows + [row(100 + n, asked=f'{question(n)} please', key='other') for n in range(30)]


def test_nearly_held_out_questions_fail_the_run(tmp_path):
  source = write(tmp_path / 'in.jsonl', repeated_questions())
  with pytest.raises(DataError, match=r"rows open with nearly a held-out question, such as 'd\d+' and 'd\d+'.*=drop"):
    prepare(settings(source, tmp_path / 'out', heldout=Portion(6.0)))
  assert not (tmp_path / 'out' / 'report.json').exists() and not (tmp_path / 'out' / FILES[0]).exists()


def test_nearly_held_out_questions_can_be_dropped(tmp_path):
  source = write(tmp_path / 'in.jsonl', repeated_questions())
  report = prepare(settings(source, tmp_path / 'out', heldout=Portion(6.0), near_duplicates='drop'))
  held = {int(line['id'][1:]) % 100 for line in lines(tmp_path / 'out', 'tasks_heldout.jsonl')}
  trained = {int(line['id'][1:]) % 100 for name in FILES[:2] for line in lines(tmp_path / 'out', name)}
  assert held and not held & trained and held | trained == set(range(30))
  assert report['heldout']['near_heldout'] == 2 * len(held) - 6


KILLED = """
import os, signal, sys
from slca_jax.data import dealing, ledger, pipeline
from slca_jax.data.settings import Portion, Preparation
source, output, place, left = sys.argv[1], sys.argv[2], sys.argv[3], [int(sys.argv[4])]
def killing(function):
  def wrapped(*arguments, **options):
    left[0] -= 1
    if left[0] < 0:
      os.kill(os.getpid(), signal.SIGKILL)
    return function(*arguments, **options)
  return wrapped
module, name = {'read': (ledger, 'write_whole'), 'deal': (dealing, 'write_json'), 'check': (pipeline, 'check_leakage'),
                'publish': (pipeline.os, 'replace')}[place]
if place == 'publish':
  kept = pipeline._publish
  def publish(*arguments):
    setattr(module, name, killing(getattr(module, name)))
    return kept(*arguments)
  pipeline._publish = publish
else:
  setattr(module, name, killing(getattr(module, name)))
pipeline.prepare(Preparation(input=source, output=output, heldout=Portion(6.0, 1 / 3), sft=Portion(0.5), chunk=16))
"""


@pytest.mark.parametrize(
  'place, after', [('read', 0), ('read', 3), ('deal', 2), ('check', 0), ('publish', 0), ('publish', 2), ('publish', 4)]
)
def test_a_killed_run_goes_on_and_ends_as_if_it_had_not_been(tmp_path, place, after):
  source = write(tmp_path / 'in.jsonl', rows_of_many_kinds())
  prepare(settings(source, tmp_path / 'whole'))
  out = tmp_path / 'out'
  command = [sys.executable, '-c', KILLED, source, out, place, str(after)]
  assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
  if place != 'publish':
    assert not [name for name in FILES if (out / name).exists()]
  prepare(settings(source, out))
  assert contents(out) == contents(tmp_path / 'whole')
  assert not (out / '.preparing').exists()


def test_a_resumed_run_knows_the_ids_of_rows_it_dropped(tmp_path, monkeypatch):
  rows = rows_of_many_kinds()
  rows[2] = row(2, quiet=(0,), identity='same')  # dropped: no tool is called
  rows[40], rows[45] = row(40, identity='same'), row(45, identity=rows[5]['id'])
  source = write(tmp_path / 'in.jsonl', rows)
  prepare(settings(source, tmp_path / 'whole', chunk=16))
  kept = Ledger.write

  def write_two(self, number, *rest):
    if number == 2:
      raise KeyboardInterrupt
    kept(self, number, *rest)

  monkeypatch.setattr(Ledger, 'write', write_two)
  with pytest.raises(KeyboardInterrupt):
    prepare(settings(source, tmp_path / 'out', chunk=16))
  monkeypatch.setattr(Ledger, 'write', kept)
  report = prepare(settings(source, tmp_path / 'out', chunk=16))
  assert report['filter']['dropped']['format.duplicate_id'] == 2
  assert contents(tmp_path / 'out') == contents(tmp_path / 'whole')


def test_a_resumed_run_does_not_filter_again_what_it_filtered(tmp_path, monkeypatch):
  from slca_jax.data import pipeline

  source = write(tmp_path / 'in.jsonl', rows_of_many_kinds(48))
  command = [sys.executable, '-c', KILLED, source, tmp_path / 'out', 'read', '4']  # two chunks of 16 rows are done
  assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
  filtered, kept = [], pipeline.entry_of
  monkeypatch.setattr(pipeline, 'entry_of', lambda row, settings: filtered.append(row.id) or kept(row, settings))
  assert prepare(settings(source, tmp_path / 'out'))['read'] == 48
  assert filtered == [f'd{n}' for n in range(32, 48)]


def test_what_a_run_left_that_was_killed_while_it_cleaned_up_is_removed(tmp_path):
  source = write(tmp_path / 'in.jsonl', rows_of_many_kinds())
  prepare(settings(source, tmp_path / 'out'))
  before = contents(tmp_path / 'out')
  (tmp_path / 'out' / '.preparing' / 'rows').mkdir(parents=True)
  prepare(settings(source, tmp_path / 'out'))
  assert not (tmp_path / 'out' / '.preparing').exists() and contents(tmp_path / 'out') == before


def test_a_finished_output_is_left_alone_and_that_of_others_refused(tmp_path):
  source = write(tmp_path / 'in.jsonl', rows_of_many_kinds())
  report = prepare(settings(source, tmp_path / 'out'))
  stamp = (tmp_path / 'out' / FILES[0]).stat().st_mtime_ns
  assert prepare(settings(source, tmp_path / 'out')) == report
  assert (tmp_path / 'out' / FILES[0]).stat().st_mtime_ns == stamp
  with pytest.raises(ConfigError, match='other settings or files'):
    prepare(settings(source, tmp_path / 'out', seed=1))
  (tmp_path / 'mine').mkdir()
  (tmp_path / 'mine' / FILES[1]).write_text('precious')
  with pytest.raises(ConfigError, match=r'already holds tasks_train\.jsonl'):
    prepare(settings(source, tmp_path / 'mine'))


def test_memory_holds_no_text(tmp_path):
  peaks = {}
  for count in (80, 320):
    rows = (row(n, key='long ' * 800) for n in range(count))  # 4,000 characters each
    source = write(tmp_path / f'{count}.jsonl', rows)
    tracemalloc.start()
    prepare(settings(source, tmp_path / f'{count}', heldout=Portion(10.0), near_duplicates='drop'))
    peaks[count] = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
  assert peaks[320] < peaks[80] + 240 * 600  # numbers and ids of 240 more rows, not their million characters


@pytest.mark.parametrize(
  'changes, words',
  [
    ({'input': ''}, 'input is empty'),
    ({'output': ''}, 'output is empty'),
    ({'heldout': Portion(500.0)}, r'heldout\.size asks for 500 samples; there are 60'),
    ({'heldout': Portion(50.0, 0.1)}, r'heldout\.size 50 asks for 45 samples of one turn; there are 20'),
    ({'sft': Portion(1000.0)}, r'sft\.size asks for 1,000 samples'),
  ],
)
def test_what_cannot_be_had_is_refused(tmp_path, changes, words):
  source = write(tmp_path / 'in.jsonl', rows_of_many_kinds())
  with pytest.raises((ConfigError, DataError), match=words):
    prepare(dataclasses.replace(settings(source, tmp_path / 'out'), **changes))


@pytest.mark.parametrize(
  'make',
  [
    lambda: Portion(-0.5),
    lambda: Portion(1.5),
    lambda: Portion(0.5, 1.5),
    lambda: Portion(-1.0, 0.5),
    lambda: Preparation(heldout=Portion(-1.0)),
    lambda: Preparation(sft=Portion(-1.0), rl=Portion(-1.0)),
    lambda: Preparation(sft=Portion(0.6), rl=Portion(0.6)),
    lambda: Preparation(decompose_from=-1),
    lambda: Preparation(similarity=0.0),
    lambda: Preparation(chunk=0),
    lambda: Preparation(limit=-1),
  ],
)
def test_settings_that_cannot_work_are_refused_at_once(make):
  with pytest.raises(ConfigError):
    make()


@pytest.mark.parametrize('name', ['auto', *FORMATS, *ALIASES])
def test_every_format_has_settings(name):
  built = build(Preparation, load('configs', 'data').get_config(name))
  assert built.format == name and built.output.endswith(name)


def test_the_launcher_prints_the_funnel_and_refuses_by_name(tmp_path):
  source = write(tmp_path / 'in.jsonl', rows_of_many_kinds())
  command = [sys.executable, str(ROOT / 'launch' / 'prepare_data.py'), f'--config={ROOT / "configs" / "data.py"}']
  done = subprocess.run(
    [*command, f'--config.input={source}', f'--config.output={tmp_path / "out"}', '--config.heldout.size=6'],
    check=False, capture_output=True, text=True,
  )  # fmt: skip
  assert done.returncode == 0, done.stderr
  assert '| read | rows | 60 |' in done.stdout and (tmp_path / 'out' / 'report.md').read_text('utf-8') == done.stdout
  done = subprocess.run([*command, '--config.heldout.size=1.5'], check=False, capture_output=True, text=True)
  assert done.returncode and 'ConfigError: config.heldout: size is 1.5' in done.stderr


def test_rows_that_no_json_can_hold_are_dropped_and_the_others_stay(tmp_path):
  import pyarrow
  import pyarrow.parquet

  asked = [[{'role': 'user', 'content': question(number)}] for number in (1, 2)]
  rows = [{'prompt': one, 'answer': 'a', 'tools': '[]'} for one in asked]
  rows[0]['info'] = {'asked': datetime.datetime(2026, 1, 1)}
  pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / 'in.parquet')
  made = settings(tmp_path / 'in.parquet', tmp_path / 'o', heldout=Portion(), sft=Portion())
  report = prepare(dataclasses.replace(made, filters=Filters(irrelevant=False)))
  assert report['filter'] == {'dropped': {'unwritable': 1}, 'kept': 1}
  assert 'datetime' in report['examples']['unwritable'][0]['why']


def test_rows_of_which_none_can_be_used_are_refused_with_the_reasons_and_what_would_keep_them(tmp_path):
  ends_with_calls = [{**one, 'messages': one['messages'][:2]} for one in map(row, range(3))]
  source = write(tmp_path / 'in.jsonl', [*ends_with_calls, row(7, quiet=(0,))])
  with pytest.raises(
    DataError, match=r'3 no_answer, such as a turn ends with calls \(filters\.answers=False keeps.*1 irr'
  ):
    prepare(settings(source, tmp_path / 'out'))  # though more is to be held out than there is
  assert not list((tmp_path / 'out').glob('*.jsonl'))
  kept = settings(source, tmp_path / 'out', filters=Filters(answers=False), heldout=Portion(1.0), sft=Portion())
  assert prepare(kept)['filter']['dropped'] == {'irrelevant': 1}  # and the folder is free for other settings
  assert 'filters.irrelevant=False' in (tmp_path / 'out' / 'report.md').read_text()
  with pytest.raises(DataError, match='there is none'):
    prepare(settings(write(tmp_path / 'empty.jsonl', []), tmp_path / 'none'))


def test_training_files_that_near_duplicates_would_leave_empty_are_refused(tmp_path):
  asked = 'one two three four five six seven eight nine ten eleven twelve'
  rows = [row(number, asked=f'{asked} {number}') for number in range(20)]
  lost = settings(write(tmp_path / 'in.jsonl', rows), tmp_path / 'out', heldout=Portion(1.0), near_duplicates='drop')
  with pytest.raises(DataError, match=r'of 20 rows 1 are held out, .* 19 open with nearly their questions'):
    prepare(lost)
