"""One device, eight, and two processes on a loopback: the same numbers, also if one of them dies and comes back."""

import contextlib
import dataclasses
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from ports import free_port

from slca_jax.config import as_dict
from slca_jax.data.store import Trajectories
from slca_jax.data.tasks import Order, write_tasks
from slca_jax.nn.config import TransformerConfig
from slca_jax.ops.estimators import ESTIMATORS
from slca_jax.quickstart.start import write_start
from slca_jax.quickstart.world import make_task
from slca_jax.rollout.settings import Layout, Limits, LocalEngine
from slca_jax.train import rl
from slca_jax.train import settings as s

pytestmark = pytest.mark.timeout(1800)

ROOT = pathlib.Path(__file__).parents[2]
STEPS, PROMPTS, SECONDS = 3, 3, 900
FLAGS = '--xla_cpu_enable_concurrency_optimized_scheduler=false --xla_force_host_platform_device_count=1'
CONFIG = """
import json, pathlib
import ml_collections
def get_config():
  return ml_collections.ConfigDict(json.loads(pathlib.Path({path!r}).read_text()))
"""
# The launcher; process `dies` ends without a word when the hosts are to meet for the third time.
LAUNCH = """
import os, signal, sys
sys.path.insert(0, {launch!r})
import train_rl
from absl import app
from slca_jax.train import meeting
meet, met = meeting.meet, []
def once(*brought):
  met.append(brought)
  if len(met) == 3 and '--process={dies}' in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
  return meet(*brought)
meeting.meet = once
app.run(train_rl.main)
"""


@pytest.fixture(scope='module')
def equality():
  spec = importlib.util.spec_from_file_location('equality', ROOT / 'benchmarks' / 'equality.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.fixture(scope='module')
def table(equality, tmp_path_factory):
  two = equality.two_processes(tmp_path_factory.mktemp('equality'), seconds=SECONDS)
  one = equality.measure({'data': 1, 'fsdp': 1, 'tensor': 1}, jax.devices()[:1])
  eight = equality.measure({'data': 2, 'fsdp': 2, 'tensor': 2})
  return {row['estimator']: row for row in equality.table(one, {'eight': eight, 'two': two})}


@pytest.mark.parametrize('name', list(ESTIMATORS))
def test_eight_devices_and_two_processes_find_what_one_device_finds(table, name):
  row = table[name]
  assert row['gradient norm'] > 0.1
  for who in ('eight', 'two'):
    assert max(row[f'{who}: loss'], row[f'{who}: gradient'], row[f'{who}: advantage']) < 1e-5


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A random policy and tasks for 3 steps of 3; in step 2 every rollout of the second process fails."""
  folder = tmp_path_factory.mktemp('scale')
  network = TransformerConfig(layers=1, width=16, hidden=32, heads=2, kv_heads=1, head_dim=8, context=512)
  write_start(folder / 'start', seed=0, network=network, samples=30)
  tasks = [make_task(0, 'train', index) for index in range(STEPS * PROMPTS)]
  too_long = Order(tasks, PROMPTS, seed=0)(1)[1]  # the second process has place 1 of 0, 1 and 2
  worded = dataclasses.replace(too_long.messages[-1], content='please ' * 80 + too_long.question)
  longer = dataclasses.replace(too_long, messages=(*too_long.messages[:-1], worded))
  write_tasks([longer if task is too_long else task for task in tasks], folder / 'train.jsonl')
  return folder


def config(folder, output, mesh):
  return s.RLConfig(
    output=str(output),
    steps=STEPS,
    prompts=PROMPTS,
    mini_batch=PROMPTS,
    group_size=4,
    model=s.Model(path=str(folder / 'start'), dtype='float32', remat='none'),
    mesh=mesh,
    data=s.TaskFiles(str(folder / 'train.jsonl')),
    rollout=s.RolloutSettings(
      limits=Limits(turns=3, prompt_tokens=64, response_tokens=96, turn_tokens=24, observation_tokens=16),
      local=LocalEngine(slots=8, context=192),
    ),
    judge=s.JudgeSettings(noise=0.3),
    objective=s.Objective(kl=0.0),
    optimizer=s.Optimizer(learning_rate=1e-2),
    batching=Layout((256,), 8),
    checkpoint=s.Checkpointing(every=1),
  )


@contextlib.contextmanager
def two(folder, output, *, dies=None):
  """The two processes of a run, and their logs; whatever happens, none is left behind."""
  settings, script = output.with_suffix('.json'), output.with_suffix('.py')
  settings.write_text(json.dumps(as_dict(config(folder, output, s.MeshShape(data=2, fsdp=1)))))
  script.write_text(CONFIG.format(path=str(settings)))
  code = LAUNCH.format(launch=str(ROOT / 'launch'), dies=dies)
  # Patient: on a busy machine a process may give no sign of life for a while.
  together = [f'--config={script}', f'--coordinator=127.0.0.1:{free_port()}', '--processes=2', '--patience=600']
  environment = os.environ | {'XLA_FLAGS': FLAGS, 'JAX_PLATFORMS': 'cpu', 'PYTHONPATH': str(ROOT)}
  logs = [output.with_name(f'{output.name}_{index}.log') for index in range(2)]
  crew = []
  try:
    for index, log in enumerate(logs):
      with log.open('wb') as out:
        command = [sys.executable, '-c', code, *together, f'--process={index}']
        crew.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))
    yield crew, logs
  finally:
    for process in crew:
      process.kill()
      process.wait()


def wait_for(holds, logs):
  end = time.monotonic() + SECONDS
  while not holds():
    assert time.monotonic() < end, told(logs)
    time.sleep(0.1)


def told(logs):
  return '\n'.join(log.read_text(errors='replace')[-3000:] for log in logs)


def lines(output):
  return [json.loads(line) for line in (output / 'metrics.jsonl').read_text().splitlines()]


def rollouts(output):
  """Tokens of every rollout of the run, by step, group and index."""
  out = {}
  for path in sorted((output / 'rollouts').iterdir()):
    store = Trajectories(path, write=False)
    for trajectory, _ in (store[index] for index in range(len(store))):
      name = path.name.split('_host')[0], trajectory.group, trajectory.index
      out[name] = [turn.tokens for turn in trajectory.turns]
  return out


def test_run_of_two_processes_of_which_one_died_and_came_back_is_the_run_of_one(folder):
  rl.train(config(folder, folder / 'one', s.MeshShape(data=2, fsdp=4)))
  with two(folder, folder / 'two', dies=1) as ((first, second), logs):
    assert second.wait(SECONDS) == -9, told(logs)
    # The first waits for it in step 3, and no checkpoint of step 2 can be completed; then all are started anew.
    wait_for(lambda: (folder / 'two' / 'checkpoints' / '1').exists(), logs)
    assert first.poll() is None, told(logs)
  assert [line['step'] for line in lines(folder / 'two')] == [1, 2]
  with two(folder, folder / 'two') as (crew, logs):
    assert [process.wait(SECONDS) for process in crew] == [0, 0], told(logs)
  one, both = lines(folder / 'one'), lines(folder / 'two')
  assert [line['step'] for line in both] == [1, 2, 3]
  assert one[1]['status/failed'] == 4  # all that the second process had
  for ours, theirs in zip(one, both, strict=True):
    # Clocks differ, and how evenly rows are dealt depends on how many devices there are.
    ours, theirs = (
      {name: x for name, x in line.items() if not name.startswith(('time/', 'tokens_per', 'rows/imbalance'))}
      for line in (ours, theirs)
    )
    assert ours.keys() == theirs.keys()
    np.testing.assert_allclose(list(ours.values()), [theirs[name] for name in ours], atol=2e-5)
  assert rollouts(folder / 'one') == rollouts(folder / 'two')
  assert (folder / 'two' / 'model' / 'model.safetensors').is_file()
