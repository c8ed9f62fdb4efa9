"""A checkpoint's config.json and generation_config.json, read and written; what the decoder cannot do is refused."""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from slca_jax.errors import ConfigError, WeightsError
from slca_jax.nn.config import RopeScaling, TransformerConfig

CONFIG, GENERATION = 'config.json', 'generation_config.json'
_ARCHITECTURES = {'qwen2': 'Qwen2ForCausalLM', 'qwen3': 'Qwen3ForCausalLM', 'llama': 'LlamaForCausalLM'}
_SIZES = {
  'vocab': 'vocab_size',
  'layers': 'num_hidden_layers',
  'width': 'hidden_size',
  'hidden': 'intermediate_size',
  'heads': 'num_attention_heads',
  'context': 'max_position_embeddings',
}
# What a checkpoint of one network must agree on; the rest of TransformerConfig is how it is run.
IDENTITY = (*_SIZES, 'kv_heads', 'head_dim', 'rope_theta', 'rope_scaling', 'eps', 'qkv_bias', 'qk_norm', 'tied')


def read_config(path: str | pathlib.Path) -> TransformerConfig:
  """The decoder of the checkpoint directory `path`; how it is run (types, remat, attention) is left at the defaults.

  Raises:
    WeightsError: no config.json, a key that is missing, or a feature that the decoder does not have.
  """
  file = pathlib.Path(path) / CONFIG
  config = _read_json(file)
  if config is None:
    raise WeightsError(f'{file} does not exist; name the directory of a Hugging Face checkpoint')
  family = config.get('model_type')
  if family is None and (file.parent / 'model' / CONFIG).exists():
    raise WeightsError(f'{file.parent} is the folder of a run; its model is {file.parent / "model"}')
  if family not in _ARCHITECTURES:
    raise WeightsError(f'{file}: model_type is {family!r}; supported are {", ".join(sorted(_ARCHITECTURES))}')
  _refuse_unsupported(config, file)
  theta, scaling = _rope(config, file)
  sizes: dict[str, Any] = {ours: _whole(config, key, file) for ours, key in _SIZES.items()}
  kv_heads = (
    sizes['heads'] if config.get('num_key_value_heads') is None else _whole(config, 'num_key_value_heads', file)
  )
  fallback = 128 if family == 'qwen3' else sizes['width'] // sizes['heads']
  head_dim = fallback if config.get('head_dim') is None else _whole(config, 'head_dim', file)
  try:
    return TransformerConfig(
      **sizes,
      kv_heads=kv_heads,
      head_dim=head_dim,
      rope_theta=theta,
      rope_scaling=scaling,
      eps=_number(config, 'rms_norm_eps', 1e-6, file),
      qkv_bias=family == 'qwen2',
      qk_norm=family == 'qwen3',
      tied=bool(config.get('tie_word_embeddings', False)),
    )
  except ConfigError as error:
    raise WeightsError(f'{file}: {error}') from error


def hf_config(config: TransformerConfig, *, dtype: str, eos: Sequence[int] = ()) -> dict[str, Any]:
  """What config.json says of a decoder, in the older and the newer spelling of rotary settings and of the type.

  Raises:
    WeightsError: biases and query-key norms together, which none of the three families has.
  """
  if config.qkv_bias and config.qk_norm:
    raise WeightsError('qkv_bias and qk_norm are both on; no Hugging Face family that is written here has both')
  family = 'qwen3' if config.qk_norm else 'qwen2' if config.qkv_bias else 'llama'
  scaling = config.rope_scaling and {
    'rope_type': 'llama3',
    'factor': config.rope_scaling.factor,
    'low_freq_factor': config.rope_scaling.low_freq_factor,
    'high_freq_factor': config.rope_scaling.high_freq_factor,
    'original_max_position_embeddings': config.rope_scaling.original_context,
  }
  return {
    'architectures': [_ARCHITECTURES[family]],
    'model_type': family,
    **{key: getattr(config, ours) for ours, key in _SIZES.items()},
    'num_key_value_heads': config.kv_heads,
    'head_dim': config.head_dim,
    'hidden_act': 'silu',
    'rms_norm_eps': config.eps,
    'rope_theta': config.rope_theta,
    'rope_scaling': scaling,
    'rope_parameters': {'rope_type': 'default', **(scaling or {}), 'rope_theta': config.rope_theta},
    'tie_word_embeddings': config.tied,
    'attention_bias': False,
    'bos_token_id': None,
    'eos_token_id': _one_or_list(eos),
    'torch_dtype': dtype,
    'dtype': dtype,
  }


def write_configs(
  directory: pathlib.Path,
  config: TransformerConfig,
  *,
  dtype: str,
  source: pathlib.Path | None = None,
  eos: Sequence[int] = (),
) -> None:
  """Writes config.json and generation_config.json: the source's own, with the type of the new weights, or fresh ones.

  Args:
    eos: ids that end a completion; those that the source does not name are added to its own.

  Raises:
    WeightsError: the source describes another network than `config`.
  """
  carried = _read_json(source / CONFIG) if source else None
  if source and carried is not None:
    _expect_same(config, read_config(source), source)
    carried |= {key: dtype for key in ('torch_dtype', 'dtype') if key in carried} or {'torch_dtype': dtype}
  _write_json(directory / CONFIG, hf_config(config, dtype=dtype, eos=eos) if carried is None else carried)
  generation = _read_json(source / GENERATION) if source else None
  known = eos_ids(source) if source else ()
  if set(eos) - set(known):
    generation = (generation or {}) | {'eos_token_id': _one_or_list(list(dict.fromkeys([*known, *eos])))}
  if generation is not None:
    _write_json(directory / GENERATION, generation)


def eos_ids(path: str | pathlib.Path) -> tuple[int, ...]:
  """Ids that end a completion: those of generation_config.json, else of config.json, else none."""
  for name in (GENERATION, CONFIG):
    found = (_read_json(pathlib.Path(path) / name) or {}).get('eos_token_id')
    if found is not None:
      return tuple(found) if isinstance(found, list) else (found,)
  return ()


def _refuse_unsupported(config, file):
  layers = config.get('num_hidden_layers') or 0
  kinds = config.get('layer_types') or []
  windowed = config.get('use_sliding_window') and config.get('sliding_window', 'usual') is not None
  if any(kind != 'full_attention' for kind in kinds):
    other = next(kind for kind in kinds if kind != 'full_attention')
    raise WeightsError(f'{file}: layer_types holds {other!r}; every layer must be full_attention')
  if windowed and not kinds and config.get('max_window_layers', 0) < layers:
    raise WeightsError(f'{file}: use_sliding_window is True; only full attention is supported')
  if config['model_type'] != 'qwen2' and config.get('attention_bias'):
    raise WeightsError(f'{file}: attention_bias is True; a bias on o_proj is not supported')
  if config.get('mlp_bias'):
    raise WeightsError(f'{file}: mlp_bias is True; feed-forward layers have no bias here')
  if config.get('hidden_act', 'silu') not in ('silu', 'swish'):
    raise WeightsError(f'{file}: hidden_act is {config["hidden_act"]!r}; only silu is supported')
  if config.get('quantization_config'):
    raise WeightsError(f'{file}: quantization_config is set; load the checkpoint before it was quantised')


def _rope(config, file) -> tuple[float, RopeScaling | None]:
  rope = _rotary_settings(config, file)
  theta = _number(rope if 'rope_theta' in rope else config, 'rope_theta', 10000.0, file)
  partial = rope.get('partial_rotary_factor', config.get('partial_rotary_factor', 1.0))
  if partial not in (None, 1, 1.0):
    raise WeightsError(f'{file}: partial_rotary_factor is {partial}; only 1.0 is supported')
  kind = _rotary_kind(rope)
  if kind == 'default':
    return theta, None
  if kind != 'llama3':
    raise WeightsError(f"{file}: rope_type is {kind!r}; supported are 'default' and 'llama3'")
  try:
    return theta, RopeScaling(
      factor=float(rope['factor']),
      low_freq_factor=float(rope['low_freq_factor']),
      high_freq_factor=float(rope['high_freq_factor']),
      original_context=int(rope['original_max_position_embeddings']),
    )
  except KeyError as error:
    raise WeightsError(f'{file}: rotary scaling llama3 lacks {error}') from error
  except ConfigError as error:
    raise WeightsError(f'{file}: rotary scaling llama3: {error}') from error


def _rotary_settings(config, file) -> Mapping[str, Any]:
  """The rotary settings under their newer or older name; both may be there if they say the same."""
  new, old = (config.get(name) or {} for name in ('rope_parameters', 'rope_scaling'))
  for rope in (new, old):
    if not isinstance(rope, Mapping) or any(isinstance(value, Mapping) for value in rope.values()):
      raise WeightsError(
        f'{file}: rotary settings {rope!r} differ between layers or are no table; one set is supported'
      )
  spelt = lambda rope: (
    {name: value for name, value in rope.items() if name != 'type'} | {'rope_type': _rotary_kind(rope)}
  )
  if new and old and not spelt(old).items() <= spelt(new).items():
    # transformers takes the older ones then, others the newer ones.
    raise WeightsError(f'{file}: rope_parameters {new!r} and rope_scaling {old!r} differ; keep the one that is meant')
  return new or old


def _rotary_kind(rope) -> Any:
  return rope.get('rope_type', rope.get('type', 'default'))


def _expect_same(config, found, source):
  for name in IDENTITY:
    ours, theirs = getattr(config, name), getattr(found, name)
    if ours != theirs:
      raise WeightsError(f'{source} describes another network: {name} is {theirs!r} there and {ours!r} here')


def _whole(config, key, file) -> int:
  value = config.get(key)
  if not isinstance(value, int) or isinstance(value, bool):
    raise WeightsError(f'{file}: {key} is {value!r}; it must be a whole number')
  return value


def _number(config, key, default, file) -> float:
  value = config.get(key, default)
  if not isinstance(value, int | float) or isinstance(value, bool):
    raise WeightsError(f'{file}: {key} is {value!r}; it must be a number')
  return float(value)


def _one_or_list(ids):
  return None if not ids else ids[0] if len(ids) == 1 else list(ids)


def _read_json(file: pathlib.Path) -> dict[str, Any] | None:
  if not file.is_file():
    return None
  try:
    content = json.loads(file.read_text(encoding='utf-8'))
  except ValueError as error:
    raise WeightsError(f'{file} is no JSON: {error}') from error
  if not isinstance(content, dict):
    raise WeightsError(f'{file} holds {type(content).__name__}, not a table of settings')
  return content


def _write_json(file, content):
  file.write_text(json.dumps(content, indent=2) + '\n', encoding='utf-8')
