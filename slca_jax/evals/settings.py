"""The settings of an evaluation. No JAX here: a mistake is refused at once."""

import dataclasses
import pathlib
import re
from typing import Any, Literal

from slca_jax.config import require
from slca_jax.evals.benchmark_settings import BfclSettings, Tau2Settings
from slca_jax.evals.statistics import Sampling
from slca_jax.llm.settings import Endpoint
from slca_jax.rewards.protocols import Scoring
from slca_jax.rollout.settings import Layout
from slca_jax.train.settings import (
  CacheSettings,
  EnvironmentSettings,
  JudgeSettings,
  MeshShape,
  Method,
  Model,
  RLConfig,
  RolloutSettings,
)
from slca_jax.train.surroundings import JUDGE

GREEDY, SAMPLED = 'greedy', 'sampled'
SHARED = ('model', 'mesh', 'environment', 'rollout', 'scoring', 'judge', 'referee', 'cache')  # with training
_NAME = re.compile(r'[\w.+-]+')


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluateConfig:
  """What is rolled out, scored and told of a policy.

  Attributes:
    benchmark: '' for tasks of one's own, scored by the rewards of training; else one that brings its own.
    output: folder of rollouts, results, summary and tables; the same command again goes on there.
    tasks: JSONL files of tasks with commas between, each as FILE or NAME=FILE; the file's stem is its name else. Files
      named random_kN and hard_kN, as a K-sweep makes them, get a table over K.
    limit: most tasks of each file, 0 for all.
    greedy: one rollout of each task that takes the likeliest tokens.
    samples: rollouts of each task at `rollout.decoding`, for pass@k and pass^k; 0 for none.
    at_once: tasks that are begun at a time, several per place in the engine; each is on disk once all its rollouts end.
    redo_failed: make rollouts again that failed for an engine, a world or a prompt that was too long.
    protocol: whose rewards fill the tool and the outcome channel; the parts of the process score are always told.
    summariser: a model that answers where `model` has planned, RLTR's second stage; without a path `model` answers.
    intervals: how they are made.
  """

  benchmark: Literal['', 'bfcl', 'tau2'] = ''
  output: str = 'runs/evaluate'
  seed: int = 0
  tasks: str = ''
  limit: int = 0
  greedy: bool = True
  samples: int = 0
  at_once: int = 256
  redo_failed: bool = False
  protocol: str = 'slca'
  model: Model = dataclasses.field(default_factory=Model)
  summariser: Model = dataclasses.field(default_factory=Model)
  mesh: MeshShape = dataclasses.field(default_factory=MeshShape)
  environment: EnvironmentSettings = dataclasses.field(default_factory=EnvironmentSettings)
  rollout: RolloutSettings = dataclasses.field(default_factory=RolloutSettings)
  scoring: Scoring = dataclasses.field(default_factory=Scoring)
  judge: JudgeSettings = dataclasses.field(default_factory=JudgeSettings)
  referee: Endpoint = JUDGE
  cache: CacheSettings = dataclasses.field(default_factory=CacheSettings)
  intervals: Sampling = dataclasses.field(default_factory=Sampling)
  bfcl: BfclSettings = dataclasses.field(default_factory=BfclSettings)
  tau2: Tau2Settings = dataclasses.field(default_factory=Tau2Settings)

  def __post_init__(self):
    for name in ('limit', 'samples'):
      require(getattr(self, name) >= 0, f'{name} is {getattr(self, name)}; it counts, so it is at least 0')
    require(self.greedy or self.samples > 0, 'greedy is False and samples 0; nothing would be rolled out')
    require(self.at_once > 0, f'at_once is {self.at_once}; it counts tasks and must be positive')
    require(
      self.rollout.decoding.temperature > 0,
      'rollout.decoding.temperature is 0; greedy rollouts are made by greedy=True, it is for those of samples',
    )
    require(
      not self.judge.noise and not self.judge.bias,
      f'judge.noise is {self.judge.noise} and judge.bias {self.judge.bias}; those are for training, scores are told by '
      'the judge as it is',
    )
    require(
      not self.summariser.path or (self.rollout.engine == 'local' and not self.benchmark),
      f'summariser.path is {self.summariser.path!r}; two stages need rollout.engine=local and tasks of your own',
    )
    as_run(self)

  @property
  def modes(self) -> dict[str, int]:
    """Rollouts per task of each way to decode."""
    return {mode: count for mode, count in ((GREEDY, int(self.greedy)), (SAMPLED, self.samples)) if count}


def as_run(config: EvaluateConfig) -> RLConfig:
  """The run whose rollouts these are: what training and evaluation share is built by the same code."""
  limits = config.rollout.limits
  return RLConfig(
    output=config.output,
    seed=config.seed,
    method=Method(protocol=config.protocol),
    batching=Layout((limits.prompt_tokens + limits.response_tokens,)),
    **{name: getattr(config, name) for name in SHARED},
  )


def named_files(tasks: str) -> dict[str, pathlib.Path]:
  """The files by their names.

  Raises:
    ConfigError: there is none, one does not exist, two share a name, or a name is no file's.
  """
  require(bool(tasks.strip()), 'tasks is empty; give JSONL files of tasks, with commas between')
  files: dict[str, pathlib.Path] = {}
  for entry in filter(None, map(str.strip, tasks.split(','))):
    name, _, path = entry.rpartition('=')
    file = pathlib.Path(path).expanduser()
    name = name or file.stem
    require(file.is_file(), f'tasks names {path!r}; there is no such file')
    require(bool(_NAME.fullmatch(name)), f'{name!r} cannot name a folder; write NAME={path} with letters and digits')
    require(name not in files, f'tasks names two files {name!r}; write NAME=FILE for one of them')
    files[name] = file
  return files


def lasting(config: EvaluateConfig) -> dict[str, Any]:
  """The settings that rollouts depend on: what differs in others goes on in the same folder."""
  whole = dataclasses.asdict(config)
  for name in ('output', 'tasks', 'limit', 'greedy', 'samples', 'at_once', 'redo_failed', 'mesh', 'intervals', 'cache'):
    del whole[name]
  del whole['benchmark'], whole['bfcl'], whole['tau2']
  del whole['rollout']['local'], whole['rollout']['max_staleness']
  return whole
