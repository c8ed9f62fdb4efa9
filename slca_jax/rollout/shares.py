"""What each host brings to a batch, joined to what all of them bring."""

import dataclasses
import io
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from slca_jax.arrays import Rewards
from slca_jax.rollout.trees import Response, Tree

_REWARDS = tuple(f.name for f in dataclasses.fields(Rewards))


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
  """Some of a batch's R rollouts. Arrays are of all R; a rollout of another share has no group in `rewards`."""

  trees: tuple[Tree, ...]
  finished_R: np.ndarray
  rewards: Rewards


def join(shares: Sequence[Share]) -> Share:
  """The rollouts of all shares, in the order that one host would have had them in."""
  trees = sorted((tree for share in shares for tree in share.trees), key=lambda tree: tree.responses[0].rollout)
  finished_R, rewards = shares[0].finished_R, shares[0].rewards
  for share in shares[1:]:
    theirs_R = np.asarray(share.rewards.group_R) >= 0
    pick = lambda ours, new, theirs_R=theirs_R: np.where(_beside(theirs_R, ours), new, ours)
    rewards = jax.tree.map(pick, rewards, share.rewards)
    finished_R = finished_R | share.finished_R
  return Share(tuple(trees), finished_R, rewards)


def _beside(mask_R, value):
  return mask_R.reshape(-1, *[1] * (value.ndim - 1))


def to_arrays(share: Share) -> dict[str, np.ndarray]:
  """The share as flat arrays, by name; `from_arrays` reads it back equal."""
  responses = [response for tree in share.trees for response in tree.responses]
  return {
    'prompts': _joined([tree.prompt for tree in share.trees], np.int32),
    'prompt_sizes': np.array([len(tree.prompt) for tree in share.trees], np.int32),
    'leaves': np.array([len(tree.responses) for tree in share.trees], np.int32),
    'rollouts': np.array([response.rollout for response in responses], np.int32),
    'sizes': np.array([len(response.tokens) for response in responses], np.int32),
    'tokens': _joined([response.tokens for response in responses], np.int32),
    'sampled': _joined([response.sampled for response in responses], bool),
    'logps': _joined([response.logps for response in responses], np.float32),
    'finished_R': share.finished_R,
    **{name: np.asarray(getattr(share.rewards, name)) for name in _REWARDS},
  }


def _joined(arrays, dtype) -> np.ndarray:
  return np.concatenate([np.zeros(0, dtype), *arrays])


def from_arrays(arrays: dict[str, np.ndarray]) -> Share:
  """The share that `to_arrays` took apart."""
  cut = lambda name, sizes: np.split(arrays[name], np.cumsum(arrays[sizes])[:-1]) if len(arrays[sizes]) else []
  parts = zip(
    arrays['rollouts'].tolist(), *(cut(name, 'sizes') for name in ('tokens', 'sampled', 'logps')), strict=True
  )
  responses = iter([Response(*part) for part in parts])
  trees = [
    Tree(prompt, tuple(next(responses) for _ in range(leaves)))
    for prompt, leaves in zip(cut('prompts', 'prompt_sizes'), arrays['leaves'].tolist(), strict=True)
  ]
  return Share(tuple(trees), arrays['finished_R'], _rewards(arrays))


def _rewards(arrays: dict[str, Any]) -> Rewards:
  return Rewards(**{name: arrays[name] for name in _REWARDS})


def to_bytes(shares: Sequence[Share]) -> bytes:
  """Shares as bytes for another host; `from_bytes` reads them back equal."""
  file = io.BytesIO()
  arrays: dict[str, Any] = {f'{i}/{name}': x for i, share in enumerate(shares) for name, x in to_arrays(share).items()}
  np.savez(file, count=np.array(len(shares)), **arrays)
  return file.getvalue()


def from_bytes(content: bytes) -> list[Share]:
  """The shares that `to_bytes` wrote."""
  with np.load(io.BytesIO(content), allow_pickle=False) as file:
    named = [key.split('/', 1) for key in file.files if '/' in key]
    return [
      from_arrays({name: file[f'{i}/{name}'] for which, name in named if int(which) == i})
      for i in range(int(file['count']))
    ]
