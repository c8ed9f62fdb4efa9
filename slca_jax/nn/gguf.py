"""GGUF files of Llama-shaped decoders (SmolLM2 is one) as Hugging Face folders.

Quantised tensors are expanded, one at a time. GGUF keeps the rotary pairs of a head next to each other, Hugging Face
keeps them half a head apart: the rows of the query and key projections are put back in that order.
"""

import importlib
import json
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from slca_jax.errors import ConfigError, WeightsError
from slca_jax.nn import tensorfile
from slca_jax.nn.config import Dtype, TransformerConfig
from slca_jax.nn.hf_config import write_configs
from slca_jax.nn.tensorfile import TensorPlan

_TOP = {
  'token_embd.weight': 'model.embed_tokens.weight',
  'output_norm.weight': 'model.norm.weight',
  'output.weight': 'lm_head.weight',
}
_LAYER = {
  'attn_norm.weight': 'input_layernorm.weight',
  'attn_q.weight': 'self_attn.q_proj.weight',
  'attn_k.weight': 'self_attn.k_proj.weight',
  'attn_v.weight': 'self_attn.v_proj.weight',
  'attn_output.weight': 'self_attn.o_proj.weight',
  'ffn_norm.weight': 'post_attention_layernorm.weight',
  'ffn_gate.weight': 'mlp.gate_proj.weight',
  'ffn_up.weight': 'mlp.up_proj.weight',
  'ffn_down.weight': 'mlp.down_proj.weight',
}
_DTYPES: dict[Dtype, np.dtype] = {'float32': np.dtype(np.float32), 'bfloat16': np.dtype(ml_dtypes.bfloat16)}
_CONTROL, _ADDED = 3, 4  # types of tokens that the tokenizer cuts out before anything else; texts show the latter

_byte_level = lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True)
_PRE_TOKENIZERS: dict[str, Callable[[], Any]] = {
  'default': _byte_level,
  'gpt-2': _byte_level,
  'smollm': lambda: pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level()]),
}


class Metadata:
  """The settings in a GGUF file."""

  def __init__(self, file: pathlib.Path, fields: Mapping[str, Any]):
    self._file, self._fields = file, fields

  def __call__(self, key: str) -> Any:
    """A setting's value.

    Raises:
      WeightsError: there is none.
    """
    if key not in self._fields:
      raise WeightsError(f'{self._file} does not say {key}; it is incomplete or of a kind that is not known here')
    return self.get(key)

  def get(self, key: str, default: Any = None) -> Any:
    """A setting's value, or the default."""
    return self._fields[key].contents() if key in self._fields else default

  def number(self, key: str, default: Any = None) -> float:
    """A setting stored as float32, as the shortest decimal that means it: 1e-05 and not 9.99999975e-06."""
    return float(str(np.float32(self(key) if default is None else self.get(key, default))))


def convert(source: str | pathlib.Path, folder: str | pathlib.Path, *, dtype: Dtype = 'float32') -> TransformerConfig:
  """Writes the checkpoint and tokenizer of a GGUF file as a Hugging Face folder, and returns what decoder it holds.

  Args:
    source: the GGUF file.
    folder: does not exist yet or is empty; it appears whole or not at all.
    dtype: of the written tensors.

  Raises:
    WeightsError: the package gguf is missing, the file cannot be read, or it holds something that the decoder or the
      tokenizer cannot do; names it.
  """
  source, folder = pathlib.Path(source), pathlib.Path(folder)
  if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
    raise WeightsError(f'{folder} exists and is not empty; name another folder or remove it')
  gguf = _package()
  reader = _open(gguf, source)
  metadata = Metadata(source, reader.fields)
  _refuse_unsupported(metadata, source)
  tensors = {tensor.name: tensor for tensor in reader.tensors}
  config = read_config(metadata, tied='output.weight' not in tensors)
  names = _names(tensors, config, source)
  folder.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(prefix=f'.{folder.name}.', dir=folder.parent) as scratch:
    new = pathlib.Path(scratch) / 'new'
    new.mkdir()
    write_configs(new, config, dtype=dtype, eos=_stops(metadata))
    _write_tokenizer(new, metadata, source)
    plans = [TensorPlan(there, _shape(tensors[here]), _DTYPES[dtype]) for here, there in names.items()]
    arrays = (_expand(gguf, tensors[name], config, source).astype(_DTYPES[dtype]) for name in names)
    tensorfile.write(new / 'model.safetensors', plans, arrays)
    new.rename(folder)
  return config


def read_config(metadata: Metadata, *, tied: bool) -> TransformerConfig:
  """The decoder that the settings describe."""
  heads, width = metadata('llama.attention.head_count'), metadata('llama.embedding_length')
  try:
    return TransformerConfig(
      vocab=len(metadata('tokenizer.ggml.tokens')),
      layers=metadata('llama.block_count'),
      width=width,
      hidden=metadata('llama.feed_forward_length'),
      heads=heads,
      kv_heads=metadata.get('llama.attention.head_count_kv', heads),
      head_dim=metadata.get('llama.attention.key_length', width // heads),
      context=metadata('llama.context_length'),
      rope_theta=metadata.number('llama.rope.freq_base', 10000.0),
      eps=metadata.number('llama.attention.layer_norm_rms_epsilon'),
      tied=tied,
    )
  except ConfigError as error:
    raise WeightsError(f'the settings describe no decoder: {error}') from error


def unpaired(rows_XD: np.ndarray, heads: int) -> np.ndarray:
  """Rows of a query or key projection with rotary pairs half a head apart instead of next to each other.

  Row 2j + i of a head becomes row i·H/2 + j, i in {0, 1}.
  """
  rotary = rows_XD.reshape(heads, -1, 2, *rows_XD.shape[1:])
  return rotary.swapaxes(1, 2).reshape(rows_XD.shape)


def _package() -> Any:
  try:
    return importlib.import_module('gguf')
  except ImportError as error:
    raise WeightsError("reading GGUF needs the package gguf; install slca_jax with the extra 'gguf'") from error


def _open(gguf: Any, source: pathlib.Path) -> Any:
  if not source.is_file():
    raise WeightsError(f'{source} does not exist; name a GGUF file')
  try:
    return gguf.GGUFReader(str(source))
  except (ValueError, IndexError, KeyError, OSError, UnicodeDecodeError) as error:
    raise WeightsError(f'{source} is no GGUF file, or was cut short ({error}); fetch it again') from error


def _refuse_unsupported(metadata: Metadata, source: pathlib.Path) -> None:
  wanted = {
    'general.architecture': ('llama',),
    'tokenizer.ggml.model': ('gpt2',),
    'tokenizer.ggml.pre': tuple(_PRE_TOKENIZERS),
    'llama.rope.scaling.type': ('none',),
    'llama.expert_count': (0,),
    'split.count': (0, 1),
  }
  required = ('general.architecture', 'tokenizer.ggml.model')
  for key, known in wanted.items():
    value = metadata(key) if key in required else metadata.get(key, known[0])
    if value not in known:
      raise WeightsError(f'{source}: {key} is {value!r}; supported: {", ".join(map(str, known))}')
  head_dim = metadata.get('llama.attention.key_length')
  rotated = metadata.get('llama.rope.dimension_count', head_dim)
  head_dim = head_dim or metadata('llama.embedding_length') // metadata('llama.attention.head_count')
  if rotated not in (None, head_dim):
    raise WeightsError(f'{source}: {rotated} of {head_dim} dimensions of a head are rotated; all of them must be')


def _names(tensors: Mapping[str, Any], config: TransformerConfig, source: pathlib.Path) -> dict[str, str]:
  """Their name for each tensor of the file, in the file's order."""
  names = {here: there for here, there in _TOP.items() if here in tensors or here != 'output.weight'}
  for i in range(config.layers):
    names |= {f'blk.{i}.{here}': f'model.layers.{i}.{there}' for here, there in _LAYER.items()}
  missing = [name for name in names if name not in tensors]
  unknown = [name for name in tensors if name not in names]
  if missing or unknown:
    raise WeightsError(
      f'{source} is no plain Llama decoder of {config.layers} layers; '
      f'tensors that are missing: {missing[:3] or "none"}, that are not known: {unknown[:3] or "none"}'
    )
  return {name: names[name] for name in tensors}


def _shape(tensor: Any) -> tuple[int, ...]:
  return tuple(int(size) for size in reversed(tensor.shape))


def _expand(gguf: Any, tensor: Any, config: TransformerConfig, source: pathlib.Path) -> np.ndarray:
  """The tensor in float32, its rows in Hugging Face's order."""
  try:
    array = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32).reshape(_shape(tensor))
  except NotImplementedError as error:
    raise WeightsError(f'{source}: {tensor.name} is stored as {tensor.tensor_type.name}: {error}') from error
  heads = {'attn_q.weight': config.heads, 'attn_k.weight': config.kv_heads}.get(tensor.name.split('.', 2)[-1])
  return array if heads is None else unpaired(array, heads)


def _stops(metadata: Metadata) -> list[int]:
  """Ids that end a completion: end of text and, where the file names another one, end of turn."""
  found = (metadata.get(f'tokenizer.ggml.{name}_token_id') for name in ('eos', 'eot'))
  return list(dict.fromkeys(token for token in found if token is not None))


def _write_tokenizer(folder: pathlib.Path, metadata: Metadata, source: pathlib.Path) -> None:
  tokens, kinds = metadata('tokenizer.ggml.tokens'), metadata('tokenizer.ggml.token_type')
  vocab = {token: index for index, token in enumerate(tokens)}
  if len(vocab) != len(tokens):
    raise WeightsError(f'{source}: {len(tokens) - len(vocab)} tokens occur twice; its vocabulary is broken')
  merges = [tuple(merge.split(' ')) for merge in metadata('tokenizer.ggml.merges')]
  tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
  tokenizer.pre_tokenizer = _PRE_TOKENIZERS[metadata.get('tokenizer.ggml.pre', 'default')]()
  tokenizer.decoder = decoders.ByteLevel()
  for cut, add in ((_CONTROL, tokenizer.add_special_tokens), (_ADDED, tokenizer.add_tokens)):
    found = [token for token, kind in zip(tokens, kinds, strict=True) if kind == cut]
    add([AddedToken(token, special=cut == _CONTROL, normalized=False) for token in found])
  tokenizer.save(str(folder / 'tokenizer.json'))
  settings = dict(_tokenizer_settings(metadata, tokens))
  (folder / 'tokenizer_config.json').write_text(json.dumps(settings, indent=2) + '\n', encoding='utf-8')


def _tokenizer_settings(metadata: Metadata, tokens: list[str]) -> Iterator[tuple[str, Any]]:
  yield 'tokenizer_class', 'PreTrainedTokenizerFast'
  yield 'model_max_length', metadata('llama.context_length')
  yield 'clean_up_tokenization_spaces', False
  yield 'add_prefix_space', False
  yield 'add_bos_token', metadata.get('tokenizer.ggml.add_bos_token', False)
  for name, key in (('bos', 'bos'), ('eos', 'eos'), ('unk', 'unknown'), ('pad', 'padding')):
    index = metadata.get(f'tokenizer.ggml.{key}_token_id')
    if index is not None:
      yield f'{name}_token', tokens[index]
  if metadata.get('tokenizer.chat_template') is not None:
    yield 'chat_template', metadata('tokenizer.chat_template')
