"""Seconds under way and waited for, by a clock that the test winds."""

import contextlib

import pytest

from slca_jax.rollout.underway import Underway


class Clock:
  now = 0.0

  def __call__(self):
    return self.now


def test_kinds_overlap_under_way_and_each_instant_of_waiting_belongs_to_one():
  clock = Clock()
  underway = Underway(clock=clock)
  sample, other, judge = underway('sample'), underway('sample'), underway('judge')
  with contextlib.ExitStack() as waits:
    sample.__enter__()
    clock.now = 1.0
    waits.enter_context(underway.waiting())
    other.__enter__()
    judge.__enter__()
    clock.now = 3.0
    sample.__exit__(None, None, None)
    clock.now = 4.0
    other.__exit__(None, None, None)
    clock.now = 4.5  # only the judge is left
    with underway('environment'):
      clock.now = 6.5
    judge.__exit__(None, None, None)
    clock.now = 7.0  # nobody does anything
  busy, waited = underway.read()
  assert busy == {'sample': 4.0, 'environment': 2.0, 'judge': 5.5}
  assert waited == {'sample': 3.0, 'environment': 2.0, 'judge': 0.5}
  assert underway.read() == (dict.fromkeys(busy, 0.0), dict.fromkeys(busy, 0.0))


def test_what_fails_is_under_way_no_more():
  clock = Clock()
  underway = Underway(clock=clock)
  with pytest.raises(OSError, match='gone'), underway('environment'):
    clock.now = 1.0
    raise OSError('gone')
  clock.now = 5.0
  assert underway.read()[0]['environment'] == 1.0


def test_one_span_is_open_at_a_time_and_only_while_somebody_waits():
  seen = []

  @contextlib.contextmanager
  def span(name):
    seen.append(f'+{name}')
    yield
    seen.append(f'-{name}')

  underway = Underway(span)
  with underway('sample'), underway('sample'):
    with underway.waiting(), underway('judge'):
      pass
    with underway('judge'):
      pass
  with underway.waiting(), underway('judge'), underway('environment'), underway('sample'):
    pass
  first = ['+sample', '-sample']
  rising = ['+judge', '-judge', '+environment', '-environment', '+sample', '-sample']
  assert seen == [*first, *rising, '+environment', '-environment', '+judge', '-judge']
