"""What a request tells and what must be looked up, once a trace is made: nobody needs to find what was told."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from slca_jax.toolverse.arguments import Argument, Origin, container, quoted
from slca_jax.toolverse.fields import Words, is_key, leaves, name_words
from slca_jax.toolverse.inference import parsed
from slca_jax.toolverse.invention import LABELS
from slca_jax.toolverse.wording import SHORT, Made

Known = tuple[str, Words]
Steps = tuple[tuple[Made, ...], ...]


def settled(steps: Sequence[Sequence[Made]]) -> Steps:
  """The steps with the origins that a request can have: what an answer gives is not told, what is told needs no answer.

  A copied value that the user gives to some call of the trace is given by the user wherever it occurs. One that its
  source only repeats from its own arguments comes from where that argument came. Of what is copied after that, the
  record it stands in is told apart from others by a value that holds none of them, else by its place in the list.
  """
  told: dict[Known, Origin] = {}
  for name, argument in (pair for step in steps for made in step for pair in made.arguments.items()):
    if argument.origin.kind != 'output':
      told |= dict.fromkeys(_known(name, argument.value), argument.origin)
  traced = _traced(steps, told)
  copied = {
    _text(argument.value[0] if isinstance(argument.value, list) else argument.value)
    for argument in (argument for step in traced for made in step for argument in made.arguments.values())
    if argument.origin.kind == 'output'
  }
  outputs = {made.call.name: parsed(made.seen.content) for step in traced for made in step}
  apart = lambda one: dataclasses.replace(one, origin=_told_apart(one.origin, outputs, copied))
  return tuple(tuple(_with(m, {name: apart(one) for name, one in m.arguments.items()}) for m in s) for s in traced)


def _traced(steps: Sequence[Sequence[Made]], told: dict[Known, Origin]) -> Steps:
  """The steps with each copied value where it was known first: told, or the first answer that did not repeat it."""
  given: dict[str, dict[Known, Origin]] = {}  # by tool, what its arguments were and where they came from

  def first(name: str, argument: Argument) -> Argument:
    known = next(iter(_known(name, argument.value)), None)
    if argument.origin.kind != 'output' or known is None:
      return argument
    origin = told.get(known) or given.get(argument.origin.source, {}).get(known) or argument.origin
    return Argument(argument.value, origin)

  out = []
  for step in steps:
    out.append(tuple(_with(made, {name: first(name, one) for name, one in made.arguments.items()}) for made in step))
    for made in out[-1]:
      pairs = made.arguments.items()
      given[made.call.name] = {known: one.origin for name, one in pairs for known in _known(name, one.value)}
  return tuple(out)


def _with(made: Made, arguments: Mapping[str, Argument]) -> Made:
  return dataclasses.replace(made, arguments=arguments)


def _known(name: str, value: Any) -> Iterator[Known]:
  """What somebody knows who was given the value of a parameter: of short values and booleans, under which name."""
  for leaf in leaves(value):
    last = leaf.path.replace('[]', '').rsplit('.', 1)[-1] or name
    text = _text(leaf.value)
    yield text, name_words(last) if len(text) < SHORT or isinstance(leaf.value, bool) else ()


def _text(value: Any) -> str:
  """A value as it is compared: 2 and 2.0 are one, and case makes no difference."""
  return str(int(value) if isinstance(value, float) and value.is_integer() else value).casefold()


def _told_apart(origin: Origin, outputs: dict[str, Any], copied: set[str]) -> Origin:
  """The origin with words that name its record among several, and the value in them."""
  if origin.kind != 'output' or origin.element is None:
    return origin
  pick, named = _pick(outputs[origin.source], container(origin.where), origin.element, copied)
  return dataclasses.replace(origin, pick=pick, named=named)


def _pick(output: Any, inside: str, element: int | str, copied: set[str]) -> tuple[str, Any]:
  found = [leaf for leaf in leaves(output) if leaf.path.startswith(inside) and leaf.place]
  elements = list(dict.fromkeys(leaf.place[0] for leaf in found))
  if len(elements) < 2:
    return '', None
  own = [leaf for leaf in found if leaf.place == (element,) and not is_key(name_words(leaf.path.rsplit('.', 1)[-1]))]
  own.sort(key=lambda leaf: not set(name_words(leaf.path.rsplit('.', 1)[-1])) & LABELS)
  for leaf in own:
    alike = [other for other in found if other.path == leaf.path and other.value == leaf.value]
    plain = not isinstance(leaf.value, bool) and 0 < len(str(leaf.value)) <= 60
    if len(alike) == 1 and plain and not _gives_away(_text(leaf.value), copied):
      label = ' '.join(name_words(leaf.path.removeprefix(inside).strip('.')))
      return f'whose {label} is {quoted(leaf.value)}', leaf.value
  return f'number {elements.index(element) + 1} in the list', elements.index(element) + 1


def _gives_away(text: str, copied: set[str]) -> bool:
  """Whether a text is one of the values, or holds one that is not there by accident."""
  return text in copied or any(len(value) >= SHORT and value in text for value in copied)
