"""The door: scored trajectories in, one TokenBatch on the mesh out. Nothing after it calls back into Python.

Rows hold trees (see `arrays.py`): a prompt once, then the responses that share it. A tree longer than a row is split
and its prompt repeated; small trees share a row. Shapes come in few sizes, so that few programs are compiled: a row
length from `Layout.lengths`, and `micro_rows` times a power of two rows, of which the trainer computes those in use.

With several hosts, each brings a `Share`, all know the shares of all, and each lays out the rows of its own devices.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from slca_jax.arrays import Rewards, TokenBatch
from slca_jax.dialogue import Scores, Status, Trajectory
from slca_jax.errors import DataError
from slca_jax.nn.sharding import row_shards
from slca_jax.rollout.rows import Plan, Row, deal, plan
from slca_jax.rollout.settings import Layout
from slca_jax.rollout.shares import Share
from slca_jax.rollout.trees import Tree, grow


def to_share(
  trajectories: Sequence[Trajectory],
  scores: Sequence[Scores],
  *,
  turns: int,
  rollouts: Sequence[int] | None = None,
  groups: Sequence[int] | None = None,
  size: int | None = None,
) -> Share:
  """What some scored trajectories bring to a batch: whole groups, failed rollouts included.

  Args:
    turns: size of the table of turn rewards, the limit on tool turns.
    rollouts: index of each in the batch; as they are counted here if None.
    groups: index of each one's group, in [0, R); as groups are met here if None.
    size: R, the rollouts of the batch.

  Raises:
    DataError: siblings differ in their prompt.
  """
  rollouts = range(len(trajectories)) if rollouts is None else rollouts
  trees = grow(trajectories, rollouts)
  size = len(trajectories) if size is None else size
  finished_R = np.zeros(size, bool)
  finished_R[list(rollouts)] = [t.status is Status.FINISHED for t in trajectories]
  rewards = to_rewards(trajectories, scores, turns, groups=groups)
  return Share(tuple(trees), finished_R, jax.tree.map(lambda x: _spread(x, rollouts, size), rewards))


def _spread(value_R: Any, rollouts: Sequence[int], size: int) -> Any:
  """Values of some rollouts among `size`; the others have no reward and no group."""
  absent = {'f': np.nan, 'b': False, 'i': -1}[value_R.dtype.kind]
  out = np.full((size, *value_R.shape[1:]), absent, value_R.dtype)
  out[list(rollouts)] = value_R
  return out


def to_rewards(
  trajectories: Sequence[Trajectory], scores: Sequence[Scores], turns: int, *, groups: Sequence[int] | None = None
) -> Rewards:
  """Rewards of R rollouts with a table of `turns` turn rewards each; an absent score is NaN."""
  number = lambda value: np.nan if value is None else value
  if groups is None:
    met = {group: i for i, group in enumerate(dict.fromkeys(t.group for t in trajectories))}
    groups = [met[t.group] for t in trajectories]
  table = np.full((len(scores), turns), np.nan, np.float32)
  for r, score in enumerate(scores):
    table[r, : len(score.turns)] = score.turns[:turns]
  return Rewards(
    tool_R=_array([number(s.tool) for s in scores], np.float32),
    summary_R=_array([number(s.summary) for s in scores], np.float32),
    outcome_R=_array([number(s.outcome) for s in scores], np.float32),
    turn_RK=_array(table, np.float32),
    guarded_R=_array([s.guarded for s in scores], bool),
    group_R=_array(groups, np.int32),
  )


def _array(values: Any, dtype: Any) -> Any:
  """A numpy array where the types say jax.Array: the door's inner side, before anything is placed on a device."""
  return np.asarray(values, dtype)


def to_batch(
  trajectories: Sequence[Trajectory],
  scores: Sequence[Scores],
  layout: Layout,
  *,
  turns: int,
  sharding: NamedSharding | None = None,
  shared: bool = True,
) -> TokenBatch:
  """The batch of R scored trajectories of one host: whole groups, rows of at most one bucket's length.

  Args:
    trajectories: R rollouts of whole groups, failed ones included (their rows hold no token of theirs).
    scores: one per trajectory.
    layout: the shapes to choose from.
    turns: size of the table of turn rewards, the limit on tool turns.
    sharding: where [B, T] arrays go; None leaves numpy arrays.
    shared: lay a group's prompt out once; False repeats it for every response, for comparisons.

  Raises:
    DataError: a rollout does not fit the longest row, or siblings differ in their prompt.
  """
  share = to_share(trajectories, scores, turns=turns)
  if not shared:
    apart = tuple(Tree(tree.prompt, (response,)) for tree in share.trees for response in tree.responses)
    share = dataclasses.replace(share, trees=apart)
  return assemble(share, layout, sharding)[0]


def assemble(share: Share, layout: Layout, sharding: NamedSharding | None) -> tuple[TokenBatch, Plan]:
  """(the batch of everything that is in the share, the plan of its rows); on several hosts all have the same share."""
  planned = plan(share.trees, layout, shards=_shards(sharding))
  return fill(planned, share.finished_R, share.rewards, sharding), planned


def to_supervised(
  trees: Sequence[Tree], layout: Layout, *, rollouts: int, sharding: NamedSharding | None = None
) -> tuple[TokenBatch, Plan]:
  """The batch of demonstrations, packed like rollouts: what is marked as sampled is learned, rewards are absent.

  Args:
    rollouts: R, the same for every batch, or each count of demonstrations would compile a program of its own.
  """
  planned = plan(trees, layout, shards=_shards(sharding))
  return _without_rewards(planned, rollouts, sharding), planned


def supervised(
  rows: Sequence[Row], length: int, micro_rows: int, *, rollouts: int, sharding: NamedSharding | None = None
) -> tuple[TokenBatch, Plan]:
  """The batch of demonstrations that were packed before, in just as many rows as whole micro-batches need."""
  planned = deal(rows, length, micro_rows, -(-len(rows) // micro_rows) * micro_rows, shards=_shards(sharding))
  return _without_rewards(planned, rollouts, sharding), planned


def _without_rewards(planned: Plan, rollouts: int, sharding: NamedSharding | None) -> TokenBatch:
  absent_R, none_R = _array([np.nan] * rollouts, np.float32), _array([False] * rollouts, bool)
  rewards = Rewards(absent_R, absent_R, absent_R, absent_R[:, None], none_R, _array(range(rollouts), np.int32))
  return fill(planned, ~none_R, rewards, sharding)


def _shards(sharding: NamedSharding | None) -> int:
  return 1 if sharding is None else row_shards(sharding.mesh)


def fill(planned: Plan, finished_R: Any, rewards: Rewards, sharding: NamedSharding | None) -> TokenBatch:
  """The batch that a plan describes; each host lays out the rows of its own devices and no others."""
  if sharding is None:
    return TokenBatch(
      **lay_out(planned.rows, planned.length, len(planned.rows)), finished_R=finished_R, rewards=rewards
    )
  shape = (len(planned.rows), planned.length)
  parts: Any = sharding.addressable_devices_indices_map(shape).values()
  here = sorted({index[0].indices(shape[0])[:2] for index in parts})
  rows = [row for start, stop in here for row in planned.rows[start:stop]]
  local = lay_out(rows, planned.length, len(rows))
  batch = TokenBatch(**local, finished_R=finished_R, rewards=rewards)
  return place(batch, sharding, rows=shape[0])


def place(batch: TokenBatch, sharding: NamedSharding, *, rows: int | None = None) -> TokenBatch:
  """The batch on the mesh: [B, T] arrays by rows, what concerns rollouts on every device.

  Args:
    rows: B, where the arrays hold this host's rows only.
  """
  everywhere = NamedSharding(sharding.mesh, PartitionSpec())
  put = jax.make_array_from_process_local_data
  arrays = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
  spread = {
    name: put(sharding, np.asarray(x), (rows or len(x), *x.shape[1:]))
    for name, x in arrays.items()
    if name.endswith('_BT')
  }
  whole = jax.tree.map(
    lambda x: put(everywhere, np.asarray(x), x.shape), {name: x for name, x in arrays.items() if name not in spread}
  )
  return TokenBatch(**spread, **whole)


def lay_out(rows: Sequence[Row], length: int, num_rows: int) -> dict[str, Any]:
  """The arrays of a TokenBatch, by field name, each [num_rows, length]."""
  shape = (num_rows, length)
  zeros = {name: np.zeros(shape, np.int32) for name in ('tokens_BT', 'position_BT', 'source_BT')}
  nones = {name: np.full(shape, -1, np.int32) for name in ('prompt_BT', 'rollout_BT')}
  out: dict[str, Any] = {
    **zeros,
    **nones,
    'sampled_BT': np.zeros(shape, bool),
    'sampler_logp_BT': np.zeros(shape, np.float32),
  }
  for b, trees in enumerate(rows):
    end = 0
    for p, tree in enumerate(trees):
      end = _lay_tree(out, b, p, end, tree)
    if end > length:  # numpy would drop what lies beyond the row without a word
      raise DataError(f'row {b} holds {end} tokens, its length is {length}')
  return out


def _lay_tree(out: dict[str, Any], b: int, p: int, start: int, tree: Tree) -> int:
  stem = len(tree.prompt)
  here = slice(start, start + stem)
  out['tokens_BT'][b, here] = tree.prompt
  out['prompt_BT'][b, here] = p
  out['position_BT'][b, here] = np.arange(stem)
  last, end = start + stem - 1, start + stem
  for response in tree.responses:
    size = len(response.tokens)
    here = slice(end, end + size)
    out['tokens_BT'][b, here] = response.tokens
    out['prompt_BT'][b, here] = p
    out['rollout_BT'][b, here] = response.rollout
    out['position_BT'][b, here] = np.arange(stem, stem + size)
    out['source_BT'][b, here] = np.concatenate([[last], np.arange(end, end + size - 1)])[:size]
    out['sampled_BT'][b, here] = response.sampled
    out['sampler_logp_BT'][b, here] = response.logps
    end += size
  return end
