"""Agreement among the processes of a multi-host run: work that succeeds on all of them or fails on all of them.

What is exchanged goes through the devices, so all processes exchange in one order and no thread launches other programs
of all devices meanwhile. Notes go through the coordinator and can be left and read at any time, by any thread.
"""

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax._src import distributed  # the coordinator's store of keys has no public door
from jax.experimental import multihost_utils

from slca_jax.errors import ConfigError, WeightsError

_ROOM = 4096  # what is gathered has one shape everywhere, rounded up to a power of two, or each would compile a program
_LONGEST = 500


def is_first() -> bool:
  """Whether this is the process that does what only one may do."""
  return jax.process_index() == 0


def share(count: int) -> range:
  """Which of `count` things are this process's: one of every `jax.process_count()` in turn."""
  return range(jax.process_index(), count, jax.process_count())


def shares(count: int) -> list[range]:
  """What `share` gives each process."""
  return [range(index, count, jax.process_count()) for index in range(jax.process_count())]


def exchange(content: bytes) -> list[bytes]:
  """What every process brings, in the order of the processes; each of them calls it."""
  if jax.process_count() == 1:
    return [content]
  sizes = multihost_utils.process_allgather(np.array(len(content), np.int32)).tolist()
  padded = np.zeros(max(_ROOM, 1 << (max(sizes) - 1).bit_length()), np.uint8)
  padded[: len(content)] = np.frombuffer(content, np.uint8)
  return [row[:size].tobytes() for row, size in zip(multihost_utils.process_allgather(padded), sizes, strict=True)]


def tell(words: Any) -> list[Any]:
  """What every process says, in the order of the processes; ready for JSON."""
  return [json.loads(content) for content in exchange(json.dumps(words).encode())]


def require_same(what: str, here: str) -> None:
  """Raises ConfigError on every process if they differ in a text; `what` says what it tells of."""
  told = [content.decode() for content in exchange(here.encode())]
  for index, there in enumerate(told):
    if there != told[0]:
      raise ConfigError(f'process {index} has other {what} than process 0; give all of them the same')


def leave_note(name: str, text: str) -> None:
  """Leaves a text for the other processes to find."""
  if distributed.global_state.client is not None:
    distributed.global_state.client.key_value_set(f'slca_jax/{name}', text, allow_overwrite=True)


def notes(folder: str) -> dict[str, str]:
  """The notes below `folder` by what follows it in their name."""
  if distributed.global_state.client is None:
    return {}
  prefix = f'slca_jax/{folder}/'
  return {key.removeprefix(prefix): text for key, text in distributed.global_state.client.key_value_dir_get(prefix)}


def agree(work: Callable[[], str | None], *, first_only: bool = False) -> str:
  """What `work` returned on the first process, once it has ended on all; every process calls it.

  Args:
    work: returns at most 500 letters, or nothing. It may fail on some processes only.
    first_only: the others have no work, but wait for the first one's.

  Raises:
    OSError, WeightsError: `work` failed elsewhere; names the process and its error. Where it failed, its own error.
  """
  answer, failure = '', None
  try:
    if is_first() or not first_only:
      answer = work() or ''
  except Exception as error:
    failure = error
  if jax.process_count() > 1:
    text = answer if failure is None else f'{type(failure).__name__}: {failure}'
    said = tell({'failed': failure is not None, 'errno': getattr(failure, 'errno', None), 'text': text[:_LONGEST]})
    answer = said[0]['text']
    if failure is None:
      _raise_for(said)
  if failure is not None:
    raise failure
  return answer


def _raise_for(said):
  for index, message in enumerate(said):
    if message['failed']:
      complaint = f'process {index} failed with {message["text"]}'
      raise WeightsError(complaint) if message['errno'] is None else OSError(message['errno'], complaint)
