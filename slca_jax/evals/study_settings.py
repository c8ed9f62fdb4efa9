"""The settings of a study, and its grid: methods × judges × seeds, every run from its seed's shared start."""

import dataclasses
import fnmatch
import hashlib
import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any, Literal

from slca_jax.config import as_dict, build, require
from slca_jax.evals.settings import SHARED, EvaluateConfig, lasting
from slca_jax.evals.statistics import Sampling
from slca_jax.quickstart import experiment
from slca_jax.quickstart.experiment import QuickstartConfig
from slca_jax.train import rehearsal
from slca_jax.train.methods import changed, changes
from slca_jax.train.settings import JudgeSettings, RLConfig

START, PLANNER = 'start', 'planner'
_JUDGE = ('noise', 'bias', 'bias_turns')


@dataclasses.dataclass(frozen=True, slots=True)
class StudyConfig:
  """Which methods are compared, on what, and how sure the comparison is to be.

  Attributes:
    output: folder of all runs, and of the tables; the same command again makes what is missing.
    world: 'quickstart' trains a policy per seed on the market, as `quickstart` says; 'own' takes `rl` as it is.
    methods: names of `train/methods.py`, and estimators of one's own as FILE.py:NAME, whose runs are named NAME.
    regimes: how the judge is disturbed in training: noise=0.3, bias=0.25, noise=0.3+bias=0.1, or plain.
    sweep, sweep_methods: more regimes, for these methods alone.
    seeds: of everything; in the strings of `rl` and `overrides`, {seed} stands for it.
    baseline: what each method is compared with.
    close: scores that differ by less are called close, where a claim says that.
    select: patterns of runs to make, as in bias*/slca/*, with commas between; '' is all. Tables show what there is.
    jobs: runs at a time, each a process of its own.
    pinned: each process to a core, of its own as long as there are enough.
    run_seconds, start_seconds: CPU seconds that a run, and a seed's demonstrations, are expected to take before one has
      been made.
    changes: settings of every run as PATH=VALUE with semicolons between, such as steps=2; prompts=4.
    overrides: settings of single methods, each 'METHOD: PATH=VALUE' with semicolons as in changes.
    summariser: model that answers for rltr's planner in evaluations; '' is the model that the methods start from.
    samples: sampled rollouts per held-out task beside the greedy one.
    quickstart: the world, the lessons and the runs of world 'quickstart'.
    rl: the run of world 'own'; its folder, seed, method and judge's noise and bias are the study's own.
    intervals: how they are made.
  """

  output: str = 'runs/study'
  world: Literal['quickstart', 'own'] = 'quickstart'
  methods: tuple[str, ...] = ('grpo', 'slca')
  regimes: tuple[str, ...] = ('noise=0.3', 'bias=0.25')
  sweep: tuple[str, ...] = ()
  sweep_methods: tuple[str, ...] = ('grpo', 'slca')
  seeds: tuple[int, ...] = (0, 1, 2)
  baseline: str = 'grpo'
  close: float = 0.05
  select: str = ''
  jobs: int = 1
  pinned: bool = False
  run_seconds: float = 60.0
  start_seconds: float = 0.0
  changes: str = ''
  overrides: tuple[str, ...] = ()
  summariser: str = ''
  samples: int = 0
  quickstart: QuickstartConfig = dataclasses.field(default_factory=QuickstartConfig)
  rl: RLConfig = dataclasses.field(default_factory=RLConfig)
  intervals: Sampling = dataclasses.field(default_factory=Sampling)

  def __post_init__(self):
    require(bool(self.seeds) and bool(self.methods), 'seeds or methods is empty; a study needs one of each at least')
    require(bool(self.regimes), "regimes is empty; 'plain' leaves the judge as it is")
    require(self.jobs > 0, f'jobs is {self.jobs}; it counts processes and must be positive')
    require(self.run_seconds > 0, f'run_seconds is {self.run_seconds}; it must be positive')
    require(self.world != 'own' or bool(self.rl.data.heldout), 'rl.data.heldout is empty; a study needs held-out tasks')
    named: dict[str, str] = {}
    for method in (*self.methods, *self.sweep_methods):
      changes(method)
      other = named.setdefault(_short(method), method)
      require(other == method, f'methods {other!r} and {method!r} would share a folder; give the function another name')
    for line in self.overrides:
      method, _ = _override(line)
      require(method in self.methods, f'overrides names {method!r}, which is none of methods')
    for regime in (*self.regimes, *self.sweep):
      judge_of(regime)
    assignments(self.changes)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Job:
  """One process of the study: a run, or what the runs of a seed start from (`regime` START or PLANNER)."""

  regime: str
  method: str
  seed: int

  @property
  def name(self) -> str:
    """Its folder in the output."""
    return '/'.join(filter(None, (self.regime, _short(self.method), str(self.seed))))

  @property
  def is_run(self) -> bool:
    """Whether a method is trained."""
    return bool(self.method)


def runs(config: StudyConfig) -> list[Job]:
  """All runs of the grid, seed by seed, so that a study that was stopped has whole comparisons."""
  pairs = [(regime, method) for regime in config.regimes for method in config.methods]
  pairs += [(regime, method) for regime in config.sweep for method in config.sweep_methods]
  return [Job(regime, method, seed) for seed in config.seeds for regime, method in dict.fromkeys(pairs)]


def job_of(config: StudyConfig, name: str) -> Job:
  """The job of a name."""
  return next(job for run in runs(config) for job in (run, *needed(config, run)) if job.name == name)


def selected(config: StudyConfig) -> list[Job]:
  """The runs that `select` names.

  Raises:
    ConfigError: it names none.
  """
  patterns = [pattern.strip() for pattern in config.select.split(',') if pattern.strip()]
  every = runs(config)
  found = [job for job in every if not patterns or any(fnmatch.fnmatchcase(job.name, one) for one in patterns)]
  require(bool(found), f'select is {config.select!r}; it names none of {len(every)} runs such as {every[0].name}')
  return found


def needed(config: StudyConfig, job: Job) -> list[Job]:
  """What must be done before a run begins."""
  if not job.is_run:
    return [Job(START, '', job.seed)] if job.regime == PLANNER else []
  return [Job(START, '', job.seed), *([Job(PLANNER, '', job.seed)] if plans_apart(config, job) else [])]


def plans_apart(config: StudyConfig, job: Job) -> bool:
  """Whether the run starts from a planner that is trained for it."""
  return config.world == 'quickstart' and is_planner(job.method)


def is_planner(method: str) -> bool:
  """Whether the method trains a planner, and another model answers."""
  return changes(method)['method.estimator'] == 'rltr'


def judge_of(regime: str) -> dict[str, float]:
  """What a regime sets of the judge.

  Raises:
    ConfigError: it cannot be read.
  """
  if regime == 'plain':
    return {}
  parts = [re.fullmatch(r'(\w+)=(\d+(?:\.\d+)?)', part) for part in regime.split('+')]
  good = all(part is not None and part[1] in _JUDGE for part in parts)
  require(good, f'{regime!r} is no regime; write plain, noise=0.3, bias=0.25 or noise=0.3+bias=0.25')
  found = {part[1]: float(part[2]) for part in parts if part}
  return {name: int(value) if name == 'bias_turns' else value for name, value in found.items()}


def assignments(text: str, *, setting: str = 'changes') -> dict[str, Any]:
  """PATH=VALUE with semicolons between, as settings; a value that is no JSON is a string.

  Args:
    setting: where the text stands, for the message.

  Raises:
    ConfigError: a part has no value.
  """
  out: dict[str, Any] = {}
  for part in filter(None, map(str.strip, text.split(';'))):
    path, equals, value = part.partition('=')
    require(bool(equals), f'{setting} holds {part!r}; write PATH=VALUE with semicolons between')
    try:
      out[path.strip()] = json.loads(value)
    except ValueError:
      out[path.strip()] = value.strip()
  return out


def quickstart_of(config: StudyConfig, seed: int) -> QuickstartConfig:
  """The quickstart whose data and supervised policy a seed's runs share."""
  folder = pathlib.Path(config.output) / Job(START, '', seed).name
  return dataclasses.replace(config.quickstart, seed=seed, output=str(folder))


def base_of(config: StudyConfig, seed: int) -> dict[str, Any]:
  """The settings that all methods of a seed share, as nested dicts."""
  if config.world == 'quickstart':
    quick = quickstart_of(config, seed)
    folder = pathlib.Path(quick.output)
    run = experiment.rl_config(quick, folder, 'noisy', 'slca')
    judge = dataclasses.replace(run.judge, noise=0.0, bias=0.0, bias_turns=JudgeSettings().bias_turns)
    run = dataclasses.replace(run, judge=judge)
    base = changed(as_dict(run), {'data.heldout': str(folder / 'heldout.jsonl')})
  else:
    base = _for_seed(as_dict(config.rl), seed) | {'seed': seed}
  return changed(base, assignments(config.changes))


def run_settings(config: StudyConfig, job: Job) -> RLConfig:
  """The settings of a run; two methods of a regime and a seed differ in what they change alone."""
  folder = pathlib.Path(config.output)
  own: dict[str, Any] = {f'judge.{name}': value for name, value in judge_of(job.regime).items()}
  own['output'] = str(folder / job.name / 'run')
  own['eval_every'] = 0  # every run is evaluated at its end
  if plans_apart(config, job):
    own['model.path'] = str(folder / Job(PLANNER, '', job.seed).name / 'sft' / 'model')
  settings = changed(base_of(config, job.seed), changes(job.method))
  for method, more in map(_override, config.overrides):
    own |= _for_seed(more, job.seed) if method == job.method else {}
  return build(RLConfig, changed(settings, own), path=job.name)


def evaluation_settings(config: StudyConfig, job: Job) -> EvaluateConfig:
  """How a run's policy, or the one that all start from, is evaluated: alike for all, whatever they were trained with.

  A planner is answered for by the summariser.
  """
  base = _base_run(config, job)
  folder = pathlib.Path(config.output) / job.name
  shared = {name: getattr(base, name) for name in SHARED}
  shared['judge'] = dataclasses.replace(base.judge, noise=0.0, bias=0.0)
  if job.is_run:
    shared['model'] = dataclasses.replace(base.model, path=str(folder / 'run' / 'model'))
    if is_planner(job.method):
      shared['summariser'] = dataclasses.replace(base.model, path=config.summariser or base.model.path)
  return EvaluateConfig(
    output=str(folder / 'evaluate'),
    seed=job.seed,
    tasks=f'heldout={base.data.heldout}',
    limit=base.data.heldout_limit,
    samples=config.samples,
    intervals=config.intervals,
    **shared,
  )


def mark(config: StudyConfig, job: Job) -> str:
  """A digest of all that a job's result depends on, code of one's own included."""
  parts: list[Any] = [job.regime, lasting(evaluation_settings(config, job)), config.samples]
  if job.is_run:
    parts.append(as_dict(run_settings(config, job)))
  elif config.world == 'quickstart':
    parts.append(as_dict(quickstart_of(config, job.seed)) | {'rl': None, 'noisy': None, 'biased': None})
  code = rehearsal.digests(run_settings(config, job) if job.is_run else _base_run(config, job))
  parts += sorted(code.values())
  plain = _moved(parts, config.output)
  return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _override(line: str) -> tuple[str, dict[str, Any]]:
  """The method that a line of `overrides` is for, and its settings."""
  method, colon, text = line.partition(': ')
  require(bool(colon), f'overrides holds {line!r}; write METHOD: PATH=VALUE with semicolons between')
  return method.strip(), assignments(text, setting='overrides')


def _base_run(config: StudyConfig, job: Job) -> RLConfig:
  return build(RLConfig, base_of(config, job.seed), path=job.name)


def _short(method: str) -> str:
  """What a method's folder is called: NAME of FILE.py:NAME."""
  return method.rpartition(':')[2]


def _moved(tree: Any, folder: str) -> Any:
  """The settings as if the study lay nowhere: it may be moved."""
  if isinstance(tree, Mapping):
    return {key: _moved(value, folder) for key, value in tree.items() if key != 'output'}
  if isinstance(tree, list | tuple):
    return [_moved(value, folder) for value in tree]
  return tree.replace(folder, '') if isinstance(tree, str) else tree


def _for_seed(tree: Mapping[str, Any], seed: int) -> dict[str, Any]:
  """The settings with the seed in the place of {seed}."""
  put = lambda value: value.replace('{seed}', str(seed)) if isinstance(value, str) else value
  return {key: _for_seed(value, seed) if isinstance(value, Mapping) else put(value) for key, value in tree.items()}
