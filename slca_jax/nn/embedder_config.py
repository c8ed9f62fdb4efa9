"""What a folder of sentence-transformers says of its encoder and of how a text's token vectors become one."""

import dataclasses
import json
import pathlib
import typing
from collections.abc import Mapping
from typing import Any, Literal

from slca_jax.config import require
from slca_jax.errors import WeightsError

Activation = Literal['gelu', 'gelu_new', 'gelu_pytorch_tanh', 'relu']
Pooling = Literal['mean', 'cls']
_SIZES = {
  'vocab': 'vocab_size',
  'layers': 'num_hidden_layers',
  'width': 'hidden_size',
  'hidden': 'intermediate_size',
  'heads': 'num_attention_heads',
  'positions': 'max_position_embeddings',
}


@dataclasses.dataclass(frozen=True)
class EncoderConfig:
  """Shape of one BERT encoder; `kinds` are the token types, of which a single text uses the first."""

  vocab: int
  layers: int
  width: int
  hidden: int
  heads: int
  positions: int
  kinds: int = 2
  eps: float = 1e-12
  activation: Activation = 'gelu'

  def __post_init__(self):
    for name in (*_SIZES, 'kinds'):
      require(getattr(self, name) > 0, f'{name} is {getattr(self, name)}; it must be positive')
    require(self.width % self.heads == 0, f'width {self.width} is no multiple of heads {self.heads}')
    known = typing.get_args(Activation)
    require(self.activation in known, f'activation is {self.activation!r}; known are {", ".join(known)}')


@dataclasses.dataclass(frozen=True)
class EmbedderConfig:
  """How texts become vectors.

  Attributes:
    pooling: the mean of the token vectors, or the first one.
    normalise: vectors have length 1.
    lower: texts are put in lower case before the tokenizer sees them.
    max_tokens: what is longer is cut, special tokens included.
  """

  encoder: EncoderConfig
  pooling: Pooling = 'mean'
  normalise: bool = True
  lower: bool = False
  max_tokens: int = 512


def read_embedder_config(folder: pathlib.Path) -> EmbedderConfig:
  """The settings in a folder. Without a modules.json: the plain mean of the encoder's token vectors.

  Raises:
    WeightsError: there is no config.json, it is no plain BERT encoder's, or the folder asks for another pooling or for
      a further layer.
  """
  encoder = _read_encoder(folder / 'config.json')
  pooling, normalise = _read_modules(folder)
  sentence = _json(folder / 'sentence_bert_config.json') or {}
  limits = [sentence.get('max_seq_length'), (_json(folder / 'tokenizer_config.json') or {}).get('model_max_length')]
  limit = next((limit for limit in limits if isinstance(limit, int | float)), encoder.positions)
  lower, max_tokens = bool(sentence.get('do_lower_case')), int(min(limit, encoder.positions))
  return EmbedderConfig(encoder, pooling, normalise, lower, max_tokens)


def _read_encoder(file: pathlib.Path) -> EncoderConfig:
  config = _json(file)
  if config is None:
    raise WeightsError(f'{file} does not exist; name the folder of a sentence embedding model')
  for key, usual in (('model_type', 'bert'), ('position_embedding_type', 'absolute'), ('is_decoder', False)):
    if config.get(key, usual) != usual:
      raise WeightsError(f'{file}: {key} is {config[key]!r}; only {usual!r} is known here')
  try:
    sizes = {ours: int(config[theirs]) for ours, theirs in _SIZES.items()}
    kinds, eps = int(config.get('type_vocab_size', 2)), float(config.get('layer_norm_eps', 1e-12))
    return EncoderConfig(**sizes, kinds=kinds, eps=eps, activation=config.get('hidden_act', 'gelu'))
  except (KeyError, TypeError, ValueError) as error:
    raise WeightsError(f'{file} describes no encoder: {type(error).__name__}: {error}') from error


def _read_modules(folder: pathlib.Path) -> tuple[Pooling, bool]:
  """(how token vectors become one, whether that is normalised), as modules.json says."""
  file = folder / 'modules.json'
  modules: Any = _json(file)
  if modules is None:
    return 'mean', False
  pooling: Pooling = 'mean'
  normalise = False
  for module in modules:
    kind = str(module['type']).rsplit('.', 1)[-1]
    if kind == 'Pooling':
      pooling = _pooling_mode(folder / module['path'] / 'config.json')
    elif kind == 'Normalize':
      normalise = True
    elif kind != 'Transformer':
      raise WeightsError(f'{file}: there is a module {kind}; known here are Transformer, Pooling and Normalize')
  return pooling, normalise


def _pooling_mode(file: pathlib.Path) -> Pooling:
  config: Mapping[str, Any] = _json(file) or {}
  modes = [key.removeprefix('pooling_mode_').removesuffix('_tokens') for key in config if config[key] is True]
  mode = config.get('pooling_mode') or ','.join(mode for mode in modes if mode != 'include_prompt')
  mode = 'cls' if mode == 'cls_token' else mode
  if mode not in ('mean', 'cls'):
    raise WeightsError(f'{file}: the pooling is {mode!r}; known here are mean and cls')
  return mode


def _json(file: pathlib.Path) -> Any:
  """What a file holds, None if there is none."""
  if not file.is_file():
    return None
  try:
    return json.loads(file.read_text(encoding='utf-8'))
  except ValueError as error:
    raise WeightsError(f'{file} is no JSON: {error}') from error
