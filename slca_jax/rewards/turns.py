"""TARA's turn rewards: did the t-th turn make every call of the gold's t-th turn."""

from slca_jax.dialogue import Trajectory
from slca_jax.rewards.matching import all_covered


def turn_rewards(trajectory: Trajectory) -> tuple[float, ...]:
  """r[t] for every turn of the rollout or the gold, whichever is longer; 1 or 0.

  r[t] = [every gold call of turn t is covered by a call of the rollout's turn t], one call for one gold call, in any
  order within the turn. Turns after the gold's last are 0, and so are turns that the rollout never reached. The index
  is that of the turn among all turns of the rollout, so a turn whose calls could not be read counts; it is also the
  run's.

  ToolVerse, TARA reward by dictionary coverage.
  """
  gold = [step for step in trajectory.task.gold if step]
  made = [turn.calls for turn in trajectory.turns]
  if trajectory.answer is not None:
    made = made[:-1]
  return tuple(
    float(t < min(len(made), len(gold)) and all_covered(made[t], gold[t])) for t in range(max(len(made), len(gold)))
  )
