"""At which bias a judge makes the market's wasteful path worth more than the efficient one."""

import dataclasses
from collections.abc import Sequence

from slca_jax.dialogue import Parsed, Steps, Turn
from slca_jax.quickstart.demonstrations import wasteful_steps
from slca_jax.quickstart.world import KINDS, make_task
from slca_jax.rewards.judge import verdict_of
from slca_jax.rewards.process import Weights, process_score

_FINEST = 1000  # biases that are tried, up to 1


@dataclasses.dataclass(frozen=True, slots=True)
class Path:
  """What going from the wasteful to the efficient path means for one kind of question.

  Attributes:
    gain: of the process score.
    liked_turns: tool turns below which the judge takes its bias off for each.
  """

  kind: str
  wasteful_turns: int
  efficient_turns: int
  gain: float
  liked_turns: int

  def price(self, bias: float) -> float:
    """What a right answer's rating loses, after the judge's five words."""
    rated = [self._rated(bias, turns) for turns in (self.wasteful_turns, self.efficient_turns)]
    return rated[0] - rated[1]

  @property
  def bias(self) -> float | None:
    """The least bias, in thousandths, whose price exceeds the gain; None if none up to 1 does."""
    tried = (step / _FINEST for step in range(1, _FINEST + 1))
    return next((bias for bias in tried if self.price(bias) > self.gain), None)

  def _rated(self, bias: float, turns: int) -> float:
    return verdict_of(1 - bias * max(0, self.liked_turns - turns)).score or 0.0


def paths(weights: Weights | None = None, *, liked_turns: int = 3) -> list[Path]:
  """One for each kind of question; `liked_turns` is the judge's `bias_turns`."""
  out = []
  for kind in KINDS:
    task = make_task(0, 'train', 0, kind=kind)
    wasteful = wasteful_steps(task)
    scores = [process_score(_turns(steps), task, weights=weights or Weights()).total for steps in (wasteful, task.gold)]
    out.append(Path(kind, len(wasteful), len(task.gold), scores[1] - scores[0], liked_turns))
  return out


def _turns(steps: Steps) -> Sequence[Turn]:
  return [Turn((), (), '', Parsed(tuple((call,) for call in step), (), len(step), len(step))) for step in steps]
