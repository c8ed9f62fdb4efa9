"""SLCA-GRPO and what it is compared with, at the settings of arXiv:2609.29050, table 6.

python launch/train_rl.py --config=configs/rl.py:slca --config.model.path=runs/sft/model \
  --config.data.train=tasks.jsonl --config.data.heldout=heldout.jsonl

The part after the colon is a method or an ablation of `slca_jax/train/methods.py`, or an estimator of one's own as
FILE.py:NAME; its options are settings like any other, for example --config.method.options.tool_weight=2.0.
docs/extending.md says how environments, rewards and judges of one's own are named; `launch/study.py` compares many
methods. Needs a TPU host or GPUs; published gains of slca over grpo on Qwen2.5-7B: +2.5 points in-domain, +1.4 on BFCL,
+9.2 on τ²-bench. Not measured here at that size; `launch/quickstart.sh` measures both methods at the size of a laptop.

Tools answer from the tasks' records and a rule rates answers, unless an OpenAI-compatible endpoint does. As published:

  --config.environment.backend=simulated --config.environment.simulator.base_url=http://HOST:PORT/v1 \
  --config.environment.simulator.model=MOCKER --config.judge.kind=llm --config.judge.endpoint.base_url=http://… \
  --config.judge.endpoint.model=JUDGE --config.scoring.judge_failure=0.0

`configs/rl.py:other_mocker` has another family play the tools, `:no_sgls` is slca without the schema's guidance of the
simulator. `:toolpo_judge` asks a judge for its outcome, `:rltr_judge` for its plans, `:execution` whether tasks are
solved; all ask the model at --config.referee, the first and the last nobody with --config.scoring.referee=rule. RLTR's
planner comes from `launch/train_sft.py --config.learned.part=planner`, and another model answers for it in
`launch/evaluate.py` with --config.summariser.path=runs/sft/model. A key is read from the environment variable that
api_key_env names. --config.cache.replay=True repeats a run without its endpoints.
"""

from slca_jax.config import defaults
from slca_jax.own import is_own
from slca_jax.train.methods import METHODS, VARIANTS, changes
from slca_jax.train.settings import RLConfig


def get_config(method: str = 'slca'):
  """The settings of a method or variant; everything but what it changes is the same for all."""
  if method not in METHODS and method not in VARIANTS and not is_own(method):
    raise ValueError(
      f'{method!r} is no method; configs/rl.py:METHOD takes FILE.py:NAME or one of {", ".join((*METHODS, *VARIANTS))}'
    )
  config = defaults(RLConfig)
  config.output = f'runs/{method.rpartition(":")[2]}'
  config.prompts = 128
  config.mini_batch = 32
  config.group_size = 16
  config.epochs = 1
  config.eval_every = 10
  config.optimizer.learning_rate = 1e-6
  config.objective.kl = 0.001
  config.rollout.limits.turns = 10
  config.rollout.limits.prompt_tokens = 16384
  config.rollout.limits.response_tokens = 8192
  config.rollout.local.context = 24576
  # The cache holds (prompts x context + slots x own) x layers x kv_heads x head_dim x 2 numbers: 21 GiB for Qwen2.5-7B
  # in bfloat16. A group of 16 has its prompt twice.
  config.rollout.local.prompts = 8
  config.rollout.local.siblings = 8
  config.rollout.local.slots = 24
  config.rollout.local.own = 8192
  config.batching.lengths = (8192, 16384, 24576)
  config.batching.micro_rows = 8
  config.referee.sampling.temperature = 0.6 if method == 'rltr' else 0.0  # rltr averages samples
  settings = changes(method)
  config.method.options.update(settings.pop('method.options'))
  config.update_from_flattened_dict(settings)
  return config
