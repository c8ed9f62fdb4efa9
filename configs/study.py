"""A study: the methods and ablations of SLCA-GRPO (arXiv:2609.29050), three seeds each, under disturbed judges.

python launch/study.py --config=configs/study.py

On the quickstart's market every method trains from its seed's supervised policy with the same questions and budget,
under a noisy judge and under a biased one; grpo and slca also over sweeps of noise and bias. The command says first how
many CPU hours the rest takes. --config.select='bias=0.25/slca*/*' makes a part, --config.jobs=2 --config.pinned=True
two runs at a time. Expect OUTPUT/study.md, .tex and .csv with mean ± deviation, intervals and the claims that hold.

`configs/study.py:own` compares methods on your own model and tasks: --config.rl.model.path=… --config.rl.data.train=…
--config.rl.data.heldout=… (in these, {seed} stands for the seed), --config.methods="('grpo', 'slca')". An estimator of
yours is a method as well: --config.methods="('slca', 'estimators.py:leave_one_out')". A file of yours whose
`get_config` gives settings of a run goes in its place: `configs/study.py:my_run.py`. Settings of one method are in
`overrides`: --config.overrides="('rltr: model.path=runs/planner/model',)"; rltr's planner needs them there.
`configs/study.py:synthesised` takes the worlds and policies of `benchmarks/synthesised_training.py --methods=`.
"""

import importlib.util
import pathlib

from slca_jax.config import defaults
from slca_jax.evals.study_settings import StudyConfig

BASELINES = ('grpo', 'slca', 'toolpo', 'toolpo_judge', 'toolpo_centred', 'rltr', 'tara', 'slca_tara')
ABLATIONS = (
  *('summary_only', 'summary_to_tool', 'tool_to_summary', 'both_open', 'guard_only', 'tool_only'),
  *('ratio_0.5', 'ratio_2', 'ratio_3', 'ratio_5', 'uniform', 'name_heavy', 'value_heavy'),
  *('execution', 'execution_grpo'),
)
# Kinds of questions break even between a bias of 0.063 and one of 0.376, by the words that a judge has.
BIASES = (0.05, 0.1, 0.15, 0.2, 0.3, 0.35, 0.425, 0.5)
NOISES = (0.1, 0.6, 1.0)
_HERE = pathlib.Path(__file__).parent


def get_config(kind: str = 'quickstart'):
  """The grid on the quickstart's world, on a run of your own, or on synthesised tasks."""
  config = defaults(StudyConfig)
  if kind == 'quickstart':
    config.methods = (*BASELINES, *ABLATIONS)
    config.sweep = (*(f'bias={bias}' for bias in BIASES), *(f'noise={noise}' for noise in NOISES))
    config.quickstart = _load(_HERE / 'quickstart.py').get_config()
    config.quickstart.rl.scoring.referee = 'rule'
    config.run_seconds, config.start_seconds = 50.0, 200.0  # of one core of a server's CPU
    return config
  config.world = 'own'
  config.regimes = ('plain',)
  if kind == 'synthesised':
    config.output = 'runs/study_synthesised'
    config.methods = BASELINES[:3] + BASELINES[4:]
    config.overrides = ('rltr: model.path=runs/synthesised_training/{seed}/planner/model',)
    # Right chains have three to five calls: only a judge that likes more than that works against them.
    config.regimes = ('noise=0.3', 'bias=0.25', 'bias=0.25+bias_turns=6')
    _synthesised(config.rl)
    return config
  path, _, argument = ('configs/rl.py:slca' if kind == 'own' else kind).partition(':')
  config.rl = _load(_HERE / 'rl.py' if kind == 'own' else pathlib.Path(path)).get_config(*filter(None, [argument]))
  return config


def _synthesised(rl):
  world = 'runs/synthesised_training/world'
  rl.model.path = 'runs/synthesised_training/{seed}/sft/2/model'
  rl.model.dtype, rl.model.remat = 'float32', 'none'
  rl.mesh.data, rl.mesh.fsdp, rl.mesh.tensor = 1, 1, 1
  rl.data.train, rl.data.heldout = f'{world}/train.jsonl', f'{world}/heldout.jsonl'
  rl.environment.blueprints = f'{world}/blueprints'
  rl.scoring.referee = 'rule'
  rl.steps = 30
  rl.prompts = rl.mini_batch = rl.group_size = 8
  rl.dump_every = 10
  rl.optimizer.learning_rate = 3e-4
  rl.optimizer.schedule = 'cosine'
  rl.optimizer.final_fraction = 0.1
  rl.optimizer.b2 = 0.95
  rl.optimizer.weight_decay = 0.0
  rl.objective.logprob_chunk = 64
  limits = {'turns': 7, 'calls': 8, 'prompt_tokens': 128, 'response_tokens': 384, 'turn_tokens': 48}
  rl.rollout.limits.update(limits | {'observation_tokens': 96})
  rl.rollout.local.update({'slots': 64, 'context': 512, 'prefill_chunk': 16, 'prefill_rows': 16})
  rl.batching.lengths = (512,)
  rl.batching.micro_rows = 4


def _load(path: pathlib.Path):
  spec = importlib.util.spec_from_file_location(f'configs_{path.stem}', path)
  if spec is None or spec.loader is None or not path.is_file():
    raise ValueError(f'{path} is no Python file; configs/study.py:KIND takes quickstart, own, synthesised or a file')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module
