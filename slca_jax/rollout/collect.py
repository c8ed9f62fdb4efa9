"""Rollouts of a batch: every coroutine talks to the engine and, between two requests, awaits its environment.

Token in, token out: the ids that the engine sampled are the ids that are trained on. They are decoded for reading and
parsing, never encoded again. What the world writes is encoded once and appended.
"""

import asyncio
import contextlib
import dataclasses
import gc
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence

from slca_jax.chat.calls import Reading, parse
from slca_jax.chat.template import Template
from slca_jax.dialogue import Observation, Parsed, Scores, Status, Task, ToolCall, Trajectory, Turn
from slca_jax.envs.environment import Environment, Opener
from slca_jax.errors import EnvironmentFailure, SamplerError, TemplateError
from slca_jax.rollout.sampler import Sample, Sampler
from slca_jax.rollout.settings import Decoding, Limits
from slca_jax.rollout.underway import Span, unwatched

Scorer = Callable[[Trajectory], Awaitable[Scores]]
Group = list[tuple[Trajectory, Scores]]

UNKNOWN_ID = 'unknown_id'  # the fault of a sampled id without a text

# Faults of a text that is an answer all the same: it mentions a tag, its reasoning never ended, an id has no text.
_NO_CALL_MEANT = frozenset({'no_json_after_tag', 'missing_open_tag', 'unterminated_reasoning', UNKNOWN_ID})


@dataclasses.dataclass(frozen=True, slots=True)
class Rollouts:
  """What one rollout needs beside its task; `watch` hears when it waits for engine, world and judge."""

  sampler: Sampler
  template: Template
  open_environment: Opener
  limits: Limits
  decoding: Decoding
  watch: Span = unwatched


def seed_of(*parts: object) -> int:
  """A 31-bit seed from the parts alone: one stream per purpose, the same on every host and after a resume."""
  digest = hashlib.sha256('/'.join(map(str, parts)).encode()).digest()
  return int.from_bytes(digest[:4], 'big') >> 1


@contextlib.contextmanager
def rarely_interrupted() -> Iterator[None]:
  """Keeps Python's cycle collector from stopping all rollouts again and again while the block runs.

  What was loaded before is never searched (a full collection over the modules of a training process takes 60 ms and
  more), and young objects are searched less often: counted references free almost all that a rollout makes.
  """
  before = gc.get_threshold()
  gc.collect()
  gc.freeze()
  gc.set_threshold(100_000, *before[1:])
  try:
    yield
  finally:
    gc.set_threshold(*before)
    gc.unfreeze()


async def collect(
  tasks: Sequence[Task],
  world: Rollouts,
  score: Scorer,
  *,
  group_size: int,
  seed: str,
  places: Sequence[int] | None = None,
) -> tuple[list[Trajectory], list[Scores]]:
  """Rollouts of every task, `group_size` each, scored while others still sample; in order of group, then index.

  Our own bugs raise; a broken engine or environment leaves a trajectory that says so, a broken judge an absent score.

  Args:
    places: the number of each task's group, where these are some of more; as they are counted here if None.
  """
  gate = asyncio.Semaphore(world.sampler.concurrency)
  async with asyncio.TaskGroup() as crew:
    jobs = [
      crew.create_task(roll_group(task, group, world, score, gate, group_size=group_size, seed=seed))
      for group, task in zip(places or range(len(tasks)), tasks, strict=True)
    ]
  rolled = [pair for job in jobs for pair in job.result()]
  return [trajectory for trajectory, _ in rolled], [scores for _, scores in rolled]


async def roll_group(
  task: Task,
  group: int,
  world: Rollouts,
  score: Scorer,
  gate: asyncio.Semaphore,
  *,
  group_size: int,
  seed: str,
) -> Group:
  """The rollouts of one task with their scores, in order; each samples once `gate` lets it, and is scored outside."""
  prompt: tuple[int, ...] | None = None

  async def one(index: int) -> tuple[Trajectory, Scores]:
    nonlocal prompt
    async with gate:
      if prompt is None:  # rendering takes as long as all the rest of a turn: once for all siblings
        with contextlib.suppress(TemplateError):  # each of them says so itself
          prompt = world.template.prompt(task.messages, task.tools)
      trajectory = await run(task, group, index, world, seed=seed, prompt=prompt)
    with world.watch('judge'):
      return trajectory, await score(trajectory)

  async with asyncio.TaskGroup() as crew:
    jobs = [crew.create_task(one(index)) for index in range(group_size)]
  return [job.result() for job in jobs]


async def run(
  task: Task, group: int, index: int, world: Rollouts, *, seed: str, prompt: tuple[int, ...] | None = None
) -> Trajectory:
  """One rollout from prompt to answer, limit or failure; `prompt` is the task's, if its ids are known already."""
  session = f'{seed}/{task.id}/{group}/{index}'
  turns: list[Turn] = []
  environment = None
  try:
    prompt = prompt or world.template.prompt(task.messages, task.tools)
    if len(prompt) > world.limits.prompt_tokens:
      error = f'the prompt has {len(prompt)} tokens, the limit is {world.limits.prompt_tokens}'
      return Trajectory(task, group, index, prompt, (), Status.FAILED, error)
    with world.watch('environment'):
      environment = _open(task, f'{seed}/{task.id}/{group}', world)
    status = await _converse(prompt, turns, environment, world, session)
    return Trajectory(task, group, index, prompt, tuple(turns), status)
  except (SamplerError, EnvironmentFailure, TemplateError) as error:
    reason = f'{type(error).__name__}: {error}'
    return Trajectory(task, group, index, prompt or (), tuple(turns), Status.FAILED, reason)
  finally:
    if environment is not None:
      _close(environment, session)
    await world.sampler.release(session)


def _open(task: Task, group: str, world: Rollouts) -> Environment:
  try:
    # One seed per group: siblings that make the same call must see the same answer, or chance would look like merit.
    return world.open_environment(task, seed_of(group, 'environment'))
  except EnvironmentFailure:
    raise
  except Exception as error:  # an environment is somebody's code: its end is the rollout's, not the run's
    raise EnvironmentFailure(f'task {task.id} could not be opened: {type(error).__name__}: {error}') from error


def _close(environment: Environment, session: str) -> None:
  try:
    environment.close()
  except Exception:  # the rollout is over and stays as it is
    logging.exception('the environment of rollout %s did not close', session)


async def _converse(
  prompt: tuple[int, ...], turns: list[Turn], environment: Environment, world: Rollouts, session: str
) -> Status:
  limits, template = world.limits, world.template
  ids = list(prompt)
  while True:
    room = limits.response_tokens - (len(ids) - len(prompt))
    if room < 1:
      return Status.OUT_OF_TOKENS
    sample = await _sample(ids, min(room, limits.turn_tokens), len(turns), world, session)
    turn, status = _read(sample, template, world.decoding.reading)
    turns.append(turn)
    ids += sample.tokens
    if status is not None:
      return status
    if len(turns) >= limits.turns:
      return Status.OUT_OF_TURNS
    with world.watch('environment'):
      answers = await _act(turn.parsed, environment, limits)
    seen = [_shortened(one, template, limits) for one in answers]
    reply = template.reply(seen, sample.tokens)
    fits = len(ids) - len(prompt) + len(reply) < limits.response_tokens
    turns[-1] = dataclasses.replace(turn, observations=tuple(seen), reply=reply if fits else ())
    if not fits:
      return Status.OUT_OF_TOKENS
    ids += reply


def _shortened(seen: Observation, template: Template, limits: Limits) -> Observation:
  content = template.cut_observation(seen.content, limits.observation_tokens)
  return Observation(content, seen.ok, seen.cut or content != seen.content)


async def _sample(ids: list[int], max_tokens: int, turn: int, world: Rollouts, session: str) -> Sample:
  with world.watch('sample'):
    return await world.sampler.generate(
      ids,
      session=session,
      max_tokens=max_tokens,
      temperature=world.decoding.temperature,
      top_p=world.decoding.top_p,
      stop=world.template.stop_ids,
      seed=seed_of(session, turn),
    )


def _read(sample: Sample, template: Template, reading: Reading) -> tuple[Turn, Status | None]:
  """The turn, and how the rollout ends with it; None if it goes on. Nothing of a turn that was cut off is executed."""
  whole = sample.finish == 'stop'
  text = template.decode(sample.tokens)
  parsed = parse(text, reading=reading, finished=whole)
  if unknown := template.unknown(sample.tokens):
    parsed = dataclasses.replace(parsed, errors=(*parsed.errors, *[UNKNOWN_ID] * unknown))
  turn = Turn(sample.tokens, sample.logprobs, text, parsed, versions=sample.versions)
  if not whole:
    return turn, Status.OUT_OF_TOKENS
  return turn, None if parsed.calls or malformed(parsed) else Status.FINISHED


def malformed(parsed: Parsed) -> tuple[str, ...]:
  """The faults of blocks that were meant as calls: each is answered with an error, so that the policy can try again."""
  return tuple(error for error in parsed.errors if error not in _NO_CALL_MEANT)


async def _act(parsed: Parsed, environment: Environment, limits: Limits) -> list[Observation]:
  calls = parsed.calls[: limits.calls]
  seen = await _step(environment, calls, limits.step_seconds) if calls else []
  for _ in parsed.calls[limits.calls :]:
    seen.append(Observation(f'Not executed: a turn may hold at most {limits.calls} calls.', ok=False))
  for error in malformed(parsed):
    seen.append(Observation(f'Not executed: the call could not be read ({error}).', ok=False))
  return seen


async def _step(environment: Environment, calls: Sequence[ToolCall], seconds: float) -> list[Observation]:
  async def answer() -> list[Observation]:
    return list(await environment.step(calls))

  pending = asyncio.ensure_future(answer())
  try:
    # Not asyncio.wait_for: that waits for a step that ignores its cancellation.
    done, _ = await asyncio.wait({pending}, timeout=seconds)
  finally:
    pending.cancel()
  if not done:
    raise EnvironmentFailure(f'no answer to {len(calls)} calls within {seconds:g} s')
  try:
    seen = pending.result()
  except EnvironmentFailure:
    raise
  except (Exception, asyncio.CancelledError) as error:
    raise EnvironmentFailure(f'{type(error).__name__}: {error}') from error
  if len(seen) != len(calls):
    raise EnvironmentFailure(f'the environment answered {len(seen)} of {len(calls)} calls')
  strange = [type(one).__name__ for one in seen if not isinstance(one, Observation)]
  if strange:
    raise EnvironmentFailure(f'the environment answered with {strange[0]}; a call is answered by an Observation')
  return seen
