"""Tool graphs to look at: Graphviz text, and one HTML file that needs nothing else."""

import collections
import html
import json
from collections.abc import Iterable

from slca_jax.toolverse.graph import Edge, Removal, ToolGraph, walk

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 190, 34, 60, 22, 20
_STYLE = """body{font:14px system-ui,sans-serif;margin:2em;color:#222} svg{max-width:100%;height:auto}
rect{fill:#f4f7fb;stroke:#456} text{font:12px ui-monospace,monospace;text-anchor:middle;dominant-baseline:middle}
path{fill:none;stroke:#2b6cb0;stroke-width:1.4} .semantic{stroke:#888;stroke-dasharray:5 4}
.removed{stroke:#c53030;stroke-dasharray:2 3} td,th{padding:.2em .8em .2em 0;text-align:left;vertical-align:top}"""


def dot(graph: ToolGraph, removed: Iterable[Removal] = ()) -> str:
  """The graph in Graphviz's language: parameter edges solid, semantic ones dashed, removed ones red."""
  lines = ['digraph tools {', '  rankdir=LR;', '  node [shape=box, fontname="monospace"];']
  lines += [f'  {_quoted(node)};' for node in graph.nodes]
  lines += [_dot_edge(edge, edge.reason, '' if edge.kind == 'parameter' else ', style=dashed') for edge in graph.edges]
  lines += [
    _dot_edge(removal.edge, removal.reason, ', style=dotted, color=red, constraint=false') for removal in removed
  ]
  return '\n'.join([*lines, '}', ''])


def page(graph: ToolGraph, removed: Iterable[Removal] = (), *, title: str = 'Tool graph') -> str:
  """The graph as an HTML file: a drawing in columns of what unlocks together, and every edge with its reason."""
  removed = tuple(removed)
  places = _places(graph)
  right = max((x for x, _ in places.values()), default=0) + _WIDTH + _MARGIN
  bottom = max((y for _, y in places.values()), default=0) + _HEIGHT + _MARGIN
  curves = [_curve(edge, places, edge.kind, edge.reason) for edge in graph.edges]
  curves += [_curve(removal.edge, places, 'removed', removal.reason) for removal in removed]
  boxes = [
    f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="5"/>'
    f'<text x="{x + _WIDTH / 2:g}" y="{y + _HEIGHT / 2:g}">{html.escape(node)}</text>'
    for node, (x, y) in places.items()
  ]
  rows = [_row(edge, edge.kind, edge.reason) for edge in graph.edges]
  rows += [_row(removal.edge, 'removed', removal.reason) for removal in removed]
  marker = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    '<path d="M0 0L8 4L0 8z" style="fill:#666;stroke:none"/></marker></defs>'
  )
  return (
    f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>\n'
    f'<style>{_STYLE}</style>\n<h1>{html.escape(title)}</h1>\n'
    f'<svg viewBox="0 0 {right} {bottom}" width="{right}">{marker}\n{chr(10).join(curves + boxes)}\n</svg>\n'
    f'<table><tr><th>before</th><th>after</th><th>kind</th><th>reason</th></tr>\n{chr(10).join(rows)}\n</table></html>\n'
  )


def _places(graph: ToolGraph) -> dict[str, tuple[int, int]]:
  """Left upper corners: a column for each depth; what is on a cycle or behind one stands in the last column."""
  reached = walk(graph)
  column: dict[str, int] = {}
  for node in reached:
    column[node] = 1 + max((column[edge.source] for edge in graph.into(node)), default=-1)
  last = max(column.values(), default=-1) + 1
  filled: collections.Counter[int] = collections.Counter()
  places = {}
  for node in graph.nodes:
    x = column.get(node, last)
    places[node] = (_MARGIN + x * (_WIDTH + _GAP_X), _MARGIN + filled[x] * (_HEIGHT + _GAP_Y))
    filled[x] += 1
  return places


def _curve(edge: Edge, places: dict[str, tuple[int, int]], kind: str, reason: str) -> str:
  if edge.source not in places or edge.target not in places:
    return ''
  (x1, y1), (x2, y2) = places[edge.source], places[edge.target]
  x1, y1, y2 = x1 + _WIDTH, y1 + _HEIGHT // 2, y2 + _HEIGHT // 2
  bend = max(_GAP_X // 2, abs(x2 - x1) // 2)
  line = f'M{x1} {y1}C{x1 + bend} {y1} {x2 - bend} {y2} {x2} {y2}'
  return f'<path class="{kind}" d="{line}" marker-end="url(#tip)"><title>{html.escape(reason)}</title></path>'


def _row(edge: Edge, kind: str, reason: str) -> str:
  return f'<tr>{"".join(f"<td>{html.escape(cell)}</td>" for cell in (edge.source, edge.target, kind, reason))}</tr>'


def _dot_edge(edge: Edge, reason: str, style: str) -> str:
  return f'  {_quoted(edge.source)} -> {_quoted(edge.target)} [tooltip={_quoted(reason)}{style}];'


def _quoted(text: str) -> str:
  """A string of Graphviz; JSON's escapes for quotes and backslashes are its own."""
  return json.dumps(text.replace('\n', ' '), ensure_ascii=False)
