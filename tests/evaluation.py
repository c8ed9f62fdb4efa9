"""An evaluation of a tiny policy, for the benchmarks that share it, and where official packages are found."""

import importlib.util
import os
import sys

import jax
import pytest

from slca_jax.evals.settings import EvaluateConfig
from slca_jax.evals.statistics import Sampling
from slca_jax.nn.config import TransformerConfig
from slca_jax.quickstart.start import write_start
from slca_jax.rollout.settings import Limits, LocalEngine
from slca_jax.train import settings as s

NETWORK = TransformerConfig(layers=1, width=16, hidden=32, heads=2, kv_heads=1, head_dim=8, context=512)


def write_policy(folder):
  """A tiny untrained policy in the folder; returns the folder."""
  write_start(folder / 'start', seed=0, network=NETWORK, samples=30)
  return folder


def evaluation(folder, output, **changes):
  """An evaluation of the folder's policy within few tokens."""
  values = {
    'output': str(output),
    'model': s.Model(path=str(folder / 'start'), dtype='float32', remat='none'),
    'mesh': s.MeshShape(1, 1, 1) if len(jax.devices()) == 1 else s.MeshShape(data=2, fsdp=2, tensor=2),
    'rollout': s.RolloutSettings(
      limits=Limits(turns=2, prompt_tokens=64, response_tokens=48, turn_tokens=12, observation_tokens=16),
      local=LocalEngine(slots=8, context=128),
    ),
    'intervals': Sampling(resamples=200),
  }
  return EvaluateConfig(**{**values, **changes})


def bfcl_python() -> str:
  """An interpreter that has bfcl-eval: the one named by BFCL_PYTHON, or this one. Skips the test if there is none."""
  python = os.environ.get('BFCL_PYTHON', '')
  if not python and importlib.util.find_spec('bfcl_eval') is None:
    pytest.skip('bfcl-eval is not installed; BFCL_PYTHON names an interpreter that has it')
  return python or sys.executable
