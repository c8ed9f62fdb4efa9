"""A record as text for a terminal: coloured by who says it and which segment it is, marked where it is learned."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from slca_jax.chat.calls import render
from slca_jax.chat.template import Template, load_template
from slca_jax.data.formats.read import read
from slca_jax.data.formats.row import GOLD, Row
from slca_jax.data.samples import prompt_length
from slca_jax.dialogue import Dialogue, Message, Task
from slca_jax.errors import Refused

_RESET = '\x1b[0m'
# Segments are told apart by hue. What is learned is bold; every other token of it is underlined, so that borders show.
_STYLES = {'prompt': '2', 'world': '33', 'tool': '36', 'summary': '32', 'note': '35'}
_MEANING = {'prompt': 'prompt', 'world': 'written by the world', 'tool': 'calls', 'summary': 'answer'}
_MOST = 8  # tokens that may make up one character
_CONTROL = re.compile(r'[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]')  # and turns of direction


class Span(NamedTuple):
  """Text of one part, 'prompt', 'world', 'tool', 'summary' or 'note', and whether it is learned."""

  text: str
  part: str
  learned: bool = False


class Stream(Protocol):
  """Something that may be a terminal."""

  def isatty(self) -> bool:
    """Whether it is."""
    ...


def wants_color(stream: Stream, environment: Mapping[str, str]) -> bool:
  """Whether to colour what is written there: a terminal that can, and no NO_COLOR that says otherwise."""
  return stream.isatty() and not environment.get('NO_COLOR') and environment.get('TERM') != 'dumb'


def show_record(source: str, index: int, model: str, color: bool) -> str:
  """Record number `index` of a data set as `explain` gives it, by the template of `model`'s folder if that is not ''.

  Raises:
    Refused: there is no such record, it cannot be read or rendered, or the folder has no template.
  """
  row = next((row for place, row in enumerate(read(source, strict=False)) if place == index), None)
  if row is None:
    raise Refused(f'index is {index}; {source} has fewer records')
  return explain(row, load_template(model) if model else None, color=color)


def explain(row: Row, template: Template | None = None, *, color: bool = False) -> str:
  """The row as text: what it is, its tools, and what is said, token by token if there is a template.

  Args:
    color: with escape sequences; otherwise ⟦ ⟧ stand around what is learned.

  Raises:
    DataError, TemplateError: the template cannot render it.
  """
  lines = [f'{row.id}  ({row.source}:{row.line}, {row.format}{f", {row.subset}" if row.subset else ""})']
  if row.fault:
    return '\n'.join([*lines, f'cannot be used: {row.why}', ''])
  tools = row.tools
  spans: list[Span] = []
  if row.dialogue is not None:
    tools, spans = row.dialogue.tools, list(spans_of_dialogue(row.dialogue, template))
  elif row.task is not None:
    tools, spans = row.task.tools, list(spans_of_task(row.task, template))
  lines.append(f'tools: {", ".join(tool.name for tool in tools) or "none"}')
  if template is not None and row.dialogue is not None:
    lines.append(f'tokens: {len(spans)}, of which {sum(span.learned for span in spans)} are learned')
  return '\n'.join([*lines, legend(color=color), paint(spans, color=color), ''])


def spans_of_dialogue(dialogue: Dialogue, template: Template | None = None) -> Iterator[Span]:
  """The spans of a demonstration: one per token with a template, else one per message."""
  context = prompt_length(dialogue)
  if template is None:
    yield from _spoken(dialogue.messages[:context], 'prompt')
    for message in dialogue.messages[context:]:
      yield from _spoken([message], _part(message), learned=message.role == 'assistant' and message.learn)
    return
  said = [message for message in dialogue.messages[context:] if message.role == 'assistant']
  pieces = template.dialogue(dialogue.messages, dialogue.tools, context=dialogue.context)
  for number, piece in enumerate(pieces):  # the prompt, a turn, what the world says, a turn, …
    part = 'prompt' if not number else _part(said[number // 2]) if number % 2 else 'world'
    yield from (Span(text, part, piece.learnable) for text in token_texts(piece.tokens, template))


def spans_of_task(task: Task, template: Template | None = None) -> Iterator[Span]:
  """The spans of a task: its prompt, then its gold and what else is known of the answer as notes."""
  if template is None:
    yield from _spoken(task.messages, 'prompt')
  else:
    for text in token_texts(template.prompt(task.messages, task.tools), template):
      yield Span(text, 'prompt')
  for number, step in enumerate(task.gold, 1):
    yield Span(f'\ngold, step {number}:\n' + '\n'.join(map(render, step)), 'note')
  if GOLD in task.meta:
    yield Span(f'\ngold is not complete: {task.meta[GOLD]}', 'note')
  if task.answer is not None:
    yield Span(f'\nanswer: {task.answer}', 'note')
  if task.facts:
    yield Span(f'\nfacts: {json.dumps(task.facts, ensure_ascii=False)}', 'note')


def token_texts(tokens: Sequence[int], template: Template) -> Iterator[str]:
  """The text of each token, as it reads after the one before; '' for all but the last one of a character's tokens."""
  before: list[int] = []
  group: list[int] = []
  for token in tokens:
    group.append(token)
    known = template.decode(before, stops=True)
    text = template.decode([*before, *group], stops=True)[len(known) :]
    if text.endswith('\ufffd') and len(group) < _MOST:  # perhaps the start of a character
      yield ''
      continue
    yield text
    before, group = group, []
  if group:
    yield template.decode(group, stops=True)


def paint(spans: Iterable[Span], *, color: bool = False) -> str:
  """The spans as one text, in colours or with ⟦ ⟧ around what is learned."""
  return ''.join(_colored(spans) if color else _bracketed(spans))


def legend(*, color: bool = False) -> str:
  """What the colours or brackets say."""
  if not color:
    return '⟦ ⟧ stand around what is learned'
  parts = [f'\x1b[{_STYLES[part]}m{meaning}{_RESET}' for part, meaning in _MEANING.items()]
  return f'{", ".join(parts)}; \x1b[1mbold{_RESET}: learned'


def _colored(spans: Iterable[Span]) -> Iterator[str]:
  even = False
  for span in spans:
    if not span.text:
      continue
    even = span.learned and not even
    style = _STYLES[span.part] + (';1' if span.learned else '') + (';4' if even else '')
    # A line's colour ends with the line: pagers show each one for itself.
    yield '\n'.join(f'\x1b[{style}m{line}{_RESET}' if line else '' for line in _harmless(span.text).split('\n'))


def _bracketed(spans: Iterable[Span]) -> Iterator[str]:
  learned = False
  for span in spans:
    if span.learned != learned:
      yield '⟦' if span.learned else '⟧'
    learned = span.learned
    yield _harmless(span.text)
  if learned:
    yield '⟧'


def _harmless(text: str) -> str:
  """The text with control characters spelled out: data must not steer a terminal."""
  return _CONTROL.sub(lambda found: found[0].encode('unicode_escape').decode(), text)


def _spoken(messages: Iterable[Message], part: str, *, learned: bool = False) -> Iterator[Span]:
  for message in messages:
    yield Span(f'\n[{message.role}]\n', part)
    calls = [render(call) for call in message.calls]
    yield Span('\n'.join(filter(None, (message.content, *calls))), part, learned)


def _part(message: Message) -> str:
  if message.role != 'assistant':
    return 'world'
  return 'tool' if message.calls else 'summary'
