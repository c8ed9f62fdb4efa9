"""The data of a page: an index of all rollouts that is read at once, and a body per group that is read when opened."""

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from slca_jax.chat.template import Template
from slca_jax.report.credit import Credit, credits_of, runs_of, segments_of
from slca_jax.report.overview import overview_of
from slca_jax.report.reading import Sampled, Settings
from slca_jax.report.reasons import call_json, reasons_of
from slca_jax.report.texts import Texts, visible

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
  """`head`: what every view needs, the index included; `groups`: one body per group, in the order of the index."""

  head: Json
  groups: list[Json]


def model_of(
  run: pathlib.Path,
  sampled: Sequence[Sampled],
  settings: Settings,
  metrics: Sequence[Mapping[str, float | None]],
  template: Template | None,
) -> Model:
  """The data of a run's report.

  Args:
    sampled: whole groups, in order.
    template: of the policy; None shows words where tokens should stand.
  """
  texts, methods = Texts(template), credits_of(sampled, settings)
  segments = segments_of([one.trajectory for one in sampled], unfinished=settings.objective.unfinished)
  places: dict[tuple[int, int], list[int]] = {}
  for r, one in enumerate(sampled):
    places.setdefault(one.key[:2], []).append(r)
  index = [_entry(r, sampled, segments, methods) for r in range(len(sampled))]
  groups = [_group([sampled[r] for r in rows], texts, settings) for rows in places.values()]
  head = {
    'run': visible(run.resolve().name),
    'methods': [
      {'name': m.name, 'label': m.label, 'rule': m.rule, 'absent': m.absent, 'own': not place}
      for place, m in enumerate(methods)
    ],
    'objective': {
      name: getattr(settings.objective, name) for name in ('clip_low', 'clip_high', 'dual_clip', 'kl', 'unfinished')
    },
    'exact': texts.exact,
    'success_at': settings.scoring.success_at,
    'overview': overview_of(metrics),
    'groups': [
      {'step': step, 'group': group, 'rows': rows, 'question': visible(sampled[rows[0]].trajectory.task.question)[:300]}
      for (step, group), rows in places.items()
    ],
    'rollouts': index,
    'texts': texts.rows,
  }
  return Model(head, groups)


def _entry(r: int, sampled: Sequence[Sampled], segments: Sequence[tuple[str, ...]], methods: Sequence[Credit]) -> Json:
  """What lists and filters need of a rollout: scores, channels and advantages of each method, and what is odd."""
  one = sampled[r]
  trajectory, process = one.trajectory, one.scores.why.get('process') or {}
  return {
    'at': list(one.key),
    'status': trajectory.status.value,
    'process': _number(process.get('total')),
    'judge': _number((one.scores.why.get('verdict') or {}).get('score')),
    'guarded': one.scores.guarded,
    'segments': list(segments[r]),
    'sizes': [sum(len(trajectory.turns[turn].tokens) for turn in run) for run in runs_of(trajectory)],
    'calls': sum(len(turn.calls) for turn in trajectory.turns),
    'rewards': [_channels(method.scores[r]) for method in methods],
    'advantages': [[] if method.absent else [_number(a) for a in method.advantages[r]] for method in methods],
    'conflict': _conflict(segments[r], methods, r),
  }


def _channels(scores: Any) -> list[float | None]:
  return [_number(scores.tool), _number(scores.summary), _number(scores.outcome)]


def _conflict(segments: Sequence[str], methods: Sequence[Credit], r: int) -> int:
  """1: SLCA says the calls were better than the group's and the answer worse; −1: the reverse; 0: neither."""
  slca = next((method for method in methods if method.name == 'slca'), None)
  if slca is None:
    return 0
  of = lambda kind: next((a for a, s in zip(slca.advantages[r], segments, strict=True) if s == kind), 0.0)
  tool, summary = of('tool'), of('summary')
  return 0 if tool * summary >= 0 else int(math.copysign(1, tool))


def _group(rollouts: Sequence[Sampled], texts: Texts, settings: Settings) -> Json:
  first = rollouts[0].trajectory
  task = first.task
  return {
    'task': visible(task.id),
    'messages': [[visible(m.role), visible(m.content)] for m in task.messages],
    'tools': [visible(tool.name) for tool in task.tools],
    'gold': [[call_json(call) for call in step] for step in task.gold],
    'answer': visible(task.answer or ''),
    'facts': [visible(fact) for fact in task.facts],
    'prompt': texts.prompt(first.prompt, (message.content for message in task.messages)),
    'rollouts': [_body(one, texts, settings) for one in rollouts],
  }


def _body(one: Sampled, texts: Texts, settings: Settings) -> Json:
  """A rollout in full: its parts in order, runs of tokens and what the world wrote, and the reasons of its rewards."""
  trajectory = one.trajectory
  run_of = {turn: run for run, turns in enumerate(runs_of(trajectory)) for turn in turns}
  parts: list[Json] = []
  start = 0
  for number, turn in enumerate(trajectory.turns):
    if turn.tokens:
      part: Json = {'turn': number, 'run': run_of.get(number, -1), 'tokens': texts.turn(turn)}
      if texts.exact:
        part['logps'] = {'sampler': _short(turn.logprobs)} | {
          name: _short(values[start : start + len(turn.tokens)]) for name, values in one.logps.items()
        }
      start += len(turn.tokens)
      parts.append(part)
    if turn.reply or turn.observations:
      refused = [place for place, seen in enumerate(turn.observations) if not seen.ok]
      parts.append({'turn': number, 'world': texts.world(turn), 'refused': refused})
  return {
    'parts': parts,
    'turns': list(one.scores.turns),
    'error': visible(trajectory.error),
    'why': reasons_of(trajectory, one.scores, settings.scoring.weights),
  }


def _short(values: Sequence[float]) -> list[float | None]:
  return [round(value, 4) if math.isfinite(value) else None for value in values]


def _number(value: float | None) -> float | None:
  return None if value is None or not math.isfinite(value) else round(value, 6)
