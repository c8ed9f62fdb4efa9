"""The largest mini-batch that a run's limits allow, as shapes: rows as they are packed, and what they ask for.

Every prompt and every response is as long as `rollout.limits` lets it be, and every token of a response is sampled.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from slca_jax.arrays import TokenBatch
from slca_jax.nn import sharding
from slca_jax.nn.visibility import Ids, cut, visible_blocks
from slca_jax.rollout.batching import lay_out, to_rewards
from slca_jax.rollout.rows import micro_batches, pack, padded_rows
from slca_jax.rollout.trees import Response, Tree
from slca_jax.train.flops import Load
from slca_jax.train.settings import RLConfig

_TILE = 128
KERNEL_BLOCK = 512  # of nn/attention_tpu.py
_XLA_BLOCK = 128  # of nn/attention_blocks.py
_GPU_BLOCK = 64  # of nn/attention_gpu.py


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
  """One mini-batch at its limits.

  Attributes:
    groups, group_size: prompts, and responses of each.
    prompt, response: tokens of each.
    leaves: responses that share a row and its prompt; 1 repeats the prompt for every response.
    turns: size of the table of turn rewards.
    chunk: tokens of a row whose logits are alive at once.
  """

  groups: int
  group_size: int
  prompt: int
  response: int
  leaves: int
  turns: int
  chunk: int

  @property
  def length(self) -> int:
    """Tokens of a row, a multiple of what a kernel's tile takes."""
    return -(-(self.prompt + self.leaves * self.response) // _TILE) * _TILE

  @property
  def rollouts(self) -> int:
    """R."""
    return self.groups * self.group_size

  @property
  def needed(self) -> Load:
    """What the mathematics asks for, however it is laid out: each prompt goes through the layers once."""
    p, r, g = self.prompt, self.response, self.group_size
    pairs = p * (p + 1) // 2 + g * (r * p + r * (r + 1) // 2)
    return Load(self.groups * (p + g * r), self.groups * pairs, self.rollouts * r)

  def rows(self) -> int:
    """Rows that the door packs the trees into."""
    return len(pack([self._tree()] * self.groups, self.length))

  def row(self) -> dict[str, np.ndarray]:
    """The fullest row, [1, T] by name."""
    return lay_out(pack([self._tree()], self.length)[:1], self.length, 1)

  def _tree(self) -> Tree:
    zeros = lambda size: np.zeros(size, np.int32)
    sampled, logps = np.ones(self.response, bool), np.zeros(self.response, np.float32)
    leaf = lambda i: Response(i, zeros(self.response), sampled, logps)
    return Tree(zeros(self.prompt), tuple(leaf(i) for i in range(self.group_size)))


def workload(config: RLConfig, *, leaves: int) -> Workload:
  """The mini-batch of a run with `leaves` responses to a row."""
  limits = config.rollout.limits
  return Workload(
    config.mini_batch,
    config.group_size,
    limits.prompt_tokens,
    limits.response_tokens,
    min(leaves, config.group_size),
    limits.turns,
    config.objective.logprob_chunk,
  )


def abstract_batch(work: Workload, mesh: Mesh, *, micro_rows: int) -> TokenBatch:
  """Shapes and shardings of the batch, as `batching.place` lays one out."""
  rows, everywhere = sharding.rows_sharding(mesh), NamedSharding(mesh, PartitionSpec())
  count = padded_rows(work.rows(), micro_rows)
  row: Any = lambda x: jax.ShapeDtypeStruct((count, work.length), x.dtype, sharding=rows)
  per_rollout: Any = lambda x: jax.ShapeDtypeStruct((work.rollouts, *x.shape[1:]), x.dtype, sharding=everywhere)
  return TokenBatch(
    **{name: row(x) for name, x in work.row().items()},
    finished_R=per_rollout(np.zeros(0, bool)),
    rewards=jax.tree.map(per_rollout, to_rewards([], [], work.turns)),
  )


def turns_of_loops(
  work: Workload, *, micro_rows: int, heads_per_key: int, block: int | None = None
) -> dict[str, float]:
  """How often the loops turn whose number is data, by the file that makes them; for `hlo.work` and `flops.executed`.

  Args:
    block: tokens of a block of attention; None for each backend's own.
  """
  ids = _ids(work)
  met = lambda usual: float(_visible(ids, min(block or usual, work.length)).sum(1).mean())
  return {
    'steps.py': micro_batches(work.rows(), micro_rows),
    'logprobs.py': math.ceil(work.row()['sampled_BT'].sum() / min(work.chunk, work.length)),
    'attention_blocks.py': met(_XLA_BLOCK),
    'attention_gpu.py': met(_GPU_BLOCK),
    'attention_gpu.py:_backward_keys': met(_GPU_BLOCK) * heads_per_key,  # one loop over blocks and heads
  }


def visited(work: Workload, *, block: int | None = None) -> float:
  """Share of a row's pairs of blocks in which anybody sees anybody: the others cost a kernel next to nothing."""
  return float(_visible(_ids(work), min(block or KERNEL_BLOCK, work.length)).mean())


def _ids(work: Workload) -> Ids:
  row = work.row()
  return Ids(*(jnp.asarray(row[f'{name}_BT']) for name in Ids._fields))


def _visible(ids: Ids, block: int) -> Any:
  blocks = Ids(*(cut(x, block, -1) for x in ids))
  return np.asarray(visible_blocks(blocks, blocks))[0]
