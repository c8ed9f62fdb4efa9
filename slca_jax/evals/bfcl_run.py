"""A policy on the Berkeley Function Calling Leaderboard: greedy answers, each on disk as soon as it is judged.

The same command goes on where it was killed, and with more categories or entries makes what is missing.
"""

import collections
import contextlib
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from slca_jax import blocking
from slca_jax.config import require
from slca_jax.data.folders import claimed, write_json
from slca_jax.data.store import Records
from slca_jax.dialogue import Message, Tool, ToolCall
from slca_jax.errors import EnvironmentFailure, SamplerError, TemplateError
from slca_jax.evals import bfcl, qwen, statistics, tables
from slca_jax.evals.benchmark_settings import SIMPLE
from slca_jax.evals.bfcl import IMPOSSIBLE, Entry, Official, Speak
from slca_jax.evals.bfcl_multi_turn import Backend, converse, judge_turns
from slca_jax.evals.crew import do_all
from slca_jax.evals.in_domain import weights_mark
from slca_jax.evals.settings import EvaluateConfig, as_run, lasting
from slca_jax.evals.statistics import Estimate, Sampling
from slca_jax.evals.tables import Table
from slca_jax.rollout.collect import Rollouts, rarely_interrupted, seed_of
from slca_jax.train import policy, worlds
from slca_jax.train.run import hush, remember

Record = dict[str, Any]  # id, category, valid, strict, kind, why, said, tokens; valid is None where the engine failed
_SIMPLE = frozenset(name for names in SIMPLE.values() for name in names)
TOO_LONG = 'inference_error:prompt_too_long'


class TooLong(Exception):
  """A prompt that leaves no room for an answer. BFCL counts it as wrong."""


def evaluate(config: EvaluateConfig) -> list[Table]:
  """Asks what is missing and writes `summary.json` and `table.md`, `.tex`, `.csv` to the output.

  Raises:
    ConfigError, WeightsError, TemplateError: before any rollout.
  """
  hush()
  folder = pathlib.Path(config.output)
  require(config.samples == 0, f'samples is {config.samples}; BFCL is one greedy answer per entry')
  policy.check(config.model)
  with claimed(folder):
    asked = dataclasses.asdict(config.bfcl)
    for name in ('python', 'categories'):
      del asked[name]
    remember(folder, lasting(config) | {'bfcl': asked, 'weights': weights_mark(policy.resolve(config.model.path))})
    asked_for = blocking.run(_evaluate(config, folder))
    records = {name: latest(folder / name, ids) for name, ids in asked_for.items()}
    found = summary_tables(records, config.bfcl.groups, config.intervals, version=config.bfcl.version)
    write_json(folder / 'summary.json', [dataclasses.asdict(table) for table in found])
    tables.write(folder, 'table', found)
  return found


async def _evaluate(config: EvaluateConfig, folder: pathlib.Path) -> dict[str, list[str]]:
  """Asks what is missing; the ids of all entries that the config wants, by category."""
  official = Official(python=config.bfcl.python, version=config.bfcl.version)
  try:
    with contextlib.ExitStack() as held:
      works, wanted = [], {}
      for category in config.bfcl.chosen:
        kept = held.enter_context(contextlib.closing(Records(folder / category / 'results.jsonl')))
        done = {one['id'] for one in kept if one['valid'] is not None or not config.redo_failed}
        entries = (await official.entries(category))[: config.limit or None]
        wanted[category] = [entry.id for entry in entries]
        works.append((kept, [entry for entry in entries if entry.id not in done]))
      if any(missing for _, missing in works):
        await _ask_policy(config, works, official)
    return wanted
  finally:
    await official.close()


async def _ask_policy(config: EvaluateConfig, works: Sequence[tuple[Records, list[Entry]]], official: Official) -> None:
  loaded = policy.load(config.model, config.mesh)
  with jax.set_mesh(loaded.mesh), rarely_interrupted():
    world = worlds.rollouts(as_run(config), loaded, loaded.params, purpose='evaluate')
    try:
      await world.sampler.publish(loaded.params, 0)
      for kept, missing in works:
        await _ask_all(kept, missing, world, official, config)
    finally:
      await world.sampler.close()


async def _ask_all(
  kept: Records, missing: Sequence[Entry], world: Rollouts, official: Official, config: EvaluateConfig
) -> None:
  async def one(entry: Entry) -> None:
    kept.append([await _ask(entry, world, official, config)])

  title = missing[0].category if missing else ''
  await do_all(missing, one, at_once=world.sampler.concurrency, title=title, unit='entry')


async def _ask(entry: Entry, world: Rollouts, official: Official, config: EvaluateConfig) -> Record:
  """One entry, asked and judged."""
  voice = Voice(entry, world, config)
  out: Record = {'id': entry.id, 'category': entry.category, 'valid': None, 'strict': None}
  try:
    if entry.category.startswith('multi_turn'):
      said, verdict = await _talk(entry, voice.speak, official, config.bfcl.steps)
    else:
      said = qwen.answer(await voice.speak(entry.question[0], entry.functions))
      verdict = await bfcl.judge(entry, said, official)
      out['strict'] = (await bfcl.judge_strictly(entry, said, official)).valid
    out |= {'valid': verdict.valid, 'kind': verdict.kind, 'why': verdict.why, 'said': said}
  except TooLong as error:
    out |= {'valid': False, 'strict': False, 'kind': TOO_LONG, 'why': str(error)}
  except (KeyError, TypeError) as error:  # a history that holds a call without a name cannot be written
    out |= {'valid': False, 'kind': f'inference_error:{type(error).__name__}', 'why': str(error)}
  except (SamplerError, EnvironmentFailure, TemplateError) as error:
    out |= {'kind': f'failed:{type(error).__name__}', 'why': str(error)}
  finally:
    await world.sampler.release(voice.session)
  return out | {'tokens': voice.tokens}


async def _talk(entry: Entry, speak: Speak, official: Official, steps: int) -> tuple[list[list[str]], bfcl.Verdict]:
  backend = Backend(entry, official)
  try:
    said = await converse(entry, speak, backend, steps=steps)
  finally:
    await backend.release()
  return said, await judge_turns(entry, said, official)


class Voice:
  """The policy in one entry. `tokens` counts what it wrote."""

  def __init__(self, entry: Entry, world: Rollouts, config: EvaluateConfig):
    self.session, self.tokens = f'{config.seed}/{entry.id}', 0
    self._world, self._settings, self._times = world, config.bfcl, 0
    limits = config.rollout.limits
    self._context = limits.prompt_tokens + limits.response_tokens

  async def speak(self, messages: Sequence[qwen.Said], functions: Sequence[Mapping[str, Any]]) -> str:
    """What the policy says next, the likeliest token each time.

    Raises:
      TooLong: no room is left.
    """
    template = self._world.template
    if self._settings.prompt == 'official':
      ids = template.encode(qwen.prompt(messages, functions))
    else:
      ids = template.prompt(*own_words(messages, functions))
    room = self._context - len(ids) - 2  # as BFCL counts
    if room < 1:
      raise TooLong(f'the prompt has {len(ids)} tokens of {self._context}')
    sample = await self._world.sampler.generate(
      ids,
      session=self.session,
      max_tokens=min(room, self._settings.turn_tokens),
      temperature=0.0,
      top_p=1.0,
      stop=template.stop_ids,
      seed=seed_of(self.session, self._times),
    )
    self.tokens, self._times = self.tokens + len(sample.tokens), self._times + 1
    return template.decode(sample.tokens)


def own_words(
  messages: Sequence[qwen.Said], functions: Sequence[Mapping[str, Any]]
) -> tuple[list[Message], list[Tool]]:
  """The same for the policy's own template."""
  tools = [Tool(one['name'], one['description'], one['parameters']) for one in functions]
  return [
    Message(
      one['role'],
      one['content'],
      tuple(ToolCall(made['name'], made['arguments']) for made in one.get('tool_calls', ())),
    )
    for one in messages
  ], tools


def latest(folder: pathlib.Path, ids: Sequence[str] | None = None) -> list[Record]:
  """The last record of each of these entries that was asked; of all, as answers came, if None."""
  with contextlib.closing(Records(folder / 'results.jsonl', write=False)) as kept:
    known = {one['id']: one for one in kept}
  return list(known.values()) if ids is None else [known[id] for id in ids if id in known]


def summary_tables(
  records: Mapping[str, Sequence[Record]],
  groups: Mapping[str, Sequence[str]],
  sampling: Sampling,
  *,
  version: int,
) -> list[Table]:
  """Accuracies by category and by group, and what was wrong.

  A group's accuracy is the mean over its categories, of live ones over their entries, as on the leaderboard, where the
  simple non-live ones of all languages count as one: their mean. Failures of the engine are left out and counted.
  `attainable` leaves out the rows that no call can get right.
  """
  rows = [(name, *_row(found, sampling)) for name, found in records.items() if found]
  for group, names in groups.items():
    parts = [records[name] for name in names if records.get(name)]
    if len(parts) > 1:
      label = f'{group.replace("_", " ")}, {len(parts)} categories'
      rows.append((label, *_row([one for part in parts for one in part], sampling, pooled=group == 'live')))
  columns = ('category', 'entries', 'accuracy', 'read strictly', 'attainable', 'failed', 'too long')
  note = f'Brackets hold {sampling.confidence:.0%} bootstrap intervals over entries; failed ones are left out.'
  wrong = collections.Counter(one['kind'] for found in records.values() for one in found if one['valid'] is False)
  kinds = Table('What was wrong', ('kind', 'entries'), tuple(wrong.most_common()))
  return [Table(f'BFCL V{version}', columns, tuple(rows), note=note), kinds]


def _row(found: Sequence[Record], sampling: Sampling, *, pooled: bool = False) -> tuple[tables.Cell, ...]:
  possible = [one for one in found if one['id'] not in IMPOSSIBLE]
  strict = [one for one in found if one['strict'] is not None]
  mean = lambda rows, key: over_categories(rows, key, sampling, pooled=pooled) if rows else None
  failed = sum(one['valid'] is None for one in found)
  too_long = sum(one.get('kind') == TOO_LONG for one in found)
  return len(found), mean(found, 'valid'), mean(strict, 'strict'), mean(possible, 'valid'), failed, too_long


def over_categories(found: Sequence[Record], key: str, sampling: Sampling, *, pooled: bool = False) -> Estimate:
  """The mean over categories of their means, or over all entries if `pooled`, with a bootstrap interval.

  sum_c(w_c mean_i(v_ci)): each entry stands for w_c N / n_c of the N. Its distance from its own category's mean is
  drawn anew, so that the interval is one of entries within categories, of which there are always the same.
  """
  known = [one for one in found if one[key] is not None]
  values_N = np.array([one[key] for one in known], np.float64)
  names = np.array([one['category'] for one in known])
  kinds = np.unique(names)
  if pooled or len(kinds) < 2:
    [estimate] = statistics.bootstrap(values_N[:, None], sampling)
    return dataclasses.replace(estimate, absent=len(found) - len(known))
  means, weights = {kind: values_N[names == kind].mean() for kind in kinds}, _weights(list(map(str, kinds)))
  weights_N = np.array([weights[name] * len(known) / (names == name).sum() for name in names])
  offsets_N = weights_N * (values_N - np.array([means[name] for name in names]))
  mean = sum(weights[kind] * means[kind] for kind in kinds)
  [estimate] = statistics.bootstrap((mean + offsets_N)[:, None], sampling)
  return dataclasses.replace(estimate, absent=len(found) - len(known))


def _weights(categories: Sequence[str]) -> dict[str, float]:
  """How much each category counts in a mean over them: the simple ones of all languages together as much as another."""
  simple = [name for name in categories if name in _SIMPLE]
  count = len(categories) - len(simple) + bool(simple)
  return {name: 1 / count / (len(simple) if name in simple else 1) for name in categories}
