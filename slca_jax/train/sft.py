"""Supervised fine-tuning on demonstrations, with the same rows, mask rule and template as rollouts."""

import math
import pathlib
from collections.abc import Callable, Sequence

import jax
from jax.profiler import StepTraceAnnotation

from slca_jax.arrays import TrainState
from slca_jax.config import as_dict, require
from slca_jax.data.sft import Example, select
from slca_jax.data.tasks import read_dialogues
from slca_jax.dialogue import Dialogue
from slca_jax.errors import Diverged, HostFailure
from slca_jax.nn import hosts
from slca_jax.train import metrics, optimizer, policy
from slca_jax.train.checkpoint import Checkpoints, record_of
from slca_jax.train.loader import heldout_batches, open_batches, usable
from slca_jax.train.run import Stop, in_touch, opened, withdraw_result, write_result
from slca_jax.train.settings import SFTConfig, require_files
from slca_jax.train.steps import Policy, make_fit, make_measure
from slca_jax.train.tracing import Tracer, span

_SHOWN = {'loss': 'loss', 'held-out': 'heldout_loss'}
_KEPT = ('smoothed_loss', 'best_heldout_loss', 'best_step')  # from step to step


def train(config: SFTConfig, *, stop: Stop | None = None) -> metrics.Numbers:
  """Trains, or resumes, and exports the model to `output/model`; returns the last numbers.

  Every process of a run on several hosts calls it; all read the same data, and each lays out the rows of its devices.

  Raises:
    ConfigError, DataError, WeightsError, TemplateError: before any training.
    Diverged: the loss is no number.
    HostFailure: another process failed.
  """
  folder, stop = pathlib.Path(config.output), stop or Stop()
  with in_touch(stop):
    policy.check(config.model)
    dialogues, heldout = _read(config)
    data = config.data.train, config.data.heldout
    with opened(folder, as_dict(config), data=data), stop.listening():
      loaded = policy.load(config.model, config.mesh, micro_rows=config.batching.micro_rows)
      with jax.set_mesh(loaded.mesh):
        student = Student(config, folder, loaded, dialogues, heldout)
        try:
          return student.learn(stop)
        finally:
          student.close()


class Student:
  """One run: its state, its jitted programs, its data and its files."""

  def __init__(
    self,
    config: SFTConfig,
    folder: pathlib.Path,
    loaded: policy.Loaded,
    dialogues: Sequence[Dialogue],
    heldout: Sequence[Dialogue],
  ):
    self.config, self.folder, self.loaded = config, folder, loaded
    self.batches, self.steps = open_batches(dialogues, loaded, config, folder)
    network = Policy(loaded.graph, loaded.config.vocab, 1.0, config.logprob_chunk)
    rule = optimizer.make(config.optimizer, self.steps)
    self.state, shardings = policy.init_state(loaded.params, rule, loaded.mesh)
    micro_rows = config.batching.micro_rows
    self.fit = make_fit(network, rule, micro_rows=micro_rows, shardings=shardings)
    self.heldout = Heldout(heldout, loaded, config, make_measure(network, micro_rows=micro_rows))
    self.trace = Tracer(folder / 'trace', config.trace)
    self.checkpoints = Checkpoints(folder / 'checkpoints', config.checkpoint)
    self.step, self.numbers = self._restore()
    if not self.done:
      withdraw_result(folder)
    self.writer = metrics.Writer(folder, resume_at=self.step + 1, silent=not hosts.is_first())

  @property
  def done(self) -> bool:
    """Whether nothing is left to learn."""
    return self.step >= self.steps or learned(self.numbers, self.config)

  def learn(self, stop: Stop) -> metrics.Numbers:
    """Steps until the end or until `stop` is requested; saves either way."""
    bar = metrics.Bar(self.steps, done=self.step, title='sft', shown=_SHOWN, silent=not hosts.is_first())
    try:
      while not self.done and not any(hosts.tell(stop.requested)):
        if stop.failure:
          raise HostFailure(stop.failure)
        self._advance()
        improved = self._measure()
        self.writer.write(self.step, self.numbers)
        bar.advance(self.numbers)
        if improved or self.checkpoints.due(self.step, self.steps):
          self._save()
      if self.step:
        self._save()
    finally:
      bar.close()
    self.checkpoints.wait()
    if self.done:
      policy.save(self.loaded, self.state.params, self.folder / 'model')
      write_result(self.folder, {'steps': self.step, **self.numbers})
    return self.numbers

  def close(self) -> None:
    """Waits for checkpoints that are being written, ends the reading and closes the files."""
    for part in (self.batches, self.checkpoints, self.writer):
      part.close()

  def _advance(self) -> None:
    """One update."""
    before, number = self.numbers, self.step + 1
    with self.trace(number), StepTraceAnnotation('learn', step_num=number):
      with span('read'):
        batch, wasted = next(self.batches)
      with span('update'):
        self.state, numbers = self.fit(self.state, batch)
        found = jax.device_get(numbers)
    self.step = number
    self.numbers = {name: float(value) for name, value in found.items()} | wasted
    self.numbers |= {name: before[name] for name in _KEPT if name in before}
    if not self.numbers['tokens']:  # every dialogue of the batch is left out, which is no loss of 0
      del self.numbers['loss']
      return
    loss: float = self.numbers['loss']
    if not math.isfinite(loss):
      raise Diverged(f'the loss of step {self.step} is {loss}; lower optimizer.learning_rate')
    self.numbers['smoothed_loss'] = smooth(before.get('smoothed_loss', loss), loss)

  def _measure(self) -> bool:
    """Measures the held-out loss where it is due, and says whether it is the lowest so far."""
    every = self.config.eval_every
    if not (self.done or (every and self.step % every == 0)):
      return False
    metrics.put_mean(self.numbers, 'heldout_loss', [self.heldout.loss(self.state)])
    loss = self.numbers.get('heldout_loss', math.inf)
    if loss >= self.numbers.get('best_heldout_loss', math.inf):
      return False
    self.numbers |= {'best_heldout_loss': loss, 'best_step': self.step}
    return True

  def _save(self) -> None:
    score = -self.numbers['heldout_loss'] if 'heldout_loss' in self.numbers else None
    record = record_of(self.step, self.numbers, self.config)
    self.checkpoints.save(self.step, self.state, record, data=self.batches, score=score)

  def _restore(self) -> tuple[int, metrics.Numbers]:
    """The step to go on from and its numbers."""
    latest = self.checkpoints.latest
    if latest is None:
      return 0, {}
    data = self.batches if latest < self.steps else None  # grain stands nowhere behind its last batch
    self.state, record = self.checkpoints.restore(self.state, data=data)
    return record['step'], record['numbers']


class Heldout:
  """The held-out dialogues, encoded when they are first measured."""

  def __init__(self, dialogues: Sequence[Dialogue], loaded: policy.Loaded, config: SFTConfig, measure: Callable):
    self._dialogues, self._loaded, self._config, self._measure = dialogues, loaded, config, measure
    self._examples: list[Example] | None = None

  def loss(self, state: TrainState) -> float | None:
    """Mean cross entropy per learned token, None if not one of the dialogues can be used."""
    if self._examples is None:
      layout, learned = self._config.batching, self._config.learned
      found = [usable(dialogue, self._loaded, layout, learned) for dialogue in self._dialogues]
      self._examples = [example for example in found if example is not None]
    total = count = 0.0
    for batch in heldout_batches(self._examples, self._loaded, self._config):
      loss, tokens = self._measure(state.params, batch)
      total, count = total + float(loss), count + float(tokens)
    return total / count if count else None


def smooth(before: float, loss: float) -> float:
  """An exponential mean of the loss over about ten steps."""
  return 0.9 * before + 0.1 * loss


def learned(numbers: metrics.Numbers, config: SFTConfig) -> bool:
  """Whether the smoothed loss is below what the settings ask for."""
  return bool(config.until) and numbers.get('smoothed_loss', math.inf) < config.until


def _read(config: SFTConfig) -> tuple[list[Dialogue], list[Dialogue]]:
  require_files(config.data, 'dialogues')
  read = lambda path: [select(dialogue, config.learned) for dialogue in read_dialogues(path)] if path else []
  if config.data.encoded:  # read one by one where they are encoded
    return [], read(config.data.heldout)
  found = read(config.data.train)
  require(bool(found), f'{config.data.train} holds no dialogue')
  return found, read(config.data.heldout)
