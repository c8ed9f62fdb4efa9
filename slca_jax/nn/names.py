"""Our parameters and the tensors of a Hugging Face checkpoint: one table of names and axes, for both ways."""

import dataclasses
import math
from typing import Any

import numpy as np

from slca_jax.nn.config import TransformerConfig

_LAYER = 'model.layers.{}.'
# Our parameter -> its name there, its axes there (letters written together are one axis), its axes here.
# V vocabulary, D width, F hidden width, N heads, K key-value heads, H head size.
TABLE = {
  'embed': ('model.embed_tokens.weight', 'V D', 'VD'),
  'blocks.ln_attn': (_LAYER + 'input_layernorm.weight', 'D', 'D'),
  'blocks.w_q': (_LAYER + 'self_attn.q_proj.weight', 'NH D', 'DNH'),
  'blocks.b_q': (_LAYER + 'self_attn.q_proj.bias', 'NH', 'NH'),
  'blocks.w_k': (_LAYER + 'self_attn.k_proj.weight', 'KH D', 'DKH'),
  'blocks.b_k': (_LAYER + 'self_attn.k_proj.bias', 'KH', 'KH'),
  'blocks.w_v': (_LAYER + 'self_attn.v_proj.weight', 'KH D', 'DKH'),
  'blocks.b_v': (_LAYER + 'self_attn.v_proj.bias', 'KH', 'KH'),
  'blocks.ln_q': (_LAYER + 'self_attn.q_norm.weight', 'H', 'H'),
  'blocks.ln_k': (_LAYER + 'self_attn.k_norm.weight', 'H', 'H'),
  'blocks.w_o': (_LAYER + 'self_attn.o_proj.weight', 'D NH', 'NHD'),
  'blocks.ln_mlp': (_LAYER + 'post_attention_layernorm.weight', 'D', 'D'),
  'blocks.w_gate': (_LAYER + 'mlp.gate_proj.weight', 'F D', 'DF'),
  'blocks.w_up': (_LAYER + 'mlp.up_proj.weight', 'F D', 'DF'),
  'blocks.w_down': (_LAYER + 'mlp.down_proj.weight', 'D F', 'FD'),
  'ln_final': ('model.norm.weight', 'D', 'D'),
  'unembed': ('lm_head.weight', 'V D', 'VD'),
}


@dataclasses.dataclass(frozen=True)
class Entry:
  """One line of the table under one config."""

  name: str
  there: tuple[str, ...]
  here: str
  sizes: dict[str, int] = dataclasses.field(hash=False)

  @property
  def stacked(self) -> bool:
    """Whether our parameter has a leading axis of layers, and the checkpoint a tensor for each."""
    return '{}' in self.name

  @property
  def stored_shape(self) -> tuple[int, ...]:
    """The shape of a tensor there."""
    return tuple(math.prod(self.sizes[letter] for letter in group) for group in self.there)

  @property
  def order(self) -> tuple[int, ...]:
    """Our axes in the order in which they lie there."""
    return tuple(self.here.index(letter) for letter in ''.join(self.there))

  @property
  def turned(self) -> bool:
    """Whether the axes lie in another order there."""
    return self.order != tuple(range(len(self.here)))

  def stored_index(self, index: dict[str, slice]) -> tuple[slice, ...]:
    """Where the part `index` of our axes lies there; of letters written together only the first may be cut."""
    slices = []
    for group in self.there:
      step = math.prod(self.sizes[letter] for letter in group[1:])
      start, stop, _ = index[group[0]].indices(self.sizes[group[0]])
      slices.append(slice(start * step, stop * step))
    return tuple(slices)

  def to_here(self, stored: np.ndarray, index: dict[str, slice]) -> np.ndarray:
    """The part `index` of ours from what is stored of it."""
    letters = ''.join(self.there)
    split = stored.reshape([len(range(*index[letter].indices(self.sizes[letter]))) for letter in letters])
    return split.transpose([letters.index(letter) for letter in self.here])

  def to_there(self, ours: Any) -> Any:
    """The tensor to store, from ours on a host or a device, without the rows that pad the vocabulary."""
    return ours.transpose(self.order).reshape(self.stored_shape)


def entry_of(path: str, config: TransformerConfig) -> Entry:
  """The line of our parameter `path`, as in 'blocks.w_q'."""
  name, there, here = TABLE[path]
  c = config
  sizes = {'V': c.vocab, 'D': c.width, 'F': c.hidden, 'N': c.heads, 'K': c.kv_heads, 'H': c.head_dim}
  return Entry(name, tuple(there.split()), here, sizes)
