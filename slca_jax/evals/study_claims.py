"""What the paper claims, as contrasts between methods, and which of it the numbers of a study bear out."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from slca_jax.evals.statistics import Estimate

HOLDS, OPPOSITE, MIXED, OPEN, UNKNOWN = 'holds', 'the opposite', 'on average', 'cannot be told', 'not measured'
_TOOL_PATH = {'slca': 0.5, 'summary_to_tool': -0.5, 'tool_to_summary': 0.5, 'both_open': -0.5}
_SUMMARY_PATH = {'slca': 0.5, 'tool_to_summary': -0.5, 'summary_to_tool': 0.5, 'both_open': -0.5}
_INTERACTION = {'slca': 1.0, 'summary_to_tool': -1.0, 'tool_to_summary': -1.0, 'both_open': 1.0}
SUPPORT: Mapping[str, Mapping[str, float]] = {
  'closing summary → tool': _TOOL_PATH,
  'closing tool → summary': _SUMMARY_PATH,
  'interaction': _INTERACTION,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
  """A sentence and the number that it says is above 0: Σ weight · score over methods.

  Attributes:
    source: where the paper says it.
    measure: a score of held-out tasks, or `grad_std` of each seed's training.
    best_of: methods of which the best is taken off, chosen by its mean.
    close: it says instead that the number is no further from 0 than scores that are called close.
  """

  text: str
  source: str
  weights: Mapping[str, float]
  measure: str = 'success'
  best_of: Sequence[str] = ()
  close: bool = False


def _over(first: str, second: str) -> dict[str, float]:
  return {first: 1.0, second: -1.0}


CLAIMS = (
  Claim('SLCA succeeds more often than the unified advantage', 'table 1', _over('slca', 'grpo')),
  Claim('its process score is higher', 'table 1', _over('slca', 'grpo'), 'process'),
  Claim('the unified advantage has the higher summary score', 'D.1, 3B and 8B', _over('grpo', 'slca'), 'summary'),
  Claim('SLCA succeeds more often than ToolPO by rule', 'table 1', _over('slca', 'toolpo')),
  Claim('SLCA succeeds more often than ToolPO by a judge', 'table 9', _over('slca', 'toolpo_judge')),
  Claim('the rule serves ToolPO better than the judge', 'table 9', _over('toolpo', 'toolpo_judge')),
  Claim('SLCA succeeds more often than RLTR', 'table 1', _over('slca', 'rltr')),
  Claim('without the process reward success falls', 'table 2', _over('slca', 'summary_only')),
  Claim('and falls further than without SLCA', 'D.10', _over('grpo', 'summary_only')),
  Claim('closing the path summary → tool raises success', 'table 22', _TOOL_PATH),
  Claim('its effect exceeds that of tool → summary', 'table 22', _over('tool_to_summary', 'summary_to_tool')),
  Claim('opening tool → summary leaves success close to SLCA', 'D.9', _over('slca', 'tool_to_summary'), close=True),
  Claim(
    'no ratio of rewards brings the unified advantage to SLCA',
    'table 20',
    {'slca': 1.0},
    best_of=('grpo', 'ratio_0.5', 'ratio_2', 'ratio_3', 'ratio_5'),
  ),
  Claim(
    'without learned summary credit the process score stays close',
    'table 16',
    _over('slca', 'guard_only'),
    'process',
    close=True,
  ),
  Claim('without any, the guard included, success falls', 'table 16', _over('slca', 'tool_only')),
  Claim('uniform weights stay above the unified advantage', 'table 19', _over('uniform', 'grpo')),
  Claim(
    'the default weights are the best of those tried',
    'table 19',
    {'slca': 1.0},
    best_of=('uniform', 'name_heavy', 'value_heavy'),
  ),
  Claim('with solved or not as the reward SLCA stays ahead', 'table 25', _over('execution', 'execution_grpo')),
  Claim('gradient norms vary less under SLCA', 'figure 2', _over('grpo', 'slca'), 'grad_std'),
  Claim('turns of TARA gain by the lock (not a claim of the paper)', 'ours', _over('slca_tara', 'tara')),
)


def verdict(estimate: Estimate, by_seed: Mapping[int, float], *, close: float | None = None) -> str:
  """What a number and its interval say of a claim that it is above 0, or within ±`close` of it.

  HOLDS and OPPOSITE need the interval and every seed on one side of 0; with the interval alone it is MIXED. A claim of
  closeness holds where the whole interval is close, and its opposite where none of it is.
  """
  low, high = estimate.low, estimate.high
  if low is None or high is None:
    return UNKNOWN
  if close is not None:
    return HOLDS if -close <= low and high <= close else OPPOSITE if low > close or high < -close else OPEN
  if low > 0:
    return HOLDS if min(by_seed.values()) > 0 else f'{HOLDS} {MIXED}'
  if high < 0:
    return OPPOSITE if max(by_seed.values()) < 0 else f'{OPPOSITE} {MIXED}'
  return OPEN


def as_json(claim: Claim, regime: str, estimate: Estimate, by_seed: Mapping[int, float], said: str) -> dict[str, Any]:
  """A claim with the numbers that its verdict comes from."""
  return {
    'claim': claim.text,
    'source': claim.source,
    'judge': regime,
    'measure': claim.measure,
    'estimate': dataclasses.asdict(estimate),
    'by_seed': dict(by_seed),
    'verdict': said,
  }
