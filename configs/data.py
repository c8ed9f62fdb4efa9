"""From a data set to files for SFT and RL, as in SLCA-GRPO (arXiv:2609.29050), C.1.

python launch/prepare_data.py --config=configs/data.py:toucan --config.input=Toucan/SFT --config.output=runs/data/toucan

Published: 4,000 held-out samples (3,000 single-turn, 1,000 decomposed), 42,423 for SFT, 31,818 for RL (about a third
decomposed). `toucan` asks for these counts; a smaller input needs smaller ones, or shares, as in
--config.heldout.size=0.05 --config.sft.size=0.57 --config.rl.size=-1. Other formats get shares.
"""

from slca_jax.config import defaults
from slca_jax.data.formats.known import ALIASES, FORMATS
from slca_jax.data.settings import REST, Preparation

CALLS_ALONE = ('xlam', 'bfcl', 'acebench', 'toolrl', 'toolrl_sft')  # what they show ends with calls, not with an answer
FOR_RL = ('slca_rl', 'verl', 'trl_prompt', 'verifiers', 'tau2', 'stabletoolbench')  # tasks without demonstrations
AS_SPLIT = ('slca_rl', 'slca_sft')  # the authors' files: decomposed, and their held-out rows are a file of their own


def get_config(name: str = 'auto'):
  """The settings for a format, `auto` for whatever the rows look like."""
  known = ['auto', *FORMATS, *ALIASES]
  if name not in known:
    raise ValueError(f'{name!r} is no format; configs/data.py:FORMAT takes one of {", ".join(known)}')
  config = defaults(Preparation)
  config.format = name
  config.output = f'runs/data/{name}'
  config.near_duplicates = 'drop'
  if ALIASES.get(name, name) in ('toucan', 'toucan_teacher'):
    config.heldout.size, config.heldout.decomposed = 4000.0, 0.25
    config.sft.size = 42423.0
    config.rl.size, config.rl.decomposed = 31818.0, 1 / 3
  if name in CALLS_ALONE:
    config.filters.answers = False
  if name in FOR_RL:
    config.sft.size, config.rl.size = 0.0, REST
  if name in AS_SPLIT:
    config.heldout.size = 0.0
    config.filters.irrelevant = False
    config.filters.duplicates = False
  if name == 'slca_sft':
    config.sft.size, config.rl.size = REST, 0.0
    config.decompose_from = 0
  return config
