"""tunix's own step functions, for `benchmarks/train_step.py`: its log-probs, GRPO loss, and the step of its trainer."""

import functools
import json
import pathlib
import resource
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from tunix.rl import algo_core, common
from tunix.rl.grpo.grpo_learner import GRPOConfig, TrainExample
from tunix_qwen2 import load

NOT_A_TOKEN = -1  # for the ids of padding and end, of which this batch has none


def logps(model: nnx.Module, prompt_RP: jax.Array, response_RT: jax.Array) -> jax.Array:
  graph, state = nnx.split(model)
  return common.compute_per_token_logps(graph, state, prompt_RP, response_RT, NOT_A_TOKEN, NOT_A_TOKEN)


def main(folder: pathlib.Path, repeats: int) -> None:
  case = np.load(folder / 'batch.npz')
  response_RT = jnp.asarray(case['response_RT'])
  size = len(response_RT) // len(case['prompt_GP'])
  prompt_RP = jnp.repeat(jnp.asarray(case['prompt_GP']), size, 0)
  settings = GRPOConfig(num_generations=size, beta=0.04, kl_loss_mode='low_var_kl', loss_agg_mode='token-mean')
  settings.temperature = 1.0
  loss_of = functools.partial(algo_core.grpo_loss_fn, algo_config=settings, pad_id=NOT_A_TOKEN, eos_id=NOT_A_TOKEN)

  @functools.partial(nnx.jit, donate_argnums=(0, 1))
  def train(model, optimizer, example):
    (loss, _), gradients = nnx.value_and_grad(loss_of, has_aux=True)(model, example)
    norm = optax.global_norm(gradients)
    optimizer.update(model, gradients)
    return loss, norm

  start = time.perf_counter()
  _, reference = load(folder / 'reference')
  seconds = []
  for repeat in range(repeats + 1):
    _, model = load(folder / 'policy')
    optimizer = nnx.Optimizer(model, optax.adamw(1e-6, weight_decay=0.01), wrt=nnx.Param)
    begun = time.perf_counter()
    old_RT, ref_RT = logps(model, prompt_RP, response_RT), logps(reference, prompt_RP, response_RT)
    example = TrainExample(
      prompt_ids=prompt_RP,
      prompt_mask=jnp.ones_like(prompt_RP),
      completion_ids=response_RT,
      completion_mask=jnp.asarray(case['sampled_RT']),
      advantages=jnp.asarray(case['advantage_R']),
      ref_per_token_logps=ref_RT,
      old_per_token_logps=old_RT,
    )
    loss, norm = jax.block_until_ready(train(model, optimizer, example))
    seconds.append(time.perf_counter() - begun)
    if not repeat:
      first = time.perf_counter() - start
  np.savez(folder / 'tunix.npz', old_RT=np.asarray(old_RT), ref_RT=np.asarray(ref_RT))
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
  print(json.dumps({'seconds': seconds[1:], 'first': first, 'peak': peak, 'loss': float(loss), 'norm': float(norm)}))


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]), int(sys.argv[2]))
