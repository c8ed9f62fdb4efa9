"""How step time, memory and waste grow with rollouts, prompts, responses and group size, one of them at a time.

taskset -c 1 python benchmarks/scaling.py [--repeats=5 --factors=rollouts,prompt,response,size]

A step of a small decoder in float32 on one core: `prepare` (old and reference log-probs, advantages) and one `update`.
Prints, for each factor doubled thrice, CPU seconds of the fastest of some warm steps, what the compiler says that
`update` holds, and what rows waste; then the exponents of power laws fitted to them by least squares of the logarithms,
beside those that counting FLOPs predicts: of the mathematics, and of the rows as they are laid out.

Lengths are drawn between half and one and a half times their mean. CPU seconds, because on a machine that does other
things a step takes as long as those let it.
"""

import argparse
import dataclasses
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from slca_jax.arrays import TokenBatch, TrainState
from slca_jax.dialogue import Parsed, Scores, Status, Task, Trajectory, Turn
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.transformer import Transformer
from slca_jax.ops.estimators import slca
from slca_jax.rollout.batching import assemble, to_share
from slca_jax.rollout.settings import Layout
from slca_jax.rollout.shares import Share
from slca_jax.train.flops import Load, forward
from slca_jax.train.settings import Objective
from slca_jax.train.steps import Policy, make_prepare, make_update

CONFIG = TransformerConfig(vocab=512, layers=2, width=64, hidden=192, heads=4, kv_heads=2, head_dim=16, context=4096)
LAYOUT = Layout((256, 512, 1024, 2048), 4)
DOUBLED = {'rollouts': (8, 16, 32, 64), 'prompt': (128, 256, 512, 1024), 'response': (32, 64, 128, 256)}
DOUBLED['size'] = (2, 4, 8, 16)
PASSES = 5  # old and reference log-probs, the forward pass of the update, and twice as much for its backward pass


@dataclasses.dataclass(frozen=True)
class Point:
  """Rollouts of a step, rollouts per prompt, and mean tokens of a prompt and of a response."""

  rollouts: int = 16
  size: int = 4
  prompt: int = 256
  response: int = 64

  def share(self) -> Share:
    """Groups of random ids: a tool turn, an observation of a quarter of the response, and an answer."""
    rng = np.random.default_rng(0)
    ids = lambda count: tuple(int(token) for token in rng.integers(0, CONFIG.vocab, count))
    drawn = lambda mean: int(rng.integers(mean // 2, 3 * mean // 2 + 1))
    trajectories, scores = [], []
    for place in range(self.rollouts):
      if place % self.size == 0:
        prompt = ids(drawn(self.prompt))
      quarter = max(1, drawn(self.response) // 4)
      call, answer = (Turn(ids(n), (-1.0,) * n, '', Parsed()) for n in (quarter, 2 * quarter))
      turns = dataclasses.replace(call, reply=ids(quarter)), answer
      trajectories.append(
        Trajectory(Task('t', (), ()), place // self.size, place % self.size, prompt, turns, Status.FINISHED)
      )
      scores.append(Scores(*map(float, rng.random(3))))
    return to_share(trajectories, scores, turns=2)


@dataclasses.dataclass(frozen=True)
class Measured:
  """A point's seconds, bytes, waste as shares, and FLOPs of the mathematics and of its rows."""

  seconds: float
  memory: float
  rows: str
  padding: float
  repeated: float
  needed: float
  laid: float


def measure(point: Point, repeats: int) -> Measured:
  """Compiles the step of a point, and times it warm."""
  share = point.share()
  batch, plan = assemble(share, LAYOUT, None)
  seconds, memory = timed(batch, repeats)
  laid = [tree for row in plan.rows for tree in row]
  once, computed = sum(len(t.prompt) for t in share.trees), plan.micro_batches * plan.micro_rows * plan.length
  numbers = plan.numbers()
  return Measured(
    seconds,
    memory,
    f'{int(numbers["rows/count"])} × {plan.length}',
    numbers['rows/padding'] + numbers['rows/empty'],
    (sum(len(tree.prompt) for tree in laid) - once) / computed,
    PASSES * forward(CONFIG, load(share.trees, sum(tree.size for tree in share.trees))),
    PASSES * forward(CONFIG, load(laid, computed)),
  )


def load(trees: Sequence, tokens: int) -> Load:
  """What some trees ask of the decoder when so many tokens go through its layers."""
  return Load(tokens, sum(tree.pairs for tree in trees), sum(tree.sampled for tree in trees))


def timed(batch: TokenBatch, repeats: int) -> tuple[float, float]:
  """(CPU seconds of the fastest warm step, bytes that `update` holds)."""
  graph, params = nnx.split(Transformer(CONFIG, rngs=nnx.Rngs(0)), nnx.Param)
  reference = jax.tree.map(lambda x: x * 1.01, params)
  policy, objective, rule = Policy(graph, CONFIG.vocab, 1.0, 64), Objective(), optax.adamw(1e-4)
  batch = jax.device_put(batch)
  state = TrainState(jnp.zeros((), jnp.int32), params, rule.init(params))
  micro_rows = LAYOUT.micro_rows
  prepare = make_prepare(policy, objective, slca, micro_rows=micro_rows).lower(params, reference, batch).compile()
  experience = prepare(params, reference, batch)
  update = make_update(policy, objective, rule, micro_rows=micro_rows).lower(state, experience).compile()
  held = update.memory_analysis()
  memory = held.temp_size_in_bytes + held.argument_size_in_bytes + held.output_size_in_bytes - held.alias_size_in_bytes
  fastest = np.inf
  for _ in range(repeats + 1):
    start = time.process_time()
    state, _ = jax.block_until_ready(update(state, prepare(state.params, reference, batch)))
    fastest = min(fastest, time.process_time() - start)
  return fastest, memory


def exponent(values: Sequence[float], measured: Sequence[float]) -> float:
  """p of measured ~ valueᵖ by least squares of the logarithms."""
  return float(np.polyfit(np.log(values), np.log(measured), 1)[0])


def main() -> None:
  """Measures all points and prints both tables."""
  parser = argparse.ArgumentParser()
  parser.add_argument('--repeats', type=int, default=5)
  parser.add_argument('--factors', default=','.join(DOUBLED))
  options, known = parser.parse_args(), {}
  print('| factor | value | CPU s | update holds, MiB | rows | padding | repeated prompts | needed GFLOP | laid out |')
  print('|---|---|---|---|---|---|---|---|---|')
  laws = []
  for factor in options.factors.split(','):
    values = DOUBLED[factor]
    points = [dataclasses.replace(Point(), **{factor: value}) for value in values]
    for value, point in zip(values, points, strict=True):
      known[point] = m = known.get(point) or measure(point, options.repeats)
      print(
        f'| {factor} | {value} | {m.seconds:.3f} | {m.memory / 2**20:.1f} | {m.rows} | {m.padding:.1%} |'
        f' {m.repeated:.1%} | {m.needed / 1e9:.2f} | {m.laid / 1e9:.2f} |',
        flush=True,
      )
    fit = lambda name, points=points, values=values: exponent(values, [getattr(known[point], name) for point in points])
    laws.append([factor, *(f'{fit(name):.2f}' for name in ('seconds', 'needed', 'laid', 'memory'))])
  print('\n| doubled | exponent of CPU s | of needed FLOPs | of FLOPs laid out | of memory |\n|---|---|---|---|---|')
  for law in laws:
    print('| ' + ' | '.join(law) + ' |')


if __name__ == '__main__':
  main()
