"""Shapes of well-known decoders against their published parameter counts."""

import math

import jax
import pytest

from slca_jax.errors import ConfigError
from slca_jax.nn.presets import PRESETS, preset
from slca_jax.nn.transformer import abstract_model

# As published with the checkpoints; a tied embedding counts once.
PUBLISHED = {
  'qwen2.5-1.5b': 1_543_714_304,
  'qwen2.5-3b': 3_085_938_688,
  'qwen2.5-7b': 7_615_616_512,
  'qwen3-8b': 8_190_735_360,
}


@pytest.mark.parametrize('name', sorted(PRESETS))
def test_parameters_are_as_many_as_published(name):
  config = preset(name)
  _, shapes = abstract_model(config)
  padding = (config.padded_vocab - config.vocab) * config.width * (1 if config.tied else 2)
  assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(shapes)) - padding == PUBLISHED[name]


def test_an_unknown_decoder_names_the_nearest():
  with pytest.raises(ConfigError, match=r"did you mean 'qwen2\.5-7b'"):
    preset('qwen2.5-7')
