"""A scripted model that is strong, sloppy or hostile builds environments; what holds is kept, the rest has a reason."""

import asyncio
import contextlib
import json

import pytest
from endpoint import Play, ScriptedEndpoint

from slca_jax.dialogue import Tool, ToolCall
from slca_jax.envs.sandbox import Sandbox, SandboxSettings
from slca_jax.errors import EndpointFailure, Unreadable
from slca_jax.llm.chat import ChatModel
from slca_jax.llm.replies import Reply
from slca_jax.llm.settings import Endpoint
from slca_jax.toolverse import prompts
from slca_jax.toolverse.journal import Journal
from slca_jax.toolverse.schemas import ToolSet
from slca_jax.toolverse.synthesis import Synthesis, SynthesisSettings
from slca_jax.toolverse.testing import retest
from slca_jax.toolverse.world import Trial

LIBRARY = ToolSet(
  'library', (Tool('find', 'Find books', {'type': 'object'}), Tool('lend', 'Lend one', {'type': 'object'}))
)


def spec(name, parameter, *, writes):
  parameters = {'type': 'object', 'properties': {parameter: {'type': 'string'}}, 'required': [parameter]}
  return {'name': name, 'description': f'{name}.', 'parameters': parameters, 'returns': {}, 'writes': writes}


TOOLS = [spec('find_books', 'title', writes=False), spec('lend_book', 'book_id', writes=True)]
DATABASE = {
  'books': {
    'B1': {'book_id': 'B1', 'title': 'Night Trains', 'lent': False},
    'B2': {'book_id': 'B2', 'title': 'Old Harbours', 'lent': True},
  }
}
SOURCE = """
def find_books(db, title):
  found = [book for book in db['books'].values() if title.lower() in book['title'].lower()]
  return {'status': 'success', 'message': f'{len(found)} found', 'books': found}


def lend_book(db, book_id):
  if book_id not in db['books']:
    raise ValueError(f'no book {book_id}; find one first')
  db['books'][book_id]['lent'] = True
  return {'status': 'success', 'message': 'lent', 'book_id': book_id}
"""


def case(name, tool, arguments, expect):
  return {'name': name, 'calls': [{'name': tool, 'arguments': arguments, 'expect': expect}]}


TESTS = [
  case('finds by title', 'find_books', {'title': 'night'}, {'has': {'books': [{'book_id': 'B1'}]}}),
  case('lends', 'lend_book', {'book_id': 'B1'}, {'has': {'book_id': 'B1'}}),
  case('refuses', 'lend_book', {'book_id': 'B9'}, {'error': 'no book'}),
]


def fenced(value, language='json'):
  return f'Here it is.\n```{language}\n{value if isinstance(value, str) else json.dumps(value)}\n```\nDone.'


def step_of(request):
  """Which step a request belongs to, by what it asks for."""
  text = request['messages'][-1]['content']
  marks = {
    'Rewrite them': 'schemas',
    'write its database': 'scene',
    'Write the functions': 'functions',
    'Write unit tests': 'tests',
    'does not hold yet': 'repair',
  }
  return next(step for mark, step in marks.items() if mark in text)


STRONG = {
  'schemas': fenced({'tools': TOOLS, 'left_out': {'burn': 'it destroys books'}}),
  'scene': json.dumps({'scene': 'A small library.', 'database': DATABASE}),
  'functions': fenced(SOURCE, 'python'),
  'tests': fenced(TESTS),
  'repair': fenced(SOURCE, 'python'),
}


def build(folder, replies, *, settings=None, sandbox=None, sets=(LIBRARY,), **endpoint):
  """(the outcomes, how often each step was asked)"""

  def script(request):
    reply = replies[step_of(request)]
    return reply(request) if callable(reply) else reply

  with ScriptedEndpoint(script) as server:
    place = Endpoint(base_url=server.url, model='scripted', first_pause=0.01, retries=1, input_price=10.0, **endpoint)

    async def run():
      model = ChatModel('synthesis', place)
      try:
        return await Synthesis(model, folder, settings=settings, sandbox=sandbox).make_all(sets)
      finally:
        await model.close()

    outcomes = asyncio.run(run())
    return outcomes, [step_of(request) for request in server.requests]


def test_a_strong_model_builds_a_world_in_four_questions(tmp_path):
  (outcome,), asked = build(tmp_path, STRONG)
  assert asked == ['schemas', 'scene', 'functions', 'tests']
  assert outcome.left_out == {'burn': 'it destroys books'}
  assert retest(outcome.blueprint).ok
  assert outcome.blueprint.provenance['prompts'] == prompts.VERSIONS
  with Trial(outcome.blueprint) as trial:
    assert trial.value(ToolCall('find_books', {'title': 'old'}))['books'][0]['book_id'] == 'B2'


def test_what_a_model_wrote_is_tested_as_the_runs_sandbox_says(tmp_path):
  with contextlib.closing(Sandbox(SandboxSettings(least='limits', most_result=20))) as sandbox:
    (outcome,), _ = build(tmp_path, STRONG, settings=SynthesisSettings(repairs=0), sandbox=sandbox)
  assert outcome.blueprint is None and 'at most 20 are taken' in outcome.reason


def test_a_run_that_starts_again_asks_nothing_and_gives_the_same(tmp_path):
  (first,), _ = build(tmp_path, STRONG)
  (again,), asked = build(tmp_path, STRONG)
  assert asked == []
  assert again == first


def test_a_run_that_was_cut_off_goes_on_from_there(tmp_path):
  build(tmp_path, STRONG)
  (tmp_path / 'worlds.jsonl').unlink()
  torn = (tmp_path / 'tests.jsonl').read_bytes()
  (tmp_path / 'tests.jsonl').write_bytes(torn[: len(torn) // 2])
  (outcome,), asked = build(tmp_path, STRONG)
  assert asked == ['tests']
  assert outcome.blueprint is not None


def test_each_step_keeps_version_and_cost(tmp_path):
  (outcome,), _ = build(tmp_path, STRONG)
  lines = [json.loads((tmp_path / f'{step}.jsonl').read_text()) for step in ('schemas', 'scene', 'functions', 'tests')]
  assert [line['prompt'] for line in lines] == [
    prompts.VERSIONS[step] for step in ('schemas', 'scene', 'functions', 'tests')
  ]
  assert all(line['cost'] == {'prompt_tokens': 100.0, 'completion_tokens': 10.0, 'cost': 0.001} for line in lines)
  assert outcome.cost == pytest.approx({'prompt_tokens': 400.0, 'completion_tokens': 40.0, 'cost': 0.004})


def test_a_wrong_function_is_repaired_from_its_failures(tmp_path):
  told = []

  def repair(request):
    told.append(request['messages'][-1]['content'])
    return fenced(SOURCE, 'python')

  sloppy = STRONG | {
    'functions': fenced(SOURCE.replace('title.lower() in', 'title.upper() in'), 'python'),
    'repair': repair,
  }
  (outcome,), asked = build(tmp_path, sloppy)
  assert asked.count('repair') == 1
  assert 'finds by title, call 1' in told[0]
  assert outcome.blueprint.provenance['repairs'] == 1


def test_a_wrong_test_is_repaired_as_well(tmp_path):
  wrong = json.loads(json.dumps(TESTS))
  wrong[0]['calls'][0]['expect'] = {'has': {'books': [{'book_id': 'B7'}]}}
  (outcome,), _ = build(tmp_path, STRONG | {'tests': fenced(wrong), 'repair': fenced(TESTS)})
  assert outcome.blueprint is not None


@pytest.mark.parametrize(
  'tests, says',
  [
    (TESTS[:1], 'no test calls lend_book'),
    ([{**test, 'calls': [{**call, 'expect': {}} for call in test['calls']]} for test in TESTS[:2]], 'expects anything'),
    ([{'name': 'x'}], 'not laid out'),
  ],
  ids=['a tool without tests', 'tests that expect nothing', 'no calls'],
)
def test_tests_that_prove_nothing_do_not_pass(tmp_path, tests, says):
  never = STRONG | {'tests': fenced(tests), 'repair': fenced(tests)}
  (outcome,), asked = build(tmp_path, never, settings=SynthesisSettings(repairs=2))
  assert outcome.blueprint is None
  assert says in outcome.reason
  assert asked.count('repair') == 2


def test_a_reply_that_cannot_be_read_is_asked_for_again_and_then_dropped(tmp_path):
  replies = iter(['I would rather not.', STRONG['scene']])
  (outcome,), asked = build(tmp_path / 'a', STRONG | {'scene': lambda _: next(replies)})
  assert outcome.blueprint is not None and asked.count('scene') == 2
  (outcome,), asked = build(tmp_path / 'b', STRONG | {'scene': 'Never.'}, rereads=1)
  assert outcome.blueprint is None and 'scene' in outcome.reason and asked == ['schemas', 'scene', 'scene']
  (again,), asked = build(tmp_path / 'b', STRONG | {'scene': 'Never.'}, rereads=1)
  assert asked == [] and again.reason == outcome.reason


HOSTILE = {
  'imports the system': 'import os\ndef find_books(db, title):\n  return os.listdir("/")\n',
  'walks to the builtins': 'def find_books(db, title):\n  return ().__class__.__base__.__subclasses__()\n',
  'opens a file': 'def find_books(db, title):\n  return open("/etc/passwd").read()\n',
  'gives no JSON': 'def find_books(db, title):\n  return {1, 2}\n',
  'floods the answer': "def find_books(db, title):\n  return 'x' * 50_000_000\n",
  'eats the memory': 'def find_books(db, title):\n  return len([0] * 10 ** 11)\n',
}


@pytest.mark.parametrize('attack', HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_world_is_dropped_with_the_reason(tmp_path, attack):
  lend = SOURCE[SOURCE.index('def lend_book') :]
  evil = fenced(f'{attack}\n\n{lend}', 'python')
  settings = SynthesisSettings(repairs=1)
  (outcome,), _ = build(tmp_path, STRONG | {'functions': evil, 'repair': evil}, settings=settings)
  assert outcome.blueprint is None
  assert 'after 1 repairs' in outcome.reason


@pytest.mark.parametrize(
  'reply',
  [
    fenced({'tools': [{'name': '__import__', 'parameters': {}}]}),
    fenced({'tools': [{'name': 'a', 'parameters': {'properties': {'x y': {}}}}]}),
    fenced({'tools': [{'name': 'a', 'parameters': {}}, {'name': 'a', 'parameters': {}}]}),
    '```json\n' + '[' * 100_000 + '\n```',
    '{"tools": ' + '[' * 60 + ']' * 60 + '}',
    Play('{"tools": [', finish='length'),
    'x' * (prompts.MOST_CHARACTERS + 1),
  ],
  ids=['dunder', 'no name', 'twice', 'endless', 'deep', 'cut off', 'long'],
)
def test_hostile_schemas_end_the_server_and_not_the_run(tmp_path, reply):
  other = ToolSet('other', LIBRARY.tools)
  by_server = lambda request: reply if '"library"' in request['messages'][-1]['content'] else STRONG['schemas']
  (bad, good), _ = build(tmp_path, STRONG | {'schemas': by_server}, sets=(LIBRARY, other), rereads=0)
  assert bad.blueprint is None and bad.reason.startswith('schemas')
  assert good.blueprint is not None


def test_too_few_tools_are_a_reason(tmp_path):
  (outcome,), asked = build(tmp_path, STRONG | {'schemas': fenced({'tools': TOOLS[:1], 'left_out': {}})})
  assert outcome.blueprint is None and 'least_tools' in outcome.reason and asked == ['schemas']


def test_an_endpoint_that_answers_nothing_stops_the_run(tmp_path):
  with pytest.raises(EndpointFailure, match='401'):
    build(tmp_path, STRONG | {'schemas': Play(status=401)})


def test_a_pause_of_the_endpoint_is_no_verdict(tmp_path):
  (outcome,), _ = build(tmp_path, STRONG | {'tests': Play(status=500)})
  assert outcome.blueprint is None and 'no answer' in outcome.reason
  (outcome,), asked = build(tmp_path, STRONG)
  assert asked == ['tests'] and outcome.blueprint is not None


def test_code_without_a_fence_and_json_without_one_are_read():
  assert prompts.read_functions(Reply('def f(db):\n  return 1')) == 'def f(db):\n  return 1\n'
  assert prompts.read_tests(Reply('Tests: [{"name": "x"}] as asked')) == [{'name': 'x'}]
  assert prompts.read_object(Reply('As told [above]: {"a": [1]}, see [2].')) == {'a': [1]}
  with pytest.raises(Unreadable, match='no JSON'):
    prompts.read_scene(Reply('{"database": {"t": {"a": NaN}}}'))


@pytest.mark.parametrize('opened', ['<think>', ''])
def test_drafts_in_a_models_reasoning_are_not_read(opened):
  draft = f'{opened}First\n```python\ndef draft(db):\n  pass\n```\n{{"question": 1}} no.\n</think>\n'
  assert prompts.read_functions(Reply(f'{draft}```python\ndef f(db):\n  return 1\n```')) == 'def f(db):\n  return 1\n'
  assert (
    prompts.read_functions(Reply(f'{opened}a plan\n</think>\ndef f(db):\n  return 1')) == 'def f(db):\n  return 1\n'
  )
  assert prompts.read_tests(Reply(f'{draft}[{{"name": "x"}}]')) == [{'name': 'x'}]
  assert prompts.read_object(Reply(f'{draft}{{"question": "final"}}')) == {'question': 'final'}


def test_what_a_model_says_can_be_written_down(tmp_path):
  scene = prompts.read_scene(Reply(r'{"scene": "s", "database": {"t": {"1": {"name": "a\ud83d"}}}}'))
  assert scene == ('s', {'t': {'1': {'name': 'a?'}}})
  Journal(tmp_path / 'j.jsonl').put('a', {'value': scene})


def test_the_last_line_of_a_key_counts_and_a_torn_line_is_ignored(tmp_path):
  path = tmp_path / 'j.jsonl'
  journal = Journal(path)
  journal.put('a', {'n': 1})
  journal.put('a', {'n': 2})
  path.write_bytes(path.read_bytes() + b'{"key": "b", "n"')
  again = Journal(path)
  again.put('c', {'n': 3})
  assert [Journal(path).get(key) for key in 'abc'] == [{'key': 'a', 'n': 2}, None, {'key': 'c', 'n': 3}]
