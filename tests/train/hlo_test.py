"""What is read off compiled programs, against small ones that this machine compiles."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, PartitionSpec

from slca_jax.train import hlo

_F32 = jnp.float32


def compiled(function, *shapes):
  """The optimised text of a function of float32 arrays of these shapes."""
  arguments = [jax.ShapeDtypeStruct(shape, _F32) for shape in shapes]
  return jax.jit(function).lower(*arguments).compile().as_text()


@pytest.fixture(scope='module')
def mesh():
  return jax.make_mesh((8,), ('x',), axis_types=(AxisType.Auto,))


def spread(mesh, function, *, out=None):
  return jax.shard_map(
    function, mesh=mesh, in_specs=PartitionSpec('x'), out_specs=out or PartitionSpec(), check_vma=False
  )


def test_an_all_reduce_sends_its_array_twice(mesh):
  text = compiled(spread(mesh, lambda x: jax.lax.psum(x, 'x')), (8, 16))
  assert hlo.work(text, {}).sent == {'all-reduce': 2 * 16 * 4}


def test_a_gather_counts_what_it_brings_together(mesh):
  text = compiled(spread(mesh, lambda x: jax.lax.all_gather(x, 'x')), (8, 16))
  assert hlo.work(text, {}).sent == {'all-gather': 8 * 16 * 4}


def test_a_reduce_scatter_counts_what_it_takes_in(mesh):
  scatter = spread(mesh, lambda x: jax.lax.psum_scatter(x[0], 'x', tiled=True), out=PartitionSpec('x'))
  text = compiled(scatter, (8, 16))
  sent = hlo.work(text, {}).sent
  # A compiler may write it as an all-reduce of the whole array, of which each device keeps its part.
  assert sent in ({'reduce-scatter': 16 * 4}, {'all-reduce': 2 * 16 * 4})


def test_a_loop_of_known_length_counts_as_often_as_it_turns(mesh):
  def local(x):
    return jax.lax.scan(lambda c, _: (jax.lax.psum(c, 'x') * 0.5, None), x, length=7)[0]

  assert hlo.work(compiled(spread(mesh, local), (8, 16)), {}).sent == {'all-reduce': 7 * 2 * 16 * 4}


def looping(x, turns):
  """Doubles x as often as the value of turns says."""
  return jax.lax.fori_loop(0, turns, lambda _, c: jax.lax.psum(c, 'x') * 0.5, x)


@pytest.mark.parametrize(('trips', 'turns', 'unknown'), [({}, 1, 1), ({'hlo_test.py': 5}, 5, 0)])
def test_a_loop_whose_length_is_data_turns_as_often_as_its_file_is_said_to(mesh, trips, turns, unknown):
  specs = PartitionSpec('x'), PartitionSpec()
  local = jax.shard_map(looping, mesh=mesh, in_specs=specs, out_specs=PartitionSpec('x'), check_vma=False)
  arguments = jax.ShapeDtypeStruct((8, 16), _F32), jax.ShapeDtypeStruct((), jnp.int32)
  found = hlo.work(jax.jit(local).lower(*arguments).compile().as_text(), trips)
  assert found.sent == {'all-reduce': turns * 2 * 16 * 4}
  assert found.unknown_loops == unknown


def test_the_largest_value_is_named_first_with_its_bytes():
  text = compiled(lambda x, y: (x @ y) @ y.T, (64, 8), (8, 512))
  size, shape, name = hlo.largest(text)[0]
  assert (size, shape) == (64 * 512 * 4, 'f32[64,512]')
  assert 'dot_general' in name


def test_values_inside_a_fusion_are_never_in_memory():
  text = '\n'.join(
    [
      'HloModule m',
      '',
      '%fused (p: f32[4]) -> f32[4] {',
      '  %p = f32[4]{0} parameter(0)',
      '  %wide = f32[4,1000]{1,0} broadcast(%p), dimensions={0}',
      '  ROOT %sum = f32[4]{0} reduce(%wide), dimensions={1}',
      '}',
      '',
      'ENTRY %main (a: f32[4]) -> f32[4] {',
      '  %a = f32[4]{0} parameter(0)',
      '  ROOT %f = f32[4]{0} fusion(%a), kind=kLoop, calls=%fused, metadata={op_name="jit(f)/sum"}',
      '}',
      '',
    ]
  )
  assert hlo.largest(text) == [(16, 'f32[4]', 'jit(f)/sum')]


TPU_LIKE = """HloModule step, is_scheduled=true

FileNames
1 "/somewhere/steps.py"
2 "/somewhere/attention.py"

FunctionNames
1 "accumulate"
2 "_blocks"

FileLocations
1 {file_name_id=1 function_name_id=1 line=5 end_line=5 column=1 end_column=2}
2 {file_name_id=2 function_name_id=2 line=6 end_line=6 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

%part.1 (p: bf16[2]) -> bf16[8] {
  %p = bf16[2]{0} parameter(0)
  %g.1 = bf16[8]{0} all-gather(%p), channel_id=9, replica_groups=[1,4]<=[4], dimensions={0}
  ROOT %c = bf16[8]{0} custom-call(%g.1), custom_call_target="AsyncCollectiveStart"
}

%part.2 (p: bf16[8]) -> bf16[8] {
  %p.1 = bf16[8]{0} parameter(0)
  ROOT %g.2 = bf16[8]{0} all-gather(%p.1), channel_id=9, replica_groups=[1,4]<=[4], dimensions={0}
}

%inner_cond (a: s32[]) -> pred[] {
  %a = s32[] parameter(0)
  ROOT %less = pred[] compare(%a, %a), direction=LT
}

%inner (a: s32[]) -> s32[] {
  %a.1 = s32[] parameter(0)
  %k = s32[] custom-call(%a.1), custom_call_target="tpu_custom_call", backend_config={"custom_call_config": {
"body": "a kernel's text
}
spans lines"}}
  ROOT %b = s32[] add(%a.1, %a.1), backend_config={"estimated_cycles":"10"}
}

%outer_cond (a: s32[]) -> pred[] {
  %a.2 = s32[] parameter(0)
  %n = s32[] constant(3)
  ROOT %less.1 = pred[] compare(%a.2, %n), direction=LT
}

%outer (a: s32[]) -> s32[] {
  %a.3 = s32[] parameter(0)
  %s = bf16[8]{0} fusion(%a.3), kind=kCustom, calls=%part.1, backend_config={"estimated_cycles":"100"}
  %d = bf16[8]{0} fusion(%s), kind=kCustom, calls=%part.2, backend_config={"estimated_cycles":"100"}
  ROOT %w = s32[] while(%a.3), condition=%inner_cond, body=%inner, metadata={op_name="x" stack_frame_id=2}
}

ENTRY %main (a: s32[]) -> s32[] {
  %a.4 = s32[] parameter(0)
  ROOT %v = s32[] while(%a.4), condition=%outer_cond, body=%outer, metadata={op_name="y" stack_frame_id=1}
}
"""


def test_cycles_and_kernels_count_once_for_every_turn_of_nested_loops():
  found = hlo.work(TPU_LIKE, {'attention.py': 4, 'steps.py': 1000})
  # The outer loop's constant decides, whatever is said of its file: 3 · (100 + 100 + 4 · 10).
  assert found.cycles == 3 * (200 + 4 * 10)
  assert found.kernels == 3 * 4
  assert found.unknown_loops == 0


def test_a_collective_that_is_spread_over_fusions_counts_once():
  assert hlo.work(TPU_LIKE, {'attention.py': 4}).sent == {'all-gather': 3 * 16}


def test_a_fused_all_reduce_and_slice_counts_as_a_reduce_scatter():
  text = '\n'.join(
    [
      'HloModule m',
      '',
      '%all-reduce-scatter.2.clone (x: bf16[64,8]) -> bf16[16,8] {',
      '  %x = bf16[64,8]{1,0} parameter(0)',
      '  %whole = bf16[64,8]{1,0} all-reduce(%x), channel_id=3, replica_groups={{0,1,2,3}}, to_apply=%add',
      '  ROOT %own = bf16[16,8]{1,0} dynamic-slice(%whole, %x), dynamic_slice_sizes={16,8}',
      '}',
      '',
      'ENTRY %main (a: bf16[64,8]) -> bf16[16,8] {',
      '  %a = bf16[64,8]{1,0} parameter(0)',
      '  ROOT %f = bf16[16,8]{1,0} fusion(%a), kind=kCustom, calls=%all-reduce-scatter.2.clone',
      '}',
      '',
    ]
  )
  assert hlo.work(text, {}).sent == {'reduce-scatter': 64 * 8 * 2}


@pytest.mark.parametrize(
  ('groups', 'size'),
  [
    ('replica_groups={{0,1,2,3},{4,5,6,7}}', 4),
    ('replica_groups=[2,8]<=[16]', 8),
    ('replica_groups=[4,2]<=[2,4]T(1,0)', 2),
    ("replica_groups=mesh['a'=4,'b'=2] {'a'}", 4),
    ("replica_groups=mesh['a'=4,'b'=2] {'a','b'}", 8),
    ('channel_id=3', 1),
  ],
  ids=['listed', 'iota', 'transposed', 'named', 'two names', 'none'],
)
def test_groups_are_read_in_all_their_spellings(groups, size):
  line = f'  ROOT %r = f32[2]{{0}} reduce-scatter(%a), {groups}, dimensions={{0}}'
  text = f'HloModule m\n\nENTRY %main (a: f32[8]) -> f32[2] {{\n  %a = f32[8]{{0}} parameter(0)\n{line}\n}}\n'
  assert hlo.work(text, {}).sent == {'reduce-scatter': 8 * size}


@pytest.mark.parametrize(
  ('message', 'sizes'),
  [
    ('RESOURCE_EXHAUSTED: HLO temporaries (19.13G) exceeds available HBM (15.75G)', (19.13, 15.75)),
    ('Used 512.00M of 15.75G hbm. Exceeded hbm capacity', (0.5, 15.75)),
    ('INTERNAL: something else', None),
  ],
  ids=['temporaries', 'allocations', 'other'],
)
def test_out_of_memory_is_told_from_other_errors(message, sizes):
  assert hlo.exceeded(message) == sizes


def test_a_text_without_a_program_is_refused():
  with pytest.raises(ValueError, match='no ENTRY'):
    hlo.work('', {})


def test_the_reader_and_the_compiler_agree_on_a_program_without_loops(mesh):
  function = functools.partial(jnp.einsum, 'ab,bc->ac')
  text = compiled(function, (4, 8), (8, 16))
  assert hlo.work(text, {}) == hlo.Work(0.0, {}, 0.0, 0)
