"""What a model is asked about a graph and about a question, and how its replies are read and checked."""

import json
import re
from collections.abc import Sequence
from typing import Any

from slca_jax.dialogue import Tool
from slca_jax.errors import Unreadable
from slca_jax.llm.replies import Reply
from slca_jax.toolverse.graph import Edge
from slca_jax.toolverse.prompts import Messages, as_block, read_object
from slca_jax.toolverse.wording import Brief, Made, given_away, unstated

VERSIONS = {'question': 'question 2', 'edges': 'edges 2'}
MOST_CHARACTERS = 4000
_MOST_EDGES = 200
_REASON = 200

_USER = """You play people who ask an assistant for something. The assistant has tools; people don't know them, \
don't name them, and don't speak of calls, parameters or JSON. You write what such a person says, in the language of a \
message to a colleague: plain, concrete, without any value left out."""

_ORDER = 'You know how services are used, and in which order their tools make sense.'


def ask_question(brief: Brief) -> Messages:
  """The request of a user who wants the golden calls to happen."""
  said = [f'{message.role}: {message.content}' for message in brief.dialogue if message.role in ('user', 'assistant')]
  before = ['What was said so far:', *(line for line in said if not line.endswith(': ')), ''] if brief.dialogue else []
  steps = [[_told(made) for made in step] for step in brief.steps]
  wanted = brief.asked and f'At the end, the user wants to be told the {brief.asked[0]}, and asks for it by that name.'
  return _messages(
    _USER,
    '\n'.join(
      [
        *before,
        'What the assistant should do for the user, step by step; the actions of one step are independent:',
        '',
        as_block(steps),
        '',
        'Write what the user says so that exactly this is done.',
        '- State every value under "given" exactly as it is written there, digits and spelling included.',
        '- What stands under "found" is not known to the user: say in words where it comes from. Where "pick" says '
        'which one of several is meant, say it, with its value.',
        '- Leave room for no other action, and no choice but the one above.',
        *([f'- {wanted}'] if wanted else []),
        '',
        'Answer with one JSON object: {"question": "..."}',
      ]
    ),
  )


def read_question(reply: Reply, brief: Brief) -> str:
  """The question, if nobody would have to guess what it asks for.

  Raises:
    Unreadable: it leaves a value out, tells what must be found, names a tool, is empty or too long.
  """
  text = read_object(reply).get('question')
  if not isinstance(text, str) or not text.strip():
    raise Unreadable('the reply has no question')
  if len(text) > MOST_CHARACTERS:
    raise Unreadable(f'the question is too long: {len(text)} characters; {MOST_CHARACTERS} are taken')
  if missing := unstated(text, brief.steps):
    raise Unreadable(f'the question leaves out: {", ".join(map(repr, missing[:3]))}')
  if told := given_away(text, brief):
    raise Unreadable(f'the question tells what must be found: {", ".join(map(repr, told[:3]))}')
  unspoken = [tool.name for tool in brief.tools if '_' in tool.name or not tool.name.islower()]
  names = [name for name in unspoken if re.search(rf'\b{re.escape(name)}\b', text)]
  if names:
    raise Unreadable(f'the question names a tool: {names[0]}')
  return text.strip()


def ask_edges(tools: Sequence[Tool]) -> Messages:
  """Which tools make sense only after which others."""
  shown = [
    {
      'name': tool.name,
      'description': tool.description[:600],
      'parameters': sorted(tool.parameters.get('properties', {})),
    }
    for tool in tools
  ]
  return _messages(
    _ORDER,
    f"""These are the tools of one service:

{as_block(shown)}

Name the pairs of which the second tool makes sense only after the first: because it works on what the first one makes \
or finds, or because nobody would do the one without the other. Leave out what is merely usual, and pairs that follow \
from others. Most tools need at most one other.

Answer with one JSON object: {{"pairs": [{{"first": "tool", "then": "tool", "why": "a few words"}}]}}""",
  )


def read_edges(reply: Reply) -> list[dict[str, str]]:
  """The proposed pairs; `sanitise` says which of them can stay.

  Raises:
    Unreadable: there is no list of pairs of names.
  """
  pairs = read_object(reply).get('pairs')
  if not isinstance(pairs, list) or len(pairs) > _MOST_EDGES:
    raise Unreadable(
      'the reply has no list of pairs' if not isinstance(pairs, list) else f'too many pairs: {len(pairs)}'
    )
  for pair in pairs:
    if not isinstance(pair, dict) or not isinstance(pair.get('first'), str) or not isinstance(pair.get('then'), str):
      raise Unreadable(f'a pair is none: {json.dumps(pair)[:100]}')
  return [{name: str(pair.get(name) or '')[:_REASON] for name in ('first', 'then', 'why')} for pair in pairs]


def edge_of(pair: dict[str, str]) -> Edge:
  """A proposed pair as an edge; no value is said to travel along it."""
  return Edge(pair['first'], pair['then'], 'semantic', f'a model says: {pair["why"] or "first this"}')


def _told(made: Made) -> dict[str, Any]:
  """A golden call as its writer may know it: of values that answers give, only where they come from."""
  given, found = {}, {}
  for name, argument in made.arguments.items():
    origin = argument.origin
    if origin.kind != 'output':
      given[name] = argument.value
    else:
      found[name] = {'in the answer of': origin.source, **({'pick': f'the one {origin.pick}'} if origin.pick else {})}
  parts = {'given': given, 'found': found}
  return {'action': made.call.name, 'does': made.tool.description[:300]} | {n: p for n, p in parts.items() if p}


def _messages(system: str, user: str) -> Messages:
  return [{'role': 'system', 'content': system}, {'role': 'user', 'content': user}]
