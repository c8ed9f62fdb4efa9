import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from absl.testing import parameterized

from slca_jax.arrays import NONE, SUMMARY, TOOL, Rewards
from slca_jax.ops import estimators
from slca_jax.ops.advantages import route
from slca_jax.ops.losses import masked_mean, ppo_clip
from slca_jax.ops.segments import segment_runs

# Compiled once per layout, so that the tests measure the estimators and not Python's dispatch.
ESTIMATORS = {name: jax.jit(estimator) for name, estimator in estimators.ESTIMATORS.items()}
NAN = float('nan')


@jax.jit
def every(known, segments, rollout_BT):
  """The advantages of all estimators."""
  return {name: estimator(known, segments, rollout_BT) for name, estimator in estimators.ESTIMATORS.items()}


TOOL_R, SUMMARY_R = [0.65, 1, 1, 0.9], [1, 0.25, 0.5, 0.25]
TOOL_Z, SUMMARY_Z = [-1.437626, 0.680981, 0.680981, 0.075665], [1.414210, -0.707105, 0, -0.707105]
TOTAL_Z = [1.147919, -0.601291, 0.491965, -1.038593]
TURN_RK = [[1, 1, 1], [1, 0, 1], [1, 1, 0], [0, 0, 0]]
TURN_Z = [[1.248167, 1.866019, 1], [0.353743, -1.288672, 1], [0.800955, 0.711324, -1], [-2.402865, -1.288672, -1]]


def rewards(tool=TOOL_R, summary=SUMMARY_R, outcome=None, turn=TURN_RK, guarded=None, group=None):
  rollouts = len(tool)
  outcome = np.add(tool, summary) if outcome is None else outcome
  return Rewards(
    tool_R=np.array(tool, np.float32),
    summary_R=np.array(summary, np.float32),
    outcome_R=np.array(outcome, np.float32),
    turn_RK=np.array(turn, np.float32),
    guarded_R=np.zeros(rollouts, bool) if guarded is None else np.array(guarded),
    group_R=np.zeros(rollouts, int) if group is None else np.array(group),
  )


def rows(*patterns):
  """One rollout per row: a digit-free picture of what was sampled, '-' for padding."""
  length = max(map(len, patterns))
  patterns = [pattern.ljust(length, '-') for pattern in patterns]
  sampled_BT = np.array([[c == '1' for c in pattern] for pattern in patterns])
  rollout_BT = np.array([[-1 if c == '-' else r for c in pattern] for r, pattern in enumerate(patterns)])
  return segment_runs(sampled_BT, rollout_BT), rollout_BT


def credits(advantage_BT, segments):
  """What each row's tool and summary tokens received; every token of a segment must have received the same."""
  table = []
  for advantage_T, segment_T in zip(np.asarray(advantage_BT), np.asarray(segments.segment_BT), strict=True):
    assert (advantage_T[segment_T == NONE] == 0).all()
    values = [np.unique(advantage_T[segment_T == kind]) for kind in (TOOL, SUMMARY)]
    assert all(len(value) <= 1 for value in values)
    table.append([value[0] if len(value) else 0 for value in values])
  return np.array(table).T


TWO_SEGMENTS = rows('.11.1', '1.11.1', '.1.1', '1..1')


class TableTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.named_parameters(
    ('slca', 'slca', {}, TOOL_Z, SUMMARY_Z),
    (
      'slca_weighted',
      'slca',
      {'tool_weight': 2, 'summary_weight': 0.5},
      np.multiply(2, TOOL_Z),
      np.divide(SUMMARY_Z, 2),
    ),
    ('grpo', 'grpo', {}, TOTAL_Z, TOTAL_Z),
    ('toolpo', 'toolpo', {}, np.add(TOTAL_Z, TOOL_Z), TOTAL_Z),
    ('toolpo_half', 'toolpo', {'local_weight': 0.5}, np.add(TOTAL_Z, np.divide(TOOL_Z, 2)), TOTAL_Z),
    # Totals [1.65, 1.25, 1.5, 1.15] less their mean 1.3875, and tool rewards less theirs, 0.8875.
    (
      'toolpo_centred',
      'toolpo',
      {'scaled': 0.0},
      [0.025, -0.025, 0.225, -0.225],
      [0.2625, -0.1375, 0.1125, -0.2375],
    ),
    ('rltr', 'rltr', {}, TOOL_Z, np.zeros(4)),
    ('support_closed', 'support', {}, TOOL_Z, SUMMARY_Z),
    ('support_to_tool', 'support', {'summary_to_tool': 1}, np.add(TOOL_Z, SUMMARY_Z), SUMMARY_Z),
    ('support_to_summary', 'support', {'tool_to_summary': 1}, TOOL_Z, np.add(TOOL_Z, SUMMARY_Z)),
    (
      'support_both',
      'support',
      {'summary_to_tool': 1, 'tool_to_summary': 1},
      np.add(TOOL_Z, SUMMARY_Z),
      np.add(TOOL_Z, SUMMARY_Z),
    ),
    ('summary_only', 'summary_only', {}, SUMMARY_Z, SUMMARY_Z),
    ('guard_only', 'guard_only', {}, TOOL_Z, [0, SUMMARY_Z[1], 0, 0]),
    ('tool_only', 'tool_only', {}, TOOL_Z, np.zeros(4)),
  )
  def test_route(self, name, settings, tool, summary):
    segments, rollout_BT = TWO_SEGMENTS
    known = rewards(guarded=[False, True, False, False])
    got_BT = self.variant(functools.partial(estimators.ESTIMATORS[name], **settings))(known, segments, rollout_BT)
    np.testing.assert_allclose(credits(got_BT, segments), [tool, summary], atol=4e-6)

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters(
    ('slca', [-1.109394, 0.832046, 0, 0.277349], [0.944910, -0.188982, -1.322874, 0.566946]),
    # The guarded rollout has no tool token to receive its total.
    ('grpo', [0.621458, 0.231524, 0, 0.621458], [0.621458, 0.231524, -1.474439, 0.621458]),
  )
  def test_guarded_rollout_without_tool_tokens(self, name, tool, summary):
    segments, rollout_BT = rows('11.1', '1.1', '.11', '1.1')
    known = rewards([0.65, 1, 0, 0.9], [1, 0.25, -0.5, 0.75], [1.65, 1.25, -0.5, 1.65])
    got_BT = self.variant(estimators.ESTIMATORS[name])(known, segments, rollout_BT)
    np.testing.assert_allclose(credits(got_BT, segments), [tool, summary], atol=4e-6)


def test_a_single_rollout_with_tools_has_nothing_to_compare_with():
  segments, rollout_BT = rows('11.1', '1', '1', '1')
  tool, summary = credits(ESTIMATORS['slca'](rewards(), segments, rollout_BT), segments)
  np.testing.assert_array_equal(tool, np.zeros(4))
  np.testing.assert_allclose(summary, SUMMARY_Z, atol=4e-6)


def test_a_failed_judge_is_absent_and_keeps_its_tool_credit():
  segments, rollout_BT = TWO_SEGMENTS
  tool, summary = credits(ESTIMATORS['slca'](rewards(summary=[1, NAN, 0, NAN]), segments, rollout_BT), segments)
  np.testing.assert_allclose(tool, TOOL_Z, atol=4e-6)
  np.testing.assert_allclose(summary, [0.707106, 0, -0.707106, 0], atol=4e-6)


def test_without_any_reward_every_estimator_gives_zeros():
  segments, rollout_BT = TWO_SEGMENTS
  nothing = rewards([NAN] * 4, [NAN] * 4, turn=np.full((4, 3), NAN))
  equal = rewards([0.3] * 4, [0.7] * 4, turn=np.ones((4, 3)))
  for known in (nothing, equal):
    for advantage_BT in every(known, segments, rollout_BT).values():
      np.testing.assert_array_equal(advantage_BT, np.zeros(rollout_BT.shape))


def test_packed_rows_give_what_separate_rows_give():
  random = np.random.default_rng(0)
  sampled_RT, order = random.random((12, 20)) < 0.6, random.permutation(12)
  known = rewards(*random.random((2, 12)), turn=random.random((12, 4)), group=np.arange(12) // 4)
  rollout_RT = np.repeat(np.arange(12)[:, None], 20, 1)
  packed_BT, packed_rollout_BT = sampled_RT[order].reshape(4, 60), rollout_RT[order].reshape(4, 60)
  alone = every(known, segment_runs(sampled_RT, rollout_RT), rollout_RT)
  together = every(known, segment_runs(packed_BT, packed_rollout_BT), packed_rollout_BT)
  for name, together_BT in together.items():
    np.testing.assert_array_equal(together_BT.reshape(12, 20), alone[name][order])


class TaraTest(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  def test_worked_table(self):
    got_RK = self.variant(estimators.turn_credits)(np.array(TURN_RK, np.float32), np.zeros(4, int))
    np.testing.assert_allclose(got_RK, TURN_Z, atol=6e-6)

  @chex.variants(with_jit=True, without_jit=True)
  def test_columns_beyond_a_groups_table_are_absent(self):
    # The second group's tasks have one turn fewer; padding has none.
    table = [*TURN_RK, [1, 0, NAN], [0, 0, NAN], [NAN] * 3]
    group_R = np.array([0] * 4 + [1] * 2 + [-1])
    got_RK = self.variant(estimators.turn_credits)(np.array(table, np.float32), group_R)
    np.testing.assert_allclose(got_RK, [*TURN_Z, [1, 0, 0], [-1, 0, 0], [0, 0, 0]], atol=6e-6)

  @chex.variants(with_jit=True, without_jit=True)
  @parameterized.parameters((1.0,), (0.0,))
  def test_runs_receive_the_credit_of_their_turn(self, summary_weight):
    segments, rollout_BT = rows('11.1.1.1.11', '1.1', '1.1.1', '.1')
    tara = functools.partial(estimators.tara, summary_weight=summary_weight)
    got_BT = self.variant(tara)(rewards(), segments, rollout_BT)
    a, w = TURN_Z, summary_weight
    want = np.zeros((4, 11))
    want[0, [0, 1, 3, 5]] = a[0][0], a[0][0], a[0][1], a[0][2]  # The runs after the third are beyond the table.
    want[1, [0, 2]] = a[1][0], w * a[1][1]
    want[2, [0, 2, 4]] = a[2][0], a[2][1], w * a[2][2]
    want[3, 1] = w * a[3][0]
    np.testing.assert_allclose(got_BT, want, atol=6e-6)

  @chex.variants(with_jit=True, without_jit=True)
  def test_slca_tara_gives_turns_to_tools_and_the_judge_to_summaries(self):
    segments, rollout_BT = rows('1.1.1.1.1', '1.1', '1.1', '1.1')
    weigh = functools.partial(estimators.slca_tara, tool_weight=2, summary_weight=0.5)
    got_BT = self.variant(weigh)(rewards(), segments, rollout_BT)
    want = np.zeros((4, 9))
    # The fourth tool run is beyond the table: it must not receive the summary's credit.
    want[0, [0, 2, 4, 6, 8]] = 2 * TURN_Z[0][0], 2 * TURN_Z[0][1], 2 * TURN_Z[0][2], 0, SUMMARY_Z[0] / 2
    for r in (1, 2, 3):
      want[r, [0, 2]] = 2 * TURN_Z[r][0], SUMMARY_Z[r] / 2
    np.testing.assert_allclose(got_BT, want, atol=1e-5)


def test_a_table_without_turns_is_no_error():
  segments, rollout_BT = TWO_SEGMENTS
  known = rewards(turn=np.zeros((4, 0)))
  np.testing.assert_array_equal(estimators.tara(known, segments, rollout_BT), np.zeros(rollout_BT.shape))
  _, summary = credits(estimators.slca_tara(known, segments, rollout_BT), segments)
  np.testing.assert_allclose(summary, SUMMARY_Z, atol=4e-6)


def test_dropped_runs_receive_nothing():
  sampled_BT, rollout_BT = np.array([[True, False, True]] * 4), np.repeat(np.arange(4)[:, None], 3, 1)
  segments = segment_runs(sampled_BT, rollout_BT, np.array([True, False, True, True]), unfinished='drop')
  for advantage_BT in every(rewards(), segments, rollout_BT).values():
    assert advantage_BT[1, 2] == 0


def test_tara_separates_rollouts_that_a_trajectory_reward_cannot():
  # Two rollouts with one right turn of three have the same total; the turn at which each was right tells them apart.
  table = np.array([[1, 0, 0], [0, 0, 1], [1, 1, 1], [0, 0, 0]], np.float32)
  got_RK = estimators.turn_credits(table, np.zeros(4, int))
  assert table[0].sum() == table[1].sum() and got_RK[0, 0] > 0 > got_RK[1, 0]


@functools.partial(jax.jit, static_argnames=('names', 'only'))
def gradients(params_TV, known, segments, rollout_BT, tokens_BT, names, only):
  """Of each estimator, the gradient through one segment of a policy with a softmax of its own for each position."""
  advantages = {name: estimators.ESTIMATORS[name](known, segments, rollout_BT) for name in names}
  return {name: segment_gradient(params_TV, advantages[name], segments, tokens_BT, only) for name in names}


def segment_gradient(params_TV, advantage_BT, segments, tokens_BT, only):
  def loss(params_TV):
    logp_BT = jnp.take_along_axis(jax.nn.log_softmax(params_TV)[None], tokens_BT[..., None], axis=-1)[..., 0]
    loss_BT = ppo_clip(logp_BT, jax.lax.stop_gradient(logp_BT) - 0.05, advantage_BT)
    return masked_mean(loss_BT, segments.segment_BT == only, 20)

  return jax.grad(loss)(params_TV)


def random_policy(seed):
  random = np.random.default_rng(seed)
  segments, rollout_BT = TWO_SEGMENTS
  params_TV = jnp.asarray(random.normal(size=(rollout_BT.shape[1], 7)), jnp.float32)
  return params_TV, segments, rollout_BT, random.integers(0, 7, rollout_BT.shape)


def test_tool_tokens_ignore_summary_reward():
  params_TV, *layout = random_policy(0)
  gradient = lambda known: gradients(
    params_TV, known, *layout, ('slca', 'slca_tara', 'rltr', 'tool_only', 'guard_only'), TOOL
  )
  want = gradient(rewards())
  assert all(np.abs(gradient_TV).max() > 0 for gradient_TV in want.values())
  for other in ([0, 0, 0, 1], [NAN, 3, -9, 1e9], [NAN] * 4):
    jax.tree.map(np.testing.assert_array_equal, gradient(rewards(summary=other, outcome=other)), want)


def test_summary_tokens_ignore_tool_reward():
  params_TV, *layout = random_policy(1)
  gradient = lambda known: gradients(params_TV, known, *layout, ('slca', 'slca_tara'), SUMMARY)
  want = gradient(rewards())
  assert all(np.abs(gradient_TV).max() > 0 for gradient_TV in want.values())
  other = rewards(tool=[0, 0, 9, 1], turn=np.eye(4)[:, :3])
  jax.tree.map(np.testing.assert_array_equal, gradient(other), want)


def test_under_grpo_the_summary_reward_reaches_tool_tokens():
  params_TV, *layout = random_policy(0)
  gradient = lambda known: gradients(params_TV, known, *layout, ('grpo',), TOOL)['grpo']
  assert np.abs(gradient(rewards()) - gradient(rewards(summary=[0, 0, 0, 1]))).max() > 0.01


def test_bad_tool_use_is_reinforced_under_grpo_and_punished_under_slca():
  segments, rollout_BT = TWO_SEGMENTS
  tool, _ = credits(ESTIMATORS['slca'](rewards(), segments, rollout_BT), segments)
  total, _ = credits(ESTIMATORS['grpo'](rewards(), segments, rollout_BT), segments)
  assert tool[0] < 0 < total[0]


def test_summary_noise_adds_its_squared_weight_times_the_squared_score_to_the_variance():
  # Tool credit is a under SLCA and a + w ξ with Var ξ = σ² under a unified reward: the gradients are Σ aᵢUᵢ and
  # Σ (aᵢ + w ξᵢ)Uᵢ, so Var(g_std) − Var(g_slca) = w² ‖U‖² σ².
  params_TV, segments, rollout_BT, tokens_BT = random_policy(3)
  routed = lambda tool_R: route(jnp.stack([tool_R, 0 * tool_R], 1), rollout_BT, segments.segment_BT)
  gradient = lambda tool_R: segment_gradient(params_TV, routed(tool_R), segments, tokens_BT, TOOL)
  random = np.random.default_rng(0)
  draws, weight, sigma = 20_000, 0.7, 1.3
  tool_SR, noise_SR = random.normal(size=(2, draws, 4)).astype(np.float32)
  variance = lambda credit_SR: np.asarray(jax.jit(jax.vmap(gradient))(credit_SR)).var(axis=0).sum()
  excess = variance(tool_SR + weight * sigma * noise_SR) - variance(tool_SR)
  score = np.stack([np.asarray(gradient(one_R)) for one_R in np.eye(4, dtype=np.float32)])
  np.testing.assert_allclose(excess, weight**2 * (score**2).sum() * sigma**2, rtol=0.05)


def test_opening_the_gate_adds_the_summary_credit_to_tool_tokens_and_nothing_else():
  params_TV, segments, rollout_BT, tokens_BT = random_policy(2)
  gradient = lambda advantage_BT: segment_gradient(params_TV, advantage_BT, segments, tokens_BT, TOOL)
  shut, leak = (gradient(ESTIMATORS[name](rewards(), segments, rollout_BT)) for name in ('slca', 'summary_only'))
  for weight in (0.5, 2.0):
    got = gradient(ESTIMATORS['support'](rewards(), segments, rollout_BT, summary_to_tool=weight))
    np.testing.assert_allclose(got, shut + weight * leak, atol=1e-6)


def test_sign_flips_under_grpo_exactly_when_the_summary_spreads_more_than_the_tools():
  # Two rollouts, opposed: the better tool use has the worse summary. α σ_tool is 0.5 α / √2, β σ_sum is 0.3 β / √2.
  segments, rollout_BT = rows('1.1', '1.1')
  for alpha, beta in ((1, 1), (1, 1.6), (1, 1.7), (0.5, 1), (2, 3), (2, 3.5)):
    known = rewards([1, 0.5], [0.2, 0.5], outcome=[alpha + 0.2 * beta, 0.5 * alpha + 0.5 * beta], turn=np.zeros((2, 1)))
    (total, _), _ = credits(ESTIMATORS['grpo'](known, segments, rollout_BT), segments)
    (tool, _), _ = credits(ESTIMATORS['slca'](known, segments, rollout_BT), segments)
    assert tool > 0
    assert (total < 0) == (0.3 * beta > 0.5 * alpha)


def test_future_noise_reaches_a_right_turn_by_lambda_squared_and_a_wrong_one_not_at_all():
  # Var(A_total) over the futures, the local part fixed: λ² Var(A_future) where the gate is open, 0 where it is shut.
  random = np.random.default_rng(0)
  draws = 4000
  future = (random.random((draws, 6, 2)) < 0.5).astype(np.float32)
  first = np.broadcast_to(np.array([1, 1, 1, 1, 0, 0], np.float32)[:, None], (draws, 6, 1))
  table = np.concatenate([first, future], axis=2).reshape(draws * 6, 3)
  group_R = np.repeat(np.arange(draws), 6)
  total = lambda weight: np.asarray(
    jax.jit(functools.partial(estimators.turn_credits, future_weight=weight))(table, group_R)
  )[:, 0].reshape(draws, 6)
  local, full, half = total(0.0), total(1.0), total(0.5)
  np.testing.assert_allclose((half - local).var(0), 0.25 * (full - local).var(0), rtol=1e-4)
  assert (half - local).var(0)[:4].min() > 0.01
  # A wrong turn's own future counts for nothing: only the futures of the group's right turns move its z-score.
  swapped = table.copy().reshape(draws, 6, 3)
  swapped[:, 4:, 1:] = 1 - swapped[:, 4:, 1:]
  other = np.asarray(estimators.turn_credits(swapped.reshape(-1, 3), group_R))[:, 0].reshape(draws, 6)
  np.testing.assert_array_equal(other, half)


def test_a_wrong_step_is_never_positive_when_the_group_has_a_solver():
  random = np.random.default_rng(1)
  table = (random.random((500, 4, 3)) < 0.5).astype(np.float32)
  table[:, 0] = 1
  got = np.asarray(estimators.turn_credits(table.reshape(-1, 3), np.repeat(np.arange(500), 4))).reshape(table.shape)
  wrong = got[table == 0]
  assert wrong.max() < 0 and np.isfinite(got).all()
