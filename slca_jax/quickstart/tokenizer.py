"""A tokenizer made on the spot: byte-level BPE trained on demonstrations, with a chat template that names the tools."""

import re
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from slca_jax.chat.template import Template
from slca_jax.dialogue import Dialogue, Task
from slca_jax.quickstart.demonstrations import demonstrate

PAD, START, END = '<|endoftext|>', '<|im_start|>', '<|im_end|>'
SPECIALS = (PAD, START, END, '<tool_call>', '</tool_call>', '<tool_response>', '</tool_response>')

# Names and numbers stand alone; what lies between them may merge as a whole, so that a call costs five tokens.
PIECES = r'[A-Z][a-z]+|[A-Z]{3,}|\d+'

CHAT_TEMPLATE = """\
{%- if messages[0].role == 'system' or tools %}
{{- '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{- messages[0].content + ('\\n' if tools else '') }}{%- endif %}
{%- if tools %}
{{- 'tools:' }}
{%- for tool in tools %}
{%- set function = tool.function if tool.function is defined else tool %}
{{- ' ' + function.name + '(' + function.parameters.properties | join(', ') + ')' }}
{%- endfor %}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
{%- if message.role == 'tool' %}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
{%- elif message.role != 'system' or not loop.first %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- for call in message.tool_calls or [] %}
{%- set function = call.function if call.function is defined else call %}
{%- if message.content or not loop.first %}{{- '\\n' }}{%- endif %}
{{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' + function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""


def make_tokenizer(tasks: Iterable[Task]) -> PreTrainedTokenizerFast:
  """The tokenizer of the market: its merges come from demonstrations of `tasks`."""
  return tokenizer_of(Dialogue(task.id, task.tools, demonstrate(task)) for task in tasks)


def tokenizer_of(
  dialogues: Iterable[Dialogue], *, vocab_size: int = 1024, pieces: str = PIECES
) -> PreTrainedTokenizerFast:
  """A fast tokenizer whose merges come from the dialogues; whatever else it is given, it loses nothing.

  Args:
    vocab_size: upper bound; merging ends earlier if everything between two names has become one token.
    pieces: a pattern of what stands alone.
  """
  template = Template(_wrap(_untrained(pieces)))  # bytes are enough to render with
  texts = (_text(template, dialogue) for dialogue in dialogues)
  tokenizer = _untrained(pieces)
  # The trainer does not cut at special tokens as the encoder does; merges across them would never be used.
  specials = re.compile('|'.join(map(re.escape, SPECIALS)))
  trainer = trainers.BpeTrainer(
    vocab_size=vocab_size,
    special_tokens=list(SPECIALS),
    initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    show_progress=False,
  )
  tokenizer.train_from_iterator((piece for text in texts for piece in specials.split(text)), trainer)
  return _wrap(tokenizer)


def _text(template: Template, dialogue: Dialogue) -> str:
  pieces = template.dialogue(dialogue.messages, dialogue.tools)
  return ''.join(template.decode(piece.tokens, stops=True) for piece in pieces)


def _untrained(pieces: str) -> Tokenizer:
  """One token per byte, and one per special text."""
  alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
  tokenizer = Tokenizer(models.BPE({piece: index for index, piece in enumerate((*SPECIALS, *alphabet))}, []))
  tokenizer.add_special_tokens(list(SPECIALS))
  tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
    [pre_tokenizers.Split(Regex(pieces), 'isolated'), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
  )
  tokenizer.decoder = decoders.ByteLevel()
  return tokenizer


def _wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
  fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=PAD)
  fast.chat_template = CHAT_TEMPLATE
  return fast
