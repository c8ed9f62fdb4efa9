"""Context-action samples: what of a dialogue is prompt, and what a policy is to do."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from slca_jax.data.formats.row import task_of, turns_of
from slca_jax.dialogue import Dialogue, Message, Task


class Sample(NamedTuple):
  """A part of a dialogue: `context` leading messages are prompt, those up to `end` the action.

  `turn` counts the user's messages up to the question, from 1; `decomposed`: earlier turns are context.
  """

  context: int
  end: int
  turn: int
  decomposed: bool


def samples_of(dialogue: Dialogue, *, first: int = 2) -> list[Sample]:
  """The samples of a dialogue: itself if it has one turn, else its tool-calling turns from the `first` of them on.

  Earlier turns become context. What was cut from a dialogue before, with its history as context, is one turn. With 0
  for `first`, every dialogue is one sample. Turns of which nothing is to be learned are context alone.

  SLCA-GRPO (arXiv:2609.29050), C.1.
  """
  messages = dialogue.messages
  start = prompt_length(dialogue)
  later = [context for context in turns_of(dialogue) if context > start]
  if not later or not first:
    return [Sample(start, len(messages), _turn(messages, start), has_history(messages[:start]))]
  borders = [start, *later, len(messages) + 1]
  spans = [(context, _end(messages, after - 1)) for context, after in itertools.pairwise(borders)]
  calling = [span for span in spans if any(message.calls for message in messages[slice(*span)])]
  return [
    Sample(context, end, _turn(messages, context), True)
    for context, end in calling[first - 1 :]
    if teaches(messages[context:end])
  ]


def teaches(messages: Sequence[Message]) -> bool:
  """Whether anything that the assistant says is to be learned."""
  return any(message.role == 'assistant' and message.learn for message in messages)


def prompt_length(dialogue: Dialogue) -> int:
  """How many leading messages are the prompt: the context, or those before the first message by the assistant."""
  if dialogue.context is not None:
    return dialogue.context
  roles = [message.role for message in dialogue.messages]
  return roles.index('assistant') if 'assistant' in roles else len(roles)


def demonstration_of(dialogue: Dialogue, sample: Sample) -> Dialogue:
  """The demonstration of a sample; the dialogue itself if that is all of it."""
  if not sample.decomposed:
    return dialogue
  identity = _named(dialogue, sample)
  return dataclasses.replace(dialogue, id=identity, messages=dialogue.messages[: sample.end], context=sample.context)


def task_in(dialogue: Dialogue, sample: Sample) -> Task:
  """The task of a sample: its context, the calls of its action as gold, and its answer."""
  return dataclasses.replace(task_of(dialogue, context=sample.context), id=_named(dialogue, sample))


def has_history(prompt: Sequence[Message]) -> bool:
  """Whether a prompt holds an answered question; a greeting is none."""
  roles = [message.role for message in prompt]
  return 'user' in roles and 'assistant' in roles[roles.index('user') :]


def _end(messages: tuple[Message, ...], end: int) -> int:
  """Where the action ends among the first `end` messages: what stands behind the assistant's last answers nobody."""
  return next(index for index in range(end, 0, -1) if messages[index - 1].role == 'assistant')


def _named(dialogue: Dialogue, sample: Sample) -> str:
  """The dialogue's id, and the turn where several samples come from one dialogue."""
  whole = sample.end == len(dialogue.messages) and sample.context == prompt_length(dialogue)
  return dialogue.id if whole else f'{dialogue.id}/turn-{sample.turn}'


def _turn(messages: tuple[Message, ...], context: int) -> int:
  return sum(message.role == 'user' for message in messages[:context])
