"""Demonstrations as ids on disk: each is encoded once, and read by its index without holding the others.

The ids of all lie one after the other in one array, the marks of what is learned in another; a third says where each
begins. What was encoded for other data, another template or other settings is made anew.
"""

import hashlib
import json
import pathlib
import shutil
from collections.abc import Callable, Iterable, Sequence
from typing import Any, overload

import numpy as np
import tqdm

from slca_jax.data.folders import claimed, digest_of, write_json
from slca_jax.data.sft import Example
from slca_jax.data.store import Arrays
from slca_jax.dialogue import Dialogue

_IDS = {'token': ('int32', ()), 'learned': ('bool', ())}
_PLACES = {'start': ('int64', ()), 'prompt': ('int32', ()), 'rest': ('int32', ())}
_TOGETHER = 1 << 16  # ids in one file, and as many are gathered before they are written


class Encoded(Sequence[Example | None]):
  """The examples of a folder that `encode_to` filled; None stands for a dialogue that is left out.

  Attributes:
    sizes: tokens of each, 0 for those that are left out.
  """

  def __init__(self, folder: pathlib.Path):
    self._ids = Arrays(folder / 'ids')
    places = Arrays(folder / 'places')[:]
    self._start, self._prompt, self._rest = (places[name] for name in _PLACES)
    self.sizes = self._prompt + self._rest

  def __len__(self) -> int:
    return len(self._start)

  @overload
  def __getitem__(self, index: int) -> Example | None: ...
  @overload
  def __getitem__(self, index: slice) -> list[Example | None]: ...
  def __getitem__(self, index: int | slice) -> Example | list[Example | None] | None:
    if isinstance(index, slice):
      return [self[one] for one in range(len(self))[index]]
    if not self.sizes[index]:
      return None
    start, prompt, end = int(self._start[index]), int(self._prompt[index]), int(self.sizes[index])
    found = self._ids[start : start + end]
    return Example(found['token'][:prompt], found['token'][prompt:], found['learned'][prompt:])


def encode_to(
  folder: pathlib.Path, dialogues: Iterable[Dialogue], encode: Callable[[Dialogue], Example | None], *, key: str
) -> None:
  """Fills the folder, or what is left of it to fill; what another key stands for is removed.

  Args:
    encode: the ids of a dialogue, None to leave it out.
    key: equal where dialogues and encoding are equal, see `key_of`.

  Raises:
    ConfigError: another process is filling it.
  """
  with claimed(folder):
    stamp = folder / 'key.json'
    told = json.loads(stamp.read_text('utf-8')) if stamp.exists() else {}
    if told == {'key': key, 'whole': True}:
      return
    if told.get('key') != key:
      for name in ('ids', 'places'):
        shutil.rmtree(folder / name, ignore_errors=True)
      write_json(stamp, {'key': key, 'whole': False})
    writer = _Writer(folder)
    done = len(writer)
    for number, dialogue in enumerate(tqdm.tqdm(dialogues, desc='encode', unit=' dialogues', disable=None)):
      if number >= done:  # a run that was killed had come so far
        writer.add(encode(dialogue))
    writer.flush()
    write_json(stamp, {'key': key, 'whole': True})


def key_of(path: str, *settings: Any) -> str:
  """A hash of a file's content and of settings, which are ready for JSON."""
  return hashlib.sha256(json.dumps([digest_of(path), *settings], sort_keys=True).encode()).hexdigest()


class _Writer:
  """Appends examples, many at a time: first their ids, then where they lie."""

  def __init__(self, folder: pathlib.Path):
    self._ids = Arrays(folder / 'ids', _IDS, rows=_TOGETHER)
    self._places = Arrays(folder / 'places', _PLACES, rows=_TOGETHER)
    self._waiting: list[Example | None] = []
    self._size = 0

  def __len__(self) -> int:
    return len(self._places)

  def add(self, example: Example | None) -> None:
    """Takes the next example, or None for one that is left out; it may be written later."""
    self._waiting.append(example)
    self._size += example.size if example else 1
    if self._size >= _TOGETHER:
      self.flush()

  def flush(self) -> None:
    """Writes what was taken and is not on disk yet."""
    if not self._waiting:
      return
    prompts = np.array([len(one.prompt) if one else 0 for one in self._waiting], np.int32)
    rests = np.array([len(one.tokens) if one else 0 for one in self._waiting], np.int32)
    sizes = (prompts + rests).astype(np.int64)
    starts = len(self._ids) + np.cumsum(sizes) - sizes  # ids without a place are those of a run that was killed here
    kept = [one for one in self._waiting if one]
    if kept:
      self._ids.append(
        {
          'token': np.concatenate([part for one in kept for part in (one.prompt, one.tokens)]),
          'learned': np.concatenate([part for one in kept for part in (np.zeros(len(one.prompt), bool), one.learned)]),
        }
      )
    self._places.append({'start': starts, 'prompt': prompts, 'rest': rests})
    self._waiting, self._size = [], 0
