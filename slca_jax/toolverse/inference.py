"""Which tools depend on which: by what they answer and ask for, by their verbs, and by who else has an opinion."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from slca_jax.dialogue import Tool, ToolCall
from slca_jax.toolverse.fields import (
  Words,
  about_the_same,
  field_words,
  fits,
  is_boilerplate,
  is_key,
  is_own_key,
  is_said_by_user,
  json_type,
  leaves,
  name_words,
  nouns,
  parameters,
  rank,
  required,
  same_thing,
  schema_leaves,
  type_of,
)
from slca_jax.toolverse.graph import Edge, Link, ToolGraph, merged

Suggest = Callable[[Sequence[Tool]], Iterable[Edge]]


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
  """A call that was accepted, and what it answered."""

  call: ToolCall
  output: Any


@dataclasses.dataclass(frozen=True, slots=True)
class _Source:
  """A field of a tool's answers that a parameter may be copied from; `score` orders the candidates."""

  tool: Tool
  field: str
  score: tuple[float, ...]
  reason: str


def infer(
  tools: Sequence[Tool], *, seen: Sequence[Seen] = (), suggest: Suggest | None = None, most_sources: int = 1
) -> ToolGraph:
  """The graph of the tools, not yet sanitised.

  A *parameter* edge says that a field of the source's answers is a parameter of the target: equal names and fitting
  types, where `id` in a hotel or in `get_hotel` is `hotel_id`; or a value that was seen in an answer and accepted as a
  key by another tool. A tool that must be given a value is no source of it, and the key of what a tool makes has none.
  A *semantic* edge goes from the tool whose
  verb comes before (look for, look at, make, change, take away) to the next one about the same thing.

  Args:
    seen: executed calls. They show fields that no schema tells, and keys under other names.
    suggest: more edges, such as a model's; `sanitise` judges them.
    most_sources: how many tools a parameter depends on; the walk waits for all of them, so more make longer tasks.

  ToolVerse, tool dependency graph.
  """
  fields = {tool.name: _fields(tool, seen) for tool in tools}
  accepted = _accepted(seen)
  edges: list[Edge] = []
  for target in tools:
    before = _semantic(target, tools)
    for parameter, schema in parameters(target).items():
      found = list(_sources(target, parameter, schema, tools, fields))
      found += list(_learned(target, parameter, tools, seen, accepted))
      edges += _chosen(target, parameter, found, before, most_sources)
    edges += [before] if before else []
  return ToolGraph(tuple(tool.name for tool in tools), merged([*edges, *(suggest(tools) if suggest else ())]))


def parsed(content: str) -> Any:
  """An observation's text as JSON, or as it is."""
  try:
    return json.loads(content)
  except (ValueError, RecursionError):
    return content


def _fields(tool: Tool, seen: Sequence[Seen]) -> dict[str, str]:
  """Path and type of what the tool answers, by its schema and by what it was seen to answer."""
  found = dict(schema_leaves(tool.returns))
  answered = [leaf for one in seen if one.call.name == tool.name for leaf in leaves(one.output)]
  filled = {leaf.path: json_type(leaf.value) for leaf in answered if leaf.value != ''}
  empty = {leaf.path for leaf in answered} - filled.keys()  # promised by the schema, and never more than ''
  return {path: kind for path, kind in (filled | found).items() if not is_boilerplate(path) and path not in empty}


def _sources(
  target: Tool, parameter: str, schema: Mapping[str, Any], tools: Sequence[Tool], fields: Mapping[str, dict[str, str]]
) -> Iterator[_Source]:
  """Fields that are called what the parameter is called."""
  asked = field_words(parameter, nouns(target.name))
  items = schema.get('items')
  kind = type_of(items) if type_of(schema) == 'array' and isinstance(items, Mapping) else type_of(schema)
  said = not is_key(asked) and (parameter not in required(target) or is_said_by_user(target, parameter))
  if said or is_own_key(target, parameter):
    return
  for tool in tools:
    if tool is target or _must_be_given(tool, asked):
      continue
    for path, given in fields[tool.name].items():
      if same_thing(asked, field_words(path, nouns(tool.name))) and fits(given, kind):
        yield _Source(tool, path, _score(tool, target, asked, path), f'{path} of {tool.name} is {parameter}')
        break


def _must_be_given(tool: Tool, asked: Words) -> bool:
  return any(same_thing(field_words(name, nouns(tool.name)), asked) for name in required(tool))


def _score(tool: Tool, target: Tool, asked: Words, path: str) -> tuple[float, ...]:
  """Looking for is the natural source, then looking at, then making; first of all the tool about the thing itself."""
  about = about_the_same(nouns(tool.name), asked[:-1]) if is_key(asked) else 0
  order = rank(tool.name)
  return (
    about > 0,
    -9 if order is None else -order,
    about_the_same(nouns(tool.name), nouns(target.name)),
    '[]' in path,
  )


def _accepted(seen: Sequence[Seen]) -> dict[tuple[str, str], set[str]]:
  """By tool and parameter, the values that were accepted as keys."""
  found: dict[tuple[str, str], set[str]] = {}
  for one in seen:
    for name, value in one.call.arguments.items():
      if _looks_like_a_key(value, name_words(name)):
        found.setdefault((one.call.name, name), set()).add(str(value))
  return found


def _learned(
  target: Tool,
  parameter: str,
  tools: Sequence[Tool],
  seen: Sequence[Seen],
  accepted: Mapping[tuple[str, str], set[str]],
) -> Iterator[_Source]:
  """Fields whose values the parameter was seen to accept."""
  values = accepted.get((target.name, parameter), set())
  known = {tool.name: tool for tool in tools}
  for one in seen if values else ():
    source = known.get(one.call.name)
    if source is None or source is target:
      continue
    given = {str(leaf.value) for leaf in leaves(dict(one.call.arguments))}
    for leaf in leaves(one.output):
      if str(leaf.value) in values - given and not isinstance(leaf.value, bool):
        score = (True, *_score(source, target, name_words(parameter), leaf.path)[1:])
        reason = f'{leaf.value} at {leaf.path} of {source.name} was accepted as {parameter}'
        yield _Source(source, leaf.path, score, reason)
        break


def _looks_like_a_key(value: Any, name: Words) -> bool:
  """Whether equal values are no accident: a key's name, or letters with digits and no blanks. Dates are none."""
  if isinstance(value, bool) or not isinstance(value, str | int):
    return False
  if is_key(name):
    return len(str(value)) > 1
  text = str(value)
  return (
    len(text) > 3 and not any(c.isspace() for c in text) and any(map(str.isdigit, text)) and any(map(str.isalpha, text))
  )


def _chosen(
  target: Tool, parameter: str, found: list[_Source], before: Edge | None, most_sources: int
) -> Iterator[Edge]:
  """Edges of the best sources, and of the tool that comes before anyhow if it is one."""
  best: dict[str, _Source] = {}
  for source in sorted(found, key=lambda source: source.score, reverse=True):
    best.setdefault(source.tool.name, source)
  for place, (name, source) in enumerate(best.items()):
    if place < most_sources or (before is not None and before.source == name):
      yield Edge(name, target.name, 'parameter', source.reason, (Link(source.field, parameter),))


def _semantic(target: Tool, tools: Sequence[Tool]) -> Edge | None:
  """The edge from the tool about the same thing whose verb comes last before the target's."""
  own = rank(target.name)
  if own is None:
    return None
  earlier = [
    (order, shared, tool.name)
    for tool in tools
    if (order := rank(tool.name)) is not None and order < own
    if (shared := about_the_same(nouns(tool.name), nouns(target.name)))
  ]
  if not earlier:
    return None
  _, _, name = max(earlier, key=lambda one: one[:2])
  reason = f'{name} comes before {target.name}: both are about {" ".join(nouns(target.name))}'
  return Edge(name, target.name, 'semantic', reason)
