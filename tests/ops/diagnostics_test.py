import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np

from slca_jax.arrays import Rewards
from slca_jax.ops import diagnostics
from slca_jax.ops.segments import segment_runs

NAN = float('nan')
SAMPLED_BT = np.array([[False, True, True, False, True, True]])
SEGMENTS = segment_runs(SAMPLED_BT, np.zeros((1, 6), np.int32))


class PolicyMetricsTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  def test_each_segment_is_measured_on_its_own_tokens(self):
    ratio_BT = np.array([[9, 0.5, 1.5, 9, 1, 1]], np.float32)
    old_BT = np.array([[-9, -1, -2, -9, -3, -5]], np.float32)
    logp_BT = old_BT + np.log(ratio_BT)
    advantage_BT = np.array([[9, 1, 3, 9, -1, -1]], np.float32)
    got = self.variant(diagnostics.policy_metrics)(logp_BT, old_BT, logp_BT, advantage_BT, SEGMENTS)
    want = {
      'tool/ratio': 1,
      'tool/clip': 0.5,  # 1.5 with A > 0; 0.5 with A > 0 is free to rise.
      'tool/kl': 0,
      'tool/ess': 4 / (2 * 2.5),
      'tool/advantage_mean': 2,
      'tool/advantage_std': 1,
      'tool/entropy': 1.5,
      'tool/tokens': 2,
      'summary/ratio': 1,
      'summary/clip': 0,
      'summary/kl': 0,
      'summary/ess': 1,
      'summary/advantage_mean': -1,
      'summary/advantage_std': 0,
      'summary/entropy': 4,
      'summary/tokens': 2,
    }
    assert got.keys() == want.keys()
    for name, value in want.items():
      np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6, err_msg=name)

  @chex.variants(with_jit=True, without_jit=True)
  def test_a_batch_without_tokens_measures_zero(self):
    empty = segment_runs(np.zeros((1, 6), bool), np.zeros((1, 6), np.int32))
    x_BT = np.full((1, 6), NAN, np.float32)
    got = self.variant(diagnostics.policy_metrics)(x_BT, x_BT, x_BT, x_BT, empty)
    assert all(value == 0 for value in got.values())

  @chex.variants(with_jit=True, without_jit=True)
  def test_sampler_gap(self):
    old_BT = np.array([[NAN, -1, -2, NAN, -3, -4]], np.float32)
    sampler_BT = old_BT + np.array([[0, 0.5, 0, 0, 0, -1]], np.float32)
    gap = functools.partial(diagnostics.sampler_gap, turns=3)
    got = self.variant(gap)(old_BT, sampler_BT, SEGMENTS)
    # k3 at d = −0.5 and 1: 0.106531 and 0.718282; the two tool tokens are turn 0, the two summary tokens turn 1.
    ess = lambda *gaps: np.exp(gaps).sum() ** 2 / (len(gaps) * np.exp(gaps * np.array(2)).sum())
    want = {
      'sampler': (0.375, 1, 0.206203, ess(-0.5, 0, 0, 1), 4),
      'sampler/tool': (0.25, 0.5, 0.0532653, ess(-0.5, 0), 2),
      'sampler/summary': (0.5, 1, 0.359141, ess(0, 1), 2),
      'sampler/turn_0': (0.25, 0.5, 0.0532653, ess(-0.5, 0), 2),
      'sampler/turn_1': (0.5, 1, 0.359141, ess(0, 1), 2),
      'sampler/turn_2': (0, 0, 0, 0, 0),
    }
    assert len(got) == 5 * len(want)
    for name, values in want.items():
      for part, value in zip(('gap_mean', 'gap_max', 'kl', 'ess', 'tokens'), values, strict=True):
        np.testing.assert_allclose(got[f'{name}/{part}'], value, rtol=1e-4, err_msg=f'{name}/{part}')


class GroupMetricsTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  def test_presence_death_and_conflict(self):
    # Group 0: tools 0 < 1, judge 1 > 0: both rollouts in conflict. Group 1: the third's judge failed and the fourth has
    # no tool run, so neither segment has two to compare. The last rollout is padding.
    sampled_BT = np.array([[1, 0, 1], [1, 0, 1], [1, 0, 1], [0, 1, 1], [1, 0, 1]], bool)
    rollout_BT = np.repeat(np.arange(5)[:, None], 3, 1)
    rewards = Rewards(
      tool_R=np.array([0, 1, 1, 0, 7], np.float32),
      summary_R=np.array([1, 0, NAN, 1, 7], np.float32),
      outcome_R=np.array([2, 1, 1, 0, 7], np.float32),
      turn_RK=np.zeros((5, 0), np.float32),
      guarded_R=np.zeros(5, bool),
      group_R=np.array([0, 0, 1, 1, -1]),
    )
    metrics = self.variant(diagnostics.group_metrics)(rewards, segment_runs(sampled_BT, rollout_BT), rollout_BT)
    want = {
      'tool/group_size': 1.5,
      'summary/group_size': 1.5,
      'tool/dead_groups': 1,
      'summary/dead_groups': 1,
      # Three rollouts have a segment and a reward on both sides, but the third's judge failed.
      'conflict/tool_down_summary_up': 0.5,
      'conflict/tool_up_summary_down': 0.5,
      # Four rollouts have a tool token; the outcome turns those of group 0, no tool reward moves the others.
      'conflict/tool_tokens_turned': 0.5,
    }
    assert metrics.keys() == want.keys()
    for name, value in want.items():
      np.testing.assert_allclose(metrics[name], value, err_msg=name)


class GradientCosineTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  def test_angle_over_the_whole_tree(self):
    one = {'a': np.array([3.0, 0]), 'b': np.array([[4.0]])}
    other = {'a': np.array([0, 7.0]), 'b': np.array([[-1.0]])}
    got = self.variant(diagnostics.gradient_cosine)(one, other)
    np.testing.assert_allclose(got['gradient/cosine'], -4 / (5 * 50**0.5), rtol=1e-6)
    np.testing.assert_allclose(got['gradient/tool_norm'], 5)
    np.testing.assert_allclose(got['gradient/summary_norm'], 50**0.5, rtol=1e-6)
    zero = jax.tree.map(np.zeros_like, one)
    assert self.variant(diagnostics.gradient_cosine)(one, zero)['gradient/cosine'] == 0


def test_effective_share_of_absurd_weights_is_finite():
  here_N = jnp.ones(4, bool)
  share = functools.partial(diagnostics.effective_share, here_BT=here_N)
  np.testing.assert_allclose(share(jnp.full(4, 1e30)), 1, rtol=1e-6)
  np.testing.assert_allclose(share(jnp.array([1e30, 0, 0, 0])), 0.25, rtol=1e-6)
  np.testing.assert_allclose(share(jnp.full(4, 1e-30)), 1, rtol=1e-6)
