"""The laws of the parts hold of the whole: from schemas and executed calls to tasks that cover, replay and differ."""

import dataclasses
import json

import pytest
from travel import BOOK, CALENDAR, DETAIL, EVENT, FUNCTIONS, HOTELS, OFFERED, TOOLS, Plain

from slca_jax.dialogue import ToolCall
from slca_jax.toolverse.filters import at_most, distinct, replay_fault
from slca_jax.toolverse.graph import Edge, sanitise
from slca_jax.toolverse.history import calls_before
from slca_jax.toolverse.inference import Seen, infer
from slca_jax.toolverse.inversion import Broken, invert
from slca_jax.toolverse.sampling import sample_cover

WATCHED = (
  ToolCall(EVENT, {'query': 'AI Fair'}),
  ToolCall(HOTELS, {'location': 'Congress Centre', 'checkin_date': '2026-09-18'}),
  ToolCall(DETAIL, {'hotel_id': 'H101'}),
)


def make(open_world=Plain, tools=OFFERED, suggest=None):
  """(tasks before any gate, the traces that broke)"""
  with open_world() as world:
    seen = [Seen(call, json.loads(world.call(call).content)) for call in WATCHED]
  graph, _ = sanitise(infer(tools, seen=seen, suggest=suggest))
  cover = sample_cover(graph, 12, width=2, shortest=2, longest=6, seed=0)
  made = [
    invert('travel', tools, graph, sampled.stages, open_world, seed=number, turns=1 + number % 2)
    for number, sampled in enumerate(cover.samples)
  ]
  return [task for one in made if isinstance(one, tuple) for task in one], [b for b in made if isinstance(b, Broken)]


def test_tasks_cover_the_tools_replay_and_go_deep():
  tasks, broken = make()
  assert not broken and make() == (tasks, broken)
  assert [replay_fault(task, Plain) for task in tasks] == [''] * len(tasks)
  kept = at_most(distinct(tasks), 10)
  assert {call.name for task in kept for step in task.gold for call in step} == set(TOOLS)
  assert len({task.id for task in kept}) == len(kept) == 10
  assert any(task.meta['turns'] == 2 for task in kept) and max(task.meta['depth'] for task in kept) >= 3


def test_executed_calls_make_up_for_schemas_that_do_not_tell_what_is_answered():
  blind = tuple(dataclasses.replace(tool, returns=None) for tool in OFFERED)
  tasks, _ = make(tools=blind)
  assert any(
    call.arguments['hotel_id'] in output
    for task in tasks
    for step, outputs in zip(task.gold[1:], task.meta['outputs'], strict=False)
    for call in step
    if call.name == DETAIL
    for output in outputs
  )


def test_a_tool_that_always_refuses_breaks_its_traces_alone():
  def refuse(db, **_):
    raise ValueError('closed for good')

  tasks, broken = make(lambda: Plain(functions={**FUNCTIONS, BOOK: refuse}))
  assert tasks and {one.tool for one in broken} == {BOOK} and 'closed for good' in broken[0].reason
  assert all(call.name != BOOK for task in tasks for step in task.gold for call in step)


def test_a_world_that_answers_by_chance_loses_its_tasks_at_the_replay():
  count = iter(range(10**6))
  open_world = lambda: Plain(functions={**FUNCTIONS, CALENDAR: lambda db, **_: {'number': next(count)}})
  for task in make(open_world)[0]:
    by_chance = any(call.name == CALENDAR for step in (calls_before(task), *task.gold) for call in step)
    assert bool(replay_fault(task, open_world)) is by_chance


@pytest.mark.parametrize('suggested', [(), (Edge(EVENT, HOTELS), Edge(HOTELS, EVENT))])
def test_suggested_edges_order_the_calls(suggested):
  tasks, _ = make(suggest=lambda _: suggested)
  orders = [[call.name for step in task.gold for call in step] for task in tasks if task.meta['turns'] == 1]
  both = [order for order in orders if HOTELS in order and EVENT in order]
  assert all(order.index(EVENT) < order.index(HOTELS) for order in both) or not suggested
