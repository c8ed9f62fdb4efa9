"""The mesh, and the one place that says which axis of an array lies on which axis of the mesh.

Rows of a batch are split over `data` and `fsdp`, weights over `fsdp` (along the width) and `tensor` (along heads,
hidden units and vocabulary). A row is split only between layers, over `tensor`. A computation runs under
`jax.set_mesh(mesh)`.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from slca_jax.config import require
from slca_jax.errors import ConfigError
from slca_jax.ops.logprobs import Split

AXES = ('data', 'fsdp', 'tensor')
ROWS = ('data', 'fsdp')
_VOCAB = ('tensor', 'fsdp')  # In this order the parts of a table that lies as RULES say only move along fsdp.
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
  require(
    math.prod(sizes) == len(devices),
    f'a mesh of {named} does not use exactly {len(devices)} devices; one axis may be -1, which takes what is left',
  )
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


def constrain_rows(x: jax.Array) -> jax.Array:
  """`x` with its leading axis spread like a batch, where a mesh is set and divides it."""
  mesh = jax.sharding.get_abstract_mesh()
  if not _ours(mesh) or not _divides(mesh, ROWS, x.shape[0]):
    return x
  return jax.lax.with_sharding_constraint(x, PartitionSpec(ROWS, *[None] * (x.ndim - 1)))


def constrain_parts(x_BTD: jax.Array) -> jax.Array:
  """Rows spread like a batch and the tokens of each over `tensor`, where a mesh is set and divides them."""
  mesh = jax.sharding.get_abstract_mesh()
  if not _ours(mesh) or not _divides(mesh, ROWS, x_BTD.shape[0]):
    return x_BTD
  tokens = 'tensor' if _divides(mesh, 'tensor', x_BTD.shape[1]) else None
  return jax.lax.with_sharding_constraint(x_BTD, PartitionSpec(ROWS, tokens, None))


@jax.custom_vjp
def part_tokens(x_BTD: jax.Array) -> jax.Array:
  """The stream between layers: rows spread like a batch, and the tokens of each over `tensor`.

  It costs a gather per layer. `join_tokens` undoes it, and is its transpose. What a scan keeps for the backward pass
  lies in parts only if `constrain_parts` says so of the value that is kept.
  """
  return constrain_parts(x_BTD)


@jax.custom_vjp
def join_tokens(x_BTD: jax.Array) -> jax.Array:
  """Rows spread like a batch, each with all its tokens on every device along `tensor`."""
  return constrain_rows(x_BTD)


# A constraint's own transpose would leave the gradient as it lies, and products with it to the partitioner's guess.
part_tokens.defvjp(lambda x: (constrain_parts(x), None), lambda _, grad: (constrain_rows(grad),))
join_tokens.defvjp(lambda x: (constrain_rows(x), None), lambda _, grad: (constrain_parts(grad),))


def as_stored(module: Tree, dtype: Any, *, skip: int = 0) -> Tree:
  """The parameters of a module in `dtype`, lying as the rules say; and so does the gradient of each.

  Left to the partitioner, a gradient is summed up whole on every device, and cut to what the device keeps afterwards.

  Args:
    skip: leading axes that the parameters' logical axes name but a scan has taken away.
  """

  def place(param):
    return param.replace(_constrain(param[...].astype(dtype), param.get_metadata('out_sharding')[skip:]))

  return jax.tree.map(place, module, is_leaf=lambda node: isinstance(node, nnx.Param))


def width_first(w: jax.Array, *axes: str | None) -> jax.Array:
  """A weight of logical axes (*axes, 'embed') with its last axis first.

  For TPUs: their compiler scatters what it reduces along a leading axis, but not along the last one.
  """
  return _constrain(jnp.moveaxis(w, -1, 0), ('embed', *axes))


def _constrain(x, axes):
  mesh, rules = jax.sharding.get_abstract_mesh(), dict(RULES)
  if not _ours(mesh):
    return x
  named = [rules.get(axis) for axis in axes]
  spec = [axis if _divides(mesh, axis, size) else None for axis, size in zip(named, x.shape, strict=True)]
  return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))


def look_up(table_VD: jax.Array, tokens_BT: jax.Array) -> jax.Array:
  """table[tokens], of a table that lies as its rules say.

  Each device looks the tokens of all rows up in its own columns, and rows are exchanged for columns: that is less than
  the table, whose gradient then is not exchanged at all.
  """
  mesh, rows_of = jax.sharding.get_abstract_mesh(), functools.partial(_rows_of, table_VD.shape[0], table_VD.dtype)
  if not _ours(mesh) or not _divides(mesh, 'fsdp', table_VD.shape[1]):
    return rows_of(table_VD, tokens_BT)
  data = 'data' if _divides(mesh, 'data', tokens_BT.shape[0]) else None
  tokens_BT = jax.lax.with_sharding_constraint(tokens_BT, PartitionSpec(data, None))
  return jax.lax.with_sharding_constraint(rows_of(table_VD, tokens_BT), PartitionSpec(data, None, 'fsdp'))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _rows_of(vocab, dtype, table_VD, tokens_BT):
  return table_VD[tokens_BT]


def _rows_backward(vocab, dtype, tokens_BT, grad_BTD):
  # One by one in float32: a sum in bfloat16 stands still after some hundred of a common token's gradients.
  grad_VD = jnp.zeros((vocab, grad_BTD.shape[-1]), jnp.float32)
  return grad_VD.at[tokens_BT].add(grad_BTD.astype(jnp.float32)).astype(dtype), None


_rows_of.defvjp(lambda vocab, dtype, table_VD, tokens_BT: (table_VD[tokens_BT], tokens_BT), _rows_backward)


def split_vocabulary(unembed_VD: jax.Array, rows: int) -> tuple[jax.Array, Split | None]:
  """The unembedding, padded so that `fsdp` and `tensor` divide it, and how `token_logprobs` splits it.

  None without a mesh, on one device, or where the mesh does not divide so many rows.
  """
  mesh = jax.sharding.get_abstract_mesh()
  if not _ours(mesh) or math.prod(mesh.shape.values()) == 1 or not _divides(mesh, ROWS, rows):
    return unembed_VD, None
  short = -unembed_VD.shape[0] % math.prod(mesh.shape[axis] for axis in _VOCAB)
  return jnp.pad(unembed_VD, ((0, short), (0, 0))), Split(ROWS, _VOCAB)


def attention_axes(rows: int, kv_heads: int) -> tuple[tuple[str, ...] | None, str | None]:
  """Mesh axes over which rows and heads of attention are spread; None where no mesh is set or divides them."""
  mesh = jax.sharding.get_abstract_mesh()
  if not _ours(mesh) or math.prod(mesh.shape.values()) == 1:
    return None, None
  return ROWS if _divides(mesh, ROWS, rows) else None, 'tensor' if _divides(mesh, 'tensor', kv_heads) else None


def _ours(mesh) -> bool:
  return set(AXES) <= set(mesh.axis_names) and mesh.are_all_axes_auto
