"""BFCL's loops and tables against a stand-in for its process, and its true checkers where they are installed."""

import asyncio
import json
import sys

import pytest
from evaluation import bfcl_python, evaluation, write_policy

from slca_jax.chat.calls import render
from slca_jax.config import build
from slca_jax.dialogue import ToolCall
from slca_jax.errors import ConfigError, EnvironmentFailure
from slca_jax.evals import bfcl, bfcl_official, bfcl_run
from slca_jax.evals.benchmark_settings import BfclSettings
from slca_jax.evals.bfcl import Entry, Official, judge, judge_strictly
from slca_jax.evals.bfcl_multi_turn import Backend, converse, judge_turns
from slca_jax.evals.statistics import Sampling

ADD = render(ToolCall('add', {'a': 1}))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  return write_policy(tmp_path_factory.mktemp('bfcl'))


@pytest.fixture
def stand_in(monkeypatch):
  monkeypatch.setattr(bfcl, 'SCRIPT', bfcl.SCRIPT.parents[2] / 'tests' / 'evals' / 'bfcl_stand_in.py')


def talk(scene):
  """Runs a scene with an official side that is closed afterwards."""

  async def play():
    official = Official()
    try:
      return await scene(official)
    finally:
      await official.close()

  return asyncio.run(play())


def script(*texts):
  """A voice that says the texts one after another and keeps what it was shown."""
  left, shown = list(texts), []

  async def speak(messages, functions):
    shown.append(list(messages))
    return left.pop(0)

  return speak, shown


@pytest.mark.parametrize(
  ('text', 'valid', 'strict'),
  [
    (ADD, True, True),
    (render(ToolCall('add', {'a': 2})), False, False),
    ('no', False, False),
    ('<tool_call>\n{"name": "add"}\n</tool_call>', False, False),
    ('<tool_call>\nnot json\n</tool_call>\n' + ADD, True, False),  # the official reading passes over what is no JSON
  ],
)
def test_calls_are_judged_as_read_officially_and_strictly(stand_in, text, valid, strict):
  async def scene(official):
    entry = (await official.entries('simple_python'))[1]
    return (await judge(entry, text, official)).valid, (await judge_strictly(entry, text, official)).valid

  assert talk(scene) == (valid, strict)


def test_irrelevant_and_relevant_entries_ask_whether_there_is_a_call(stand_in):
  async def scene(official):
    quiet, loud = (Entry('', name, [], [], None, {}) for name in ('live_irrelevance', 'live_relevance'))
    broken = '<tool_call>\n{"name": 1}\n</tool_call>'
    return [[(await judge(entry, text, official)).valid for text in (ADD, 'no', broken)] for entry in (quiet, loud)]

  assert talk(scene) == [[False, True, True], [True, False, False]]


def test_user_goes_on_when_the_agent_stops_calling_and_brings_functions(stand_in):
  async def scene(official):
    [entry] = await official.entries('multi_turn_base')
    speak, shown = script(f'I do.\n{ADD}', 'Done.', render(ToolCall('add', {'a': 2})), 'Done.')
    world = Backend(entry, official)
    said = await converse(entry, speak, world)
    await world.release()
    assert [tool.name for tool in world.tools] == ['add']
    return said, shown, await judge_turns(entry, said, official)

  said, shown, verdict = talk(scene)
  assert verdict.valid and [len(turn) for turn in said] == [2, 2]
  last = shown[-1]
  assert [m['role'] for m in last] == ['user', 'assistant', 'tool', 'assistant', 'user', 'assistant', 'tool']
  assert [m['content'] for m in last if m['role'] == 'tool'] == ['1', '3'], 'the world remembers'
  assert last[1]['content'] == '', 'beside calls nothing is kept'
  assert last[4]['content'].startswith("[{'name': 'more'}]\n")


def test_agent_that_never_stops_calling_is_given_up(stand_in):
  async def scene(official):
    [entry] = await official.entries('multi_turn_base')
    speak, _ = script(*[ADD] * 9)
    return await converse(entry, speak, Backend(entry, official), steps=2)

  assert [len(turn) for turn in talk(scene)] == [3], 'the second user turn never comes'


def test_refusals_of_the_backend_are_observations_that_are_not_ok(stand_in):
  async def scene(official):
    [entry] = await official.entries('multi_turn_base')
    world = Backend(entry, official)
    return await world.step([ToolCall('add', {'a': 1}), ToolCall('sub', {})])

  assert [seen.ok for seen in talk(scene)] == [True, False]


def test_groups_of_categories():
  assert BfclSettings().chosen[2:4] == ('simple_javascript', 'multiple') and 'live_relevance' in BfclSettings().chosen
  assert BfclSettings(version=3, categories='multi_turn_base, non_live').chosen[0] == 'simple'
  assert len(BfclSettings(categories='all').chosen) == 17
  assert BfclSettings(categories='non_live').chosen[:3] == ('simple_python', 'simple_java', 'simple_javascript')
  assert BfclSettings(version=3, categories='non_live').chosen[:3] == ('simple', 'java', 'javascript')
  with pytest.raises(ConfigError, match="did you mean 'simple_python'"):
    build(BfclSettings, {'categories': 'simple_pyton'})


def record(category, valid, number=0):
  return {'id': f'{category}_{number}', 'category': category, 'valid': valid, 'strict': valid, 'kind': 'k'}


def test_mean_over_categories_weighs_each_alike_and_its_interval_stays_within_them():
  found = [record('a', True, i) for i in range(8)] + [record('b', i < 1, i) for i in range(4)]
  sampling = Sampling(resamples=4000)
  mean = bfcl_run.over_categories(found, 'valid', sampling)
  assert mean.mean == pytest.approx((1 + 0.25) / 2)
  # Category a never varies; the mean over 4 of b has deviation √(0.25·0.75/4) = 0.217, and counts half.
  assert mean.low == pytest.approx(0.5, abs=0.09) and mean.high == pytest.approx(0.875, abs=0.09)
  pooled = bfcl_run.over_categories(found, 'valid', sampling, pooled=True)
  assert pooled.mean == pytest.approx(9 / 12)
  absent = bfcl_run.over_categories([*found, record('b', None, 9)], 'valid', sampling)
  assert absent.absent == 1 and absent.mean == mean.mean


def test_simple_entries_of_all_languages_count_as_one_category():
  found = [record('simple_python', True), record('simple_java', False), record('simple_javascript', False)]
  found += [record('multiple', True), record('parallel', True), record('parallel_multiple', False)]
  mean = bfcl_run.over_categories(found, 'valid', Sampling(resamples=100)).mean
  assert mean == pytest.approx((1 / 3 + 1 + 1 + 0) / 4)
  part = [one for one in found if one['category'] in ('simple_python', 'simple_java')]
  assert bfcl_run.over_categories(part, 'valid', Sampling(resamples=100)).mean == pytest.approx(0.5)


@pytest.mark.parametrize(
  ('category', 'language'),
  [
    ('simple_java', 'Java'),
    ('javascript', 'JavaScript'),
    ('live_simple', 'Python'),
    ('simple_javascript', 'JavaScript'),
  ],
)
def test_categories_tell_their_language(category, language):
  assert bfcl_official.language_of(category) == language


def test_tables_leave_out_what_no_policy_can_get_right_apart():
  impossible = {**record('live_simple', False), 'id': 'live_simple_106-63-0'}
  [table, kinds] = bfcl_run.summary_tables(
    {'live_simple': [record('live_simple', True), impossible], 'live_multiple': [record('live_multiple', True)]},
    {'live': ('live_simple', 'live_multiple')},
    Sampling(resamples=100),
    version=4,
  )
  rows = {row[0]: row for row in table.rows}
  assert rows['live_simple'][2].mean == 0.5 and rows['live_simple'][4].mean == 1.0
  assert rows['live, 2 categories'][2].mean == pytest.approx(2 / 3) and kinds.rows == (('k', 1),)


def test_policy_is_asked_once_and_goes_on(stand_in, folder, tmp_path):
  asked = BfclSettings(categories='simple_python,live_irrelevance', turn_tokens=8)
  values = {'benchmark': 'bfcl', 'bfcl': asked}
  first = bfcl_run.evaluate(evaluation(folder, tmp_path / 'out', limit=2, **values))
  path = tmp_path / 'out' / 'simple_python' / 'results.jsonl'
  before = path.read_text().splitlines()
  assert len(before) == 2 and {json.loads(line)['valid'] for line in before} <= {True, False}
  found = bfcl_run.evaluate(evaluation(folder, tmp_path / 'out', **values))
  assert path.read_text().splitlines()[:2] == before and len(path.read_text().splitlines()) == 3
  assert first[0].rows[0][1] == 2 and found[0].rows[0][1] == 3
  with pytest.raises(ConfigError, match='samples is 2'):
    bfcl_run.evaluate(evaluation(folder, tmp_path / 'out', samples=2, **values))


def test_fewer_entries_are_the_first_of_the_category_in_whatever_order_answers_came(stand_in, folder, tmp_path):
  values = {'benchmark': 'bfcl', 'bfcl': BfclSettings(categories='simple_python', turn_tokens=8)}
  bfcl_run.evaluate(evaluation(folder, tmp_path / 'out', **values))
  path = tmp_path / 'out' / 'simple_python' / 'results.jsonl'
  told = [json.loads(line) | {'valid': False} for line in path.read_text().splitlines()]
  told.sort(key=lambda one: one['id'], reverse=True)
  told[-1]['valid'] = True  # the first entry, whose answer came last
  path.write_text(''.join(json.dumps(one) + '\n' for one in told))
  [table, _] = bfcl_run.evaluate(evaluation(folder, tmp_path / 'out', limit=1, **values))
  assert table.rows[0][1] == 1 and table.rows[0][2].mean == 1.0


def test_official_checkers_take_gold_and_run_nothing_but_their_own_functions():
  python = bfcl_python()

  async def scene(official):
    entries = {entry.id: entry for entry in await official.entries('simple_python')}
    right = [('calculate_triangle_area', {'base': 10, 'height': 5, 'unit': 'units'})]
    wrong = [('calculate_triangle_area', {'base': 10.5, 'height': 5})]
    single = [(await official.check(entries['simple_python_0'], calls)).valid for calls in (right, wrong, [])]
    [entry, *_] = await official.entries('multi_turn_base')
    world = Backend(entry, official)
    strange = ToolCall('__import__("os").system', {'command': 'echo'}), ToolCall('pwd', {'x=print(1), y': 2})
    seen = await world.step([ToolCall('pwd', {}), *strange])
    await world.release()
    return single, [one.ok for one in seen], seen[1].content

  async def play():
    official = Official(python=python if python != sys.executable else '')
    try:
      return await scene(official)
    finally:
      await official.close()

  single, ok, text = asyncio.run(play())
  assert single == [True, False, False] and ok == [True, False, False]
  assert text.startswith('Error during execution: name')


def test_entries_outlive_the_official_process_and_worlds_are_lost_with_it():
  python = bfcl_python()

  async def play():
    official = Official(python=python if python != sys.executable else '')
    try:
      [single, *_], [entry, other, *_] = [await official.entries(name) for name in ('simple_python', 'multi_turn_base')]
      world = Backend(entry, official)
      await world.step([ToolCall('pwd', {})])
      await official.close()  # as if it had been killed: the next question starts it anew
      again = Backend(other, official)
      before = await again.step([ToolCall('ls', {})])
      with pytest.raises(EnvironmentFailure, match='was open in a process that ended'):
        await world.step([ToolCall('mkdir', {'dir_name': 'strange'})])
      after = await again.step([ToolCall('ls', {})])
      right = [('calculate_triangle_area', {'base': 10, 'height': 5, 'unit': 'units'})]
      return before == after, (await official.check(single, right)).valid
    finally:
      await official.close()

  assert asyncio.run(play()) == (True, True)


def test_official_checkers_convert_texts_of_java_and_javascript():
  python = bfcl_python()
  java = 'PmsProductServiceImpl.updateNewStatus', {'ids': 'new ArrayList<>(Arrays.asList(101L, 202L, 303L))'}
  script = 'submitAtCoordinate', {'action': 'submit', 'formId': 'loginForm', 'coordinates': '[60, 30]'}
  made = [
    ('simple_java_22', (java[0], {**java[1], 'newStatus': '2'})),
    ('simple_java_22', (java[0], {'ids': [101, 202, 303], 'newStatus': 2})),  # right in Python
    ('simple_javascript_3', script),
  ]

  async def play():
    official = Official(python=python if python != sys.executable else '')
    try:
      rows = [one for name in ('simple_java', 'simple_javascript') for one in await official.entries(name)]
      entries = {entry.id: entry for entry in rows}
      return entries, [(await official.check(entries[id], [call])).valid for id, call in made]
    finally:
      await official.close()

  entries, checks = asyncio.run(play())
  assert checks == [True, False, True]
  for id, language in (('simple_java_22', 'Java 8 SDK'), ('simple_javascript_3', 'JavaScript')):
    [function] = entries[id].functions
    assert function['description'].endswith(f'Note that the provided function is in {language} syntax.')
    assert {part['type'] for part in function['parameters']['properties'].values()} == {'string'}
