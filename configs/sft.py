"""Supervised fine-tuning as in SLCA-GRPO (arXiv:2609.29050), table 6.

python launch/train_sft.py --config=configs/sft.py --config.model.path=Qwen/Qwen2.5-7B-Instruct \
  --config.data.train=dialogues.jsonl --config.data.heldout=heldout.jsonl

Needs a TPU host or GPUs; the published run saw 42,423 dialogues twice. Not measured here at that size.
"""

from slca_jax.config import defaults
from slca_jax.train.settings import SFTConfig


def get_config():
  """Table 6: batch 32, 2 epochs, AdamW 5e-6 with cosine decay after 10% warm-up, 16k context, bfloat16."""
  config = defaults(SFTConfig)
  config.output = 'runs/sft'
  config.batch = 32
  config.epochs = 2
  config.eval_every = 200
  config.optimizer.learning_rate = 5e-6
  config.optimizer.schedule = 'cosine'
  config.optimizer.warmup = 0.1
  config.batching.lengths = (4096, 8192, 16384)
  config.batching.micro_rows = 8
  config.model.dtype = 'bfloat16'
  return config
