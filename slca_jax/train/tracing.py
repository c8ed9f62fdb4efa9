"""Traces of chosen steps: what host and devices did when, for TensorBoard and Perfetto."""

import contextlib
import logging
import os
import pathlib
import shutil
from collections.abc import Callable, Iterator

import jax

from slca_jax.nn import hosts
from slca_jax.train.diagnostic_settings import Tracing


def span(name: str) -> contextlib.AbstractContextManager:
  """A span of that name in the trace that is under way, if one is."""
  return jax.profiler.TraceAnnotation(name)


class Tracer:
  """Writes `step_N` in its folder, a run of TensorBoard's, for each step that is to be traced and was not.

  Of several hosts the first writes, and sees its own devices. Whatever fails here is logged and ends no run.
  """

  def __init__(self, folder: pathlib.Path, settings: Tracing):
    self._folder, self._settings = folder, settings

  @contextlib.contextmanager
  def __call__(self, step: int) -> Iterator[None]:
    """Traces what runs inside, if it is due; a step that raises leaves no trace."""
    path = self._folder / f'step_{step:06d}'
    if not (self._settings.due(step) and hosts.is_first()) or path.exists():
      yield
      return
    part = path.with_suffix('.part')
    started = _tried(lambda: _start(part))
    if not started:
      shutil.rmtree(part, ignore_errors=True)
    whole = False
    try:
      yield
      whole = True
    finally:
      if started:
        _tried(lambda: _stop(part, path if whole else None))


def _start(part: pathlib.Path) -> None:
  shutil.rmtree(part, ignore_errors=True)
  part.mkdir(parents=True)  # before the trace, which stays under way if it cannot be written
  options = jax.profiler.ProfileOptions()
  options.python_tracer_level = 0  # a span per Python call is slow, and drowns the rest
  jax.profiler.start_trace(part, create_perfetto_trace=True, profiler_options=options)


def _stop(part: pathlib.Path, path: pathlib.Path | None) -> None:
  jax.profiler.stop_trace()
  if path is None:
    shutil.rmtree(part, ignore_errors=True)
  else:
    os.replace(part, path)


def _tried(work: Callable[[], None]) -> bool:
  try:
    work()
  except Exception as error:  # a full disk, another trace under way, a profiler without rights: a run is worth more
    logging.warning('no trace of this step: %s: %s', type(error).__name__, error)
    return False
  return True
