"""The tables of a study: scores by method and judge, support control, sweeps, gradients, claims, failures."""

from collections.abc import Mapping, Sequence
from typing import Any

from slca_jax.evals import study_claims
from slca_jax.evals.statistics import Estimate
from slca_jax.evals.study_results import SFT, Study, read
from slca_jax.evals.study_settings import judge_of
from slca_jax.evals.tables import Cell, Table
from slca_jax.quickstart import breakeven
from slca_jax.rewards.process import Weights
from slca_jax.train.surroundings import JudgeSettings

__all__ = ['claims_as_json', 'read', 'tables']

SCORES = ('success', 'process', 'name', 'arguments', 'parallel', 'format', 'summary')
BEHAVIOUR = ('tool_turns', 'calls', 'no_call')


def tables(study: Study, failures: Mapping[str, str]) -> list[Table]:
  """All tables for which there is anything."""
  out = []
  for regime in study.regimes():
    out += [_scores(study, regime), _behaviour(study, regime), *_support(study, regime)]
  out += [*_sweep(study), *_breakeven(study), *_claims(study)]
  if failures:
    rows = tuple((name, said.splitlines()[-1] if said else '') for name, said in failures.items())
    out.append(Table('Runs that failed', ('run', 'what it said last'), rows, note='The same command tries them again.'))
  return out


def claims_as_json(study: Study) -> list[dict[str, Any]]:
  """Every claim under every judge with its verdict and the numbers behind it."""
  return [study_claims.as_json(*one) for one in _judged(study)]


def _scores(study: Study, regime: str) -> Table:
  baseline = study.config.baseline
  rows: list[tuple[Cell, ...]] = []
  for method in study.methods(regime):
    gain, _ = study.contrast(regime, {method: 1.0, baseline: -1.0}) if method != baseline else (None, {})
    seeds = len(study.seeds(regime, [method]))
    rows.append((method, seeds, *(study.spread(regime, method, name) for name in SCORES), gain))
  note = (
    f'Greedy on held-out tasks, by an undisturbed judge; mean ± sample standard deviation over seeds. The last column '
    f'is the difference to {baseline}, task by task, with its {_share(study)} bootstrap interval over tasks of all '
    'seeds, one that they share drawn with all its scores; seeds are not drawn anew, so it says nothing of other seeds.'
  )
  return Table(
    f'Judge {regime}: scores', ('method', 'seeds', *SCORES, f'success over {baseline}'), tuple(rows), note=note
  )


def _behaviour(study: Study, regime: str) -> Table:
  measures = (*BEHAVIOUR, 'grad_mean', 'grad_std')
  rows = tuple((method, *(study.spread(regime, method, name) for name in measures)) for method in study.methods(regime))
  columns = ('method', 'tool turns', 'calls', 'no call', 'gradient norm', 'its deviation over steps')
  return Table(f'Judge {regime}: behaviour and gradients', columns, rows)


def _support(study: Study, regime: str) -> list[Table]:
  cells = list(study_claims.SUPPORT['interaction'])
  if not study.seeds(regime, cells):
    return []
  rows = []
  for name, weights in study_claims.SUPPORT.items():
    rows.append((name, *(study.contrast(regime, weights, measure)[0] for measure in ('success', 'process', 'summary'))))
  note = (
    'From the four cells slca (both closed), summary_to_tool, tool_to_summary and both_open: main effects average the '
    f'two simple ones, the interaction is their difference, not halved. {_share(study)} intervals as above.'
  )
  columns = ('effect', 'success', 'process', 'summary')
  return [Table(f'Judge {regime}: support control', columns, tuple(rows), note=note)]


def _sweep(study: Study) -> list[Table]:
  methods = study.config.sweep_methods
  regimes = sorted({*study.config.sweep, *study.config.regimes}, key=_order)
  rows = []
  for regime in regimes:
    if not any((regime, method, seed) in study.runs for method in methods for seed in study.config.seeds):
      continue
    spreads = [study.spread(regime, method, 'success') for method in methods]
    gaps = [study.contrast(regime, {method: 1.0, methods[0]: -1.0})[0] for method in methods[1:]]
    rows.append((regime, *spreads, *gaps))
  columns = ('judge', *methods, *(f'{method} − {methods[0]}' for method in methods[1:]))
  return [Table('Success by how the judge is disturbed', columns, tuple(rows))] if study.config.sweep and rows else []


def _breakeven(study: Study) -> list[Table]:
  """What the efficient path gains and costs under each bias of the grid, on the quickstart's questions."""
  if study.config.world != 'quickstart':
    return []
  judges = [judge_of(regime) for regime in (*study.config.regimes, *study.config.sweep)]
  biases: dict[int, set[float]] = {}
  for judge in judges:
    if judge.get('bias'):
      liked_turns = int(judge.get('bias_turns', JudgeSettings().bias_turns))
      biases.setdefault(liked_turns, set()).add(judge['bias'])
  weights = study.config.quickstart.rl.scoring.weights
  return [_arithmetic(weights, turns, sorted(found)) for turns, found in sorted(biases.items())]


def _arithmetic(weights: Weights, liked_turns: int, biases: Sequence[float]) -> Table:
  rows = []
  for path in breakeven.paths(weights, liked_turns=liked_turns):
    sums = (path.gain - path.price(bias) for bias in biases)
    rows.append((path.kind, f'{path.wasteful_turns} → {path.efficient_turns}', path.gain, path.bias, *sums))
  columns = ('question', 'tool turns', 'Δ R_tool', 'breaks even at', *(f'Δ sum at {bias:g}' for bias in biases))
  note = (
    'Going from the demonstrations’ wasteful path to the efficient one, as the rewards compute it, the judge’s five '
    'words included. Where the sum is below 0, a unified reward prefers the waste.'
  )
  title = f'The arithmetic of a judge that takes its bias off for each tool turn short of {liked_turns}'
  return Table(title, columns, tuple(rows), note=note)


def _claims(study: Study) -> list[Table]:
  rows = []
  for claim, regime, estimate, by_seed, said in _judged(study):
    seeds = ' '.join(f'{value:+.3f}' for value in by_seed.values())
    rows.append((claim.text, claim.source, regime, claim.measure, estimate, seeds, said))
  note = (
    f'Each number is what the claim says is above 0, with a {_share(study)} interval over tasks of all seeds '
    f'(over seeds for gradients), and by seed. “{study_claims.HOLDS}” needs the interval and every seed above 0; '
    f'“{study_claims.OPPOSITE}” both below; “close” is within ±{study.config.close:g}. Claims are of '
    'SLCA-GRPO (arXiv:2609.29050) with Qwen models of 3B to 8B; this says whether they hold here.'
  )
  columns = ('claim', 'source', 'judge', 'of', 'number', 'by seed', 'verdict')
  return [Table('Claims', columns, tuple(rows), note=note)] if rows else []


def _judged(study: Study) -> list[tuple[study_claims.Claim, str, Estimate, dict[int, float], str]]:
  out = []
  for claim in study_claims.CLAIMS:
    if missing(study, claim):
      continue
    for regime in study.regimes():
      estimate, by_seed = study.of_claim(regime, claim)
      close = study.config.close if claim.close else None
      out.append((claim, regime, estimate, by_seed, study_claims.verdict(estimate, by_seed, close=close)))
  return out


def missing(study: Study, claim: study_claims.Claim) -> set[str]:
  """The methods of a claim that the study does not try."""
  return {*claim.weights, *claim.best_of} - {SFT, *study.config.methods}


def _share(study: Study) -> str:
  return f'{study.config.intervals.confidence:.0%}'


def _order(regime: str) -> tuple[Any, ...]:
  judge: Mapping[str, float] = judge_of(regime)
  return (judge.get('bias', 0.0), judge.get('noise', 0.0), regime)
