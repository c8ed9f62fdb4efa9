"""Reinforcement learning on tool-calling rollouts: collect, score, prepare, update, publish.

SLCA-GRPO (arXiv:2609.29050), algorithm 1. Every random choice derives from (seed, step), and a step either happens as a
whole or not at all, so a run that was killed goes on from its last checkpoint as if it had never stopped.
"""

import asyncio
import contextlib
import dataclasses
import functools
import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from slca_jax.config import as_dict
from slca_jax.data.folders import claimed, write_json
from slca_jax.data.tasks import Order
from slca_jax.dialogue import Scores, Task, Trajectory
from slca_jax.nn import weights
from slca_jax.ops.estimators import ESTIMATORS
from slca_jax.rollout.batching import to_batch
from slca_jax.rollout.collect import rarely_interrupted
from slca_jax.rollout.stream import Position, Stream, Taken
from slca_jax.train import endpoints, metrics, optimizer, policy, worlds
from slca_jax.train.checkpoint import Checkpoints, record_of
from slca_jax.train.evaluate import Evaluation, roll_greedily
from slca_jax.train.metrics import Numbers, describe
from slca_jax.train.run import Stop, hush, remember
from slca_jax.train.settings import RLConfig
from slca_jax.train.steps import Policy, make_prepare, make_update

_SHOWN = {
  'tool': 'reward/tool',
  'summary': 'reward/summary',
  'success': 'score/success',
  'kl': 'kl',
  'tok/s': 'tokens_per_second',
}
_COUNTS = ('skipped_updates', '/tokens', '/dead_groups')


def train(config: RLConfig, *, stop: Stop | None = None) -> Numbers:
  """Trains, or resumes, and exports the policy to `output/model`; returns the last numbers.

  Raises:
    ConfigError, DataError, WeightsError, TemplateError: before any rollout.
  """
  hush()
  folder = pathlib.Path(config.output)
  worlds.check_method(config.method, config.scoring, has_referee=bool(config.referee.model))
  policy.check(config.model)
  tasks, heldout = worlds.read(config.data)
  endpoints.probe(config)
  with claimed(folder), (stop or Stop()).listening() as stop:
    remember(folder, as_dict(config), data=(config.data.train,))
    loaded = policy.load(config.model, config.mesh)
    policy.check_rows(config.batching.micro_rows, loaded.mesh)
    with jax.set_mesh(loaded.mesh):
      learner = Learner(config, folder, loaded, tasks, heldout)
      try:
        with rarely_interrupted():
          return asyncio.run(learner.learn(stop))
      finally:
        learner.close()


class Learner:
  """One run: its state, its jitted programs, its engine and its files."""

  def __init__(
    self,
    config: RLConfig,
    folder: pathlib.Path,
    loaded: policy.Loaded,
    tasks: Sequence[Task],
    heldout: Sequence[Task],
  ):
    self.config, self.folder, self.loaded, self.heldout = config, folder, loaded, heldout
    self.steps = config.steps or -(-config.epochs * len(tasks) // config.prompts)
    network = Policy(
      loaded.graph, loaded.config.vocab, config.rollout.decoding.temperature, config.objective.logprob_chunk
    )
    estimator = functools.partial(ESTIMATORS[config.method.estimator], **config.method.options)
    rule = optimizer.make(config.optimizer, self.steps * config.updates_per_step)
    self.state, shardings = policy.init_state(loaded.params, rule, loaded.mesh)
    # The state's buffers are donated at every update: what must outlive the first one is a copy.
    self.reference: nnx.State | None = jax.tree.map(jnp.copy, loaded.params) if config.objective.kl else None
    micro_rows = config.batching.micro_rows
    self.prepare = make_prepare(network, config.objective, estimator, micro_rows=micro_rows)
    self.update = make_update(network, config.objective, rule, micro_rows=micro_rows, shardings=shardings)
    self.checkpoints = Checkpoints(folder / 'checkpoints', config.checkpoint)
    self.step, self.numbers, self.position = self._restore()
    self.writer = metrics.Writer(folder, resume_at=self.step + 1)
    self.watch = metrics.Stopwatch()
    self.endpoints = endpoints.connect(config)
    self.score = worlds.scorer(config, self.endpoints)
    self.score_fairly = worlds.scorer(config, self.endpoints, disturbed=False)
    self.world = worlds.rollouts(config, loaded, self.state.params, self.endpoints)
    self.sampler = self.world.sampler
    self.stream = Stream(
      Order(tasks, config.prompts, seed=config.seed),
      self.world,
      self.score,
      prompts=config.prompts,
      group_size=config.group_size,
      seed=config.seed,
      max_staleness=config.rollout.max_staleness,
      position=self.position,
    )

  async def learn(self, stop: Stop) -> Numbers:
    """Steps until the end or until `stop` is requested; saves either way."""
    bar = metrics.Bar(self.steps, done=self.step, title=self.config.method.estimator, shown=_SHOWN)
    try:
      await self.sampler.publish(self.state.params, self.step)
      while self.step < self.steps:
        taken = await _unless(stop, self._take())
        if taken is None:
          break
        numbers = await self.sampler.share(lambda taken=taken: self._learn_from(taken))
        self.position = self.stream.position
        self.step += 1
        await self._publish()
        score = await self._evaluate_if_due(numbers)
        self.numbers = numbers | self._speed(taken) | self.sampler.numbers() | self.endpoints.numbers()
        self.writer.write(self.step, self.numbers)
        bar.advance(self.numbers)
        if self.checkpoints.due(self.step, self.steps):
          self._save(score)
      self._finish()
    finally:
      bar.close()
      await self.stream.close()
      await self.sampler.close()
      await self.endpoints.close()
    return self.numbers

  async def evaluate(self, tasks: Sequence[Task]) -> Evaluation:
    """Greedy rollouts of the policy as it stands, by a judge that is neither noisy nor biased."""
    score = functools.partial(self.score_fairly, seed=0)
    return await roll_greedily(tasks, self.world, score, seed=f'{self.config.seed}/heldout')

  def close(self) -> None:
    """Waits for checkpoints that are being written and closes the files."""
    self.checkpoints.close()
    self.writer.close()

  async def _take(self) -> Taken:
    """The step's rollouts. Towards the end no batch is started that nobody would learn from."""
    ahead = min(self.config.rollout.max_staleness, self.steps - self.step - 1)
    with self.watch('collect'):
      return await self.stream.take(self.step, ahead=ahead)

  def _learn_from(self, taken: Taken) -> Numbers:
    """Dumps the rollouts and learns from them; runs in a thread of its own."""
    trajectories, scores = taken.trajectories, taken.scores
    if self.config.dump_every and self.step % self.config.dump_every == 0:
      with self.watch('dump'):
        dump(self.folder / 'rollouts' / f'step_{self.step + 1:06d}.jsonl', trajectories, scores)
    with jax.set_mesh(self.loaded.mesh):
      numbers = self._update(trajectories, scores)
    return numbers | describe(trajectories, scores) | metrics.staleness(trajectories, self.step, taken.dropped)

  def _update(self, trajectories: list[Trajectory], scores: list[Scores]) -> Numbers:
    """One pass over the step's mini-batches. All of them are prepared before any update: old means before the step."""
    size = self.config.mini_batch * self.config.group_size
    with self.watch('batch'):
      batches = [
        to_batch(
          trajectories[start : start + size],
          scores[start : start + size],
          self.config.batching,
          turns=self.config.rollout.limits.turns,
          sharding=self.loaded.rows,
        )
        for start in range(0, len(trajectories), size)
      ]
    with self.watch('prepare'):
      experiences = jax.block_until_ready([self.prepare(self.state.params, self.reference, b) for b in batches])
    found = []
    with self.watch('update'):
      for experience in experiences:
        self.state, numbers = self.update(self.state, experience)
        found.append(numbers)
      found = jax.device_get(found)
    return over_updates(found)

  def _speed(self, taken: Taken) -> Numbers:
    """Seconds by phase, collecting being the time that the trainer waited, and the step's sampled tokens per second."""
    times = self.watch.read()
    sampled = sum(len(turn.tokens) for trajectory in taken.trajectories for turn in trajectory.turns)
    whole = sum(seconds for name, seconds in times.items() if name != 'time/evaluate')
    return times | {'tokens_per_second': sampled / whole}

  async def _publish(self) -> None:
    with self.watch('publish'):
      await self.sampler.publish(self.state.params, self.step)

  async def _evaluate_if_due(self, numbers: Numbers) -> float | None:
    every = self.config.eval_every
    if not self.heldout or not every or (self.step % every and self.step < self.steps):
      return None
    with self.watch('evaluate'):
      found, _, _ = await self.evaluate(self.heldout)
    numbers.update({f'heldout/{name}': value for name, value in found.items()})
    return found.get('score/success')

  def _restore(self) -> tuple[int, Numbers, Position | None]:
    """The step to go on from, the numbers of the one before it, and which groups it had learned from."""
    if self.checkpoints.latest is None:
      return 0, {}, None
    self.state, record = self.checkpoints.restore(self.state)
    return record['step'], record['numbers'], record['position']

  def _save(self, score: float | None = None) -> None:
    self.checkpoints.save(
      self.step, self.state, record_of(self.step, self.numbers, self.config, self.position), score=score
    )

  def _finish(self) -> None:
    if self.step:
      self._save()
    self.checkpoints.wait()
    if self.step >= self.steps:
      weights.save_hf(self.state.params, self.loaded.config, self.folder / 'model', source=self.loaded.folder)
      write_json(self.folder / 'result.json', {'steps': self.step, **self.numbers})


def over_updates(found: Sequence[Mapping[str, Any]]) -> Numbers:
  """The numbers of a step from those of its updates: counts add up, maxima keep the largest, the rest is averaged.

  What is measured on tokens of which an update had none, says its `…/tokens`, is left out of it.
  """
  known = [_without_the_unmeasured({name: float(value) for name, value in numbers.items()}) for numbers in found]

  def one(name: str) -> float:
    values = [numbers[name] for numbers in known if name in numbers]
    if name.endswith('_max'):
      return max(values)
    return sum(values) if name.endswith(_COUNTS) else sum(values) / len(values)

  return {name: one(name) for name in dict.fromkeys(name for numbers in known for name in numbers)}


def _without_the_unmeasured(numbers: Numbers) -> Numbers:
  empty = {name.removesuffix('/tokens') for name, value in numbers.items() if name.endswith('/tokens') and not value}
  measured = lambda name: 'group' in name or name.rpartition('/')[0] not in empty
  return {name: value for name, value in numbers.items() if name.endswith('/tokens') or measured(name)}


async def _unless(stop: Stop, work: Any) -> Any:
  """The result of `work`, or None if `stop` is requested first; the work is cancelled then, and can be done again."""
  task = asyncio.ensure_future(work)
  while not task.done():
    await asyncio.wait({task}, timeout=0.2)
    if stop.requested and not task.done():
      task.cancel()
      with contextlib.suppress(asyncio.CancelledError):
        await task
      return None
  return None if stop.requested else task.result()


def dump(path: pathlib.Path, trajectories: Sequence[Trajectory], scores: Sequence[Scores]) -> None:
  """One JSON line per rollout with its turns, observations and scores; the file appears whole or not at all."""
  path.parent.mkdir(parents=True, exist_ok=True)
  part = path.with_suffix('.part')
  with open(part, 'w', encoding='utf-8') as file:
    for trajectory, score in zip(trajectories, scores, strict=True):
      file.write(json.dumps(record(trajectory, score), ensure_ascii=False) + '\n')
  part.replace(path)


def record(trajectory: Trajectory, scores: Scores) -> dict[str, Any]:
  """A rollout and its scores as JSON-ready values."""
  turns = [
    {
      'text': turn.text,
      'tokens': list(turn.tokens),
      'logprobs': [round(logp, 6) for logp in turn.logprobs],
      'calls': [{'name': call.name, 'arguments': call.arguments} for call in turn.calls],
      'faults': list(turn.parsed.errors),
      'observations': [{'content': seen.content, 'ok': seen.ok} for seen in turn.observations],
      'reply': list(turn.reply),
      'versions': list(turn.versions),
    }
    for turn in trajectory.turns
  ]
  return {
    'task': trajectory.task.id,
    'question': trajectory.task.question,
    'group': trajectory.group,
    'index': trajectory.index,
    'status': trajectory.status.value,
    'error': trajectory.error,
    'prompt': list(trajectory.prompt),
    'turns': turns,
    'scores': dataclasses.asdict(scores),
  }
