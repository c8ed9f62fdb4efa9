"""The policy of a run: its graph and weights on the mesh, its template, and the state of a fresh optimiser."""

import dataclasses
import logging
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import AxisType, Mesh, NamedSharding

from slca_jax.arrays import TrainState
from slca_jax.chat.template import Template, load_template
from slca_jax.config import require
from slca_jax.errors import WeightsError
from slca_jax.nn import sharding, weights
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.hf_config import read_config
from slca_jax.nn.transformer import abstract_model
from slca_jax.train.device_settings import MeshShape, Model, Placement


@dataclasses.dataclass(frozen=True, slots=True)
class Loaded:
  """A network, its weights on the mesh, and the ids it speaks."""

  folder: pathlib.Path
  config: TransformerConfig
  mesh: jax.sharding.Mesh
  graph: nnx.GraphDef
  params: nnx.State
  template: Template

  @property
  def rows(self) -> jax.sharding.NamedSharding:
    """The sharding of [B, T] arrays."""
    return sharding.rows_sharding(self.mesh)


def for_sampling(params: nnx.State) -> nnx.State:
  """The parameters on this process's own devices, for an engine that no other process waits for; all call it at once.

  They are spread over the local devices as the rules say, so each host gathers the whole policy once per publication.
  Of a run with one process they are the parameters as they are.
  """
  if jax.process_count() == 1:
    return params
  mesh = next(iter(jax.tree.leaves(params))).sharding.mesh
  here = local_mesh(mesh)
  hosts = np.stack([_devices_of(mesh, process).reshape(here.devices.shape) for process in range(jax.process_count())])
  everywhere = Mesh(hosts, ('host', *here.axis_names), axis_types=(AxisType.Auto,) * (1 + len(here.axis_names)))
  local = sharding.named_shardings(params, here)
  spread = jax.tree.map(lambda one: NamedSharding(everywhere, one.spec), local)
  gathered = jax.device_put(params, spread)

  def keep(x: jax.Array, one: NamedSharding) -> jax.Array:
    return jax.make_array_from_single_device_arrays(x.shape, one, [shard.data for shard in x.addressable_shards])

  return jax.tree.map(keep, gathered, local)


def local_mesh(mesh: Mesh) -> Mesh:
  """A mesh of this process's devices: `tensor` as far as they go, the rest to `fsdp`."""
  devices = _devices_of(mesh, jax.process_index())
  tensor = math.gcd(mesh.shape['tensor'], len(devices))
  return Mesh(devices.reshape(1, -1, tensor), sharding.AXES, axis_types=(AxisType.Auto,) * len(sharding.AXES))


def _devices_of(mesh: Mesh, process: int) -> np.ndarray:
  return np.array([device for device in mesh.devices.flat if device.process_index == process])


class Reference:
  """The policy that a run is held to, on the devices or in the hosts' memory beside them.

  Args:
    params: of the policy; copied, since the first update gives their buffers away.
    placement: 'host' keeps the weights out of the devices' memory except while they are asked for.

  Raises:
    ConfigError: the devices cannot reach memory of their host.
  """

  def __init__(self, params: nnx.State, *, placement: Placement):
    self._on_host = placement == 'host'
    self._device = jax.tree.map(lambda x: x.sharding, params)
    if not self._on_host:
      self._params = jax.tree.map(jnp.copy, params)
      return
    kinds = {memory.kind for memory in jax.local_devices()[0].addressable_memories()}
    require(
      'pinned_host' in kinds,
      f"reference.placement is 'host'; {jax.default_backend()} devices reach {sorted(kinds)} only, so use 'device'",
    )
    self._params = jax.device_put(params, jax.tree.map(lambda one: one.with_memory_kind('pinned_host'), self._device))

  def fetch(self) -> nnx.State:
    """The weights on the devices; those of the host are moved there, and free the memory when they are let go."""
    return jax.device_put(self._params, self._device) if self._on_host else self._params


def check(model: Model) -> None:
  """Raises ConfigError for a path that is empty, or that is neither a folder nor the name of a hub model."""
  require(bool(model.path), 'model.path is empty; give a Hugging Face folder or hub name')
  looks_local = model.path.startswith(('/', '.', '~')) or model.path.count('/') != 1
  exists = pathlib.Path(model.path).expanduser().is_dir()
  require(exists or not looks_local, f'model.path is {model.path!r}; there is no such folder')


def load(model: Model, shape: MeshShape, *, micro_rows: int = 0) -> Loaded:
  """The policy of a checkpoint, its weights sharded over the mesh.

  Args:
    micro_rows: rows that are computed at once where the policy is trained.

  Raises:
    ConfigError: no path, or a mesh that does not fit the devices or the rows.
    WeightsError, TemplateError: the folder does not hold what it should, or the hub does not give it.
  """
  check(model)
  folder = resolve(model.path)
  config = dataclasses.replace(read_config(folder), **model.numerics)
  mesh = sharding.make_mesh(data=shape.data, fsdp=shape.fsdp, tensor=shape.tensor)
  check_rows(micro_rows, mesh)
  warn_of_whole(config, mesh)
  template = load_template(folder, options=model.template)
  check_vocabulary(template, config.vocab, folder)
  params = weights.load_hf(folder, config, mesh)
  graph, _ = abstract_model(config)
  return Loaded(folder, config, mesh, graph, params, template)


def save(loaded: Loaded, params: nnx.State, path: pathlib.Path) -> None:
  """Writes weights as a Hugging Face folder; its eos ids are those at which the template ends a turn."""
  weights.save_hf(params, loaded.config, path, source=loaded.folder, eos=loaded.template.stop_ids)


def warn_of_whole(config: TransformerConfig, mesh: Mesh) -> None:
  """Warns of axes that `tensor` does not divide: weights that have one lie whole on each of its devices."""
  tensor = mesh.shape['tensor']
  whole = {name: getattr(config, name) for name in ('heads', 'kv_heads', 'hidden') if getattr(config, name) % tensor}
  if whole:
    logging.warning(
      'mesh.tensor is %d and does not divide %s; what has such an axis lies whole on each device of tensor. Take a '
      'divisor, and the rest as mesh.fsdp',
      *(tensor, ', '.join(f'{name} = {size}' for name, size in whole.items())),
    )


def check_vocabulary(template: Template, vocab: int, folder: pathlib.Path) -> None:
  """Raises WeightsError if the template needs ids that the model lacks: a look-up takes another's in silence."""
  beyond = sorted(token for token in template.needed_ids if token >= vocab)
  if beyond:
    raise WeightsError(
      f'{folder}: the tokenizer gives {template.decode(beyond, stops=True)!r} the ids {beyond}, the model has {vocab} '
      'tokens; take the tokenizer that belongs to it, or resize the embeddings'
    )
  if template.vocab_size > vocab:
    logging.warning(
      '%s: the tokenizer has ids up to %d, the model %d tokens; demonstrations with one of the others are left out, '
      'and rollouts with one fail',
      *(folder, template.vocab_size - 1, vocab),
    )


def check_rows(micro_rows: int, mesh: jax.sharding.Mesh) -> None:
  """Raises ConfigError unless the rows of a micro-batch can be spread evenly over the mesh."""
  shards = math.prod(mesh.shape[axis] for axis in sharding.ROWS)
  require(
    micro_rows % shards == 0,
    f'batching.micro_rows is {micro_rows}; the mesh has {shards} data shards, so use a multiple of {shards}',
  )


def resolve(path: str) -> pathlib.Path:
  """The local folder of a checkpoint; a hub name is downloaded into the hub's cache. Raises WeightsError without it."""
  folder = pathlib.Path(path).expanduser()
  if folder.is_dir():
    return folder
  from huggingface_hub import snapshot_download  # only a run that names a hub model needs the network

  wanted = ['*.json', '*.safetensors', '*.jinja', '*.txt', '*.model']
  try:
    return pathlib.Path(snapshot_download(path, allow_patterns=wanted))
  except (OSError, ValueError) as error:
    reason = str(error).splitlines()[0]
    raise WeightsError(
      f'{path!r} is no folder here, and cannot be fetched from the hub: {type(error).__name__}: {reason}; check the '
      'name, the network, and HF_TOKEN where access is granted to accounts'
    ) from error


def init_state(
  params: nnx.State, optimizer: optax.GradientTransformation, mesh: jax.sharding.Mesh
) -> tuple[TrainState, Any]:
  """(a fresh train state, its shardings): moments lie where their parameters lie."""
  abstract = jax.eval_shape(lambda p: TrainState(jnp.zeros((), jnp.int32), p, optimizer.init(p)), params)
  shardings = sharding.named_shardings(abstract, mesh)
  opt_state = jax.jit(optimizer.init, out_shardings=shardings.opt_state)(params)
  step = jax.device_put(jnp.zeros((), jnp.int32), shardings.step)
  return TrainState(step, params, opt_state), shardings
