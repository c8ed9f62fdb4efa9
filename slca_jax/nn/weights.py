"""Hugging Face checkpoints to parameters and back, by the table of `names`.

Loading reads, for every shard that this host owns, only the bytes of that shard, layer by layer. Saving fetches the
next tensors while one is written, and puts a finished directory in the place of the old one.
"""

import itertools
import json
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
from slca_jax.nn import hosts, tensorfile
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.fetching import Fetched, Tensor
from slca_jax.nn.hf_config import CONFIG, eos_ids, read_config, write_configs
from slca_jax.nn.names import TABLE, entry_of
from slca_jax.nn.sharding import named_shardings
from slca_jax.nn.tensorfile import StoredTensor, TensorPlan
from slca_jax.nn.transformer import abstract_model

__all__ = ['eos_ids', 'load_hf', 'named_tensors', 'read_config', 'save_hf']

_SINGLE, _INDEX = 'model.safetensors', 'model.safetensors.index.json'
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


def load_hf(path: str | pathlib.Path, config: TransformerConfig, mesh: Mesh | None = None) -> nnx.State:
  """The parameters of a checkpoint directory, cast to `config.param_dtype` and laid out on `mesh` by the logical rules.

  Rows that only pad the vocabulary are zero. Without a mesh everything lies on the first local device.

  Raises:
    WeightsError: a file is missing or broken; a tensor is missing, not expected, misshapen, quantised or not finite.
  """
  stored = _stored_tensors(pathlib.Path(path))
  _, abstract = abstract_model(config)
  paths = {'.'.join(map(str, path)) for path, _ in nnx.to_flat_state(abstract)}
  _check(stored, {path: entry_of(path, config) for path in paths}, config, path)
  if mesh is None:
    device = SingleDeviceSharding(jax.local_devices()[0])
    shardings = jax.tree.map(lambda _: device, abstract)
  else:
    shardings = named_shardings(abstract, mesh)

  def load(path, leaf, sharding):
    entry = entry_of('.'.join(key.key for key in path if isinstance(key, jax.tree_util.DictKey)), config)
    return jax.make_array_from_callback(
      leaf.shape, sharding, lambda index: _read_shard(stored, entry, leaf, index), dtype=leaf.dtype
    )

  return jax.tree_util.tree_map_with_path(load, abstract, shardings)


def _read_shard(stored, entry, leaf, index) -> np.ndarray:
  """The part `index` of one of our parameters, filled layer by layer."""
  shard = np.zeros([len(range(*part.indices(size))) for part, size in zip(index, leaf.shape, strict=True)], leaf.dtype)
  if not entry.stacked:
    _fill(shard, stored, entry.name, entry, index)
    return shard
  for i, layer in enumerate(range(*index[0].indices(leaf.shape[0]))):
    _fill(shard[i], stored, entry.name.format(layer), entry, index[1:])
  return shard


def _fill(shard, stored, name, entry, index):
  parts = dict(zip(entry.here, index, strict=True))
  ours = entry.to_here(stored[name].read(entry.stored_index(parts)), parts)
  # Padded rows of the vocabulary lie past the stored tensor's end and stay zero.
  filled = shard[tuple(slice(size) for size in ours.shape)]
  with np.errstate(over='ignore', invalid='ignore'):  # what does not survive the cast is told below
    filled[...] = ours
    if np.isfinite(filled).all():
      return
    here = np.argwhere(~np.isfinite(filled))[0]
  raise WeightsError(
    f'{name} of {stored[name].file} is {ours[tuple(here)]} in one place, {filled[tuple(here)]} as {shard.dtype}; a run '
    'that diverged may have written it: take an earlier checkpoint, or a wider param_dtype'
  )


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

  Every process of a multi-host run calls it, with a `path` that all of them see. They write the files side by side,
  one of `max_shard_bytes` each in turn, and it succeeds on all of them or on none.

  Args:
    source: directory whose tokenizer, config and generation files are carried along.
    eos: ids that end a completion. Servers stop at those of the generation config, and a base model's lacks the end of
      a turn: what the source does not name is added.
    dtype: of the stored tensors; the parameters' own unless given.
    max_shard_bytes: a file that would exceed it is split, with an index; a larger single tensor gets its own file.

  Raises:
    WeightsError: `path` holds something that is no checkpoint, or the source describes another network.
    OSError: it cannot be written, here or on another host.
  """
  path, source = pathlib.Path(path), None if source is None else pathlib.Path(source)
  stored_dtype = np.dtype(jax.numpy.dtype(dtype or config.param_dtype))
  files = _split(_tensors(params, config, stored_dtype), max_shard_bytes)
  scratch = path.parent / hosts.agree(lambda: _scratch(path), first_only=True)
  new = scratch / 'new'

  def describe():
    new.mkdir()
    write_configs(new, config, dtype=stored_dtype.name, source=source, eos=eos)
    if source:
      _carry(source, new)
    _write_index(files, new)

  def replace():
    if path.exists():
      path.rename(scratch / 'old')
    new.rename(path)

  try:
    hosts.agree(describe, first_only=True)
    hosts.agree(lambda: _write_files(files, new))
    hosts.agree(replace, first_only=True)
  finally:
    if hosts.is_first():
      shutil.rmtree(scratch, ignore_errors=True)


def named_tensors(
  params: nnx.State, config: TransformerConfig, *, dtype: str | None = None
) -> Iterator[tuple[str, np.ndarray]]:
  """(name, tensor) of everything `save_hf` would store, fetched one by one in the order of the network."""
  tensors = _tensors(params, config, np.dtype(jax.numpy.dtype(dtype or config.param_dtype)))
  with Fetched((tensor, True) for tensor in tensors) as fetched:
    for tensor, array in zip(tensors, fetched, strict=True):
      yield tensor.plan.name, array


def _scratch(path) -> str:
  """The name of a new directory beside `path`."""
  if path.exists() and not (path.is_dir() and (not any(path.iterdir()) or (path / CONFIG).is_file())):
    raise WeightsError(f'{path} exists and is no checkpoint; it would be replaced, so name another directory')
  path.parent.mkdir(parents=True, exist_ok=True)
  return pathlib.Path(tempfile.mkdtemp(prefix=f'.{path.name}.', dir=path.parent)).name


def _tensors(params, config, dtype) -> list[Tensor]:
  """Every tensor to be stored, in the order of the network."""
  ours = {'.'.join(map(str, path)): param for path, param in nnx.to_flat_state(params)}
  stacked = [path for path in TABLE if path in ours and path.startswith('blocks.')]
  places = [('embed', None), *((path, layer) for layer in range(config.layers) for path in stacked)]
  places += [(path, None) for path in ('ln_final', 'unembed') if path in ours]
  out = []
  for path, layer in places:
    entry = entry_of(path, config)
    plan = TensorPlan(entry.name.format(layer), entry.stored_shape, dtype)
    out.append(Tensor(plan, entry, ours[path][...], layer))
  return out


def _split(tensors, max_bytes) -> dict[str, list[Tensor]]:
  """The tensors of each file, by its name."""
  files, size = [[]], 0
  for tensor in tensors:
    if files[-1] and size + tensor.plan.nbytes > max_bytes:
      files.append([])
      size = 0
    files[-1].append(tensor)
    size += tensor.plan.nbytes
  if len(files) == 1:
    return {_SINGLE: files[0]}
  return {f'model-{i + 1:05}-of-{len(files):05}.safetensors': file for i, file in enumerate(files)}


def _write_index(files, directory):
  if len(files) > 1:
    where = {tensor.plan.name: name for name, tensors in files.items() for tensor in tensors}
    total = sum(tensor.plan.nbytes for tensors in files.values() for tensor in tensors)
    index = {'metadata': {'total_size': total}, 'weight_map': where}
    (directory / _INDEX).write_text(json.dumps(index, indent=2) + '\n', encoding='utf-8')


def _write_files(files, directory):
  """Writes the files that fall to this process: each has one of every `jax.process_count()` in turn.

  Files of one turn are gathered tensor by tensor in rotation, so that all processes write at the same time.
  """
  count, here = jax.process_count(), jax.process_index()
  dealt = list(files.values())
  turns = [dealt[i : i + count] for i in range(0, len(dealt), count)]
  rounds = (row for turn in turns for row in itertools.zip_longest(*turn))
  order = ((tensor, owner == here) for row in rounds for owner, tensor in enumerate(row) if tensor)
  with Fetched(order) as fetched:
    for name in list(files)[here::count]:
      plans = [tensor.plan for tensor in files[name]]
      tensorfile.write(directory / name, plans, itertools.islice(fetched, len(plans)))


def _carry(source, directory):
  for pattern in _TOKENIZER_FILES:
    for file in source.glob(pattern):
      if file.is_file():
        shutil.copyfile(file, directory / file.name)
