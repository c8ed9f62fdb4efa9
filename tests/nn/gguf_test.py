"""GGUF files written on the spot come back as the Hugging Face folder they were made from; what is refused is named."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from slca_jax.chat.template import load_template
from slca_jax.dialogue import Message
from slca_jax.errors import WeightsError
from slca_jax.nn.gguf import convert, unpaired
from slca_jax.nn.hf_config import eos_ids, read_config
from slca_jax.nn.weights import load_hf

gguf = pytest.importorskip('gguf', reason="needs the package gguf; install the extra 'gguf'")

WIDTH, HIDDEN, HEADS, KV_HEADS, LAYERS = 64, 96, 4, 2, 2
SPECIALS = ['<|endoftext|>', '<|im_start|>', '<|im_end|>']
# Byte-level BPE writes a space as Ġ and a newline as Ċ.
TOKENS = [*SPECIALS, 'Ġ', 'Ċ', *'abcdehilmnorstuvwy', *'0123456789', *'.:{}"', 'th', 'the']
TEMPLATE = (
  "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
  "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def network(*, tied=True):
  """Tensors under their Hugging Face names."""
  chance = np.random.default_rng(0)
  draw = lambda *shape: chance.normal(0, 0.1, shape).astype(np.float32)
  size = WIDTH // HEADS
  out = {'model.embed_tokens.weight': draw(len(TOKENS), WIDTH), 'model.norm.weight': draw(WIDTH)}
  if not tied:
    out['lm_head.weight'] = draw(len(TOKENS), WIDTH)
  for i in range(LAYERS):
    shapes = {
      'input_layernorm': (WIDTH,),
      'self_attn.q_proj': (HEADS * size, WIDTH),
      'self_attn.k_proj': (KV_HEADS * size, WIDTH),
      'self_attn.v_proj': (KV_HEADS * size, WIDTH),
      'self_attn.o_proj': (WIDTH, HEADS * size),
      'post_attention_layernorm': (WIDTH,),
      'mlp.gate_proj': (HIDDEN, WIDTH),
      'mlp.up_proj': (HIDDEN, WIDTH),
      'mlp.down_proj': (WIDTH, HIDDEN),
    }
    out |= {f'model.layers.{i}.{name}.weight': draw(*shape) for name, shape in shapes.items()}
  return out


def paired(rows, heads):
  """Rotary pairs next to each other: row 0, row H/2, row 1, row H/2 + 1, … of every head."""
  out = []
  for head in np.split(rows, heads):
    half = len(head) // 2
    out += [row for j in range(half) for row in (head[j], head[half + j])]
  return np.stack(out)


def file_names():
  """Hugging Face name -> name in the file; the order of the file is not that of the network."""
  names = {'lm_head': 'output', 'model.norm': 'output_norm', 'model.embed_tokens': 'token_embd'}
  for i in range(LAYERS):
    parts = {
      'mlp.down_proj': 'ffn_down',
      'mlp.gate_proj': 'ffn_gate',
      'mlp.up_proj': 'ffn_up',
      'input_layernorm': 'attn_norm',
      'post_attention_layernorm': 'ffn_norm',
      'self_attn.q_proj': 'attn_q',
      'self_attn.k_proj': 'attn_k',
      'self_attn.v_proj': 'attn_v',
      'self_attn.o_proj': 'attn_output',
    }
    names |= {f'model.layers.{i}.{there}': f'blk.{i}.{here}' for there, here in parts.items()}
  return {f'{there}.weight': f'{here}.weight' for there, here in names.items()}


def write(path, tensors, *, quantised=(), change=None):
  """A GGUF file. `change` edits the dict of settings before they are written."""
  settings = {
    'llama.block_count': LAYERS,
    'llama.context_length': 128,
    'llama.embedding_length': WIDTH,
    'llama.feed_forward_length': HIDDEN,
    'llama.attention.head_count': HEADS,
    'llama.attention.head_count_kv': KV_HEADS,
    'llama.attention.layer_norm_rms_epsilon': 1e-5,
    'llama.rope.freq_base': 1e5,
    'llama.rope.dimension_count': WIDTH // HEADS,
    'tokenizer.ggml.model': 'gpt2',
    'tokenizer.ggml.pre': 'smollm',
    'tokenizer.ggml.tokens': TOKENS,
    'tokenizer.ggml.token_type': [3] * len(SPECIALS) + [1] * (len(TOKENS) - len(SPECIALS)),
    'tokenizer.ggml.merges': ['t h', 'th e'],
    'tokenizer.ggml.bos_token_id': 1,
    'tokenizer.ggml.eos_token_id': 2,
    'tokenizer.ggml.padding_token_id': 0,
    'tokenizer.chat_template': TEMPLATE,
  }
  architecture = 'llama'
  if change:
    change(settings)
    architecture = settings.pop('general.architecture', architecture)
  writer = gguf.GGUFWriter(path, architecture)
  adders = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, list: writer.add_array}
  for key, value in settings.items():
    adders[type(value)](key, value)
  names = file_names()
  for there in [name for name in names if name in tensors] + [name for name in tensors if name not in names]:
    array, here = tensors[there], names.get(there, there)
    if 'q_proj' in there or 'k_proj' in there:
      array = paired(array, HEADS if 'q_proj' in there else KV_HEADS)
    if here in quantised:
      kind = gguf.GGMLQuantizationType.Q8_0
      writer.add_tensor(here, gguf.quantize(array, kind), raw_dtype=kind)
    else:
      writer.add_tensor(here, array)
  for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
    step()
  return path


def test_rotary_pairs_move_half_a_head_apart():
  rows = np.array([[0], [4], [1], [5], [2], [6], [3], [7]])
  assert unpaired(rows, 1).ravel().tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
  assert unpaired(rows, 2).ravel().tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


@pytest.mark.parametrize('tied', [True, False])
def test_tensors_come_back_bit_for_bit(tmp_path, tied):
  tensors = network(tied=tied)
  config = convert(write(tmp_path / 'model.gguf', tensors), tmp_path / 'hf')
  found = load_file(tmp_path / 'hf' / 'model.safetensors')
  assert found.keys() == tensors.keys()
  for name, array in tensors.items():
    np.testing.assert_array_equal(found[name], array, err_msg=name)
  assert config == read_config(tmp_path / 'hf')
  assert (config.tied, config.eps, config.rope_theta) == (tied, 1e-5, 1e5)
  load_hf(tmp_path / 'hf', config)


def test_quantised_rows_are_expanded_before_they_are_moved(tmp_path):
  tensors = network()
  quantised = ('blk.0.attn_q.weight', 'blk.1.ffn_down.weight')
  convert(write(tmp_path / 'model.gguf', tensors, quantised=quantised), tmp_path / 'hf')
  found = load_file(tmp_path / 'hf' / 'model.safetensors')
  for name in ('model.layers.0.self_attn.q_proj.weight', 'model.layers.1.mlp.down_proj.weight'):
    # 8 bits with one scale per 32 weights: off by at most half a step of max|w| / 127.
    assert 0 < np.abs(found[name] - tensors[name]).max() <= np.abs(tensors[name]).max() / 127 * 0.51
  np.testing.assert_array_equal(found['model.norm.weight'], tensors['model.norm.weight'])


def test_bfloat16_is_rounded_once(tmp_path):
  tensors = network()
  convert(write(tmp_path / 'model.gguf', tensors), tmp_path / 'hf', dtype='bfloat16')
  found = load_file(tmp_path / 'hf' / 'model.safetensors')['model.norm.weight']
  assert found.dtype.name == 'bfloat16'
  np.testing.assert_array_equal(found, tensors['model.norm.weight'].astype(found.dtype))


def test_the_tokenizer_cuts_digits_and_special_tokens_and_keeps_the_template(tmp_path):
  convert(write(tmp_path / 'model.gguf', network()), tmp_path / 'hf')
  template = load_template(tmp_path / 'hf')
  names = lambda text: [TOKENS[token] for token in template.encode(text)]
  assert names('the bath 120<|im_end|>') == ['the', 'Ġ', 'b', 'a', 'th', 'Ġ', '1', '2', '0', '<|im_end|>']
  assert template.decode(template.encode('the 90 days.\n')) == 'the 90 days.\n'
  assert template.stop_ids == eos_ids(tmp_path / 'hf') == (2,)
  prompt = template.decode(template.prompt([Message('user', 'the')]), stops=True)
  assert prompt == '<|im_start|>user\nthe<|im_end|>\n<|im_start|>assistant\n'
  settings = json.loads((tmp_path / 'hf' / 'tokenizer_config.json').read_text())
  assert [settings[f'{name}_token'] for name in ('bos', 'eos', 'pad')] == [
    '<|im_start|>',
    '<|im_end|>',
    '<|endoftext|>',
  ]


def test_a_token_that_was_added_is_cut_out_whole_and_shown(tmp_path):
  def add(settings):
    settings['tokenizer.ggml.merges'] = ['t h']  # none of them makes 'the'
    settings['tokenizer.ggml.token_type'][TOKENS.index('the')] = 4

  convert(write(tmp_path / 'model.gguf', network(), change=add), tmp_path / 'hf')
  template = load_template(tmp_path / 'hf')
  assert [TOKENS[token] for token in template.encode('bathe')] == ['b', 'a', 'the']
  assert template.decode(template.encode('bathe<|im_end|>')) == 'bathe'


@pytest.mark.parametrize(
  ('key', 'value', 'message'),
  [
    ('general.architecture', 'mamba', "general.architecture is 'mamba'"),
    ('tokenizer.ggml.model', 'llama', "tokenizer.ggml.model is 'llama'"),
    ('tokenizer.ggml.pre', 'deepseek', "tokenizer.ggml.pre is 'deepseek'"),
    ('llama.rope.scaling.type', 'yarn', "llama.rope.scaling.type is 'yarn'"),
    ('llama.expert_count', 8, 'llama.expert_count is 8'),
    ('llama.rope.dimension_count', 8, '8 of 16 dimensions'),
    ('llama.attention.head_count_kv', 3, 'no decoder'),
    ('tokenizer.ggml.tokens', [*TOKENS[:-1], 'th'], 'occur twice'),
  ],
)
def test_what_is_not_supported_is_named_and_leaves_no_folder(tmp_path, key, value, message):
  source = write(tmp_path / 'model.gguf', network(), change=lambda settings: settings.update({key: value}))
  with pytest.raises(WeightsError, match=message):
    convert(source, tmp_path / 'hf')
  assert not (tmp_path / 'hf').exists()


def test_a_missing_setting_is_named(tmp_path):
  source = write(tmp_path / 'model.gguf', network(), change=lambda settings: settings.pop('llama.block_count'))
  with pytest.raises(WeightsError, match=r'does not say llama\.block_count'):
    convert(source, tmp_path / 'hf')


def test_tensors_of_another_network_are_named(tmp_path):
  tensors = network()
  del tensors['model.layers.1.mlp.up_proj.weight']
  tensors['rope_freqs.weight'] = np.ones(8, np.float32)
  source = write(tmp_path / 'model.gguf', tensors)
  with pytest.raises(WeightsError, match=r'blk\.1\.ffn_up\.weight.*rope_freqs\.weight'):
    convert(source, tmp_path / 'hf')


def test_no_file_is_overwritten_and_no_garbage_read(tmp_path):
  source = write(tmp_path / 'model.gguf', network())
  with pytest.raises(WeightsError, match='not empty'):
    convert(source, tmp_path)
  with pytest.raises(WeightsError, match='does not exist'):
    convert(tmp_path / 'other.gguf', tmp_path / 'hf')
  (tmp_path / 'bad.gguf').write_bytes(b'no model at all')
  with pytest.raises(WeightsError, match='no GGUF file'):
    convert(tmp_path / 'bad.gguf', tmp_path / 'hf')
  (tmp_path / 'cut.gguf').write_bytes(source.read_bytes()[:-5000])
  with pytest.raises(WeightsError, match='cut short'):
    convert(tmp_path / 'cut.gguf', tmp_path / 'hf')
