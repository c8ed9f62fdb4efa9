"""Supervised training: what is learned, and that a killed run goes on bit for bit."""

import dataclasses
import json
import os
import pathlib
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slca_jax.config import as_dict
from slca_jax.data.sft import encode
from slca_jax.data.tasks import Order, read_dialogues, write_dialogues
from slca_jax.dialogue import Dialogue, Message
from slca_jax.errors import ConfigError, DataError
from slca_jax.nn.config import TransformerConfig
from slca_jax.quickstart.demonstrations import demonstrate
from slca_jax.quickstart.start import write_start
from slca_jax.quickstart.world import make_task
from slca_jax.rollout.batching import supervised
from slca_jax.rollout.settings import Layout, Limits, LocalEngine
from slca_jax.train import loader, policy, sft
from slca_jax.train import settings as s
from slca_jax.train.evaluate import evaluate
from slca_jax.train.export import export
from slca_jax.train.loader import RowBatches, heldout_batches, make_batch, tree
from slca_jax.train.run import Stop
from slca_jax.train.steps import Policy, make_measure

pytestmark = pytest.mark.timeout(1800)

NETWORK = TransformerConfig(layers=1, width=16, hidden=32, heads=2, kv_heads=1, head_dim=8, context=512)
MESH = s.MeshShape(data=2, fsdp=2, tensor=2)
LONG = Dialogue('long', (), (Message('user', 'Say it.'), Message('assistant', 'so ' * 400)))


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('sft')
  write_start(folder / 'start', seed=0, network=NETWORK, samples=30)
  tasks = [make_task(0, 'train', index) for index in range(12)]
  write_dialogues([Dialogue(t.id, t.tools, demonstrate(t)) for t in tasks], folder / 'train.jsonl')
  return folder


def config(folder, output, **changes):
  values = {
    'output': str(folder / output),
    'steps': 4,
    'batch': 5,
    'model': s.Model(str(folder / 'start'), dtype='float32', remat='none'),
    'mesh': MESH,
    'data': s.Demonstrations(str(folder / 'train.jsonl'), str(folder / 'train.jsonl')),
    'batching': Layout((256,), 4),
    'optimizer': s.Optimizer(learning_rate=1e-2),
    'checkpoint': s.Checkpointing(every=1),
  }
  return s.SFTConfig(**{**values, **changes})


class StopAfter:
  """Asks the run to stop once it has written a number of steps."""

  failure = ''

  def __init__(self, metrics, steps):
    self._metrics, self._steps = metrics, steps

  @property
  def requested(self):
    return self._metrics.exists() and self._metrics.read_text().count('\n') >= self._steps

  def listening(self):
    import contextlib

    return contextlib.nullcontext(self)


def test_stopped_run_goes_on_bit_for_bit_and_the_loss_falls(folder):
  sft.train(config(folder, 'whole'))
  stop = StopAfter(folder / 'halves' / 'metrics.jsonl', 2)
  sft.train(config(folder, 'halves'), stop=stop)
  assert not (folder / 'halves' / 'model').exists()
  sft.train(config(folder, 'halves'))
  lines = [
    [json.loads(line) for line in (folder / run / 'metrics.jsonl').read_text().splitlines()]
    for run in ('whole', 'halves')
  ]
  assert lines[0] == lines[1] and [line['step'] for line in lines[0]] == [1, 2, 3, 4]
  weights = [(folder / run / 'model' / 'model.safetensors').read_bytes() for run in ('whole', 'halves')]
  assert weights[0] == weights[1]
  assert lines[0][-1]['loss'] < lines[0][0]['loss'] and 'heldout_loss' in lines[0][-1]


@pytest.mark.parametrize('rows', [0, 4])
def test_ids_on_disk_train_as_dialogues_in_memory_do(folder, rows, monkeypatch):
  name = f'disk{rows}'
  write_dialogues([*read_dialogues(folder / 'train.jsonl'), LONG], folder / f'{name}.jsonl')
  data = s.Demonstrations(str(folder / f'{name}.jsonl'), str(folder / 'train.jsonl'))
  changes = {'packing': s.Packing(rows=rows, window=6), 'batching': Layout((256,), rows or 4), 'data': data}
  there = dataclasses.replace(data, encoded=str(folder / f'{name}-ids'))
  sft.train(config(folder, f'{name}-memory', **changes))
  sft.train(config(folder, f'{name}-once', **changes | {'data': there}))
  monkeypatch.setattr(sft, 'read_dialogues', lambda path: pytest.fail(path) if name in path else [])
  monkeypatch.setattr(loader, 'stream_dialogues', lambda path: map(pytest.fail, [path]))  # they are encoded
  half = config(folder, f'{name}-again', **changes | {'data': there})
  sft.train(half, stop=StopAfter(folder / f'{name}-again' / 'metrics.jsonl', 2))
  sft.train(half)
  weights = [
    (folder / f'{name}-{run}' / 'model' / 'model.safetensors').read_bytes() for run in ('memory', 'once', 'again')
  ]
  assert weights[0] == weights[1] == weights[2]


RUN = """
import json, pathlib, sys
from slca_jax.config import build
from slca_jax.train.settings import SFTConfig
from slca_jax.train.sft import train
train(build(SFTConfig, json.loads(pathlib.Path(sys.argv[1]).read_text())))
"""
ROWS = {'batching': Layout((256,), 2), 'packing': s.Packing(rows=2, window=6)}


def start(folder, output, **changes):
  """The run as a process of its own, on one device."""
  settings = config(folder, output, mesh=s.MeshShape(1, 1, 1), **changes)
  path = folder / f'{output}.json'
  path.write_text(json.dumps(as_dict(settings)))
  environment = {**os.environ, 'XLA_FLAGS': '', 'JAX_PLATFORMS': 'cpu'}
  command = [sys.executable, '-c', RUN, str(path)]
  return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(process):
  out, _ = process.communicate(timeout=600)
  assert process.returncode == 0, out.decode()[-3000:]


def test_run_over_full_rows_that_is_killed_goes_on_bit_for_bit(folder):
  # 12 dialogues fill 5 or 6 rows of 256, so that step 3 of 2 rows reaches into the second epoch.
  changes = {**ROWS, 'steps': 6, 'eval_every': 2}
  finish(start(folder, 'rows_whole', **changes))
  metrics = folder / 'rows_killed' / 'metrics.jsonl'
  process, end = start(folder, 'rows_killed', **changes), time.monotonic() + 600
  while not (metrics.exists() and metrics.read_text().count('\n') >= 3) and process.poll() is None:
    assert time.monotonic() < end, 'the run did not get there'
    time.sleep(0.01)
  process.kill()
  process.communicate()
  finish(start(folder, 'rows_killed', **changes))
  whole, killed = folder / 'rows_whole', folder / 'rows_killed'
  assert (killed / 'metrics.jsonl').read_text() == (whole / 'metrics.jsonl').read_text()
  assert (killed / 'model' / 'model.safetensors').read_bytes() == (whole / 'model' / 'model.safetensors').read_bytes()
  record = json.loads((killed / 'checkpoints' / '6' / 'record' / 'metadata').read_text())
  assert record['data'] == {'next_index': 6}


def test_best_checkpoint_is_kept_beside_the_last_ones(folder):
  # So high a rate that the held-out loss rises.
  changes = {'steps': 4, 'eval_every': 1, 'checkpoint': s.Checkpointing(every=3, keep=1)}
  numbers = sft.train(config(folder, 'best', optimizer=s.Optimizer(1.0, clip_norm=100.0), **changes))
  lines = [json.loads(line) for line in (folder / 'best' / 'metrics.jsonl').read_text().splitlines()]
  losses = [line['heldout_loss'] for line in lines]
  best = int(np.argmin(losses)) + 1
  assert best < 4 and numbers['best_step'] == best and numbers['best_heldout_loss'] == min(losses)
  kept = [int(path.name) for path in (folder / 'best' / 'checkpoints').iterdir() if path.name.isdigit()]
  assert sorted(kept) == [best, 4]


def test_packed_rows_have_the_loss_of_dialogues_alone_in_their_rows(folder):
  settings = config(folder, 'packed', **{**ROWS, 'batching': Layout((256,), 8), 'packing': s.Packing(rows=8)})
  loaded = policy.load(settings.model, MESH)
  dialogues = read_dialogues(folder / 'train.jsonl')
  examples = [encode(dialogue, loaded.template) for dialogue in dialogues]
  with jax.set_mesh(loaded.mesh):
    measure = make_measure(Policy(loaded.graph, loaded.config.vocab, 1.0, 64), micro_rows=8)
    found = [measure(loaded.params, batch) for batch in heldout_batches(examples, loaded, settings)]
    packed, tokens = np.array([[float(loss), int(count)] for loss, count in found]).T
    alone = [measure(loaded.params, supervised([[tree(e, 0)]], 256, 8, rollouts=1)[0]) for e in examples]
  assert tokens.sum() == sum(example.learned.sum() for example in examples) == sum(int(n) for _, n in alone)
  assert packed.sum() == pytest.approx(sum(float(loss) for loss, _ in alone), rel=1e-5)


def test_full_rows_are_of_one_shape_and_hold_what_their_plan_says(folder):
  settings = config(folder, 'shapes', batching=Layout((256,), 4), packing=s.Packing(rows=4, window=6))
  loaded = policy.load(settings.model, MESH)
  dialogues = [LONG, *read_dialogues(folder / 'train.jsonl')]
  source = RowBatches(dialogues, loaded, settings, remembered=folder / 'sizes.npz')
  batches = [source[step][0] for step in range(4)]
  assert len({str(jax.tree.map(jnp.shape, batch)) for batch in batches}) == 1
  sizes = [0, *(encode(dialogue, loaded.template).size for dialogue in dialogues[1:])]
  assert np.load(folder / 'sizes.npz')['sizes'].tolist() == sizes
  again = RowBatches(dialogues, loaded, settings, remembered=folder / 'sizes.npz')  # from the sizes it remembers
  jax.tree.map(np.testing.assert_array_equal, again[3][0], batches[3])


def test_start_that_was_given_up_leaves_no_sizes_of_its_shorter_rows_or_other_data(folder):
  settings = config(folder, 'given_up', batching=Layout((16,), 4), packing=s.Packing(rows=4, window=6))
  with pytest.raises(DataError, match=r'not one of 12 dialogues .* row of 16 tokens'):
    sft.train(settings)
  write_dialogues(read_dialogues(folder / 'train.jsonl')[:8], folder / 'fewer.jsonl')
  fewer = s.Demonstrations(str(folder / 'fewer.jsonl'))
  sft.train(dataclasses.replace(settings, batching=Layout((256,), 4), data=fewer, steps=1))
  examples = [encode(one, policy.load(settings.model, MESH).template) for one in read_dialogues(fewer.train)]
  assert np.load(folder / 'given_up' / 'sizes.npz')['sizes'].tolist() == [example.size for example in examples]


def test_dialogue_of_which_nothing_is_learned_is_refused_before_anything_is_written(folder):
  asked, said = LONG.messages
  write_dialogues([Dialogue('mute', (), (asked, dataclasses.replace(said, learn=False)))], folder / 'mute.jsonl')
  with pytest.raises(DataError, match='dialogue mute: none of its turns is learned'):
    sft.train(config(folder, 'mute', data=s.Demonstrations(str(folder / 'mute.jsonl'))))
  assert not (folder / 'mute').exists()


def test_small_data_is_known_by_heart_and_its_calls_are_made_again(tmp_path):
  # A policy of the quickstart's size, from random weights.
  write_start(tmp_path / 'start', seed=0, samples=30)
  tasks = [make_task(0, 'train', index) for index in range(6)]
  dialogues = [Dialogue(t.id, t.tools, demonstrate(t, efficient=True)) for t in tasks]
  write_dialogues(dialogues, tmp_path / 'few.jsonl')
  one = s.MeshShape(data=len(jax.devices()), fsdp=1)
  settings = s.SFTConfig(
    output=str(tmp_path / 'sft'),
    steps=150,
    until=0.03,
    logprob_chunk=64,
    model=s.Model(str(tmp_path / 'start'), dtype='float32', remat='none'),
    mesh=one,
    data=s.Demonstrations(str(tmp_path / 'few.jsonl'), str(tmp_path / 'few.jsonl')),
    batching=Layout((128,), 8),
    packing=s.Packing(rows=8),
    optimizer=s.Optimizer(4e-3, 'cosine', warmup=0.05, hold=0.5, b2=0.98, weight_decay=0.0),
    checkpoint=s.Checkpointing(every=1000),
  )
  numbers = sft.train(settings)
  assert numbers['heldout_loss'] < 0.1
  limits = Limits(turns=6, prompt_tokens=96, response_tokens=256, turn_tokens=64, observation_tokens=48)
  graded, trajectories, _ = evaluate(
    s.RLConfig(
      model=dataclasses.replace(settings.model, path=str(tmp_path / 'sft' / 'model')),
      mesh=one,
      rollout=s.RolloutSettings(limits=limits, local=LocalEngine(slots=8, context=352, prefill_chunk=16)),
      batching=Layout((512,), 8),
    ),
    tasks,
  )
  assert graded['score/success'] >= 0.95
  for task, trajectory in zip(tasks, trajectories, strict=True):
    assert tuple(turn.calls for turn in trajectory.tool_turns) == task.gold and trajectory.answer == task.answer


def test_finished_run_that_is_asked_again_keeps_its_result(folder):
  settings = config(folder, 'again', steps=1)
  numbers = sft.train(settings)
  result = (folder / 'again' / 'result.json').read_text()
  assert 'loss' in json.loads(result) and numbers['heldout_loss'] == json.loads(result)['heldout_loss']
  assert sft.train(settings) == numbers and (folder / 'again' / 'result.json').read_text() == result


def test_finished_run_that_is_to_go_further_is_complete_only_when_it_has(folder):
  sft.train(config(folder, 'further', steps=1))
  stop = Stop()
  stop.requested = True
  sft.train(config(folder, 'further', steps=2), stop=stop)
  assert not (folder / 'further' / 'result.json').exists()
  sft.train(config(folder, 'further', steps=2))
  assert json.loads((folder / 'further' / 'result.json').read_text())['steps'] == 2


def test_run_that_came_further_than_it_is_to_go_is_complete(folder):
  numbers = sft.train(config(folder, 'shorter', steps=2))
  assert sft.train(config(folder, 'shorter', steps=1)) == numbers
  assert json.loads((folder / 'shorter' / 'result.json').read_text())['steps'] == 2


def test_data_of_which_no_dialogue_fits_a_row_is_refused(folder):
  write_dialogues([LONG], folder / 'unfit.jsonl')
  with pytest.raises(DataError, match=r'not one of 1 dialogues .* a row of 256 tokens'):
    sft.train(config(folder, 'unfit', data=s.Demonstrations(str(folder / 'unfit.jsonl'))))


def test_update_without_a_learned_token_has_no_loss_and_ends_no_run(folder):
  dialogues = [LONG, read_dialogues(folder / 'train.jsonl')[0]]
  write_dialogues(dialogues, folder / 'mixed.jsonl')
  seed = next(seed for seed in range(99) if Order(dialogues, 1, seed=seed)(0) == [LONG])
  data = s.Demonstrations(str(folder / 'mixed.jsonl'))
  sft.train(config(folder, 'mixed', batch=1, steps=2, until=0.01, seed=seed, data=data))
  empty, other = [json.loads(line) for line in (folder / 'mixed' / 'metrics.jsonl').read_text().splitlines()]
  assert 'loss' not in empty and 'smoothed_loss' not in empty
  assert (empty['tokens'], empty['left_out'], empty['skipped_updates']) == (0, 1, 1)
  assert other['tokens'] > 0 and other['smoothed_loss'] == other['loss'] > 1


def test_heldout_dialogues_that_fit_no_row_have_no_loss_and_do_not_end_the_run(folder):
  write_dialogues([LONG], folder / 'long.jsonl')
  data = s.Demonstrations(str(folder / 'train.jsonl'), str(folder / 'long.jsonl'))
  numbers = sft.train(config(folder, 'unmeasured', steps=1, data=data))
  assert np.isfinite(numbers['loss']) and 'heldout_loss' not in numbers


def test_loss_is_on_what_the_assistant_says_and_nothing_else(folder):
  loaded = policy.load(config(folder, 'x').model, MESH)
  task = make_task(0, 'train', 0, kind='two')
  dialogue = Dialogue(task.id, task.tools, demonstrate(task))
  example = encode(dialogue, loaded.template)
  tokens, sampled = example.tokens, example.learned
  edges = np.flatnonzero(np.diff(np.concatenate([[0], sampled.astype(int), [0]])))
  runs = [loaded.template.decode(tokens[a:b], stops=True) for a, b in edges.reshape(-1, 2)]
  said = [message for message in dialogue.messages if message.role == 'assistant']
  assert len(runs) == len(said)
  for run, message in zip(runs, said, strict=True):
    assert run.endswith('<|im_end|>') and run.count('<tool_call>') == len(message.calls)
    assert message.content in run
  between = loaded.template.decode(tokens[~sampled], stops=True)
  assert '<tool_response>' in between and '<tool_call>' not in between


def test_dialogue_longer_than_a_row_is_left_out_and_counted(folder):
  loaded = policy.load(config(folder, 'x').model, MESH)
  dialogues = [Dialogue(t.id, t.tools, demonstrate(t)) for t in (make_task(0, 'train', i) for i in range(4))]
  lengths = [encode(dialogue, loaded.template).size for dialogue in dialogues]
  limit = sorted(lengths)[1]
  batch, numbers = make_batch(dialogues, loaded, Layout((limit,), 4))
  too_long = numbers['left_out']
  assert too_long == sum(length > limit for length in lengths)
  assert len(np.unique(np.asarray(batch.rollout_BT))) - 1 == 4 - too_long
  short = dataclasses.replace(loaded, config=dataclasses.replace(loaded.config, context=limit))
  assert make_batch(dialogues, short, Layout((256,), 4))[1]['left_out'] == too_long


def test_dialogue_with_an_id_that_the_model_has_not_is_left_out_and_counted(folder):
  loaded = policy.load(config(folder, 'x').model, MESH)
  dialogues = read_dialogues(folder / 'train.jsonl')[:4]
  highest = [max(*e.prompt, *e.tokens) for e in (encode(dialogue, loaded.template) for dialogue in dialogues)]
  fewer = dataclasses.replace(loaded, config=dataclasses.replace(loaded.config, vocab=int(max(highest))))
  left_out = make_batch(dialogues, fewer, Layout((256,), 4))[1]['left_out']
  assert left_out == highest.count(max(highest)) >= 1
  assert make_batch(dialogues, loaded, Layout((256,), 4))[1]['left_out'] == 0


def test_batches_with_dialogues_left_out_have_the_shapes_of_whole_ones(folder):
  loaded = policy.load(config(folder, 'x').model, MESH)
  dialogues = read_dialogues(folder / 'train.jsonl')[:3]
  lengths = [encode(dialogue, loaded.template).size for dialogue in dialogues]
  limit = Layout((max(lengths),), 4)
  (whole, none), (rest, one) = (make_batch(three, loaded, limit) for three in (dialogues, [*dialogues[:2], LONG]))
  assert (none['left_out'], one['left_out']) == (0, 1)
  assert jax.tree.map(jnp.shape, whole) == jax.tree.map(jnp.shape, rest)


def test_micro_batches_must_fit_the_mesh(folder):
  with pytest.raises(ConfigError, match='the mesh has 4 data shards, so use a multiple of 4'):
    sft.train(config(folder, 'rows', batching=Layout((256,), 3)))


@pytest.mark.parametrize(
  ('changes', 'says'),
  [
    ({'model': s.Model()}, 'model.path is empty'),
    ({'model': s.Model('./nowhere')}, "'./nowhere'; there is no such folder"),
    ({'data': s.Demonstrations()}, 'data.train is empty'),
    ({'data': s.Demonstrations('nowhere.jsonl')}, "'nowhere.jsonl'; there is no such file"),
  ],
)
def test_what_is_missing_is_named_before_anything_is_written(folder, changes, says):
  with pytest.raises(ConfigError) as caught:
    sft.train(config(folder, 'missing', **changes))
  assert says in str(caught.value) and not (folder / 'missing').exists()


def test_exported_checkpoint_is_the_model_of_its_step_on_devices_of_any_number(folder):
  run = folder / 'exported'
  settings = config(folder, 'exported', steps=1, mesh=s.MeshShape(data=1, fsdp=2, tensor=4))
  sft.train(settings)
  to = export(settings, run, folder / 'hf', step=1)
  assert (to / 'model.safetensors').read_bytes() == (run / 'model' / 'model.safetensors').read_bytes()
  with pytest.raises(ConfigError, match=r'does not hold checkpoint 7; it has \[1\]'):
    export(settings, run, folder / 'other', step=7)
  with pytest.raises(ConfigError, match=r'start is there already; name another folder'):
    export(settings, run, folder / 'start')  # what the run began with
  launcher = pathlib.Path(__file__).parents[2] / 'launch' / 'export_hf.py'
  alone = {**os.environ, 'XLA_FLAGS': ''}  # one device, of the run's eight
  subprocess.run([sys.executable, launcher, f'--run={run}', f'--to={folder / "launched"}'], check=True, env=alone)
  assert (folder / 'launched' / 'model.safetensors').read_bytes() == (to / 'model.safetensors').read_bytes()


def test_checkpoint_of_one_mesh_opens_on_another(folder):
  sft.train(config(folder, 'moved', steps=1))
  pathlib.Path(folder / 'moved' / 'config.json').unlink()  # the mesh is a setting, and it changes here
  other = s.MeshShape(data=8, fsdp=1, tensor=1)
  numbers = sft.train(config(folder, 'moved', steps=2, mesh=other, batching=Layout((256,), 8)))
  assert np.isfinite(numbers['loss']) and len(jax.devices()) == 8
