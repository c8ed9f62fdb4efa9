"""What a task calls and in which order: stages of tools that unlock one another."""

import collections
import dataclasses
import random
from collections.abc import Sequence

from slca_jax.toolverse.graph import ToolGraph, walk

Stages = tuple[tuple[str, ...], ...]

_LONG = 3  # calls of a chain that is long


@dataclasses.dataclass(frozen=True, slots=True)
class Sampled:
  """Stages of tools, each of which needs only what earlier ones did.

  Attributes:
    uncovered: tools that never unlocked: those on cycles and all that lies downstream of one.
  """

  stages: Stages
  uncovered: tuple[str, ...] = ()

  @property
  def tools(self) -> tuple[str, ...]:
    """The tools of all stages, in order."""
    return tuple(tool for stage in self.stages for tool in stage)


@dataclasses.dataclass(frozen=True, slots=True)
class Cover:
  """Samples of one graph. `missed` are tools in none of them, with the reason."""

  samples: tuple[Sampled, ...]
  missed: dict[str, str]


def sample_stages(graph: ToolGraph, *, width: int, chance: random.Random) -> Sampled:
  """Stages of at most `width` tools over the whole graph, drawn as they unlock.

  Q holds the tools without unmet dependencies. A stage takes k = min(|Q|, width) of them; their successors have one
  dependency less and join Q when they have none; until Q is empty.

  ToolVerse, dynamic unlock sampling.
  """
  if width < 1:
    raise ValueError(f'width is {width}; a stage needs at least 1 tool')
  unmet = collections.Counter(edge.target for edge in graph.edges)
  targets = collections.defaultdict[str, list[str]](list)
  for edge in graph.edges:
    targets[edge.source].append(edge.target)
  ready = [node for node in graph.nodes if not unmet[node]]
  stages: list[tuple[str, ...]] = []
  while ready:
    stage = tuple(chance.sample(ready, min(len(ready), width)))
    ready = [node for node in ready if node not in stage]
    for target in (target for node in stage for target in targets[node]):
      unmet[target] -= 1
      if not unmet[target]:
        ready.append(target)
    stages.append(stage)
  covered = {tool for stage in stages for tool in stage}
  return Sampled(tuple(stages), tuple(node for node in graph.nodes if node not in covered))


def sample_cover(
  graph: ToolGraph,
  count: int,
  *,
  width: int,
  shortest: int,
  longest: int,
  seed: int | str,
  chains: float = 0.0,
) -> Cover:
  """`count` samples of parts of an acyclic graph, between `shortest` and `longest` calls each, that use every tool.

  Each begins with the tool that was used least so far and all that it depends on, and grows by further tools, those
  that share an edge with it first. No dependency is ever cut off, so a tool that depends on more than `longest` − 1
  others is missed, and so is one that cannot be part of `shortest` calls.

  Args:
    chains: the share of samples that begin instead with the tool used least of those at the end of a chain of three
      or more that hand on values, if there are any.

  Raises:
    ValueError: the graph has a cycle, or the bounds are none.
  """
  if not 1 <= shortest <= longest:
    raise ValueError(f'shortest is {shortest} and longest {longest}; they need 1 <= shortest <= longest')
  needs = {node: graph.before([node]) for node in graph.nodes}
  used: collections.Counter[str] = collections.Counter()
  handed = _handed_on(graph)
  missed = {
    node: f'it depends on {len(needs[node]) - 1} tools, and a task makes at most {longest} calls'
    for node in graph.nodes
    if len(needs[node]) > longest
  }
  samples: list[Sampled] = []
  for number in range(count):
    chance = random.Random(f'{seed}/{number}')
    far = _LONG if chains and chance.random() < chains else 0
    order = sorted(
      (node for node in graph.nodes if node not in missed),
      key=lambda node: (handed[node] < far, used[node], chance.random()),
    )
    part = graph.part(_grown(graph, order, needs, chance.randint(shortest, longest), longest))
    sampled = sample_stages(part, width=width, chance=chance)
    if sampled.uncovered:
      raise ValueError(f'the tools {", ".join(sampled.uncovered)} never unlock; sanitise the graph first')
    if len(sampled.tools) < shortest:
      short = f'only {len(sampled.tools)} calls go together, and a task makes {shortest}'
      missed.update(dict.fromkeys(order[:1], short))
      continue
    used.update(sampled.tools)
    samples.append(sampled)
  never = {node: 'no sample was drawn that uses it' for node in graph.nodes if not used[node]}
  return Cover(tuple(samples), {node: missed.get(node, reason) for node, reason in never.items()})


def _handed_on(graph: ToolGraph) -> dict[str, int]:
  """The length of the longest chain of values handed on that ends at each tool which a walk reaches."""
  length = dict.fromkeys(graph.nodes, 0)
  for node in walk(graph):
    length[node] = 1 + max((length[edge.source] for edge in graph.into(node) if edge.kind == 'parameter'), default=0)
  return length


def _grown(
  graph: ToolGraph, order: Sequence[str], needs: dict[str, frozenset[str]], wanted: int, longest: int
) -> frozenset[str]:
  """The first tool of `order` with its dependencies, grown to `wanted` tools as far as `longest` allows."""
  grown = needs[order[0]] if order else frozenset[str]()
  rest = list(order[1:])
  while len(grown) < wanted:
    fitting = [node for node in rest if node not in grown and len(grown | needs[node]) <= longest]
    if not fitting:
      break
    touched = {end for edge in graph.edges for end in (edge.source, edge.target) if {edge.source, edge.target} & grown}
    chosen = next((node for node in fitting if needs[node] & grown or node in touched), fitting[0])
    grown |= needs[chosen]
  return grown
