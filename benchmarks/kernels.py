"""Segments and routed SLCA advantages of 1,024 rollouts × 8,192 tokens, against two yardsticks on the same CPU.

    python benchmarks/kernels.py        # needs torch, for the first yardstick only

1. A torch loop that finds the runs of each row and fills in its advantages, which is how trainers usually do it. Both
   take the same rewards and the same masks, and must agree. Target: at least 6 times as long as ours.
2. Cloning the mask into fresh memory: what merely touching an array of this size costs. The mask cloned is int32, 4
   bytes per token, like the rollout index that the kernel reads and the advantage that it writes (beside them it reads
   one byte per token for `sampled` and writes five bits per token for the segments). Target: ours takes at most 2.5
   times as long. The clone of a mask of single bytes is printed too: a kernel that writes 4 bytes per token cannot come
   near that one.

All contenders take turns, each once unmeasured and once measured, and medians are compared. Ours uses all cores, the
loop hardly does: measure on an idle machine. What is written is new memory each time for every contender, as in
training.
"""

import argparse
import json
import os
import statistics
import time

os.environ.setdefault('OMP_WAIT_POLICY', 'PASSIVE')  # torch's idle threads would spin on the core that XLA needs next

import jax
import jax.numpy as jnp
import numpy as np
import torch

from slca_jax.arrays import Rewards
from slca_jax.ops.estimators import slca
from slca_jax.ops.segments import segment_runs

GROUP = 16


def rollouts(rows: int, length: int, seed: int):
  """Rows of prompt, then turns and observations of 32 to 512 tokens, then padding."""
  random = np.random.default_rng(seed)
  sampled_BT = np.zeros((rows, length), bool)
  rollout_BT = np.full((rows, length), -1, np.int32)
  for row in range(rows):
    start, end = random.integers(length // 16, length // 4), random.integers(length // 2, length + 1)
    rollout_BT[row, start:end] = row
    while start < end:
      turn, reply = random.integers(32, 512, 2)
      sampled_BT[row, start : min(start + turn, end)] = True
      start += turn + reply
  return sampled_BT, rollout_BT, random.random((2, rows)).astype(np.float32)


@jax.jit
def ours(sampled_BT, rollout_BT, rewards):
  """The segments and the advantages, both of which a training step keeps."""
  segments = segment_runs(sampled_BT, rollout_BT)
  return segments, slca(rewards, segments, rollout_BT)


def torch_loop(mask_BT, reward_CR):
  """Row by row: the run borders from differences of the mask, then two slices of the advantages."""
  rows = mask_BT.shape[0]
  last, has_tool, borders = [], torch.zeros(rows, dtype=torch.bool), []
  for row in range(rows):
    mask_T = mask_BT[row]
    change = torch.diff(mask_T, prepend=mask_T.new_zeros(1), append=mask_T.new_zeros(1))
    starts, ends = (change == 1).nonzero().flatten().tolist(), (change == -1).nonzero().flatten().tolist()
    borders.append(list(zip(starts, ends, strict=True)))
    has_tool[row] = len(starts) > 1
    last.append(len(starts) - 1)
  tool_R = relative(reward_CR[0], has_tool)
  summary_R = relative(reward_CR[1], torch.tensor(last) >= 0)
  advantage_BT = torch.zeros(mask_BT.shape, dtype=torch.float32)
  for row in range(rows):
    for run, (start, end) in enumerate(borders[row]):
      advantage_BT[row, start:end] = summary_R[row] if run == last[row] else tool_R[row]
  return advantage_BT


def relative(reward_R, present_R):
  out_R = torch.zeros_like(reward_R)
  for start in range(0, len(reward_R), GROUP):
    here = present_R[start : start + GROUP]
    reward = reward_R[start : start + GROUP][here]
    if len(reward) > 1:
      out_R[start : start + GROUP][here] = (reward - reward.mean()) / (reward.std() + 1e-6)
  return out_R


def seconds(contenders, repeats):
  """The median time of each contender, all taking turns."""
  times = {name: [] for name in contenders}
  for turn in range(repeats + 2):
    for name, run in contenders.items():
      jax.block_until_ready(run())
      start = time.perf_counter()
      result = jax.block_until_ready(run())
      taken = time.perf_counter() - start
      del result
      if turn >= 2:
        times[name].append(taken)
  return {name: statistics.median(taken) for name, taken in times.items()}


def main():
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--rollouts', type=int, default=1024)
  parser.add_argument('--tokens', type=int, default=8192)
  parser.add_argument('--repeats', type=int, default=21)
  args = parser.parse_args()
  sampled_BT, rollout_BT, reward_CR = rollouts(args.rollouts, args.tokens, seed=0)
  rewards = Rewards(
    tool_R=jnp.asarray(reward_CR[0]),
    summary_R=jnp.asarray(reward_CR[1]),
    outcome_R=jnp.asarray(reward_CR.sum(0)),
    turn_RK=jnp.zeros((args.rollouts, 0)),
    guarded_R=jnp.zeros(args.rollouts, bool),
    group_R=jnp.arange(args.rollouts) // GROUP,
  )
  device = jax.device_put((sampled_BT, rollout_BT, rewards), jax.devices('cpu')[0])
  mask_BT, reward_CR = torch.from_numpy(sampled_BT.astype(np.int32)), torch.from_numpy(reward_CR)
  np.testing.assert_allclose(ours(*device)[1], torch_loop(mask_BT, reward_CR), atol=1e-4)
  median = seconds(
    {
      'ours': lambda: ours(*device),
      'torch loop': lambda: torch_loop(mask_BT, reward_CR),
      'clone of the int32 mask': lambda: mask_BT.clone(),
      'clone of a bool mask': lambda: torch.from_numpy(sampled_BT).clone(),
    },
    args.repeats,
  )
  for name, taken in median.items():
    print(f'{name:38s} {1000 * taken:8.2f} ms')
  loop, clone = median['torch loop'] / median['ours'], median['ours'] / median['clone of the int32 mask']
  print(f'torch loop / ours                      {loop:8.2f}      (target: at least 6)')
  print(f'ours / clone of the int32 mask         {clone:8.2f}      (target: at most 2.5)')
  print(json.dumps({'torch_loop_over_ours': round(loop, 2), 'ours_over_clone': round(clone, 2)}))


if __name__ == '__main__':
  main()
