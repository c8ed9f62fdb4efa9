"""Laws of turn credits: the predictions that TARA makes, and what lengths that the policy chooses do to it."""

import itertools

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from absl.testing import parameterized

from slca_jax.ops.advantages import group_relative
from slca_jax.ops.turns import gated_future, turn_credits, turn_margins

NAN = float('nan')
TABLE = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 0], [0, 0, 0]], np.float32)
ONE_GROUP = np.zeros(4, int)


def test_trajectory_rewards_cannot_tell_one_wrong_turn_from_all_and_turns_can():
  solved_R = (TABLE.sum(1) == 3).astype(np.float32)
  grpo_R = np.asarray(group_relative(solved_R, ONE_GROUP, ddof=0))
  assert abs(grpo_R[1] - grpo_R[3]) < 1e-9
  np.testing.assert_allclose(grpo_R[1], -0.57735, atol=1e-5)
  credit_RK = np.asarray(turn_credits(TABLE, ONE_GROUP))
  assert credit_RK[1, 1] < 0 < min(credit_RK[1, 0], credit_RK[1, 2])
  np.testing.assert_allclose(credit_RK[1], [0.353743, -1.288672, 1], atol=6e-6)


@pytest.mark.parametrize('credit', [turn_credits, turn_margins])
@pytest.mark.parametrize('future', [[0, 0], [1, 0], [0, 1], [1, 1]])
def test_a_wrong_turn_is_never_redeemed_by_what_follows(credit, future):
  # The second turn of the last rollout is wrong; a solver is in the group.
  table = np.array([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0], [1, 0, *future]], np.float32)
  credit_RK = np.asarray(credit(table, ONE_GROUP))
  assert credit_RK[3, 1] < 0
  worst = table.copy()
  worst[3, 2:] = 0
  assert credit_RK[3, 1] == np.asarray(credit(worst, ONE_GROUP))[3, 1]


def test_a_right_turns_value_has_a_quarter_of_the_variance_and_a_wrong_ones_none():
  random = np.random.default_rng(0)
  follow = lambda first: jnp.asarray(
    np.concatenate([np.full((400_000, 1), first), random.random((400_000, 4)) < 0.6], 1), jnp.float32
  )
  value_R = lambda table, weight: table[:, 0] + weight * gated_future(table, discount=0.5)[:, 0]
  plain, ours = value_R(follow(1), 1.0), value_R(follow(1), 0.5)  # of samples of their own
  assert abs(float(jnp.var(ours) / jnp.var(plain)) - 0.25) < 0.01
  assert float(jnp.var(value_R(follow(0), 0.5))) == 0
  # γ² p(1−p) (1 + γ² + γ⁴ + γ⁶) = 0.25 · 0.24 · 1.328125 with γ = 0.5.
  np.testing.assert_allclose(jnp.var(plain), 0.0796875, rtol=0.01)


class ZeroTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.product(name=['turn_credits', 'turn_margins'], reward=[0.0, 0.3, 1.0])
  def test_turns_at_which_all_are_equal_say_nothing(self, name, reward):
    credit = {'turn_credits': turn_credits, 'turn_margins': turn_margins}[name]
    table = np.full((5, 2), reward, np.float32)
    np.testing.assert_array_equal(self.variant(credit)(table, np.zeros(5, int)), np.zeros((5, 2)))

  @chex.variants(with_jit=True, without_jit=True)
  def test_margins_are_values_less_those_of_the_others(self):
    # G of the four: [1.375, 1.25, 1], [1.125, 0, 1], [1.25, 1, 0], [0, 0, 0]; absent columns and padding are 0.
    table = [*TABLE, [1, 0, NAN], [0, 0, NAN], [1, 1, 1], [NAN] * 3]
    group_R = np.array([0] * 4 + [1] * 2 + [2, -1])
    got_RK = self.variant(turn_margins)(np.array(table, np.float32), group_R)
    value = np.array([[1.375, 1.25, 1], [1.125, 0, 1], [1.25, 1, 0], [0, 0, 0]])
    want = value - (value.sum(0) - value) / 3
    np.testing.assert_allclose(got_RK, [*want, [1, 0, 0], [-1, 0, 0], [0] * 3, [0] * 3], atol=1e-6)


def push(credit, *, going_on, right, discount, group=4):
  """The expected gradient on the logit of going on, exact: every group of a process of two lengths, by its chance.

  A rollout stops after a first turn that is right, or takes the risk of a first turn that is right with probability
  `right` and goes on to a second one, which is. Rewards are [1, 0], and [1, 1] or [0, 1].
  """
  outcomes = [([1, 0], 1 - going_on, -going_on), ([1, 1], going_on * right, 1 - going_on)]
  outcomes.append(([0, 1], going_on * (1 - right), 1 - going_on))
  groups = list(itertools.product(outcomes, repeat=group))
  table = np.array([rewards for rollouts in groups for rewards, _, _ in rollouts], np.float32)
  credit_RK = credit(table, np.repeat(np.arange(len(groups)), group), discount=discount)
  first = np.asarray(credit_RK, np.float64)[:, 0].reshape(len(groups), group)
  chance = np.array([np.prod([p for _, p, _ in rollouts]) for rollouts in groups])
  score = np.array([[slope for _, _, slope in rollouts] for rollouts in groups])
  return float((chance[:, None] * score * first).sum() / group)


@pytest.mark.parametrize('going_on', [0.1, 0.5, 0.9])
@pytest.mark.parametrize('discount', [0.1, 0.5])
def test_turn_baselines_push_towards_going_on_where_stopping_is_worth_more(going_on, discount):
  # Stopping is worth 1; going on 0.75 (1 + λγ) = 0.7875 and 0.9375, by TARA's own γ and λ.
  assert push(turn_credits, going_on=going_on, right=0.75, discount=discount) > 0.005
  assert push(turn_margins, going_on=going_on, right=0.75, discount=discount) < 0


@pytest.mark.parametrize('going_on', [0.1, 0.5, 0.9])
@pytest.mark.parametrize(('right', 'discount'), [(0.75, 0.1), (0.75, 0.5), (0.75, 0.9), (0.4, 1.0)])
def test_margins_push_exactly_as_the_values_differ(going_on, right, discount):
  slope = going_on * (1 - going_on) * (right * (1 + 0.5 * discount) - 1)
  assert push(turn_margins, going_on=going_on, right=right, discount=discount) == pytest.approx(slope, abs=1e-6)


def test_turn_baselines_do_not_hear_the_discount_of_the_last_turn():
  pushes = [push(turn_credits, going_on=0.5, right=0.75, discount=discount) for discount in (0.1, 0.5, 1.0)]
  np.testing.assert_allclose(pushes, pushes[0], rtol=1e-4)


def test_a_group_of_one_has_no_margin():
  np.testing.assert_array_equal(turn_margins(np.ones((1, 2), np.float32), np.zeros(1, int)), np.zeros((1, 2)))
