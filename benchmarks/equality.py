"""One device, eight, and two processes: the same losses, gradients and advantages, printed as one table.

python benchmarks/equality.py

One batch of five groups of four rollouts: some failed, all of one group did, so that groups are uneven and trees share
rows. Of two processes the first has three groups and the second two, one of them without a usable rollout. Every
estimator gives its advantages, from which the update's loss and gradients follow. All in float32, on simulated devices.
"""

import argparse
import os
import pathlib
import random
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np

FLAGS = '--xla_cpu_enable_concurrency_optimized_scheduler=false --xla_force_host_platform_device_count='
GROUPS, SIZE, TURNS = 5, 4, 3
Measured = dict[str, np.ndarray]


def rollouts() -> tuple[list[Any], list[Any]]:
  """(trajectories, scores) of all groups; every third rollout of groups 1 and 2 failed, and all of group 3."""
  from slca_jax.dialogue import Parsed, Scores, Status, Task, Trajectory, Turn

  rng = np.random.default_rng(0)
  ids = lambda n: tuple(int(x) for x in rng.integers(1, 40, n))
  trajectories, scores = [], []
  for group in range(GROUPS):
    prompt = ids(rng.integers(3, 9))
    for index in range(SIZE):
      turns = []
      for more in [True] * rng.integers(0, 3) + [False]:
        tokens = ids(rng.integers(1, 6))
        turns.append(Turn(tokens, (-1.5,) * len(tokens), '', Parsed(), reply=ids(3) if more else ()))
      failed = group == 3 or (group in (1, 2) and index % 3 == 0)
      status = Status.FAILED if failed else Status.FINISHED
      trajectories.append(Trajectory(Task('t', (), ()), group, index, prompt, tuple(turns), status))
      tool, summary, first, second = rng.random(4)
      absent = group == 4 and index == 1
      turn_scores = (float(first), float(second))
      scores.append(Scores(float(tool), None if absent else float(summary), float(tool + summary), turn_scores))
  return trajectories, scores


def measure(shape: Mapping[str, int], devices: Any = None) -> Measured:
  """Advantages of all learned tokens, loss and gradients by estimator, on a mesh of this shape.

  Every process of a run calls it; each brings the groups that are its share.
  """
  import jax
  import jax.numpy as jnp
  import optax
  from flax import nnx
  from jax.experimental import multihost_utils

  from slca_jax.arrays import TrainState
  from slca_jax.nn import hosts, sharding
  from slca_jax.nn.config import TransformerConfig
  from slca_jax.nn.transformer import Transformer
  from slca_jax.ops.estimators import ESTIMATORS
  from slca_jax.rollout.batching import assemble, to_share
  from slca_jax.rollout.settings import Layout
  from slca_jax.train import meeting, policy
  from slca_jax.train.settings import Objective
  from slca_jax.train.steps import Policy, make_prepare, make_update

  config = TransformerConfig(vocab=40, layers=1, width=16, hidden=32, heads=2, kv_heads=2, head_dim=8, vocab_multiple=8)
  graph, params = nnx.split(Transformer(config, rngs=nnx.Rngs(0)), nnx.Param)
  network, objective = Policy(graph, config.vocab, 0.7, 8), Objective(kl=0.1)
  mesh = sharding.make_mesh(**shape, devices=devices)
  place = lambda tree: jax.tree.map(_placed, tree, sharding.named_shardings(tree, mesh))
  own = [(t, s) for t, s in zip(*rollouts(), strict=True) if t.group in hosts.share(GROUPS)]
  share = to_share(
    [t for t, _ in own],
    [s for _, s in own],
    turns=TURNS,
    rollouts=[t.group * SIZE + t.index for t, _ in own],
    groups=[t.group for t, _ in own],
    size=GROUPS * SIZE,
  )
  met = meeting.meet([share], {'here': True})
  assert met is not None
  with jax.set_mesh(mesh):
    batch, _ = assemble(met.shares[0], Layout((32,), 8), sharding.rows_sharding(mesh))
    first = lambda rewards, segments, rollout_BT: jnp.zeros(rollout_BT.shape)
    prepare = make_prepare(network, objective, first, micro_rows=8)
    experience = prepare(place(params), place(jax.tree.map(lambda x: x + 0.01, params)), batch)
    every = jax.jit(lambda r, s, i: {name: estimate(r, s, i) for name, estimate in ESTIMATORS.items()})
    advantages = every(batch.rewards, experience.segments, batch.rollout_BT)
    moved = jax.tree.map(lambda x: x * 1.01, params)  # so that ratios are not 1
    rule, out = optax.sgd(1.0), {}
    _, shardings = policy.init_state(place(moved), rule, mesh)
    update = make_update(network, objective, rule, micro_rows=8, shardings=shardings)
    whole = lambda x: np.asarray(multihost_utils.process_allgather(x, tiled=True) if jax.process_count() > 1 else x)
    order = _by_rollout(whole(batch.rollout_BT))
    for name, advantage_BT in advantages.items():
      state = TrainState(jax.device_put(jnp.int32(0), shardings.step), place(moved), place(rule.init(moved)))
      after, numbers = update(state, experience.replace(advantage_BT=advantage_BT))
      out[f'{name}/advantages'] = whole(advantage_BT).reshape(-1)[order]
      out[f'{name}/loss'] = whole(numbers['loss'])
      for path, leaf in nnx.to_flat_state(after.params):
        here = dict(nnx.to_flat_state(moved))[path]
        out[f'{name}/gradient/{".".join(path)}'] = np.asarray(here[...]) - whole(leaf[...])
  return out


def _placed(x, where):
  """A copy of a whole array on the mesh: an update gives its state's buffers away."""
  import jax

  return jax.make_array_from_callback(x.shape, where, lambda index: np.array(x)[index])


def _by_rollout(rollout_BT: np.ndarray) -> np.ndarray:
  """The places of the tokens of all rollouts, in order of rollout, however the rows are dealt."""
  flat = rollout_BT.reshape(-1)
  return np.concatenate([np.flatnonzero(flat == r) for r in range(GROUPS * SIZE)])


def two_processes(folder: pathlib.Path, *, seconds: float = 600) -> Measured:
  """What two processes of four devices each measure, as the first of them sees it."""
  port = _free_port()
  environment = os.environ | {'XLA_FLAGS': FLAGS + '4', 'JAX_PLATFORMS': 'cpu'}
  command = [sys.executable, __file__, f'--port={port}', f'--out={folder / "two.npz"}']
  logs = [folder / f'{index}.log' for index in range(2)]
  crew = []
  try:
    for index, log in enumerate(logs):
      with log.open('wb') as out:
        crew.append(subprocess.Popen([*command, f'--process={index}'], env=environment, stdout=out, stderr=out))
    codes = [process.wait(seconds) for process in crew]
  finally:
    for process in crew:
      process.kill()
      process.wait()
  if codes != [0, 0]:
    raise RuntimeError('\n'.join(log.read_text(errors='replace')[-3000:] for log in logs))
  return dict(np.load(folder / 'two.npz'))


def _free_port() -> int:
  """A port below those that systems hand out by themselves."""
  while True:
    port = random.SystemRandom().randrange(20_000, 32_000)
    with socket.socket() as probe:
      try:
        probe.bind(('127.0.0.1', port))
      except OSError:
        continue
    return port


def join(port: int, process: int, out: pathlib.Path) -> None:
  """What each of the two processes does."""
  import jax

  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  jax.distributed.initialize(f'127.0.0.1:{port}', 2, process)
  found = measure({'data': 2, 'fsdp': 2, 'tensor': 2})
  if process == 0:
    np.savez(out, **found)  # pyright: ignore[reportArgumentType]
  jax.distributed.shutdown()


def table(one: Measured, others: Mapping[str, Measured]) -> list[dict[str, Any]]:
  """Per estimator: loss and gradient norm on one device, and the largest differences of the others from it."""
  rows = []
  for name in dict.fromkeys(key.split('/')[0] for key in one):
    leaves = [key for key in one if key.startswith(f'{name}/gradient/')]
    norm = float(np.sqrt(sum((one[leaf] ** 2).sum() for leaf in leaves)))
    row = {'estimator': name, 'loss': float(one[f'{name}/loss']), 'gradient norm': norm}
    for label, other in others.items():
      far = lambda key, other=other: float(np.abs(one[key] - other[key]).max())
      row[f'{label}: loss'] = far(f'{name}/loss')
      row[f'{label}: gradient'] = max(map(far, leaves))
      row[f'{label}: advantage'] = far(f'{name}/advantages')
    rows.append(row)
  return rows


def main() -> None:
  """Measures on one device, eight and two processes, and prints the table."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--port', type=int)
  parser.add_argument('--process', type=int)
  parser.add_argument('--out', type=pathlib.Path)
  options = parser.parse_args()
  if options.port:
    return join(options.port, options.process, options.out)
  os.environ |= {'XLA_FLAGS': FLAGS + '8', 'JAX_PLATFORMS': 'cpu'}
  import jax

  with tempfile.TemporaryDirectory() as folder:
    two = two_processes(pathlib.Path(folder))
  one = measure({'data': 1, 'fsdp': 1, 'tensor': 1}, jax.devices()[:1])
  eight = measure({'data': 2, 'fsdp': 2, 'tensor': 2})
  rows = table(one, {'8 devices': eight, '2 processes': two})
  print('| ' + ' | '.join(rows[0]) + ' |\n|' + '---|' * len(rows[0]))
  for row in rows:
    print('| ' + ' | '.join(x if isinstance(x, str) else f'{x:.3g}' for x in row.values()) + ' |')


if __name__ == '__main__':
  main()
