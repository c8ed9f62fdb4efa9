"""A whole K-sweep: from one file of tasks a file for every K and strategy, and what the prompts came to."""

import dataclasses
import json
import logging
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from slca_jax.config import as_dict, require
from slca_jax.data.folders import claimed
from slca_jax.data.formats.read import read
from slca_jax.data.ksweep import (
  Embed,
  Neighbours,
  Pool,
  Rules,
  Strategy,
  Tally,
  anchors,
  expand,
  gather,
  nearest,
)
from slca_jax.data.tasks import read_tasks, write_tasks
from slca_jax.dialogue import Task, Tool
from slca_jax.errors import DataError


@dataclasses.dataclass(frozen=True)
class KSweepConfig:
  """A sweep.

  Attributes:
    input: JSONL of tasks; their tools make the pool.
    output: the folder that gets STRATEGY_kK.jsonl for each, report.md and report.json.
    pool: further data sets of any format that is read, with commas between; their tools are added to the pool.
    sizes: every K; 0 is the tasks as they are.
    strategies: how distractors are drawn.
    rules: the details of it.
    template: the checkpoint, a folder or hub name, whose chat template and tokenizer measure prompts.
    template_options: options for that template, such as enable_thinking.
    embedder: a sentence embedding model, a folder or hub name; needed for hard distractors only.
    embed_tokens: tokens that are embedded at once.
    context: tokens that the policy's context holds.
    reserve: how many of them are left for the response.
  """

  input: str = ''
  output: str = 'data/ksweep'
  pool: str = ''
  sizes: tuple[int, ...] = (0, 10, 20, 50, 100, 150)
  strategies: tuple[Strategy, ...] = ('random', 'hard')
  rules: Rules = dataclasses.field(default_factory=Rules)
  template: str = 'Qwen/Qwen2.5-7B-Instruct'
  template_options: dict[str, Any] = dataclasses.field(default_factory=dict)
  embedder: str = 'sentence-transformers/all-MiniLM-L6-v2'
  embed_tokens: int = 2048
  context: int = 32768
  reserve: int = 0

  def __post_init__(self):
    require(bool(self.input), 'input is empty; name a JSONL file of tasks')
    require(bool(self.strategies), 'strategies is empty; take random, hard or both')
    for name in ('sizes', 'strategies'):
      values = getattr(self, name)
      require(len(set(values)) == len(values), f'{name} {values} name one twice; its file would be written twice')
    require(bool(self.sizes) and min(self.sizes, default=0) >= 0, f'sizes are {self.sizes}; they are at least 0')
    require(self.embed_tokens > 0, f'embed_tokens is {self.embed_tokens}; it must be positive')
    fits = 0 <= self.reserve < self.context
    require(fits, f'reserve is {self.reserve}; it is a part of the {self.context} tokens of the context')


def run(config: KSweepConfig, *, measure: Callable[[Task], int], embed: Embed | None = None) -> str:
  """Makes every file of the sweep and the report, whose text in Markdown is returned.

  Args:
    measure: tokens of a task's prompt.
    embed: texts to vectors, a row each; None only if no strategy is hard.

  Raises:
    ConfigError: another run holds the output, or nothing can be written there.
    DataError: tasks or a pool that cannot be read, a K that the pool cannot fill for any task, or none but tasks that
      live in a world.
  """
  tasks = read_tasks(config.input)
  pool = gather(_tools(tasks, filter(None, config.pool.split(','))), twins=config.rules.twins)
  _check_worlds(tasks, config)
  most, own = max(config.sizes), max((len(task.tools) for task in tasks), default=0)
  if not tasks or most > max(len(pool.tools), own):
    raise DataError(
      f'{config.input}: {len(tasks)} tasks and a pool of {len(pool.tools)} tools do not do for K = {most}; '
      'name further data sets in pool, or take smaller sizes'
    )
  hard = 'hard' in config.strategies
  if hard and embed is None:
    raise DataError('hard distractors need an embedding model; pass embed, or take the strategy random alone')
  with claimed(pathlib.Path(config.output)):
    neighbours = _neighbours(tasks, pool, embed, most + 2 * own) if hard and embed else None
    return _sweep(config, tasks, pool, neighbours, measure)


def _sweep(
  config: KSweepConfig,
  tasks: Sequence[Task],
  pool: Pool,
  neighbours: Neighbours | None,
  measure: Callable[[Task], int],
) -> str:
  output, tallies = pathlib.Path(config.output), []
  for strategy in config.strategies:
    for size in config.sizes:
      tally = Tally(strategy, size)
      made = expand(
        tqdm(tasks, f'{strategy}, K = {size}', disable=None),
        pool,
        tally,
        measure=measure,
        limit=config.context - config.reserve,
        rules=config.rules,
        neighbours=neighbours if strategy == 'hard' else None,
      )
      write_tasks(made, output / f'{strategy}_k{size}.jsonl')
      tallies.append(tally)
  about = _about(tasks, pool)
  text = report(tallies, about, limit=config.context - config.reserve)
  whole = {'config': as_dict(config), **about, 'sizes': [_numbers(tally) for tally in tallies]}
  (output / 'report.json').write_text(json.dumps(whole, indent=2) + '\n', encoding='utf-8')
  (output / 'report.md').write_text(text, encoding='utf-8')
  return text


def report(tallies: Sequence[Tally], about: Mapping[str, Any], *, limit: int) -> str:
  """A table for each strategy, in Markdown: for every K the skip rate and the prompt lengths of the tasks that stay.

  SLCA-GRPO (arXiv:2609.29050), tables 13 and 14.
  """
  tools, gold, pool = about['tools_per_task'], about['gold_per_task'], about['pool']
  lines = [
    f'{about["tasks"]:,} tasks with {tools:.2f} tools each, {gold:.2f} of them gold; a pool of {pool:,} tools. '
    f'Prompts are measured in tokens, the dialogue so far included; those above {limit:,} are skipped, and the lengths '
    'are of the rest.'
  ]
  for strategy in dict.fromkeys(tally.strategy for tally in tallies):
    ours = [tally for tally in tallies if tally.strategy == strategy]
    lines += ['', f'### {strategy.capitalize()} distractors', '']
    lines += ['| K | kept | skipped | skip rate | mean | median | p95 | max |', '|---:' * 8 + '|']
    lines += [_line(_numbers(tally)) for tally in ours]
    for title, told in (
      ('Skipped', {tally.size: ', '.join(f'{n:,} {why}' for why, n in tally.skipped.items()) for tally in ours}),
      ('Drawn at random below the similarity floor', {t.size: f'{t.filled:,}' for t in ours if t.filled}),
    ):
      if any(told.values()):
        lines += ['', f'{title}: ' + '; '.join(f'K = {size}: {text}' for size, text in told.items() if text) + '.']
  return '\n'.join(lines) + '\n'


def _check_worlds(tasks: Sequence[Task], config: KSweepConfig) -> None:
  """Warns of tasks whose tools belong to a world, and refuses a sweep that would hold no others."""
  worlds = sum(task.blueprint is not None for task in tasks)
  if not worlds or not any(config.sizes):
    return
  told = f'{config.input}: {worlds} of {len(tasks)} tasks name a blueprint, whose world executes no tools but its own'
  if worlds == len(tasks):
    raise DataError(f'{told}; take tasks without one, or the size 0 alone, which leaves tasks as they are')
  logging.warning('%s; they are skipped at every K but 0', told)


def _tools(tasks: Sequence[Task], sources: Iterable[str]) -> Iterator[Tool]:
  """The tools of the tasks, then those of other data sets; rows of theirs that are faulty are left out and logged."""
  for task in tasks:
    yield from task.tools
  for source in sources:
    faults = 0
    for row in read(source, strict=False):
      whole = row.task or row.dialogue
      yield from whole.tools if whole else row.tools
      faults += bool(row.fault)
    if faults:
      logging.warning('%s: %d rows are faulty; their tools are not in the pool', source, faults)


def _neighbours(tasks: Sequence[Task], pool: Pool, embed: Embed, count: int) -> Neighbours:
  """Neighbours of every anchor, enough of them that what a task has already can be passed over."""
  return nearest((tool for task in tasks for tool in anchors(task)), pool, embed, count=count)


def _about(tasks: Sequence[Task], pool: Pool) -> dict[str, Any]:
  gold = [len({call.name for step in task.gold for call in step}) for task in tasks]
  return {
    'tasks': len(tasks),
    'tools_per_task': float(np.mean([len(task.tools) for task in tasks])),
    'gold_per_task': float(np.mean(gold)),
    'pool': len(pool.tools),
    'dropped': dict(pool.dropped),
  }


def _numbers(tally: Tally) -> dict[str, Any]:
  lengths = np.asarray(tally.lengths)
  prompts: dict[str, float | None] = dict.fromkeys(('mean', 'median', 'p95', 'max'))
  if lengths.size:
    prompts = {
      'mean': float(lengths.mean()),
      'median': float(np.median(lengths)),
      'p95': float(np.percentile(lengths, 95)),
      'max': int(lengths.max()),
    }
  return {
    'strategy': tally.strategy,
    'size': tally.size,
    'samples': tally.samples,
    'kept': len(lengths),
    'skipped': dict(tally.skipped),
    'skip_rate': 1 - len(lengths) / max(tally.samples, 1),
    'filled': tally.filled,
    'longest': tally.longest,
    **prompts,
  }


def _line(numbers: Mapping[str, Any]) -> str:
  lengths = [f'{numbers[key]:,.0f}' if numbers['kept'] else '-' for key in ('mean', 'median', 'p95', 'max')]
  skipped = numbers['samples'] - numbers['kept']
  cells = [str(numbers['size']), f'{numbers["kept"]:,}', f'{skipped:,}', f'{numbers["skip_rate"]:.2%}', *lengths]
  return f'| {" | ".join(cells)} |'
