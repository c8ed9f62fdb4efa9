"""The policy the quickstart begins with: random weights and a tokenizer made on the spot, as a checkpoint folder."""

import pathlib

import jax
from flax import nnx
from transformers import PreTrainedTokenizerFast

from slca_jax.chat.template import Template
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.transformer import Transformer
from slca_jax.nn.weights import save_hf
from slca_jax.quickstart.tokenizer import make_tokenizer
from slca_jax.quickstart.world import make_task

# Two layers suffice to copy: one finds what stands before a name, the other fetches what followed it.
NETWORK = TransformerConfig(layers=2, width=64, hidden=192, heads=2, kv_heads=2, head_dim=32, context=1024)

# Copying is found by comparing tokens, and tokens this few are told apart sooner when their embeddings are long.
EMBEDDING_SCALE = 15.0


def write_start(folder: pathlib.Path, *, seed: int, network: TransformerConfig = NETWORK, samples: int = 300) -> int:
  """Writes a Hugging Face folder and returns the number of its parameters.

  Args:
    network: the decoder's shape; its vocabulary is the tokenizer's.
    samples: demonstrations the tokenizer's merges come from.
  """
  tokenizer = make_tokenizer(make_task(seed, 'train', index) for index in range(samples))
  return write_random(folder, tokenizer, seed=seed, network=network)


def write_random(
  folder: pathlib.Path, tokenizer: PreTrainedTokenizerFast, *, seed: int, network: TransformerConfig = NETWORK
) -> int:
  """Writes a policy of random weights that speaks through `tokenizer`, as `write_start` does."""
  template = Template(tokenizer)
  fields = {**vars(network), 'vocab': template.vocab_size}
  config = TransformerConfig(**fields)
  model = Transformer(config, rngs=nnx.Rngs(seed))
  model.embed.value = model.embed.value * EMBEDDING_SCALE
  _, params = nnx.split(model, nnx.Param)
  save_hf(params, config, folder, eos=template.stop_ids)
  tokenizer.save_pretrained(str(folder))
  return sum(leaf.size for leaf in jax.tree.leaves(params))
