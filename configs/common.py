"""What config files share: a ConfigDict of the defaults, to be changed line by line."""

from ml_collections import ConfigDict

from slca_jax.config import defaults
from slca_jax.train.settings import RLConfig, SFTConfig


def rl_defaults() -> ConfigDict:
  """The settings of `RLConfig`: SLCA-GRPO's published ones."""
  return defaults(RLConfig)


def sft_defaults() -> ConfigDict:
  """The settings of `SFTConfig`."""
  return defaults(SFTConfig)
