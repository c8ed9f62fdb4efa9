"""What a user says who wants a trace to happen: by a template, and what any other text must state."""

import dataclasses
import json
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from slca_jax.dialogue import Message, Observation, Tool, ToolCall
from slca_jax.rewards.judge import states
from slca_jax.toolverse.arguments import Argument, quoted
from slca_jax.toolverse.deterministic.words import split
from slca_jax.toolverse.fields import verb


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
  """A golden call: its tool, what it answered, and where its arguments come from."""

  tool: Tool
  call: ToolCall
  seen: Observation
  arguments: Mapping[str, Argument]


@dataclasses.dataclass(frozen=True, slots=True)
class Brief:
  """What a writer is told.

  Attributes:
    tools: all that are on offer.
    steps: the golden calls of this turn of the user, with answers and origins.
    dialogue: what was said before.
    asked: (what the user wants to hear at the end, its value), if anything.
    seed: of the choice of words.
  """

  tools: tuple[Tool, ...]
  steps: tuple[tuple[Made, ...], ...]
  dialogue: tuple[Message, ...] = ()
  asked: tuple[str, Any] | None = None
  seed: int | str = 0


Write = Callable[[Brief], str]
SHORT = 3  # characters; shorter values are equal by accident

_OPENERS = (
  'I need help with a few things.',
  'Please take care of the following.',
  'Could you do this for me?',
  'Here is what I would like done.',
)
_LATER = (
  'Thanks. Now go on with this.',
  'Good. There is more.',
  'Next I need the following.',
  'All right, one more round.',
)
_FIRST = ('First', 'To begin with', 'Start like this')
_THEN = ('Then', 'After that', 'Next', 'Once that is done')
_TOGETHER = ('and at the same time', 'and in the same step')
_CLOSERS = ('At the end, tell me the {}.', 'When all is done, let me know the {}.', 'Report the {} to me afterwards.')
_WITH = ('with {} {}', 'using {} {}', 'where {} is {}')


def template(brief: Brief) -> str:
  """The user's request, step by step: every value that the user must give, and how to find the others."""
  chance = random.Random(f'{brief.seed}/words')
  phrase = chance.choice(_WITH)
  sentences = [chance.choice(_LATER if brief.dialogue else _OPENERS)]
  for number, step in enumerate(brief.steps):
    lead = chance.choice(_THEN if number else _FIRST) if len(brief.steps) > 1 else ''
    actions = [_action(made, phrase) for made in step]
    text = f', {chance.choice(_TOGETHER)} '.join(actions)
    sentences.append(f'{lead}: {text}.' if lead == _FIRST[-1] else f'{lead}, {text}.' if lead else f'{_capital(text)}.')
  if brief.asked:
    sentences.append(chance.choice(_CLOSERS).format(brief.asked[0]))
  return ' '.join(sentences)


def report(steps: Sequence[tuple[Made, ...]], asked: tuple[str, Any] | None) -> str:
  """What the assistant says when a turn of the user is dealt with."""
  done = ', '.join(named(made.call.name) for step in steps for made in step)
  return f'Done: {done}.' + (f' The {asked[0]} is {asked[1]}.' if asked else '')


def unstated(text: str, steps: Sequence[tuple[Made, ...]]) -> tuple[str, ...]:
  """What a request fails to state: values that no answer gives, and how a record is told from others. Booleans and
  objects are not looked for: people put them into words."""
  wanted: list[str] = []
  for argument in (argument for step in steps for made in step for argument in made.arguments.values()):
    origin = argument.origin
    if origin.kind == 'output':
      wanted += [str(origin.named)] if origin.pick.startswith('whose') else []
    else:
      values = _items(argument.value)
      wanted += [str(v) for v in values if isinstance(v, str | int | float) and not isinstance(v, bool) and v != '']
  return tuple(value for value in dict.fromkeys(wanted) if not states(text, value))


def given_away(text: str, brief: Brief) -> tuple[str, ...]:
  """What a request states although it must be looked up: copied values, and what the user asks for. A value that the
  template states too is no secret: it stands in another one."""
  arguments = [argument for step in brief.steps for made in step for argument in made.arguments.values()]
  copied = [argument.value for argument in arguments if argument.origin.kind == 'output']
  hidden = [str(part) for value in copied for part in (value if isinstance(value, list) else [value])]
  hidden += [str(brief.asked[1])] if brief.asked else []
  plain = template(brief)
  long = [value for value in dict.fromkeys(hidden) if len(value) >= SHORT]
  return tuple(value for value in long if states(text, value) and not states(plain, value))


def asks_for(text: str, asked: tuple[str, Any] | None) -> bool:
  """Whether a request names what the user is to be told, as `Brief.asked` calls it."""
  return asked is not None and states(text, asked[0].partition(' from "')[0])


def _action(made: Made, phrase: str) -> str:
  given = [
    phrase.format(_label(name), _shown(argument.value))
    for name, argument in made.arguments.items()
    if argument.origin.kind != 'output'
  ]
  copied: dict[tuple[str, str], list[str]] = {}
  for name, argument in made.arguments.items():
    if argument.origin.kind == 'output':
      copied.setdefault((argument.origin.source, argument.origin.pick), []).append(_label(name))
  taken = [
    f'the {" and the ".join(names)} from what "{named(source)}" answered{f" for the one {pick}" if pick else ""}'
    for (source, pick), names in copied.items()
  ]
  action = ' '.join([named(made.call.name), ' and '.join(given)]).strip()
  return f'{action}, taking {" and ".join(taken)}' if taken else action


def named(tool_name: str) -> str:
  """A tool's name as words to do; one without a verb is something to use."""
  spaced = ' '.join(split(tool_name))
  return spaced if verb(tool_name) else f'use {spaced}'


def _label(parameter: str) -> str:
  return ' '.join(split(parameter)) or parameter


def _shown(value: Any) -> str:
  if isinstance(value, list) and value and not any(isinstance(one, list | dict) for one in value):
    return ', '.join(map(_shown, value))
  if isinstance(value, list | dict):  # what is in which list must be told
    return json.dumps(value, ensure_ascii=False)
  return ('yes' if value else 'no') if isinstance(value, bool) else quoted(value)


def _items(value: Any) -> Iterator[Any]:
  """What stands in a list and in the lists inside of it; else the value itself."""
  for one in value if isinstance(value, list) else ():
    yield from _items(one)
  if not isinstance(value, list):
    yield value


def _capital(text: str) -> str:
  return text[:1].upper() + text[1:]
