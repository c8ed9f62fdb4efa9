import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

from slca_jax.arrays import NONE, SUMMARY, TOOL
from slca_jax.ops.segments import present, segment_runs


def reference(sampled_BT, rollout_BT, rollouts, finished_R=None, unfinished='summary'):
  """Token by token, straight from the definition."""
  segment_BT, run_BT = np.full(sampled_BT.shape, NONE), np.full(sampled_BT.shape, -1)
  last_R, place = [-1] * rollouts, []
  for b, t in np.ndindex(*sampled_BT.shape):
    r = rollout_BT[b, t]
    if not sampled_BT[b, t] or r < 0:
      continue
    goes_on = t > 0 and sampled_BT[b, t - 1] and rollout_BT[b, t - 1] == r
    last_R[r] += not goes_on
    run_BT[b, t] = last_R[r]
    place.append((b, t, r))
  cut = {'summary': SUMMARY, 'tool': TOOL, 'drop': NONE}[unfinished]
  for b, t, r in place:
    final = SUMMARY if finished_R is None or finished_R[r] else cut
    segment_BT[b, t] = final if run_BT[b, t] == last_R[r] else TOOL
  return segment_BT, run_BT


@st.composite
def batches(draw):
  """Rows of prompts, rollouts and padding in any order, touching or not, shorter and longer than 32 tokens."""
  length = draw(st.sampled_from([1, 32, 70]))
  rows, rollouts = [], 0
  sampled = []
  for _ in range(draw(st.integers(1, 3))):
    row = []
    while len(row) < length:
      size = draw(st.integers(1, length))
      if draw(st.booleans()):
        row += [rollouts] * size
        rollouts += 1
      else:
        row += [-1] * size
    rows.append(row[:length])
    sampled.append(draw(st.lists(st.booleans(), min_size=length, max_size=length)))
  finished = draw(st.lists(st.booleans(), min_size=rollouts + 1, max_size=rollouts + 1))
  return np.array(sampled), np.array(rows, np.int32), np.array(finished)


# Compiled once per shape, of which there are few.
_settled = jax.jit(segment_runs, static_argnames='unfinished')
_present = jax.jit(present, static_argnums=(2, 3))


@settings(max_examples=120, deadline=None)
@given(batches(), st.sampled_from(['summary', 'tool', 'drop']))
def test_segments_are_those_of_the_token_by_token_definition(batch, unfinished):
  sampled_BT, rollout_BT, finished_R = batch
  room = np.full(3 - len(sampled_BT), False)[:, None] & sampled_BT[:1]
  sampled_BT = np.concatenate([sampled_BT, room])
  rollout_BT = np.concatenate([rollout_BT, np.full(room.shape, -1, np.int32)])
  finished_R = np.pad(finished_R, (0, 256 - len(finished_R)))
  segments = _settled(sampled_BT, rollout_BT, finished_R, unfinished=unfinished)
  segment_BT, run_BT = reference(sampled_BT, rollout_BT, 256, finished_R, unfinished)
  np.testing.assert_array_equal(segments.segment_BT, segment_BT)
  np.testing.assert_array_equal(segments.run_BT, run_BT)
  for kind in (TOOL, SUMMARY):
    has_R = np.isin(np.arange(256), rollout_BT[segment_BT == kind])
    np.testing.assert_array_equal(_present(segments, rollout_BT, kind, 256), has_R)


CASES = {
  # sampled, rollout -> segment, run
  'tool run, observation, summary': ('.1101', '00000', '.00.1', '.00.1'),
  'one run is a summary': ('.110.', '00000', '.11..', '.00..'),
  'no run': ('....', '0000', '....', '....'),
  'only padding': ('....', '----', '....', '....'),
  'padding on the left': ('...1.1', '--0000', '...0.1', '...0.1'),
  'padding on the right': ('1.1...', '0000--', '0.1...', '0.1...'),
  'padding is never sampled': ('111111', '--00--', '..11..', '..00..'),
  'touching rollouts are two runs': ('1111', '0011', '1111', '0000'),
  'touching rollouts, tool before': ('1.1111', '000111', '0.1111', '0.1000'),
  'one token': ('1', '0', '1', '0'),
  'one token that was not sampled': ('.', '0', '.', '.'),
  'observation at the end': ('1.1.', '0000', '0.1.', '0.1.'),
  'prompt between rollouts': ('1.1.1.1', '000-111', '0.1.0.1', '0.1.0.1'),
}


class CasesTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.named_parameters(*((name, *case) for name, case in CASES.items()))
  def test_case(self, sampled, rollout, segment, run):
    sampled_BT = np.array([[c == '1' for c in sampled]])
    rollout_BT = np.array([[-1 if c == '-' else int(c) for c in rollout]])
    segments = self.variant(segment_runs)(sampled_BT, rollout_BT)
    np.testing.assert_array_equal(segments.segment_BT, [[NONE if c == '.' else int(c) for c in segment]])
    np.testing.assert_array_equal(segments.run_BT, [[-1 if c == '.' else int(c) for c in run]])

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters(('summary', '0.1.0.1'), ('tool', '0.1.0.0'), ('drop', '0.1.0..'))
  def test_last_run_of_an_unfinished_rollout(self, unfinished, segment):
    sampled_BT = np.array([[True, False, True, False, True, False, True]])
    rollout_BT = np.array([[0, 0, 0, -1, 1, 1, 1]])
    finished_R = np.array([True, False])
    segments = self.variant(functools.partial(segment_runs, unfinished=unfinished))(sampled_BT, rollout_BT, finished_R)
    np.testing.assert_array_equal(segments.segment_BT, [[NONE if c == '.' else int(c) for c in segment]])
    np.testing.assert_array_equal(segments.run_BT, [[0, -1, 1, -1, 0, -1, 1]])


def test_packed_rows_give_what_separate_rows_give():
  random = np.random.default_rng(0)
  sampled_RT = random.random((12, 50)) < 0.6
  alone = _settled(sampled_RT, np.repeat(np.arange(12)[:, None], 50, 1))
  packed = _settled(sampled_RT.reshape(3, 200), np.repeat(np.arange(12), 50).reshape(3, 200))
  np.testing.assert_array_equal(packed.segment_BT.reshape(12, 50), alone.segment_BT)
  np.testing.assert_array_equal(packed.run_BT.reshape(12, 50), alone.run_BT)


def test_long_rows_need_carries_between_words_of_words():
  random = np.random.default_rng(1)
  length = 32 * 32 * 2 + 5
  for density in (0.001, 0.5, 0.9995):
    sampled_BT = random.random((2, length)) < density
    border_BT = random.random((2, length)) < 0.002
    rollout_BT = np.cumsum(border_BT.reshape(-1)).reshape(2, length)
    rollout_BT[1] += 1
    rollouts = rollout_BT.max() + 1
    segments = _settled(sampled_BT, rollout_BT)
    segment_BT, run_BT = reference(sampled_BT, rollout_BT, rollouts)
    np.testing.assert_array_equal(segments.segment_BT, segment_BT)
    np.testing.assert_array_equal(segments.run_BT, run_BT)


def test_sharded_rows_equal_a_single_device():
  mesh = jax.make_mesh((8,), ('data',), axis_types=(jax.sharding.AxisType.Auto,))
  rows = jax.NamedSharding(mesh, jax.P('data'))
  sampled_BT = np.random.default_rng(2).random((16, 100)) < 0.5
  rollout_BT = np.repeat(np.arange(32), 50).reshape(16, 100)
  segments = jax.jit(segment_runs)(jax.device_put(sampled_BT, rows), jax.device_put(rollout_BT, rows))
  jax.tree.map(np.testing.assert_array_equal, segments, _settled(sampled_BT, rollout_BT))
  has_R = _present(segments, jax.device_put(rollout_BT, rows), TOOL, 32)
  assert has_R.all()


def test_unknown_treatment_of_unfinished_rollouts_is_refused():
  sampled_BT, rollout_BT = jnp.ones((1, 2), bool), jnp.zeros((1, 2), int)
  with pytest.raises(ValueError, match=r"'tools'.*'drop'"):
    segment_runs(sampled_BT, rollout_BT, unfinished='tools')
  with pytest.raises(ValueError, match='finished_R'):
    segment_runs(sampled_BT, rollout_BT, unfinished='drop')
