"""A checkpoint that cannot serve is refused before its weights are read, in one sentence with a remedy."""

import json

import jax
import pytest

from slca_jax.errors import ConfigError, WeightsError
from slca_jax.nn import sharding
from slca_jax.nn.config import TransformerConfig
from slca_jax.quickstart.start import write_start
from slca_jax.train import policy
from slca_jax.train.device_settings import MeshShape, Model

NETWORK = TransformerConfig(layers=1, width=16, hidden=32, heads=2, kv_heads=1, head_dim=8, context=512)


@pytest.fixture(scope='module')
def start(tmp_path_factory):
  folder = tmp_path_factory.mktemp('policy') / 'start'
  write_start(folder, seed=0, network=NETWORK, samples=30)
  return folder


def test_tokenizer_of_a_larger_vocabulary_is_refused(start):
  template = policy.load_template(start)
  needed = max(template.needed_ids) + 1
  policy.check_vocabulary(template, needed, start)  # ids that nothing needs may lie beyond
  with pytest.raises(WeightsError, match=rf'the ids \[{needed - 1}\], the model has {needed - 1} tokens'):
    policy.check_vocabulary(template, needed - 1, start)


def test_folder_of_a_run_names_the_model_in_it(tmp_path, start):
  (tmp_path / 'config.json').write_text('{"output": "runs/sft"}')
  (tmp_path / 'model').mkdir()
  (tmp_path / 'model' / 'config.json').write_text((start / 'config.json').read_text())
  with pytest.raises(WeightsError, match=f'is the folder of a run; its model is {tmp_path}/model'):
    policy.load(Model(str(tmp_path)), MeshShape())


def test_checkpoint_that_is_neither_here_nor_on_the_hub_is_refused_in_one_line():
  with pytest.raises(ConfigError, match='no such folder'):
    policy.check(Model('runs/sft/modle'))
  with pytest.raises(WeightsError, match='cannot be fetched from the hub') as found:
    policy.resolve('some one/no: name')  # no hub takes it, so none is asked
  assert '\n' not in str(found.value)


def test_vocabulary_and_rows_are_checked_before_weights_are_read(tmp_path, start):
  for file in start.iterdir():
    if file.suffix != '.safetensors':
      (tmp_path / file.name).write_bytes(file.read_bytes())
  told = json.loads((tmp_path / 'config.json').read_text())
  (tmp_path / 'config.json').write_text(json.dumps(told | {'vocab_size': 8}))
  with pytest.raises(WeightsError, match='the model has 8 tokens'):
    policy.load(Model(str(tmp_path)), MeshShape(data=1, fsdp=-1, tensor=1))
  with pytest.raises(ConfigError, match='micro_rows is 3; the mesh has 8 data shards'):
    policy.load(Model(str(tmp_path)), MeshShape(data=1, fsdp=-1, tensor=1), micro_rows=3)


def test_a_tensor_axis_that_does_not_divide_the_heads_is_told(caplog):
  mesh = lambda tensor: sharding.make_mesh(data=1, fsdp=1, tensor=tensor, devices=jax.devices()[:tensor])
  with caplog.at_level('WARNING'):
    policy.warn_of_whole(NETWORK, mesh(1))
    assert not caplog.messages
    policy.warn_of_whole(NETWORK, mesh(2))
  assert [message.partition(';')[0] for message in caplog.messages] == [
    'mesh.tensor is 2 and does not divide kv_heads = 1'
  ]
