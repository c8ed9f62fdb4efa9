"""Candidate sets of K tools as in SLCA-GRPO (arXiv:2609.29050), appendix C.6.

python launch/ksweep.py --config=configs/ksweep.py --config.input=heldout.jsonl --config.output=data/ksweep

`configs/ksweep.py:hard` or `:random` makes one of the two strategies. Expect a table of prompt lengths and skip rates
for each, in the layout of tables 13 and 14. With 300 questions over real MCP servers and a pool of 5,155 of their tools
0.3% (random) and 2.7% (hard) were skipped at K = 50, and 18% and 23% at K = 150.
"""

from slca_jax.config import defaults
from slca_jax.data.ksweep_run import KSweepConfig


def get_config(strategy: str = ''):
  """One strategy, or both, at every K, measured with Qwen2.5's tokenizer in a context of 32,768 tokens."""
  config = defaults(KSweepConfig)
  config.sizes = (0, 10, 20, 50, 100, 150)
  config.strategies = (strategy,) if strategy else ('random', 'hard')
  config.template = 'Qwen/Qwen2.5-7B-Instruct'
  config.embedder = 'sentence-transformers/all-MiniLM-L6-v2'
  config.context = 32768
  return config
