"""Predicted calls against gold calls: names as multisets, arguments loosely, one to one."""

import collections
import dataclasses
from collections.abc import Sequence

from slca_jax.chat.loose import loosely_equal
from slca_jax.dialogue import ToolCall


@dataclasses.dataclass(frozen=True, slots=True)
class Match:
  """A gold call and the predicted call that it was paired with, if any; key and value scores in [0, 1]."""

  gold: ToolCall
  call: ToolCall | None
  key: float
  value: float


def name_f1(calls: Sequence[ToolCall], gold: Sequence[ToolCall]) -> float:
  """Multiset F1 of tool names, 1 when both are empty.

  S_name = 2 |N_Y ∩ N_G| / (|N_Y| + |N_G|)

  SLCA-GRPO (arXiv:2609.29050), eq. 24.
  """
  if not calls and not gold:
    return 1.0
  shared = collections.Counter(call.name for call in calls) & collections.Counter(call.name for call in gold)
  return 2 * shared.total() / (len(calls) + len(gold))


def key_score(call: ToolCall, gold: ToolCall) -> float:
  """Jaccard index of the argument keys, 1 when neither call has any. SLCA-GRPO (arXiv:2609.29050), eq. 25."""
  union = call.arguments.keys() | gold.arguments.keys()
  return len(call.arguments.keys() & gold.arguments.keys()) / len(union) if union else 1.0


def value_score(call: ToolCall, gold: ToolCall) -> float:
  """Share of the gold's arguments that the call gives loosely equal, 1 when the gold has none.

  S_val(y, g) = (1/|K_g|) Σ_{k ∈ K_y ∩ K_g} loose(y[k], g[k])

  SLCA-GRPO (arXiv:2609.29050), eq. 26.
  """
  if not gold.arguments:
    return 1.0
  return sum(gives(call, gold, key) for key in gold.arguments) / len(gold.arguments)


def gives(call: ToolCall, gold: ToolCall, key: str) -> bool:
  """Whether the call has the gold's argument `key`, loosely equal."""
  return key in call.arguments and loosely_equal(call.arguments[key], gold.arguments[key])


def covers(call: ToolCall, gold: ToolCall) -> bool:
  """Whether the call has the gold's name and, loosely equal, all of its arguments; more are allowed."""
  return call.name == gold.name and all(gives(call, gold, key) for key in gold.arguments)


def match(calls: Sequence[ToolCall], gold: Sequence[ToolCall]) -> list[Match]:
  """Each gold call, in order, with the best unused predicted call of its name.

  Best is the highest S_key + S_val, the earliest of equals. A gold call that finds none scores 0 for both.

  SLCA-GRPO (arXiv:2609.29050), app. A.4.
  """
  unused = list(calls)
  matches = []
  for wanted in gold:
    rated = [
      (key_score(call, wanted), value_score(call, wanted), place)
      for place, call in enumerate(unused)
      if call.name == wanted.name
    ]
    if rated:
      key, value, place = max(rated, key=lambda score: score[0] + score[1])
      matches.append(Match(wanted, unused.pop(place), key, value))
    else:
      matches.append(Match(wanted, None, 0.0, 0.0))
  return matches


def all_covered(calls: Sequence[ToolCall], gold: Sequence[ToolCall]) -> bool:
  """Whether the gold calls can be covered by distinct predicted calls.

  Augmenting paths and no greedy choice: a call with more arguments than one gold call asks for may be the only one that
  covers another.
  """
  taken: dict[int, int] = {}  # predicted call -> the gold call that it covers

  def place(wanted: int, tried: set[int]) -> bool:
    for i, call in enumerate(calls):
      if i in tried or not covers(call, gold[wanted]):
        continue
      tried.add(i)
      if i not in taken or place(taken[i], tried):
        taken[i] = wanted
        return True
    return False

  return all(place(wanted, set()) for wanted in range(len(gold)))
