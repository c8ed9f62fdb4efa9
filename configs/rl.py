"""SLCA-GRPO and what it is compared with, at the settings of arXiv:2609.29050, table 6.

python launch/train_rl.py --config=configs/rl.py:slca --config.model.path=runs/sft/model \
  --config.data.train=tasks.jsonl --config.data.heldout=heldout.jsonl

The part after the colon is a method of METHODS below; its options are settings like any other, for example
--config.method.options.tool_weight=2.0. Needs a TPU host or GPUs; published gains of slca over grpo on Qwen2.5-7B:
+2.5 points in-domain, +1.4 on BFCL, +9.2 on τ²-bench. Not measured here at that size; `launch/quickstart.sh` measures
both methods at the size of a laptop.

Tools answer from the tasks' records and a rule rates answers, unless an OpenAI-compatible endpoint does. As published:

  --config.environment.backend=simulated --config.environment.simulator.base_url=http://HOST:PORT/v1 \
  --config.environment.simulator.model=MOCKER --config.judge.kind=llm --config.judge.endpoint.base_url=http://… \
  --config.judge.endpoint.model=JUDGE --config.scoring.judge_failure=0.0

Another mocker family is another simulator.base_url or simulator.model; `configs/rl.py:no_sgls` is slca without the
schema's guidance of the simulator. toolpo asks a judge for its outcome with --config.scoring.outcome=judge, rltr for
its plans with --config.scoring.completeness=judge; both ask the model at --config.referee. A key is read from the
environment variable that api_key_env names. --config.cache.replay=True repeats a run without its endpoints.
"""

from typing import Any

from slca_jax.config import defaults
from slca_jax.train.settings import RLConfig

# name: (estimator, its options, the protocol that fills its rewards)
_WEIGHTS = {'tool_weight': 1.0, 'summary_weight': 1.0}
_TURNS = {'discount': 0.5, 'future_weight': 0.5}
METHODS: dict[str, tuple[str, dict[str, Any], str]] = {
  'slca': ('slca', _WEIGHTS, 'slca'),
  'grpo': ('grpo', {}, 'grpo'),
  'toolpo': ('toolpo', {'local_weight': 1.0}, 'toolpo'),
  'rltr': ('rltr', {}, 'rltr'),
  'tara': ('tara', {'summary_weight': 1.0, **_TURNS}, 'tara'),
  'slca_tara': ('slca_tara', {**_WEIGHTS, **_TURNS}, 'slca_tara'),
  # Turns without the bias that their deviations have where the policy chooses when to stop (slca_jax/ops/turns.py).
  'tara_margin': ('tara_margin', {'summary_weight': 1.0, **_TURNS}, 'tara_margin'),
  'slca_tara_margin': ('slca_tara_margin', {**_WEIGHTS, **_TURNS}, 'slca_tara_margin'),
  # Ablations: D.9 opens a gate between the segments, D.2 takes the summary's credit away, "w/o HierR" the tools'.
  'summary_to_tool': ('support', {'summary_to_tool': 1.0, 'tool_to_summary': 0.0}, 'support'),
  'tool_to_summary': ('support', {'summary_to_tool': 0.0, 'tool_to_summary': 1.0}, 'support'),
  'guard_only': ('guard_only', _WEIGHTS, 'guard_only'),
  'tool_only': ('tool_only', {'tool_weight': 1.0}, 'tool_only'),
  'summary_only': ('summary_only', {}, 'summary_only'),
}


def get_config(method: str = 'slca'):
  """The settings of a method; everything but the method is the same for all. `no_sgls` is slca in an unguided world."""
  if method == 'no_sgls':
    return _without_sgls()
  if method not in METHODS:
    raise ValueError(f'{method!r} is no method; configs/rl.py:METHOD takes one of {", ".join(METHODS)}, no_sgls')
  config = defaults(RLConfig)
  config.output = f'runs/{method}'
  config.method.estimator, options, config.method.protocol = METHODS[method]
  config.method.options.update(options)
  config.prompts = 128
  config.mini_batch = 32
  config.group_size = 16
  config.epochs = 1
  config.eval_every = 10
  config.referee.sampling.temperature = 0.6 if method == 'rltr' else 0.0  # rltr averages samples
  config.optimizer.learning_rate = 1e-6
  config.objective.kl = 0.001
  config.rollout.limits.turns = 10
  config.rollout.limits.prompt_tokens = 16384
  config.rollout.limits.response_tokens = 8192
  config.rollout.local.context = 24576
  # The cache holds slots x context x layers x kv_heads x head_dim x 2 numbers: 21 GiB for Qwen2.5-7B in bfloat16.
  config.rollout.local.slots = 16
  config.batching.lengths = (8192, 16384, 24576)
  config.batching.micro_rows = 8
  return config


def _without_sgls():
  """slca with simulated tools, but neither checks before them nor the tools' definitions in the simulator's prompt."""
  config = get_config('slca')
  config.output = 'runs/no_sgls'
  config.environment.backend = 'simulated'
  config.environment.checks = False
  config.environment.definition = False
  return config
