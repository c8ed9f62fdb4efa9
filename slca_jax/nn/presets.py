"""Shapes of well-known decoders, for planning without a checkpoint. They are facts of the published configurations."""

from typing import Any

from slca_jax.config import nearest
from slca_jax.errors import ConfigError
from slca_jax.nn.config import TransformerConfig

_QWEN2: dict[str, Any] = {'head_dim': 128, 'rope_theta': 1e6, 'qkv_bias': True, 'context': 32768}
_QWEN3: dict[str, Any] = {'head_dim': 128, 'rope_theta': 1e6, 'qk_norm': True, 'context': 40960}
PRESETS: dict[str, dict[str, Any]] = {
  'qwen2.5-1.5b': dict(vocab=151936, layers=28, width=1536, hidden=8960, heads=12, kv_heads=2, tied=True, **_QWEN2),
  'qwen2.5-3b': dict(vocab=151936, layers=36, width=2048, hidden=11008, heads=16, kv_heads=2, tied=True, **_QWEN2),
  'qwen2.5-7b': dict(vocab=152064, layers=28, width=3584, hidden=18944, heads=28, kv_heads=4, tied=False, **_QWEN2),
  'qwen3-8b': dict(vocab=151936, layers=36, width=4096, hidden=12288, heads=32, kv_heads=8, tied=False, **_QWEN3),
}


def preset(name: str) -> TransformerConfig:
  """The decoder of that name; how it is run (types, remat, attention) is left at the defaults.

  Raises:
    ConfigError: no such name.
  """
  if name not in PRESETS:
    raise ConfigError(f'{name!r} is no known decoder; {nearest(name, list(PRESETS))}')
  return TransformerConfig(**PRESETS[name])
