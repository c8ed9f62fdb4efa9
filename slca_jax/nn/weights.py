"""Hugging Face checkpoints to parameters and back, by one table of names and axes.

Loading reads, for every shard that this host owns, only the bytes of that shard, layer by layer. Saving fetches one
tensor at a time and puts a finished directory in the place of the old one.
"""

import dataclasses
import json
import math
import pathlib
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence

import jax
import numpy as np
from flax import nnx
from jax.sharding import Mesh, SingleDeviceSharding

from slca_jax.errors import WeightsError
from slca_jax.nn import tensorfile
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.hf_config import CONFIG, eos_ids, read_config, write_configs
from slca_jax.nn.sharding import named_shardings
from slca_jax.nn.tensorfile import StoredTensor, TensorPlan
from slca_jax.nn.transformer import abstract_model

__all__ = ['eos_ids', 'load_hf', 'named_tensors', 'read_config', 'save_hf']

_SINGLE, _INDEX = 'model.safetensors', 'model.safetensors.index.json'
_LAYER = 'model.layers.{}.'
# Our parameter -> its name there, its axes there (letters written together are one axis), its axes here.
# V vocabulary, D width, F hidden width, N heads, K key-value heads, H head size.
_TABLE = {
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
_TOKENIZER_FILES = (
  'tokenizer*',
  'vocab.*',
  'merges.txt',
  'special_tokens_map.json',
  'added_tokens.json',
  'chat_template*',
  '*.model',
  'LICENSE*',
)


@dataclasses.dataclass(frozen=True)
class _Entry:
  """One line of the table under one config."""

  name: str
  there: tuple[str, ...]
  here: str
  sizes: dict[str, int]

  @property
  def stacked(self) -> bool:
    return '{}' in self.name

  @property
  def stored_shape(self) -> tuple[int, ...]:
    return tuple(math.prod(self.sizes[letter] for letter in group) for group in self.there)

  def stored_index(self, index: dict[str, slice]) -> tuple[slice, ...]:
    """Where the part `index` of our axes lies there; of letters written together only the first may be cut."""
    slices = []
    for group in self.there:
      step = math.prod(self.sizes[letter] for letter in group[1:])
      start, stop, _ = index[group[0]].indices(self.sizes[group[0]])
      slices.append(slice(start * step, stop * step))
    return tuple(slices)

  def to_here(self, stored: np.ndarray, index: dict[str, slice]) -> np.ndarray:
    letters = ''.join(self.there)
    split = stored.reshape([len(range(*index[letter].indices(self.sizes[letter]))) for letter in letters])
    return split.transpose([letters.index(letter) for letter in self.here])

  def to_there(self, ours: np.ndarray) -> np.ndarray:
    letters = ''.join(self.there)
    return ours.transpose([self.here.index(letter) for letter in letters]).reshape(self.stored_shape)


def _entry(path: str, config: TransformerConfig) -> _Entry:
  name, there, here = _TABLE[path]
  c = config
  sizes = {'V': c.vocab, 'D': c.width, 'F': c.hidden, 'N': c.heads, 'K': c.kv_heads, 'H': c.head_dim}
  return _Entry(name, tuple(there.split()), here, sizes)


def load_hf(path: str | pathlib.Path, config: TransformerConfig, mesh: Mesh | None = None) -> nnx.State:
  """The parameters of a checkpoint directory, cast to `config.param_dtype` and laid out on `mesh` by the logical rules.

  Rows that only pad the vocabulary are zero. Without a mesh everything lies on the first local device.

  Raises:
    WeightsError: a file is missing or broken; a tensor is missing, not expected, misshapen or quantised.
  """
  stored = _stored_tensors(pathlib.Path(path))
  _, abstract = abstract_model(config)
  paths = {'.'.join(map(str, path)) for path, _ in nnx.to_flat_state(abstract)}
  _check(stored, {path: _entry(path, config) for path in paths}, config, path)
  if mesh is None:
    device = SingleDeviceSharding(jax.local_devices()[0])
    shardings = jax.tree.map(lambda _: device, abstract)
  else:
    shardings = named_shardings(abstract, mesh)

  def load(path, leaf, sharding):
    entry = _entry('.'.join(key.key for key in path if isinstance(key, jax.tree_util.DictKey)), config)
    return jax.make_array_from_callback(
      leaf.shape, sharding, lambda index: _read_shard(stored, entry, leaf, index), dtype=leaf.dtype
    )

  return jax.tree_util.tree_map_with_path(load, abstract, shardings)


def _read_shard(stored, entry, leaf, index) -> np.ndarray:
  """The part `index` of one of our parameters, filled layer by layer."""
  shard = np.zeros([len(range(*part.indices(size))) for part, size in zip(index, leaf.shape, strict=True)], leaf.dtype)
  if not entry.stacked:
    _fill(shard, stored[entry.name], entry, index)
    return shard
  for i, layer in enumerate(range(*index[0].indices(leaf.shape[0]))):
    _fill(shard[i], stored[entry.name.format(layer)], entry, index[1:])
  return shard


def _fill(shard, tensor: StoredTensor, entry, index):
  parts = dict(zip(entry.here, index, strict=True))
  ours = entry.to_here(tensor.read(entry.stored_index(parts)), parts)
  # Padded rows of the vocabulary lie past the stored tensor's end and stay zero.
  shard[tuple(slice(size) for size in ours.shape)] = ours


def _stored_tensors(path) -> dict[str, StoredTensor]:
  index = path / _INDEX
  if (path / _SINGLE).is_file() and not index.is_file():
    return tensorfile.read_header(path / _SINGLE)
  if not index.is_file():
    raise WeightsError(f'{path} holds neither {_SINGLE} nor {_INDEX}; convert the checkpoint to safetensors')
  try:
    names = json.loads(index.read_text(encoding='utf-8'))['weight_map']
    files = sorted(set(names.values()))
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise WeightsError(f'{index} has no readable weight_map ({error})') from error
  tensors = {}
  for name in files:
    file = path / name
    if pathlib.PurePath(name).name != name or not file.is_file():
      raise WeightsError(f'{index} names {name!r}, which is no file of {path}; fetch it')
    tensors |= tensorfile.read_header(file)
  return tensors


def _check(stored, entries, config, path):
  expected = {}
  for entry in entries.values():
    names = [entry.name.format(i) for i in range(config.layers)] if entry.stacked else [entry.name]
    expected |= dict.fromkeys(names, entry.stored_shape)
  problems = []
  for name, shape in expected.items():
    tensor = stored.get(name)
    if tensor is None:
      problems.append(f'{name} is missing, expected {shape}')
    elif tensor.shape != shape:
      problems.append(f'{name} has shape {tensor.shape}, expected {shape}')
    elif not tensorfile.is_readable(tensor.dtype):
      problems.append(f'{name} is stored as {tensor.dtype}, expected a floating-point type')
  spare = {'lm_head.weight'} if config.tied else set()
  for name in sorted(stored.keys() - expected.keys() - spare):
    # Old checkpoints store the rotary frequencies, which follow from the config.
    if not re.fullmatch(r'model\.(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq', name):
      problems.append(f'{name} of shape {stored[name].shape} is not a tensor of this model')
  if problems:
    more = f'\n  and {len(problems) - 8} more' if len(problems) > 8 else ''
    raise WeightsError(f'{path} does not fit the model:\n  ' + '\n  '.join(problems[:8]) + more)


def save_hf(
  params: nnx.State,
  config: TransformerConfig,
  path: str | pathlib.Path,
  *,
  source: str | pathlib.Path | None = None,
  eos: Sequence[int] = (),
  dtype: str | None = None,
  max_shard_bytes: int = 5_000_000_000,
) -> None:
  """Writes a checkpoint directory that transformers and SGLang load; an earlier checkpoint at `path` is replaced whole.

  Every process of a multi-host run calls it; the first one writes.

  Args:
    source: directory whose tokenizer, config and generation files are carried along.
    eos: ids that end a completion, for when the source does not say.
    dtype: of the stored tensors; the parameters' own unless given.
    max_shard_bytes: a file that would exceed it is split, with an index; a larger single tensor gets its own file.

  Raises:
    WeightsError: `path` holds something that is no checkpoint, or the source describes another network.
  """
  path, source = pathlib.Path(path), None if source is None else pathlib.Path(source)
  stored_dtype = np.dtype(jax.numpy.dtype(dtype or config.param_dtype))
  if path.exists() and not (path.is_dir() and (not any(path.iterdir()) or (path / CONFIG).is_file())):
    raise WeightsError(f'{path} exists and is no checkpoint; it would be replaced, so name another directory')
  writes = jax.process_index() == 0
  files = _split(_tensors(params, config, stored_dtype), max_shard_bytes)
  if not writes:
    for _, fetch in (tensor for file in files for tensor in file):
      fetch()
    return
  path.parent.mkdir(parents=True, exist_ok=True)
  with tempfile.TemporaryDirectory(prefix=f'.{path.name}.', dir=path.parent) as scratch:
    new = pathlib.Path(scratch) / 'new'
    new.mkdir()
    write_configs(new, config, dtype=stored_dtype.name, source=source, eos=eos)
    if source:
      _carry(source, new)
    _write_files(files, new)
    if path.exists():
      path.rename(pathlib.Path(scratch) / 'old')
    new.rename(path)


def named_tensors(
  params: nnx.State, config: TransformerConfig, *, dtype: str | None = None
) -> Iterator[tuple[str, np.ndarray]]:
  """(name, tensor) of everything `save_hf` would store, fetched one by one in the order of the network."""
  for plan, fetch in _tensors(params, config, np.dtype(jax.numpy.dtype(dtype or config.param_dtype))):
    yield plan.name, fetch()


def _tensors(params, config, dtype) -> list:
  """(plan, function that fetches it) of every stored tensor, in the order of the network."""
  ours = {'.'.join(map(str, path)): param for path, param in nnx.to_flat_state(params)}
  stacked = [path for path in _TABLE if path in ours and path.startswith('blocks.')]
  out = []

  def add(path, layer=None):
    entry, value = _entry(path, config), ours[path][...]
    plan = TensorPlan(entry.name.format(layer), entry.stored_shape, dtype)
    out.append((plan, lambda: entry.to_there(_fetch(value, layer, entry, dtype))))

  add('embed')
  for layer in range(config.layers):
    for path in stacked:
      add(path, layer)
  for path in ('ln_final', 'unembed'):
    if path in ours:
      add(path)
  return out


def _fetch(value, layer, entry, dtype) -> np.ndarray:
  part = value if layer is None else value[layer]
  if not part.is_fully_addressable:
    from jax.experimental import multihost_utils

    part = multihost_utils.process_allgather(part, tiled=True)
  part = np.asarray(part)
  return (part[: entry.sizes['V']] if entry.here[0] == 'V' else part).astype(dtype)


def _split(tensors, max_bytes) -> list[list]:
  files, size = [[]], 0
  for plan, fetch in tensors:
    if files[-1] and size + plan.nbytes > max_bytes:
      files.append([])
      size = 0
    files[-1].append((plan, fetch))
    size += plan.nbytes
  return files


def _write_files(files, directory):
  names = (
    [_SINGLE] if len(files) == 1 else [f'model-{i + 1:05}-of-{len(files):05}.safetensors' for i in range(len(files))]
  )
  for name, tensors in zip(names, files, strict=True):
    tensorfile.write(directory / name, [plan for plan, _ in tensors], (fetch() for _, fetch in tensors))
  if len(files) > 1:
    where = {plan.name: name for name, tensors in zip(names, files, strict=True) for plan, _ in tensors}
    total = sum(plan.nbytes for tensors in files for plan, _ in tensors)
    index = {'metadata': {'total_size': total}, 'weight_map': where}
    (directory / _INDEX).write_text(json.dumps(index, indent=2) + '\n', encoding='utf-8')


def _carry(source, directory):
  for pattern in _TOKENIZER_FILES:
    for file in source.glob(pattern):
      if file.is_file():
        shutil.copyfile(file, directory / file.name)
