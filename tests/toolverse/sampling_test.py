"""Laws of dynamic unlock sampling (prediction P1), and of samples that cover a graph."""

import random

import hypothesis
import hypothesis.strategies as st
import pytest
from travel import BACK, BOOK, CALENDAR, DETAIL, EVENT, EXPENSE, GRAPH, HOTELS, TOOLS

from slca_jax.toolverse.graph import Edge, ToolGraph, merged, sanitise, walk
from slca_jax.toolverse.sampling import sample_cover, sample_stages

CYCLIC = ToolGraph(GRAPH.nodes, (*GRAPH.edges, BACK))


def legal(graph, stages):
  """Whether all dependencies of each stage lie in earlier ones."""
  done = set()
  for stage in stages:
    if any(edge.source not in done for tool in stage for edge in graph.into(tool)):
      return False
    done |= set(stage)
  return True


@pytest.mark.parametrize('seed', range(5))
def test_travel_example_has_five_stages_of_width_two(seed):
  sampled = sample_stages(GRAPH, width=2, chance=random.Random(seed))
  assert [set(stage) for stage in sampled.stages] == [{EVENT}, {HOTELS}, {DETAIL}, {BOOK}, {CALENDAR, EXPENSE}]
  assert legal(GRAPH, sampled.stages) and not sampled.uncovered


def test_with_the_back_edge_only_the_event_is_covered():
  sampled = sample_stages(CYCLIC, width=2, chance=random.Random(0))
  assert sampled.stages == ((EVENT,),)
  assert set(sampled.uncovered) == {HOTELS, DETAIL, BOOK, CALENDAR, EXPENSE}


def test_sanitised_it_is_covered_again():
  dag, removed = sanitise(CYCLIC)
  assert len(removed) == 1
  assert set(sample_stages(dag, width=2, chance=random.Random(0)).tools) == set(TOOLS)


def test_a_stage_holds_no_more_than_its_width():
  free = ToolGraph(tuple('abcde'))
  assert [len(stage) for stage in sample_stages(free, width=2, chance=random.Random(1)).stages] == [2, 2, 1]
  assert sample_stages(free, width=2, chance=random.Random(1)) == sample_stages(free, width=2, chance=random.Random(1))
  with pytest.raises(ValueError, match='width is 0'):
    sample_stages(free, width=0, chance=random.Random(0))


@st.composite
def graphs(draw):
  nodes = tuple(map(str, range(draw(st.integers(1, 8)))))
  ends = st.tuples(st.sampled_from(nodes), st.sampled_from(nodes))
  return ToolGraph(nodes, merged(Edge(*end) for end in draw(st.lists(ends, max_size=16))))


@hypothesis.given(graphs(), st.integers(1, 3), st.integers(0, 99))
@hypothesis.settings(max_examples=150, deadline=None)
def test_what_stays_uncovered_is_the_cycles_and_what_lies_downstream(graph, width, seed):
  sampled = sample_stages(graph, width=width, chance=random.Random(seed))
  assert legal(graph, sampled.stages) and all(len(stage) <= width for stage in sampled.stages)
  on_a_cycle = {edge.source for edge in graph.edges if edge.target in graph.before([edge.source])}
  assert set(sampled.uncovered) == {node for node in graph.nodes if graph.before([node]) & on_a_cycle}
  assert set(sampled.tools) == set(walk(graph))


def test_a_cover_uses_every_tool_within_its_bounds():
  cover = sample_cover(GRAPH, 12, width=2, shortest=3, longest=5, seed=7)
  assert len(cover.samples) == 12 and not cover.missed
  assert all(3 <= len(sampled.tools) <= 5 and legal(GRAPH, sampled.stages) for sampled in cover.samples)
  assert {tool for sampled in cover.samples for tool in sampled.tools} == set(TOOLS)
  assert cover == sample_cover(GRAPH, 12, width=2, shortest=3, longest=5, seed=7)


def test_a_cover_tells_which_tools_fit_no_task():
  cover = sample_cover(GRAPH, 6, width=2, shortest=1, longest=3, seed=0)
  assert cover.missed == {
    BOOK: 'it depends on 3 tools, and a task makes at most 3 calls',
    CALENDAR: 'it depends on 4 tools, and a task makes at most 3 calls',
    EXPENSE: 'it depends on 4 tools, and a task makes at most 3 calls',
  }
  lone = sample_cover(ToolGraph(('a', 'b')), 4, width=1, shortest=3, longest=5, seed=0)
  assert not lone.samples and lone.missed['a'] == 'only 2 calls go together, and a task makes 3'


def test_a_cover_refuses_cycles_and_bounds_that_are_none():
  with pytest.raises(ValueError, match=r'search_hotels.* never unlock; sanitise the graph first'):
    sample_cover(CYCLIC, 3, width=2, shortest=1, longest=6, seed=0)
  with pytest.raises(ValueError, match='shortest is 4 and longest 3'):
    sample_cover(GRAPH, 1, width=1, shortest=4, longest=3, seed=0)


def test_long_chains_of_values_are_begun_with_as_often_as_asked():
  # a hands on to b, b to c; d to k stand alone, and so many of them that least use alone rarely meets the chain.
  chain = (Edge('a', 'b', 'parameter'), Edge('b', 'c', 'parameter'), Edge('d', 'e'), Edge('e', 'f'))
  graph = ToolGraph(tuple('abcdefghijk'), chain)
  whole = lambda chains: sum(
    {'a', 'b', 'c'} <= set(sampled.tools)
    for sampled in sample_cover(graph, 20, width=2, shortest=3, longest=4, seed=1, chains=chains).samples
  )
  assert whole(1.0) == 20 and whole(0.0) < whole(0.5) < 20
  flat = ToolGraph(graph.nodes, chain[2:])
  plain = sample_cover(flat, 6, width=2, shortest=3, longest=4, seed=1, chains=1.0)
  assert len(plain.samples) == 6 and {tool for sampled in plain.samples for tool in sampled.tools} == set(flat.nodes)
