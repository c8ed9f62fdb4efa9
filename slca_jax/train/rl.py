"""Reinforcement learning on tool-calling rollouts: collect, score, prepare, update, publish.

SLCA-GRPO (arXiv:2609.29050), algorithm 1. Every random choice derives from (seed, step), and a step either happens as a
whole or not at all, so a run that was killed goes on from its last checkpoint as if it had never stopped.
"""

import dataclasses
import functools
import pathlib
from collections.abc import Sequence

import jax
from jax.profiler import StepTraceAnnotation

from slca_jax import blocking
from slca_jax.arrays import Experience
from slca_jax.config import as_dict
from slca_jax.data.tasks import Order
from slca_jax.dialogue import Task
from slca_jax.nn import hosts
from slca_jax.ops.estimators import estimator_of
from slca_jax.rollout import stream
from slca_jax.rollout.batching import assemble, to_share
from slca_jax.rollout.collect import rarely_interrupted
from slca_jax.rollout.shares import Share
from slca_jax.rollout.stream import Position, Stream, Taken
from slca_jax.rollout.underway import Underway
from slca_jax.train import alarms, endpoints, meeting, metrics, optimizer, policy, probe, rehearsal, worlds
from slca_jax.train.checkpoint import Checkpoints, record_of
from slca_jax.train.dumps import dump, forget, sampled
from slca_jax.train.evaluate import roll_greedily
from slca_jax.train.logp_dumps import dump_logps, logps_of
from slca_jax.train.metrics import Numbers, breakdown, over_updates, settle, staleness, tally
from slca_jax.train.run import Stop, hush, in_touch, opened, unless, withdraw_result, write_result
from slca_jax.train.settings import RLConfig
from slca_jax.train.steps import Policy, make_prepare, make_update
from slca_jax.train.tracing import Tracer, span

_SHOWN = {
  'tool': 'reward/tool',
  'summary': 'reward/summary',
  'success': 'score/success',
  'kl': 'kl',
  'tok/s': 'tokens_per_second',
}


def train(config: RLConfig, *, stop: Stop | None = None) -> Numbers:
  """Trains, or resumes, and exports the policy to `output/model`; returns the last numbers.

  Every process of a run on several hosts calls it. Each rolls out and scores its own share of a step's groups, with its
  own engine; all then know the rollouts of all, so they lay out, compute and decide the same.

  Raises:
    ConfigError, DataError, WeightsError, TemplateError: before any rollout.
    HostFailure: another process failed.
  """
  hush()
  folder, stop = pathlib.Path(config.output), stop or Stop()
  with in_touch(stop):
    worlds.check_method(config.method, config.scoring, has_referee=bool(config.referee.model))
    policy.check(config.model)
    tasks, heldout = worlds.read(config.data)
    worlds.require_gold([*tasks, *heldout], config.method, config.scoring)
    rehearsal.rehearse(config, tasks)
    endpoints.probe(config)
    with opened(folder, as_dict(config), data=(config.data.train, *rehearsal.sources(config))), stop.listening():
      loaded = policy.load(config.model, config.mesh, micro_rows=config.batching.micro_rows)
      worlds.check_prompts(tasks, loaded.template, longest=config.rollout.limits.prompt_tokens)
      with jax.set_mesh(loaded.mesh):
        learner = Learner(config, folder, loaded, tasks, heldout)
        try:
          with rarely_interrupted():
            return blocking.run(learner.learn(stop))
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
    estimator = functools.partial(estimator_of(config.method.estimator), **config.method.options)
    rule = optimizer.make(config.optimizer, self.steps * config.updates_per_step)
    self.state, shardings = policy.init_state(loaded.params, rule, loaded.mesh)
    self.reference = (
      policy.Reference(loaded.params, placement=config.reference.placement) if config.objective.kl else None
    )
    micro_rows = config.batching.micro_rows
    self.prepare = make_prepare(network, config.objective, estimator, micro_rows=micro_rows)
    self.update = make_update(network, config.objective, rule, micro_rows=micro_rows, shardings=shardings)
    self.probe = probe.make_probe(network, config.objective, micro_rows=micro_rows)
    self.checkpoints = Checkpoints(folder / 'checkpoints', config.checkpoint)
    self.step, self.numbers, self.position = self._restore()
    if hosts.is_first():
      forget(folder / 'rollouts', after=self.step)
    if self.step < self.steps:
      withdraw_result(folder)
    self.writer = metrics.Writer(folder, resume_at=self.step + 1, silent=not hosts.is_first())
    self.alarms = alarms.Alarms(
      config.diagnostics,
      alarms.Scale(config.prompts, config.prompts * config.group_size),
      history=alarms.history(folder, config.diagnostics.window),
      silent=not hosts.is_first(),
    )
    self.watch, self.underway = metrics.Stopwatch(span), Underway(span)
    self.trace = Tracer(folder / 'trace', config.trace)
    self.endpoints = endpoints.connect(config)
    self.score = worlds.scorer(config, self.endpoints)
    self.score_fairly = worlds.scorer(config, self.endpoints, disturbed=False)
    world = worlds.rollouts(config, loaded, self.state.params, self.endpoints)
    self.world = dataclasses.replace(world, watch=self.underway)
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
      places=hosts.share(config.prompts),
    )

  async def learn(self, stop: Stop) -> Numbers:
    """Steps until the end or until `stop` is requested; saves either way."""
    title = self.config.method.estimator
    bar = metrics.Bar(self.steps, done=self.step, title=title, shown=_SHOWN, silent=not hosts.is_first())
    try:
      await self._publish()
      while self.step < self.steps:
        with self.trace(self.step + 1):
          taken = await unless(stop, self._take())
          numbers = await self.sampler.share(lambda taken=taken: self._learn_from(taken))
          if numbers is None:
            break
          self.step += 1
          await self._publish()
        score = await self._evaluate_if_due(numbers)
        self.numbers = numbers | self._speed(numbers) | await self._reported()
        self.numbers |= self.alarms(self.step, self.numbers)
        self.writer.write(self.step, self.numbers)
        bar.advance(self.numbers)
        if self.checkpoints.due(self.step, self.steps):
          with self.watch('save'):
            self._save(score)
      self._finish()
    finally:
      bar.close()
      await self.stream.close()
      await self.sampler.close()
      await self.endpoints.close()
    return self.numbers

  async def evaluate(self, tasks: Sequence[Task]) -> Numbers:
    """Greedy rollouts of the policy as it stands, each host its share, by a judge that is neither noisy nor biased."""
    score, places = functools.partial(self.score_fairly, seed=0), hosts.share(len(tasks))
    mine = [tasks[place] for place in places]
    found, _, _ = await roll_greedily(mine, self.world, score, seed=f'{self.config.seed}/heldout', places=places)
    return settle(await self.sampler.share(lambda: hosts.tell(found)))

  def close(self) -> None:
    """Waits for checkpoints that are being written and closes the files."""
    self.checkpoints.close()
    self.writer.close()

  async def _take(self) -> Taken:
    """The step's rollouts. Towards the end no batch is started that nobody would learn from."""
    ahead = min(self.config.rollout.max_staleness, self.steps - self.step - 1)
    with self.watch('collect'), self.underway.waiting():
      return await self.stream.take(self.step, ahead=ahead)

  def _learn_from(self, taken: Taken | None) -> Numbers | None:
    """Dumps the rollouts and learns from those of all hosts; runs in a thread of its own.

    None if any host was asked to stop, and has no rollouts to bring: then nothing is learned anywhere.
    """
    shares, told = [], {}
    if taken is not None:
      self._dump(taken)
      with self.watch('batch'):
        shares = self._shares(taken)
      found = tally(taken.trajectories, taken.scores) | staleness(taken.trajectories, self.step, taken.dropped)
      told = {'tally': found, 'sampled': sampled(taken.trajectories), 'position': self.stream.position}
    with self.watch('meet'):
      met = meeting.meet(shares, told)
    if met is None:
      return None
    self.position = stream.join(met.told('position'), hosts.shares(self.config.prompts), self.config.prompts)
    with jax.set_mesh(self.loaded.mesh), StepTraceAnnotation('learn', step_num=self.step + 1):
      numbers = self._update(met.shares)
    return numbers | settle(met.told('tally')) | {'sampled_tokens': float(sum(met.told('sampled')))}

  def _dump(self, taken: Taken) -> None:
    if folder := self._dump_folder():
      with self.watch('dump'):
        dump(folder, taken.trajectories, taken.scores)

  def _dump_logps(self, experiences: Sequence[Experience]) -> None:
    """Dumps the log-probs of a step after its updates, those of the policy that came out of them too."""
    folder = self._dump_folder()
    if folder and self.config.dump_logps:
      with self.watch('dump'):
        reference = self.reference and self.reference.fetch()
        for number, experience in enumerate(experiences):
          new = self.prepare(self.state.params, reference, experience.batch).old_logp_BT  # compiled already
          logps = logps_of(experience, new_logp_BT=new)
          dump_logps(folder, logps, first=number * self.config.mini_batch, group_size=self.config.group_size)

  def _dump_folder(self) -> pathlib.Path | None:
    """Where this host dumps the step, None if it is not to be dumped."""
    if not self.config.dump_every or self.step % self.config.dump_every:
      return None
    host = f'_host{jax.process_index()}' if jax.process_count() > 1 else ''
    return self.folder / 'rollouts' / f'step_{self.step + 1:06d}{host}'

  def _shares(self, taken: Taken) -> list[Share]:
    """What this host brings to each mini-batch; rollouts are numbered by place and index, alike on all hosts."""
    size, group_size, out = self.config.mini_batch, self.config.group_size, []
    pairs = list(zip(taken.trajectories, taken.scores, strict=True))
    for first in range(0, self.config.prompts, size):
      own = [(t, s) for t, s in pairs if first <= t.group < first + size]
      groups = [t.group - first for t, _ in own]
      share = to_share(
        [t for t, _ in own],
        [s for _, s in own],
        turns=self.config.rollout.limits.turns,
        rollouts=[group * group_size + t.index for group, (t, _) in zip(groups, own, strict=True)],
        groups=groups,
        size=size * group_size,
      )
      out.append(share)
    return out

  def _update(self, shares: Sequence[Share]) -> Numbers:
    """One pass over the step's mini-batches. All of them are prepared before any update: old means before the step."""
    with self.watch('batch'):
      laid = [assemble(share, self.config.batching, self.loaded.rows) for share in shares]
    with self.watch('prepare'):
      reference = self.reference and self.reference.fetch()
      experiences = jax.block_until_ready([self.prepare(self.state.params, reference, batch) for batch, _ in laid])
      del reference  # what lies with the host is on the devices for this alone
    found, probed = [], self._probed(experiences[0])
    with self.watch('update'):
      for experience in experiences:
        self.state, numbers = self.update(self.state, experience)
        found.append(numbers)
      found = jax.device_get(found)
    self._dump_logps(experiences)
    return over_updates(found) | over_updates([plan.numbers() for _, plan in laid]) | probed

  def _probed(self, experience: Experience) -> Numbers:
    every = self.config.diagnostics.every
    if not every or self.step % every:
      return {}
    with self.watch('diagnose'):
      return probe.told(jax.device_get(self.probe(self.state.params, experience)))

  def _speed(self, numbers: Numbers) -> Numbers:
    """Where the seconds of the step went, and its sampled tokens per second without evaluation."""
    times = breakdown(self.watch.read(), self.watch.lap(), *self.underway.read())
    seconds = times['time/step'] - times.get('time/evaluate', 0.0)
    return times | {'tokens_per_second': numbers.pop('sampled_tokens') / seconds}

  async def _reported(self) -> Numbers:
    """What engines and endpoints of all hosts tell of themselves: their counts add up, of a sync it is the mean."""
    here = self.sampler.numbers() | self.endpoints.numbers()
    mine = {name: (value, 1 if name.startswith('sync/') else None) for name, value in here.items()}
    return settle(await self.sampler.share(lambda: hosts.tell(mine)))

  async def _publish(self) -> None:
    with self.watch('publish'):
      params = await self.sampler.share(lambda: worlds.published(self.config, self.state.params))
      await self.sampler.publish(params, self.step)

  async def _evaluate_if_due(self, numbers: Numbers) -> float | None:
    every = self.config.eval_every
    if not self.heldout or not every or (self.step % every and self.step < self.steps):
      return None
    with self.watch('evaluate'):
      found = await self.evaluate(self.heldout)
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
      policy.save(self.loaded, self.state.params, self.folder / 'model')
      write_result(self.folder, {'steps': self.step, **self.numbers})
