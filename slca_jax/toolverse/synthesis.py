"""Environments written by a model: schemas, scene and records, functions, tests; then repaired until they hold.

    synthesis = Synthesis(ChatModel('synthesis', endpoint), 'runs/synthesis')
    outcomes = await synthesis.make_all(read_schemas('tools.json'))

Each step leaves a line in `schemas.jsonl`, `scene.jsonl`, `functions.jsonl`, `tests.jsonl` or `worlds.jsonl` with its
prompt's version, its tokens and cost, and the reason if it was the last one. A run that starts again in the same folder
asks only for what is not there. Code runs in the sandbox only.
"""

import asyncio
import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from slca_jax.config import require
from slca_jax.dialogue import Tool, ToolCall
from slca_jax.envs.sandbox import Sandbox
from slca_jax.errors import EndpointFailure, EnvironmentFailure
from slca_jax.llm.answers import digest
from slca_jax.llm.chat import ChatModel
from slca_jax.llm.replies import OF_CONTENT, Reply
from slca_jax.toolverse import blueprint as blueprints
from slca_jax.toolverse import prompts
from slca_jax.toolverse.blueprint import Blueprint, Check, UnitTest
from slca_jax.toolverse.deterministic.synthesise import slug
from slca_jax.toolverse.journal import Journal
from slca_jax.toolverse.outcome import Outcome
from slca_jax.toolverse.schemas import ToolSet
from slca_jax.toolverse.testing import Report, run_tests

Read = TypeVar('Read')
_STEPS = ('schemas', 'scene', 'functions', 'tests', 'worlds')


@dataclasses.dataclass(frozen=True, slots=True)
class SynthesisSettings:
  """How a model builds environments.

  Attributes:
    repairs: how often the failures of a world are shown to the model before it is dropped.
    most_tools: of a server; further ones are left out.
    least_tools: a server with fewer tools that can be stood in for is dropped.
    records: most records per table.
  """

  repairs: int = 3
  most_tools: int = 40
  least_tools: int = 2
  records: int = 5

  def __post_init__(self):
    require(self.repairs >= 0, f'repairs is {self.repairs}; it is at least 0')
    require(self.least_tools >= 1, f'least_tools is {self.least_tools}; it is at least 1')
    require(self.most_tools >= self.least_tools, f'most_tools is {self.most_tools}; it is at least least_tools')
    require(3 <= self.records <= 50, f'records is {self.records}; it lies between 3 and 50')


class _Dropped(Exception):
  """A server that is dropped, with the reason."""


class Synthesis:
  """A folder of steps, and the model that makes them."""

  def __init__(
    self,
    model: ChatModel,
    folder: str | os.PathLike[str],
    *,
    settings: SynthesisSettings | None = None,
    sandbox: Sandbox | None = None,
  ):
    """Opens the folder; nothing is asked.

    Args:
      sandbox: where what the model wrote is tested; one with the defaults if None.
    """
    self._model, self._sandbox = model, sandbox
    self._settings = settings or SynthesisSettings()
    self._journals = {step: Journal(pathlib.Path(folder) / f'{step}.jsonl') for step in _STEPS}

  async def make_all(self, sets: Sequence[ToolSet]) -> list[Outcome]:
    """The outcome of each server, in order; servers are built at once, as far as the endpoint's concurrency goes.

    Raises:
      EndpointFailure: the endpoint answers nothing, whatever is asked.
    """
    return list(await asyncio.gather(*(self.make(tools) for tools in sets)))

  async def make(self, tools: ToolSet) -> Outcome:
    """The outcome of a server. What an earlier run finished is not asked for again.

    Raises:
      EndpointFailure: the endpoint answers nothing, whatever is asked.
    """
    work = _Work(tools, self._model, self._journals)
    left_out: dict[str, str] = {}
    try:
      made = await self._build(work, left_out)
    except _Dropped as reason:
      return Outcome(tools.name, None, str(reason), left_out, work.cost)
    except EndpointFailure as failure:
      if failure.kind == 'unusable':
        raise
      return Outcome(tools.name, None, f'no answer: {failure}', left_out, work.cost)
    return Outcome(tools.name, made, '', left_out, work.cost)

  async def _build(self, work: '_Work', left_out: dict[str, str]) -> Blueprint:
    settings, raw = self._settings, work.tools
    left_out.update({tool.name: f'most_tools is {settings.most_tools}' for tool in raw.tools[settings.most_tools :]})
    asked = prompts.ask_schemas(raw.name, raw.tools, most_tools=settings.most_tools)
    told = await work.step('schemas', asked, lambda reply: _plain_schemas(prompts.read_schemas(reply)))
    tools = tuple(Tool(**entry) for entry in told['tools'])
    left_out.update(told['left_out'])
    if len(tools) < settings.least_tools:
      raise _Dropped(
        f'{len(tools)} of {len(raw.tools)} tools can be stood in for; least_tools is {settings.least_tools}'
      )
    asked = prompts.ask_scene(raw.name, tools, records=settings.records)
    scene, database = await work.step('scene', asked, prompts.read_scene)
    source = await work.step('functions', prompts.ask_functions(tools, scene, database), prompts.read_functions)
    tests = await work.step('tests', prompts.ask_tests(tools, database, source), prompts.read_tests)
    origin = {'maker': f'model {self._model.endpoint.model}', 'prompts': dict(prompts.VERSIONS), 'server': raw.name}
    origin |= {'origin': raw.origin, 'licence': raw.licence, 'scene': scene, 'left_out': dict(left_out)}
    return await self._hold(work, _Draft(slug(raw.name), tools, database, source, tests, origin))

  async def _hold(self, work: '_Work', draft: '_Draft') -> Blueprint:
    """The draft once it passes; each failure is shown to the model, up to `repairs` times."""
    confined = dataclasses.asdict(self._sandbox.settings) if self._sandbox else {}
    key = digest({'draft': dataclasses.asdict(draft), 'repairs': self._settings.repairs, 'sandbox': confined})
    kept = self._journals['worlds'].get(key)
    if kept is not None:
      work.count(kept['cost'])
      if kept['reason']:
        raise _Dropped(kept['reason'])
      return dataclasses.replace(draft, source=kept['source'], tests=kept['tests']).blueprint(kept['tries'])
    before, tries = dict(work.cost), 0
    while faults := await self._faults(draft):
      tries += 1
      if tries > self._settings.repairs:
        break
      asked = prompts.ask_repair(draft.tools, draft.database, draft.source, draft.tests, faults)
      source, tests = await work.ask('repair', asked, prompts.read_repair, sample=tries)
      draft = dataclasses.replace(draft, source=source or draft.source, tests=tests or draft.tests)
    reason = f'after {tries - 1} repairs: {faults[0]}' if faults else ''
    spent = {name: work.cost[name] - before[name] for name in before}
    record = {'server': work.tools.name, 'prompt': prompts.VERSIONS['repair'], 'reason': reason, 'cost': spent}
    self._journals['worlds'].put(key, {**record, 'tries': tries, 'source': draft.source, 'tests': draft.tests})
    if reason:
      raise _Dropped(reason)
    return draft.blueprint(tries)

  async def _faults(self, draft: '_Draft') -> list[str]:
    """What keeps a draft from being used: read first, then run."""
    try:
      made = draft.blueprint(0)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
      return [f'tests.json: a test is not laid out as asked: {error!r:.200}']
    found = blueprints.faults(made)
    if found:
      return found
    report = await self._checked(made)
    if isinstance(report, str):
      return [report]
    vague = _unexpecting(made)
    return [
      *(str(failure) for failure in report.failures),
      *(f'no test calls {name}' for name in report.untested),
      *(f'no test expects anything of {name}' for name in vague if name not in report.untested),
    ]

  async def _checked(self, made: Blueprint) -> Report | str:
    try:
      return await run_tests(made, sandbox=self._sandbox)
    except EnvironmentFailure as error:
      return f'functions.py cannot be loaded: {error}'


@dataclasses.dataclass(frozen=True)
class _Draft:
  """A world that may not hold yet."""

  name: str
  tools: tuple[Tool, ...]
  database: dict[str, Any]
  source: str
  tests: list[dict[str, Any]]
  origin: dict[str, Any]

  def blueprint(self, repairs: int) -> Blueprint:
    """The draft as a blueprint; raises what malformed tests raise."""
    tests = tuple(map(_test, self.tests))
    provenance = {**self.origin, 'repairs': repairs}
    return Blueprint(self.name, self.tools, self.source, self.database, tests, provenance=provenance)


class _Work:
  """The steps of one server: asked once, kept, and counted."""

  def __init__(self, tools: ToolSet, model: ChatModel, journals: Mapping[str, Journal]):
    self.tools, self._model, self._journals = tools, model, journals
    self.cost = {'prompt_tokens': 0.0, 'completion_tokens': 0.0, 'cost': 0.0}

  async def step(self, name: str, messages: prompts.Messages, read: Callable[[Reply], Any]) -> Any:
    """The value of a step, as plain JSON; from the journal if it was finished before.

    Raises:
      _Dropped: no reply could be read, now or before.
    """
    key = digest(
      {'step': name, 'version': prompts.VERSIONS[name], 'model': self._model.endpoint.model, 'asked': messages}
    )
    kept = self._journals[name].get(key)
    if kept is None:
      kept = await self._done(name, key, messages, read)
    else:
      self.count(kept['cost'])
    if kept['reason']:
      raise _Dropped(kept['reason'])
    return kept['value']

  async def _done(
    self, name: str, key: str, messages: prompts.Messages, read: Callable[[Reply], Any]
  ) -> dict[str, Any]:
    before, value, reason = dict(self.cost), None, ''
    try:
      value = await self.ask(name, messages, read)
    except _Dropped as dropped:
      reason = str(dropped)
    spent = {part: self.cost[part] - before[part] for part in before}
    record = {
      'server': self.tools.name,
      'prompt': prompts.VERSIONS[name],
      'reason': reason,
      'cost': spent,
      'value': value,
    }
    self._journals[name].put(key, record)
    return record

  async def ask(self, name: str, messages: prompts.Messages, read: Callable[[Reply], Read], *, sample: int = 0) -> Read:
    """What the model's reply says; every reply is counted, those that will not do as well.

    Raises:
      _Dropped: no reply could be read.
    """

    def counted(reply: Reply) -> Read:
      if not reply.cached:
        self.count(self._price(reply))
      return read(reply)

    try:
      return await self._model.ask(messages, read=counted, version=prompts.VERSIONS[name], sample=sample)
    except EndpointFailure as failure:
      if failure.reason in OF_CONTENT or failure.kind == 'refused':
        raise _Dropped(f'{name}: {failure}') from failure
      raise

  def count(self, spent: Mapping[str, float]) -> None:
    """Adds to what the server cost."""
    for name, amount in spent.items():
      self.cost[name] += amount

  def _price(self, reply: Reply) -> dict[str, float]:
    endpoint = self._model.endpoint
    price = reply.prompt_tokens * endpoint.input_price + reply.completion_tokens * endpoint.output_price
    tokens = {'prompt_tokens': float(reply.prompt_tokens), 'completion_tokens': float(reply.completion_tokens)}
    return {**tokens, 'cost': price / 1e6}


def _plain_schemas(found: tuple[tuple[Tool, ...], dict[str, str]]) -> dict[str, Any]:
  tools, left_out = found
  return {'tools': [dataclasses.asdict(tool) for tool in tools], 'left_out': left_out}


def _test(record: Mapping[str, Any]) -> UnitTest:
  checks = tuple(
    Check(ToolCall(str(call['name']), dict(call['arguments'])), dict(call.get('expect') or {}))
    for call in record['calls']
  )
  return UnitTest(str(record['name']), checks)


def _unexpecting(made: Blueprint) -> list[str]:
  """Tools of which no test expects anything but an answer."""
  expecting = {check.call.name for test in made.tests for check in test.checks if check.expect}
  return [name for name in made.tool if name not in expecting]
