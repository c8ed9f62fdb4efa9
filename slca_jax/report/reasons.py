"""Why a rollout has the rewards it has: parts of the process score, calls against gold calls, the judge's words."""

import collections
import json
from collections.abc import Mapping, Sequence
from typing import Any

from slca_jax.chat.checks import checks_of
from slca_jax.dialogue import Scores, Status, ToolCall, Trajectory
from slca_jax.report.texts import visible
from slca_jax.rewards.matching import Match, gives, match
from slca_jax.rewards.process import Weights, first_step_size, gold_calls

Json = dict[str, Any]
PARTS = ('format', 'name', 'key', 'value', 'parallel')


def reasons_of(trajectory: Trajectory, scores: Scores, weights: Weights) -> Json:
  """`parts`: score, weight and reason of each part; `matches` and `extra`: gold calls with what was made for them, and
  calls that no gold call wanted; `faults`: blocks and calls that could not be used; `judge`: its words.
  """
  why = scores.why
  if trajectory.status is Status.FAILED or 'process' not in why:
    return {'parts': [], 'matches': [], 'extra': [], 'faults': [], 'judge': None, 'failed': visible(trajectory.error)}
  made = [(call, turn) for turn, said in enumerate(trajectory.turns) for call in said.calls]
  turn_of = {id(call): turn for call, turn in made}
  pairs = match([call for call, _ in made], gold_calls(trajectory.task))
  used = {id(pair.call) for pair in pairs}
  return {
    'parts': [
      {'name': part, 'score': why['process'][part], 'weight': getattr(weights, part), 'why': visible(text)}
      for part, text in zip(PARTS, _part_reasons(trajectory, why['process'], pairs), strict=True)
    ],
    'matches': [_match(pair, turn_of) for pair in pairs],
    'extra': [call_json(call) | {'turn': turn} for call, turn in made if id(call) not in used],
    'faults': _faults(trajectory, made),
    'judge': _judge(scores),
    'failed': '',
  }


def call_json(call: ToolCall) -> Json:
  """A call with its arguments as texts."""
  return {'name': visible(call.name), 'arguments': {visible(key): _value(v) for key, v in call.arguments.items()}}


def _part_reasons(trajectory: Trajectory, process: Mapping[str, Any], pairs: Sequence[Match]) -> list[str]:
  calls = [call for turn in trajectory.turns for call in turn.calls]
  gold = gold_calls(trajectory.task)
  valid, opens, closes = process['valid'], process['opens'], process['closes']
  with_arguments = [pair for pair in pairs if pair.gold.arguments]
  mean = lambda values: ' + '.join(f'{value:.3g}' for value in values)
  if gold and not calls:
    nothing = 'no call was made where the gold needs one'
    tags = f'{valid} valid of {max(opens, closes)} blocks' if opens or closes else 'no tags, and some were needed'
    return [tags, nothing, nothing, nothing, nothing]
  return [
    f'{valid} valid call blocks; {opens} opening and {closes} closing tags'
    if opens or closes
    else f'no tags, and {"some were needed" if gold else "none was needed"}',
    _names_reason(calls, gold),
    f'shared keys over all keys, mean over {len(with_arguments)} gold calls: {mean(p.key for p in with_arguments)}'
    if with_arguments
    else 'no gold call has arguments',
    f'gold values given, mean over {len(with_arguments)} gold calls: {mean(p.value for p in with_arguments)}'
    if with_arguments
    else 'no gold call has arguments',
    f'the first step with calls has {first_step_size([turn.calls for turn in trajectory.turns])}, '
    f'the gold’s has {first_step_size(trajectory.task.gold)}',
  ]


def _names_reason(calls: Sequence[ToolCall], gold: Sequence[ToolCall]) -> str:
  if not calls and not gold:
    return 'no call was wanted and none was made'
  made, wanted = (collections.Counter(call.name for call in some) for some in (calls, gold))
  text = f'2 · {(made & wanted).total()} shared / ({len(calls)} made + {len(gold)} gold)'
  surplus, absent = made - wanted, wanted - made
  listed = lambda names: ', '.join(f'{name}{f" ×{count}" if count > 1 else ""}' for name, count in names.items())
  return (
    text + (f'; too many: {listed(surplus)}' if surplus else '') + (f'; absent: {listed(absent)}' if absent else '')
  )


def _match(pair: Match, turn_of: Mapping[int, int]) -> Json:
  return {
    'name': visible(pair.gold.name),
    'made': pair.call is not None,
    'turn': None if pair.call is None else turn_of[id(pair.call)],
    'key': pair.key,
    'value': pair.value,
    'arguments': _arguments(pair.call, pair.gold),
  }


def _arguments(call: ToolCall | None, gold: ToolCall) -> list[Json]:
  """Per key of either call: what the gold has, what was given, and whether that is same, other, missing or extra."""
  given = call.arguments if call else {}
  out = []
  for key in dict.fromkeys([*gold.arguments, *given]):
    if key not in given:
      state = 'missing'
    elif key not in gold.arguments:
      state = 'extra'
    else:
      state = 'same' if call and gives(call, gold, key) else 'other'
    row = {'key': visible(key), 'state': state}
    out.append(
      row | {name: _value(some[key]) for name, some in (('gold', gold.arguments), ('made', given)) if key in some}
    )
  return out


def _faults(trajectory: Trajectory, made: Sequence[tuple[ToolCall, int]]) -> list[Json]:
  checks = checks_of(trajectory.task.tools)
  unread = [
    {'turn': turn, 'text': f'a block could not be read: {error}'}
    for turn, said in enumerate(trajectory.turns)
    for error in said.parsed.errors
  ]
  refused = [{'turn': turn, 'text': visible(fault)} for call, turn in made if (fault := checks.fault(call)) is not None]
  return unread + refused


def _judge(scores: Scores) -> Json:
  verdict, referee = scores.why.get('verdict') or {}, scores.why.get('referee')
  return {
    'score': verdict.get('score'),
    'word': visible(verdict.get('word') or ''),
    'reason': visible(verdict.get('reason') or ''),
    'failed': bool(scores.why.get('judge_failed')),
    'guarded': scores.guarded,
    'referee': referee and {'score': referee.get('score'), 'reason': visible(referee.get('reason') or '')},
  }


def _value(value: Any) -> str:
  try:
    return visible(json.dumps(value, ensure_ascii=False))
  except (ValueError, RecursionError):
    return '(too deep to show)'
