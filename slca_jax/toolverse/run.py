"""The whole way from raw schemas to tasks, in a folder that a second run continues.

runs/toolverse/
  blueprints/NAME/   tested environments
  tasks.jsonl        tasks of all of them; their `blueprint` is a folder name in blueprints/
  made.jsonl         what was made of each blueprint, so that it is not made again
  teacher.jsonl      how often a teacher solved each task
  answers/           what models answered when they worded questions and proposed edges
  servers.jsonl      for each server: what was left out and why, why it was dropped, removed edges, cost
  graphs/NAME.html   the graph of each environment, with the edges that were removed and why
  funnel.md          what was left after each stage
"""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from slca_jax import blocking
from slca_jax.config import as_dict, require
from slca_jax.data.folders import claimed
from slca_jax.data.tasks import task_from_json, task_to_json, write_tasks
from slca_jax.dialogue import Task
from slca_jax.envs.sandbox import Sandbox, SandboxSettings, shared_sandbox
from slca_jax.llm.answers import Answers, digest
from slca_jax.llm.chat import ChatModel
from slca_jax.llm.settings import Endpoint, Sampling, check_endpoint
from slca_jax.toolverse import asking
from slca_jax.toolverse.blueprint import Blueprint, files, save
from slca_jax.toolverse.counsel import Counsel, Desk
from slca_jax.toolverse.deterministic.synthesise import DeterministicSettings, synthesise
from slca_jax.toolverse.drawing import page
from slca_jax.toolverse.funnel import Row, markdown, of_blueprints, of_tasks
from slca_jax.toolverse.journal import Journal
from slca_jax.toolverse.making import MadeTasks, TaskSettings, make_tasks
from slca_jax.toolverse.outcome import Outcome
from slca_jax.toolverse.schemas import ToolSet, read_schemas
from slca_jax.toolverse.synthesis import Synthesis, SynthesisSettings
from slca_jax.toolverse.teaching import Teacher, taught
from slca_jax.toolverse.testing import retest

WRITER = Endpoint(sampling=Sampling(temperature=0.8, max_tokens=1024))
PROPOSER = Endpoint(sampling=Sampling(max_tokens=4096))
_THREADS = 16  # environments at once while models are asked: each of them asks one question at a time
Counsels = Mapping[str, Counsel]  # by the setting that names the endpoint


@dataclasses.dataclass(frozen=True, slots=True)
class ToolverseConfig:
  """How environments and tasks are made.

  Attributes:
    schemas: file or folder of raw tool schemas.
    output: the folder.
    maker: 'deterministic' asks no model; 'model' asks `endpoint`.
    deterministic, synthesis: of the one maker and the other.
    writer: the model that words the questions; without `writer.model` a template does, and where no reply will do.
    proposer: the model that proposes semantic edges of the graphs; without `proposer.model` none does.
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
  writer: Endpoint = WRITER
  proposer: Endpoint = PROPOSER
  tasks: TaskSettings = dataclasses.field(default_factory=TaskSettings)
  sandbox: SandboxSettings = dataclasses.field(default_factory=SandboxSettings)
  most_servers: int = 0


def make(config: ToolverseConfig, *, teacher: Teacher | None = None) -> str:
  """The funnel of a run as a Markdown table; everything else lies in the folder.

  Args:
    teacher: tries the tasks that replay; those in its band are kept.

  Raises:
    ConfigError: a setting is missing, an endpoint cannot be used, the output cannot be written or another run holds it,
      or this machine protects less than the sandbox asks for.
    DataError: the schemas cannot be read.
    EndpointFailure: the endpoint answers nothing, whatever is asked.
    SamplerError: the teacher's engine could not try a single task.
  """
  require(bool(config.schemas), 'schemas is empty; give a file or a folder of tool schemas')
  require(config.most_servers >= 0, f'most_servers is {config.most_servers}; it is at least 0, which takes all')
  if config.maker == 'model':
    check_endpoint(config.endpoint, 'endpoint')
  sandbox = shared_sandbox(config.sandbox)
  sandbox.require_level()
  sets = read_schemas(config.schemas)[: config.most_servers or None]
  with contextlib.ExitStack() as stack:
    counsels = _counsels(config, stack)
    stack.enter_context(claimed(pathlib.Path(config.output)))
    outcomes = _named_apart(_outcomes(config, sets, sandbox))
    return _finish(config, sets, outcomes, sandbox, counsels, teacher)


def _counsels(config: ToolverseConfig, stack: contextlib.ExitStack) -> Counsels:
  """The models that are asked while tasks are made, each of which has answered once."""
  answers = Answers(pathlib.Path(config.output) / 'answers')
  wanted = {name: endpoint for name in ('writer', 'proposer') if (endpoint := getattr(config, name)).model}
  for name, endpoint in wanted.items():
    check_endpoint(endpoint, name)
  counsels = {
    name: stack.enter_context(Counsel(ChatModel(name, endpoint, answers=answers))) for name, endpoint in wanted.items()
  }
  for counsel in counsels.values():
    counsel.probe()
  return counsels


def _outcomes(config: ToolverseConfig, sets: Sequence[ToolSet], sandbox: Sandbox) -> list[Outcome]:
  if config.maker == 'deterministic':
    return [synthesise(tools, config.deterministic) for tools in sets]

  async def ask() -> list[Outcome]:
    model = ChatModel('synthesis', config.endpoint)
    try:
      folder = pathlib.Path(config.output) / 'synthesis'
      return await Synthesis(model, folder, settings=config.synthesis, sandbox=sandbox).make_all(sets)
    finally:
      await model.close()

  return blocking.run(ask())


def _named_apart(outcomes: Sequence[Outcome]) -> list[Outcome]:
  """The outcomes with a folder name of its own for each blueprint."""
  taken: set[str] = set()
  apart = []
  for outcome in outcomes:
    made = outcome.blueprint
    if made is not None:
      numbered = (f'{made.name}-{number}' for number in itertools.count(2))
      name = next(name for name in itertools.chain((made.name,), numbered) if name not in taken)
      taken.add(name)
      outcome = dataclasses.replace(outcome, blueprint=dataclasses.replace(made, name=name))
    apart.append(outcome)
  return apart


def _finish(
  config: ToolverseConfig,
  sets: Sequence[ToolSet],
  outcomes: Sequence[Outcome],
  sandbox: Sandbox,
  counsels: Counsels,
  teacher: Teacher | None,
) -> str:
  """Tests, graphs and tasks of the environments; writes the folder."""
  output = pathlib.Path(config.output)
  built = [outcome.blueprint for outcome in outcomes if outcome.blueprint is not None]
  records = dict(zip((one.name for one in built), _all_worked(built, config, sandbox, counsels), strict=True))
  notes, passed, made = [], [], []
  for outcome in outcomes:
    note: dict[str, Any] = {'server': outcome.server, 'dropped': outcome.reason, 'left_out': dict(outcome.left_out)}
    record = records[outcome.blueprint.name] if outcome.blueprint else {}
    note |= {key: part for key, part in record.items() if key not in ('key', 'tasks', 'page', 'cost')}
    note |= _cost(outcome.cost, record.get('cost', {}))
    notes.append(note)
    if outcome.blueprint is None or record['dropped']:
      continue
    save(outcome.blueprint, output / 'blueprints' / outcome.blueprint.name)
    _write(output / 'graphs' / f'{outcome.blueprint.name}.html', record['page'])
    passed.append(outcome.blueprint)
    made += [task_from_json(task) for task in record['tasks']]
  _write(output / 'servers.jsonl', ''.join(json.dumps(note, ensure_ascii=False) + '\n' for note in notes))
  rows = _rows(sets, built, passed, made)
  if teacher is not None:
    made = taught(made, teacher, Journal(output / 'teacher.jsonl'))
    rows.append(of_tasks(f'tasks that a teacher solves {teacher.band}', made))
  write_tasks(made, output / 'tasks.jsonl')
  table = markdown(rows)
  _write(output / 'funnel.md', table)
  return table


def _cost(*parts: Mapping[str, float]) -> dict[str, dict[str, float]]:
  """The sum of what was spent, if anything was asked."""
  names = dict.fromkeys(name for part in parts for name in part)
  return {'cost': {name: sum(part.get(name, 0.0) for part in parts) for name in names}} if names else {}


def _all_worked(
  blueprints: Sequence[Blueprint], config: ToolverseConfig, sandbox: Sandbox, counsels: Counsels
) -> list[dict[str, Any]]:
  """What was made of each blueprint, as JSON; kept under a digest of it and of all that it is made with.

  Where an endpoint did not answer, what was made without it is not kept, so that the next run asks again.
  """
  journal = Journal(pathlib.Path(config.output) / 'made.jsonl')
  asked = {
    name: [one.model.endpoint.model, dataclasses.asdict(one.model.endpoint.sampling), one.model.endpoint.extra]
    for name, one in counsels.items()
  }
  made_with = {'tasks': as_dict(config.tasks), 'sandbox': as_dict(config.sandbox)}
  made_with |= {'asked': asked, 'prompts': asking.VERSIONS} if asked else {}
  keys = [digest({'blueprint': files(blueprint), **made_with}) for blueprint in blueprints]
  records = {key: known for key in keys if (known := journal.get(key)) is not None}
  with concurrent.futures.ThreadPoolExecutor(_THREADS if counsels else 1) as pool:
    work = {
      pool.submit(_worked, blueprint, config.tasks, sandbox, counsels): key
      for key, blueprint in zip(keys, blueprints, strict=True)
      if key not in records
    }
    try:
      for done in concurrent.futures.as_completed(work):
        records[work[done]] = record = done.result()
        if not record['unanswered']:
          journal.put(work[done], record)
    finally:
      pool.shutdown(cancel_futures=True)
  return [records[key] for key in keys]


def _worked(blueprint: Blueprint, settings: TaskSettings, sandbox: Sandbox, counsels: Counsels) -> dict[str, Any]:
  """What was made of a blueprint, as JSON."""
  report = retest(blueprint, sandbox=sandbox)
  record: dict[str, Any] = {'dropped': '', 'traced': 0, 'tasks': [], 'page': '', 'unanswered': 0}
  if not report.ok:
    faults = [*map(str, report.failures), *(f'no test calls {name}' for name in report.untested), 'it has no tests']
    return record | {'dropped': f'its tests do not pass: {faults[0]}'}
  desk, writer, proposer = Desk(), counsels.get('writer'), counsels.get('proposer')
  made = make_tasks(
    blueprint,
    settings,
    sandbox=sandbox,
    suggest=desk.proposer(proposer) if proposer else None,
    write=desk.writer(writer) if writer else None,
  )
  asked = {'asked': dict(desk.counts), 'cost': desk.cost, 'unanswered': desk.unanswered} if counsels else {}
  return record | _tasks_as_json(made) | asked


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


def _rows(sets: Sequence[ToolSet], built: list[Blueprint], passed: list[Blueprint], made: list[Task]) -> list[Row]:
  worded = [task for task in made if task.meta['writer'] != 'template']
  chains = [task for task in made if task.meta['depth'] >= 3]
  return [
    Row('servers', len(sets), sum(len(tools.tools) for tools in sets)),
    of_blueprints('built', built),
    of_blueprints('tests pass', passed),
    of_tasks('tasks that replay', made),
    *([of_tasks('of these, worded by a model', worded)] if worded else []),
    of_tasks('of these, with a chain of three calls or more', chains),
  ]


def _write(path: pathlib.Path, text: str) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text(text, 'utf-8')
