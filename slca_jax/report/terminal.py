"""A stored rollout as text for a terminal: who wrote what, which segment it is, and what each method gives to it."""

import pathlib
from collections.abc import Iterator, Sequence

from slca_jax.chat.template import Template
from slca_jax.data.show import Span, legend, paint, token_texts
from slca_jax.errors import DataError
from slca_jax.report.credit import Credit, credits_of, runs_of, segments_of
from slca_jax.report.page import template_of
from slca_jax.report.reading import Sampled, sampled_in, settings_of
from slca_jax.report.reasons import Json, reasons_of
from slca_jax.report.texts import visible

_CELL = 9  # characters of an advantage


def rollout_text(run: pathlib.Path, name: str, *, color: bool = False, width: int = 0) -> str:
  """The text of one stored rollout.

  Args:
    name: step, group and rollout as the report shows them, such as 12.3.1; groups count from 0, rollouts from 1.
    color: with escape sequences; otherwise ⟦ ⟧ stand around what is learned.
    width: characters that a line of the terminal holds, 0 if it does not matter.

  Raises:
    DataError: the name is none, or there is no such rollout.
  """
  parts = name.replace('·', '.').replace('/', '.').split('.')
  if len(parts) != 3 or not all(part.strip().isdecimal() for part in parts):
    raise DataError(f'rollout is {name!r}; it takes step.group.rollout, as in 1.0.1')
  step, group, place = map(int, parts)
  settings = settings_of(run)
  sampled = list(sampled_in(run, steps=(step,), most=1 << 30))
  groups = sorted({one.trajectory.group for one in sampled})
  if group not in groups:
    raise DataError(f'step {step} has no group {group}; its groups are {", ".join(map(str, groups)) or "none"}')
  siblings = [one for one in sampled if one.trajectory.group == group]
  at = next((i for i, one in enumerate(siblings) if one.trajectory.index == place - 1), None)
  if at is None:
    known = ', '.join(str(one.trajectory.index + 1) for one in siblings)
    raise DataError(f'step {step} has no rollout {place} in group {group}; the rollouts there are {known}')
  methods = credits_of(siblings, settings)
  kinds = segments_of([one.trajectory for one in siblings], unfinished=settings.objective.unfinished)[at]
  one, template = siblings[at], template_of(settings)
  why = reasons_of(one.trajectory, one.scores, settings.scoring.weights)
  lines = [_title(one), advantages_text(methods, at, kinds, width=width), '', legend(color=color)]
  return '\n'.join([*lines, paint(spans_of(one, kinds, template), color=color), '', reasons_text(why), ''])


def spans_of(one: Sampled, kinds: Sequence[str], template: Template | None) -> Iterator[Span]:
  """The spans of a rollout: one per token with a template, else one per turn."""
  return (span for span, _ in placed_spans(one, kinds, template))


def placed_spans(one: Sampled, kinds: Sequence[str], template: Template | None) -> Iterator[tuple[Span, int]]:
  """The spans of a rollout, each with the index of the run that it is part of, -1 if the policy did not draw it."""
  trajectory = one.trajectory
  run_of = {turn: run for run, turns in enumerate(runs_of(trajectory)) for turn in turns}
  if template is None:
    for message in trajectory.task.messages:
      yield Span(f'[{message.role}]\n{message.content}\n', 'prompt'), -1
  else:
    yield from ((Span(text, 'prompt'), -1) for text in token_texts(trajectory.prompt, template))
  for number, turn in enumerate(trajectory.turns):
    run = run_of.get(number, -1)
    kind = kinds[run] if run >= 0 else 'none'
    part = kind if kind != 'none' else 'note'
    texts = [turn.text] if template is None else token_texts(turn.tokens, template)
    yield from ((Span(text, part, learned=kind != 'none'), run) for text in texts)
    if template is not None:
      yield from ((Span(text, 'world'), -1) for text in token_texts(turn.reply, template))
    else:
      yield from ((Span(f'\n[tool]\n{seen.content}\n', 'world'), -1) for seen in turn.observations)


def advantages_text(methods: Sequence[Credit], at: int, kinds: Sequence[str], *, width: int = 0) -> str:
  """The advantages of one of the rollouts that `methods` are of: methods down, runs across, as many as fit."""
  heads = ['answer' if kind == 'summary' else f'turn {run + 1}' for run, kind in enumerate(kinds)]
  wide = max(10, *(len(method.label) + 1 for method in methods))
  fit = max(1, (width - wide) // _CELL) if width else len(heads)
  lines = []
  for start in range(0, len(heads) or 1, fit or 1):
    lines += [''] * bool(start)
    lines.append(f'{"advantage":{wide}}' + ''.join(f'{head:>{_CELL}}' for head in heads[start : start + fit]))
    for method in methods:
      cells = ''.join(f'{advantage:+{_CELL}.3f}' for advantage in method.advantages[at][start : start + fit])
      if not (start and method.absent):
        lines.append(f'{method.label:{wide}}' + (f'  {method.absent}' if method.absent else cells))
  return '\n'.join(lines)


def reasons_text(why: Json) -> str:
  """The reasons of a rollout's rewards, as `reasons_of` gives them."""
  return '\n'.join(_why(why))


def _title(one: Sampled) -> str:
  step, group, index = one.key
  guarded = ', omitted a needed call' if one.scores.guarded else ''
  error = f': {visible(one.trajectory.error)}' if one.trajectory.error else ''
  return f'step {step}, group {group}, rollout {index + 1}: {one.trajectory.status.value}{guarded}{error}'


def _why(why: Json) -> Iterator[str]:
  if not why['parts']:
    yield f'no rewards {why["failed"]}'
    return
  total = sum(part['score'] * part['weight'] for part in why['parts'])
  yield f'process score {total:.3f}'
  for part in why['parts']:
    yield f'  {part["name"]:9}{part["score"]:6.3f} × {part["weight"]:.2f}  {part["why"]}'
  for pair in why['matches']:
    made = f'turn {pair["turn"] + 1}' if pair['made'] else 'never made'
    yield f'  gold {pair["name"]}: {made}, keys {pair["key"]:.2f}, values {pair["value"]:.2f}'
    for row in pair['arguments']:
      if row['state'] != 'same':
        yield f'    {row["key"]}: gold {row.get("gold", "—")}, made {row.get("made", "—")}'
  for call in why['extra']:
    yield f'  not wanted, turn {call["turn"] + 1}: {call["name"]}'
  for fault in why['faults']:
    yield f'  turn {fault["turn"] + 1}: {fault["text"]}'
  judge = why['judge']
  score = 'no verdict' if judge['score'] is None else f'{judge["word"]} {judge["score"]:.2f}'
  yield f'judge: {score}{"; replaced by the penalty" if judge["guarded"] else ""}  {judge["reason"]}'
  if second := judge['referee']:
    score = 'no verdict' if second['score'] is None else f'{second["score"]:.2f}'
    yield f'second judge: {score}  {second["reason"]}'
