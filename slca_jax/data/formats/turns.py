"""Messages put in order: one by the assistant per turn, as many results as calls, an end that is the assistant's."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slca_jax.data.formats.row import BadRow
from slca_jax.data.formats.texts import shown
from slca_jax.dialogue import Dialogue, Message, Task, Tool


class Decoded(NamedTuple):
  """What a format's decoder makes of a record; ids that the record does not give are ''."""

  value: Dialogue | Task | tuple[Tool, ...]
  id: str = ''
  dialogue_id: str = ''
  subset: str = ''
  meta: dict[str, Any] = {}  # noqa: RUF012 (never written to)


def id_of(record: Mapping[str, Any], *keys: str) -> str:
  """The record's own id, the first one that is given under the keys (`uuid`, `id`), '' without one."""
  return str(next((record[key] for key in keys or ('uuid', 'id') if record.get(key) not in (None, '')), ''))


def demonstration(messages: Sequence[Message], tools: Sequence[Tool], *, joint: bool = False) -> Dialogue:
  """The demonstration of some messages, its id still ''. What the assistant says before the user does is prompt.

  Args:
    joint: one result for several calls is fine; otherwise there is one for each.

  Raises:
    BadRow: there is no question, a result or the end is missing, or something is out of place.
  """
  ordered = arrange(messages, joint=joint)
  roles = [message.role for message in ordered]
  if 'user' not in roles:
    raise BadRow('no_question', f'no message is by the user; the roles are {shown(roles)}')
  if roles[-1] != 'assistant':
    raise BadRow('unfinished', f'the last message is by the {roles[-1]}; a demonstration ends with the assistant')
  first = roles.index('user') + 1
  greeting = 'assistant' in roles[:first]
  if greeting and 'assistant' not in roles[first:]:
    raise BadRow('unfinished', 'the assistant says nothing after the question')
  return Dialogue('', tuple(tools), ordered, first if greeting else None)


def arrange(messages: Sequence[Message], *, joint: bool = False) -> tuple[Message, ...]:
  """The messages with neighbours by the assistant merged: prose and calls, and calls that were written one by one.

  Raises:
    BadRow: calls without results in the middle, results without calls, or another number of them than of calls; a turn
      of which a part alone is to be learned.
  """
  out: list[Message] = []
  for message in messages:
    if message.role == 'assistant' and out and out[-1].role == 'assistant':
      out[-1] = _merged(out[-1], message)
    else:
      out.append(message)
  _check_results(out, joint)
  return tuple(out)


def _merged(before: Message, after: Message) -> Message:
  if before.calls and (after.content or not after.calls):
    raise BadRow('results', f'{before.calls[0].name!r} was called and has no result before the next words')
  if before.learn != after.learn:
    raise BadRow('weight', 'one message of a turn is to be learned and another is not; a turn is learned as a whole')
  content = '\n\n'.join(filter(None, (before.content, after.content)))
  return dataclasses.replace(before, content=content, calls=before.calls + after.calls)


def _check_results(messages: Sequence[Message], joint: bool) -> None:
  expected = results = 0
  for index, message in enumerate([*messages, None]):
    if message is not None and message.role == 'tool':
      results += 1
      continue
    unanswered = message is None and results == 0  # a dialogue may end with calls
    if results != expected and not unanswered and not (joint and results == 1 and expected):
      raise BadRow('results', f'{expected} calls before message {index} have {results} results')
    expected, results = (len(message.calls) if message is not None else 0), 0
