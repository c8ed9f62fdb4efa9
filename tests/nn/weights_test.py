"""Checkpoints of all three families against transformers, both ways, and what is refused."""

import dataclasses
import functools
import json
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from slca_jax.errors import WeightsError
from slca_jax.nn import sharding, weights
from slca_jax.nn.config import RopeScaling, TransformerConfig
from slca_jax.nn.transformer import Transformer, abstract_model

torch = pytest.importorskip('torch', reason='parity needs torch; install the extra "test"')
transformers = pytest.importorskip('transformers', reason='parity needs transformers; install the extra "test"')

SIZES = dict(
  vocab_size=61,
  hidden_size=32,
  intermediate_size=48,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  max_position_embeddings=256,
)
LLAMA3 = dict(rope_type='llama3', factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
LLAMA3 |= dict(original_max_position_embeddings=64, rope_theta=10000.0)
FAMILIES = {
  'qwen2': dict(rope_parameters={'rope_type': 'default', 'rope_theta': 1e6}, tie_word_embeddings=False),
  'qwen3': dict(head_dim=16, rope_parameters={'rope_type': 'default', 'rope_theta': 1e6}, tie_word_embeddings=True),
  'llama': dict(rope_parameters=LLAMA3, tie_word_embeddings=False),
  'llama_tied': dict(rope_parameters={'rope_type': 'default', 'rope_theta': 1e5}, tie_word_embeddings=True),
}
TOKENS = np.random.default_rng(3).integers(0, 61, (3, 40)).astype(np.int32)


@functools.cache
def original(family):
  """A random transformers model in which every parameter, biases and norms included, matters."""
  config = transformers.AutoConfig.for_model(family.split('_')[0], **SIZES, **FAMILIES[family])
  torch.manual_seed(0)
  model = transformers.AutoModelForCausalLM.from_config(config).eval().float()
  for name, param in model.named_parameters():
    torch.nn.init.normal_(param, mean=1.0 if 'norm' in name else 0.0, std=0.15)
  return model


@pytest.fixture(scope='module', params=sorted(FAMILIES))
def checkpoint(request, tmp_path_factory):
  path = tmp_path_factory.mktemp(request.param)
  original(request.param).save_pretrained(path)
  return request.param, path


@pytest.fixture
def llama(tmp_path):
  original('llama').save_pretrained(tmp_path / 'llama')
  return tmp_path / 'llama'


def torch_logp(model):
  with torch.no_grad():
    return torch.log_softmax(model(torch.tensor(TOKENS, dtype=torch.long)).logits.float(), -1).numpy()


def our_logp(params, config):
  graph, _ = abstract_model(config)
  zero, position = np.zeros_like(TOKENS), np.tile(np.arange(TOKENS.shape[1], dtype=np.int32), (len(TOKENS), 1))

  @jax.jit
  def logp(params):
    model = nnx.merge(graph, params)
    hidden_BTD = model(TOKENS, zero, zero - 1, position)
    return jax.nn.log_softmax(jnp.einsum('BTD,VD->BTV', hidden_BTD, model.unembedding()), -1)

  with jax.default_matmul_precision('highest'):
    return np.asarray(logp(params))


def test_log_probs_equal_transformers(checkpoint):
  family, path = checkpoint
  config = weights.read_config(path)
  assert (config.qkv_bias, config.qk_norm) == (family == 'qwen2', family == 'qwen3')
  params = weights.load_hf(path, config)
  np.testing.assert_allclose(our_logp(params, config), torch_logp(original(family)), atol=1e-5)


def test_save_then_load_is_bit_exact_and_transformers_reads_it(checkpoint, tmp_path):
  family, path = checkpoint
  config = weights.read_config(path)
  params = weights.load_hf(path, config)
  weights.save_hf(params, config, tmp_path / 'saved', max_shard_bytes=20_000)
  assert len(list((tmp_path / 'saved').glob('model-*.safetensors'))) > 2
  assert all(f.stat().st_size < 22_000 for f in (tmp_path / 'saved').glob('*.safetensors'))
  assert weights.read_config(tmp_path / 'saved') == config
  again = weights.load_hf(tmp_path / 'saved', config)
  jax.tree.map(np.testing.assert_array_equal, params, again)
  theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'saved', dtype='float32').eval()
  np.testing.assert_array_equal(torch_logp(theirs), torch_logp(original(family)))


def test_a_padded_vocabulary_is_cut_on_save_and_zero_on_load(llama):
  config = dataclasses.replace(weights.read_config(llama), vocab_multiple=64)
  params = weights.load_hf(llama, config)
  assert params['unembed'][...].shape == (64, 32)
  assert not np.any(params['unembed'][...][61:]) and np.all(np.any(params['unembed'][...][:61], -1))


def test_sharded_load_equals_the_single_one_and_follows_the_rules(llama):
  config = weights.read_config(llama)
  single = weights.load_hf(llama, config)
  mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
  params = weights.load_hf(llama, config, mesh)
  jax.tree.map(np.testing.assert_array_equal, params, single)
  spec = {'.'.join(map(str, path)): leaf[...].sharding.spec for path, leaf in nnx.to_flat_state(params)}
  assert spec['embed'] == jax.P('tensor', 'fsdp')
  assert spec['blocks.w_q'] == jax.P(None, 'fsdp', 'tensor', None)
  assert spec['blocks.w_o'] == jax.P(None, 'tensor', None, 'fsdp')
  assert spec['blocks.w_down'] == jax.P(None, 'tensor', 'fsdp')
  assert params['blocks']['w_q'][...].addressable_shards[0].data.shape == (2, 16, 2, 8)


@pytest.mark.parametrize('dtype', ['float32', 'bfloat16', 'float64'])
def test_a_sharded_model_is_saved_as_a_single_one(llama, tmp_path, dtype):
  config = dataclasses.replace(weights.read_config(llama), vocab_multiple=64)
  weights.save_hf(weights.load_hf(llama, config), config, tmp_path / 'single', dtype=dtype)
  mesh = sharding.make_mesh(data=2, fsdp=2, tensor=2)
  with jax.set_mesh(mesh):
    weights.save_hf(weights.load_hf(llama, config, mesh), config, tmp_path / 'sharded', dtype=dtype)
  single, sharded = (tmp_path / name / 'model.safetensors' for name in ('single', 'sharded'))
  assert single.read_bytes() == sharded.read_bytes()


def test_a_shard_is_read_without_the_rest_of_its_tensor(llama, monkeypatch):
  config, parts = weights.read_config(llama), []
  read = weights.StoredTensor.read

  def watched(self, index):
    part = read(self, index)
    parts.append((len(self.shape), part.size / np.prod(self.shape)))
    return part

  monkeypatch.setattr(weights.StoredTensor, 'read', watched)
  weights.load_hf(llama, config, sharding.make_mesh(fsdp=4, tensor=2))
  assert max(share for rank, share in parts if rank == 2) == 1 / 4


def test_parameters_are_cast_to_the_type_asked_for(llama, tmp_path):
  config = dataclasses.replace(weights.read_config(llama), param_dtype='bfloat16')
  params = weights.load_hf(llama, config)
  assert {leaf.dtype for leaf in jax.tree.leaves(params)} == {jnp.dtype('bfloat16')}
  weights.save_hf(params, config, tmp_path / 'half', source=llama)
  jax.tree.map(np.testing.assert_array_equal, params, weights.load_hf(tmp_path / 'half', config))
  theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / 'half')
  assert theirs.dtype == torch.bfloat16


def test_tokenizer_and_generation_files_are_carried_along(llama, tmp_path):
  (llama / 'tokenizer.json').write_text('{"a": 1}')
  (llama / 'chat_template.jinja').write_text('{{ messages }}')
  (llama / 'generation_config.json').write_text('{"eos_token_id": [7, 9], "top_p": 0.8}')
  (llama / 'notes.txt').write_text('stays')
  config = weights.read_config(llama)
  weights.save_hf(weights.load_hf(llama, config), config, tmp_path / 'saved', source=llama)
  for name in ('tokenizer.json', 'chat_template.jinja'):
    assert (tmp_path / 'saved' / name).read_text() == (llama / name).read_text()
  assert json.loads((tmp_path / 'saved/generation_config.json').read_text()) == {'eos_token_id': [7, 9], 'top_p': 0.8}
  assert not (tmp_path / 'saved/notes.txt').exists()
  assert weights.eos_ids(tmp_path / 'saved') == (7, 9)


def test_ids_that_end_a_turn_are_added_to_those_the_source_names(llama, tmp_path):
  config = weights.read_config(llama)
  params = weights.load_hf(llama, config)
  for there, eos, ids in (
    ({'eos_token_id': 7, 'top_p': 0.8}, (9, 7), [7, 9]),
    ({'eos_token_id': [7, 9]}, (9,), [7, 9]),
    ({}, (9,), 9),
  ):
    (llama / 'generation_config.json').write_text(json.dumps(there))
    edit(llama, eos_token_id=None)
    weights.save_hf(params, config, tmp_path / 'saved', source=llama, eos=eos)
    saved = json.loads((tmp_path / 'saved/generation_config.json').read_text())
    assert saved == there | {'eos_token_id': ids}
  (llama / 'generation_config.json').unlink()
  edit(llama, eos_token_id=5)
  weights.save_hf(params, config, tmp_path / 'saved', source=llama, eos=(5, 6))
  assert weights.eos_ids(tmp_path / 'saved') == (5, 6)


def test_eos_ids_fall_back_to_the_config(tmp_path):
  assert weights.eos_ids(tmp_path) == ()
  (tmp_path / 'config.json').write_text('{"eos_token_id": 5}')
  assert weights.eos_ids(tmp_path) == (5,)
  (tmp_path / 'generation_config.json').write_text('{"top_k": 1}')
  assert weights.eos_ids(tmp_path) == (5,)
  (tmp_path / 'generation_config.json').write_text('{"eos_token_id": [6, 5]}')
  assert weights.eos_ids(tmp_path) == (6, 5)


def test_a_model_made_here_becomes_a_checkpoint_of_its_own(tmp_path):
  config = TransformerConfig(vocab=61, layers=1, width=16, hidden=24, heads=2, kv_heads=1, head_dim=8, qk_norm=True)
  _, params = nnx.split(Transformer(config, rngs=nnx.Rngs(0)), nnx.Param)
  weights.save_hf(params, config, tmp_path / 'made', eos=(3, 4))
  assert weights.read_config(tmp_path / 'made') == config
  assert weights.eos_ids(tmp_path / 'made') == (3, 4)
  jax.tree.map(np.testing.assert_array_equal, params, weights.load_hf(tmp_path / 'made', config))


def test_an_earlier_checkpoint_is_replaced_and_anything_else_is_not(llama, tmp_path):
  config = weights.read_config(llama)
  params = weights.load_hf(llama, config)
  weights.save_hf(params, config, llama, source=llama)
  jax.tree.map(np.testing.assert_array_equal, params, weights.load_hf(llama, config))
  (tmp_path / 'photos').mkdir()
  (tmp_path / 'photos/cat.png').touch()
  with pytest.raises(WeightsError, match='no checkpoint'):
    weights.save_hf(params, config, tmp_path / 'photos')
  assert sorted(p.name for p in tmp_path.iterdir()) == ['llama', 'photos']


def test_a_failed_save_leaves_the_old_checkpoint(llama, monkeypatch):
  config = weights.read_config(llama)
  params = weights.load_hf(llama, config)

  def broken(*args):
    raise OSError('disk full')

  monkeypatch.setattr(weights.tensorfile, 'write', broken)
  with pytest.raises(OSError, match='disk full'):
    weights.save_hf(params, config, llama)
  jax.tree.map(np.testing.assert_array_equal, params, weights.load_hf(llama, config))
  assert [p.name for p in llama.parent.iterdir()] == ['llama']


def rewrite(path, change):
  """Applies `change` to the tensors of a single-file checkpoint."""
  from safetensors.numpy import load_file, save_file

  file = path / 'model.safetensors'
  tensors = load_file(file)
  change(tensors)
  save_file(tensors, file)


QUERY = 'model.layers.1.self_attn.q_proj.weight'
DAMAGE = {
  'missing': (lambda t: t.pop(QUERY), rf'{QUERY} is missing, expected \(32, 32\)'),
  'misshapen': (lambda t: t.update({QUERY: t[QUERY][:8]}), rf'{QUERY} has shape \(8, 32\), expected \(32, 32\)'),
  'extra': (lambda t: t.update({'model.extra': t[QUERY]}), r'model\.extra of shape \(32, 32\) is not a tensor of this'),
  'quantised': (lambda t: t.update({QUERY: t[QUERY].astype(np.int8)}), f'{QUERY} is stored as I8'),
  'no head': (lambda t: t.pop('lm_head.weight'), r'lm_head\.weight is missing, expected \(61, 32\)'),
}


@pytest.mark.parametrize('kind', DAMAGE)
def test_a_tensor_that_does_not_fit_is_named(llama, kind):
  change, message = DAMAGE[kind]
  rewrite(llama, change)
  with pytest.raises(WeightsError, match=message):
    weights.load_hf(llama, weights.read_config(llama))


WRONG = [(np.nan, 'float32', 'nan in one place'), (7e4, 'float16', '70000.0 in one place, inf as float16')]


@pytest.mark.parametrize(('value', 'dtype', 'told'), WRONG)
def test_a_weight_that_is_no_number_is_refused(llama, value, dtype, told):
  rewrite(llama, lambda tensors: tensors[QUERY].__setitem__((3, 5), value))
  config = dataclasses.replace(weights.read_config(llama), param_dtype=dtype)
  with pytest.raises(WeightsError, match=f'{QUERY} of .*model.safetensors is {told}'):
    weights.load_hf(llama, config)


def test_stored_copies_that_follow_from_the_config_are_ignored(tmp_path):
  path = tmp_path / 'tied'
  original('llama_tied').save_pretrained(path)
  config = weights.read_config(path)
  before = weights.load_hf(path, config)
  frequencies = {f'model.layers.{i}.self_attn.rotary_emb.inv_freq': np.ones(4, np.float32) for i in range(2)}
  rewrite(path, lambda t: t.update(frequencies | {'lm_head.weight': t['model.embed_tokens.weight'].copy()}))
  jax.tree.map(np.testing.assert_array_equal, before, weights.load_hf(path, config))


@pytest.mark.parametrize('keep', [4, 100, 20_000])
def test_a_file_cut_short_is_refused(llama, keep):
  file = llama / 'model.safetensors'
  file.write_bytes(file.read_bytes()[:keep])
  with pytest.raises(WeightsError, match=r'model\.safetensors'):
    weights.load_hf(llama, weights.read_config(llama))


def test_an_index_that_names_an_absent_file_is_refused(llama):
  (llama / 'model.safetensors.index.json').write_text('{"weight_map": {"lm_head.weight": "../other.safetensors"}}')
  with pytest.raises(WeightsError, match=r'\.\./other\.safetensors'):
    weights.load_hf(llama, weights.read_config(llama))


def edit(path: pathlib.Path, **changes):
  file = path / 'config.json'
  config = json.loads(file.read_text()) | changes
  file.write_text(json.dumps({key: value for key, value in config.items() if value != 'drop'}))


REFUSED = {
  'model_type': ('gemma', "model_type is 'gemma'"),
  'attention_bias': (True, 'attention_bias is True'),
  'mlp_bias': (True, 'mlp_bias is True'),
  'hidden_act': ('gelu', "hidden_act is 'gelu'"),
  'rope_parameters': ({'rope_type': 'yarn', 'factor': 4.0, 'rope_theta': 1e4}, "rope_type is 'yarn'"),
  'layer_types': (['full_attention', 'sliding_attention'], "layer_types holds 'sliding_attention'"),
  'hidden_size': ('drop', 'hidden_size is None'),
  'num_key_value_heads': (3, 'cannot share 3 kv_heads'),
  'quantization_config': ({'bits': 4}, 'quantization_config is set'),
}


@pytest.mark.parametrize('key', REFUSED)
def test_a_feature_the_decoder_lacks_is_refused_by_name(llama, key):
  value, message = REFUSED[key]
  edit(llama, **{key: value})
  with pytest.raises(WeightsError, match=message):
    weights.read_config(llama)


def test_a_sliding_window_is_refused_only_where_it_is_in_use(llama):
  edit(llama, model_type='qwen2', sliding_window=128, use_sliding_window=False, max_window_layers=1, layer_types='drop')
  weights.read_config(llama)
  edit(llama, use_sliding_window=True)
  with pytest.raises(WeightsError, match='use_sliding_window is True'):
    weights.read_config(llama)
  edit(llama, sliding_window='drop')  # transformers has one of 4,096 then
  with pytest.raises(WeightsError, match='use_sliding_window is True'):
    weights.read_config(llama)


def test_rotary_settings_are_read_in_both_spellings(llama):
  new = weights.read_config(llama)
  assert new.rope_scaling == RopeScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=64)
  old = {key: value for key, value in LLAMA3.items() if key != 'rope_theta'}
  edit(llama, rope_parameters='drop', rope_theta=10000.0, rope_scaling=old)
  assert weights.read_config(llama) == new


def test_rotary_settings_that_contradict_each_other_are_refused(llama):
  edit(llama, rope_scaling=LLAMA3)  # twice the same
  weights.read_config(llama)
  edit(llama, rope_scaling={'type': 'yarn', 'factor': 4.0})
  with pytest.raises(WeightsError, match=r"rope_parameters .*'llama3'.* and rope_scaling .*'yarn'.* differ"):
    weights.read_config(llama)
  edit(llama, rope_scaling=LLAMA3 | {'factor': 4.0})
  with pytest.raises(WeightsError, match='differ; keep the one that is meant'):
    weights.read_config(llama)


@pytest.mark.parametrize('key', ['rope_theta', 'rms_norm_eps'])
def test_a_setting_that_is_no_number_is_refused_by_name(llama, key):
  edit(llama, rope_parameters='drop', **{key: None})
  with pytest.raises(WeightsError, match=f'{key} is None; it must be a number'):
    weights.read_config(llama)


def test_a_source_of_another_network_is_refused(llama, tmp_path):
  config = weights.read_config(llama)
  params = weights.load_hf(llama, config)
  edit(llama, rms_norm_eps=1e-3)
  with pytest.raises(WeightsError, match=r'eps is 0\.001 there'):
    weights.save_hf(params, config, tmp_path / 'saved', source=llama)
