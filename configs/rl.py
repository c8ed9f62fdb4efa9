"""SLCA-GRPO and what it is compared with, at the settings of arXiv:2609.29050, table 6.

python launch/train_rl.py --config=configs/rl.py:slca --config.model.path=runs/sft/model \
  --config.data.train=tasks.jsonl --config.data.heldout=heldout.jsonl

The part after the colon is a method of METHODS below: slca, grpo, toolpo, rltr, tara, slca_tara. Needs a
TPU slice or GPUs; published gains of slca over grpo on Qwen2.5-7B: +2.5 points in-domain, +1.4 on BFCL, +9.2 on
τ²-bench. Not measured here at that size; `launch/quickstart.sh` measures both methods at the size of a laptop.
"""

from typing import Any

from slca_jax.config import defaults
from slca_jax.train.settings import RLConfig

# name: (estimator, its options, the protocol that fills its rewards)
METHODS: dict[str, tuple[str, dict[str, Any], str]] = {
  'slca': ('slca', {}, 'slca'),
  'grpo': ('grpo', {}, 'grpo'),
  'toolpo': ('toolpo', {}, 'toolpo'),
  'rltr': ('rltr', {}, 'rltr'),
  'tara': ('tara', {}, 'tara'),
  'slca_tara': ('slca_tara', {}, 'slca_tara'),
}


def get_config(method: str = 'slca'):
  """The settings of a method; everything but the method is the same for all."""
  if method not in METHODS:
    raise ValueError(f'{method!r} is no method; configs/rl.py:METHOD takes one of {", ".join(METHODS)}')
  config = defaults(RLConfig)
  config.output = f'runs/{method}'
  config.method.estimator, options, config.method.protocol = METHODS[method]
  config.method.options.update(options)
  config.prompts = 128
  config.mini_batch = 32
  config.group_size = 16
  config.epochs = 1
  config.optimizer.learning_rate = 1e-6
  config.objective.kl = 0.001
  config.rollout.limits.turns = 10
  config.rollout.limits.prompt_tokens = 16384
  config.rollout.limits.response_tokens = 8192
  config.rollout.local.context = 24576
  config.batching.lengths = (8192, 16384, 24576)
  config.batching.micro_rows = 8
  return config
