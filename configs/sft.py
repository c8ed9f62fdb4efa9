"""Supervised fine-tuning as in SLCA-GRPO (arXiv:2609.29050), table 6.

python launch/train_sft.py --config=configs/sft.py --config.model.path=Qwen/Qwen2.5-7B-Instruct \
  --config.data.train=dialogues.jsonl --config.data.heldout=heldout.jsonl

Needs a TPU host or GPUs; the published run saw 42,423 dialogues twice. Not measured here at that size.

An update takes 8 full rows of 16,384 tokens, which hold 24 dialogues of 5,300 tokens or 38 of 3,400: 0.99 of what is
computed is real (`benchmarks/sft_packing.py`). `--config.packing.rows=0` takes exactly 32 dialogues, as published, and
pads. To learn no wasteful turns, add `--config.learned.wasteful=False`; RLTR's two models are
`--config.learned.part=planner` and `=summary`.
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
  config.batching.lengths = (4096, 8192, 16384)  # the last one, with full rows
  config.batching.micro_rows = 8
  config.packing.rows = 8
  config.model.dtype = 'bfloat16'
  return config
