"""What rollouts wait for: their engine, their world or their judge, though hundreds of them wait at once."""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any

KINDS: tuple[str, ...] = ('sample', 'environment', 'judge')
Span = Callable[[str], contextlib.AbstractContextManager[Any]]


def unwatched(_: str) -> contextlib.AbstractContextManager[Any]:
  """A span that nobody measures."""
  return contextlib.nullcontext()


class Underway:
  """Seconds in which requests, steps of worlds or judgements were under way: `with underway('sample'): …`.

  All are entered and left by one thread, that of the event loop.

  Args:
    span: opens a span of that name in a trace; there is one at a time, of the kind that is waited for.
    clock: seconds.
  """

  def __init__(self, span: Span = unwatched, clock: Callable[[], float] = time.perf_counter):
    self._span, self._clock = span, clock
    self._count = dict.fromkeys(KINDS, 0)
    self._busy, self._waited = dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0.0)
    self._since, self._waiting = clock(), False
    self._shown: tuple[str, contextlib.AbstractContextManager[Any]] | None = None

  @contextlib.contextmanager
  def __call__(self, kind: str) -> Iterator[None]:
    """Counts what runs inside as one of its kind."""
    self._turn(kind, 1)
    try:
      yield
    finally:
      self._turn(kind, -1)

  @contextlib.contextmanager
  def waiting(self) -> Iterator[None]:
    """Inside, somebody waits for all that is under way, and each instant is put down to one kind.

    While the engine has a request it is the engine's, else a world's while one steps, else a judge's.
    """
    self._settle()
    self._waiting = True
    self._show()
    try:
      yield
    finally:
      self._settle()
      self._waiting = False
      self._show()

  def read(self) -> tuple[dict[str, float], dict[str, float]]:
    """(seconds in which any of a kind was under way, seconds waited for a kind) since the last reading."""
    self._settle()
    out = self._busy, self._waited
    self._busy, self._waited = dict.fromkeys(KINDS, 0.0), dict.fromkeys(KINDS, 0.0)
    return out

  def _turn(self, kind: str, by: int) -> None:
    self._settle()
    self._count[kind] += by
    self._show()

  def _settle(self) -> None:
    now = self._clock()
    passed, self._since = now - self._since, now
    for kind, count in self._count.items():
      if count:
        self._busy[kind] += passed
    if kind := self._awaited():
      self._waited[kind] += passed

  def _awaited(self) -> str | None:
    return next((kind for kind, count in self._count.items() if count), None) if self._waiting else None

  def _show(self) -> None:
    kind = self._awaited()
    if kind == (self._shown and self._shown[0]):
      return
    if self._shown:
      self._shown[1].__exit__(None, None, None)
    self._shown = (kind, self._span(kind)) if kind else None
    if self._shown:
      self._shown[1].__enter__()
