"""The sampler of tunix, for `benchmarks/sampling.py`."""

import json
import os
import pathlib
import sys
import time

os.environ['JAX_PLATFORMS'] = 'cpu'

import jax.numpy as jnp
import numpy as np
from tunix.generate.sampler import CacheConfig, Sampler
from tunix.models.qwen2 import model as qwen2
from tunix.models.qwen2 import params as qwen2_params


class Ids:
  """A tokenizer for text that is a list of ids already."""

  def encode(self, text: str, **_) -> list[int]:
    return [int(word) for word in text.split()]

  def decode(self, ids: list[int], **_) -> str:
    return ' '.join(map(str, ids))

  def bos_id(self) -> int:
    return 0  # falsy: none is put in front

  def eos_id(self) -> int:
    return -1

  def pad_id(self) -> int:
    return -1


def load(folder: pathlib.Path):
  stored = json.loads((folder / 'config.json').read_text())
  config = qwen2.ModelConfig(
    num_layers=stored['num_hidden_layers'],
    vocab_size=stored['vocab_size'],
    embed_dim=stored['hidden_size'],
    hidden_dim=stored['intermediate_size'],
    num_heads=stored['num_attention_heads'],
    num_kv_heads=stored['num_key_value_heads'],
    head_dim=stored['hidden_size'] // stored['num_attention_heads'],
    rope_theta=int(stored.get('rope_theta') or stored['rope_parameters']['rope_theta']),
    norm_eps=stored['rms_norm_eps'],
    use_tied_embedding=stored['tie_word_embeddings'],
  )
  return config, qwen2_params.create_model_from_safe_tensors(str(folder), config, dtype=jnp.float32)


def main(folder: pathlib.Path, batches: list[int], new: int) -> None:
  config, model = load(folder / 'model')
  prompts = np.load(folder / 'prompts.npy')
  size = prompts.shape[1]
  sampler = Sampler(model, Ids(), CacheConfig(size + new, config.num_layers, config.num_kv_heads, config.head_dim))
  found = {}
  for batch in batches:
    seconds = []
    for prompt in prompts:
      text = ' '.join(map(str, prompt))
      start = time.perf_counter()
      made = sampler([text] * batch, max_generation_steps=new, max_prompt_length=size)
      tokens = [np.asarray(row).tolist() for row in made.tokens]
      seconds.append(time.perf_counter() - start)
    found[batch] = {'seconds': seconds[1:], 'tokens': tokens}
  print(json.dumps(found))


if __name__ == '__main__':
  main(pathlib.Path(sys.argv[1]), [int(batch) for batch in sys.argv[2].split(',')], int(sys.argv[3]))
