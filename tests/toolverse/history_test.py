"""Laws of tasks in the middle of a dialogue, in the sandbox that training opens."""

import asyncio

from travel import schema

from slca_jax.dialogue import Observation, Tool, ToolCall
from slca_jax.envs.sandbox import SandboxSettings
from slca_jax.toolverse.blueprint import Blueprint, save
from slca_jax.toolverse.filters import replay_fault
from slca_jax.toolverse.graph import sanitise
from slca_jax.toolverse.history import Resumed
from slca_jax.toolverse.inference import infer
from slca_jax.toolverse.inversion import invert
from slca_jax.toolverse.world import Trial, blueprint_opener

SOURCE = '''"""A library."""


def search_books(db, query):
  return {'books': [{'book_id': key, **row} for key, row in db['books'].items() if query in row['title']]}


def borrow_book(db, book_id):
  if book_id not in db['books']:
    raise ValueError(f'no book {book_id}')
  loan = f'L{len(db["loans"]) + 1}'
  db['loans'][loan] = {'book_id': book_id}
  return {'loan_id': loan}


def cancel_loan(db, loan_id):
  if loan_id not in db['loans']:
    raise ValueError(f'no loan {loan_id}')
  return {'cancelled': db['loans'].pop(loan_id)['book_id']}
'''
BOOKS = {'type': 'object', 'properties': {'books': {'type': 'array', 'items': schema(book_id='string')}}}
LIBRARY = Blueprint(
  'library',
  (
    Tool('search_books', 'Searches.', schema(query='string'), BOOKS),
    Tool('borrow_book', 'Lends.', schema(book_id='string'), schema(loan_id='string'), True),
    Tool('cancel_loan', 'Takes back.', schema(loan_id='string'), None, True),
  ),
  SOURCE,
  {'books': {'b1': {'title': 'Dunes'}, 'b2': {'title': 'Islands'}}, 'loans': {}},
)


def test_training_opens_each_turn_of_a_user_where_the_last_one_ended(tmp_path):
  graph, removed = sanitise(infer(LIBRARY.tools))
  stages = (('search_books',), ('borrow_book',), ('cancel_loan',))
  tasks = invert('library', LIBRARY.tools, graph, stages, lambda: Trial(LIBRARY), seed=0, turns=3)
  assert not removed and isinstance(tasks, tuple)
  assert [replay_fault(task, lambda: Trial(LIBRARY)) for task in tasks] == [''] * 3
  save(LIBRARY, tmp_path / 'library')
  open_task = blueprint_opener(str(tmp_path), SandboxSettings(least='limits'))

  async def play(task):
    environment = open_task(task, 0)
    seen = [[one.content for one in await environment.step(step)] for step in task.gold]
    left = await environment.changes()
    environment.close()
    return seen, left

  for task in tasks:
    assert asyncio.run(play(task)) == (task.meta['outputs'], task.meta['changes'])
  assert [bool(task.meta['changes']) for task in tasks] == [False, True, False]
  assert tasks[2].gold[0][0].arguments == {'loan_id': 'L1'}


def test_a_step_that_is_cancelled_while_the_dialogue_is_made_again_leaves_none_of_it_out():
  made, gate = [], asyncio.Event()

  class World:
    tools = ()

    async def step(self, calls):
      if calls[0].name == 'second':
        await gate.wait()
      made.extend(call.name for call in calls)
      return [Observation('') for _ in calls]

    def close(self):
      """Nothing to free."""

  async def law():
    world = Resumed(World(), [ToolCall(name, {}) for name in ('first', 'second', 'third')])
    step = asyncio.create_task(world.step([ToolCall('now', {})]))
    while made != ['first']:
      await asyncio.sleep(0)
    step.cancel()
    await asyncio.gather(step, return_exceptions=True)
    gate.set()
    await world.step([ToolCall('now', {})])

  asyncio.run(law())
  assert made == ['first', 'second', 'third', 'now']
