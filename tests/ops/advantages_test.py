import chex
import numpy as np
from absl.testing import parameterized
from hypothesis import given, settings
from hypothesis import strategies as st

from slca_jax.ops.advantages import group_relative, route

NAN = float('nan')
TOOL_R = np.array([0.65, 1, 1, 0.9], np.float32)


class GroupRelativeTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters(
    ([0.65, 1, 1, 0.9], [-1.437626, 0.680981, 0.680981, 0.075665]),
    ([1, 0.25, 0.5, 0.25], [1.414210, -0.707105, 0, -0.707105]),
    ([1.65, 1.25, -0.5, 1.65], [0.621458, 0.231524, -1.474439, 0.621458]),
    # Absent: the other three have mean 0.85 and std 0.180278.
    ([0.65, 1, NAN, 0.9], [-1.109394, 0.832046, 0, 0.277349]),
    # Two rewards: ±0.5 over 0.707107.
    ([0, 1, NAN, NAN], [-0.707106, 0.707106, 0, 0]),
    ([NAN, 1, NAN, NAN], [0, 0, 0, 0]),
    ([NAN, NAN, NAN, NAN], [0, 0, 0, 0]),
  )
  def test_group_of_four(self, reward_R, advantage_R):
    got_R = self.variant(group_relative)(np.array(reward_R, np.float32), np.zeros(4, int))
    np.testing.assert_allclose(got_R, advantage_R, atol=2e-6)

  @chex.variants(with_jit=True, without_jit=True)
  def test_groups_do_not_see_each_other_and_padding_gets_nothing(self):
    reward_R = np.array([0, 5, 1, 7, 9, 3], np.float32)
    got_R = self.variant(group_relative)(reward_R, np.array([2, 0, 2, 0, -1, -1]))
    half = 0.5**0.5
    np.testing.assert_allclose(got_R, [-half, -half, half, half, 0, 0], atol=2e-6)


def test_absent_rollouts_are_as_if_they_were_not_there():
  present_R = np.array([True, True, False, True])
  got_R = group_relative(np.array([0.65, 1, 0, 0.9], np.float32), np.zeros(4, int), present_R)
  np.testing.assert_allclose(got_R, [-1.109394, 0.832046, 0, 0.277349], atol=2e-6)


def test_population_deviation_divides_by_the_group_size():
  # [1, 1, 1, 0]: mean 0.75, population std sqrt(3)/4.
  got_R = group_relative(np.array([1, 1, 1, 0], np.float32), np.zeros(4, int), ddof=0)
  np.testing.assert_allclose(got_R, [0.577349, 0.577349, 0.577349, -1.732047], atol=2e-6)


@given(st.floats(-(2.0**100), 2.0**100, width=32), st.integers(1, 9), st.sampled_from([0, 1]))
@settings(max_examples=60, deadline=None)
def test_equal_rewards_give_exactly_zero(reward, size, ddof):
  got_R = group_relative(np.full(9, reward, np.float32), np.arange(9) // size, ddof=ddof)
  np.testing.assert_array_equal(got_R, np.zeros(9))


def test_rewards_that_differ_by_rounding_are_equal():
  reward_R = np.array([0.3, np.nextafter(np.float32(0.3), np.float32(1)), 0.3], np.float32)
  np.testing.assert_array_equal(group_relative(reward_R, np.zeros(3, int)), np.zeros(3))


@given(st.lists(st.floats(width=32), min_size=6, max_size=6), st.lists(st.integers(-1, 2), min_size=6, max_size=6))
@settings(max_examples=100, deadline=None)
def test_any_rewards_give_finite_advantages_that_cancel(reward, group):
  reward_R, group_R = np.array(reward, np.float32), np.array(group)
  got_R = np.asarray(group_relative(reward_R, group_R))
  assert np.isfinite(got_R).all()
  assert (got_R[(group_R < 0) | ~np.isfinite(reward_R)] == 0).all()
  for g in range(3):
    assert abs(got_R[group_R == g].sum()) < 1e-4


class RouteTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  def test_tokens_take_the_entry_of_their_rollout_and_column(self):
    table_RC = np.array([[1, 2], [3, 4]], np.float32)
    rollout_BT = np.array([[-1, 0, 0, 1, 1, 2]])
    index_BT = np.array([[0, 1, -1, 0, 2, 0]])
    np.testing.assert_array_equal(self.variant(route)(table_RC, rollout_BT, index_BT), [[0, 2, 0, 3, 0, 0]])

  @chex.variants(with_jit=True, without_jit=True)
  def test_a_table_without_columns_gives_zeros(self):
    got_BT = self.variant(route)(np.zeros((2, 0), np.float32), np.zeros((1, 3), int), np.zeros((1, 3), int))
    np.testing.assert_array_equal(got_BT, np.zeros((1, 3)))
