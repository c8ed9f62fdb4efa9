"""Names of topologies, and what is refused before anything is compiled."""

import importlib.util

import pytest

from slca_jax.errors import ConfigError
from slca_jax.train import chips


@pytest.mark.parametrize('name', ['v5p', 'v5p:', 'v9:2x2', 'v5e:4', '4x4', 'v5e:4x4x4x4', 'gpus'])
def test_a_name_that_is_no_topology_is_refused(name):
  with pytest.raises(ConfigError, match='is no topology; name one like v5p:2x2x4'):
    chips.describe(name)


def test_without_libtpu_the_extra_is_named(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(ConfigError, match=r"pip install -e '\.\[plan\]'"):
    chips.describe('v5e:4x4')


def test_without_the_cuda_plugin_the_extra_is_named(monkeypatch):
  monkeypatch.setattr(importlib.util, 'find_spec', lambda name: None)
  with pytest.raises(ConfigError, match=r"pip install -e '\.\[gpu\]'"):
    chips.describe('h100:8')


def test_a_number_of_gpus_is_a_number():
  with pytest.raises(ConfigError, match="'h100:2x4' is no number of GPUs; write h100:8"):
    chips.describe('h100:2x4')


def test_simulated_devices_are_those_of_this_process():
  target = chips.describe('cpu:8')
  assert (len(target.devices), target.chip.kind, target.platform) == (8, 'cpu', 'cpu')
  assert len(chips.describe('cpu:2').devices) == 2


def test_more_devices_than_there_are_is_refused():
  with pytest.raises(ConfigError, match='cpu:9 needs 9 devices; this process has 8'):
    chips.describe('cpu:9')


def test_a_gpu_that_is_not_there_is_refused():
  with pytest.raises(ConfigError, match='JAX compiles for GPUs only where there is one'):
    chips.describe('gpu:8')


@pytest.mark.parametrize(
  ('name', 'next_one'), [('v5e:4x4', 'v5e:4x8'), ('v5p:2x2x4', 'v5p:2x4x4'), ('v6e:16x16', None), ('cpu:8', None)]
)
def test_the_next_larger_slice(name, next_one):
  assert chips.larger(name) == next_one


def test_what_was_set_before_stays_as_it_was():
  environment = {'TPU_ACCELERATOR_TYPE': 'v6e-8'}
  chips.prepare_process(['v5e:4x4', 'cpu:8', 'cpu:16'], environment)
  assert environment['TPU_ACCELERATOR_TYPE'] == 'v6e-8'
  assert environment['JAX_PLATFORMS'] == 'cpu'
  assert environment['JAX_NUM_CPU_DEVICES'] == '16'


def test_gpus_are_looked_for_where_they_are_asked_for():
  environment = {}
  chips.prepare_process(['gpu'], environment)
  assert 'JAX_PLATFORMS' not in environment


@pytest.mark.skipif(
  importlib.util.find_spec('libtpu') is None, reason="libtpu is not installed; pip install -e '.[plan]'"
)
def test_libtpu_describes_the_slices_it_is_asked_for():
  target = chips.describe('v5p:2x2x4')
  assert (len(target.devices), target.chip.kind, target.platform) == (16, 'TPU v5', 'tpu')
  assert target.options == chips.TPU_OPTIONS
