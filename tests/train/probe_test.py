"""Gradients by segment, of a real network through the real loss: they add up, and no summary reward reaches a tool."""

import dataclasses
import functools

import chex
import jax
import numpy as np
import pytest
from flax import nnx

from slca_jax.arrays import SUMMARY, TOOL
from slca_jax.dialogue import Parsed, Scores, Status, Task, Trajectory, Turn
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.transformer import Transformer
from slca_jax.ops import losses
from slca_jax.ops.estimators import ESTIMATORS
from slca_jax.rollout.batching import to_batch
from slca_jax.rollout.settings import Layout
from slca_jax.train.probe import make_probe, segment_gradient, segmented_rows, told
from slca_jax.train.settings import Objective
from slca_jax.train.steps import Policy, make_prepare, policy_loss

CONFIG = TransformerConfig(vocab=40, layers=1, width=16, hidden=32, heads=2, kv_heads=1, head_dim=8, vocab_multiple=8)
GRAPH, PARAMS = nnx.split(Transformer(CONFIG, rngs=nnx.Rngs(0)), nnx.Param)
REFERENCE = jax.tree.map(lambda x: x + 0.01, PARAMS)
MOVED = jax.tree.map(lambda x: x * 1.01, PARAMS)  # after an update: ratios are no longer 1
NETWORK = Policy(GRAPH, CONFIG.vocab, 0.7, 8)
OBJECTIVE = Objective(kl=0.1)
TASK = Task('t', (), ())


def trajectories():
  """Two groups of four rollouts with none to two tool turns; rollout 3 of each only answers."""
  rng = np.random.default_rng(0)
  ids = lambda n: tuple(int(x) for x in rng.integers(1, CONFIG.vocab, n))
  out = []
  for group in range(2):
    prompt = ids(5)
    for index, tools in enumerate((1, 2, 1, 0)):
      turns = [
        Turn(t := ids(4), (-1.5,) * len(t), '', Parsed(), reply=ids(2) if i < tools else ()) for i in range(tools + 1)
      ]
      out.append(Trajectory(TASK, group, index, prompt, tuple(turns), Status.FINISHED))
  return out


ROLLOUTS = trajectories()
TOOLS = [0.65, 1.0, 0.9, 0.0, 0.2, 0.4, 0.3, 0.0]
JUDGED = [1.0, 0.25, 0.5, -0.5, 0.75, 0.0, 0.25, -0.5]


def rewarded(summaries):
  """The batch, its summary rewards and what a unified reward makes of them."""
  guarded = lambda summary: summary is not None and summary < 0
  total = lambda tool, summary: None if summary is None else summary if guarded(summary) else tool + summary
  scores = [Scores(t, s, total(t, s), guarded=guarded(s)) for t, s in zip(TOOLS, summaries, strict=True)]
  return to_batch(ROLLOUTS, scores, Layout((32,), 8), turns=4)


@functools.cache
def prepared(method):
  return make_prepare(NETWORK, OBJECTIVE, ESTIMATORS[method], micro_rows=8)


@functools.cache
def gradient_of(kind):
  return jax.jit(lambda rows: segment_gradient(NETWORK, OBJECTIVE, MOVED, rows, kind))


def gradients(method, summaries, kind):
  rows = segmented_rows(prepared(method)(PARAMS, REFERENCE, rewarded(summaries)))
  return jax.tree.leaves(jax.device_get(gradient_of(kind)(rows)))


def same_bits(one, other):
  return all(a.tobytes() == b.tobytes() for a, b in zip(one, other, strict=True))


def permutations():
  rng = np.random.default_rng(1)
  yield from ([JUDGED[i] for i in rng.permutation(len(JUDGED))] for _ in range(3))
  yield [None if i % 3 == 0 else 1 - summary for i, summary in enumerate(JUDGED)]  # some judges failed


def test_tool_gradient_is_the_same_to_the_last_bit_whatever_the_summary_rewards_are():
  whole = gradients('slca', JUDGED, TOOL)
  assert any(np.any(leaf) for leaf in whole)
  for summaries in permutations():
    assert same_bits(gradients('slca', summaries, TOOL), whole)
    assert not same_bits(gradients('slca', summaries, SUMMARY), gradients('slca', JUDGED, SUMMARY))


@pytest.mark.parametrize('method', ['grpo', 'summary_only'])
def test_summary_rewards_reach_the_tool_gradient_of_methods_without_isolation(method):
  whole = gradients(method, JUDGED, TOOL)
  for summaries in permutations():
    assert not same_bits(gradients(method, summaries, TOOL), whole)


def test_parts_add_up_to_the_gradient_of_the_loss():
  rows = segmented_rows(prepared('slca')(PARAMS, REFERENCE, rewarded(JUDGED)))

  def loss(params):
    return losses.masked_mean(policy_loss(NETWORK.logps(params, rows), rows, OBJECTIVE), rows['learn_BT'])

  parts = [gradient_of(kind)(rows) for kind in (TOOL, SUMMARY)]
  chex.assert_trees_all_close(
    jax.tree.map(lambda a, b: a + b, *parts), jax.jit(jax.grad(loss))(MOVED), rtol=1e-4, atol=1e-6
  )


def test_probe_is_the_cosine_of_the_parts_of_the_first_rows():
  experience = prepared('slca')(PARAMS, REFERENCE, rewarded(JUDGED))
  found = told(jax.device_get(make_probe(NETWORK, OBJECTIVE, micro_rows=8)(MOVED, experience)))
  flat = [np.concatenate([leaf.ravel() for leaf in gradients('slca', JUDGED, kind)]) for kind in (TOOL, SUMMARY)]
  norms = [float(np.linalg.norm(one)) for one in flat]
  assert found['gradient/tool_norm'] == pytest.approx(norms[0], rel=1e-4)
  assert found['gradient/summary_norm'] == pytest.approx(norms[1], rel=1e-4)
  assert found['gradient/cosine'] == pytest.approx(float(flat[0] @ flat[1]) / (norms[0] * norms[1]), abs=1e-4)


def test_probe_reads_the_first_micro_batch_alone():
  experience = prepared('slca')(PARAMS, REFERENCE, rewarded(JUDGED))
  assert (np.asarray(experience.batch.prompt_BT) >= 0).any(1).sum() > 1, 'there are further rows in use'
  spoiled = dataclasses.replace(experience, advantage_BT=experience.advantage_BT.at[1:].set(np.nan))
  probe = make_probe(NETWORK, OBJECTIVE, micro_rows=1)
  assert np.isfinite(list(jax.device_get(probe(MOVED, spoiled)).values())).all()


def test_direction_that_is_none_has_no_cosine():
  assert told({'gradient/cosine': 0.0, 'gradient/tool_norm': 0.0, 'gradient/summary_norm': 2.0}) == {
    'gradient/tool_norm': 0.0,
    'gradient/summary_norm': 2.0,
  }
