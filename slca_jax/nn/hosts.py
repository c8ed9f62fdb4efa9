"""Agreement among the processes of a multi-host run: work that succeeds on all of them or fails on all of them."""

import json
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from slca_jax.errors import WeightsError

_MESSAGE_BYTES = 4096  # what is gathered has one shape everywhere
_LONGEST = 500


def is_first() -> bool:
  """Whether this is the process that does what only one may do."""
  return jax.process_index() == 0


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
    said = _gather({'failed': failure is not None, 'errno': getattr(failure, 'errno', None), 'text': text[:_LONGEST]})
    answer = said[0]['text']
    if failure is None:
      _raise_for(said)
  if failure is not None:
    raise failure
  return answer


def _gather(message: dict[str, Any]) -> list[dict[str, Any]]:
  """Every process's message, in the order of the processes."""
  letters = np.frombuffer(json.dumps(message).encode().ljust(_MESSAGE_BYTES), np.uint8)
  return [json.loads(row.tobytes()) for row in multihost_utils.process_allgather(letters)]


def _raise_for(said):
  for index, message in enumerate(said):
    if message['failed']:
      complaint = f'process {index} failed with {message["text"]}'
      raise WeightsError(complaint) if message['errno'] is None else OSError(message['errno'], complaint)
