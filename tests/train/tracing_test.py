"""Traces of steps: which are written, that nobody fails for them, and that they can be read."""

import gzip
import json
import logging

import jax
import jax.numpy as jnp
import pytest

from slca_jax.errors import ConfigError
from slca_jax.train.diagnostic_settings import Tracing
from slca_jax.train.tracing import Tracer


def step(tracer, number):
  with tracer(number), jax.profiler.TraceAnnotation('update'):
    jax.block_until_ready(jax.jit(lambda x: jnp.sin(x) @ x)(jnp.ones((8, 8))))


def traced(folder):
  return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_chosen_steps_are_traced_once_for_tensorboard_and_perfetto(tmp_path):
  tracer = Tracer(tmp_path / 'trace', Tracing(steps=(2,), every=4))
  for number in range(1, 6):
    step(tracer, number)
  assert traced(tmp_path / 'trace') == ['step_000002', 'step_000004']
  written = {path.name: path for path in (tmp_path / 'trace' / 'step_000002' / 'plugins' / 'profile').glob('*/*')}
  assert any(name.endswith('.xplane.pb') for name in written)
  events = json.loads(gzip.decompress(written['perfetto_trace.json.gz'].read_bytes()))['traceEvents']
  assert 'update' in {event.get('name') for event in events}
  before = [(path, path.stat().st_mtime_ns) for path in (tmp_path / 'trace').rglob('*')]
  step(Tracer(tmp_path / 'trace', Tracing(steps=(2,))), 2)
  assert before == [(path, path.stat().st_mtime_ns) for path in (tmp_path / 'trace').rglob('*')]


def test_without_a_wish_nothing_is_traced(tmp_path):
  step(Tracer(tmp_path / 'trace', Tracing()), 1)
  assert not traced(tmp_path / 'trace')


def test_trace_that_cannot_be_made_fails_no_step(tmp_path, caplog):
  tracer = Tracer(tmp_path / 'trace', Tracing(every=1))
  with tracer(1), caplog.at_level(logging.WARNING):
    step(tracer, 2)  # one trace is under way
  assert 'no trace of this step: RuntimeError' in caplog.text
  (tmp_path / 'file').write_text('')
  step(Tracer(tmp_path / 'file', Tracing(every=1)), 3)
  step(tracer, 4)
  assert traced(tmp_path / 'trace') == ['step_000001', 'step_000004']


def test_step_that_raises_leaves_no_trace_and_is_traced_when_it_is_done_again(tmp_path):
  tracer = Tracer(tmp_path / 'trace', Tracing(steps=(1,)))
  with pytest.raises(KeyError), tracer(1):
    raise KeyError
  assert not traced(tmp_path / 'trace')
  step(tracer, 1)
  assert traced(tmp_path / 'trace') == ['step_000001']


def test_step_zero_is_refused():
  with pytest.raises(ConfigError, match='the first step is 1'):
    Tracing(steps=(0,))
