"""Alarms over the numbers of a run: what is wrong, and what to try first."""

import collections
import dataclasses
import json
import logging
import math
import pathlib
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence

from slca_jax.train.diagnostic_settings import Diagnostics

Step = Mapping[str, float | None]


@dataclasses.dataclass(frozen=True, slots=True)
class Scale:
  """Groups and rollouts of a step, which shares are taken of."""

  groups: int
  rollouts: int


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
  """One alarm.

  Attributes:
    setting: of `Diagnostics`, the limit; '' for 0.
    value: of a step; None where it was not measured.
    advice: what to look at first.
    low: the alarm is for values below the limit, once a whole window is.
    smooth: the mean over the window is judged, not the last step alone.
  """

  setting: str
  value: Callable[[Step, Scale], float | None]
  advice: str
  low: bool = False
  smooth: bool = True


def _entropy(step: Step, _: Scale) -> float | None:
  """Mean over the tokens of both segments."""
  parts = [(step.get(f'{name}/entropy'), step.get(f'{name}/tokens')) for name in ('tool', 'summary')]
  known = [(entropy, tokens) for entropy, tokens in parts if entropy is not None and math.isfinite(entropy) and tokens]
  total = sum(tokens for _, tokens in known)
  return sum(entropy * tokens for entropy, tokens in known) / total if total else None


def _of(name: str) -> Callable[[Step, Scale], float | None]:
  return lambda step, _: step.get(name)


def _share(name: str, whole: str) -> Callable[[Step, Scale], float | None]:
  def value(step: Step, scale: Scale) -> float | None:
    count = step.get(name)
    return None if count is None else count / getattr(scale, whole)

  return value


_DEAD = (
  'these groups teach nothing. Take tasks that the policy solves sometimes (filter out those that it always or never '
  'solves), raise group_size or the temperature; '
)
RULES: dict[str, Rule] = {
  'entropy': Rule(
    'entropy',
    _entropy,
    'the policy hardly explores any more. Lower optimizer.learning_rate, raise objective.clip_high or objective.kl, go '
    'back to an earlier checkpoint; look for answers that are all alike in rollouts/',
    low=True,
  ),
  'kl': Rule(
    'kl',
    _of('kl'),
    'the policy has left the reference. Lower optimizer.learning_rate or raise objective.kl, and read the latest '
    'rollouts: is the reward still earned honestly?',
    smooth=False,
  ),
  'dead_tool_groups': Rule(
    'dead_groups',
    _share('tool/dead_groups', 'groups'),
    _DEAD + 'near the end of a run it means that tool use is learned',
  ),
  'dead_summary_groups': Rule(
    'dead_groups',
    _share('summary/dead_groups', 'groups'),
    _DEAD + 'or the judge tells answers apart too little: see reward/summary',
  ),
  'judge_failures': Rule(
    'judge_failures',
    _of('score/judge_failed'),
    'summaries go without a score. See llm/judge/* for the reasons: time limits, a reply without a verdict, max_tokens',
  ),
  'referee_failures': Rule(
    'judge_failures',
    _of('score/referee_failed'),
    'rollouts go without an outcome. See llm/referee/* for the reasons',
  ),
  'reward_failures': Rule(
    'judge_failures',
    _of('score/reward_failed'),
    'rollouts go without the reward that method.protocol names: it breaks. See reward_error in rollouts/',
  ),
  'failed_rollouts': Rule(
    'failed_rollouts',
    _share('status/failed', 'rollouts'),
    'their errors stand in rollouts/: prompts above rollout.limits.prompt_tokens, engines or worlds that break',
  ),
  'sampler_gap': Rule(
    'sampler_kl',
    _of('sampler/kl'),
    'the engine samples from another policy than the trainer computes. Compare temperature, dtype and chat template of '
    'the two, sampler/turn_* says from which turn on; set objective.importance_cap=2 to correct for what remains',
  ),
  'skipped_updates': Rule(
    '',
    _of('skipped_updates'),
    'updates had no finite gradient or no token to learn and were left out. See grad_norm, tool/tokens, summary/tokens',
    smooth=False,
  ),
}


class Alarms:
  """Judges every step by `RULES`. The numbers depend on the steps alone, so a resumed run tells the same."""

  def __init__(self, settings: Diagnostics, scale: Scale, *, history: Iterable[Step] = (), silent: bool = False):
    """Begins to watch.

    Args:
      settings: the limits.
      scale: of a step.
      history: the numbers of earlier steps, in order.
      silent: log nothing, as all hosts but the first.
    """
    self._settings, self._scale, self._silent = settings, scale, silent
    self._recent: collections.deque[Step] = collections.deque(history, maxlen=settings.window)
    self._warned: dict[str, int] = {}

  def __call__(self, step: int, numbers: Step) -> dict[str, float]:
    """`alarms/KIND` as 1 or 0 for all that was measured, and `gradient/norm_std` over the window; warns of the ones."""
    self._recent.append(numbers)
    out = {}
    for kind, rule in RULES.items():
      value, limit = self._value(rule), getattr(self._settings, rule.setting) if rule.setting else 0.0
      if value is None:
        continue
      wrong = value < limit if rule.low else not value <= limit  # what is no number is wrong
      out[f'alarms/{kind}'] = float(wrong)
      if wrong:
        self._warn(step, kind, rule, value, limit)
    norms = self._measured(_of('grad_norm'))
    return out | ({'gradient/norm_std': statistics.stdev(norms)} if len(norms) > 1 else {})

  def _value(self, rule: Rule) -> float | None:
    if not rule.smooth:
      return rule.value(self._recent[-1], self._scale)
    found = self._measured(rule.value)
    if not found or (rule.low and len(found) < self._settings.window):
      return None
    return statistics.fmean(found)

  def _measured(self, value: Callable[[Step, Scale], float | None]) -> list[float]:
    """The values over the window; what is no number is null in the file, and not there for a resumed run either."""
    found = (value(step, self._scale) for step in self._recent)
    return [one for one in found if one is not None and math.isfinite(one)]

  def _warn(self, step: int, kind: str, rule: Rule, value: float, limit: float) -> None:
    if self._silent or step - self._warned.get(kind, step - self._settings.quiet) < self._settings.quiet:
      return
    self._warned[kind] = step
    side = 'below' if rule.low else 'above'
    what = f'{kind} {value:.3g} is {side} {limit:g}' + (f' (diagnostics.{rule.setting})' if rule.setting else '')
    logging.warning('step %d: %s: %s', step, what, rule.advice)


def history(folder: pathlib.Path, count: int) -> Sequence[Step]:
  """The last `count` steps of a run's `metrics.jsonl`, without a line that a kill cut short; none without the file."""
  path = folder / 'metrics.jsonl'
  if not path.exists():
    return []
  with open(path, encoding='utf-8') as file:
    return [json.loads(line) for line in collections.deque(file, maxlen=count) if line.endswith('\n')]
