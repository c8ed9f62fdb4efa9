"""The policy of a run: its graph and weights on the mesh, its template, and the state of a fresh optimiser."""

import dataclasses
import math
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx

from slca_jax.arrays import TrainState
from slca_jax.chat.template import Template, load_template
from slca_jax.config import require
from slca_jax.nn import sharding, weights
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.hf_config import read_config
from slca_jax.nn.transformer import abstract_model
from slca_jax.train.settings import MeshShape, Model


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


def check(model: Model) -> None:
  """Raises ConfigError for a path that is empty, or that is neither a folder nor the name of a hub model."""
  require(bool(model.path), 'model.path is empty; give a Hugging Face folder or hub name')
  looks_local = model.path.startswith(('/', '.', '~')) or model.path.count('/') != 1
  exists = pathlib.Path(model.path).expanduser().is_dir()
  require(exists or not looks_local, f'model.path is {model.path!r}; there is no such folder')


def load(model: Model, shape: MeshShape) -> Loaded:
  """The policy of a checkpoint, its weights sharded over the mesh.

  Raises:
    ConfigError: no path, several processes, or a mesh that does not fit the devices.
    WeightsError, TemplateError: the folder does not hold what it should.
  """
  check(model)
  count = jax.process_count()
  # Every host would roll out the same tasks, its engine out of step with the others' programs, and wait for ever.
  require(count == 1, f'{count} processes have joined; rollouts, files and checkpoints are of one, so start one')
  folder = resolve(model.path)
  numerics = {name: getattr(model, name) for name in ('dtype', 'param_dtype', 'remat', 'attention')}
  config = dataclasses.replace(read_config(folder), **numerics)
  mesh = sharding.make_mesh(data=shape.data, fsdp=shape.fsdp, tensor=shape.tensor)
  template = load_template(folder, options=model.template)
  params = weights.load_hf(folder, config, mesh)
  graph, _ = abstract_model(config)
  return Loaded(folder, config, mesh, graph, params, template)


def check_rows(micro_rows: int, mesh: jax.sharding.Mesh) -> None:
  """Raises ConfigError unless the rows of a micro-batch can be spread evenly over the mesh."""
  shards = math.prod(mesh.shape[axis] for axis in sharding.ROWS)
  require(
    micro_rows % shards == 0,
    f'batching.micro_rows is {micro_rows}; the mesh has {shards} data shards, so use a multiple of {shards}',
  )


def resolve(path: str) -> pathlib.Path:
  """The local folder of a checkpoint; a hub name is downloaded into the hub's cache."""
  folder = pathlib.Path(path).expanduser()
  if folder.is_dir():
    return folder
  from huggingface_hub import snapshot_download  # only a run that names a hub model needs the network

  wanted = ['*.json', '*.safetensors', '*.jinja', '*.txt', '*.model']
  return pathlib.Path(snapshot_download(path, allow_patterns=wanted))


def init_state(
  params: nnx.State, optimizer: optax.GradientTransformation, mesh: jax.sharding.Mesh
) -> tuple[TrainState, Any]:
  """(a fresh train state, its shardings): moments lie where their parameters lie."""
  abstract = jax.eval_shape(lambda p: TrainState(jnp.zeros((), jnp.int32), p, optimizer.init(p)), params)
  shardings = sharding.named_shardings(abstract, mesh)
  opt_state = jax.jit(optimizer.init, out_shardings=shardings.opt_state)(params)
  step = jax.device_put(jnp.zeros((), jnp.int32), shardings.step)
  return TrainState(step, params, opt_state), shardings
