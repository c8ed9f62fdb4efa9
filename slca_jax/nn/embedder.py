"""Sentence embeddings in JAX: BERT encoders in the folder layout of sentence-transformers, such as all-MiniLM-L6-v2.

A text's vector is the pooled last layer of an encoder that is only read, never trained.
"""

import dataclasses
import functools
import math
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from tokenizers import Tokenizer

from slca_jax.errors import WeightsError
from slca_jax.nn import tensorfile
from slca_jax.nn.embedder_config import Activation, EmbedderConfig, EncoderConfig, Pooling, read_embedder_config
from slca_jax.surrogates import mended

_ACTIVATIONS: dict[Activation, Callable[[jax.Array], jax.Array]] = {
  'gelu': functools.partial(jax.nn.gelu, approximate=False),
  'gelu_new': functools.partial(jax.nn.gelu, approximate=True),
  'gelu_pytorch_tanh': functools.partial(jax.nn.gelu, approximate=True),
  'relu': jax.nn.relu,
}
_LAYER = 'encoder.layer.{}.'
# Our array -> its name there, its axes there (letters written together are one axis). Ours are the same, one by one.
# V vocabulary, P positions, D width, F hidden width, N heads, H head size; arrays of the layers have an L in front.
_TABLE = {
  'words_VD': ('embeddings.word_embeddings.weight', 'V D'),
  'places_PD': ('embeddings.position_embeddings.weight', 'P D'),
  'kinds_SD': ('embeddings.token_type_embeddings.weight', 'S D'),
  'ln_scale_D': ('embeddings.LayerNorm.weight', 'D'),
  'ln_shift_D': ('embeddings.LayerNorm.bias', 'D'),
  'w_q_NHD': (_LAYER + 'attention.self.query.weight', 'NH D'),
  'b_q_NH': (_LAYER + 'attention.self.query.bias', 'NH'),
  'w_k_NHD': (_LAYER + 'attention.self.key.weight', 'NH D'),
  'b_k_NH': (_LAYER + 'attention.self.key.bias', 'NH'),
  'w_v_NHD': (_LAYER + 'attention.self.value.weight', 'NH D'),
  'b_v_NH': (_LAYER + 'attention.self.value.bias', 'NH'),
  'w_o_DNH': (_LAYER + 'attention.output.dense.weight', 'D NH'),
  'b_o_D': (_LAYER + 'attention.output.dense.bias', 'D'),
  'ln_attn_scale_D': (_LAYER + 'attention.output.LayerNorm.weight', 'D'),
  'ln_attn_shift_D': (_LAYER + 'attention.output.LayerNorm.bias', 'D'),
  'w_up_FD': (_LAYER + 'intermediate.dense.weight', 'F D'),
  'b_up_F': (_LAYER + 'intermediate.dense.bias', 'F'),
  'w_down_DF': (_LAYER + 'output.dense.weight', 'D F'),
  'b_down_D': (_LAYER + 'output.dense.bias', 'D'),
  'ln_mlp_scale_D': (_LAYER + 'output.LayerNorm.weight', 'D'),
  'ln_mlp_shift_D': (_LAYER + 'output.LayerNorm.bias', 'D'),
}


@struct.dataclass
class Layer:
  """One layer; in `Encoder.layers` all of them, stacked along a first axis."""

  w_q_NHD: jax.Array
  b_q_NH: jax.Array
  w_k_NHD: jax.Array
  b_k_NH: jax.Array
  w_v_NHD: jax.Array
  b_v_NH: jax.Array
  w_o_DNH: jax.Array
  b_o_D: jax.Array
  ln_attn_scale_D: jax.Array
  ln_attn_shift_D: jax.Array
  w_up_FD: jax.Array
  b_up_F: jax.Array
  w_down_DF: jax.Array
  b_down_D: jax.Array
  ln_mlp_scale_D: jax.Array
  ln_mlp_shift_D: jax.Array


@struct.dataclass
class Encoder:
  """The parameters of an encoder in float32."""

  words_VD: jax.Array
  places_PD: jax.Array
  kinds_SD: jax.Array
  ln_scale_D: jax.Array
  ln_shift_D: jax.Array
  layers: Layer


def encode(encoder: Encoder, tokens_BT: jax.Array, valid_BT: jax.Array, *, config: EncoderConfig) -> jax.Array:
  """hidden_BTD after the last layer. Every valid token sees every valid token of its row; the rest is padding.

  Post-norm as in BERT: x ← LN(x + attention(x)), x ← LN(x + W_down φ(W_up x)).
  """
  chex.assert_rank(tokens_BT, 2)
  chex.assert_equal_shape([tokens_BT, valid_BT])
  x_BTD = encoder.words_VD[tokens_BT] + encoder.places_PD[: tokens_BT.shape[1]] + encoder.kinds_SD[0]
  x_BTD = _layer_norm(x_BTD, encoder.ln_scale_D, encoder.ln_shift_D, config.eps)
  activation = _ACTIVATIONS[config.activation]

  def layer(x_BTD, w: Layer):
    q_BTNH = jnp.einsum('BTD,NHD->BTNH', x_BTD, w.w_q_NHD) + w.b_q_NH
    k_BTNH = jnp.einsum('BTD,NHD->BTNH', x_BTD, w.w_k_NHD) + w.b_k_NH
    v_BTNH = jnp.einsum('BTD,NHD->BTNH', x_BTD, w.w_v_NHD) + w.b_v_NH
    score_BNQT = jnp.einsum('BQNH,BTNH->BNQT', q_BTNH, k_BTNH) / math.sqrt(q_BTNH.shape[-1])
    score_BNQT = jnp.where(valid_BT[:, None, None], score_BNQT, jnp.finfo(score_BNQT.dtype).min)
    out_BTNH = jnp.einsum('BNQT,BTNH->BQNH', jax.nn.softmax(score_BNQT), v_BTNH)
    out_BTD = jnp.einsum('BTNH,DNH->BTD', out_BTNH, w.w_o_DNH) + w.b_o_D
    x_BTD = _layer_norm(x_BTD + out_BTD, w.ln_attn_scale_D, w.ln_attn_shift_D, config.eps)
    up_BTF = activation(jnp.einsum('BTD,FD->BTF', x_BTD, w.w_up_FD) + w.b_up_F)
    out_BTD = jnp.einsum('BTF,DF->BTD', up_BTF, w.w_down_DF) + w.b_down_D
    return _layer_norm(x_BTD + out_BTD, w.ln_mlp_scale_D, w.ln_mlp_shift_D, config.eps), None

  return jax.lax.scan(layer, x_BTD, encoder.layers)[0]


def pool(hidden_BTD: jax.Array, valid_BT: jax.Array, *, pooling: Pooling = 'mean', normalise: bool = True) -> jax.Array:
  """vector_BD of each row: the mean of its valid tokens or its first token, of length 1 if `normalise`."""
  chex.assert_rank(hidden_BTD, 3)
  chex.assert_shape(valid_BT, hidden_BTD.shape[:2])
  if pooling == 'cls':
    vector_BD = hidden_BTD[:, 0]
  else:
    total_BD = jnp.where(valid_BT[..., None], hidden_BTD, 0).sum(1)
    vector_BD = total_BD / jnp.maximum(valid_BT.sum(1, keepdims=True), 1)
  if not normalise:
    return vector_BD
  return vector_BD / jnp.maximum(jnp.linalg.norm(vector_BD, axis=-1, keepdims=True), 1e-12)


class Embedder:
  """Texts to vectors. A text's vector does not depend, but for rounding, on what else is in the call.

  Attributes:
    config: the settings; `config.encoder.width` is the number of a vector's components.
  """

  def __init__(self, encoder: Encoder, config: EmbedderConfig, tokenizer: Tokenizer, *, batch_tokens: int = 2048):
    """Wraps an encoder on the default device.

    Args:
      tokenizer: its own truncation and padding are not used.
      batch_tokens: tokens of a batch, padding included; a longer text is a batch of its own.
    """
    self.config = config
    self._encoder, self._batch_tokens = encoder, batch_tokens
    self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
    self._tokenizer.no_padding()
    self._tokenizer.enable_truncation(config.max_tokens)

    def embed(encoder, tokens_BT, valid_BT):
      with jax.default_matmul_precision('highest'):  # neighbours must not depend on the accelerator
        hidden_BTD = encode(encoder, tokens_BT, valid_BT, config=config.encoder)
      return pool(hidden_BTD, valid_BT, pooling=config.pooling, normalise=config.normalise)

    self._embed = jax.jit(embed)

  def __call__(self, texts: Sequence[str]) -> np.ndarray:
    """float32 vectors, one row per text in order. Batches are made of texts of like length."""
    out = np.zeros((len(texts), self.config.encoder.width), np.float32)
    ids = [encoding.ids for encoding in self._tokenizer.encode_batch([self._clean(text) for text in texts])]
    for rows, tokens_BT, valid_BT in _batches(ids, self._batch_tokens, self.config.max_tokens):
      out[rows] = np.asarray(self._embed(self._encoder, tokens_BT, valid_BT))[: len(rows)]
    return out

  def _clean(self, text: str) -> str:
    text = mended(text)
    return text.lower() if self.config.lower else text


def load_embedder(path: str | os.PathLike[str], *, batch_tokens: int = 2048) -> Embedder:
  """The embedder in a folder: config.json, model.safetensors, tokenizer.json and what modules.json names.

  Raises:
    WeightsError: a file is missing or broken, a tensor is missing or misshapen, or the folder asks for what is not
      done here: another architecture, another pooling, a further layer.
  """
  folder = pathlib.Path(path)
  config, file = read_embedder_config(folder), folder / 'tokenizer.json'
  try:
    tokenizer = Tokenizer.from_file(str(file))
  except Exception as error:  # tokenizers raises nothing narrower
    raise WeightsError(f'{file} cannot be read ({error}); save a fast tokenizer there') from error
  known = tokenizer.get_vocab_size()
  if known > config.encoder.vocab:
    raise WeightsError(f'{file} has {known} ids, the encoder {config.encoder.vocab}; they do not belong together')
  return Embedder(_load(folder, config.encoder), config, tokenizer, batch_tokens=batch_tokens)


def _layer_norm(x_BTD, scale_D, shift_D, eps):
  mean_BT1 = x_BTD.mean(-1, keepdims=True)
  variance_BT1 = jnp.square(x_BTD - mean_BT1).mean(-1, keepdims=True)
  return (x_BTD - mean_BT1) * jax.lax.rsqrt(variance_BT1 + eps) * scale_D + shift_D


def _batches(ids: Sequence[Sequence[int]], batch_tokens: int, longest: int) -> Iterator[tuple]:
  """(which rows, tokens_BT, valid_BT), the longest first; few shapes, so that few programs are compiled."""
  order = sorted(range(len(ids)), key=lambda row: (-len(ids[row]), row))
  while order:
    length = min(_rounded(max(len(ids[order[0]]), 1), 16), longest)
    most = max(1, batch_tokens // length)
    rows, order = order[:most], order[most:]
    tokens_BT = np.zeros((min(most, _rounded(len(rows), 4)), length), np.int32)
    valid_BT = np.zeros(tokens_BT.shape, bool)
    for i, row in enumerate(rows):
      tokens_BT[i, : len(ids[row])] = ids[row]
      valid_BT[i, : len(ids[row])] = True
    yield rows, tokens_BT, valid_BT


def _rounded(number: int, least: int) -> int:
  """The smallest of least · (1, 1.5, 2, 3, 4, 6, …) that is not below the number."""
  while least < number:
    if number <= least * 3 // 2:
      return least * 3 // 2
    least *= 2
  return least


def _load(folder: pathlib.Path, config: EncoderConfig) -> Encoder:
  file = folder / 'model.safetensors'
  if not file.is_file():
    raise WeightsError(f'{file} does not exist; convert the checkpoint to one safetensors file')
  stored = tensorfile.read_header(file)
  prefix = 'bert.' if 'bert.' + _TABLE['words_VD'][0] in stored else ''  # saved with a head on top
  sizes = {'V': config.vocab, 'P': config.positions, 'S': config.kinds, 'D': config.width, 'F': config.hidden}
  sizes |= {'N': config.heads, 'H': config.width // config.heads}

  def read(field, layer=None):
    template, axes = _TABLE[field]
    name = prefix + template.format(layer)
    shape = tuple(math.prod(sizes[letter] for letter in group) for group in axes.split())
    if name not in stored or stored[name].shape != shape or not tensorfile.is_readable(stored[name].dtype):
      found = f'is {stored[name].dtype}{stored[name].shape}' if name in stored else 'is missing'
      raise WeightsError(f'{file}: {name} {found}; expected floating point of shape {shape}')
    array = np.asarray(stored[name].read([slice(None)] * len(shape)), np.float32)
    return array.reshape([sizes[letter] for letter in axes if letter != ' '])

  every = lambda field: jnp.asarray(np.stack([read(field, layer) for layer in range(config.layers)]))
  top = {field.name: jnp.asarray(read(field.name)) for field in dataclasses.fields(Encoder) if field.name in _TABLE}
  return Encoder(**top, layers=Layer(**{field.name: every(field.name) for field in dataclasses.fields(Layer)}))
