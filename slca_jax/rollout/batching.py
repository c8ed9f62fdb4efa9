"""The door: scored trajectories in, one TokenBatch on the mesh out. Nothing after it calls back into Python.

Rows hold trees (see `arrays.py`): a prompt once, then the responses that share it. A tree longer than a row is split
and its prompt repeated; small trees share a row. Shapes come in few sizes, so that few programs are compiled: a row
length from `Layout.lengths`, and `micro_rows` times a power of two rows, of which the trainer computes those in use.
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
from slca_jax.rollout.settings import Layout


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
  """The tokens after a prompt. `rollout` is its index in the batch; `logps` are the engine's, 0 where not sampled."""

  rollout: int
  tokens: np.ndarray
  sampled: np.ndarray
  logps: np.ndarray


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
  """A prompt and responses to it."""

  prompt: np.ndarray
  responses: tuple[Response, ...]

  @property
  def size(self) -> int:
    """Tokens of the prompt and all responses."""
    return len(self.prompt) + sum(len(response.tokens) for response in self.responses)


def flatten(trajectory: Trajectory, rollout: int) -> Response:
  """A trajectory's ids after its prompt: sampled turns are learnable, what the world wrote is not."""
  parts = [part for turn in trajectory.turns for part in (turn.tokens, turn.reply)]
  flags = [flag for turn in trajectory.turns for flag in (True, False)]
  logps = [part for turn in trajectory.turns for part in (turn.logprobs, (0.0,) * len(turn.reply))]
  return Response(
    rollout,
    np.fromiter((token for part in parts for token in part), np.int32),
    np.repeat(np.array(flags, bool), [len(part) for part in parts]),
    np.fromiter((logp for part in logps for logp in part), np.float32),
  )


def grow(trajectories: Sequence[Trajectory]) -> list[Tree]:
  """One tree per group. Failed rollouts leave no tokens behind; a group without any leaves no tree."""
  groups: dict[int, list[Response]] = {}
  prompts: dict[int, tuple[int, ...]] = {}
  for rollout, trajectory in enumerate(trajectories):
    if trajectory.status is Status.FAILED or not trajectory.turns:
      continue
    if prompts.setdefault(trajectory.group, trajectory.prompt) != trajectory.prompt:
      raise DataError(
        f'group {trajectory.group} has rollouts of different prompts; siblings share theirs token for token'
      )
    groups.setdefault(trajectory.group, []).append(flatten(trajectory, rollout))
  return [Tree(np.array(prompts[group], np.int32), tuple(responses)) for group, responses in groups.items()]


def split(tree: Tree, length: int) -> list[Tree]:
  """Trees of at most `length` tokens with the same responses; the prompt is repeated in each.

  Raises:
    DataError: a response does not fit behind its prompt.
  """
  pieces: list[list[Response]] = []
  room = 0
  for response in tree.responses:
    need = len(response.tokens)
    if len(tree.prompt) + need > length:
      raise DataError(
        f'a prompt of {len(tree.prompt)} tokens and a response of {need} exceed the row length {length}; '
        'raise the last entry of batching.lengths or lower the limits of the rollout'
      )
    if need > room:
      pieces.append([])
      room = length - len(tree.prompt)
    pieces[-1].append(response)
    room -= need
  return [Tree(tree.prompt, tuple(piece)) for piece in pieces]


def pack(trees: Sequence[Tree], length: int) -> list[list[Tree]]:
  """Rows of trees, each of at most `length` tokens: first fit, longest first."""
  pieces = [piece for tree in trees for piece in split(tree, length)]
  rows: list[list[Tree]] = []
  rooms: list[int] = []
  for piece in sorted(pieces, key=lambda piece: -piece.size):
    row = next((row for row, room in enumerate(rooms) if room >= piece.size), None)
    if row is None:
      row = len(rows)
      rows.append([])
      rooms.append(length)
    rows[row].append(piece)
    rooms[row] -= piece.size
  return rows


def choose(trees: Sequence[Tree], layout: Layout) -> tuple[int, list[list[Tree]]]:
  """The row length that computes the fewest tokens, and the rows packed to it; ties go to the shorter row."""
  longest = max((len(t.prompt) + len(r.tokens) for t in trees for r in t.responses), default=0)
  fitting = [length for length in layout.lengths if length >= longest] or [layout.lengths[-1]]
  packed = [(length, pack(trees, length)) for length in fitting]
  return min(packed, key=lambda choice: micro_batches(len(choice[1]), layout.micro_rows) * choice[0])


def micro_batches(rows: int, micro_rows: int) -> int:
  """How many micro-batches some rows fill; at least one."""
  return max(1, -(-rows // micro_rows))


def padded_rows(rows: int, micro_rows: int) -> int:
  """The number of rows a batch is laid out with: `micro_rows` times a power of two."""
  return micro_rows * 2 ** (micro_batches(rows, micro_rows) - 1).bit_length()


def lay_out(rows: Sequence[Sequence[Tree]], length: int, num_rows: int) -> dict[str, Any]:
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


def to_rewards(trajectories: Sequence[Trajectory], scores: Sequence[Scores], turns: int) -> Rewards:
  """Rewards of R rollouts with a table of `turns` turn rewards each; an absent score is NaN."""
  number = lambda value: np.nan if value is None else value
  groups = {group: i for i, group in enumerate(dict.fromkeys(t.group for t in trajectories))}
  table = np.full((len(scores), turns), np.nan, np.float32)
  for r, score in enumerate(scores):
    table[r, : len(score.turns)] = score.turns[:turns]
  return Rewards(
    tool_R=_array([number(s.tool) for s in scores], np.float32),
    summary_R=_array([number(s.summary) for s in scores], np.float32),
    outcome_R=_array([number(s.outcome) for s in scores], np.float32),
    turn_RK=_array(table, np.float32),
    guarded_R=_array([s.guarded for s in scores], bool),
    group_R=_array([groups[t.group] for t in trajectories], np.int32),
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
  """The batch of R scored trajectories: whole groups, rows of at most one bucket's length.

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
  trees = grow(trajectories)
  if not shared:
    trees = [Tree(tree.prompt, (response,)) for tree in trees for response in tree.responses]
  length, rows = choose(trees, layout)
  arrays = lay_out(rows, length, padded_rows(len(rows), layout.micro_rows))
  finished_R = _array([t.status is Status.FINISHED for t in trajectories], bool)
  batch = TokenBatch(**arrays, finished_R=finished_R, rewards=to_rewards(trajectories, scores, turns))
  return batch if sharding is None else place(batch, sharding)


def to_supervised(
  trees: Sequence[Tree], layout: Layout, *, rollouts: int, sharding: NamedSharding | None = None
) -> TokenBatch:
  """The batch of demonstrations, packed like rollouts: what is marked as sampled is learned, rewards are absent.

  Args:
    rollouts: R, the same for every batch, or each count of demonstrations would compile a program of its own.
  """
  length, rows = choose(trees, layout)
  return supervised(rows, length, padded_rows(len(rows), layout.micro_rows), rollouts=rollouts, sharding=sharding)


def supervised(
  rows: Sequence[Sequence[Tree]], length: int, num_rows: int, *, rollouts: int, sharding: NamedSharding | None = None
) -> TokenBatch:
  """The batch of demonstrations that were packed before, as `to_supervised` makes it."""
  arrays = lay_out(rows, length, num_rows)
  absent_R, none_R = _array([np.nan] * rollouts, np.float32), _array([False] * rollouts, bool)
  rewards = Rewards(absent_R, absent_R, absent_R, absent_R[:, None], none_R, _array(range(rollouts), np.int32))
  batch = TokenBatch(**arrays, finished_R=~none_R, rewards=rewards)
  return batch if sharding is None else place(batch, sharding)


def place(batch: TokenBatch, sharding: NamedSharding) -> TokenBatch:
  """The batch on the mesh: [B, T] arrays by rows, what concerns rollouts on every device."""
  everywhere = NamedSharding(sharding.mesh, PartitionSpec())
  where = jax.tree.map(lambda leaf: everywhere, batch)
  rows = {f.name: sharding for f in dataclasses.fields(batch) if f.name.endswith('_BT')}
  return jax.device_put(batch, where.replace(**rows))
