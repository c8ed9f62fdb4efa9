"""Settings of what surrounds a policy: tools, judges, and the endpoints behind them. No JAX here."""

import dataclasses
from typing import Literal

from slca_jax.config import require
from slca_jax.envs.sandbox import SandboxSettings
from slca_jax.llm.settings import Endpoint, Sampling, check_endpoint
from slca_jax.own import is_own
from slca_jax.rewards.protocols import Scoring, needs_referee

# SLCA-GRPO (arXiv:2609.29050), app. C.3; the judge's longest reply and patience as in the authors' release.
SIMULATOR = Endpoint(sampling=Sampling(temperature=0.6, max_tokens=4096), request_seconds=540.0, deadline=540.0)
JUDGE = Endpoint(sampling=Sampling(temperature=0.0, max_tokens=8192), request_seconds=540.0)
SANDBOX = SandboxSettings()
MARGIN = 5.0  # seconds that a call may take beyond the deadline of the endpoint that plays it


@dataclasses.dataclass(frozen=True, slots=True)
class EnvironmentSettings:
  """How tools answer. A task with a blueprint opens that executable world, any other its backend.

  Attributes:
    backend: 'recorded' answers from a task's records, 'simulated' asks the model at `simulator`, 'mcp' the server that
      `mcp` starts; FILE.py:NAME is an `Opener` of one's own, (task, seed) to the world of one rollout.
    checks: refuse calls that do not fit the tools' schemas before the backend sees them (SGLS, stage 1); an executable
      world always does.
    definition: show the simulating model the tool's definition; without it and `checks` a run is "w/o SGLS".
    history: show it the rollout's earlier calls and results, for tools that keep a state.
    recorded_first: simulate only calls without a record.
    fresh: simulate equal calls anew for each group of rollouts; otherwise they have one result in the whole run.
    call_seconds: deadline of one call; a simulated one has its endpoint's.
    max_characters: longest answer of a tool; the middle of a longer one is cut out.
    simulator: the model that plays the tools; another family is another endpoint or model.
    blueprints: the folder in which tasks find the blueprint that they name; '' if they name none.
    sandbox: how the functions of blueprints are confined.
    mcp: command line that starts the MCP server of tasks with the blueprint 'mcp', and of backend 'mcp'; '' if none.
    mcp_each: start it for each 'rollout', or, if it keeps no state, once for the 'run'.
  """

  backend: str = 'recorded'
  checks: bool = True
  definition: bool = True
  history: bool = False
  recorded_first: bool = False
  fresh: bool = False
  call_seconds: float = 60.0
  max_characters: int = 100_000
  simulator: Endpoint = SIMULATOR
  blueprints: str = ''
  sandbox: SandboxSettings = SANDBOX
  mcp: str = ''
  mcp_each: Literal['rollout', 'run'] = 'rollout'

  def __post_init__(self):
    _require_known('backend', self.backend, ('recorded', 'simulated', 'mcp'))
    require(
      self.backend != 'mcp' or bool(self.mcp), "mcp is empty; backend 'mcp' needs the command that starts the server"
    )
    for name in ('call_seconds', 'max_characters'):
      require(getattr(self, name) > 0, f'{name} is {getattr(self, name)}; it must be positive')
    for name, usual in (('definition', True), ('history', False), ('recorded_first', False), ('fresh', False)):
      value = getattr(self, name)
      require(
        self.backend == 'simulated' or value == usual, f'{name} is {value}; that has an effect with backend simulated'
      )


@dataclasses.dataclass(frozen=True, slots=True)
class JudgeSettings:
  """Who rates final answers, and how to disturb the rating for experiments.

  Attributes:
    kind: 'rule' needs no endpoint, 'llm' asks the model at `endpoint`; FILE.py:NAME is one's own, (trajectory, *, seed)
      to a score in [0, 1].
    noise: standard deviation of zero-mean noise on its score, before the score becomes one of five words.
    bias: taken off for every tool turn short of `bias_turns`: a judge that likes visible work.
    most_characters: of all tool results that a model is shown; longer ones lose their middle.
    endpoint: the frozen model of kind 'llm'.
  """

  kind: str = 'rule'
  noise: float = 0.0
  bias: float = 0.0
  bias_turns: int = 3
  most_characters: int = 60_000
  endpoint: Endpoint = JUDGE

  def __post_init__(self):
    _require_known('kind', self.kind, ('rule', 'llm'))
    require(self.noise >= 0, f'noise is {self.noise}; it is a standard deviation and at least 0')
    require(self.bias_turns >= 0, f'bias_turns is {self.bias_turns}; it counts, so it is at least 0')
    require(
      self.most_characters >= 1000,
      f'most_characters is {self.most_characters}; a judge needs at least 1000 to see anything',
    )


@dataclasses.dataclass(frozen=True, slots=True)
class CacheSettings:
  """Answers of endpoints on disk.

  Attributes:
    folder: where they are kept; '' is `answers` in the run's output.
    keep: False keeps none: equal questions are asked again, and nothing can be replayed.
    replay: answer only from the folder; endpoints are not needed and never asked.
  """

  folder: str = ''
  keep: bool = True
  replay: bool = False

  def __post_init__(self):
    require(self.keep or not self.replay, 'replay is True and keep False; a replay reads the answers that were kept')


def check_surroundings(
  environment: EnvironmentSettings, judge: JudgeSettings, *, replay: bool, step_seconds: float
) -> None:
  """Raises ConfigError if an endpoint that will be asked is not given, or a step is shorter than a call."""
  if environment.backend == 'simulated':
    check_endpoint(environment.simulator, 'environment.simulator', replay=replay)
    longest = environment.simulator.deadline + MARGIN
    require(
      step_seconds > longest,
      f'rollout.limits.step_seconds is {step_seconds:g}; a simulated call may take {longest:g} s '
      f'(environment.simulator.deadline and {MARGIN:g}), so a step needs more',
    )
  if judge.kind == 'llm':
    check_endpoint(judge.endpoint, 'judge.endpoint', replay=replay)


def check_referee(referee: Endpoint, protocol: str, scoring: Scoring, *, replay: bool) -> None:
  """Raises ConfigError if the protocol asks a second judge that is not given, or several samples that are all alike."""
  if not needs_referee(protocol, scoring):
    return
  check_endpoint(referee, 'referee', replay=replay)
  require(
    protocol != 'rltr' or scoring.samples == 1 or referee.sampling.temperature != 0,
    f'referee.sampling.temperature is 0; {scoring.samples} samples would be alike, so raise it (0.6) or ask for 1',
  )


def _require_known(name: str, value: str, known: tuple[str, ...]) -> None:
  said = ', '.join(map(repr, known))
  require(value in known or is_own(value), f'{name} is {value!r}; it takes one of {said}, or FILE.py:NAME')
