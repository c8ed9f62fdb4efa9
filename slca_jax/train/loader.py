"""Batches of demonstrations, read one step ahead of the device by grain, whose position every checkpoint holds.

Which dialogues a step shows is a function of the seed and the step (`Order` in data/tasks.py, `RowPlan` in
data/packing.py), so grain reads by index and its whole state is the index that comes next. Its own packing is not used:
it goes through the data in order, must encode again after a resumption what the open rows held, and fills rows of
lengths like Toucan's to 0.92 (8 rows open) or 0.97 (256); rows planned from sizes are filled to 0.99.
"""

import dataclasses
import logging
import math
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

import grain
import numpy as np
import tqdm

from slca_jax.arrays import TokenBatch
from slca_jax.data.encoded import Encoded, encode_to, key_of
from slca_jax.data.packing import RowPlan, best_fit
from slca_jax.data.sft import BadMask, Example, Learned, encode, select
from slca_jax.data.tasks import Order, stream_dialogues
from slca_jax.dialogue import Dialogue
from slca_jax.errors import DataError, TemplateError
from slca_jax.nn import hosts
from slca_jax.rollout.batching import supervised, to_supervised
from slca_jax.rollout.settings import Layout
from slca_jax.rollout.trees import Response, Tree
from slca_jax.train import policy
from slca_jax.train.settings import SFTConfig

_ALL = Learned()
Demonstrated = Sequence[Dialogue] | Encoded
Batch = tuple[TokenBatch, dict[str, float]]  # a batch, what it wastes, and how many of its dialogues were left out


class DialogueBatches:
  """Step by step `batch` dialogues, packed into the fewest rows; what fits no row or cannot be rendered is left out."""

  def __init__(self, dialogues: Demonstrated, loaded: policy.Loaded, config: SFTConfig):
    """Reads until the first dialogue that can be used. Raises DataError, or BadMask, where there is none."""
    if not any(usable(dialogue, loaded, config.batching, config.learned) for dialogue in dialogues):
      raise DataError(
        f'not one of {len(dialogues)} dialogues can be rendered and fits a row of {_longest(loaded, config)} tokens, '
        "the last of batching.lengths or the model's context; there is nothing to train on"
      )
    self._order = Order(dialogues, config.batch, seed=config.seed)
    self._loaded, self._config = loaded, config
    self.steps = config.steps or math.ceil(config.epochs * len(dialogues) / config.batch)

  def __len__(self) -> int:
    return self.steps

  def __getitem__(self, step: int) -> Batch:
    return make_batch(self._order(step), self._loaded, self._config.batching, learned=self._config.learned)


class RowBatches:
  """Step by step `packing.rows` full rows. Every dialogue is encoded once before the first step, to know its size."""

  def __init__(self, dialogues: Demonstrated, loaded: policy.Loaded, config: SFTConfig, *, remembered: pathlib.Path):
    """Reads the sizes from the file `remembered`, or writes them there.

    Raises:
      BadMask, DataError: a dialogue has nothing to learn, or not one can be used.
    """
    self._dialogues, self._loaded, self._learned = dialogues, loaded, config.learned
    self._length, rows = config.batching.lengths[-1], config.packing.rows
    self._micro_rows = config.batching.micro_rows
    sizes = sizes_of(dialogues, loaded, config, remembered)
    self._plan = RowPlan(sizes, length=self._length, rows=rows, window=config.packing.window, seed=config.seed)
    self._most = self._plan.most_per_batch
    self.steps = config.steps or self._plan.steps(config.epochs)
    if left_out := sum(not size for size in sizes):
      logging.warning('%d of %d dialogues are left out', left_out, len(sizes))

  def __len__(self) -> int:
    return self.steps

  def __getitem__(self, step: int) -> Batch:
    rows = self._plan(step)
    places = {index: place for place, index in enumerate(index for row in rows for index in row)}
    grown = lambda index: tree(self._encode(index), places[index])
    trees = [[grown(index) for index in row] for row in rows]
    batch, plan = supervised(trees, self._length, self._micro_rows, rollouts=self._most, sharding=self._loaded.rows)
    return batch, plan.numbers() | {'left_out': 0.0}

  def _encode(self, index: int) -> Example:
    one = self._dialogues[index]
    if isinstance(one, Dialogue):
      return encode(one, self._loaded.template, separator=self._learned.separator)
    return cast(Example, one)  # what is left out is of size 0 and in no plan


def open_batches(
  dialogues: Sequence[Dialogue], loaded: policy.Loaded, config: SFTConfig, folder: pathlib.Path
) -> tuple[grain.DatasetIterator, int]:
  """(an iterator over the batches of a run, how many there are); `folder` keeps what need not be computed again."""
  source: Any
  found = encoded(loaded, config) if config.data.encoded else dialogues
  if config.packing.rows:
    source = RowBatches(found, loaded, config, remembered=folder / 'sizes.npz')
  else:
    source = DialogueBatches(found, loaded, config)
  ahead = grain.ReadOptions(num_threads=1, prefetch_buffer_size=1)
  return iter(grain.MapDataset.source(source).to_iter_dataset(ahead)), source.steps


def encoded(loaded: policy.Loaded, config: SFTConfig) -> Encoded:
  """The ids of `data.train` in the folder `data.encoded`, which the first host fills if they are not there."""
  folder, learned = pathlib.Path(config.data.encoded), config.learned
  one = lambda dialogue: usable(select(dialogue, learned), loaded, config.batching, learned)
  hosts.agree(
    lambda: encode_to(folder, stream_dialogues(config.data.train), one, key=_key(loaded, config)),
    first_only=True,
  )
  return Encoded(folder)


def make_batch(
  dialogues: Sequence[Dialogue | Example | None], loaded: policy.Loaded, layout: Layout, *, learned: Learned = _ALL
) -> Batch:
  """(the packed batch of some dialogues, what it wastes and how many were left out)."""
  examples = [usable(dialogue, loaded, layout, learned) for dialogue in dialogues]
  kept = [example for example in examples if example is not None]
  trees = [tree(example, place) for place, example in enumerate(kept)]
  batch, plan = to_supervised(trees, layout, rollouts=len(dialogues), sharding=loaded.rows)
  return batch, plan.numbers() | {'left_out': float(len(examples) - len(kept))}


def heldout_batches(examples: Sequence[Example], loaded: policy.Loaded, config: SFTConfig) -> Iterator[TokenBatch]:
  """The batches of a measurement, of the shapes that training has."""
  layout, rows = config.batching, config.packing.rows
  if not rows:
    for start in range(0, len(examples), config.batch):
      trees = [tree(example, place) for place, example in enumerate(examples[start : start + config.batch])]
      yield to_supervised(trees, layout, rollouts=config.batch, sharding=loaded.rows)[0]
    return
  packed = best_fit([example.size for example in examples], layout.lengths[-1])
  for start in range(0, len(packed), rows):
    trees = [[tree(examples[index], 0) for index in row] for row in packed[start : start + rows]]
    yield supervised(trees, layout.lengths[-1], layout.micro_rows, rollouts=1, sharding=loaded.rows)[0]


def tree(example: Example, place: int) -> Tree:
  """The example as a prompt with one response, the `place`-th of its batch."""
  silent = np.zeros(len(example.tokens), np.float32)
  return Tree(example.prompt, (Response(place, example.tokens, example.learned, silent),))


def usable(
  dialogue: Dialogue | Example | None, loaded: policy.Loaded, layout: Layout, learned: Learned
) -> Example | None:
  """The dialogue's ids, None if the template cannot render it, or if it fits no row or not the model.

  A model has a context, and ids of its own: a tokenizer may have more.

  What was encoded before is what comes back.

  Raises:
    BadMask: nothing of it is learned.
  """
  if not isinstance(dialogue, Dialogue):
    return dialogue
  try:
    example = encode(dialogue, loaded.template, separator=learned.separator)
  except BadMask:
    raise
  except (DataError, TemplateError) as error:
    logging.warning('dialogue %s is left out: %s', dialogue.id, error)
    return None
  longest, vocab = min(layout.lengths[-1], loaded.config.context), loaded.config.vocab
  if example.size > longest:
    logging.warning('dialogue %s is left out: its %d tokens exceed %d', dialogue.id, example.size, longest)
    return None
  highest = max(example.prompt.max(), example.tokens.max())
  if highest >= vocab:  # a look-up would take another id's, and to learn it would lower all logits without end
    logging.warning("dialogue %s is left out: its id %d is none of the model's %d", dialogue.id, highest, vocab)
    return None
  return example


def sizes_of(dialogues: Demonstrated, loaded: policy.Loaded, config: SFTConfig, remembered: pathlib.Path) -> list[int]:
  """Tokens of every dialogue, 0 for those that are left out."""
  if isinstance(dialogues, Encoded):
    return dialogues.sizes.tolist()
  key = _key(loaded, config)  # a start that left no checkpoint may have had other data or settings

  def encode_all() -> None:
    if _remembered(remembered, key) is not None:
      return
    sizes = []
    for dialogue in tqdm.tqdm(dialogues, desc='encode', unit='dialogue', dynamic_ncols=True, mininterval=1.0):
      example = usable(dialogue, loaded, config.batching, config.learned)
      sizes.append(example.size if example else 0)
    part = remembered.with_suffix('.part')
    with open(part, 'wb') as file:
      np.savez(file, key=key, sizes=np.array(sizes, np.int32))
    os.replace(part, remembered)

  hosts.agree(encode_all, first_only=True)
  return cast(list[int], _remembered(remembered, key))


def _remembered(path: pathlib.Path, key: str) -> list[int] | None:
  """The sizes in a file, None if they are of other data or settings, or if there are none."""
  if not path.exists():
    return None
  with np.load(path) as found:
    return found['sizes'].tolist() if str(found['key']) == key else None


def _key(loaded: policy.Loaded, config: SFTConfig) -> str:
  """Equal where all that decides about ids is: the file, the tokenizer, what is learned, the longest row, known ids."""
  template = loaded.template
  limits = _longest(loaded, config), min(template.vocab_size, loaded.config.vocab)
  return key_of(config.data.train, template.digest, dataclasses.asdict(config.learned), limits)


def _longest(loaded: policy.Loaded, config: SFTConfig) -> int:
  return min(config.batching.lengths[-1], loaded.config.context)
