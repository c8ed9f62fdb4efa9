"""SFT packing: real tokens over computed ones on lengths like Toucan's, against padding to the longest in the batch.

    python benchmarks/sft_packing.py [--dialogues=42423 --median=4500 --spread=0.6 --length=16384]

Lengths are log-normal, as those of dialogues with tool schemas in their prompts are, cut at the row's length. Compared
are batches of 32 dialogues padded to their longest, the same batches packed into the fewest micro-batches
(`packing.rows = 0`), and full rows planned from sizes (`packing.rows = 8`). Prints what each computes, and the planning
time of an epoch. With --train it measures a small network's real tokens per second on padded and on full rows, too.
"""

import argparse
import time

import numpy as np

from slca_jax.data.packing import RowPlan
from slca_jax.rollout.rows import choose, micro_batches
from slca_jax.rollout.settings import Layout
from slca_jax.rollout.trees import Response, Tree

ONE = np.zeros(1, np.int32)


def sizes_like_toucan(count: int, *, median: float, spread: float, length: int, seed: int = 0) -> list[int]:
  """Tokens of each dialogue."""
  drawn = np.random.default_rng(seed).lognormal(np.log(median), spread, count)
  return np.clip(drawn, length // 50, length).astype(int).tolist()


def hollow(size: int) -> Tree:
  """A tree of some size that holds no memory of its own."""
  return Tree(np.broadcast_to(np.int32(0), (size - 1,)), (Response(0, ONE, ONE, ONE),))


def padded(sizes: list[int], batch: int) -> int:
  """Computed tokens if every dialogue is as long as the longest of its batch."""
  return sum(len(part) * max(part) for part in (sizes[i : i + batch] for i in range(0, len(sizes), batch)))


def by_dialogues(sizes: list[int], batch: int, layout: Layout) -> int:
  """Computed tokens of batches of a number of dialogues."""
  total = 0
  for start in range(0, len(sizes), batch):
    length, rows = choose([hollow(size) for size in sizes[start : start + batch]], layout)
    total += micro_batches(len(rows), layout.micro_rows) * layout.micro_rows * length
  return total


def train_speed(sizes: list[int], length: int, rows: int) -> dict[str, float]:
  """Real tokens per second of a small network: rows padded to the longest, and full rows, of the same size."""
  import jax
  from flax import nnx

  from slca_jax.nn.config import TransformerConfig
  from slca_jax.nn.transformer import Transformer
  from slca_jax.rollout.batching import supervised
  from slca_jax.train import optimizer, settings
  from slca_jax.train.steps import Policy, TrainState, make_fit

  config = TransformerConfig(
    vocab=512, layers=2, width=64, hidden=192, heads=2, kv_heads=2, head_dim=32, context=length, dtype='float32'
  )
  graph, params = nnx.split(Transformer(config, rngs=nnx.Rngs(0)), nnx.Param)
  rule = optimizer.make(settings.Optimizer(), 100)
  fit = make_fit(Policy(graph, 512, 1.0, 256), rule, micro_rows=rows)
  state = TrainState(jax.numpy.zeros((), 'int32'), params, rule.init(params))
  plan = RowPlan(sizes, length=length, rows=rows, window=1024, seed=0)
  full = [[[sizes[index] for index in row] for row in plan(step)] for step in range(4)]
  alone = [[[size] for size in sizes[i : i + rows]] for i in range(0, 8 * rows, rows)]
  out = {}
  for name, batches in (('padded', alone), ('full rows', full)):
    real = seconds = 0
    for batch in batches:
      longest = max(sum(row) for row in batch) if name == 'padded' else length
      trees = [[_tree(size) for size in row] for row in batch]
      for run in range(2):  # the first one compiles
        placed, _ = supervised(trees, longest, rows, rollouts=1)
        begin = time.perf_counter()
        state, numbers = fit(state, placed)
        jax.block_until_ready(numbers)
        if run:
          seconds, real = seconds + time.perf_counter() - begin, real + sum(map(sum, batch))
    out[name] = real / seconds
  return out


def _tree(size: int) -> Tree:
  answer = size // 8 or 1
  response = Response(0, np.ones(answer, np.int32), np.ones(answer, bool), np.zeros(answer, np.float32))
  return Tree(np.ones(size - answer, np.int32), (response,))


def main() -> None:
  """Prints a line per way, and the ratios."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('--dialogues', type=int, default=42423)
  parser.add_argument('--median', type=float, default=4500)
  parser.add_argument('--spread', type=float, default=0.6, help='standard deviation of the logarithm')
  parser.add_argument('--length', type=int, default=16384)
  parser.add_argument('--batch', type=int, default=32)
  parser.add_argument('--rows', type=int, default=8)
  parser.add_argument('--train', action='store_true')
  args = parser.parse_args()
  sizes = sizes_like_toucan(args.dialogues, median=args.median, spread=args.spread, length=args.length)
  real = sum(sizes)
  print(f'{len(sizes)} dialogues, {real / len(sizes):.0f} tokens in the mean, longest {max(sizes)}')
  worst = padded(sizes, args.batch)
  lengths = (args.length // 4, args.length // 2, args.length)
  some = sizes[: 200 * args.batch]
  begin = time.perf_counter()
  plan = RowPlan(sizes, length=args.length, rows=args.rows, window=1024, seed=0)
  steps = plan.steps(1)
  seconds = time.perf_counter() - begin
  ways = {
    f'{args.batch} dialogues, padded to the longest': real / worst,
    f'{args.batch} dialogues, packed, 8 rows at once': sum(some) / by_dialogues(some, args.batch, Layout(lengths, 8)),
    f'{args.batch} dialogues, packed, 1 row at once': sum(some) / by_dialogues(some, args.batch, Layout(lengths, 1)),
    f'{args.rows} full rows of {args.length}': real / (steps * args.rows * args.length),
  }
  for name, share in ways.items():
    print(f'{share:.3f} real / computed tokens, {share * worst / real:.2f}x padded: {name}')
  print(f'{steps} steps an epoch of {len(sizes) / steps:.1f} dialogues, planned in {seconds:.2f} s')
  if args.train:
    shrunk = [max(8, size // 16) for size in sizes]
    speeds = train_speed(shrunk, args.length // 16, args.rows)
    for name, speed in speeds.items():
      print(f'{speed:.0f} real tokens/s: {name}, lengths / 16')
    print(f'{speeds["full rows"] / speeds["padded"]:.2f}x')


if __name__ == '__main__':
  main()
