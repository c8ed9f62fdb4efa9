"""Rewards of the methods that SLCA is compared with: ToolPO's action and outcome rule, RLTR's plan."""

from collections.abc import Sequence

from slca_jax.chat.checks import checks_of
from slca_jax.chat.loose import loosely_equal
from slca_jax.dialogue import Task, ToolCall, Trajectory, Turn
from slca_jax.rewards.matching import covers, gives, match, name_f1
from slca_jax.rewards.process import first_step_size, gold_calls, valid_blocks


def action_reward(turns: Sequence[Turn], task: Task) -> float:
  """ToolPO's action reward in [0, 1]: the share of gold calls that some predicted call covers.

  R_action = (1/|G|) Σ_g [∃ y: same name, every key of g in y with a loosely equal value]. Where no call is wanted, 1 if
  none was made, else 0.

  SLCA-GRPO (arXiv:2609.29050), app. C.4.
  """
  calls, gold = _calls(turns), gold_calls(task)
  if not gold:
    return float(not calls)
  return sum(any(covers(call, wanted) for call in calls) for wanted in gold) / len(gold)


def outcome_rule(turns: Sequence[Turn], task: Task) -> float:
  """ToolPO's outcome by rule, 1 or 0: everything that can be checked against the gold calls holds at once.

  N_valid = N_open = N_close, equal name multisets, equal size of the first step, and for every gold call the matched
  call has all required keys with loosely equal values.

  SLCA-GRPO (arXiv:2609.29050), eq. 28.
  """
  calls, gold = _calls(turns), gold_calls(task)
  opens, closes = sum(turn.parsed.opens for turn in turns), sum(turn.parsed.closes for turn in turns)
  return float(
    valid_blocks(turns, task) == opens == closes
    and name_f1(calls, gold) == 1.0
    and first_step_size([turn.calls for turn in turns]) == first_step_size(task.gold)
    and all(
      pair.call is not None and all(gives(pair.call, pair.gold, key) for key in _required(pair.gold, task))
      for pair in match(calls, gold)
    )
  )


def plan_reward(
  completeness: float,
  *,
  repeats: int,
  errors: int,
  format_violation: bool,
  repeat_penalty: float = 0.1,
  error_penalty: float = 0.2,
  violation_reward: float = -1.0,
) -> float:
  """RLTR's reward of a plan.

  R = R_comp − 0.1 · repeats − 0.2 · errors, and −1 where the format was violated.

  Args:
    completeness: how much of what the question needs the plan gathered, in [0, 1].
    repeats: calls that had been made before.
    errors: calls that the environment refused.
    format_violation: a call block was broken or its tags did not pair up.

  SLCA-GRPO (arXiv:2609.29050), app. C.4.
  """
  if format_violation:
    return violation_reward
  return completeness - repeat_penalty * repeats - error_penalty * errors


def repeats(turns: Sequence[Turn]) -> int:
  """How many calls say loosely the same as an earlier call of the rollout."""
  seen: list[ToolCall] = []
  count = 0
  for call in _calls(turns):
    if any(call.name == old.name and loosely_equal(call.arguments, old.arguments) for old in seen):
      count += 1
    else:
      seen.append(call)
  return count


def refusals(trajectory: Trajectory) -> int:
  """How many observations are errors."""
  return sum(not seen.ok for seen in trajectory.observations)


def format_violated(turns: Sequence[Turn]) -> bool:
  """Whether a turn's tags do not pair up or one of its blocks holds no readable call."""
  return any(not len(turn.parsed.blocks) == turn.parsed.opens == turn.parsed.closes for turn in turns)


def _calls(turns: Sequence[Turn]) -> list[ToolCall]:
  return [call for turn in turns for call in turn.calls]


def _required(gold: ToolCall, task: Task) -> list[str]:
  """The gold's keys that its tool requires; all of them if the tool does not say."""
  required = checks_of(task.tools).required(gold.name)
  return [key for key in gold.arguments if required is None or key in required]
