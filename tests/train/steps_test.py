"""The jitted steps: what a batch is cut into, packed like or placed on never changes loss or gradients."""

import dataclasses
import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from slca_jax.arrays import Experience, TrainState
from slca_jax.dialogue import Parsed, Scores, Status, Task, Trajectory, Turn
from slca_jax.nn import sharding
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.transformer import Transformer
from slca_jax.ops.estimators import ESTIMATORS, grpo, slca
from slca_jax.rollout.batching import place, to_batch
from slca_jax.rollout.settings import Layout
from slca_jax.train import policy
from slca_jax.train.settings import Objective
from slca_jax.train.steps import Policy, accumulate, batch_rows, make_prepare, make_update, map_rows, step

CONFIG = TransformerConfig(vocab=40, layers=2, width=16, hidden=32, heads=2, kv_heads=1, head_dim=8, vocab_multiple=8)
GRAPH, PARAMS = nnx.split(Transformer(CONFIG, rngs=nnx.Rngs(0)), nnx.Param)
REFERENCE = jax.tree.map(lambda x: x + 0.01, PARAMS)
NETWORK = Policy(GRAPH, CONFIG.vocab, 0.7, 8)
TASK = Task('t', (), ())


def rollouts(groups=3, size=4, seed=0):
  """Groups of trajectories with one or two tool turns and random ids, and their scores."""
  rng = np.random.default_rng(seed)
  ids = lambda n: tuple(int(x) for x in rng.integers(1, CONFIG.vocab, n))
  trajectories, scores = [], []
  for group in range(groups):
    prompt = ids(rng.integers(3, 9))
    for index in range(size):
      turns = [
        Turn(t := ids(rng.integers(1, 6)), (-1.5,) * len(t), '', Parsed(), reply=ids(3) if more else ())
        for more in [True] * rng.integers(0, 3) + [False]
      ]
      trajectories.append(Trajectory(TASK, group, index, prompt, tuple(turns), Status.FINISHED))
      tool, summary = rng.random(2)
      scores.append(Scores(float(tool), float(summary), float(tool + summary), (1.0, float(index % 2))))
  return trajectories, scores


def batch_of(trajectories, scores, *, lengths=(32, 64), micro_rows=2, shared=True):
  return to_batch(trajectories, scores, Layout(lengths, micro_rows), turns=4, shared=shared)


def loss_and_gradients(batch, *, micro_rows, estimator=slca, objective=None):
  """What an update computes before the optimiser: summed loss, gradients, and the numbers of the step."""
  objective = objective or Objective(kl=0.1)
  experience = make_prepare(NETWORK, objective, estimator, micro_rows=micro_rows)(PARAMS, REFERENCE, batch)
  # Plain descent with rate 1 makes the change of the parameters the gradient.
  update = make_update(NETWORK, objective, optax.sgd(1.0), micro_rows=micro_rows)
  state = TrainState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.copy, PARAMS), optax.sgd(1.0).init(PARAMS))
  after, numbers = update(state, experience)
  return numbers, jax.tree.map(lambda a, b: a - b, PARAMS, after.params), experience


@pytest.mark.parametrize('name', ['slca', 'grpo', 'slca_tara'])
def test_micro_batches_change_neither_loss_nor_gradients(name):
  trajectories, scores = rollouts()
  whole = batch_of(trajectories, scores, lengths=(32,), micro_rows=16)
  cut = batch_of(trajectories, scores, lengths=(32,), micro_rows=2)
  a, ga, _ = loss_and_gradients(whole, micro_rows=16, estimator=ESTIMATORS[name])
  b, gb, _ = loss_and_gradients(cut, micro_rows=2, estimator=ESTIMATORS[name])
  np.testing.assert_allclose(a['loss'], b['loss'], rtol=1e-5, atol=1e-7)
  chex.assert_trees_all_close(ga, gb, rtol=1e-4, atol=1e-6)


def test_shared_prompts_equal_repeated_prompts():
  trajectories, scores = rollouts()
  a, ga, _ = loss_and_gradients(batch_of(trajectories, scores, lengths=(64,), micro_rows=4), micro_rows=4)
  b, gb, _ = loss_and_gradients(batch_of(trajectories, scores, lengths=(32,), micro_rows=4, shared=False), micro_rows=4)
  np.testing.assert_allclose(a['loss'], b['loss'], rtol=1e-5)
  np.testing.assert_allclose(a['kl'], b['kl'], rtol=1e-5)
  chex.assert_trees_all_close(ga, gb, rtol=1e-4, atol=1e-6)


def test_mesh_equals_one_device():
  trajectories, scores = rollouts()
  batch = batch_of(trajectories, scores, lengths=(32,), micro_rows=8)
  a, ga, _ = loss_and_gradients(batch, micro_rows=8)
  mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
  with jax.set_mesh(mesh):
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(sharding.ROWS))
    # A copy: a shard that already lies on its device is not moved, and the update gives its buffer away.
    params = jax.device_put(jax.tree.map(jnp.copy, PARAMS), sharding.named_shardings(PARAMS, mesh))
    reference = jax.device_put(REFERENCE, sharding.named_shardings(REFERENCE, mesh))
    objective = Objective(kl=0.1)
    experience = make_prepare(NETWORK, objective, slca, micro_rows=8)(params, reference, place(batch, rows))
    state, shardings = policy.init_state(params, optax.sgd(1.0), mesh)
    update = make_update(NETWORK, objective, optax.sgd(1.0), micro_rows=8, shardings=shardings)
    after, b = update(state, experience)
    gb = jax.tree.map(lambda x, y: np.asarray(x) - np.asarray(y), PARAMS, after.params)
  np.testing.assert_allclose(a['loss'], b['loss'], rtol=1e-5)
  chex.assert_trees_all_close(ga, gb, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize('cuts', [(3,), (1, 1, 1), (2, 1)])
def test_token_mean_of_three_rows_is_3_125_however_cut(cuts):
  # Per-token losses 1 on 2 tokens, 2 on 4 of 6 (mask 110011), 4 on 10: (2 + 8 + 40) / 16.
  value_B, keep_BT = jnp.array([1.0, 2.0, 4.0]), np.zeros((3, 10), bool)
  keep_BT[0, :2] = keep_BT[1, [0, 1, 4, 5]] = keep_BT[2] = True
  count = keep_BT.sum()

  def loss(scale, rows):
    value_BT = scale * rows['value_BT']
    return jnp.sum(jnp.where(rows['keep_BT'], value_BT, 0)) / count, value_BT

  total, gradient = 0.0, 0.0
  start = 0
  for rows in cuts:
    part = slice(start, start + rows)
    piece = {
      'value_BT': jnp.broadcast_to(value_B[part, None], (rows, 10)),
      'keep_BT': jnp.asarray(keep_BT[part]),
      'tokens_BT': jnp.zeros((rows, 10), jnp.int32),
      'prompt_BT': jnp.zeros((rows, 10), jnp.int32),
    }
    more, slope, _ = accumulate(loss, jnp.ones(()), piece, 1)
    total, gradient, start = total + more, gradient + slope, start + rows
  np.testing.assert_allclose([total, gradient], [3.125, 3.125], rtol=1e-6)


def test_micro_batches_without_rows_are_not_computed():
  rows = {'tokens_BT': jnp.zeros((8, 4), jnp.int32), 'prompt_BT': jnp.full((8, 4), -1).at[:3].set(0)}
  poisoned = lambda piece: jnp.where(piece['prompt_BT'] >= 0, 1.0, jnp.nan)
  out = jax.jit(lambda rows: map_rows(poisoned, rows, 2))(rows)
  np.testing.assert_array_equal(out[:3], np.ones((3, 4)))
  assert np.isnan(out[3]).all() and (out[4:] == 0).all()


def test_equal_rewards_leave_the_kl_term_only():
  trajectories, scores = rollouts()
  equal = [Scores(0.65, 0.5, 1.15) for _ in scores]
  numbers, gradients, experience = loss_and_gradients(batch_of(trajectories, equal), micro_rows=2)
  assert (np.asarray(experience.advantage_BT) == 0).all()
  np.testing.assert_allclose(numbers['loss'], 0.1 * numbers['kl'], rtol=1e-6)
  without, gradients, _ = loss_and_gradients(batch_of(trajectories, equal), micro_rows=2, objective=Objective(kl=0))
  assert without['loss'] == 0 and all((np.asarray(g) == 0).all() for g in jax.tree.leaves(gradients))


def test_reward_that_is_no_number_is_absent_and_the_rest_trains():
  trajectories, scores = rollouts()
  spoiled = [dataclasses.replace(s, tool=float('nan')) if i == 1 else s for i, s in enumerate(scores)]
  numbers, gradients, experience = loss_and_gradients(batch_of(trajectories, spoiled), micro_rows=2)
  assert np.isfinite(numbers['loss']) and numbers['skipped_updates'] == 0
  assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))
  tool_BT = (experience.batch.rollout_BT == 1) & (np.asarray(experience.segments.segment_BT) == 0)
  assert (np.asarray(experience.advantage_BT)[tool_BT] == 0).all()


def test_batch_in_which_every_rollout_failed_moves_nothing_not_even_by_momentum_or_decay():
  trajectories, scores = rollouts()
  optimizer, objective = optax.adamw(1e-2, weight_decay=0.1), Objective()
  prepare = make_prepare(NETWORK, objective, slca, micro_rows=2)
  update = make_update(NETWORK, objective, optimizer, micro_rows=2)
  params = jax.tree.map(jnp.copy, PARAMS)
  state = TrainState(jnp.zeros((), jnp.int32), params, optimizer.init(params))
  state, _ = update(state, prepare(PARAMS, REFERENCE, batch_of(trajectories, scores)))
  before = jax.tree.map(np.array, state.params)
  failed = [dataclasses.replace(t, status=Status.FAILED) for t in trajectories]
  empty = prepare(state.params, REFERENCE, batch_of(failed, [Scores() for _ in failed]))
  state, numbers = update(state, empty)
  chex.assert_trees_all_equal(before, jax.tree.map(np.array, state.params))
  assert numbers['loss'] == 0 and numbers['skipped_updates'] == 1 and state.step == 2


def test_gradient_that_is_not_finite_is_skipped_and_counted():
  trajectories, scores = rollouts()
  batch = batch_of(trajectories, scores)
  experience = make_prepare(NETWORK, Objective(), grpo, micro_rows=2)(PARAMS, REFERENCE, batch)
  poisoned = dataclasses.replace(experience, advantage_BT=jnp.full_like(experience.advantage_BT, jnp.nan))
  update = make_update(NETWORK, Objective(), optax.adam(1e-2), micro_rows=2)
  state = TrainState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.copy, PARAMS), optax.adam(1e-2).init(PARAMS))
  after, numbers = update(state, poisoned)
  chex.assert_trees_all_equal(after.params, PARAMS)
  assert numbers['skipped_updates'] == 1 and after.step == 1


def test_norm_of_bfloat16_gradients_is_no_bfloat16():
  # √300 = 17.3205; bfloat16 knows 17.25 and 17.375.
  ones = nnx.State({'a': nnx.Param(jnp.ones(300, jnp.bfloat16))})
  state = TrainState(jnp.zeros((), jnp.int32), ones, optax.sgd(1.0).init(ones))
  _, numbers = step(state, ones, optax.sgd(1.0), useful=jnp.bool_(True))
  np.testing.assert_allclose(numbers['grad_norm'], 17.3205, atol=1e-4)


def test_isolation_no_summary_reward_reaches_a_tool_token():
  trajectories, scores = rollouts()
  shuffled = [dataclasses.replace(s, summary=t.summary) for s, t in zip(scores, scores[::-1], strict=True)]
  objective = Objective(kl=0.0)

  def tool_gradient(these):
    batch = batch_of(trajectories, these)
    experience = make_prepare(NETWORK, objective, slca, micro_rows=2)(PARAMS, None, batch)
    tool_BT = np.asarray(experience.segments.segment_BT) == 0
    only = dataclasses.replace(experience, advantage_BT=jnp.where(tool_BT, experience.advantage_BT, 0))
    return _gradient(only, objective), experience

  a, first = tool_gradient(scores)
  b, second = tool_gradient(shuffled)
  chex.assert_trees_all_equal(a, b)
  assert (np.asarray(first.advantage_BT) != np.asarray(second.advantage_BT)).any()


def _gradient(experience: Experience, objective: Objective):
  update = make_update(NETWORK, objective, optax.sgd(1.0), micro_rows=2)
  state = TrainState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.copy, PARAMS), optax.sgd(1.0).init(PARAMS))
  return jax.tree.map(lambda x, y: x - y, PARAMS, update(state, experience)[0].params)


def test_log_probs_are_taken_at_the_sampling_temperature():
  trajectories, scores = rollouts()
  rows = batch_rows(batch_of(trajectories, scores))
  cold = NETWORK.logps(PARAMS, rows)
  warm = dataclasses.replace(NETWORK, temperature=1.0).logps(PARAMS, rows)
  sampled = rows['sampled_BT']
  model = nnx.merge(GRAPH, PARAMS)
  hidden = model(rows['tokens_BT'], rows['prompt_BT'], rows['rollout_BT'], rows['position_BT'])
  logits = jnp.einsum('BTD,VD->BTV', hidden, model.unembedding())
  for logp_BT, temperature in ((cold, 0.7), (warm, 1.0)):
    all_BTV = jax.nn.log_softmax(logits / temperature)
    at_source = jnp.take_along_axis(all_BTV, rows['source_BT'][..., None], 1)
    wanted = jnp.take_along_axis(at_source, rows['tokens_BT'][..., None], 2)[..., 0]
    np.testing.assert_allclose(logp_BT[sampled], wanted[sampled], atol=1e-5)


def test_update_compiles_once_per_shape():
  objective = Objective()
  prepare = make_prepare(NETWORK, objective, functools.partial(slca, tool_weight=2.0), micro_rows=2)
  optimizer = optax.adam(1e-3)
  mesh = sharding.make_mesh(data=1, fsdp=1, tensor=1, devices=jax.devices()[:1])
  with jax.set_mesh(mesh):
    placed = jax.device_put(jax.tree.map(jnp.copy, PARAMS), sharding.named_shardings(PARAMS, mesh))
    state, shardings = policy.init_state(placed, optimizer, mesh)
    update = make_update(NETWORK, objective, optimizer, micro_rows=2, shardings=shardings)
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(sharding.ROWS))
    shapes = set()
    for seed in range(4):
      trajectories, scores = rollouts(seed=seed)
      batch = to_batch(trajectories, scores, Layout((64,), 2), turns=4, sharding=rows)
      state, _ = update(state, prepare(state.params, REFERENCE, batch))
      shapes.add(batch.tokens_BT.shape)
  assert update._cache_size() == prepare._cache_size() == len(shapes)


def sharded(mesh, *, micro_rows=8, optimizer=None):
  """(prepare, update, state, reference, rows) on a mesh that is in force."""
  optimizer = optimizer or optax.adam(1e-3)
  params = jax.device_put(jax.tree.map(jnp.copy, PARAMS), sharding.named_shardings(PARAMS, mesh))
  reference = jax.device_put(REFERENCE, sharding.named_shardings(REFERENCE, mesh))
  state, shardings = policy.init_state(params, optimizer, mesh)
  prepare = make_prepare(NETWORK, Objective(), slca, micro_rows=micro_rows)
  update = make_update(NETWORK, Objective(), optimizer, micro_rows=micro_rows, shardings=shardings)
  return prepare, update, state, reference, sharding.rows_sharding(mesh)


def test_parts_of_the_programs_have_names_that_a_trace_shows():
  trajectories, scores = rollouts()
  batch, optimizer = batch_of(trajectories, scores), optax.adam(1e-3)
  prepare = make_prepare(NETWORK, Objective(), slca, micro_rows=2)
  update = make_update(NETWORK, Objective(), optimizer, micro_rows=2)
  state = TrainState(jnp.zeros((), jnp.int32), PARAMS, optimizer.init(PARAMS))
  experience = jax.eval_shape(prepare, PARAMS, REFERENCE, batch)
  forward = {'attention', 'mlp', 'vocabulary'}
  for program, named in (
    (prepare.lower(PARAMS, REFERENCE, batch), forward | {'advantages'}),
    (update.lower(state, experience), forward | {'loss', 'optimizer', 'diagnostics'}),
  ):
    text = program.as_text(debug_info=True)
    assert not [name for name in named if not re.search(rf'loc\("[^"]*\b{name}\b', text)]


def test_reference_on_the_host_gives_the_log_probs_of_one_on_the_devices():
  mesh = sharding.make_mesh(data=2, fsdp=4)
  with jax.set_mesh(mesh):
    prepare, _, state, reference, rows = sharded(mesh)
    trajectories, scores = rollouts()
    batch = to_batch(trajectories, scores, Layout((32,), 8), turns=4, sharding=rows)
    held = policy.Reference(reference, placement='host')
    away = {leaf.sharding.memory_kind for leaf in jax.tree.leaves(held._params)}
    found = [
      prepare(state.params, which.fetch(), batch).ref_logp_BT
      for which in (held, policy.Reference(reference, placement='device'))
    ]
  assert away == {'pinned_host'}
  np.testing.assert_array_equal(*found)
