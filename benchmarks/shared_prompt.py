"""A train step with a group's prompt computed once, against the same step with the prompt repeated for every response.

python benchmarks/shared_prompt.py [--groups=8 --size=8 --prompt=512 --response=64 --repeats=5]

Both layouts go through the trainer's door, `prepare` and `update`, with the same tokens, weights and loss. Steps are
interleaved and medians compared. Prints computed tokens, seconds, the ratio, the ratio that counting matrix products
predicts, and how far losses and gradient norms differ.
"""

import statistics
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from absl import app, flags
from flax import nnx

from slca_jax.arrays import Experience, TrainState
from slca_jax.dialogue import Parsed, Scores, Status, Task, Trajectory, Turn
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.transformer import Transformer
from slca_jax.ops.estimators import slca
from slca_jax.rollout.batching import to_batch
from slca_jax.rollout.settings import Layout
from slca_jax.train.settings import Objective
from slca_jax.train.steps import Policy, make_prepare, make_update

_GROUPS = flags.DEFINE_integer('groups', 8, 'Prompts.')
_SIZE = flags.DEFINE_integer('size', 8, 'Responses per prompt.')
_PROMPT = flags.DEFINE_integer('prompt', 512, 'Tokens of a prompt.')
_RESPONSE = flags.DEFINE_integer('response', 64, 'Tokens of a response.')
_REPEATS = flags.DEFINE_integer('repeats', 5, 'Timed steps of each layout.')

CONFIG = TransformerConfig(vocab=4096, layers=4, width=256, hidden=768, heads=4, kv_heads=2, head_dim=64, context=4096)


def rollouts() -> tuple[list[Trajectory], list[Scores]]:
  """Groups of random ids: a tool turn, an observation and an answer each."""
  rng = np.random.default_rng(0)
  ids = lambda count: tuple(int(token) for token in rng.integers(0, CONFIG.vocab, count))
  trajectories, scores = [], []
  for group in range(_GROUPS.value):
    prompt = ids(_PROMPT.value)
    for index in range(_SIZE.value):
      third = _RESPONSE.value // 3
      sizes = third, third, _RESPONSE.value - 2 * third
      call, answer = (Turn(ids(n), (-1.0,) * n, '', Parsed()) for n in (sizes[0], sizes[2]))
      call = Turn(call.tokens, call.logprobs, '', Parsed(), reply=ids(sizes[1]))
      trajectories.append(Trajectory(Task('t', (), ()), group, index, prompt, (call, answer), Status.FINISHED))
      scores.append(Scores(*map(float, rng.random(3))))
  return trajectories, scores


def products(tokens: int, pairs: int) -> float:
  """Multiplications of a forward pass per layer: weights per token, scores and values per pair that attends."""
  c = CONFIG
  weights = c.width * c.head_dim * (2 * c.heads + 2 * c.kv_heads) + 3 * c.width * c.hidden
  return float(tokens * weights + 2 * pairs * c.heads * c.head_dim)


def predicted() -> float:
  """The ratio that counting predicts, for causal attention that computes only what is seen."""
  n, g, p, r = _GROUPS.value, _SIZE.value, _PROMPT.value, _RESPONSE.value
  causal = lambda length: length * (length + 1) // 2
  repeated = products(n * g * (p + r), n * g * causal(p + r))
  return repeated / products(n * (p + g * r), n * (causal(p) + g * (p * r + causal(r))))


def main(_: list[str]) -> None:
  """Times both layouts and prints the comparison."""
  graph, params = nnx.split(Transformer(CONFIG, rngs=nnx.Rngs(0)), nnx.Param)
  policy = Policy(graph, CONFIG.vocab, 1.0, 64)
  objective, optimizer = Objective(), optax.adamw(1e-6)
  trajectories, scores = rollouts()
  layouts = {
    'shared': (Layout((_PROMPT.value + _SIZE.value * _RESPONSE.value,), _GROUPS.value), True),
    'repeated': (Layout((_PROMPT.value + _RESPONSE.value,), _GROUPS.value), False),
  }
  steps, seconds, found, tokens = {}, {}, {}, {}
  for name, (layout, shared) in layouts.items():
    batch = to_batch(trajectories, scores, layout, turns=2, shared=shared)
    prepare = make_prepare(policy, objective, slca, micro_rows=layout.micro_rows)
    update = make_update(policy, objective, optimizer, micro_rows=layout.micro_rows)
    steps[name], seconds[name], tokens[name] = (batch, prepare, update), [], int((batch.prompt_BT >= 0).sum())

  for repeat in range(_REPEATS.value + 1):
    for name, (batch, prepare, update) in steps.items():
      copy = jax.tree.map(jnp.copy, params)
      state = jax.block_until_ready(TrainState(jnp.zeros((), jnp.int32), copy, optimizer.init(copy)))
      start = time.perf_counter()
      experience: Experience = prepare(state.params, params, batch)
      _, numbers = jax.block_until_ready(update(state, experience))
      if repeat:  # the first one compiles
        seconds[name].append(time.perf_counter() - start)
      found[name] = {key: float(numbers[key]) for key in ('loss', 'grad_norm')}

  middle = {name: statistics.median(times) for name, times in seconds.items()}
  print(f'{_GROUPS.value} groups x {_SIZE.value} responses, prompt {_PROMPT.value}, response {_RESPONSE.value}')
  for name in steps:
    print(f'{name:9} {tokens[name]:8,} tokens computed  {middle[name]:7.2f} s per step')
  print(f'tokens {tokens["repeated"] / tokens["shared"]:.2f}x, seconds {middle["repeated"] / middle["shared"]:.2f}x')
  gaps = {key: abs(found['shared'][key] - found['repeated'][key]) for key in ('loss', 'grad_norm')}
  print(f'matrix products predict {predicted():.2f}x; {found["shared"]}, and the layouts differ by {gaps}')


if __name__ == '__main__':
  app.run(main)
