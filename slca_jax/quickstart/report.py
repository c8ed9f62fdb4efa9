"""Curves as PNG, a table in the terminal and one self-contained HTML page of a quickstart run."""

import base64
import html
import json
import math
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from slca_jax.dialogue import Scores, Trajectory
from slca_jax.quickstart.world import KINDS

METHODS = {'grpo': 'GRPO', 'slca': 'SLCA-GRPO'}
REGIMES = {'noisy': 'judge with zero-mean noise', 'biased': 'judge that likes visible work'}
COLOURS = {'slca': '#1f6f5c', 'grpo': '#b3541e', 'before': '#8a8a8a'}
COLUMNS = ('process', 'success', 'summary', 'tool_turns', 'calls')

Rollouts = tuple[Sequence[Trajectory], Sequence[Scores]]

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Quickstart: what credit assignment changed</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
.wide {{ overflow-x: auto }} .wide img {{ width: 100%; min-width: 44rem }}
table {{ border-collapse: collapse; margin: 1rem 0; font-variant-numeric: tabular-nums }}
td, th {{ padding: .2rem .7rem; text-align: right; white-space: nowrap }}
th:first-child, td:first-child {{ text-align: left; padding-left: 0 }} tr {{ border-bottom: 1px solid #ddd }}
@media (max-width: 40rem) {{ table {{ font-size: .8rem }} td, th {{ padding: .2rem .3rem }} }}
.rollouts {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 28rem), 1fr)); gap: 0 1rem }}
.rollouts div {{ min-width: 0 }} h3 {{ margin: 1rem 0 .3rem; font-size: 1rem }}
pre {{ background: #f6f6f4; margin: 0; padding: .6rem; font-size: .8rem; white-space: pre-wrap }}
.tool {{ background: #d9eee4 }} .summary {{ background: #fbe6cf }}
</style>
<h1>What credit assignment changed</h1>
<p>One supervised policy, then {steps} steps of GRPO and of SLCA-GRPO with the same questions, seeds and budget, under
two judges of the answer. The table is greedy decoding on {heldout} held-out questions, scored by a judge that is
neither noisy nor biased. Success is a process score of at least 0.9.</p>
<div class="wide">{table}</div>
<div class="wide"><img alt="Success over the steps, a panel per judge" src="data:image/png;base64,{image}"></div>
<h2>Why the biased judge misleads a unified reward</h2>
{arithmetic}
<h2>One question, before and after</h2>
<p><span class="tool">Tool segment</span> and <span class="summary">summary segment</span> of one held-out question.</p>
{rollouts}
</html>
"""


def write(
  folder: pathlib.Path, summary: Mapping[str, Any], shown: Mapping[str, Rollouts], *, bias: float, bias_turns: int
) -> None:
  """Writes `curves.png` and `report.html` into the folder of a run.

  Args:
    summary: what `summary.json` holds.
    shown: trajectories and scores of each evaluation, 'before' and by 'regime/method'; of the same questions in order.
    bias: what the biased judge takes off for every tool turn short of `bias_turns`.
  """
  curves = {
    f'{regime}/{method}': success_curve(folder / regime / method / 'metrics.jsonl')
    for regime in REGIMES
    for method in summary[regime]
  }
  draw(curves, summary, folder / 'curves.png')
  heldout, steps = len(shown['before'][0]), max(map(len, curves.values()))
  page = _PAGE.format(
    steps=steps,
    heldout=heldout,
    table=html_table(summary),
    image=base64.b64encode((folder / 'curves.png').read_bytes()).decode(),
    arithmetic=arithmetic(shown, bias, bias_turns),
    rollouts=side_by_side(shown),
  )
  (folder / 'report.html').write_text(page, 'utf-8')


def rows(summary: Mapping[str, Any]) -> list[tuple[str, Mapping[str, float]]]:
  """(name, result) of every evaluation, in the order of the run: 'before', then 'regime/method'."""
  after = [(f'{regime}/{method}', found) for regime in REGIMES for method, found in summary[regime].items()]
  return [('before', summary['before']), *after]


def title(name: str) -> str:
  """How people call an evaluation."""
  regime, _, method = name.partition('/')
  return f'{METHODS.get(method, method)}, {regime} judge' if method else f'{regime}: SFT only'


def text_table(summary: Mapping[str, Any]) -> str:
  """The results as lines for a terminal."""
  head = f'{"":14}' + ''.join(f'{column:>12}' for column in COLUMNS)
  lines = [f'{name:14}' + ''.join(f'{found[column]:12.3f}' for column in COLUMNS) for name, found in rows(summary)]
  return '\n'.join([head, *lines])


def html_table(summary: Mapping[str, Any]) -> str:
  """The results as a table."""
  head = '<tr><th></th>' + ''.join(f'<th>{column.replace("_", " ")}</th>' for column in COLUMNS) + '</tr>'
  cells = lambda found: ''.join(f'<td>{found[column]:.3f}</td>' for column in COLUMNS)
  body = ''.join(f'<tr><td>{title(name)}</td>{cells(found)}</tr>' for name, found in rows(summary))
  return f'<table>{head}{body}</table>'


def success_curve(metrics: pathlib.Path) -> list[float]:
  """Share of successful rollouts among the sampled ones, by step; NaN where every rollout failed."""
  lines = (json.loads(line) for line in metrics.read_text('utf-8').splitlines())
  return [line.get('score/success', math.nan) for line in lines]


def draw(curves: Mapping[str, Sequence[float]], summary: Mapping[str, Any], path: pathlib.Path) -> None:
  """A panel per judge: sampled success over the steps, and greedy success before and after as dots at the border."""
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot

  figure, panels = pyplot.subplots(1, len(REGIMES), figsize=(11, 4), sharey=True, layout='constrained')
  for panel, (regime, title) in zip(panels, REGIMES.items(), strict=True):
    for method, found in summary[regime].items():
      curve = curves[f'{regime}/{method}']
      panel.plot(range(1, len(curve) + 1), curve, color=COLOURS[method], label=f'{METHODS[method]}, sampled')
      label = f'{METHODS[method]}, greedy held-out'
      panel.plot(len(curve) + 1, found['success'], 'o', color=COLOURS[method], label=label)
    panel.axhline(summary['before']['success'], ls=':', color=COLOURS['before'], label='before, greedy held-out')
    panel.set(title=title, xlabel='step', ylim=(-0.02, 1.02))
    panel.spines[['top', 'right']].set_visible(False)
  panels[0].set_ylabel('success (process score ≥ 0.9)')
  figure.legend(*panels[0].get_legend_handles_labels(), loc='outside lower center', ncols=5, frameon=False, fontsize=8)
  figure.savefig(path, dpi=130)
  pyplot.close(figure)


def arithmetic(shown: Mapping[str, Rollouts], bias: float, bias_turns: int) -> str:
  """What the efficient path gains and loses under the biased judge, by kind of question, from this run's rollouts."""
  before, after = (_by_kind(shown[name], bias_turns) for name in ('before', 'biased/slca'))
  lines = []
  for kind in sorted(before.keys() & after.keys(), key=lambda kind: (*KINDS, kind).index(kind)):
    (tool0, turns0, short0), (tool1, turns1, short1) = before[kind], after[kind]
    gain, price = tool1 - tool0, bias * (short1 - short0)
    lines.append(
      f'<tr><td>{html.escape(kind)}</td><td>{turns0:.2f} → {turns1:.2f}</td>'
      f'<td>{gain:+.3f}</td><td>{-price:+.3f}</td><td>{gain - price:+.3f}</td></tr>'
    )
  head = '<tr><th>question</th><th>tool turns</th><th>Δ R_tool</th><th>Δ R_sum</th><th>Δ sum</th></tr>'
  note = (
    f'<p>The judge takes {bias:g} off for each tool turn short of {bias_turns}. Going from the path before to the path '
    'after SLCA-GRPO changes the process score by Δ R_tool and the same answer’s rating by Δ R_sum. Where their sum is '
    'negative, a unified reward prefers the waste; SLCA’s tool tokens never see R_sum.</p>'
    '<p>Questions: one, two or three plain look-ups; a chain asks for a price by company, whose ticker must be found '
    'first; mixed asks for a chain and a plain look-up.</p>'
  )
  return f'{note}<div class="wide"><table>{head}{"".join(lines)}</table></div>'


def _by_kind(found: Rollouts, bias_turns: int) -> dict[str, list[float]]:
  """Mean process score, tool turns and turns short of `bias_turns`, by kind of question; of rollouts with a score."""
  kinds: dict[str, list[tuple[float, ...]]] = {}
  for trajectory, scores in zip(*found, strict=True):
    if 'process' in scores.why:
      turns = len(trajectory.tool_turns)
      row = (scores.why['process']['total'], turns, max(0, bias_turns - turns))
      kinds.setdefault(str(trajectory.task.meta.get('kind', 'question')), []).append(row)
  return {kind: [statistics.fmean(column) for column in zip(*table, strict=True)] for kind, table in kinds.items()}


def side_by_side(shown: Mapping[str, Rollouts]) -> str:
  """The first question whose outcome SLCA-GRPO changed under the biased judge, as every policy answers it."""
  successes = [[bool(s.why.get('success')) for s in shown[name][1]] for name in ('before', 'biased/slca')]
  changed = [i for i, (a, b) in enumerate(zip(*successes, strict=True)) if b and not a]
  which = changed[0] if changed else 0
  question = html.escape(shown['before'][0][which].task.question)
  parts = [f'<div><h3>{title(name)}</h3><pre>{_rollout(found[0][which])}</pre></div>' for name, found in shown.items()]
  return f'<p><b>{question}</b></p><div class="rollouts">{"".join(parts)}</div>'


def _rollout(trajectory: Trajectory) -> str:
  lines = []
  for number, turn in enumerate(trajectory.turns, 1):
    segment = 'summary' if number == len(trajectory.turns) else 'tool'
    lines.append(f'<span class="{segment}">{html.escape(turn.text)}</span>')
    lines += [html.escape(f'  → {seen.content}') for seen in turn.observations]
  return '\n'.join(lines)
