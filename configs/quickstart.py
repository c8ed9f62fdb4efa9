"""The quickstart: SFT, then GRPO and SLCA-GRPO under a noisy and a biased judge, on two CPU cores.

bash launch/quickstart.sh

Expect about 5 minutes beside installation, and in runs/quickstart/summary.json: success before near 0.2, after
SLCA-GRPO above 0.95 under both judges. `python benchmarks/quickstart_seeds.py` repeats it over five seeds.
"""

from slca_jax.config import defaults
from slca_jax.quickstart.experiment import QuickstartConfig


def get_config():
  """The settings that were measured."""
  config = defaults(QuickstartConfig)
  config.output = 'runs/quickstart'
  for run in (config.sft, config.rl):
    run.model.dtype = 'float32'
    run.model.remat = 'none'
    run.mesh.data, run.mesh.fsdp, run.mesh.tensor = 1, 1, 1
  _sft(config.sft)
  _rl(config.rl)
  return config


def _sft(sft):
  sft.batch = 48
  sft.optimizer.learning_rate = 4e-3
  sft.optimizer.schedule = 'cosine'
  sft.optimizer.warmup = 0.03
  sft.optimizer.hold = 0.4
  sft.optimizer.final_fraction = 0.05
  sft.optimizer.b2 = 0.98
  sft.optimizer.weight_decay = 1e-4
  sft.batching.lengths = (256,)
  sft.batching.micro_rows = 8
  sft.logprob_chunk = 64
  sft.checkpoint.every = 1000


def _rl(rl):
  rl.steps = 30
  rl.prompts = rl.mini_batch = 8
  rl.group_size = 8
  rl.optimizer.learning_rate = 3e-4
  rl.optimizer.schedule = 'cosine'
  rl.optimizer.final_fraction = 0.1
  rl.optimizer.b2 = 0.95
  rl.optimizer.weight_decay = 0.0
  rl.objective.kl = 0.001
  rl.objective.logprob_chunk = 64
  rl.rollout.limits.turns = 6
  rl.rollout.limits.calls = 8
  rl.rollout.limits.prompt_tokens = 96
  rl.rollout.limits.response_tokens = 256
  rl.rollout.limits.turn_tokens = 48
  rl.rollout.limits.observation_tokens = 48
  rl.rollout.local.slots = 64
  rl.rollout.local.context = 352
  rl.rollout.local.prefill_chunk = 16
  rl.rollout.local.prefill_rows = 16
  rl.batching.lengths = (512,)
  rl.batching.micro_rows = 4
  rl.checkpoint.every = 10
  rl.dump_every = 5
