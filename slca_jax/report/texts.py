"""Texts of tokens, shared by all rollouts of a page, and texts that nobody can hide anything in."""

import re
from collections.abc import Iterable, Sequence

from slca_jax.chat.template import Template
from slca_jax.data.show import token_texts
from slca_jax.dialogue import Turn

# Characters that steer what shows them: controls, turns of direction, what has no width, surrogates without a partner.
_HIDDEN = re.compile(
  '[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff'
  '\U000e0000-\U000e007f]'
)
_WORD = re.compile(r'\s*\S+|\s+')
_PICTURES = 0x2400  # ␀ and those after it


class Texts:
  """A table of token texts; a page holds each once and refers to it by its row."""

  def __init__(self, template: Template | None):
    self.rows: list[list[str | int]] = []  # [text, id], or [text] where no tokenizer is known
    self._template = template
    self._row_of: dict[tuple[str, int], int] = {}
    self._known: dict[tuple[int, ...], list[str]] = {}

  @property
  def exact(self) -> bool:
    """Whether a text is that of one token. Else it is a word."""
    return self._template is not None

  def turn(self, turn: Turn) -> list[int]:
    """Rows of what was sampled in a turn: one per token, or one per word if there is no tokenizer."""
    if self._template is None:
      return [self._row(word, -1) for word in _WORD.findall(turn.text)]
    if turn.tokens not in self._known:
      texts = list(token_texts(turn.tokens, self._template))
      if len(texts) > len(turn.tokens):  # what was left of a character that the turn did not finish
        texts[-2:] = [texts[-1]]
      self._known[turn.tokens] = texts
    return [self._row(text, token) for text, token in zip(self._known[turn.tokens], turn.tokens, strict=True)]

  def world(self, turn: Turn) -> str:
    """What the world wrote after a turn."""
    if self._template is not None and turn.reply:
      return visible(self._template.decode(turn.reply, stops=True))
    return visible('\n'.join(seen.content for seen in turn.observations))

  def prompt(self, ids: Sequence[int], fallback: Iterable[str]) -> str:
    """The text of a prompt."""
    if self._template is not None:
      return visible(self._template.decode(ids, stops=True))
    return visible('\n'.join(fallback))

  def _row(self, text: str, token: int) -> int:
    key = text, token
    if key not in self._row_of:
      self._row_of[key] = len(self.rows)
      self.rows.append([visible(text), token] if token >= 0 else [visible(text)])
    return self._row_of[key]


def visible(text: str) -> str:
  """The text with characters that steer or hide replaced by a sign for them; new lines and tabs stay."""
  return _HIDDEN.sub(_sign, text)


def _sign(found: re.Match[str]) -> str:
  code = ord(found[0])
  if code < 0x20:
    return chr(_PICTURES + code)
  return '␡' if code == 0x7F else f'⟨U+{code:04X}⟩'
