"""Supervised training: what is learned, and that a killed run goes on bit for bit."""

import dataclasses
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from slca_jax.data.sft import encode
from slca_jax.data.tasks import read_dialogues, write_dialogues
from slca_jax.dialogue import Dialogue, Message
from slca_jax.errors import ConfigError
from slca_jax.nn.config import TransformerConfig
from slca_jax.quickstart.demonstrations import demonstrate
from slca_jax.quickstart.start import write_start
from slca_jax.quickstart.world import make_task
from slca_jax.rollout.settings import Layout
from slca_jax.train import policy, sft
from slca_jax.train import settings as s
from slca_jax.train.export import export
from slca_jax.train.loader import make_batch

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


def test_finished_run_that_is_asked_again_keeps_its_result(folder):
  settings = config(folder, 'again', steps=1)
  numbers = sft.train(settings)
  result = (folder / 'again' / 'result.json').read_text()
  assert 'loss' in json.loads(result) and numbers['heldout_loss'] == json.loads(result)['heldout_loss']
  assert sft.train(settings) == numbers and (folder / 'again' / 'result.json').read_text() == result


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
  batch, too_long = make_batch(dialogues, loaded, Layout((limit,), 4))
  assert too_long == sum(length > limit for length in lengths)
  assert len(np.unique(np.asarray(batch.rollout_BT))) - 1 == 4 - too_long
  short = dataclasses.replace(loaded, config=dataclasses.replace(loaded.config, context=limit))
  assert make_batch(dialogues, short, Layout((256,), 4))[1] == too_long


def test_batches_with_dialogues_left_out_have_the_shapes_of_whole_ones(folder):
  loaded = policy.load(config(folder, 'x').model, MESH)
  dialogues = read_dialogues(folder / 'train.jsonl')[:3]
  lengths = [encode(dialogue, loaded.template).size for dialogue in dialogues]
  limit = Layout((max(lengths),), 4)
  (whole, none), (rest, one) = (make_batch(three, loaded, limit) for three in (dialogues, [*dialogues[:2], LONG]))
  assert (none, one) == (0, 1)
  assert jax.tree.map(jnp.shape, whole) == jax.tree.map(jnp.shape, rest)


def test_several_processes_are_refused_before_anything_is_loaded(folder, monkeypatch):
  monkeypatch.setattr(jax, 'process_count', lambda: 4)
  with pytest.raises(ConfigError, match=r'4 processes have joined; .* so start one'):
    policy.load(config(folder, 'x').model, MESH)


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


def test_exported_checkpoint_is_the_model_of_its_step(folder):
  run = folder / 'exported'
  settings = config(folder, 'exported', steps=1)
  sft.train(settings)
  to = export(settings, run, folder / 'hf', step=1)
  assert (to / 'model.safetensors').read_bytes() == (run / 'model' / 'model.safetensors').read_bytes()
  with pytest.raises(ConfigError, match=r'has no checkpoint 7; it has \[1\]'):
    export(settings, run, folder / 'hf', step=7)


def test_checkpoint_of_one_mesh_opens_on_another(folder):
  sft.train(config(folder, 'moved', steps=1))
  pathlib.Path(folder / 'moved' / 'config.json').unlink()  # the mesh is a setting, and it changes here
  other = s.MeshShape(data=8, fsdp=1, tensor=1)
  numbers = sft.train(config(folder, 'moved', steps=2, mesh=other, batching=Layout((256,), 8)))
  assert np.isfinite(numbers['loss']) and len(jax.devices()) == 8
