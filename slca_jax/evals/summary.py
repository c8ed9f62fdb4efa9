"""Results taken together: means with intervals, pass@k, statuses, and the tables that show them."""

import collections
import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slca_jax.config import require
from slca_jax.data.folders import write_json
from slca_jax.evals import results, statistics
from slca_jax.evals.results import Record
from slca_jax.evals.statistics import SAMPLING, Estimate, Sampling
from slca_jax.evals.tables import Cell, Table, write

SCORES = ('process', 'success', 'name', 'arguments', 'format', 'parallel', 'summary')
BEHAVIOUR = ('parsed', 'no_call', 'turns', 'tool_turns', 'calls', 'gold_calls', 'refused_calls', 'guarded')
TAGS = ('opens', 'closes', 'valid')
LENGTHS = ('prompt_tokens', 'response_tokens', 'sampled_tokens')
_KSWEEP = re.compile(r'(?:(.*)[_.-])?(random|hard)_k(\d+)')  # whose tasks, which distractors, K
_NOTE = 'Brackets hold {share:.0%} bootstrap intervals over tasks; what could not be had is left out, not 0.'


@dataclasses.dataclass(frozen=True, slots=True)
class Summary:
  """One file of tasks under one way to decode.

  Attributes:
    status: rollouts by how they ended; those that failed have no scores.
    scores: of every measure the mean over tasks of the mean over a task's rollouts.
    pass_at, pass_all: pass@k and pass^k of Success@0.9, by k.
  """

  name: str
  mode: str
  tasks: int
  rollouts: int
  status: dict[str, int]
  scores: dict[str, Estimate]
  pass_at: dict[int, Estimate]
  pass_all: dict[int, Estimate]


def summarise(name: str, mode: str, records: Sequence[Record], sampling: Sampling = SAMPLING) -> Summary:
  """Everything that is told of some results."""
  tasks = list(dict.fromkeys(record['task'] for record in records))
  measures = results.measures_in(records)
  columns = [results.by_task(records, measure) for measure in measures]
  estimates = statistics.bootstrap(_matrix(columns, tasks), sampling)
  at, every = _passes(records, tasks, sampling)
  return Summary(
    name,
    mode,
    len(tasks),
    len(records),
    dict(collections.Counter(record['status'] for record in records)),
    dict(zip(measures, estimates, strict=True)),
    at,
    every,
  )


def write_summary(folder: pathlib.Path, summaries: Sequence[Summary], sampling: Sampling = SAMPLING) -> str:
  """Writes `summary.json` and `table.md`, `.tex`, `.csv`, and returns the Markdown."""
  write_json(folder / 'summary.json', [dataclasses.asdict(one) for one in summaries])
  return write(folder, 'table', tables(summaries, sampling))


def tables(summaries: Sequence[Summary], sampling: Sampling = SAMPLING) -> list[Table]:
  """Scores, behaviour, tags and lengths, statuses; over K where the files are those of a K-sweep, pass@k if sampled."""
  note = _NOTE.format(share=sampling.confidence)
  out = [_table('Scores', summaries, SCORES, note=note), *_over_sizes(summaries, note)]
  out.append(_table('Behaviour per rollout', summaries, BEHAVIOUR, digits=2))
  out.append(_table('Tags and lengths in tokens per rollout', summaries, TAGS + LENGTHS, digits=1))
  ends = list(dict.fromkeys(status for one in summaries for status in one.status))
  rows = tuple((*_head(one), one.rollouts, *(one.status.get(status, 0) for status in ends)) for one in summaries)
  out.append(Table('How rollouts ended', ('tasks from', 'decoding', 'rollouts', *ends), rows))
  return out + _pass_tables(summaries, note)


def compare(first: pathlib.Path, second: pathlib.Path, sampling: Sampling = SAMPLING) -> list[Table]:
  """How much better the second run does, task by task: a table for each file and way to decode that both have.

  Raises:
    ConfigError: a folder holds no evaluation, they have nothing in common, or one name stands for different tasks.
  """
  ours, theirs = set(results.known(second)), list(results.known(first))
  common = [key for key in theirs if key in ours]
  require(bool(common), f'{str(first)!r} and {str(second)!r} have no file of tasks and way to decode in common')
  before, after = results.digests(first), results.digests(second)
  out = []
  for name, mode in common:
    require(before[name] == after[name], f'{name!r} stands for different tasks in {str(first)!r} and {str(second)!r}')
    pair = [results.read(folder, name, mode) for folder in (first, second)]
    out.append(_compared(f'{name}, {mode}: {first.name} → {second.name}', pair, sampling))
  return out


def average(folders: Sequence[pathlib.Path]) -> Table:
  """Mean ± sample deviation over runs of what their summaries tell.

  Raises:
    ConfigError: a folder holds no evaluation, or one of a benchmark.
  """
  told: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
  for folder in folders:
    path = folder / 'summary.json'
    require(path.is_file(), f'{str(folder)!r} holds no summary.json; name the output of launch/evaluate.py')
    for one in json.loads(path.read_text('utf-8')):
      require('scores' in one, f'{str(folder)!r} is of a benchmark, whose numbers stand in its table.csv')
      told.setdefault((one['name'], one['mode']), []).append(one['scores'])
  shown = (*SCORES, 'turns', 'calls')
  rows = tuple(
    (name, mode, len(runs), *(statistics.over_runs([_mean(run, measure) for run in runs]) for measure in shown))
    for (name, mode), runs in told.items()
  )
  note = 'Mean ± sample standard deviation over runs.'
  return Table(f'{len(folders)} runs', ('tasks from', 'decoding', 'runs', *shown), rows, note=note)


def _mean(scores: Mapping[str, Any], measure: str) -> float | None:
  return scores[measure]['mean'] if measure in scores else None


def _compared(title: str, pair: Sequence[Sequence[Record]], sampling: Sampling) -> Table:
  rows: list[tuple[Cell, ...]] = []
  for measure in results.measures_in([*pair[0], *pair[1]]):
    first, second = (results.by_task(records, measure) for records in pair)
    found = statistics.compare(first, second, sampling)
    told = 'yes' if found.is_clear else 'no'
    ways = (found.better, found.worse, found.estimate.count, found.unpaired)
    rows.append((measure, found.first, found.second, found, told, *ways))
  columns = ('measure', 'first', 'second', 'difference', 'clear', 'higher', 'lower', 'tasks', 'unpaired')
  note = f'Paired over tasks, {sampling.confidence:.0%} bootstrap intervals; clear: the interval leaves out 0.'
  return Table(title, columns, tuple(rows), note=note)


def _matrix(columns: Sequence[Mapping[str, float | None]], tasks: Sequence[str]) -> np.ndarray:
  rows = [[np.nan if column[task] is None else column[task] for column in columns] for task in tasks]
  return np.array(rows, np.float64).reshape(len(tasks), len(columns))


def _passes(
  records: Sequence[Record], tasks: Sequence[str], sampling: Sampling
) -> tuple[dict[int, Estimate], dict[int, Estimate]]:
  """pass@k and pass^k for k = 1, 2, 4, … and the most rollouts of any task; nothing where tasks have one rollout."""
  tries, passed = collections.Counter[str](), collections.Counter[str]()
  for record in records:
    if (success := record['measures'].get('success')) is not None:
      tries[record['task']] += 1
      passed[record['task']] += success == 1
  most = max(tries.values(), default=0)
  if most < 2:
    return {}, {}
  sizes = sorted({most, *(2**i for i in range(most.bit_length()))})
  estimators = (statistics.pass_at, statistics.pass_all)
  columns = [{t: pass_k(tries[t], passed[t], k) for t in tasks} for pass_k in estimators for k in sizes]
  found = statistics.bootstrap(_matrix(columns, tasks), sampling)
  at, every = found[: len(sizes)], found[len(sizes) :]
  return dict(zip(sizes, at, strict=True)), dict(zip(sizes, every, strict=True))


def _head(one: Summary) -> tuple[Cell, ...]:
  return one.name, one.mode


def _table(title: str, summaries: Sequence[Summary], measures: Sequence[str], *, digits: int = 3, note: str = ''):
  rows = tuple((*_head(one), one.tasks, *(one.scores.get(name) for name in measures)) for one in summaries)
  columns = ('tasks from', 'decoding', 'tasks', *(name.replace('_', ' ') for name in measures))
  return Table(title, columns, rows, digits, note)


def _over_sizes(summaries: Sequence[Summary], note: str) -> list[Table]:
  """For each sweep, kind of distractors and way to decode, the scores over K."""
  sweeps: dict[tuple[str, str, str], list[tuple[int, Summary]]] = {}
  for one in summaries:
    if match := _KSWEEP.fullmatch(one.name):
      sweeps.setdefault((match[1] or '', match[2], one.mode), []).append((int(match[3]), one))
  return [
    Table(
      f'{f"{of}, {kind}" if of else kind.capitalize()} distractors, {mode}: scores by the number of tools K',
      ('K', 'tasks', *SCORES),
      tuple((size, one.tasks, *(one.scores.get(name) for name in SCORES)) for size, one in sorted(found, key=_size)),
      note=f'{note} K = 0 leaves each task the tools that it has.',
    )
    for (of, kind, mode), found in sweeps.items()
  ]


def _size(pair: tuple[int, Summary]) -> int:
  return pair[0]


def _pass_tables(summaries: Sequence[Summary], note: str) -> list[Table]:
  sampled = [one for one in summaries if one.pass_at]
  sizes = sorted({k for one in sampled for k in one.pass_at})
  if not sampled:
    return []
  columns = ('tasks from', 'decoding', 'tasks', *(f'pass@{k}' for k in sizes), *(f'pass^{k}' for k in sizes))
  rows = tuple((*_head(one), one.tasks, *map(one.pass_at.get, sizes), *map(one.pass_all.get, sizes)) for one in sampled)
  return [Table('At least one, and all, of k rollouts succeed', columns, rows, note=note)]
