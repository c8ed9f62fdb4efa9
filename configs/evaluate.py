"""Scores of a policy on held-out tasks, as in SLCA-GRPO (arXiv:2609.29050), section 4 and appendix C.6.

python launch/evaluate.py --config=configs/evaluate.py --config.model.path=runs/slca/model \
  --config.tasks=heldout.jsonl --config.output=runs/evaluate_slca

`configs/evaluate.py:sampled` also draws 8 rollouts of each task for pass@k and pass^k; `configs/evaluate.py:ksweep`
takes the files of `launch/ksweep.py`: --config.tasks=data/ksweep/hard_k0.jsonl,data/ksweep/hard_k10.jsonl,…
`configs/evaluate.py:bfcl` asks the Berkeley Function Calling Leaderboard, `configs/evaluate.py:tau2` takes part in
τ²-bench; docs/evaluation.md says what they need. Other settings are those of `configs/rl.py`:
--config.rollout.engine=sglang --config.rollout.urls=http://HOST:30001, --config.environment.backend=simulated,
--config.judge.kind=llm.

Expect tables on the terminal and in OUTPUT/table.md, .tex and .csv, every rollout in OUTPUT/FILE/greedy. Published for
Qwen2.5-7B: SLCA-GRPO 2.5 points above GRPO in-domain. Not measured here at that size.
"""

from slca_jax.config import defaults
from slca_jax.evals.settings import EvaluateConfig


def get_config(kind: str = ''):
  """Greedy rollouts within the limits of training; with samples, or in the longer context of a K-sweep."""
  if kind not in ('', 'sampled', 'ksweep', 'bfcl', 'tau2'):
    raise ValueError(f'{kind!r} is no evaluation; configs/evaluate.py:KIND takes sampled, ksweep, bfcl or tau2')
  config = defaults(EvaluateConfig)
  config.benchmark = kind if kind in ('bfcl', 'tau2') else ''
  config.greedy = True
  config.samples = 8 if kind == 'sampled' else 0
  config.rollout.limits.turns = 10
  config.rollout.limits.prompt_tokens = 24576 if kind == 'ksweep' else 16384
  config.rollout.limits.response_tokens = 8192
  config.rollout.local.context = 32768 if kind == 'ksweep' else 24576
  config.rollout.local.slots = 16
  if not config.benchmark:  # conversations of benchmarks go on behind their first prompt
    config.rollout.local.own = 8192
  return config
