"""Which tree goes to which row, and which row to which device: plans of batches, and what they waste.

All devices compute one micro-batch at a time and wait for the one with most to do, so its rows are dealt such that
every device has about as much as any other, in each micro-batch and in all. Where trees come from plays no part: hosts
that know the same trees make the same plan.
"""

import dataclasses
from collections.abc import Sequence

from slca_jax.rollout.settings import Layout
from slca_jax.rollout.trees import Tree, split

Row = list[Tree]
Numbers = dict[str, float]

# The vocabulary product of a learned token costs what attention costs for so many pairs of query and key, in decoders
# of the Qwen2.5 family: 2 V D against 4 N H L operations, 2,100 to 2,700.
_PAIRS_PER_LEARNED = 2400


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
  """The rows of a batch, as they stand in its arrays: those of the first device, then those of the next.

  Attributes:
    length: tokens of a row.
    rows: trees of each row; rows in use come first on every device.
    micro_rows: rows computed at once.
    shards: devices that rows are spread over.
  """

  length: int
  rows: tuple[Row, ...]
  micro_rows: int
  shards: int

  @property
  def micro_batches(self) -> int:
    """How many micro-batches are computed, out of those that there is room for."""
    return max(1, max(-(-sum(map(bool, rows)) // self._share) for rows in self._by_shard()))

  def numbers(self) -> Numbers:
    """What is computed for nothing.

    `rows/filled`, `rows/padding` and `rows/empty` are the shares of computed tokens that belong to a tree, that lie
    behind the last tree of a row, and in rows without any; they add up to 1. `rows/learnable` is the share learned.
    `rows/imbalance` is how much longer the slowest device takes than all would if they had equal work, from 1 up.
    """
    computed = self.micro_batches * self.micro_rows * self.length
    used = [row for row in self.rows if row]
    filled = sum(tree.size for row in used for tree in row) / computed
    taken = len(used) * self.length / computed
    return {
      'rows/length': float(self.length),
      'rows/count': float(len(used)),
      'rows/filled': filled,
      'rows/padding': taken - filled,
      'rows/empty': 1 - taken,
      'rows/learnable': sum(tree.sampled for row in used for tree in row) / computed,
      'rows/imbalance': self._imbalance(),
    }

  @property
  def _share(self) -> int:
    return self.micro_rows // self.shards

  def _by_shard(self) -> list[tuple[Row, ...]]:
    size = len(self.rows) // self.shards
    return [self.rows[start : start + size] for start in range(0, len(self.rows), size)]

  def _imbalance(self) -> float:
    slowest = total = 0.0
    for start in range(0, len(self.rows) // self.shards, self._share):
      costs = [sum(map(cost, rows[start : start + self._share])) for rows in self._by_shard()]
      slowest, total = slowest + max(costs), total + sum(costs)
    return slowest * self.shards / total if total else 1.0


def cost(row: Row) -> float:
  """What a row costs beyond its length, in pairs of query and key."""
  return sum(tree.pairs + _PAIRS_PER_LEARNED * tree.sampled for tree in row)


def pack(trees: Sequence[Tree], length: int) -> list[Row]:
  """Rows of trees, each of at most `length` tokens: first fit, longest first."""
  pieces = [piece for tree in trees for piece in split(tree, length)]
  rows: list[Row] = []
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


def choose(trees: Sequence[Tree], layout: Layout) -> tuple[int, list[Row]]:
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


def plan(trees: Sequence[Tree], layout: Layout, *, shards: int = 1) -> Plan:
  """Trees packed into the fewest tokens, and their rows dealt to the devices.

  Raises:
    DataError: a response and its prompt do not fit the longest row.
  """
  length, rows = choose(trees, layout)
  return deal(rows, length, layout.micro_rows, padded_rows(len(rows), layout.micro_rows), shards=shards)


def deal(rows: Sequence[Row], length: int, micro_rows: int, num_rows: int, *, shards: int = 1) -> Plan:
  """The plan of rows that were packed before; `num_rows` is a multiple of `micro_rows`.

  The costliest rows go first, one to each device, then the next ones in the opposite order of devices, and so on: what
  is computed at the same time costs about the same.
  """
  if shards == 1 or micro_rows % shards:
    return Plan(length, (*rows, *([] for _ in range(num_rows - len(rows)))), micro_rows, 1)
  out: list[Row] = [[] for _ in range(num_rows)]
  share, depth = micro_rows // shards, num_rows // shards
  for k, row in enumerate(sorted(rows, key=lambda row: -cost(row))):
    micro, place = divmod(k, micro_rows)
    turn, shard = divmod(place, shards)
    shard = shards - 1 - shard if (k // shards) % 2 else shard
    out[shard * depth + micro * share + turn] = row
  return Plan(length, tuple(out), micro_rows, shards)
