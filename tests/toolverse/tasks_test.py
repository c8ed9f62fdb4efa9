"""Laws of a whole environment's tasks: they cover its tools, replay, and every loss is accounted for."""

import dataclasses

import pytest
from travel import BOOK, CALENDAR, DATABASE, DETAIL, EVENT, FUNCTIONS, HOTELS, OFFERED, TOOLS, Plain

from slca_jax.dialogue import ToolCall
from slca_jax.errors import ConfigError
from slca_jax.toolverse.blueprint import Blueprint, Check, UnitTest
from slca_jax.toolverse.filters import replay_fault
from slca_jax.toolverse.graph import Edge
from slca_jax.toolverse.tasks import TaskSettings, make_tasks, watch

TESTS = (
  UnitTest(
    'goes on',
    (
      Check(ToolCall(EVENT, {'query': 'AI Fair'})),
      Check(ToolCall(HOTELS, {'location': 'Congress Centre', 'checkin_date': '2026-09-18'})),
      Check(ToolCall(DETAIL, {'hotel_id': 'H101'})),
      Check(ToolCall(DETAIL, {'hotel_id': 'H9'}), {'error': 'no hotel'}),
    ),
  ),
)
TRAVEL = Blueprint('travel', OFFERED, '', DATABASE, TESTS)
SETTINGS = TaskSettings(samples=12, shortest=2, longest=6, user_turns=2, attempts=4)


def test_tasks_of_an_environment_cover_its_tools_and_replay():
  made = make_tasks(TRAVEL, Plain, SETTINGS, seed=0)
  assert 0 < len(made.tasks) <= 10 and not made.uncovered and not made.removed
  assert all(replay_fault(task, Plain) == '' for task in made.tasks)
  assert len({task.id for task in made.tasks}) == len(made.tasks)
  assert any(task.meta['depth'] >= 3 for task in made.tasks) and any(task.meta['turns'] == 2 for task in made.tasks)
  assert made == make_tasks(TRAVEL, Plain, SETTINGS, seed=0)


def test_what_its_tests_show_joins_the_graph():
  blind = dataclasses.replace(TRAVEL, tools=tuple(dataclasses.replace(tool, returns=None) for tool in OFFERED))
  seen = watch(blind, Plain)
  assert [one.call.name for one in seen] == [EVENT, HOTELS, DETAIL]  # the refused call shows nothing
  graph = make_tasks(blind, Plain, SETTINGS, seed=0).graph
  edges = {(edge.source, edge.target): edge.kind for edge in graph.edges}
  assert edges[HOTELS, DETAIL] == edges[HOTELS, BOOK] == 'parameter'


def test_losses_are_accounted_for_stage_by_stage():
  def refuse(db, **_):
    raise ValueError('closed for good')

  open_world = lambda: Plain(functions={**FUNCTIONS, BOOK: refuse})
  made = make_tasks(TRAVEL, open_world, dataclasses.replace(SETTINGS, longest=3), seed=0)
  reasons = {(drop.stage, drop.what): drop.reason for drop in made.dropped}
  assert 'closed for good' in reasons['trace', BOOK]
  assert BOOK in made.uncovered
  few = make_tasks(TRAVEL, Plain, dataclasses.replace(SETTINGS, most=1), seed=0)
  assert len(few.tasks) == 1 and {drop.stage for drop in few.dropped} <= {'duplicate', 'surplus'}
  assert set(few.uncovered) == set(TOOLS) - {call.name for step in few.tasks[0].gold for call in step}


def test_a_world_that_answers_by_chance_loses_its_tasks_at_the_replay():
  count = iter(range(10**6))
  functions = {**FUNCTIONS, CALENDAR: lambda db, **_: {'number': next(count)}}
  made = make_tasks(TRAVEL, lambda: Plain(functions=functions), SETTINGS, seed=0)
  assert all(call.name != CALENDAR for task in made.tasks for step in task.gold for call in step)
  assert any(drop.stage == 'replay' and CALENDAR in drop.reason for drop in made.dropped)


def test_suggested_edges_order_the_tasks():
  made = make_tasks(TRAVEL, Plain, SETTINGS, seed=0, suggest=lambda _: [Edge(EVENT, HOTELS), Edge(HOTELS, EVENT)])
  assert [str(removal.edge) for removal in made.removed] == ['search_hotels → search_event']
  for task in made.tasks:
    order = [call.name for step in task.gold for call in step]
    assert HOTELS not in order or EVENT not in order or order.index(EVENT) < order.index(HOTELS)


def test_settings_refuse_what_makes_no_task():
  with pytest.raises(ConfigError, match='width is 0'):
    TaskSettings(width=0)
  with pytest.raises(ConfigError, match='shortest is 9 and longest 8'):
    TaskSettings(shortest=9)
