"""Candidate sets: what always stays, what is added, what is skipped, and that nothing depends on anything else."""

import collections
import dataclasses
import importlib.util
import itertools
import json
import pathlib

import numpy as np
import pytest

from slca_jax.config import build
from slca_jax.data import ksweep
from slca_jax.data.formats.row import GOLD, UNKNOWN
from slca_jax.data.ksweep import Rules, Tally, Unfit, anchors, candidates, expand, gather, nearest, text_of
from slca_jax.data.ksweep_run import KSweepConfig, run
from slca_jax.data.tasks import read_tasks, write_tasks
from slca_jax.dialogue import Message, Task, Tool, ToolCall
from slca_jax.errors import ConfigError, DataError

RULES = Rules()


def tool(name, description=None, **properties):
  described = f'Does {name}.' if description is None else description
  return Tool(name, described, {'type': 'object', 'properties': properties})


def task(own, gold, identity='t', **fields):
  calls = tuple(ToolCall(name, {}) for name in gold.split())
  return Task(identity, tuple(tool(name) for name in own.split()), (Message('user', 'q'),), (calls,), **fields)


def names(made):
  return [tool.name for tool in made[0]]


POOL = gather(tool(f'p{i}') for i in range(40))
# The vectors of `find` and `sell` are two axes; a pool tool lies at an angle to both that its name tells.
ANGLES = {
  'find': 0,
  'sell': 90,
  'other': 180,
  'near_find': 10,
  'nearer_find': 5,
  'near_sell': 98,
  'far': 200,
  'mid': 60,
}


def embed(texts):
  angle_N = np.radians([ANGLES[text.split(':')[0]] for text in texts])
  return 7 * np.stack([np.cos(angle_N), np.sin(angle_N)], 1)  # of any length


HARD_POOL = gather(map(tool, ANGLES))
ASKED = task('find sell other', 'find sell')
NEAR = nearest(anchors(ASKED), HARD_POOL, embed, count=8)


@pytest.mark.parametrize('size', [2, 3, 4, 5, 20, 43])
def test_a_set_has_exactly_k_tools_all_gold_among_them_and_no_name_twice(size):
  asked = task('a b c d', 'b d b')
  made = names(candidates(asked, size, POOL, rules=RULES))
  assert len(made) == len(set(made)) == size and {'b', 'd'} <= set(made)
  assert (size < 4) or set('abcd') <= set(made)


def test_zero_leaves_the_task_as_it_is():
  asked = task('c a b', 'a')
  assert candidates(asked, 0, POOL, rules=RULES) == (asked.tools, 0)
  made = list(expand([asked], POOL, Tally('hard', 0), measure=lambda _: 1, limit=1, rules=RULES, neighbours=NEAR))
  assert made == [asked]


@pytest.mark.parametrize(('own', 'sizes'), [('a b', (3, 10, 30, 42)), ('a b c d e f g h', (1, 2, 5, 8))])
def test_a_smaller_set_is_part_of_a_larger_one(own, sizes):
  made = [set(names(candidates(task(own, 'b'), size, POOL, rules=RULES))) for size in sizes]
  assert all(small < large for small, large in itertools.pairwise(made))


def test_draws_depend_on_seed_and_task_id_alone():
  draw = lambda identity, seed: names(candidates(task('a', 'a', identity), 12, POOL, rules=Rules(seed=seed)))
  assert draw('x', 0) == draw('x', 0)
  assert set(draw('x', 0)) != set(draw('y', 0)) and set(draw('x', 0)) != set(draw('x', 1))


def test_random_distractors_and_contraction_are_uniform():
  small = gather(tool(f'p{i}') for i in range(10))
  drawn, left = collections.Counter(), collections.Counter()
  for i in range(2000):
    drawn.update(set(names(candidates(task('a', 'a', str(i)), 4, small, rules=RULES))) - {'a'})
    left.update(set(names(candidates(task('a b c d e f', 'a', str(i)), 3, small, rules=RULES))) - {'a'})
  # 3 of 10 in 2,000 tasks: 600 each, deviation √(2000 · 0.3 · 0.7) = 20.5; 2 of 5: 800 each, deviation 21.9
  assert set(drawn) == {f'p{i}' for i in range(10)} and all(abs(n - 600) < 5 * 20.5 for n in drawn.values())
  assert set(left) == set('bcdef') and all(abs(n - 800) < 5 * 21.9 for n in left.values())


def test_place_does_not_tell_gold_unless_order_is_kept():
  asked = [task('a b', 'a', str(i)) for i in range(600)]
  places = collections.Counter(names(candidates(one, 6, POOL, rules=RULES)).index('a') for one in asked)
  assert all(abs(places[place] - 100) < 5 * 9.2 for place in range(6))  # √(600 · 1/6 · 5/6) = 9.1
  kept = Rules(shuffle=False)
  assert {tuple(names(candidates(one, 6, POOL, rules=kept))[:2]) for one in asked} == {('a', 'b')}
  assert names(candidates(task('a b c d', 'c'), 4, POOL, rules=kept)) == list('abcd')


def test_hard_distractors_are_those_nearest_to_any_gold_tool():
  made = lambda size: (
    set(names(candidates(ASKED, size, HARD_POOL, rules=RULES, neighbours=NEAR))) - set(['find', 'sell', 'other'])
  )
  assert made(4) == {'nearer_find'}  # 5 degrees from find
  assert made(5) == {'nearer_find', 'near_sell'}  # 8 from sell
  assert made(7) == {'nearer_find', 'near_sell', 'near_find', 'mid'}  # 10 from find, 30 from sell
  assert made(8) == set(ANGLES) - {'find', 'sell', 'other'}


def test_below_the_similarity_floor_distractors_are_random_and_counted():
  counts = collections.Counter()
  for i in range(200):
    one = task('find', 'find', str(i))
    made, filled = candidates(one, 4, HARD_POOL, rules=Rules(floor=0.9), neighbours=NEAR)
    assert {'find', 'near_find', 'nearer_find'} < {tool.name for tool in made} and filled == 1
    counts.update(tool.name for tool in made)
  assert {name for name in ANGLES if counts[name] < 200} == {'sell', 'other', 'near_sell', 'far', 'mid'}
  assert all(counts[name] > 15 for name in ANGLES)  # 40 each, deviation 5.7
  with pytest.raises(ConfigError, match='floor is'):
    Rules(floor=1.5)


def test_a_task_without_gold_is_surrounded_by_what_resembles_its_own_tools():
  idle = task('sell', '')
  assert [tool.name for tool in anchors(idle)] == ['sell']
  assert set(names(candidates(idle, 2, HARD_POOL, rules=RULES, neighbours=NEAR))) == {'sell', 'near_sell'}
  bare = task('', '')
  made, filled = candidates(bare, 3, HARD_POOL, rules=RULES, neighbours=NEAR)
  assert len(made) == 3 and filled == 3


def test_neighbours_equal_a_full_sort_and_each_text_is_embedded_once(monkeypatch):
  monkeypatch.setattr(ksweep, '_BLOCK', 7)
  rng, asked = np.random.default_rng(0), []
  vectors = {text_of(one): rng.normal(size=5) for one in map(tool, [f'p{i}' for i in range(40)])}
  by_name = lambda texts: asked.extend(texts) or np.stack([vectors[text] for text in texts])
  found = nearest([*POOL.tools, *POOL.tools[:9]], POOL, by_name, count=6)
  unit = np.stack([vectors[text_of(one)] for one in POOL.tools])
  unit /= np.linalg.norm(unit, axis=1, keepdims=True)
  np.testing.assert_array_equal(found.index_UM, np.argsort(-unit @ unit.T, axis=1)[:, :6])
  assert len(asked) == len(set(asked)) == 40
  both = found.near([text_of(POOL.tools[3]), text_of(POOL.tools[8])])
  best = np.argsort(-(unit[[3, 8]] @ unit.T).max(0), kind='stable')[:6]
  assert {3, 8} == {index for index, _ in both[:2]} and {index for index, _ in both[:6]} == set(best.tolist())


def test_pool_keeps_one_tool_of_each_name_and_content_and_none_that_cannot_be_checked():
  broken = Tool('broken', 'Breaks.', {'type': 'object', 'properties': {'x': {'type': 'no such type'}}})
  found = [tool('a'), tool('a'), tool('a', 'Other.'), tool('b', 'Does a.'), broken, tool('c', ''), tool('d', '')]
  pool = gather(found)
  assert [one.name for one in pool.tools] == ['a', 'c', 'd']  # without a description, c and d are not known to be twins
  assert pool.dropped == {'clash': 1, 'twin': 1, 'schema': 1}
  assert [one.name for one in gather(found, twins=True).tools] == ['a', 'b', 'c', 'd']


def test_a_twin_of_an_own_tool_is_no_distractor_unless_asked_for():
  found = [tool('copy', 'Does a.'), tool('z')]
  asked = task('a', 'a')
  assert set(names(candidates(asked, 2, gather(found), rules=RULES))) == {'a', 'z'}
  allowed = candidates(asked, 3, gather(found, twins=True), rules=Rules(twins=True))
  assert set(names(allowed)) == {'a', 'copy', 'z'}


def test_a_pool_tool_of_an_own_tools_name_is_no_distractor():
  pool = gather([tool('a', 'Something else.'), tool('z')])
  assert {one.description for one in candidates(task('a', 'a'), 2, pool, rules=RULES)[0]} == {'Does a.', 'Does z.'}


@pytest.mark.parametrize(
  ('asked', 'size', 'reason'),
  [
    (task('a b c', 'a b c'), 2, 'gold_over_k'),
    (task('a b', 'a z'), 4, 'gold_missing'),
    (task('a b', '', meta={GOLD: UNKNOWN}), 4, 'gold_unknown'),
    (task('a b', 'a'), 43, 'pool_short'),
    (task('a b', 'a', blueprint='garden'), 4, 'blueprint'),
  ],
)
def test_a_task_without_such_a_set_is_skipped_with_the_reason(asked, size, reason):
  with pytest.raises(Unfit, match=asked.id) as caught:
    candidates(asked, size, POOL, rules=RULES)
  assert caught.value.reason == reason
  tally = Tally('random', size)
  assert not list(expand([asked], POOL, tally, measure=len, limit=9, rules=RULES)) and tally.skipped == {reason: 1}


def test_prompts_that_outgrow_the_context_are_skipped_and_not_in_the_statistics():
  tally = Tally('random', 3)
  measure = lambda made: int(made.id) + len(made.tools)
  tasks = [task('a', 'a', identity) for identity in ('10', '20', '30')]
  kept = list(expand(tasks, POOL, tally, measure=measure, limit=23, rules=RULES))
  assert [one.id for one in kept] == ['10', '20'] and tally.lengths == [13, 23] and tally.longest == 33
  assert tally.samples == 3 and tally.skipped == {'context': 1}


@pytest.fixture
def files(tmp_path):
  write_tasks([task('find sell', 'find', str(i)) for i in range(20)], tmp_path / 'tasks.jsonl')
  listed = [{'name': name, 'description': f'Does {name}.', 'inputSchema': {'type': 'object'}} for name in ANGLES]
  (tmp_path / 'more.json').write_text(json.dumps({'tools': listed}))
  return {'input': str(tmp_path / 'tasks.jsonl'), 'pool': str(tmp_path / 'more.json'), 'output': str(tmp_path / 'o')}


def test_run_writes_a_file_per_size_and_a_table_per_strategy(files, tmp_path):
  config = build(KSweepConfig, {**files, 'sizes': (0, 1, 4), 'context': 30})
  text = run(config, measure=lambda one: int(one.id) + 4 * len(one.tools), embed=embed)
  assert text == (tmp_path / 'o' / 'report.md').read_text()
  # K = 0: 8 .. 27; K = 1: 4 .. 23; K = 4: 16 .. 35, of which those up to 30 stay: 15 of 20, the 95th at 13.3 of 14
  for row in (
    '| 0 | 20 | 0 | 0.00% | 18 | 18 | 26 | 27 |',
    '| 1 | 20 | 0 | 0.00% | 14 | 14 | 22 | 23 |',
    '| 4 | 15 | 5 | 25.00% | 23 | 23 | 29 | 30 |',
  ):
    assert text.count(row) == 2
  assert '### Random distractors' in text and '### Hard distractors' in text and 'K = 4: 5 context' in text
  hard = read_tasks(tmp_path / 'o' / 'hard_k4.jsonl')
  assert {frozenset(tool.name for tool in one.tools) for one in hard} == {
    frozenset(('find', 'sell', 'near_find', 'nearer_find'))
  }
  assert read_tasks(tmp_path / 'o' / 'random_k0.jsonl') == read_tasks(files['input'])
  told = json.loads((tmp_path / 'o' / 'report.json').read_text())
  assert told['pool'] == 8 and told['gold_per_task'] == 1 and told['sizes'][2]['longest'] == 35
  first = {path.name: path.read_bytes() for path in (tmp_path / 'o').iterdir()}
  run(config, measure=lambda one: int(one.id) + 4 * len(one.tools), embed=embed)
  assert {path.name: path.read_bytes() for path in (tmp_path / 'o').iterdir()} == first


def test_size_at_which_nothing_stays_has_no_lengths(files):
  config = build(KSweepConfig, {**files, 'sizes': (2,), 'context': 5, 'strategies': ('random',)})
  assert '| 2 | 0 | 20 | 100.00% | - | - | - | - |' in run(config, measure=lambda _: 6)


@pytest.mark.parametrize(
  ('change', 'says'),
  [
    ({'input': ''}, 'input is empty'),
    ({'sizes': (10, 10)}, 'name one twice'),
    ({'sizes': (-1,)}, 'they are at least 0'),
    ({'strategies': ()}, 'strategies is empty'),
    ({'strategies': ('soft',)}, "'soft'"),
    ({'reserve': 40000}, 'reserve is 40000'),
    ({'rules': {'flor': 0.5}}, "did you mean 'floor'"),
  ],
)
def test_sweep_that_cannot_run_is_refused(change, says):
  with pytest.raises(ConfigError) as caught:
    build(KSweepConfig, {'input': 'tasks.jsonl', **change})
  assert says in str(caught.value)


def test_a_pool_too_small_for_every_task_and_a_missing_embedder_are_refused_before_anything_is_written(files, tmp_path):
  with pytest.raises(DataError, match='a pool of 8 tools do not do for K = 9; name further data sets'):
    run(build(KSweepConfig, {**files, 'sizes': (9,)}), measure=len, embed=embed)
  with pytest.raises(DataError, match='need an embedding model'):
    run(build(KSweepConfig, {**files, 'sizes': (4,)}), measure=len)
  assert not (tmp_path / 'o').exists()


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_embedded(files):
  asked = []
  with pytest.raises(ConfigError, match='/dev/null/o cannot be written: Not a directory'):
    run(build(KSweepConfig, {**files, 'sizes': (4,), 'output': '/dev/null/o'}), measure=len, embed=asked.append)
  assert not asked


def test_tasks_of_worlds_are_told_of_and_a_sweep_of_nothing_else_is_refused(files, tmp_path, caplog):
  worlds = [task('find', 'find', f'w{i}', blueprint='garden') for i in range(3)]
  write_tasks([*worlds, *(task('find sell', 'find', f't{i}') for i in range(2))], tmp_path / 'tasks.jsonl')
  config = build(KSweepConfig, {**files, 'sizes': (0, 3), 'strategies': ('random',)})
  text = run(config, measure=lambda _: 1)
  assert 'tasks.jsonl: 3 of 5 tasks name a blueprint' in caplog.text and 'K = 3: 3 blueprint' in text
  assert read_tasks(tmp_path / 'o' / 'random_k0.jsonl')[:3] == worlds
  assert [one.id for one in read_tasks(tmp_path / 'o' / 'random_k3.jsonl')] == ['t0', 't1']
  write_tasks(worlds, tmp_path / 'tasks.jsonl')
  with pytest.raises(DataError, match='3 of 3 tasks name a blueprint, whose world executes no tools but its own; take'):
    run(config, measure=lambda _: 1)
  run(dataclasses.replace(config, sizes=(0,)), measure=lambda _: 1)


@pytest.mark.parametrize(('argument', 'strategies'), [((), ('random', 'hard')), (('hard',), ('hard',))])
def test_config_file_builds(argument, strategies):
  spec = importlib.util.spec_from_file_location(
    'configs_ksweep', pathlib.Path(__file__).parents[2] / 'configs/ksweep.py'
  )
  assert spec and spec.loader
  spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
  config = module.get_config(*argument)
  config.input = 'tasks.jsonl'
  assert build(KSweepConfig, config).strategies == strategies
