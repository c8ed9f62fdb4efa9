"""Unit tests of a blueprint, run in its sandbox."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from slca_jax import blocking
from slca_jax.envs.guard import CallLimits
from slca_jax.envs.sandbox import Sandbox, SandboxSettings, shared_sandbox
from slca_jax.envs.sandboxed import Sandboxed
from slca_jax.errors import EnvironmentFailure
from slca_jax.toolverse.blueprint import Blueprint, Check, UnitTest
from slca_jax.toolverse.world import open_world

_LIMITS = CallLimits(deadline=30.0, max_characters=1_000_000)


@dataclasses.dataclass(frozen=True, slots=True)
class Failure:
  """A test that failed: which, at which of its calls (None: the database it left), and why."""

  test: str
  call: int | None
  reason: str

  def __str__(self) -> str:
    return f'{self.test}, {"final database" if self.call is None else f"call {self.call + 1}"}: {self.reason}'


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
  """What the tests of a blueprint said.

  Attributes:
    passed: names of tests.
    failures: the first one of each test that failed.
    untested: tools that no test calls.
  """

  passed: tuple[str, ...]
  failures: tuple[Failure, ...]
  untested: tuple[str, ...]

  @property
  def ok(self) -> bool:
    """There are tests, all pass, and every tool is called."""
    return bool(self.passed) and not self.failures and not self.untested


def retest(blueprint: Blueprint, *, sandbox: Sandbox | None = None) -> Report:
  """The report of the blueprint's tests. Inside an event loop, await `run_tests` instead: this one stops the loop."""
  return blocking.run(run_tests(blueprint, sandbox=sandbox))


async def run_tests(blueprint: Blueprint, *, sandbox: Sandbox | None = None) -> Report:
  """The report of the blueprint's tests. Each runs twice, in worlds of its own, and must be answered the same."""
  sandbox = sandbox or shared_sandbox(SandboxSettings())
  failures = [found for test in blueprint.tests if (found := await _failure(test, blueprint, sandbox))]
  failed = {failure.test for failure in failures}
  called = {check.call.name for test in blueprint.tests for check in test.checks}
  return Report(
    passed=tuple(test.name for test in blueprint.tests if test.name not in failed),
    failures=tuple(failures),
    untested=tuple(name for name in blueprint.tool if name not in called),
  )


async def _failure(test: UnitTest, blueprint: Blueprint, sandbox: Sandbox) -> Failure | None:
  seen = []
  for _ in range(2):
    world = open_world(blueprint, sandbox, limits=_LIMITS)
    try:
      found, answers = await _run(test, world)
    except EnvironmentFailure as error:
      return Failure(test.name, None, str(error))
    finally:
      world.close()
    if found is not None:
      return found
    seen.append(answers)
  if seen[0] != seen[1]:
    return Failure(test.name, None, 'it is not deterministic: a second run was answered differently')
  return None


async def _run(test: UnitTest, world: Sandboxed) -> tuple[Failure | None, list[Any]]:
  answers: list[Any] = []
  for index, check in enumerate(test.checks):
    reason, answer = await _judge(check, world)
    if reason:
      return Failure(test.name, index, reason), answers
    answers.append(answer)
  left = await world.changes()
  if test.changes is not None and left != test.changes:
    return Failure(test.name, None, f'changes are {left!r:.300}, not {test.changes!r:.300}'), answers
  return None, [*answers, left]


async def _judge(check: Check, world: Sandboxed) -> tuple[str, Any]:
  """(why the call is not as expected, what it answered)."""
  try:
    value = await world.value(check.call)
  except ValueError as error:
    return _refused(check, str(error)), str(error)
  if 'error' in check.expect:
    return f'it was to be refused with {check.expect["error"]!r} and returned {value!r:.300}', value
  if 'equals' in check.expect and value != check.expect['equals']:
    return f'it returned {value!r:.300}, not {check.expect["equals"]!r:.300}', value
  if 'has' in check.expect and not holds(value, check.expect['has']):
    return f'it returned {value!r:.300}, without {check.expect["has"]!r:.300}', value
  return '', value


def holds(value: Any, part: Any) -> bool:
  """Whether objects hold the part's entries, lists an element for each of the part's, anything else is equal."""
  if isinstance(part, Mapping):
    return isinstance(value, Mapping) and all(key in value and holds(value[key], part[key]) for key in part)
  if isinstance(part, list):
    return isinstance(value, list) and all(any(holds(one, wanted) for one in value) for wanted in part)
  return value == part and isinstance(value, bool) == isinstance(part, bool)


def _refused(check: Check, text: str) -> str:
  if 'error' not in check.expect:
    return f'it was refused: {text:.300}'
  wanted = check.expect['error']
  return '' if str(wanted).lower() in text.lower() else f'it was refused with {text:.300}, not {wanted!r}'
