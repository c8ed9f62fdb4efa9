"""Laws of drawings: every tool and edge is there, with its reason, and nothing a name says can break the file."""

import xml.etree.ElementTree as ElementTree

from travel import BACK, GRAPH, TOOLS

from slca_jax.toolverse.drawing import dot, page
from slca_jax.toolverse.graph import Edge, ToolGraph, sanitise

CYCLIC = ToolGraph(GRAPH.nodes, (*GRAPH.edges, BACK))


def test_graphviz_text_has_every_edge_and_how_it_was_found():
  dag, removed = sanitise(CYCLIC)
  text = dot(dag, removed)
  assert text.startswith('digraph tools {') and text.endswith('}\n')
  assert '"book_hotel" -> "submit_expense" [tooltip="the booking"];' in text
  assert '"get_hotel_detail" -> "book_hotel" [tooltip="look before you book", style=dashed];' in text
  assert text.count(' -> ') == 7 and text.count('color=red') == 1
  assert all(f'  "{tool}";' in text for tool in TOOLS)


def test_the_page_is_whole_and_shows_every_edge_with_its_reason():
  dag, removed = sanitise(CYCLIC)
  text = page(dag, removed, title='Travel & more')
  svg = ElementTree.fromstring(text[text.index('<svg') : text.index('</svg>') + 6])
  assert len(svg.findall('rect')) == 6 and len(svg.findall('path')) == 7
  assert {element.text for element in svg.findall('text')} == set(TOOLS)
  assert '<title>Travel &amp; more</title>' in text and text.count('<tr>') == 8
  assert 'it closes the cycle get_hotel_detail' in text


def test_columns_go_from_what_needs_nothing_to_what_needs_most():
  text = page(GRAPH)
  svg = ElementTree.fromstring(text[text.index('<svg') : text.index('</svg>') + 6])
  x = dict(zip(TOOLS, (int(rect.get('x')) for rect in svg.findall('rect')), strict=True))
  assert all(x[edge.source] < x[edge.target] for edge in GRAPH.edges)


def test_names_and_reasons_cannot_break_out():
  graph = ToolGraph(('a"b', '<script>'), (Edge('a"b', '<script>', 'semantic', '"];\n</svg><script>'),))
  assert '<script>' not in page(graph, title='<script>')
  assert '"a\\"b" -> "<script>" [tooltip="\\"]; </svg><script>", style=dashed];' in dot(graph)


def test_graphs_with_cycles_or_without_anything_can_be_drawn():
  assert page(CYCLIC).count('<rect') == 6 and dot(ToolGraph(())).count('->') == 0
  assert '<svg' in page(ToolGraph(()))
