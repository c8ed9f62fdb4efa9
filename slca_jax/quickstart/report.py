"""Curves as PNG, a table in the terminal and one self-contained HTML page of a quickstart run."""

import base64
import html
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from slca_jax.dialogue import Scores, Trajectory

REGIMES = {'noisy': 'judge with zero-mean noise', 'biased': 'judge that likes visible work'}
COLOURS = {'slca': '#1f6f5c', 'grpo': '#b3541e', 'before': '#8a8a8a'}
COLUMNS = ('process', 'success', 'summary', 'tool_turns', 'calls')

Rollouts = tuple[Sequence[Trajectory], Sequence[Scores]]

_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Quickstart: what credit assignment changed</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse; margin: 1rem 0 }} td, th {{ padding: .2rem .8rem; text-align: right }}
th:first-child, td:first-child {{ text-align: left }} tr {{ border-bottom: 1px solid #ddd }}
img {{ max-width: 100% }}
pre {{ background: #f6f6f4; padding: .8rem; overflow-x: auto; white-space: pre-wrap }}
.tool {{ background: #e3f1ea }} .summary {{ background: #fbeee0 }}
</style>
<h1>What credit assignment changed</h1>
<p>One supervised policy, then {steps} steps of GRPO and of SLCA-GRPO with the same questions, seeds and budget. Greedy
on {heldout} held-out questions, scored by a judge that is neither noisy nor biased. Success is a process score of at
least 0.9.</p>
{table}
<img alt="curves" src="data:image/png;base64,{image}">
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
  """(label, result) of every evaluation, in the order of the run."""
  after = [(f'{regime} {method}', found) for regime in REGIMES for method, found in summary[regime].items()]
  return [('before', summary['before']), *after]


def text_table(summary: Mapping[str, Any]) -> str:
  """The results as lines for a terminal."""
  head = f'{"":14}' + ''.join(f'{name:>12}' for name in COLUMNS)
  lines = [f'{label:14}' + ''.join(f'{found[name]:12.3f}' for name in COLUMNS) for label, found in rows(summary)]
  return '\n'.join([head, *lines])


def html_table(summary: Mapping[str, Any]) -> str:
  """The results as a table."""
  cell = lambda value: f'<td>{value:.3f}</td>'
  head = '<tr><th></th>' + ''.join(f'<th>{name.replace("_", " ")}</th>' for name in COLUMNS) + '</tr>'
  body = (
    f'<tr><td>{label}</td>{"".join(cell(found[name]) for name in COLUMNS)}</tr>' for label, found in rows(summary)
  )
  return f'<table>{head}{"".join(body)}</table>'


def success_curve(metrics: pathlib.Path) -> list[float]:
  """Share of successful rollouts among the sampled ones, by step."""
  lines = (json.loads(line) for line in metrics.read_text('utf-8').splitlines())
  return [line['score/success'] for line in lines if 'split' not in line]


def draw(curves: Mapping[str, Sequence[float]], summary: Mapping[str, Any], path: pathlib.Path) -> None:
  """A panel per judge: sampled success over the steps, and greedy success before and after as dots at the border."""
  import matplotlib

  matplotlib.use('Agg')
  from matplotlib import pyplot

  figure, panels = pyplot.subplots(1, len(REGIMES), figsize=(11, 4), sharey=True, layout='constrained')
  for panel, (regime, title) in zip(panels, REGIMES.items(), strict=True):
    for method, found in summary[regime].items():
      curve = curves[f'{regime}/{method}']
      panel.plot(range(1, len(curve) + 1), curve, color=COLOURS[method], label=f'{method}, sampled')
      panel.plot(len(curve) + 1, found['success'], 'o', color=COLOURS[method], label=f'{method}, greedy held-out')
    panel.axhline(summary['before']['success'], ls=':', color=COLOURS['before'], label='before, greedy held-out')
    panel.set(title=title, xlabel='step', ylim=(-0.02, 1.02))
    panel.spines[['top', 'right']].set_visible(False)
  panels[0].set_ylabel('success (process score ≥ 0.9)')
  panels[-1].legend(frameon=False, fontsize=8)
  figure.savefig(path, dpi=130)
  pyplot.close(figure)


def arithmetic(shown: Mapping[str, Rollouts], bias: float, bias_turns: int) -> str:
  """What the efficient path gains and loses under the biased judge, by kind of question, from this run's rollouts."""
  wasteful, efficient = _by_kind(shown['before']), _by_kind(shown['biased/slca'])
  lines = []
  for kind in sorted(wasteful.keys() & efficient.keys()):
    (tool0, turns0), (tool1, turns1) = wasteful[kind], efficient[kind]
    price = bias * (max(0.0, bias_turns - turns1) - max(0.0, bias_turns - turns0))
    lines.append(
      f'<tr><td>{html.escape(kind)}</td><td>{turns0:.2f} → {turns1:.2f}</td><td>{tool1 - tool0:+.3f}</td>'
      f'<td>{-price:+.3f}</td><td>{tool1 - tool0 - price:+.3f}</td></tr>'
    )
  head = '<tr><th>question</th><th>tool turns</th><th>Δ R_tool</th><th>Δ R_sum of the judge</th><th>Δ sum</th></tr>'
  note = (
    f'<p>The judge takes {bias:g} off for each tool turn short of {bias_turns}. Going from the path before to the path '
    'after SLCA-GRPO changes the process score by Δ R_tool and the same answer’s rating by Δ R_sum. Where their sum is '
    'negative, a unified reward prefers the waste; SLCA’s tool tokens never see R_sum.</p>'
  )
  return f'{note}<table>{head}{"".join(lines)}</table>'


def _by_kind(found: Rollouts) -> dict[str, tuple[float, float]]:
  """Mean process score and tool turns of the rollouts, by kind of question."""
  kinds: dict[str, list[tuple[float, int]]] = {}
  for trajectory, scores in zip(*found, strict=True):
    row = (scores.why.get('process', {}).get('total', 0.0), len(trajectory.tool_turns))
    kinds.setdefault(str(trajectory.task.meta.get('kind', 'question')), []).append(row)
  return {k: (sum(r[0] for r in rs) / len(rs), sum(r[1] for r in rs) / len(rs)) for k, rs in kinds.items()}


def side_by_side(shown: Mapping[str, Rollouts]) -> str:
  """The first question whose outcome SLCA-GRPO changed under the biased judge, as every policy answers it."""
  successes = [[bool(s.why.get('success')) for s in shown[name][1]] for name in ('before', 'biased/slca')]
  changed = [i for i, (a, b) in enumerate(zip(*successes, strict=True)) if b and not a]
  which = changed[0] if changed else 0
  question = html.escape(shown['before'][0][which].task.question)
  parts = [f'<h3>{label}</h3><pre>{_rollout(found[0][which])}</pre>' for label, found in shown.items()]
  return f'<p>{question}</p>{"".join(parts)}'


def _rollout(trajectory: Trajectory) -> str:
  lines = []
  for number, turn in enumerate(trajectory.turns, 1):
    segment = 'summary' if number == len(trajectory.turns) else 'tool'
    lines.append(f'<span class="{segment}">{html.escape(turn.text)}</span>')
    lines += [html.escape(f'  → {seen.content}') for seen in turn.observations]
  return '\n'.join(lines)
