"""Rollouts, rows and tables as pieces of HTML for the cells of a notebook: no scripts, styles of their own alone."""

import html
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from slca_jax.arrays import NONE, Segments, TokenBatch
from slca_jax.chat.template import Template
from slca_jax.data.show import Span
from slca_jax.report.credit import SEGMENT_NAMES
from slca_jax.report.reading import Sampled
from slca_jax.report.terminal import placed_spans
from slca_jax.report.texts import visible

# Red, green, blue of the report's page.
_COLOURS = {
  'tool': '20,117,109',
  'summary': '138,79,163',
  'world': '128,128,128',
  'up': '47,116,192',
  'down': '211,112,26',
}
_MEANING = {'prompt': 'prompt', 'tool': 'calls', 'summary': 'answer', 'world': 'written by the world'}
_FULL = 1.5  # deviations at which an advantage has its full colour
_LETTER = 0.009  # the share of a row that a letter takes
_TEXT = 'font:12px/1.8 ui-monospace,monospace;white-space:pre-wrap;overflow-wrap:anywhere;margin:.4em 0'


def tokens_html(
  one: Sampled, kinds: Sequence[str], template: Template | None, *, advantages: Sequence[float] | None = None
) -> str:
  """A rollout token by token, coloured by segment; or by advantage, blue where it is reinforced and orange where not.

  Args:
    kinds: the segment of each run, as `segments_of` gives them.
    template: of the policy; None shows whole turns.
    advantages: of each run, as a `Credit` has them for this rollout.
  """
  spans = placed_spans(one, kinds, template)
  text = ''.join(_token(span, None if advantages is None or run < 0 else advantages[run]) for span, run in spans)
  return f'<div style="{_TEXT}">{text}</div>'


def legend_html() -> str:
  """What the colours of segments mean."""
  return f'<div style="{_TEXT}">{"  ".join(_token(Span(text, part), None) for part, text in _MEANING.items())}</div>'


def rows_html(batch: TokenBatch, segments: Segments) -> str:
  """The rows of a batch that hold anything, drawn to scale: whose token it is, in which rollout, at which positions."""
  prompt_BT, rollout_BT, position_BT = (
    np.asarray(array) for array in (batch.prompt_BT, batch.rollout_BT, batch.position_BT)
  )
  segment_BT = np.asarray(segments.segment_BT)
  rows = []
  for b in np.flatnonzero((prompt_BT >= 0).any(axis=1)):
    places = list(zip(prompt_BT[b], rollout_BT[b], segment_BT[b], position_BT[b], strict=True))
    rows += [
      f'<b>row {b}</b>',
      _stripe('token', places, lambda p, r, s, _: _part(p, r, s), lambda part, _: str(_MEANING.get(part, part))),
      _stripe('rollout', places, lambda p, r, *_: (p, r), lambda key, _: _owner(key)),
      _stripe('position', places, lambda p, r, *_: (p, r), _range),
    ]
  return f'<div style="font:11px/1.5 ui-monospace,monospace">{"".join(rows)}</div>'


def table_html(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
  """A table; numbers have three digits behind the point, None is a dash."""
  cells = lambda row, tag: ''.join(f'<{tag} style="text-align:left">{_cell(value)}</{tag}>' for value in row)
  body = ''.join(f'<tr>{cells(row, "td")}</tr>' for row in rows)
  return f'<table><tr>{cells(head, "th")}</tr>{body}</table>'


def _token(span: Span, advantage: float | None) -> str:
  text = html.escape(visible(span.text))
  if advantage is None:
    return f'<span style="{_style(span.part)}">{text}</span>'
  strength = min(1.0, abs(advantage) / _FULL)
  colour = f'background:rgba({_COLOURS["up" if advantage > 0 else "down"]},{0.65 * strength:.2f})'
  edge = f'border-bottom:2px solid rgb({_COLOURS.get(span.part, _COLOURS["world"])})'
  shown = text.replace('\n', '⏎\n')  # a line's end is a token like others, and learned like them
  return f'<span title="{advantage:+.3f}" style="{colour};{edge}">{shown}</span>'


def _style(part: str) -> str:
  weak = 'opacity:.6' if part in ('prompt', 'world') else ''
  return f'background:rgba({_COLOURS[part]},.3);{weak}' if part in _COLOURS else weak


def _stripe(
  label: str,
  places: Sequence[tuple[Any, ...]],
  key_of: Callable[..., Any],
  text_of: Callable[[Any, tuple[int, int]], str],
) -> str:
  """One line to scale: a box for every stretch of tokens of one key. `text_of` takes the key and its positions."""
  boxes = []
  for key, stretch in itertools.groupby(places, lambda place: key_of(*place)):
    stretch = list(stretch)
    text = html.escape(text_of(key, (int(stretch[0][3]), int(stretch[-1][3]))))
    fits = len(stretch) >= _LETTER * len(text) * len(places)
    wide = f'flex:{len(stretch)} 0 0;overflow:hidden;white-space:nowrap;border-left:1px solid rgba(128,128,128,.5)'
    colour = _style(key) if isinstance(key, str) else ''
    boxes.append(f'<span title="{text}, {len(stretch)} tokens" style="{wide};{colour}">{text if fits else ""}</span>')
  return f'<div style="display:flex"><span style="flex:0 0 5.5em">{label}</span>{"".join(boxes)}</div>'


def _part(prompt: int, rollout: int, segment: int) -> str:
  if prompt < 0:
    return 'padding'
  if segment != NONE:
    return SEGMENT_NAMES[int(segment)]
  return 'prompt' if rollout < 0 else 'world'


def _owner(key: tuple[int, int]) -> str:
  prompt, rollout = key
  return '' if prompt < 0 else f'prompt {prompt}' if rollout < 0 else str(rollout)


def _range(key: tuple[int, int], span: tuple[int, int]) -> str:
  return '' if key[0] < 0 else f'{span[0]}–{span[1]}'


def _cell(value: Any) -> str:
  if value is None:
    return '—'
  return html.escape(visible(f'{value:.3f}' if isinstance(value, float | np.floating) else str(value)))
