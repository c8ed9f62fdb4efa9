"""Dependency graphs of tools, and how a guessed one becomes one that can be walked.

An edge says that its source comes before its target: because a value travels (`parameter`), or because the world works
that way (`semantic`).

    graph = infer(tools, seen=executed)      # toolverse/inference.py
    dag, removed = sanitise(graph)
    for removal in removed: print(removal.edge, removal.reason)
"""

import collections
import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal

Kind = Literal['parameter', 'semantic']
PRIORITY: Mapping[Kind, int] = {'semantic': 0, 'parameter': 1}


@dataclasses.dataclass(frozen=True, slots=True)
class Link:
  """A value that travels: `field` of what the source answers, such as `hotels[].id`, is the target's `parameter`."""

  field: str
  parameter: str


@dataclasses.dataclass(frozen=True, slots=True)
class Edge:
  """The source comes before the target. `links` are the values that travel, in order of preference."""

  source: str
  target: str
  kind: Kind = 'semantic'
  reason: str = ''
  links: tuple[Link, ...] = ()

  @property
  def priority(self) -> int:
    """The edge of the lowest priority gives way."""
    return PRIORITY[self.kind]

  def __str__(self) -> str:
    return f'{self.source} → {self.target}'


@dataclasses.dataclass(frozen=True, slots=True)
class Removal:
  """An edge that was deleted, and why."""

  edge: Edge
  reason: str


@dataclasses.dataclass(frozen=True)
class ToolGraph:
  """Tool names and the edges between them. Nothing is promised about either; `sanitise` does that."""

  nodes: tuple[str, ...]
  edges: tuple[Edge, ...] = ()

  def into(self, node: str) -> tuple[Edge, ...]:
    """The edges that end at a node."""
    return tuple(edge for edge in self.edges if edge.target == node)

  def before(self, nodes: Iterable[str]) -> frozenset[str]:
    """The nodes and everything that they depend on."""
    sources = _neighbours(self.edges, lambda edge: (edge.target, edge.source))
    found, waiting = set[str](), list(nodes)
    while waiting:
      node = waiting.pop()
      if node not in found:
        found.add(node)
        waiting.extend(sources[node])
    return frozenset(found)

  def part(self, nodes: Collection[str]) -> 'ToolGraph':
    """The graph of some of the nodes."""
    edges = tuple(edge for edge in self.edges if edge.source in nodes and edge.target in nodes)
    return ToolGraph(tuple(node for node in self.nodes if node in nodes), edges)

  def without(self, edge: Edge) -> 'ToolGraph':
    """The graph less one edge."""
    return ToolGraph(self.nodes, tuple(other for other in self.edges if other is not edge))


def walk(graph: ToolGraph) -> tuple[str, ...]:
  """The nodes in an order in which each comes after all it depends on, as far as that goes.

  Nodes on a cycle, and all that lies downstream of one, are not reached.
  """
  unmet = collections.Counter(edge.target for edge in graph.edges)
  targets = _neighbours(graph.edges, lambda edge: (edge.source, edge.target))
  order = [node for node in graph.nodes if not unmet[node]]
  for node in order:
    for target in targets[node]:
      unmet[target] -= 1
      if not unmet[target]:
        order.append(target)
  return tuple(order)


def merged(edges: Iterable[Edge]) -> tuple[Edge, ...]:
  """One edge for each pair of tools: of the strongest kind, with all reasons and links; in order of first mention."""
  pairs: dict[tuple[str, str], Edge] = {}
  for edge in edges:
    before = pairs.get((edge.source, edge.target))
    pairs[edge.source, edge.target] = edge if before is None else _joined(before, edge)
  return tuple(pairs.values())


def sanitise(graph: ToolGraph) -> tuple[ToolGraph, tuple[Removal, ...]]:
  """(an acyclic graph of the same tools, what was deleted for it and why).

  The graph is walked from the nodes that depend on nothing. Where the walk is stuck, a cycle that depends on no other
  cycle loses its edge of the lowest priority: semantic before parameter; of equals the one without which the walk gets
  furthest; of those the one whose target waits for the fewest others, then the one whose target keeps the most
  dependencies, then the last one. Edges that name no tool of the graph, or one tool twice, go first.

  ToolVerse, dependency graph sanitisation.
  """
  removed = [Removal(edge, reason) for edge in graph.edges if (reason := _unusable(edge, graph.nodes))]
  gone = {id(removal.edge) for removal in removed}
  graph = ToolGraph(graph.nodes, tuple(edge for edge in graph.edges if id(edge) not in gone))
  while len(reached := walk(graph)) < len(graph.nodes):
    removal = _weakest(graph, frozenset(reached))
    removed.append(removal)
    graph = graph.without(removal.edge)
  return graph, tuple(removed)


def _unusable(edge: Edge, nodes: Sequence[str]) -> str:
  unknown = [name for name in (edge.source, edge.target) if name not in nodes]
  if unknown:
    return f'there is no tool {unknown[0]!r}'
  return 'a tool cannot come before itself' if edge.source == edge.target else ''


def _weakest(graph: ToolGraph, reached: frozenset[str]) -> Removal:
  """The removal that breaks a cycle among the nodes that the walk did not reach."""
  stuck = graph.part(set(graph.nodes) - reached)
  component = _components(stuck)
  blocked = {component[edge.target] for edge in stuck.edges if component[edge.source] != component[edge.target]}
  waits = collections.Counter(edge.target for edge in stuck.edges)
  keeps = collections.Counter(edge.target for edge in graph.edges)
  loose = [
    edge
    for edge in stuck.edges
    if component[edge.source] == component[edge.target] and component[edge.target] not in blocked
  ]
  lowest = min(edge.priority for edge in loose)
  unlocks = {
    id(edge): len(walk(stuck.without(edge))) if waits[edge.target] == 1 else 0
    for edge in loose
    if edge.priority == lowest
  }
  ranked = [edge for edge in reversed(loose) if edge.priority == lowest]
  edge = max(ranked, key=lambda one: (unlocks[id(one)], -waits[one.target], keeps[one.target]))
  mixed = len({other.priority for other in loose}) > 1
  why = f'{edge.kind} edges give way first' if mixed else f'all its edges are {edge.kind} edges'
  cycle = ' → '.join([edge.source, *_path(stuck, edge.target, edge.source)])
  return Removal(edge, f'it closes the cycle {cycle}; {why}; without it {unlocks[id(edge)]} more tools unlock')


def _components(graph: ToolGraph) -> dict[str, int]:
  """Which strongly connected component each node belongs to (Kosaraju)."""
  targets = _neighbours(graph.edges, lambda edge: (edge.source, edge.target))
  sources = _neighbours(graph.edges, lambda edge: (edge.target, edge.source))
  finished: list[str] = []
  seen = set[str]()
  for node in graph.nodes:
    _finish(node, targets, seen, finished)
  component: dict[str, int] = {}
  for number, root in enumerate(reversed(finished)):
    waiting = [root]
    while waiting:
      node = waiting.pop()
      if node not in component:
        component[node] = number
        waiting.extend(sources[node])
  return component


def _finish(root: str, targets: Mapping[str, Sequence[str]], seen: set[str], finished: list[str]) -> None:
  """Appends what can be reached from `root` and was not seen before, each after all that it leads to."""
  path = [(root, iter(targets[root]))] if root not in seen else []
  seen.add(root)
  while path:
    node, rest = path[-1]
    following = next((target for target in rest if target not in seen), None)
    if following is None:
      finished.append(node)
      path.pop()
    else:
      seen.add(following)
      path.append((following, iter(targets[following])))


def _path(graph: ToolGraph, start: str, end: str) -> list[str]:
  """The nodes of a shortest way from start to end."""
  targets = _neighbours(graph.edges, lambda edge: (edge.source, edge.target))
  came_from = {start: start}
  waiting = collections.deque([start])
  while waiting and end not in came_from:
    node = waiting.popleft()
    for target in targets[node]:
      if target not in came_from:
        came_from[target] = node
        waiting.append(target)
  way = [end]
  while way[-1] != start:
    way.append(came_from[way[-1]])
  return way[::-1]


def _neighbours(
  edges: Iterable[Edge], ends: Callable[[Edge], tuple[str, str]]
) -> collections.defaultdict[str, list[str]]:
  found = collections.defaultdict[str, list[str]](list)
  for one, other in map(ends, edges):
    found[one].append(other)
  return found


def _joined(a: Edge, b: Edge) -> Edge:
  kind = max(a.kind, b.kind, key=PRIORITY.__getitem__)
  reason = '; '.join(dict.fromkeys(text for text in (a.reason, b.reason) if text))
  return Edge(a.source, a.target, kind, reason, tuple(dict.fromkeys((*a.links, *b.links))))
