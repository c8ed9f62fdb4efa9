"""The mesh, and the one place that says which axis of an array lies on which axis of the mesh.

Rows of a batch are split over `data` and `fsdp`, weights over `fsdp` (along the width) and `tensor` (along heads,
hidden units and vocabulary). A row is never split. A computation runs under `jax.set_mesh(mesh)`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
from flax import nnx
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from slca_jax.config import require
from slca_jax.errors import ConfigError

AXES = ('data', 'fsdp', 'tensor')
ROWS = ('data', 'fsdp')
RULES = (('embed', 'fsdp'), ('heads', 'tensor'), ('kv_heads', 'tensor'), ('hidden', 'tensor'), ('vocab', 'tensor'))

Tree = TypeVar('Tree')


def make_mesh(*, data: int = 1, fsdp: int = -1, tensor: int = 1, devices: Sequence[Any] | None = None) -> Mesh:
  """A mesh with the axes `data`, `fsdp` and `tensor`; one of the sizes may be -1 for what is left.

  Where the devices form a torus, an axis of the mesh may be a part of one of its axes: 8 × 2 on a slice of 4 × 4.

  Raises:
    ConfigError: the sizes do not multiply to the number of devices, or devices that lie so make no such mesh.
  """
  devices = jax.devices() if devices is None else list(devices)
  sizes = [data, fsdp, tensor]
  require(sizes.count(-1) <= 1, f'mesh sizes {sizes} leave more than one axis open; set all but one')
  if -1 in sizes:
    sizes[sizes.index(-1)] = max(1, len(devices) // math.prod(size for size in sizes if size != -1))
  named = dict(zip(AXES, sizes, strict=True))
  require(math.prod(sizes) == len(devices), f'a mesh of {named} does not use exactly {len(devices)} devices')
  try:
    grid = mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)
  except (AssertionError, NotImplementedError, ValueError) as error:
    raise ConfigError(
      f'{len(devices)} devices that lie as these do make no mesh of {named} ({str(error)[:200]}); '
      'let fsdp and tensor be lengths of axes of the slice, or products of some of them'
    ) from error
  return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * 3)


def named_shardings(abstract: Tree, mesh: Mesh) -> Tree:
  """NamedShardings of a state by the logical axes of its parameters; an axis that the mesh does not divide stays whole.

  Args:
    abstract: arrays or shapes of parameters, or of an optimiser state that `jax.eval_shape` built from them.
  """
  with nnx.logical_axis_rules(RULES):
    named = nnx.get_named_sharding(abstract, mesh)
  return jax.tree.map(_fit, named, abstract)


def _fit(named: NamedSharding, leaf: Any) -> NamedSharding:
  axes = [axis if _divides(named.mesh, axis, leaf.shape[i]) else None for i, axis in enumerate(named.spec)]
  return NamedSharding(named.mesh, PartitionSpec(*axes))


def _divides(mesh, axes, size) -> bool:
  names = (axes,) if isinstance(axes, str) else axes or ()
  return size % math.prod(mesh.shape[name] for name in names) == 0


def rows_sharding(mesh: Mesh) -> NamedSharding:
  """Where the leading axis of a batch lies: over `data` and `fsdp`."""
  return NamedSharding(mesh, PartitionSpec(ROWS))


def row_shards(mesh: Any) -> int:
  """How many devices the rows of a batch are spread over."""
  return math.prod(mesh.shape[axis] for axis in ROWS)


def row_shards_here(rows: int) -> int:
  """Over how many devices the mesh in force spreads so many rows; 1 without a mesh, or if it does not divide them."""
  mesh = jax.sharding.get_abstract_mesh()
  return math.prod(mesh.shape[axis] for axis in ROWS) if _ours(mesh) and _divides(mesh, ROWS, rows) else 1


def on_own_rows(function: Callable[..., jax.Array], *, whole: Sequence[int] = ()) -> Callable[..., jax.Array]:
  """`function`, run by every device on its own rows; what it returns has the same rows.

  Left to the partitioner, what a loop adds up over rows is reduced over the devices at every turn of it. Here the
  gradient of an argument that is `whole` is summed up once, and each device turns as often as its own rows need.

  Args:
    function: of arrays with leading rows; it reads no mesh. The axis `tensor` stays the partitioner's.
    whole: positions of arguments that every device sees whole.
  """

  def local(*arguments):
    rows = next(x.shape[0] for i, x in enumerate(arguments) if i not in whole)
    if row_shards_here(rows) == 1:
      return function(*arguments)
    specs = tuple(PartitionSpec() if i in whole else PartitionSpec(ROWS) for i in range(len(arguments)))
    mapped = jax.shard_map(
      function, in_specs=specs, out_specs=PartitionSpec(ROWS), axis_names=set(ROWS), check_vma=False
    )
    return mapped(*arguments)

  return local


def constrain_rows(x: jax.Array) -> jax.Array:
  """`x` with its leading axis spread like a batch, where a mesh is set and divides it."""
  mesh = jax.sharding.get_abstract_mesh()
  if not _ours(mesh) or not _divides(mesh, ROWS, x.shape[0]):
    return x
  return jax.lax.with_sharding_constraint(x, PartitionSpec(ROWS, *[None] * (x.ndim - 1)))


def constrain_columns(table_VD: jax.Array) -> jax.Array:
  """A table of rows to look up with its columns whole, or the partitioner would replicate what was looked up."""
  mesh = jax.sharding.get_abstract_mesh()
  if not _ours(mesh):
    return table_VD
  axis = 'tensor' if _divides(mesh, 'tensor', table_VD.shape[0]) else None
  return jax.lax.with_sharding_constraint(table_VD, PartitionSpec(axis, None))


def attention_axes(rows: int, kv_heads: int) -> tuple[tuple[str, ...] | None, str | None]:
  """Mesh axes over which rows and heads of attention are spread; None where no mesh is set or divides them."""
  mesh = jax.sharding.get_abstract_mesh()
  if not _ours(mesh) or math.prod(mesh.shape.values()) == 1:
    return None, None
  return ROWS if _divides(mesh, ROWS, rows) else None, 'tensor' if _divides(mesh, 'tensor', kv_heads) else None


def _ours(mesh) -> bool:
  return set(AXES) <= set(mesh.axis_names) and mesh.are_all_axes_auto
