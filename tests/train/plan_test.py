"""Plans for simulated devices: what is compiled is the run's own, and what is added up is all that a chip holds."""

import dataclasses
import importlib.util
import json
import math

import jax
import jax.numpy as jnp
import pytest

from slca_jax.errors import ConfigError
from slca_jax.nn.config import TransformerConfig
from slca_jax.rollout.settings import Layout, Limits, LocalEngine
from slca_jax.train import chips, flops, plan, plan_report
from slca_jax.train.settings import Method, Model, Objective, RLConfig, RolloutSettings

DECODER = TransformerConfig(vocab=512, layers=2, width=64, hidden=128, heads=4, kv_heads=2, head_dim=16)
LIMITS = Limits(prompt_tokens=256, response_tokens=128, turn_tokens=64, turns=3)


def settings(**changes):
  """4 prompts in mini-batches of 2, 4 rollouts each."""
  usual = RLConfig(
    prompts=4,
    mini_batch=2,
    group_size=4,
    method=Method('slca', {'tool_weight': 1.0, 'summary_weight': 1.0}),
    model=Model(dtype='float32', attention='blocks'),
    rollout=RolloutSettings(limits=LIMITS, local=LocalEngine(context=384)),
    batching=Layout(lengths=(384,), micro_rows=4),
    objective=Objective(logprob_chunk=64),
  )
  return dataclasses.replace(usual, **changes)


@pytest.fixture(scope='module')
def target():
  return chips.describe('cpu:8')


@pytest.fixture(scope='module')
def verdict(target):
  *_, candidate = plan.candidates(settings(), DECODER, 8, shared=False)
  return plan.compile_step(DECODER, target, candidate, model='tiny')


def test_the_verdict_is_of_the_mesh_that_was_asked_for(verdict):
  assert verdict.fits and verdict.candidate.name == '4x2'
  assert verdict.candidate.config.batching.micro_rows == 4


def test_state_is_counted_by_hand(verdict):
  """Parameters lie over fsdp 4 × tensor 2; AdamW keeps two moments of each, the reference is one more copy."""
  D, F, N, K, H, L, V = 64, 128, 4, 2, 16, 2, 512
  matrices = D * H * (2 * N + 2 * K) + 3 * D * F
  sharded = 4 * (L * matrices + V * D) / 8
  norms = 4 * (L * 2 * D + D)
  memory = verdict.update.memory
  assert memory['parameters'] * plan.GIB == sharded + norms
  assert memory['reference'] == memory['gradients'] == memory['parameters']
  # Beside the moments there is a count of steps in two places.
  assert memory['optimiser'] * plan.GIB == pytest.approx(2 * (sharded + norms), abs=16)


def test_both_mini_batches_of_a_step_are_held(verdict):
  """7 arrays of the batch (one of them bool), 3 of experience and 5 bit words per token, on rows split over 4."""
  rows, T, R, K = 8, 384, 8, 3
  tokens = rows // 4 * T
  experience = tokens * (6 * 4 + 1 + 3 * 4) + 5 * (rows // 4) * (T // 32) * 4
  rollouts = R * (3 * 4 + K * 4 + 1 + 4 + 1)
  assert verdict.update.memory['batches'] * plan.GIB == 2 * (experience + rollouts)


def test_the_sum_is_what_the_compiler_says_and_what_waits_beside_it(verdict):
  update = verdict.update
  known = ('parameters', 'optimiser', 'reference', 'gradients', 'batches', 'temporaries', 'results', 'padding', 'code')
  assert set(update.memory) == set(known)
  assert update.total == sum(update.memory.values()) > 0
  assert verdict.needed == max(update.total, verdict.prepare.total)


def test_every_loop_is_known(verdict):
  assert verdict.prepare.unknown_loops == verdict.update.unknown_loops == 0


def test_executed_flops_are_counted_by_hand(verdict):
  """Two forward passes in prepare; in update one, one again for the backward pass, and two of that."""
  D, F, N, K, H, L, V = 64, 128, 4, 2, 16, 2, 512
  rows, T = 8, 384
  layers = 2 * L * (D * H * (2 * N + 2 * K) + 3 * D * F) * rows * T
  visits = (1 + 2 + 3) / 3
  one = L * rows * (T // 128) * visits * 2 * 128 * 128 * H * N  # scores, or values
  chunks = 128 // 64
  vocabulary = chunks * 2 * rows * 64 * D * V
  assert verdict.prepare.executed == 2 * (layers + 2 * one + vocabulary)
  # Backward attention: scores again, and four products, and what out · gradient sums up to. Log-probs: logits again,
  # and two products. A layer's last product is not computed again: its result is the next layer's input, which is kept.
  last = 2 * L * F * D * rows * T
  delta = 2 * L * rows * T * N * H
  assert verdict.update.executed == 4 * layers - last + (2 + 2 + 5) * one + delta + 4 * vocabulary


def test_attention_that_is_kept_is_not_computed_again(verdict):
  config, target = verdict.candidate.config, verdict.target
  mesh = plan.sharding.make_mesh(fsdp=4, tensor=2)

  def executed(remat):
    decoder = plan.numerics(dataclasses.replace(DECODER, remat=remat), config, target)
    step = plan._Step(dataclasses.replace(decoder, remat=remat), mesh, config, verdict.work, target)
    with jax.set_mesh(mesh):
      experience = jax.eval_shape(step.prepare, step.state.params, step.reference, step.batch)
      traced = step.update.trace(step.state, experience)
    return flops.executed(traced.jaxpr, step.trips)

  N, H, L, rows, T, visits = 4, 16, 2, 8, 384, (1 + 2 + 3) / 3
  scores_and_values = 2 * L * rows * (T // 128) * visits * 2 * 128 * 128 * H * N
  assert executed('full') - executed('attention') == scores_and_values


def test_needed_flops_are_those_of_one_prompt_per_group(verdict):
  assert verdict.needed_flops == 5 * flops.forward(DECODER, verdict.work.needed)
  assert verdict.needed_flops < verdict.prepare.executed + verdict.update.executed


def test_the_compiled_programs_take_what_a_run_gives_them(verdict):
  """The plan's shapes are those of a real state and batch: running on them compiles nothing else."""
  mesh = plan.sharding.make_mesh(fsdp=4, tensor=2)
  step = plan._Step(DECODER, mesh, verdict.candidate.config, verdict.work, verdict.target)
  zeros = lambda x: jax.device_put(jnp.zeros(x.shape, x.dtype), x.sharding)
  state, batch = jax.tree.map(zeros, (step.state, step.batch))
  with jax.set_mesh(mesh):
    experience = step.prepare(state.params, jax.tree.map(jnp.copy, state.params), batch)
    shapes = jax.tree.map(lambda x: (x.shape, x.dtype), experience)
    planned = jax.eval_shape(step.prepare, step.state.params, step.reference, step.batch)
  assert shapes == jax.tree.map(lambda x: (x.shape, x.dtype), planned)


def test_without_a_penalty_there_is_no_reference(verdict):
  config = dataclasses.replace(verdict.candidate.config, objective=Objective(kl=0.0, logprob_chunk=64))
  step = plan._Step(DECODER, plan.sharding.make_mesh(fsdp=4, tensor=2), config, verdict.work, verdict.target)
  assert step.reference is None and 'reference' not in step.floor()
  assert step.needed() == 4 * flops.forward(DECODER, verdict.work.needed)


def test_candidates_go_from_few_tensor_shards_and_long_rows_to_the_opposite():
  found = [(c.leaves, c.name) for c in plan.candidates(settings(), DECODER, 4, shared=True)]
  # Two groups in rows of four responses are two rows: no more than two shards of rows.
  assert found == [(4, '2x2'), (2, '4x1'), (2, '2x2'), (1, '4x1'), (1, '2x2')]


def test_prompts_that_are_repeated_leave_one_response_to_a_row():
  assert {c.leaves for c in plan.candidates(settings(), DECODER, 8, shared=False)} == {1}


def test_what_cannot_fit_is_not_compiled(target):
  small = dataclasses.replace(target, chip=dataclasses.replace(target.chip, memory=1e-4))
  candidate = next(plan.candidates(settings(), DECODER, 8, shared=False))
  found = plan.compile_step(DECODER, small, candidate, model='tiny')
  assert not found.fits and found.update is None
  assert 'not compiled: parameters' in found.why


@pytest.mark.parametrize('room', [1.01, 0.99], ids=['just enough', 'just too small'])
def test_a_program_that_compiles_may_still_not_fit(verdict, room):
  chip = dataclasses.replace(verdict.target.chip, memory=verdict.needed * room)
  found = plan.compile_step(DECODER, dataclasses.replace(verdict.target, chip=chip), verdict.candidate, model='tiny')
  assert found.fits == (room > 1)
  assert found.update is not None
  assert ('needs' in found.why) == (room < 1)


def test_a_slice_that_makes_no_such_mesh_is_said_and_remembered(target, tmp_path, monkeypatch):
  def refuse(**_):
    raise ConfigError('let fsdp and tensor be lengths of axes of the slice')

  monkeypatch.setattr(plan.sharding, 'make_mesh', refuse)
  monkeypatch.setattr(plan_report, 'describe', lambda name: target)
  for _ in range(2):
    assert not plan_report.run({'tiny': DECODER}, settings(), [('tiny', 'cpu:8', False)], tmp_path)
  rows = json.loads((tmp_path / 'plan.json').read_text())
  assert rows[0]['why'] == 'no mesh of 8x1 on cpu:8: let fsdp and tensor be lengths of axes of the slice'
  assert rows[0]['needed_gib'] is None


def test_where_nothing_fits_the_smallest_change_is_named(target):
  small = dataclasses.replace(target, name='v5e:2x4', chip=dataclasses.replace(target.chip, memory=1e-4))
  found = list(plan.search(DECODER, settings(), small, model='tiny', shared=False))
  changes = [verdict.candidate.change for verdict in found if verdict.candidate.change]
  assert [change.partition(' (')[0] for change in changes] == [
    'reference.placement=host',
    'and optimizer.momentum_dtype=bfloat16',
    'and model.param_dtype=bfloat16 optimizer.master=False',
  ]
  assert found[-1].candidate.config.reference.placement == 'host'  # each change keeps those before it
  needed = [verdict.needed for verdict in found[-4:]]
  assert needed == sorted(needed, reverse=True) and len(set(needed)) == 4
  (advice,) = plan_report.advice(found)
  assert advice.startswith('tiny does not fit v5e:2x4') and advice.endswith('plan v5e:4x4')


def test_longer_rows_are_not_compiled_where_shorter_ones_do_not_fit(target, verdict):
  """On each mesh: what rows of one response need there, rows of more responses need as well."""
  compiled = []

  def judge(decoder, target, candidate, *, model):
    compiled.append((candidate.name, candidate.leaves))
    needed = 5.0 if candidate.name == '8x1' else 3.0
    work = plan.workload(candidate.config, leaves=candidate.leaves)
    return plan.Verdict(target, model, candidate, work, needed, 'update needs much' if needed > 4 else '')

  usual = {'model': 'tiny', 'judge': judge, 'every': True}
  config = settings(prompts=16, mini_batch=16)
  before = list(plan.search(DECODER, config, target, shared=False, **usual))
  assert [(v.candidate.name, v.fits) for v in before] == [('8x1', False), ('4x2', True)]
  compiled.clear()
  found = list(plan.search(DECODER, config, target, shared=True, before=before, **usual))
  assert compiled == [('4x2', 4), ('4x2', 2), ('8x1', 1), ('4x2', 1)]
  skipped = [v for v in found if v.candidate.leaves > 1 and v.candidate.name == '8x1']
  assert len(skipped) == 2 and all(v.needed == 5.0 and not v.fits for v in skipped)
  assert skipped[0].why == 'not compiled: rows of 384 need 5.0 of 16.0 GiB'
  other = [dataclasses.replace(v, model='other') for v in before]
  compiled.clear()
  list(plan.search(DECODER, config, target, shared=True, before=other, **usual))
  assert ('8x1', 4) in compiled


def test_auto_attention_means_what_it_means_on_the_target(target):
  tpu = dataclasses.replace(target, chip=chips.CHIPS['TPU v5 lite'])
  config = settings(model=Model(attention='auto'))
  assert plan.numerics(DECODER, config, tpu).attention == 'dense'  # rows are short
  assert plan.numerics(DECODER, config, target).attention == 'blocks'
  blocky = dataclasses.replace(config, model=Model(attention='auto', attention_block=256))
  assert plan.numerics(DECODER, blocky, tpu).attention_block is None
  longer = dataclasses.replace(blocky, batching=Layout(lengths=(384, 1024), micro_rows=4))
  found = plan.numerics(DECODER, longer, tpu)
  assert (found.attention, found.attention_block) == ('splash', 256)


def test_a_report_is_written_and_what_it_says_is_not_compiled_again(tmp_path, capsys, monkeypatch):
  cases = [('tiny', 'cpu:8', False)]
  assert plan_report.run({'tiny': DECODER}, settings(), cases, tmp_path)
  (found,) = json.loads((tmp_path / 'plan.json').read_text())
  assert found['fits'] and found['mesh'] == {'data': 1, 'fsdp': 8, 'tensor': 1}
  text = (tmp_path / 'plan.md').read_text()
  assert 'Nothing ran on these chips' in text and '| tiny | cpu:8 | 8x1 |' in text
  assert '--config.mesh.fsdp=8' in capsys.readouterr().out
  monkeypatch.setattr(plan_report, 'compile_step', lambda *_, **__: pytest.fail('compiled again'))
  assert plan_report.run({'tiny': DECODER}, settings(), cases, tmp_path)
  assert (tmp_path / 'plan.md').read_text() == text


def test_repeated_and_shared_prompts_try_the_same_rows_once_and_tell_them_once(tmp_path, capsys, monkeypatch, verdict):
  compiled = []

  def judge(decoder, target, candidate, *, model):
    compiled.append((candidate.name, candidate.leaves))
    work = plan.workload(candidate.config, leaves=candidate.leaves)
    return dataclasses.replace(verdict, candidate=candidate, work=work, model=model, needed=math.inf, why='no')

  monkeypatch.setattr(plan_report, 'compile_step', judge)
  cases = [('tiny', 'cpu:8', False), ('tiny', 'cpu:8', True)]
  assert not plan_report.run({'tiny': DECODER}, settings(objective=Objective(kl=0.0)), cases, tmp_path)
  rows = json.loads((tmp_path / 'plan.json').read_text())
  assert len(compiled) == len(rows) and ('8x1', 1) in compiled
  told = [line for line in capsys.readouterr().out.splitlines() if line.startswith('tiny cpu:8 ')]
  assert len(told) == len(rows)


def test_a_report_keeps_what_it_said_of_others(tmp_path, monkeypatch, verdict):
  monkeypatch.setattr(plan_report, 'compile_step', lambda *_, model: dataclasses.replace(verdict, model=model))
  for name in ('first', 'second'):
    plan_report.run({name: DECODER}, settings(), [(name, 'cpu:8', False)], tmp_path)
  assert [row['model'] for row in json.loads((tmp_path / 'plan.json').read_text())] == ['second', 'first']


def test_the_cheapest_slice_is_by_the_hour(verdict):
  priced = lambda name, price: dataclasses.replace(
    verdict,
    target=dataclasses.replace(verdict.target, name=name, chip=dataclasses.replace(verdict.target.chip, price=price)),
  )
  found = plan_report.cheapest([priced('dear', 2.0), priced('cheap', 1.0), priced('unknown', 0.0)])
  assert found['tiny'].target.name == 'cheap'


@pytest.mark.skipif(
  importlib.util.find_spec('libtpu') is None, reason="libtpu is not installed; pip install -e '.[plan]'"
)
def test_an_axis_of_the_mesh_may_be_a_part_of_one_of_the_torus():
  devices = chips.describe('v6e:4x4').devices
  mesh = plan.sharding.make_mesh(fsdp=8, tensor=2, devices=devices)
  assert len(set(mesh.devices.flat)) == 16
  near = lambda a, b: sum(abs(x - y) for x, y in zip(a.coords, b.coords, strict=True)) == 1
  # What is split over tensor is exchanged most often, so those devices are neighbours.
  assert all(near(*pair) for pair in mesh.devices.reshape(-1, 2))
  with pytest.raises(ConfigError, match='make no mesh of'):
    plan.sharding.make_mesh(fsdp=3, tensor=1, devices=[*devices[:2], devices[7]])


@pytest.mark.skipif(
  importlib.util.find_spec('libtpu') is None, reason="libtpu is not installed; pip install -e '.[plan]'"
)
def test_a_tiny_run_is_planned_for_a_slice_that_is_not_there():
  target = chips.describe('v5e:2x2')
  config = settings(model=Model(dtype='bfloat16', attention='auto'))
  candidate = next(plan.candidates(config, DECODER, 4, shared=True))
  found = plan.compile_step(DECODER, target, candidate, model='tiny')
  assert found.fits and found.update.cycles > 0
