"""A Qwen2 checkpoint as tunix has it, for the benchmarks that set it beside ours."""

import json
import pathlib

import jax.numpy as jnp
from flax import nnx
from tunix.models.qwen2 import model as qwen2
from tunix.models.qwen2 import params as qwen2_params


def load(folder: pathlib.Path) -> tuple[qwen2.ModelConfig, nnx.Module]:
  """The shape and the model of a Hugging Face folder, in float32."""
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
