"""Laws of tool graphs: what sanitising deletes, and that what is left can be walked."""

import random

import hypothesis
import hypothesis.strategies as st
import pytest
from travel import BOOK, DETAIL, EVENT, GRAPH, HOTELS, TOOLS

from slca_jax.toolverse.graph import Edge, Link, ToolGraph, merged, sanitise, walk
from slca_jax.toolverse.sampling import sample_stages


def with_edges(*edges):
  return ToolGraph(GRAPH.nodes, (*GRAPH.edges, *edges))


def pairs(edges):
  return {(edge.source, edge.target) for edge in edges}


def test_travel_example_has_the_in_degrees_of_the_note():
  assert [len(GRAPH.into(tool)) for tool in TOOLS] == [0, 1, 1, 2, 1, 1]


@pytest.mark.parametrize('kind', ['semantic', 'parameter'])
def test_sanitising_the_back_edge_removes_exactly_it_and_covers_all_six(kind):
  # Of two parameter edges on the cycle either unlocks all five; the target of the back edge keeps a dependency.
  dag, removed = sanitise(with_edges(Edge(DETAIL, HOTELS, kind)))
  assert [str(removal.edge) for removal in removed] == ['get_hotel_detail → search_hotels']
  assert 'cycle get_hotel_detail → search_hotels → get_hotel_detail' in removed[0].reason
  assert 'without it 5 more tools unlock' in removed[0].reason
  assert set(walk(dag)) == set(TOOLS) and dag.edges == GRAPH.edges
  assert not sample_stages(dag, width=2, chance=random.Random(0)).uncovered


def test_a_graph_without_cycles_stays_as_it_is():
  assert sanitise(GRAPH) == (GRAPH, ())


def test_semantic_edges_give_way_before_parameter_edges_whatever_they_unlock():
  edges = Edge('a', 'b'), Edge('b', 'c', 'parameter'), Edge('c', 'a', 'parameter'), Edge('c', 'b', 'parameter')
  dag, removed = sanitise(ToolGraph(('a', 'b', 'c'), edges))
  # b → c alone would have unlocked all three, but it is no semantic edge. Then b ⇄ c is left: the last edge goes.
  assert [str(removal.edge) for removal in removed] == ['a → b', 'c → b']
  assert removed[0].reason.endswith('semantic edges give way first; without it 0 more tools unlock')
  assert removed[1].reason.endswith('all its edges are parameter edges; without it 3 more tools unlock')
  assert walk(dag) == ('b', 'c', 'a')


def test_of_equals_the_edge_goes_that_unlocks_most():
  edges = Edge('a', 'b'), Edge('b', 'c'), Edge('c', 'a'), Edge('c', 'b')
  # a and c wait for one tool each, b for two. Without c → a only a unlocks; without b → c all three do.
  _, removed = sanitise(ToolGraph(('a', 'b', 'c'), edges))
  assert [str(removal.edge) for removal in removed] == ['b → c']
  assert 'without it 3 more tools unlock' in removed[0].reason


def test_edges_of_unknown_tools_and_loops_go_first_with_their_reasons():
  graph = with_edges(Edge(BOOK, BOOK, 'parameter'), Edge('fly', BOOK), Edge(BOOK, 'land'))
  dag, removed = sanitise(graph)
  assert dag == GRAPH
  assert [removal.reason for removal in removed] == [
    'a tool cannot come before itself',
    "there is no tool 'fly'",
    "there is no tool 'land'",
  ]


def test_two_edges_between_two_tools_become_one_of_the_stronger_kind():
  both = merged([Edge('a', 'b', 'semantic', 'x'), Edge('b', 'c'), Edge('a', 'b', 'parameter', 'y', (Link('f', 'p'),))])
  assert both == (Edge('a', 'b', 'parameter', 'x; y', (Link('f', 'p'),)), Edge('b', 'c'))


def test_a_part_keeps_what_it_depends_on():
  assert GRAPH.before([DETAIL]) == {EVENT, HOTELS, DETAIL}
  assert pairs(GRAPH.part(GRAPH.before([DETAIL])).edges) == {(EVENT, HOTELS), (HOTELS, DETAIL)}


@st.composite
def graphs(draw):
  nodes = tuple(map(str, range(draw(st.integers(1, 8)))))
  ends = st.tuples(st.sampled_from(nodes), st.sampled_from(nodes), st.sampled_from(['semantic', 'parameter']))
  return ToolGraph(nodes, merged(Edge(*end) for end in draw(st.lists(ends, max_size=24))))


@hypothesis.given(graphs())
@hypothesis.settings(max_examples=150, deadline=None)
def test_whatever_comes_in_a_sanitised_graph_can_be_walked(graph):
  dag, removed = sanitise(graph)
  order = walk(dag)
  assert sorted(order) == sorted(graph.nodes)
  assert all(order.index(edge.source) < order.index(edge.target) for edge in dag.edges)
  assert pairs(dag.edges) | pairs(r.edge for r in removed) == pairs(graph.edges)
  assert len(dag.edges) + len(removed) == len(graph.edges)
  assert sanitise(dag) == (dag, ())


@hypothesis.given(graphs())
@hypothesis.settings(max_examples=150, deadline=None)
def test_each_removal_lies_on_a_cycle_of_what_was_left(graph):
  _, removed = sanitise(graph)
  left = graph
  for removal in removed:
    assert removal.edge.source in left.part(set(left.nodes)).before([removal.edge.source])
    assert removal.edge.target in left.before([removal.edge.source])
    left = left.without(removal.edge)


def test_a_dense_graph_of_sixty_tools_is_sanitised_at_once():
  chance = random.Random(0)
  nodes = tuple(map(str, range(60)))
  edges = [Edge(a, b, chance.choice(['semantic', 'parameter'])) for a in nodes for b in nodes if a != b]
  dag, removed = sanitise(ToolGraph(nodes, tuple(chance.sample(edges, 600))))
  assert len(walk(dag)) == 60 and len(dag.edges) + len(removed) == 600
