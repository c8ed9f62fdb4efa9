"""Judges of the final answer: five words, a rule that needs no endpoint, and disturbed judges for experiments."""

import dataclasses
import functools
import inspect
import json
import math
import random
import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from slca_jax.chat.loose import as_number
from slca_jax.config import require
from slca_jax.dialogue import Trajectory
from slca_jax.errors import JudgeFailure
from slca_jax.own import told
from slca_jax.rewards.matching import covers

WORDS = ('very poor', 'poor', 'acceptable', 'good', 'excellent')

_REASONING = re.compile(r'<(think|thinking)>.*?(</\1>|\Z)', re.DOTALL)
_OPENED_BEFORE = re.compile(r'\A.*</(think|thinking)>', re.DOTALL)  # some templates open the reasoning in the prompt
_SPECIAL = re.compile(r'<\|[^|<>]*\|>|</?s>')
_LIST_MARK = re.compile(r'^\s*\d{1,3}[.)]\s', re.MULTILINE)
_VALUE = re.compile(r'(?<!\w)-?\w+(?:[.,:/-]\w+)*')
_UNIT = re.compile(r'(?<=\d)-?[^\W\d_]+\Z')
_SHORT_TALK = frozenset({'status', 'message', 'ok', 'success', 'error'})  # keys of an observation that inform nobody


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
  """A judge's rating: a score in [0, 1] or None if there is none, its word, and why."""

  score: float | None
  word: str = ''
  reason: str = ''


class Judge(Protocol):
  """Rates final answers."""

  async def rate(self, trajectory: Trajectory, *, seed: int) -> Verdict:
    """The verdict on the trajectory's answer; equal for equal trajectory and seed where the judge can promise it.

    Raises:
      JudgeFailure: there is no verdict.
    """
    ...


def verdict_of(score: float, reason: str = '') -> Verdict:
  """The nearest of the five words: r = 1..5 stands for (r − 1)/4. Scores outside [0, 1] are clipped; what is no finite
  number is no score."""
  if not math.isfinite(score):
    return Verdict(None, reason=f'the score is {score}; {reason}')
  rank = min(4, max(0, math.floor(4 * score + 0.5)))
  return Verdict(rank / 4, WORDS[rank], reason)


def read_verdict(text: str) -> Verdict:
  """The verdict in a judge's reply: `<response_quality>…<rating>WORD</rating>…</response_quality>`.

  Raises:
    JudgeFailure: the reply holds anything else, a number or an unknown word included.

  SLCA-GRPO (arXiv:2609.29050), app. A.5.
  """
  # By partition and no regex: a reply that repeats tags would make lazy patterns backtrack for hours.
  before, _, rest = text.partition('<response_quality>')[2].partition('<rating>')
  rating, closed, rest = rest.partition('</rating>')
  if not closed or '</response_quality>' not in rest:
    raise JudgeFailure(f'no rating in the reply {text[:200]!r}')
  word = ' '.join(rating.split()).casefold()
  if word not in WORDS:
    raise JudgeFailure(f'the rating is {rating[:80]!r}; it must be one of {", ".join(WORDS)}')
  reason = before.partition('<reasoning>')[2].partition('</reasoning>')[0]
  return Verdict(WORDS.index(word) / 4, word, reason.strip())


class RuleJudge:
  """Rates by rule: are the facts that the question asks for in the answer, and nothing that was never observed.

  The facts are the task's, or else the values of what the gold calls returned. Rank r = 1 + ⌊4 · stated/asked⌋, less
  one for each number or identifier of the answer that neither the dialogue nor an observation contains. A rollout
  without a final answer is very poor.
  """

  async def rate(self, trajectory: Trajectory, *, seed: int = 0) -> Verdict:
    """The verdict; the seed does not matter."""
    answer = spoken(trajectory.answer or '')
    if not answer:
      return verdict_of(0.0, 'no answer')
    facts, unobserved = asked_facts(trajectory)
    missing = [fact for fact in facts if not states(answer, fact)]
    asked = len(facts) + unobserved
    invented = unsupported(answer, trajectory)
    share = (len(facts) - len(missing)) / asked if asked else 1.0
    reason = f'stated {len(facts) - len(missing)} of {asked} facts; missing {missing}; unsupported {invented}'
    return verdict_of((math.floor(4 * share) - len(invented)) / 4, reason)


class SolvedByRule:
  """Says by rule whether the task was solved, 1 or 0: whether RuleJudge finds nothing to fault in the answer.

  Which calls led to it does not matter, as with a model that judges outcomes.
  """

  async def rate(self, trajectory: Trajectory, *, seed: int = 0) -> Verdict:
    """The verdict, 1 or 0; the seed does not matter."""
    verdict = await RuleJudge().rate(trajectory)
    return Verdict(float(verdict.score == 1.0), 'solved' if verdict.score == 1.0 else 'unsolved', verdict.reason)


@dataclasses.dataclass(frozen=True, slots=True)
class NoisyJudge:
  """Another judge's score plus zero-mean Gaussian noise, then one of five words again.

  The noise depends on the seed, the task and the rollout's place in its group alone: every method sees the same, and so
  does a resumed run.
  """

  judge: Judge
  std: float

  def __post_init__(self) -> None:
    require(self.std >= 0, f'the noise of the judge is {self.std}; it cannot be negative')

  async def rate(self, trajectory: Trajectory, *, seed: int) -> Verdict:
    """The disturbed verdict."""
    verdict = await self.judge.rate(trajectory, seed=seed)
    if verdict.score is None:
      return verdict
    noise = random.Random(f'{seed}/{trajectory.task.id}/{trajectory.group}/{trajectory.index}').gauss(0.0, self.std)
    return verdict_of(verdict.score + noise, f'{verdict.reason}; noise {noise:+.3f}')


@dataclasses.dataclass(frozen=True, slots=True)
class BiasedJudge:
  """A judge that likes visible work: another judge's score less `per_turn` for each tool turn short of `turns`."""

  judge: Judge
  per_turn: float
  turns: int

  def __post_init__(self) -> None:
    require(self.turns >= 0, f'the judge likes {self.turns} tool turns; it takes a count')

  async def rate(self, trajectory: Trajectory, *, seed: int) -> Verdict:
    """The biased verdict."""
    verdict = await self.judge.rate(trajectory, seed=seed)
    if verdict.score is None:
      return verdict
    short = max(0, self.turns - len(trajectory.tool_turns))
    return verdict_of(verdict.score - self.per_turn * short, f'{verdict.reason}; {short} tool turns short')


@dataclasses.dataclass(frozen=True, slots=True)
class OwnJudge:
  """One's own function as a judge: (trajectory, *, seed) to a score in [0, 1], None or a Verdict; async or not."""

  function: Callable[..., Any]

  async def rate(self, trajectory: Trajectory, *, seed: int) -> Verdict:
    """The verdict; a function that breaks gives none, nor does a score on another scale.

    Raises:
      JudgeFailure: there is none; says why.
    """
    try:
      found = self.function(trajectory, seed=seed)
      found = await found if inspect.isawaitable(found) else found
      verdict = found if isinstance(found, Verdict) else Verdict(None if found is None else float(found))
      if verdict.score is not None and not 0 <= verdict.score <= 1:
        raise JudgeFailure(f'the score is {verdict.score}; it lies in [0, 1]')
      return verdict
    except JudgeFailure:
      raise
    except Exception as error:
      raise JudgeFailure(told(error)) from error


def spoken(text: str) -> str:
  """What the user sees of an assistant's text: no reasoning, no special tokens."""
  return _SPECIAL.sub('', unreasoned(text)).strip()


def unreasoned(text: str) -> str:
  """What a model says beside its reasoning, which may have begun before the text, or end with it."""
  return _OPENED_BEFORE.sub('', _REASONING.sub('', text))


def asked_facts(trajectory: Trajectory) -> tuple[tuple[str, ...], int]:
  """The facts that a right answer states, and how many gold calls left none because they were never made or refused."""
  task = trajectory.task
  if task.facts:
    return task.facts, 0
  made = [
    (call, seen.content)
    for turn in trajectory.turns
    for call, seen in zip(turn.calls, turn.observations, strict=False)  # what could not be read is answered last
    if seen.ok
  ]
  gold = [call for step in task.gold for call in step]
  contents = [next((content for call, content in made if covers(call, wanted)), None) for wanted in gold]
  facts = dict.fromkeys(fact for content in contents if content is not None for fact in _informative(content))
  return tuple(facts), contents.count(None)


def states(answer: str, fact: str) -> bool:
  """Whether the answer contains the fact as a whole word or number, whatever the case, spacing and number format."""
  number = as_number(fact)
  if number is not None:
    return number in _readings(answer)
  words = r'\s+'.join(map(re.escape, fact.split()))
  return bool(words) and re.search(rf'(?<!\w)(?<!\d[.,]){words}(?!\w)(?![.,]\d)', answer, re.IGNORECASE) is not None


def unsupported(answer: str, trajectory: Trajectory) -> tuple[str, ...]:
  """Numbers and identifiers of the answer that stand in neither the dialogue, nor an observation, nor the facts."""
  task = trajectory.task
  sources = [seen.content for seen in trajectory.observations]
  sources += [*(message.content for message in task.messages), *task.facts]
  known = {_reading(value) for source in sources for value in _values(source)}
  values = dict.fromkeys(_values(_LIST_MARK.sub('', answer)))
  return tuple(value for value in values if _reading(value) not in known)


def _values(text: str) -> list[str]:
  return [value for value in _VALUE.findall(text) if any(letter.isdecimal() for letter in value)]


@functools.lru_cache(maxsize=4)  # an answer is asked for each of its facts in turn
def _readings(text: str) -> frozenset[Any]:
  return frozenset(map(_reading, _values(text)))


def _reading(value: str) -> Any:
  """A number without separators and unit (1,200 and 12C and 3-day), else the value in lower case."""
  number = as_number(_UNIT.sub('', value).replace(',', ''))
  return value.casefold() if number is None else number


def _informative(content: str) -> Iterable[str]:
  """The values of an observation that an answer may be asked to repeat."""
  try:
    root = json.loads(content)
  except (ValueError, RecursionError):
    yield from _values(content)
    return
  stack = [root]
  while stack:
    node = stack.pop()
    if isinstance(node, dict):
      stack.extend(value for key, value in reversed(node.items()) if key.casefold() not in _SHORT_TALK)
    elif isinstance(node, list):
      stack.extend(reversed(node))
    elif isinstance(node, str) and node.strip():
      yield node
    elif isinstance(node, int | float) and not isinstance(node, bool):
      yield json.dumps(node)
