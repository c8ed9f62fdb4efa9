"""The whole way from raw schemas to tasks, in a folder that a second run continues.

runs/toolverse/
  blueprints/NAME/   tested environments
  tasks.jsonl        tasks of all of them; their `blueprint` is a folder name in blueprints/
  made.jsonl         what was made of each blueprint, so that it is not made again
  servers.jsonl      for each server: what was left out and why, why it was dropped, removed edges, cost
  graphs/NAME.html   the graph of each environment, with the edges that were removed and why
  funnel.md          what was left after each stage
"""

import asyncio
import collections
import dataclasses
import json
import pathlib
from collections.abc import Sequence
from typing import Any, Literal

from slca_jax.config import as_dict, require
from slca_jax.data.tasks import task_from_json, task_to_json, write_tasks
from slca_jax.dialogue import Task
from slca_jax.envs.sandbox import Sandbox, SandboxSettings, shared_sandbox
from slca_jax.llm.answers import digest
from slca_jax.llm.chat import ChatModel
from slca_jax.llm.settings import Endpoint, check_endpoint
from slca_jax.toolverse.blueprint import Blueprint, files, save
from slca_jax.toolverse.deterministic.synthesise import DeterministicSettings, synthesise
from slca_jax.toolverse.drawing import page
from slca_jax.toolverse.funnel import Row, markdown, of_blueprints, of_tasks
from slca_jax.toolverse.journal import Journal
from slca_jax.toolverse.making import MadeTasks, TaskSettings, make_tasks
from slca_jax.toolverse.outcome import Outcome
from slca_jax.toolverse.schemas import ToolSet, read_schemas
from slca_jax.toolverse.synthesis import Synthesis, SynthesisSettings
from slca_jax.toolverse.testing import retest


@dataclasses.dataclass(frozen=True, slots=True)
class ToolverseConfig:
  """How environments and tasks are made.

  Attributes:
    schemas: file or folder of raw tool schemas.
    output: the folder.
    maker: 'deterministic' asks no model; 'model' asks `endpoint`.
    deterministic, synthesis: of the one maker and the other.
    tasks: how tasks are drawn and kept.
    sandbox: how generated code is confined.
    most_servers: of the schemas, the first ones; 0 takes all.
  """

  schemas: str = ''
  output: str = 'runs/toolverse'
  maker: Literal['deterministic', 'model'] = 'deterministic'
  deterministic: DeterministicSettings = dataclasses.field(default_factory=DeterministicSettings)
  endpoint: Endpoint = dataclasses.field(default_factory=Endpoint)
  synthesis: SynthesisSettings = dataclasses.field(default_factory=SynthesisSettings)
  tasks: TaskSettings = dataclasses.field(default_factory=TaskSettings)
  sandbox: SandboxSettings = dataclasses.field(default_factory=SandboxSettings)
  most_servers: int = 0


def make(config: ToolverseConfig) -> str:
  """The funnel of a run as a Markdown table; everything else lies in the folder.

  Raises:
    ConfigError: a setting is missing, or this machine protects less than the sandbox asks for.
    DataError: the schemas cannot be read.
    EndpointFailure: the endpoint answers nothing, whatever is asked.
  """
  require(bool(config.schemas), 'schemas is empty; give a file or a folder of tool schemas')
  if config.maker == 'model':
    check_endpoint(config.endpoint, 'endpoint')
  sandbox = shared_sandbox(config.sandbox)
  sandbox.require_level()
  sets = read_schemas(config.schemas)[: config.most_servers or None]
  outcomes = _outcomes(config, sets)
  return _finish(config, sets, _named_apart(outcomes), sandbox)


def _outcomes(config: ToolverseConfig, sets: Sequence[ToolSet]) -> list[Outcome]:
  if config.maker == 'deterministic':
    return [synthesise(tools, config.deterministic) for tools in sets]

  async def ask() -> list[Outcome]:
    model = ChatModel('synthesis', config.endpoint)
    try:
      folder = pathlib.Path(config.output) / 'synthesis'
      return await Synthesis(model, folder, settings=config.synthesis).make_all(sets)
    finally:
      await model.close()

  return asyncio.run(ask())


def _named_apart(outcomes: Sequence[Outcome]) -> list[Outcome]:
  """The outcomes with a folder name of its own for each blueprint."""
  seen: collections.Counter[str] = collections.Counter()
  apart = []
  for outcome in outcomes:
    made = outcome.blueprint
    if made is not None:
      seen[made.name] += 1
      name = made.name if seen[made.name] == 1 else f'{made.name}-{seen[made.name]}'
      outcome = dataclasses.replace(outcome, blueprint=dataclasses.replace(made, name=name))
    apart.append(outcome)
  return apart


def _finish(config: ToolverseConfig, sets: Sequence[ToolSet], outcomes: Sequence[Outcome], sandbox: Sandbox) -> str:
  """Tests, graphs and tasks of the environments; writes the folder."""
  output = pathlib.Path(config.output)
  journal = Journal(output / 'made.jsonl')
  notes, passed, kept = [], [], []
  for outcome in outcomes:
    note: dict[str, Any] = {'server': outcome.server, 'dropped': outcome.reason, 'left_out': dict(outcome.left_out)}
    note |= {'cost': dict(outcome.cost)} if outcome.cost else {}
    notes.append(note)
    if outcome.blueprint is None:
      continue
    record = _worked(outcome.blueprint, config.tasks, sandbox, journal)
    note |= {key: part for key, part in record.items() if key not in ('key', 'tasks', 'page')}
    if record['dropped']:
      continue
    save(outcome.blueprint, output / 'blueprints' / outcome.blueprint.name)
    _write(output / 'graphs' / f'{outcome.blueprint.name}.html', record['page'])
    passed.append(outcome.blueprint)
    kept += [task_from_json(task) for task in record['tasks']]
  write_tasks(kept, output / 'tasks.jsonl')
  _write(output / 'servers.jsonl', ''.join(json.dumps(note, ensure_ascii=False) + '\n' for note in notes))
  table = _table(sets, [one.blueprint for one in outcomes if one.blueprint], passed, kept)
  _write(output / 'funnel.md', table)
  return table


def _worked(blueprint: Blueprint, settings: TaskSettings, sandbox: Sandbox, journal: Journal) -> dict[str, Any]:
  """What was made of a blueprint, as JSON; kept under a digest of both."""
  key = digest({'blueprint': files(blueprint), 'tasks': as_dict(settings)})
  known = journal.get(key)
  if known is not None:
    return known
  report = retest(blueprint, sandbox=sandbox)
  record: dict[str, Any] = {'dropped': '', 'traced': 0, 'tasks': [], 'page': ''}
  if report.ok:
    record |= _tasks_as_json(make_tasks(blueprint, settings, sandbox=sandbox))
  else:
    faults = [*map(str, report.failures), *(f'no test calls {name}' for name in report.untested), 'it has no tests']
    record['dropped'] = f'its tests do not pass: {faults[0]}'
  journal.put(key, record)
  return record


def _tasks_as_json(made: MadeTasks) -> dict[str, Any]:
  return {
    'traced': len(made.traced),
    'tasks': [task_to_json(task) for task in made.tasks],
    'depth': made.depth,
    'removed': [f'{removal.edge}: {removal.reason}' for removal in made.removed],
    'unreached': dict(made.unreached),
    'broken': [f'{broken.tool}: {broken.reason}' for broken in made.broken],
    'unlike': dict(made.unlike),
    'page': page(made.graph, made.removed, title=made.blueprint.name),
  }


def _table(sets: Sequence[ToolSet], built: list[Blueprint], passed: list[Blueprint], kept: list[Task]) -> str:
  chains = [task for task in kept if task.meta['depth'] >= 3]
  return markdown(
    [
      Row('servers', len(sets), sum(len(tools.tools) for tools in sets)),
      of_blueprints('built', built),
      of_blueprints('tests pass', passed),
      of_tasks('tasks that replay', kept),
      of_tasks('of these, with a chain of three calls or more', chains),
    ]
  )


def _write(path: pathlib.Path, text: str) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text, 'utf-8')
