"""Our step, for `benchmarks/train_step.py`: argv is the case's folder and the number of timed steps."""

import dataclasses
import json
import pathlib
import resource
import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from slca_jax.arrays import TrainState
from slca_jax.dialogue import Parsed, Scores, Status, Task, Trajectory, Turn
from slca_jax.nn.hf_config import read_config
from slca_jax.nn.transformer import abstract_model
from slca_jax.nn.weights import load_hf
from slca_jax.ops.estimators import grpo
from slca_jax.rollout.batching import to_batch
from slca_jax.rollout.settings import Layout
from slca_jax.train.settings import Objective
from slca_jax.train.steps import Policy, make_prepare, make_update


def rollouts(case: Any, size: int) -> list[Trajectory]:
  """The batch as trajectories of a call, its observation and an answer."""
  out = []
  for r, (tokens_T, sampled_T) in enumerate(zip(case['response_RT'].tolist(), case['sampled_RT'], strict=True)):
    first, second = np.flatnonzero(np.diff(sampled_T)) + 1
    call = Turn(tuple(tokens_T[:first]), (-1.0,) * first, '', Parsed(), reply=tuple(tokens_T[first:second]))
    answer = Turn(tuple(tokens_T[second:]), (-1.0,) * (len(tokens_T) - second), '', Parsed())
    prompt = tuple(case['prompt_GP'][r // size].tolist())
    out.append(Trajectory(Task('t', (), ()), r // size, r % size, prompt, (call, answer), Status.FINISHED))
  return out


def by_rollout(logp_BT: jax.Array, rollout_BT: jax.Array, count: int) -> np.ndarray:
  """[R, T] from rows of trees."""
  logp_BT, rollout_BT = np.asarray(logp_BT), np.asarray(rollout_BT)
  return np.stack([logp_BT[rollout_BT == r] for r in range(count)])


def main(folder: pathlib.Path, repeats: int) -> None:
  case = np.load(folder / 'batch.npz')
  (groups, prompt), (count, response) = case['prompt_GP'].shape, case['response_RT'].shape
  start = time.perf_counter()
  config = dataclasses.replace(read_config(folder / 'policy'), remat='none')
  params, reference = (load_hf(folder / name, config) for name in ('policy', 'reference'))
  policy = Policy(abstract_model(config)[0], config.vocab, 1.0, 512)
  objective, optimizer = Objective(kl=0.04, clip_low=0.2, clip_high=0.2), optax.adamw(1e-6, weight_decay=0.01)
  layout = Layout((prompt + count // groups * response,), 1)
  scores = [Scores(outcome=float(reward)) for reward in case['reward_R']]
  batch = to_batch(rollouts(case, count // groups), scores, layout, turns=2)
  prepare = make_prepare(policy, objective, grpo, micro_rows=layout.micro_rows)
  update = make_update(policy, objective, optimizer, micro_rows=layout.micro_rows)

  seconds = []
  for repeat in range(repeats + 1):
    copy = jax.tree.map(jnp.copy, params)
    state = jax.block_until_ready(TrainState(jnp.zeros((), jnp.int32), copy, optimizer.init(copy)))
    begun = time.perf_counter()
    experience = prepare(state.params, reference, batch)
    state, numbers = jax.block_until_ready(update(state, experience))
    seconds.append(time.perf_counter() - begun)
    if not repeat:
      first = time.perf_counter() - start
  logps = {'old_RT': experience.old_logp_BT, 'ref_RT': experience.ref_logp_BT}
  np.savez(folder / 'ours.npz', **{name: by_rollout(x, batch.rollout_BT, count) for name, x in logps.items()})
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
  numbers = {'loss': float(numbers['loss']), 'norm': float(numbers['grad_norm'])}
  print(json.dumps({'seconds': seconds[1:], 'first': first, 'peak': peak} | numbers))


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
