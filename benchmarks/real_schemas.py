"""Builds environments and tasks from the tool schemas of real servers, without a model, and prints what is left.

python benchmarks/real_schemas.py --schemas=toucan_tools.jsonl.gz --output=runs/real_schemas

Each server is read, built, tested in the sandbox, its graph made acyclic, and up to 10 tasks of it are replayed twice.
572 servers took 23 minutes on one core that had much other work; each waits for its sandbox most of the time, so that
--jobs of them are worked on at a time. --every=10 takes each tenth server.
"""

import asyncio
import collections
import concurrent.futures
import json
import pathlib
import time
from typing import Any

from absl import app, flags

from slca_jax.data.tasks import write_tasks
from slca_jax.dialogue import Task
from slca_jax.envs.sandbox import SandboxSettings, shared_sandbox
from slca_jax.toolverse.blueprint import save
from slca_jax.toolverse.deterministic.synthesise import DeterministicSettings, synthesise
from slca_jax.toolverse.graph import walk
from slca_jax.toolverse.making import MadeTasks, TaskSettings, make_tasks
from slca_jax.toolverse.outcome import Outcome
from slca_jax.toolverse.schemas import ToolSet, read_schemas
from slca_jax.toolverse.testing import run_tests

_SCHEMAS = flags.DEFINE_string('schemas', None, 'Raw tool schemas.', required=True)
_OUTPUT = flags.DEFINE_string('output', '', 'Where blueprints, tasks and reasons are written; nowhere if empty.')
_EVERY = flags.DEFINE_integer('every', 1, 'Take each n-th server.', lower_bound=1)
_JOBS = flags.DEFINE_integer('jobs', 4, 'Servers that are worked on at a time.', lower_bound=1)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of records and tasks.')


def main(_: list[str]) -> None:
  """Prints the funnel and the reasons of what was dropped."""
  start, stages, reasons = time.monotonic(), collections.Counter(), collections.Counter()
  made: list[MadeTasks] = []
  log = []
  sets = read_schemas(_SCHEMAS.value)[:: _EVERY.value]
  with concurrent.futures.ThreadPoolExecutor(_JOBS.value) as pool:
    for outcome, entry, found in pool.map(_worked, sets):
      stages['servers'] += 1
      log.append(entry)
      if outcome.blueprint is None:
        reasons['too few tools that can be understood' if entry['tools'] > 1 else 'a single tool'] += 1
        continue
      stages['built'] += 1
      stages['built, tools'] += len(outcome.blueprint.tools)
      if found is not None:
        stages['tests pass'] += 1
        _count(found, stages)
        made.append(found)
  _write(made, log)
  for name, count in stages.items():
    print(f'{count:7,}  {name}')
  print(f'{time.monotonic() - start:.0f} seconds; dropped: {dict(reasons)}')


def _worked(tools: ToolSet) -> tuple[Outcome, dict[str, Any], MadeTasks | None]:
  """What was built of a server, what is told of it, and its tasks if its tests pass."""
  sandbox = shared_sandbox(SandboxSettings())
  outcome = synthesise(tools, DeterministicSettings(seed=_SEED.value))
  left_out = dict(outcome.left_out)
  entry = {'server': tools.name, 'tools': len(tools.tools), 'dropped': outcome.reason, 'left_out': left_out}
  if outcome.blueprint is None:
    return outcome, entry, None
  report = asyncio.run(run_tests(outcome.blueprint, sandbox=sandbox))
  if not report.ok:
    return outcome, entry | {'dropped': str([*report.failures, *report.untested][0])}, None
  found = make_tasks(outcome.blueprint, TaskSettings(seed=_SEED.value), sandbox=sandbox)
  entry |= {
    'tasks': len(found.tasks),
    'depth': found.depth,
    'broken': [f'{b.tool}: {b.reason}' for b in found.broken],
    'unlike': dict(found.unlike),
    'unreached': dict(found.unreached),
    'removed': [f'{removal.edge}: {removal.reason}' for removal in found.removed],
  }
  return outcome, entry, found


def _count(found: MadeTasks, stages: collections.Counter[str]) -> None:
  stages['graph acyclic'] += len(walk(found.graph)) == len(found.graph.nodes)
  stages['edges removed for that'] += len(found.removed)
  stages['some task'] += bool(found.traced)
  stages['tasks traced'] += len(found.traced)
  stages['a task that replays twice'] += bool(found.tasks)
  stages['such a task with 3 calls in a row that the graph orders'] += any(_ordered(t, found) >= 3 for t in found.tasks)
  stages['such a task with 3 calls in a row that hand on values'] += found.depth >= 3
  stages['tasks that replay twice, at most 10 each'] += len(found.tasks)
  stages['of these, 3 calls in a row that the graph orders'] += sum(_ordered(t, found) >= 3 for t in found.tasks)
  stages['of these, 3 calls in a row that hand on values'] += sum(t.meta['depth'] >= 3 for t in found.tasks)
  stages['tasks that did not replay'] += len(found.unlike)
  stages['samples without a trace'] += len(found.broken)


def _ordered(task: Task, found: MadeTasks) -> int:
  """The longest chain of the task's calls each of which must come after the one before it."""
  depth: dict[str, int] = {}
  for step in task.gold:
    before = dict(depth)
    for call in step:
      sources = [before[edge.source] for edge in found.graph.into(call.name) if edge.source in before]
      depth[call.name] = 1 + max(sources, default=0)
  return max(depth.values(), default=0)


def _write(made: list[MadeTasks], log: list[dict]) -> None:
  if not _OUTPUT.value:
    return
  output = pathlib.Path(_OUTPUT.value)
  output.mkdir(parents=True, exist_ok=True)
  for found in made:
    save(found.blueprint, output / 'blueprints' / found.blueprint.name)
  write_tasks([task for found in made for task in found.tasks], output / 'tasks.jsonl')
  (output / 'servers.jsonl').write_text('\n'.join(json.dumps(entry) for entry in log) + '\n', 'utf-8')


if __name__ == '__main__':
  app.run(main)
