"""The process score: how well a rollout's calls agree with the gold calls, from their tags to their parallelism."""

import dataclasses
import math
from collections.abc import Sequence

from slca_jax.chat.checks import checks_of
from slca_jax.config import require
from slca_jax.dialogue import Steps, Task, ToolCall, Turn
from slca_jax.rewards.matching import match, name_f1

_SLACK = 1e-9  # a score of exactly the threshold must not fail for how its parts round


@dataclasses.dataclass(frozen=True)
class Weights:
  """Shares of the five parts in the process score; the paper also tries 0.2 each."""

  format: float = 0.10
  name: float = 0.25
  key: float = 0.15
  value: float = 0.20
  parallel: float = 0.30

  def __post_init__(self) -> None:
    parts = dataclasses.astuple(self)
    require(min(parts) >= 0, f'process weights are {parts}; none may be negative')
    require(abs(sum(parts) - 1) < 1e-6, f'process weights {parts} sum to {sum(parts):g}; they must sum to 1')


@dataclasses.dataclass(frozen=True, slots=True)
class Process:
  """The five parts in [0, 1], their weighted sum, and the counts that they come from."""

  format: float
  name: float
  key: float
  value: float
  parallel: float
  total: float
  opens: int
  closes: int
  valid: int
  calls: int
  gold_calls: int

  @property
  def arguments(self) -> float:
    """ArgMatch: the mean of the key and value parts."""
    return (self.key + self.value) / 2

  def success(self, *, at: float = 0.9) -> bool:
    """Whether the score reaches the bar: Success@0.9."""
    return self.total >= at - _SLACK


def process_score(turns: Sequence[Turn], task: Task, *, weights: Weights = Weights()) -> Process:
  """The process score of a rollout against its task's gold calls.

  S_process = 0.10 S_fmt + 0.25 S_name + 0.15 S_key + 0.20 S_val + 0.30 S_par

  Key and value are means over the gold calls that have arguments. Tags and calls inside reasoning do not count.

  SLCA-GRPO (arXiv:2609.29050), eqs. 22-27.
  """
  calls = [call for turn in turns for call in turn.calls]
  gold = gold_calls(task)
  opens, closes = sum(turn.parsed.opens for turn in turns), sum(turn.parsed.closes for turn in turns)
  valid = valid_blocks(turns, task)
  key, value = _argument_scores(calls, gold)
  parts = {
    'format': _format_score(valid, opens, closes, needs_tool=bool(gold)),
    'name': name_f1(calls, gold),
    'key': key,
    'value': value,
    'parallel': float(first_step_size([turn.calls for turn in turns]) == first_step_size(task.gold)),
  }
  if gold and not calls:
    parts.update(name=0.0, key=0.0, value=0.0, parallel=0.0)
  total = math.fsum(getattr(weights, part) * score for part, score in parts.items())
  counts = {'opens': opens, 'closes': closes, 'valid': valid, 'calls': len(calls), 'gold_calls': len(gold)}
  return Process(**parts, total=total, **counts)


def gold_calls(task: Task) -> list[ToolCall]:
  """The task's gold calls in order of steps."""
  return [call for step in task.gold for call in step]


def first_step_size(steps: Steps | Sequence[tuple[ToolCall, ...]]) -> int:
  """How many calls the first step that holds any has, 0 if none does."""
  return next((len(step) for step in steps if step), 0)


def valid_blocks(turns: Sequence[Turn], task: Task) -> int:
  """N_valid: the blocks that parsed and whose calls all pass their tool's schema."""
  checks = checks_of(task.tools)
  return sum(all(checks.fault(call) is None for call in block) for turn in turns for block in turn.parsed.blocks)


def guarded(turns: Sequence[Turn], task: Task) -> bool:
  """Whether the gold needs a tool and the rollout never even opened a call. SLCA-GRPO (arXiv:2609.29050), eq. 21."""
  return bool(gold_calls(task)) and not any(turn.parsed.opens for turn in turns)


def _format_score(valid: int, opens: int, closes: int, *, needs_tool: bool) -> float:
  tags = max(opens, closes)
  if not tags:
    return 0.0 if needs_tool else 1.0
  return min(1.0, valid / tags)


def _argument_scores(calls: Sequence[ToolCall], gold: Sequence[ToolCall]) -> tuple[float, float]:
  matches = [pair for pair in match(calls, gold) if pair.gold.arguments]
  if not matches:
    return 1.0, 1.0
  return sum(pair.key for pair in matches) / len(matches), sum(pair.value for pair in matches) / len(matches)
