"""Which rewards each method trains on. All methods share the judge, the guard and the process score; a protocol decides
what stands in the tool and the outcome channel.
"""

import dataclasses
import inspect
import math
import statistics
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from slca_jax import own
from slca_jax.config import require
from slca_jax.dialogue import Scores, Status, Trajectory
from slca_jax.errors import JudgeFailure
from slca_jax.rewards.judge import Judge, Verdict
from slca_jax.rewards.outcome import action_reward, format_violated, outcome_rule, plan_reward, refusals, repeats
from slca_jax.rewards.process import Process, Weights, guarded, process_score
from slca_jax.rewards.turns import turn_rewards


@dataclasses.dataclass(frozen=True)
class Scoring:
  """What can be told to the rewards.

  Attributes:
    weights: parts of the process score.
    tool_weight: α, the tool reward's share in GRPO's total.
    guard: an omitted tool call replaces the summary reward by `penalty`.
    penalty: R_pen.
    judge_failure: score of an answer whose judge failed; None keeps it absent, 0.0 is the paper's value.
    success_at: bar of the process score for a success.
    outcome: what ToolPO's outcome is, the rule or a judge that says solved or unsolved.
    completeness: how RLTR's plan is rated, by the share of gold calls made or by a judge's mean over `samples`.
    referee: who says solved or unsolved: the model at the run's `referee`, or a rule that needs no endpoint.
    samples: how often a judge rates completeness.
    repeat_penalty: RLTR's price of a repeated call.
    error_penalty: RLTR's price of a refused call.
    violation_reward: RLTR's reward of a plan with broken format.
  """

  weights: Weights = dataclasses.field(default_factory=Weights)
  tool_weight: float = 1.0
  guard: bool = True
  penalty: float = -0.5
  judge_failure: float | None = None
  success_at: float = 0.9
  outcome: Literal['rule', 'judge'] = 'rule'
  completeness: Literal['rule', 'judge'] = 'rule'
  referee: Literal['endpoint', 'rule'] = 'endpoint'
  samples: int = 3
  repeat_penalty: float = 0.1
  error_penalty: float = 0.2
  violation_reward: float = -1.0

  def __post_init__(self) -> None:
    require(self.penalty < 0, f'penalty is {self.penalty}; an omitted tool call must cost something, so below 0')
    require(0 < self.success_at <= 1, f'success_at is {self.success_at}; it is a process score in (0, 1]')
    require(self.samples >= 1, f'samples is {self.samples}; a judge must be asked at least once')
    require(self.tool_weight >= 0, f'tool_weight is {self.tool_weight}; it cannot be negative')
    failure = self.judge_failure
    require(failure is None or 0 <= failure <= 1, f'judge_failure is {failure}; it is None or a score in [0, 1]')


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
  """What every protocol starts from. `summary`: the judge's score or an `omitted` call's penalty, None if absent."""

  trajectory: Trajectory
  process: Process
  summary: float | None
  omitted: bool
  options: Scoring


@dataclasses.dataclass(frozen=True, slots=True)
class Channels:
  """Rewards of the tool and the outcome channel.

  Attributes:
    refereed: one of them came from the second judge.
    parts: what they are made of, for metrics and rollouts.
  """

  tool: float | None
  outcome: float | None
  refereed: Verdict | None = None
  parts: Mapping[str, float] = dataclasses.field(default_factory=dict)


Referee = Callable[[int], Awaitable[Verdict]]  # k -> the second judge's verdict for its k-th sample; never raises
Protocol = Callable[[Seen, Referee], Awaitable[Channels]]


async def score(
  trajectory: Trajectory,
  judge: Judge,
  *,
  protocol: str = 'slca',
  options: Scoring | None = None,
  referee: Judge | None = None,
  seed: int = 0,
) -> Scores:
  """The rewards of one trajectory under one method's protocol; of a FAILED one, none.

  Of a guarded rollout (a tool was needed, no call was opened) R_tool = 0 and R_sum = total = R_pen, whatever the judge
  says.

  Args:
    trajectory: how the rollout went.
    judge: rates the final answer; it is asked for every rollout, guarded ones included.
    protocol: a key of PROTOCOLS, or one's own as FILE.py:NAME; of one that breaks both channels are None.
    options: defaults if None.
    referee: a second judge, for protocols that need one: solved or unsolved as 1 or 0, or a plan's completeness.
    seed: of the judges.

  Returns:
    Scores; a channel whose judge failed is None. `why` holds `process`, `success`, `verdict`, `judge_failed`,
    `referee`, `referee_failed` and `reported`: the channels as a report should show them, a penalty as 0; of one's own
    protocol also its `parts`, `reward_failed` and `reward_error`.

  Raises:
    ConfigError: the protocol is unknown, or its referee is missing.

  SLCA-GRPO (arXiv:2609.29050), apps. A.3-A.5 and C.4.
  """
  options = options or Scoring()
  check_protocol(protocol, options, has_referee=referee is not None)
  if trajectory.status is Status.FAILED:
    return Scores(why={'failed': trajectory.error})
  process = process_score(trajectory.turns, trajectory.task, weights=options.weights)
  verdict = await _ask(judge, trajectory, seed)
  omitted = options.guard and guarded(trajectory.turns, trajectory.task)
  judged = options.judge_failure if verdict.score is None else verdict.score
  seen = Seen(trajectory, process, options.penalty if omitted else judged, omitted, options)

  async def ask_referee(sample: int) -> Verdict:
    return await _ask(referee, trajectory, seed + sample) if referee else Verdict(None, reason='no referee')

  channels, error = await _channels(protocol, seen, ask_referee)
  tool = 0.0 if omitted else channels.tool
  scores = Scores(tool, seen.summary, channels.outcome, turn_rewards(trajectory), omitted)
  why = _why(scores, process, verdict, channels.refereed, options)
  if own.is_own(protocol):
    why |= {'parts': dict(channels.parts), 'reward_failed': bool(error), 'reward_error': error}
  return dataclasses.replace(scores, why=why)


def check_protocol(protocol: str, options: Scoring, *, has_referee: bool) -> None:
  """Raises ConfigError unless the protocol exists and has the judges it needs; for the first second of a run."""
  protocol_of(protocol)
  require(
    has_referee or not needs_referee(protocol, options), f'protocol {protocol!r} asks a second judge; give it a referee'
  )


def protocol_of(name: str) -> Protocol:
  """The protocol of that name, or one of one's own, as FILE.py:NAME, async or not.

  Raises:
    ConfigError: there is none, or its code cannot be loaded.
  """
  return own.find(name, PROTOCOLS, 'seen, referee', setting='method.protocol')


def needs_referee(protocol: str, options: Scoring) -> bool:
  """Whether a protocol asks a second judge behind an endpoint."""
  asked = options.referee == 'endpoint'
  needs = {'toolpo': asked and options.outcome == 'judge', 'execution': asked}
  return needs.get(protocol, protocol == 'rltr' and options.completeness == 'judge')


def needs_gold(protocol: str, options: Scoring) -> bool:
  """Whether a protocol compares a rollout's calls with gold calls; of one's own nobody knows, so False."""
  judged = {
    'summary_only': True,
    'execution': options.referee == 'endpoint',
    'rltr': options.completeness == 'judge',
  }
  return not (own.is_own(protocol) or judged.get(protocol, False))


async def by_process(seen: Seen, _: Referee) -> Channels:
  """Tool: the process score. Outcome: GRPO's total."""
  return Channels(seen.process.total, total(seen.process.total, seen))


async def by_execution(seen: Seen, referee: Referee) -> Channels:
  """Tool: solved or not, says the referee. Outcome: GRPO's total of it."""
  verdict = await referee(0)
  return Channels(verdict.score, total(verdict.score, seen), verdict)


async def by_summary(seen: Seen, _: Referee) -> Channels:
  """Outcome: the judge's score alone, for the ablation without a process reward."""
  return Channels(seen.process.total, seen.summary)


async def by_action(seen: Seen, referee: Referee) -> Channels:
  """Tool: ToolPO's action reward. Outcome: its rule, or the referee's solved or not."""
  turns, task = seen.trajectory.turns, seen.trajectory.task
  action = action_reward(turns, task)
  if seen.options.outcome == 'rule':
    return Channels(action, outcome_rule(turns, task))
  verdict = await referee(0)
  return Channels(action, verdict.score, verdict)


async def by_plan(seen: Seen, referee: Referee) -> Channels:
  """Tool: RLTR's plan reward. Outcome: GRPO's total of the process score, for comparison only."""
  turns, options = seen.trajectory.turns, seen.options
  if options.completeness == 'rule':
    rated = Verdict(action_reward(turns, seen.trajectory.task))
  else:
    rated = _mean([await referee(sample) for sample in range(options.samples)])
  plan = None
  if rated.score is not None:
    plan = plan_reward(
      rated.score,
      repeats=repeats(turns),
      errors=refusals(seen.trajectory),
      format_violation=format_violated(turns),
      repeat_penalty=options.repeat_penalty,
      error_penalty=options.error_penalty,
      violation_reward=options.violation_reward,
    )
  return Channels(plan, total(seen.process.total, seen), rated if options.completeness == 'judge' else None)


# Every estimator finds its rewards under its own name; 'execution' feeds slca or grpo.
PROTOCOLS: dict[str, Protocol] = {
  'slca': by_process,
  'grpo': by_process,
  'tara': by_process,
  'tara_margin': by_process,
  'slca_tara': by_process,
  'slca_tara_margin': by_process,
  'support': by_process,
  'guard_only': by_process,
  'tool_only': by_process,
  'execution': by_execution,
  'summary_only': by_summary,
  'toolpo': by_action,
  'rltr': by_plan,
}


def total(tool: float | None, seen: Seen) -> float | None:
  """GRPO's unified reward, None if a part is absent.

  R = α R_tool + R_sum, and R_pen where a needed call was omitted.

  SLCA-GRPO (arXiv:2609.29050), eqs. 21 and 29.
  """
  if seen.omitted:
    return seen.options.penalty
  if tool is None or seen.summary is None:
    return None
  return seen.options.tool_weight * tool + seen.summary


async def _channels(protocol: str, seen: Seen, referee: Referee) -> tuple[Channels, str]:
  """What the protocol fills the channels with, and the error of one's own: a reward that breaks ends no run."""
  function = protocol_of(protocol)
  if not own.is_own(protocol):
    return await function(seen, referee), ''
  try:
    found = function(seen, referee)
    found = await found if inspect.isawaitable(found) else found
    if not isinstance(found, Channels):
      raise TypeError(f'{protocol} returned {type(found).__name__}; it returns Channels')
    channels = dataclasses.replace(found, tool=_finite(found.tool), outcome=_finite(found.outcome))
    return dataclasses.replace(channels, parts={name: float(value) for name, value in found.parts.items()}), ''
  except Exception as error:
    return Channels(None, None), own.told(error)


def _finite(value: Any) -> float | None:
  number = None if value is None else float(value)
  if number is not None and not math.isfinite(number):
    raise ValueError(f'a reward is {number}; one that cannot be had is None')
  return number


async def _ask(judge: Judge, trajectory: Trajectory, seed: int) -> Verdict:
  """The judge's verdict; one that failed or is no number has the score None."""
  try:
    verdict = await judge.rate(trajectory, seed=seed)
  except JudgeFailure as error:
    return Verdict(None, reason=str(error))
  if verdict.score is not None and not math.isfinite(verdict.score):
    return Verdict(None, verdict.word, f'the score is {verdict.score}')
  return verdict


def _mean(verdicts: list[Verdict]) -> Verdict:
  """The mean of the verdicts that came, None if none did."""
  scores = [verdict.score for verdict in verdicts if verdict.score is not None]
  return Verdict(statistics.fmean(scores) if scores else None, reason=f'mean of {len(scores)} samples')


def _why(
  scores: Scores, process: Process, verdict: Verdict, refereed: Verdict | None, options: Scoring
) -> dict[str, Any]:
  channels = {'tool': scores.tool, 'summary': scores.summary, 'outcome': scores.outcome}
  if scores.guarded:
    channels = {name: None if value is None else max(0.0, value) for name, value in channels.items()}
  return {
    'process': dataclasses.asdict(process),
    'success': process.success(at=options.success_at),
    'verdict': dataclasses.asdict(verdict),
    'judge_failed': verdict.score is None,
    'referee': dataclasses.asdict(refereed) if refereed else None,
    'referee_failed': refereed is not None and refereed.score is None,
    'reported': channels,
  }
