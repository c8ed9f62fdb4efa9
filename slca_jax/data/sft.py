"""Demonstrations as ids: what of them is learned, by the same template and the same rule as a rollout's mask."""

import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Literal

import numpy as np

from slca_jax.chat.loose import loosely_equal
from slca_jax.chat.template import Piece, Template
from slca_jax.dialogue import Dialogue, Message, ToolCall
from slca_jax.errors import DataError

ANSWER = '<answer>'  # what a planner says instead of an answer

_ERROR = re.compile(  # as our own refusals begin, exceptions that were printed, and what MCP servers say
  r'\s*(?:[\w.]*(?:error|exception)|traceback[^:\n]*|not executed|(?:mcp error|error executing tool)[^:\n]*)\s*(?::|$)',
  re.IGNORECASE,
)


class BadMask(DataError):
  """Nothing of a dialogue would be learned, or all of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Learned:
  """What of a demonstration is learned. By default all that the assistant says after the prompt, as in rollouts.

  Attributes:
    part: 'planner' learns the calls and to end with `<answer>`, 'summary' the final answer alone (RLTR's two models).
    wasteful: learn turns of which every call was refused or had been made before; False keeps them as context.
    separator: learn what the template writes behind the end of a turn, too. Rollouts never do: the world writes it.
  """

  part: Literal['all', 'planner', 'summary'] = 'all'
  wasteful: bool = True
  separator: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
  """A demonstration's ids: the prompt, and what follows with the marks of what is learned."""

  prompt: np.ndarray
  tokens: np.ndarray
  learned: np.ndarray

  @property
  def size(self) -> int:
    """Tokens in all."""
    return len(self.prompt) + len(self.tokens)


def encode(dialogue: Dialogue, template: Template, *, separator: bool = False) -> Example:
  """The ids of a demonstration up to the last one that is learned; its marks are those of a rollout that said the same.

  Raises:
    BadMask: nothing is learned, or there is nothing but what is learned.
    DataError, TemplateError: the template cannot render the dialogue.
  """
  pieces = template.dialogue(dialogue.messages, dialogue.tools, context=dialogue.context)
  prompt, *rest = _separated(pieces, template.separator) if separator else pieces
  tokens = np.array([token for piece in rest for token in piece.tokens], np.int32)
  learned = np.repeat(np.array([piece.learnable for piece in rest], bool), [len(piece.tokens) for piece in rest])
  if not learned.any():
    raise BadMask(f'dialogue {dialogue.id}: no token of it is learned; leave it out, or learn one of its turns')
  if not prompt.tokens:
    raise BadMask(f'dialogue {dialogue.id}: its prompt has no tokens, so there is nothing to answer')
  end = np.flatnonzero(learned)[-1] + 1
  return Example(np.array(prompt.tokens, np.int32), tokens[:end], learned[:end])


def _separated(pieces: list[Piece], separator: tuple[int, ...]) -> list[Piece]:
  """The pieces with what follows the end of a turn given to the turn."""
  out = pieces[:1]
  for turn, gap in zip(pieces[1::2], [*pieces[2::2], Piece(separator, False)], strict=True):
    size = len(separator) if gap.tokens[: len(separator)] == separator else 0
    out += [turn, Piece(gap.tokens[:size], turn.learnable), Piece(gap.tokens[size:], False)]
  return out


def select(dialogue: Dialogue, learned: Learned) -> Dialogue:
  """The dialogue with the marks of its messages, and for a planner its last one, as the settings say.

  Raises:
    BadMask: no turn of it would be learned.
    DataError: it ends with calls where its answer is to be learned.
  """
  out = dialogue if learned.wasteful else without_waste(dialogue)
  out = {'all': lambda: out, 'planner': lambda: planner(out), 'summary': lambda: summary(out)}[learned.part]()
  if not any(out.messages[index].learn for index in _turns(out)):
    raise BadMask(f'dialogue {dialogue.id}: none of its turns is learned; leave it out, or learn one of them')
  return out


def planner(dialogue: Dialogue) -> Dialogue:
  """The dialogue as RLTR's planner says it: calls, then `<answer>` where the answer stood; earlier answers are context.

  A dialogue that ends with calls keeps them as its end.

  SLCA-GRPO (arXiv:2609.29050), app. C.4.
  """
  *earlier, _ = _turns(dialogue)
  out = _unlearned(dialogue, [index for index in earlier if not dialogue.messages[index].calls])
  *messages, last = out.messages
  if last.calls:
    return out
  return dataclasses.replace(out, messages=(*messages, Message('assistant', ANSWER, learn=last.learn)))


def summary(dialogue: Dialogue) -> Dialogue:
  """The dialogue of which the final answer alone is learned, by the model that answers for a planner.

  Raises:
    DataError: it ends with calls.
  """
  *rest, last = _turns(dialogue)
  if dialogue.messages[last].calls:
    raise DataError(f"dialogue {dialogue.id} ends with calls; part 'summary' learns answers, so leave it out")
  return _unlearned(dialogue, rest)


def without_waste(dialogue: Dialogue) -> Dialogue:
  """The dialogue with its wasteful turns as context: every call of theirs was refused, or repeats one of its user turn.

  Calls repeat one another if names are equal and arguments loosely; after a call that writes, nothing is a repetition.
  """
  return _unlearned(dialogue, list(_wasteful(dialogue)))


def refused(result: str) -> bool:
  """Whether what a tool returned reads as an error: it begins as one, or is a JSON object that says so."""
  if _ERROR.match(result):
    return True
  if not result.lstrip().startswith('{'):
    return False
  try:
    value = json.loads(result)
  except (ValueError, RecursionError):
    return False
  flags = (value.get(key) for key in ('error', 'errors', 'isError', 'is_error'))
  return any(flags) or value.get('success') is False or value.get('status') in ('error', 'failed')


def _wasteful(dialogue: Dialogue) -> Iterator[int]:
  writes = {tool.name for tool in dialogue.tools if tool.writes}
  seen: list[ToolCall] = []
  for index, message in enumerate(dialogue.messages):
    if message.role == 'user':
      seen = []
    answers = _results(dialogue.messages, index)
    known = [any(_same(call, old) for old in seen) for call in message.calls]
    faults = [refused(answer) for answer in answers] if len(answers) == len(message.calls) else [False] * len(known)
    if message.calls and all(old or fault for old, fault in zip(known, faults, strict=True)):
      yield index
    seen = [] if any(call.name in writes for call in message.calls) else [*seen, *message.calls]


def _results(messages: tuple[Message, ...], index: int) -> list[str]:
  """What the calls of a message returned."""
  out = []
  for message in messages[index + 1 :]:
    if message.role != 'tool':
      break
    out.append(message.content)
  return out


def _same(call: ToolCall, other: ToolCall) -> bool:
  return call.name == other.name and loosely_equal(call.arguments, other.arguments)


def _turns(dialogue: Dialogue) -> list[int]:
  """Where the assistant speaks after the prompt."""
  speaks = [index for index, message in enumerate(dialogue.messages) if message.role == 'assistant']
  start = speaks[0] if dialogue.context is None else dialogue.context
  return [index for index in speaks if index >= start]


def _unlearned(dialogue: Dialogue, turns: list[int]) -> Dialogue:
  if not turns:
    return dialogue
  messages = list(dialogue.messages)
  for index in turns:
    messages[index] = dataclasses.replace(messages[index], learn=False)
  return dataclasses.replace(dialogue, messages=tuple(messages))
