"""Ids of prompts and demonstrations, and of what the world writes between two sampled turns.

All wording is the chat template's. Ids that were sampled are never rendered again: what follows them is the text that
the template writes after an assistant turn, whatever that turn says, encoded once. A template that edits history (Qwen3
drops old reasoning) therefore cannot change what was trained on.
"""

import functools
import hashlib
import json
import logging
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slca_jax.chat.calls import parse, render
from slca_jax.dialogue import Message, Observation, Tool, ToolCall, check_context
from slca_jax.errors import DataError, TemplateError
from slca_jax.surrogates import mended

_MARK = 'ZQassistantQZ'  # stands for what was sampled while the template writes around it
_QUESTION = Message('user', 'question')
_TOOL = Tool('probe_tool', 'probe', {'type': 'object', 'properties': {'key': {'type': 'string'}}})
_CALLS = (ToolCall('probe_tool', {'key': 'zqcall1'}), ToolCall('probe_tool', {'key': 'zqcall2'}))
_SEEN = (Message('tool', 'zqseen1'), Message('tool', 'zqseen2'))
_CACHED = 512
_CUT = '\n[...]\n'  # stands for the middle of an observation that is too long
_CHARS_PER_TOKEN = 16  # generous; only bounds how much of a huge observation is encoded at all

_INTRODUCTION = """# Functions

These functions are at hand, one JSON description per line:
<tools>
{tools}
</tools>

To call one, write a block with its name and a JSON object of arguments. Calls that don't depend on each other may \
stand in one message, a block each:
<tool_call>
{{"name": "some_function", "arguments": {{"some_parameter": "some value"}}}}
</tool_call>"""


class Piece(NamedTuple):
  """A stretch of a dialogue's ids, and whether a policy writes them."""

  tokens: tuple[int, ...]
  learnable: bool


class Template:
  """A tokenizer and its chat template: messages to ids and ids to text.

  Attributes:
    stop_ids: ids that end an assistant turn; the first one is the template's own.
    vocab_size: one more than the largest id that has a text.
    native: the chat template has tools and calls that rollouts read; if not, tools and results are text of messages.
  """

  def __init__(self, tokenizer: Any, *, options: Mapping[str, Any] | None = None, stop_ids: Sequence[int] = ()):
    """Wraps a transformers fast tokenizer. `options` go to the chat template (`enable_thinking`, `date_string`, …).

    Raises:
      TemplateError: there is no chat template, or a dialogue with two parallel calls does not come out whole.
    """
    self._tokenizer = tokenizer
    self._backend: Any = getattr(tokenizer, 'backend_tokenizer', None)
    if self._backend is None:
      raise TemplateError(f'{type(tokenizer).__name__} is no fast tokenizer; save it with a tokenizer.json')
    # Both stand in the file of a tokenizer that somebody trained with, and would cut or fill what is encoded here.
    self._backend.no_truncation()
    self._backend.no_padding()
    if not tokenizer.chat_template and 'chat_template' not in (options or {}):
      raise TemplateError(
        'the tokenizer has no chat template; take the one of its family that follows instructions, or give a template '
        "as model.template={'chat_template': '…'}"
      )
    self._options = dict(options or {})
    if 'date_string' in str(self._options.get('chat_template', tokenizer.chat_template)):
      self._options.setdefault('date_string', '26 Jul 2024')  # Llama 3.1's; 3.2 writes today's: prompts would change
    self._known = frozenset(tokenizer.get_vocab().values())
    self.vocab_size = max(self._known) + 1
    self._encode = functools.lru_cache(_CACHED)(self._encode_text)
    if not self._encode(_QUESTION.content):  # without its files a tokenizer has the special tokens alone
      raise TemplateError(
        f'the tokenizer makes no ids of {_QUESTION.content!r}; its files are not all there: tokenizer.json, or '
        'vocab.json and merges.txt'
      )
    self._reply = functools.lru_cache(_CACHED)(self._after)
    self.native = self._has_tools()
    self._header = self._text([_QUESTION], (), generate=True)
    self._end = self._find_end()
    self._check()
    declared = [*stop_ids, *([] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id])]
    self.stop_ids = tuple(dict.fromkeys([self._encode(self._end)[0], *declared]))

  def prompt(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> tuple[int, ...]:
    """Ids of the dialogue so far and of the header under which the assistant writes next."""
    return self._encode(self._text(messages, tools, generate=True))

  def prompt_length(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> int:
    """How many ids `prompt` has; for prompts that are met once, of which nothing is remembered."""
    return len(self._encode_text(self._text(messages, tools, generate=True)))

  def reply(self, observations: Sequence[Observation], sampled: Sequence[int]) -> tuple[int, ...]:
    """Ids the world writes after the `sampled` ids of a turn: results of its calls in order, then the next header.

    They start with what separates messages if the policy ended its turn, and end the turn first if it did not (it
    stopped at `</tool_call>`, or at another stop token than the template's).
    """
    return self.follow([Message('tool', seen.content) for seen in observations], sampled)

  def follow(self, messages: Sequence[Message], sampled: Sequence[int]) -> tuple[int, ...]:
    """Ids of messages of any role but the assistant's after the `sampled` ids of a turn, then the next header."""
    tokens = self._encode(self._reply(tuple(messages)))
    return tokens[1:] if sampled and sampled[-1] == self.stop_ids[0] else tokens

  def turn(self, message: Message) -> tuple[int, ...]:
    """Ids of an assistant message as a policy samples them: content, call blocks, end of turn."""
    header, text = self._header, self._text([_QUESTION, message], (), generate=False)
    if not text.startswith(header):
      raise TemplateError(
        f'the assistant message {message.content[:80]!r} does not follow its header {header[-60:]!r}; '
        'set the template options (enable_thinking) to what the demonstrations do'
      )
    return self._encode(text[len(header) : text.rindex(self._end) + len(self._end)])

  def dialogue(
    self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, context: int | None = None
  ) -> list[Piece]:
    """Pieces whose ids and learnable marks are those of a rollout that said the same.

    Args:
      messages: a dialogue that ends with an assistant message.
      context: how many leading messages are the prompt; by default those before the first assistant message. Later
        assistant messages are learnable unless they say otherwise, everything between them is not.

    Raises:
      DataError: the dialogue does not end with an assistant message, two of them stand next to each other, or the
        context does not end where one begins.
    """
    roles = [message.role for message in messages]
    if not roles or roles[-1] != 'assistant':
      raise DataError(f'a demonstration ends with an assistant message; the roles here are {roles}')
    context = roles.index('assistant') if context is None else context
    check_context(roles, context)
    pieces, pending = [Piece(self.prompt(messages[:context], tools), False)], []
    for index, message in enumerate(messages[context:], context):
      if message.role != 'assistant':
        pending.append(message)
        continue
      if index > context:
        if not pending:
          raise DataError(f'messages {index - 1} and {index} are both by the assistant; merge them into one')
        pieces.append(Piece(self._encode(self._reply(tuple(pending)))[1:], False))
      pieces.append(Piece(self.turn(message), message.learn))
      pending = []
    return pieces

  @functools.cached_property
  def needed_ids(self) -> frozenset[int]:
    """The ids of a dialogue with tools, calls and results, and those that end a turn: no rollout does without."""
    dialogue = [_QUESTION, Message('assistant', 'words', _CALLS), *_SEEN, Message('assistant', 'words')]
    pieces = self.dialogue(dialogue, (_TOOL,))
    return frozenset([*self.stop_ids, *(token for piece in pieces for token in piece.tokens)])

  @functools.cached_property
  def digest(self) -> str:
    """A hash of the tokenizer, the chat template and its options: equal ones give equal ids."""
    rest = [self._tokenizer.chat_template, self._options, self.stop_ids]
    return hashlib.sha256((self._backend.to_str() + json.dumps(rest, sort_keys=True, default=str)).encode()).hexdigest()

  @functools.cached_property
  def separator(self) -> tuple[int, ...]:
    """Ids that the template writes after the token that ends an assistant turn, whatever follows; often one newline."""
    after = self._text([_QUESTION, Message('assistant', _MARK)], (), generate=False).partition(_MARK)[2]
    ids = self._encode(after.removeprefix(self._end))
    return ids if self._encode(self._after((_QUESTION,)))[1:][: len(ids)] == ids else ()

  def encode(self, text: str) -> tuple[int, ...]:
    """Ids of a text as it stands, without special tokens around it."""
    return self._encode(text)

  def decode(self, ids: Sequence[int], *, stops: bool = False) -> str:
    """Text of ids, stop tokens left out unless `stops`; an id without a text reads as U+FFFD."""
    out, stretch = [], []
    for token in ids:
      if token in self._known:
        if stops or token not in self.stop_ids:
          stretch.append(token)
        continue
      out += [self._backend.decode(stretch, skip_special_tokens=False), '\ufffd']
      stretch = []
    return ''.join([*out, self._backend.decode(stretch, skip_special_tokens=False)])

  def unknown(self, ids: Sequence[int]) -> int:
    """How many of the ids have no text: padding of the vocabulary, or beyond it."""
    return sum(token not in self._known for token in ids)

  def cut_observation(self, text: str, max_tokens: int) -> str:
    """`text` if it has at most `max_tokens` tokens, else as much of its head and tail as fits around a marker.

    At most 32 · max_tokens characters are looked at, so a huge observation costs no more than a long one.
    """
    window = _CHARS_PER_TOKEN * max_tokens
    huge = len(text) > 2 * window
    if not huge and len(self._encode_text(text)) <= max_tokens:
      return text
    head = self._spans(text[:window] if huge else text)
    tail = self._spans(text[-window:]) if huge else head
    start = len(text) - window if huge else 0
    keep = max_tokens - len(self._encode(_CUT))
    while keep > 0:
      first, last = head[: (keep + 1) // 2], tail[len(tail) - keep // 2 :]
      cut = text[: first[-1][1]] + _CUT + (text[start + last[0][0] :] if last else '')
      over = len(self._encode_text(cut)) - max_tokens  # tokens next to the cuts can come out differently
      if over <= 0:
        return cut
      keep -= over
    return ''

  def _spans(self, text: str) -> list[tuple[int, int]]:
    return self._backend.encode(mended(text), add_special_tokens=False).offsets

  def _encode_text(self, text: str) -> tuple[int, ...]:
    return tuple(self._backend.encode(mended(text), add_special_tokens=False).ids)

  def _after(self, messages: tuple[Message, ...]) -> str:
    """What stands after an assistant's words when `messages` follow: end of turn, messages, next header."""
    text = self._text([_QUESTION, Message('assistant', _MARK), *messages], (), generate=True)
    return text.partition(_MARK)[2]

  def _text(self, messages: Sequence[Message], tools: Sequence[Tool], *, generate: bool) -> str:
    if self.native:
      return self._apply([_native(message) for message in messages], tools, generate)
    return self._apply(_plain(messages, tools), (), generate)

  def _apply(self, messages: list[dict[str, Any]], tools: Sequence[Tool], generate: bool) -> str:
    described = [describe(tool) for tool in tools] or None
    try:
      return self._tokenizer.apply_chat_template(
        messages, tools=described, add_generation_prompt=generate, tokenize=False, **self._options
      )
    except Exception as error:  # a template is somebody's program: anything may come out of it
      roles = [message['role'] for message in messages]
      raise TemplateError(f'the chat template failed on roles {roles}: {type(error).__name__}: {error}') from error

  def _has_tools(self) -> bool:
    """Whether tools and calls can be left to the chat template."""
    asked = _native(_QUESTION)
    if _TOOL.name not in self._apply([asked], (_TOOL,), True):
      return False
    try:
      text = self._apply([asked, _native(Message('assistant', 'words', _CALLS))], (_TOOL,), False)
    except TemplateError as error:  # Llama 3.1 refuses two calls at once
      text = str(error)
    if parse(text.rpartition(_QUESTION.content)[2]).calls == _CALLS:
      return True
    logging.warning('tools, calls and results become text: the chat template writes no <tool_call>: %r', text[-150:])
    return False

  def _find_end(self) -> str:
    """The text of the token that ends an assistant turn."""
    after = self._after(_SEEN)
    if not after:
      raise TemplateError('the chat template leaves out what the assistant said; it cannot serve for rollouts')
    tokens = self._encode(after)
    end = self._tokenizer.convert_ids_to_tokens(tokens[0])
    if end not in self._tokenizer.get_added_vocab() or not after.startswith(end):
      raise TemplateError(f'no special token follows an assistant turn, but {after[:40]!r}; rollouts could not stop')
    if self._encode(after[len(end) :]) != tokens[1:]:
      raise TemplateError(f'the ids after {end!r} depend on what stands before; the tokenizer cannot append replies')
    return end

  def _check(self) -> None:
    """Raises TemplateError unless two parallel calls and their results come out whole and replies are suffixes."""
    asked = Message('assistant', 'words', _CALLS)
    full = self._text([_QUESTION, asked, *_SEEN], (_TOOL,), generate=True)
    after, opening = self._after(_SEEN), self._text([_QUESTION], (_TOOL,), generate=False)
    wanted = [call.arguments['key'] for call in _CALLS] + [seen.content for seen in _SEEN]
    places = [full.find(text) for text in wanted]
    if -1 in places or places != sorted(places):
      missing = [text for text, place in zip(wanted, places, strict=True) if place < 0]
      raise TemplateError(f'the chat template loses or reorders calls or results; not found: {missing}')
    if not full.endswith(after) or not full.startswith(opening):
      raise TemplateError(f'what follows a call is not always {after[:80]!r}; replies cannot be appended to rollouts')
    self.turn(asked)


def load_template(path: str | os.PathLike, *, options: Mapping[str, Any] | None = None) -> Template:
  """The template of a Hugging Face folder or hub name; the eos ids of its configs are stop ids as well."""
  from transformers import AutoTokenizer  # imported here: it loads torch where torch is installed
  from transformers.utils.hub import cached_file

  try:
    tokenizer = AutoTokenizer.from_pretrained(path)
  except (OSError, ValueError) as error:
    raise TemplateError(f'no tokenizer could be loaded from {os.fspath(path)!r}: {error}') from error
  names = 'generation_config.json', 'config.json'  # the second says where the first does not
  found = [cached_file(path, name, _raise_exceptions_for_missing_entries=False) for name in names]
  told = [json.loads(pathlib.Path(file).read_text('utf-8')).get('eos_token_id') for file in found if file]
  eos = next((ids for ids in told if ids is not None), ())
  return Template(tokenizer, options=options, stop_ids=[eos] if isinstance(eos, int) else eos)


def describe(tool: Tool) -> dict[str, Any]:
  """The tool as chat templates and endpoints take it."""
  function = {'name': tool.name, 'description': tool.description, 'parameters': tool.parameters}
  return {'type': 'function', 'function': function}


def _native(message: Message) -> dict[str, Any]:
  out: dict[str, Any] = {'role': message.role, 'content': message.content}
  if message.calls:
    out['tool_calls'] = [
      {'type': 'function', 'function': {'name': call.name, 'arguments': call.arguments}} for call in message.calls
    ]
  return out


def _plain(messages: Sequence[Message], tools: Sequence[Tool]) -> list[dict[str, Any]]:
  """The messages for a template that knows neither tools nor results: all of it as text of the other roles."""
  out: list[dict[str, Any]] = []
  if tools:
    lines = '\n'.join(json.dumps(describe(tool), ensure_ascii=False) for tool in tools)
    out.append({'role': 'system', 'content': _INTRODUCTION.format(tools=lines)})
  results = False
  for index, message in enumerate(messages):
    if message.role == 'tool':
      text = f'<tool_response>\n{message.content}\n</tool_response>'
      if results:
        out[-1]['content'] += f'\n{text}'
      else:
        out.append({'role': 'user', 'content': text})
    elif message.role == 'system' and index == 0 and out:
      out[0]['content'] = f'{message.content}\n\n{out[0]["content"]}'
    else:
      blocks = [render(call) for call in message.calls]
      out.append(
        {'role': message.role, 'content': '\n'.join([*([message.content] if message.content else []), *blocks])}
      )
    results = message.role == 'tool'
  return out
