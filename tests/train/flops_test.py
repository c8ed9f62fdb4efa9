"""FLOPs of traced programs against counts made by hand."""

import jax
import jax.numpy as jnp
import pytest
from jax.experimental import pallas as pl
from jax.sharding import AxisType, PartitionSpec

from slca_jax.nn.config import TransformerConfig
from slca_jax.train import flops

A, B, C = 4, 8, 16
PRODUCT = 2 * A * B * C


def count(function, *shapes, trips=None, **options):
  arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
  return flops.executed(jax.jit(function).trace(*arguments).jaxpr, trips or {}, **options)


def test_a_product_counts_two_per_multiplication_and_addition():
  assert count(jnp.matmul, (A, B), (B, C)) == PRODUCT


def test_batches_multiply():
  assert count(lambda x, y: jnp.einsum('nab,nbc->nac', x, y), (3, A, B), (3, B, C)) == 3 * PRODUCT


def test_a_scan_counts_its_length():
  assert count(lambda x, y: jax.lax.scan(lambda c, _: (c, x @ y), 0, length=5)[1], (A, B), (B, C)) == 5 * PRODUCT


def test_a_loop_whose_length_is_data_counts_as_its_file_is_said_to():
  loop = lambda x, y: jax.lax.while_loop(lambda c: c.sum() < 1, lambda c: c @ y, x)
  assert count(loop, (A, B), (B, B)) == 2 * A * B * B
  assert count(loop, (A, B), (B, B), trips={'flops_test.py': 6}) == 6 * 2 * A * B * B


def test_what_nobody_reads_is_not_executed():
  def two(x, y):
    dead = x @ y
    return (x + dead * 0.0, x)[1]

  assert count(two, (A, B), (B, B)) == 0


def test_recomputation_counts():
  y = lambda w, x: jnp.tanh(x @ w) @ w
  plain = lambda w, x: jax.value_and_grad(lambda w: y(w, x).sum())(w)
  saved = lambda w, x: jax.value_and_grad(lambda w: jax.checkpoint(y)(w, x).sum())(w)
  one = 2 * A * B * B
  assert count(saved, (B, B), (A, B)) - count(plain, (B, B), (A, B)) == one  # the last product is not needed again


def test_devices_multiply_what_each_of_them_does():
  mesh = jax.make_mesh((4, 2), ('x', 'y'), axis_types=(AxisType.Auto,) * 2)
  local = jax.shard_map(
    jnp.matmul, mesh=mesh, in_specs=(PartitionSpec('x'), PartitionSpec()), out_specs=PartitionSpec('x'), check_vma=False
  )
  # Rows are split over x; both devices along y do the same work, and do it.
  assert count(local, (4 * A, B), (B, C)) == 2 * 4 * PRODUCT


def test_axes_that_stay_with_the_partitioner_are_whole_inside():
  mesh = jax.make_mesh((4, 2), ('x', 'y'), axis_types=(AxisType.Auto,) * 2)
  local = jax.shard_map(
    jnp.matmul,
    mesh=mesh,
    in_specs=(PartitionSpec('x'), PartitionSpec()),
    out_specs=PartitionSpec('x'),
    axis_names={'x'},
    check_vma=False,
  )
  assert count(local, (4 * A, B), (B, C)) == 4 * PRODUCT


def test_the_longer_branch_counts():
  branch = lambda x, y: jax.lax.cond(x.sum() > 0, lambda: x @ y @ y, lambda: x @ y)
  assert count(branch, (A, B), (B, B)) == 2 * 2 * A * B * B


def kernel(x_ref, y_ref, out_ref):
  out_ref[...] = x_ref[...] @ y_ref[...]


@pytest.mark.parametrize(('visited', 'tiles'), [(1.0, 6), (0.5, 3), (0.0, 0)], ids=['all', 'half', 'none'])
def test_a_kernel_counts_the_tiles_of_its_grid_that_are_visited(visited, tiles):
  call = pl.pallas_call(
    kernel,
    grid=(6,),
    in_specs=[pl.BlockSpec((A, B), lambda i: (i, 0)), pl.BlockSpec((B, C), lambda i: (0, 0))],
    out_specs=pl.BlockSpec((A, C), lambda i: (i, 0)),
    out_shape=jax.ShapeDtypeStruct((6 * A, C), jnp.float32),
    interpret=True,
  )
  assert count(call, (6 * A, B), (B, C), visited=visited) == tiles * PRODUCT


def test_a_forward_pass_needs_what_the_hand_counts():
  config = TransformerConfig(vocab=100, layers=3, width=8, hidden=20, heads=4, kv_heads=2, head_dim=2)
  load = flops.Load(tokens=10, pairs=55, sampled=4)
  # q and o are 8 × 8, k and v 8 × 4, three of the feed-forward 8 × 20: 672 a layer.
  layers = 2 * 3 * 672 * 10
  attention = 3 * (2 * 2 * 4 * 2) * 55  # scores and values, 4 heads of 2 channels
  vocabulary = 2 * 8 * 100 * 4
  assert flops.forward(config, load) == layers + attention + vocabulary
