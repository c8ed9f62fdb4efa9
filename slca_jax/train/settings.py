"""The settings of training runs, and the combinations that cannot work. No JAX here: a mistake is refused at once."""

import dataclasses
import pathlib
from typing import Any, Literal

from slca_jax.config import require
from slca_jax.data.sft import Learned
from slca_jax.llm.settings import Endpoint
from slca_jax.own import is_own
from slca_jax.rewards.protocols import Scoring
from slca_jax.rollout.settings import Decoding, Layout, Limits, LocalEngine, SGLangServers
from slca_jax.train.device_settings import MeshShape, Model, Optimizer, Reference
from slca_jax.train.diagnostic_settings import Diagnostics, Tracing
from slca_jax.train.surroundings import (
  JUDGE,
  CacheSettings,
  EnvironmentSettings,
  JudgeSettings,
  check_referee,
  check_surroundings,
)

Unfinished = Literal['summary', 'tool', 'drop']


@dataclasses.dataclass(frozen=True, slots=True)
class Objective:
  """The loss of an update. Defaults: SLCA-GRPO (arXiv:2609.29050), eq. 5 and table 6.

  Attributes:
    clip_low, clip_high: the ratio is clipped to [1 - clip_low, 1 + clip_high].
    dual_clip: bound of the loss of negative advantages, in units of |A|; 0 turns it off.
    kl: weight of the k3 estimate of the divergence from the reference; 0 needs no reference.
    importance_cap: cap of the truncated importance weights from sampler to trainer; 0 turns the correction off.
    unfinished: which segment the last run of a rollout that was cut off belongs to, or 'drop'.
    logprob_chunk: tokens of a row whose logits are alive at once.
  """

  clip_low: float = 0.2
  clip_high: float = 0.2
  dual_clip: float = 3.0
  kl: float = 0.001
  importance_cap: float = 0.0
  unfinished: Unfinished = 'summary'
  logprob_chunk: int = 256

  def __post_init__(self):
    require(0 < self.clip_low <= 1, f'clip_low is {self.clip_low}; it lies in (0, 1]')
    require(self.clip_high > 0, f'clip_high is {self.clip_high}; it must be positive')
    require(self.dual_clip == 0 or self.dual_clip > 1, f'dual_clip is {self.dual_clip}; 0 is off, else it exceeds 1')
    require(self.kl >= 0, f'kl is {self.kl}; it is a weight and at least 0')
    require(self.importance_cap >= 0, f'importance_cap is {self.importance_cap}; 0 is off, 2 is usual')
    require(self.logprob_chunk > 0, f'logprob_chunk is {self.logprob_chunk}; it must be positive')


@dataclasses.dataclass(frozen=True, slots=True)
class Checkpointing:
  """How often, and how many are kept: the last `keep` and, where a run is evaluated, the best one."""

  every: int = 10
  keep: int = 2

  def __post_init__(self):
    require(self.every > 0, f'every is {self.every}; it counts steps and must be positive')
    require(self.keep > 0, f'keep is {self.keep}; at least the last checkpoint is kept')


@dataclasses.dataclass(frozen=True, slots=True)
class TaskFiles:
  """JSONL files of tasks, see `data/tasks.py`; `heldout` may be empty, `heldout_limit` 0 takes all of it."""

  train: str = ''
  heldout: str = ''
  heldout_limit: int = 0

  def __post_init__(self):
    _require_counts(self, 'heldout_limit')


@dataclasses.dataclass(frozen=True, slots=True)
class Method:
  """An advantage estimator by its name in `ops/estimators.py`, its options, and the rewards it is fed with.

  `protocol` names what fills the reward channels (`rewards/protocols.py`); '' takes the estimator's own, and slca's for
  an estimator of one's own. Both may be FILE.py:NAME.
  """

  estimator: str = 'slca'
  options: dict[str, Any] = dataclasses.field(default_factory=dict)
  protocol: str = ''

  @property
  def rewards(self) -> str:
    """The protocol, whether it was named or not."""
    return self.protocol or ('slca' if is_own(self.estimator) else self.estimator)


@dataclasses.dataclass(frozen=True, slots=True)
class RolloutSettings:
  """Which engine samples, how, and where a rollout is stopped.

  Attributes:
    engine: 'local' is the embedded JAX engine, which `local` sets up; 'sglang' are servers, which `sglang` sets up.
    urls: short for `sglang.urls`.
    max_staleness: how many updates of the weights a token may be behind those that learn from it. 0 is strictly
      on-policy; with more, that many batches are rolled out while the trainer works; see `objective.importance_cap`.
  """

  engine: Literal['local', 'sglang'] = 'local'
  urls: str = ''
  max_staleness: int = 0
  limits: Limits = dataclasses.field(default_factory=Limits)
  decoding: Decoding = dataclasses.field(default_factory=Decoding)
  local: LocalEngine = dataclasses.field(default_factory=LocalEngine)
  sglang: SGLangServers = dataclasses.field(default_factory=SGLangServers)

  def __post_init__(self):
    _require_counts(self, 'max_staleness')
    if self.urls:
      named = self.sglang.urls
      require(named in ('', self.urls), f'urls is {self.urls!r} and sglang.urls {named!r}; give one of them')
      object.__setattr__(self, 'sglang', dataclasses.replace(self.sglang, urls=self.urls))
    if self.engine == 'sglang':
      require(bool(self.sglang.servers), 'urls is empty; name the servers, as in http://host:30000')
      return  # how long their context is, only the servers can tell
    limits, context, own = self.limits, self.local.context, self.local.own
    longest = limits.prompt_tokens + limits.response_tokens
    require(
      context >= longest,
      f'local.context is {context}; limits.prompt_tokens {limits.prompt_tokens} + response_tokens '
      f'{limits.response_tokens} need {longest} positions',
    )
    require(
      own is None or own >= limits.response_tokens,
      f'local.own is {own}; limits.response_tokens {limits.response_tokens} need as many positions behind a prompt',
    )


@dataclasses.dataclass(frozen=True, slots=True)
class RLConfig:
  """A reinforcement-learning run. Defaults: SLCA-GRPO (arXiv:2609.29050), table 6.

  Attributes:
    output: folder of checkpoints, metrics, rollouts and, at the end, the model as a Hugging Face folder.
    steps: rollout batches; 0 makes `epochs` passes over the tasks.
    prompts: tasks per step.
    mini_batch: tasks per update; prompts / mini_batch updates are made of each step's rollouts.
    group_size: rollouts per task, G.
    eval_every: steps between greedy evaluations on the held-out tasks, if there are any; 0 never evaluates.
    dump_every: steps between dumps of all rollouts, as `data.store.Trajectories` reads them; 0 never dumps.
    dump_logps: dump the trainer's log-probs beside them, for a report's ratios and divergences.
    referee: the second judge's endpoint, where a protocol asks one: solved or unsolved, or a plan's completeness.
    cache: answers of endpoints on disk.
    diagnostics: what is measured beside, and from where on the run warns.
    trace: steps that are recorded for TensorBoard and Perfetto.
  """

  output: str = 'runs/rl'
  seed: int = 0
  steps: int = 0
  epochs: int = 1
  prompts: int = 128
  mini_batch: int = 32
  group_size: int = 16
  eval_every: int = 0
  dump_every: int = 1
  dump_logps: bool = False
  method: Method = dataclasses.field(default_factory=Method)
  model: Model = dataclasses.field(default_factory=Model)
  mesh: MeshShape = dataclasses.field(default_factory=MeshShape)
  data: TaskFiles = dataclasses.field(default_factory=TaskFiles)
  environment: EnvironmentSettings = dataclasses.field(default_factory=EnvironmentSettings)
  rollout: RolloutSettings = dataclasses.field(default_factory=RolloutSettings)
  scoring: Scoring = dataclasses.field(default_factory=Scoring)
  judge: JudgeSettings = dataclasses.field(default_factory=JudgeSettings)
  referee: Endpoint = JUDGE
  cache: CacheSettings = dataclasses.field(default_factory=CacheSettings)
  objective: Objective = dataclasses.field(default_factory=Objective)
  reference: Reference = dataclasses.field(default_factory=Reference)
  optimizer: Optimizer = dataclasses.field(default_factory=Optimizer)
  batching: Layout = dataclasses.field(default_factory=lambda: Layout(lengths=(8192, 16384, 24576)))
  checkpoint: Checkpointing = dataclasses.field(default_factory=Checkpointing)
  diagnostics: Diagnostics = dataclasses.field(default_factory=Diagnostics)
  trace: Tracing = dataclasses.field(default_factory=Tracing)

  def __post_init__(self):
    _require_counts(self, 'steps', 'epochs', 'eval_every', 'dump_every')
    require(self.group_size >= 2, f'group_size is {self.group_size}; advantages need at least 2 rollouts per prompt')
    require(
      self.prompts > 0 and self.mini_batch > 0,
      f'prompts {self.prompts} and mini_batch {self.mini_batch} must be positive',
    )
    require(
      self.prompts % self.mini_batch == 0,
      f'prompts {self.prompts} cannot be split into mini-batches of {self.mini_batch}; '
      f'use a divisor of {self.prompts} for mini_batch',
    )
    require(self.steps > 0 or self.epochs > 0, 'steps and epochs are both 0; one of them must say how long to train')
    require(self.rollout.decoding.temperature > 0, 'rollout.decoding.temperature is 0; greedy rollouts are all alike')
    limits, row = self.rollout.limits, self.batching.lengths[-1]
    longest = limits.prompt_tokens + limits.response_tokens
    require(
      row >= longest,
      f'batching.lengths ends at {row}; rollout.limits.prompt_tokens {limits.prompt_tokens} + response_tokens '
      f'{limits.response_tokens} need rows of {longest} tokens',
    )
    check_surroundings(self.environment, self.judge, replay=self.cache.replay, step_seconds=limits.step_seconds)
    check_referee(self.referee, self.method.rewards, self.scoring, replay=self.cache.replay)

  @property
  def updates_per_step(self) -> int:
    """Optimiser updates made of one step's rollouts."""
    return self.prompts // self.mini_batch


@dataclasses.dataclass(frozen=True, slots=True)
class Demonstrations:
  """JSONL files of dialogues, see `data/tasks.py`; `heldout` may be empty.

  Attributes:
    encoded: folder for the ids of `train`: made once, used by every run with the same file, template and settings, and
      read from disk as they are needed. '' holds the dialogues in memory.
  """

  train: str = ''
  heldout: str = ''
  encoded: str = ''


def require_files(data: TaskFiles | Demonstrations, kind: str) -> None:
  """Raises ConfigError, naming the setting, unless there is a file to train on and any other that is named."""
  require(bool(data.train), f'data.train is empty; give a JSONL file of {kind}')
  for name, path in (('train', data.train), ('heldout', data.heldout)):
    require(not path or pathlib.Path(path).is_file(), f'data.{name} is {path!r}; there is no such file')


@dataclasses.dataclass(frozen=True, slots=True)
class Packing:
  """Full rows per update instead of a number of dialogues; hardly a token is computed for nothing then.

  Attributes:
    rows: rows of `batching.lengths[-1]` tokens per update, a multiple of `batching.micro_rows`; 0 counts dialogues.
    window: dialogues packed at a time; more waste less, fewer mix better.
  """

  rows: int = 0
  window: int = 1024

  def __post_init__(self):
    _require_counts(self, 'rows')
    require(self.window > 0, f'window is {self.window}; it counts dialogues that are packed together')


@dataclasses.dataclass(frozen=True, slots=True)
class SFTConfig:
  """A supervised run. Defaults: SLCA-GRPO (arXiv:2609.29050), table 6.

  Attributes:
    output: folder of checkpoints, metrics and, at the end, the model as a Hugging Face folder.
    steps: updates; 0 makes `epochs` passes over the data.
    batch: dialogues per update, unless `packing.rows` counts rows.
    learned: what of a dialogue is learned.
    until: end early once the smoothed loss is below this; 0 never does.
    eval_every: steps between measurements of the held-out loss; 0 measures at the end only.
    trace: updates that are recorded for TensorBoard and Perfetto.
  """

  output: str = 'runs/sft'
  seed: int = 0
  steps: int = 0
  epochs: int = 2
  batch: int = 32
  until: float = 0.0
  eval_every: int = 0
  logprob_chunk: int = 256
  model: Model = dataclasses.field(default_factory=Model)
  mesh: MeshShape = dataclasses.field(default_factory=MeshShape)
  data: Demonstrations = dataclasses.field(default_factory=Demonstrations)
  learned: Learned = dataclasses.field(default_factory=Learned)
  batching: Layout = dataclasses.field(default_factory=lambda: Layout(lengths=(2048, 4096, 8192, 16384)))
  packing: Packing = dataclasses.field(default_factory=Packing)
  optimizer: Optimizer = dataclasses.field(
    default_factory=lambda: Optimizer(learning_rate=5e-6, schedule='cosine', warmup=0.1)
  )
  checkpoint: Checkpointing = dataclasses.field(default_factory=lambda: Checkpointing(every=100))
  trace: Tracing = dataclasses.field(default_factory=Tracing)

  def __post_init__(self):
    _require_counts(self, 'steps', 'epochs', 'eval_every')
    require(self.batch > 0, f'batch is {self.batch}; it counts dialogues per update')
    require(
      self.packing.rows % self.batching.micro_rows == 0,
      f'packing.rows is {self.packing.rows}; use a multiple of batching.micro_rows, {self.batching.micro_rows}',
    )
    require(self.logprob_chunk > 0, f'logprob_chunk is {self.logprob_chunk}; it must be positive')
    require(self.steps > 0 or self.epochs > 0, 'steps and epochs are both 0; one of them must say how long to train')


def _require_counts(settings: Any, *names: str) -> None:
  for name in names:
    require(getattr(settings, name) >= 0, f'{name} is {getattr(settings, name)}; it counts, so it is at least 0')
