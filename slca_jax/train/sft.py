"""Supervised fine-tuning on demonstrations, with the same rows, mask rule and template as rollouts."""

import concurrent.futures
import dataclasses
import logging
import math
import pathlib
from collections.abc import Callable, Sequence

import jax
import numpy as np

from slca_jax.arrays import TokenBatch, TrainState
from slca_jax.chat.template import Template
from slca_jax.config import as_dict, require
from slca_jax.data.tasks import Order, read_dialogues
from slca_jax.dialogue import Dialogue
from slca_jax.errors import ConfigError, DataError, Diverged, TemplateError
from slca_jax.nn import weights
from slca_jax.rollout.batching import Response, to_supervised
from slca_jax.rollout.settings import Layout
from slca_jax.train import metrics, optimizer, policy
from slca_jax.train.checkpoint import Checkpoints, record_of
from slca_jax.train.run import Stop, claimed, remember, write_json
from slca_jax.train.settings import SFTConfig
from slca_jax.train.steps import Policy, make_fit, make_measure


@dataclasses.dataclass(frozen=True, slots=True)
class Example:
  """A demonstration's ids: the prompt, and what follows with the marks of what is learned."""

  prompt: np.ndarray
  response: Response


def train(config: SFTConfig, *, stop: Stop | None = None) -> dict[str, float]:
  """Trains, or resumes, and exports the model to `output/model`; returns the last numbers.

  Raises:
    ConfigError, DataError, WeightsError, TemplateError: before any training.
    Diverged: the loss is no number.
  """
  folder = pathlib.Path(config.output)
  policy.check(config.model)
  dialogues, heldout = _read(config)
  with claimed(folder), (stop or Stop()).listening() as stop:
    remember(folder, as_dict(config), data=(config.data.train, config.data.heldout))
    loaded = policy.load(config.model, config.mesh)
    policy.check_rows(config.batching.micro_rows, loaded.mesh)
    with jax.set_mesh(loaded.mesh):
      return _train(config, folder, loaded, dialogues, heldout, stop)


def encode(dialogue: Dialogue, template: Template) -> Example:
  """The ids of a demonstration; its masks are those of a rollout that said the same."""
  prompt, *rest = template.dialogue(dialogue.messages, dialogue.tools, context=dialogue.context)
  tokens = np.array([token for piece in rest for token in piece.tokens], np.int32)
  sampled = np.repeat([piece.learnable for piece in rest], [len(piece.tokens) for piece in rest])
  return Example(np.array(prompt.tokens, np.int32), Response(0, tokens, sampled, np.zeros(len(tokens), np.float32)))


def _encode_or_none(dialogue: Dialogue, template: Template) -> Example | None:
  try:
    return encode(dialogue, template)
  except (DataError, TemplateError) as error:
    logging.warning('dialogue %s is left out: %s', dialogue.id, error)
    return None


class Encoder:
  """Batches of demonstrations, encoded one step ahead of the device; see `make_batch`."""

  def __init__(self, dialogues: Sequence[Dialogue], loaded: policy.Loaded, config: SFTConfig):
    self._order = Order(dialogues, config.batch, seed=config.seed)
    self._loaded, self._layout = loaded, config.batching
    self._worker = concurrent.futures.ThreadPoolExecutor(1)
    self._ahead: dict[int, concurrent.futures.Future[tuple[TokenBatch, int]]] = {}

  def __call__(self, step: int) -> tuple[TokenBatch, int]:
    """(the batch of a step, how many of its dialogues were left out)."""
    ready = self._ahead.pop(step, None) or self._worker.submit(self._make, step)
    self._ahead = {step + 1: self._worker.submit(self._make, step + 1)}
    return ready.result()

  def close(self) -> None:
    """Ends the worker."""
    self._worker.shutdown(cancel_futures=True)

  def _make(self, step: int) -> tuple[TokenBatch, int]:
    return make_batch(self._order(step), self._loaded, self._layout)


def make_batch(dialogues: Sequence[Dialogue], loaded: policy.Loaded, layout: Layout) -> tuple[TokenBatch, int]:
  """(the packed batch of some dialogues, how many were left out).

  Left out is what the chat template cannot render, and what fits no row or not the model's context.
  """
  longest = min(layout.lengths[-1], loaded.config.context)
  examples = [_encode_or_none(dialogue, loaded.template) for dialogue in dialogues]
  fitting = [e for e in examples if e is not None and len(e.prompt) + len(e.response.tokens) <= longest]
  responses = [dataclasses.replace(e.response, rollout=r) for r, e in enumerate(fitting)]
  prompts = [e.prompt for e in fitting]
  batch = to_supervised(responses, prompts, layout, rollouts=len(dialogues), sharding=loaded.rows)
  return batch, len(examples) - len(fitting)


def _train(
  config: SFTConfig,
  folder: pathlib.Path,
  loaded: policy.Loaded,
  dialogues: Sequence[Dialogue],
  heldout: Sequence[Dialogue],
  stop: Stop,
) -> dict[str, float]:
  steps = config.steps or math.ceil(config.epochs * len(dialogues) / config.batch)
  network = Policy(loaded.graph, loaded.config.vocab, 1.0, config.logprob_chunk)
  rule = optimizer.make(config.optimizer, steps)
  state, shardings = policy.init_state(loaded.params, rule, loaded.mesh)
  fit = make_fit(network, rule, micro_rows=config.batching.micro_rows, shardings=shardings)
  measure = make_measure(network, micro_rows=config.batching.micro_rows)
  checkpoints = Checkpoints(folder / 'checkpoints', config.checkpoint)
  done, numbers = 0, dict[str, float]()
  if checkpoints.latest is not None:
    state, record = checkpoints.restore(state)
    done, numbers = record['step'], record['numbers']
  writer = metrics.Writer(folder, resume_at=done + 1)
  bar = metrics.Bar(steps, done=done, title='sft', shown={'loss': 'loss', 'held-out': 'heldout_loss'})
  batches = Encoder(dialogues, loaded, config)
  try:
    while done < steps and not learned(numbers, config) and not stop.requested:
      before = numbers
      batch, left_out = batches(done)
      state, device_numbers = fit(state, batch)
      done += 1
      numbers = {name: float(value) for name, value in jax.device_get(device_numbers).items()} | {'left_out': left_out}
      numbers['smoothed_loss'] = smooth(before.get('smoothed_loss', numbers['loss']), numbers['loss'])
      last = done == steps or learned(numbers, config)
      if not math.isfinite(numbers['loss']):
        raise Diverged(f'the loss of step {done} is {numbers["loss"]}; lower optimizer.learning_rate')
      if heldout and (last or (config.eval_every and done % config.eval_every == 0)):
        metrics.put_mean(numbers, 'heldout_loss', [_loss(measure, state, heldout, loaded, config)])
      writer.write(done, numbers)
      bar.advance(numbers)
      if checkpoints.due(done, steps):
        score = -numbers['heldout_loss'] if 'heldout_loss' in numbers else None
        checkpoints.save(done, state, record_of(done, numbers, config), score=score)
    if done:
      checkpoints.save(done, state, record_of(done, numbers, config))
  finally:
    for part in (batches, writer, bar, checkpoints):
      part.close()
  if done == steps or learned(numbers, config):
    weights.save_hf(state.params, loaded.config, folder / 'model', source=loaded.folder)
    write_json(folder / 'result.json', {'steps': done, **numbers})
  return numbers


def smooth(before: float, loss: float) -> float:
  """An exponential mean of the loss over about ten steps."""
  return 0.9 * before + 0.1 * loss


def learned(numbers: dict[str, float], config: SFTConfig) -> bool:
  """Whether the smoothed loss is below what the settings ask for."""
  return bool(config.until) and numbers.get('smoothed_loss', math.inf) < config.until


def _read(config: SFTConfig) -> tuple[list[Dialogue], list[Dialogue]]:
  require(bool(config.data.train), 'data.train is empty; give a JSONL file of dialogues')
  for path in filter(None, (config.data.train, config.data.heldout)):
    if not pathlib.Path(path).is_file():
      raise ConfigError(f'data names {path!r}; there is no such file')
  heldout = read_dialogues(config.data.heldout) if config.data.heldout else []
  return read_dialogues(config.data.train), heldout


def _loss(
  measure: Callable, state: TrainState, heldout: Sequence[Dialogue], loaded: policy.Loaded, config: SFTConfig
) -> float | None:
  """Mean cross entropy per learned token of the held-out dialogues, None if not one of them fits a row."""
  total = count = 0.0
  for start in range(0, len(heldout), config.batch):
    batch, _ = make_batch(heldout[start : start + config.batch], loaded, config.batching)
    loss, tokens = measure(state.params, batch)
    total, count = total + float(loss), count + float(tokens)
  return total / count if count else None
