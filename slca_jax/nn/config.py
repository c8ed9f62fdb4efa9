"""What a decoder is made of, before any weight exists."""

import dataclasses
from typing import Literal

from slca_jax.config import require

Dtype = Literal['float32', 'bfloat16']
Remat = Literal['none', 'full', 'attention', 'dots']
Backend = Literal['auto', 'dense', 'blocks', 'splash', 'triton']


@dataclasses.dataclass(frozen=True)
class RopeScaling:
  """Stretching of slow rotary frequencies as Llama 3.1 does it.

  Wavelengths above original_context / low_freq_factor are slowed by `factor`, those below original_context /
  high_freq_factor are kept, and what lies between is blended.
  """

  factor: float = 8.0
  low_freq_factor: float = 1.0
  high_freq_factor: float = 4.0
  original_context: int = 8192

  def __post_init__(self):
    require(self.factor >= 1, f'factor is {self.factor}; rope scaling needs a factor of at least 1')
    require(
      self.high_freq_factor > self.low_freq_factor,
      f'high_freq_factor {self.high_freq_factor} must exceed low_freq_factor {self.low_freq_factor}',
    )


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
  """Shape and numerics of one decoder: Qwen2.5 (`qkv_bias`), Qwen3 (`qk_norm`), Llama and SmolLM2 (neither).

  Attributes:
    context: most positions a row may have.
    vocab: rows of the embedding that name a token; the table is padded to a multiple of `vocab_multiple`.
    dtype: of activations; norms, rotations, scores and softmax stay float32.
    param_dtype: of the weights as they are stored and updated.
    remat: what the backward pass recomputes: nothing, every layer, every layer but what attention found in it (as large
      as the layer's input; 'dense' attention has to be computed again all the same), or all but matrix products.
    attention: a backend of `nn/attention.py`; 'auto' is what suits the platform JAX runs on.
    attention_block: tokens of a block of queries and of keys, None for the backend's own choice.
  """

  vocab: int = 512
  layers: int = 2
  width: int = 64
  hidden: int = 128
  heads: int = 4
  kv_heads: int = 2
  head_dim: int = 16
  context: int = 2048
  rope_theta: float = 10000.0
  rope_scaling: RopeScaling | None = None
  eps: float = 1e-6
  qkv_bias: bool = False
  qk_norm: bool = False
  tied: bool = True
  vocab_multiple: int = 128
  dtype: Dtype = 'float32'
  param_dtype: Dtype = 'float32'
  remat: Remat = 'full'
  attention: Backend = 'auto'
  attention_block: int | None = None

  def __post_init__(self):
    for name in ('vocab', 'layers', 'width', 'hidden', 'heads', 'kv_heads', 'head_dim', 'context', 'vocab_multiple'):
      require(getattr(self, name) > 0, f'{name} is {getattr(self, name)}; it must be positive')
    require(self.heads % self.kv_heads == 0, f'{self.heads} heads cannot share {self.kv_heads} kv_heads evenly')
    require(self.head_dim % 2 == 0, f'head_dim is {self.head_dim}; rotary embedding needs an even one')
    check_block(self.attention, self.attention_block)

  @property
  def padded_vocab(self) -> int:
    """Rows of the embedding table: `vocab` rounded up, so that it can be split over devices."""
    return -(-self.vocab // self.vocab_multiple) * self.vocab_multiple


def check_block(backend: Backend, block: int | None) -> None:
  """Raises ConfigError for a block of tokens that the attention backend cannot take."""
  if block is None:
    return
  require(block > 0, f'attention_block is {block}; it counts tokens, or is None for the choice of the backend')
  require(backend != 'dense', f"attention_block is {block}, but attention 'dense' has no blocks; leave it at None")
  multiple = block % 128 == 0
  require(
    backend != 'splash' or multiple, f"attention_block is {block}; attention 'splash' takes multiples of 128, like 512"
  )
  power = block >= 16 and block & (block - 1) == 0
  require(
    backend != 'triton' or power, f"attention_block is {block}; attention 'triton' takes powers of two from 16, like 64"
  )
