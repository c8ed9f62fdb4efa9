"""Nouns of the Python half: tools, calls, dialogues, tasks, trajectories and their scores. Standard library only."""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

from slca_jax.errors import DataError


@dataclasses.dataclass(frozen=True, slots=True)
class Tool:
  """A function the policy may call. `parameters` and `returns` are JSON Schemas; `writes`: it changes state."""

  name: str
  description: str
  parameters: Mapping[str, Any]
  returns: Mapping[str, Any] | None = None
  writes: bool = False

  @property
  def well_typed(self) -> bool:
    """Whether name, description and parameters are of their types, which a file need not keep."""
    return isinstance(self.name, str) and isinstance(self.description, str) and isinstance(self.parameters, dict)


@dataclasses.dataclass(frozen=True, slots=True)
class ToolCall:
  """One call as the policy wrote it: decoded JSON, not yet checked against the tool's schema."""

  name: str
  arguments: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Observation:
  """What the world answered to one call. A refusal is an answer with `ok=False`, no exception; `cut`: it was longer."""

  content: str
  ok: bool = True
  cut: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
  """One message of a dialogue; `role` is system, user, assistant or tool. Calls stand on assistant messages only.

  `learn`: whether a demonstration teaches what the assistant says here; False keeps it as context.
  """

  role: str
  content: str
  calls: tuple[ToolCall, ...] = ()
  learn: bool = True


Steps = tuple[tuple[ToolCall, ...], ...]  # steps in order, each a set of parallel calls


@dataclasses.dataclass(frozen=True, slots=True)
class Task:
  """A question with its tools and what a right rollout does.

  Attributes:
    id: unique within a data set; seeds of a rollout derive from it.
    tools: the tools on offer.
    messages: the dialogue so far; the last one is the user's question.
    gold: steps of parallel calls; empty when the question needs no tool.
    answer: a reference answer, if there is one.
    facts: strings that a right answer states, for judges that work by rule.
    blueprint: name of the executable environment the task lives in, if any.
    meta: whatever the source of the task wants to keep with it (database, recorded observations, subset).
  """

  id: str
  tools: tuple[Tool, ...]
  messages: tuple[Message, ...]
  gold: Steps = ()
  answer: str | None = None
  facts: tuple[str, ...] = ()
  blueprint: str | None = None
  meta: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def question(self) -> str:
    """The text of the last user message, '' if there is none."""
    return next((m.content for m in reversed(self.messages) if m.role == 'user'), '')


@dataclasses.dataclass(frozen=True, slots=True)
class Dialogue:
  """A demonstration: a dialogue that ends with an assistant message. `context` leading messages are the prompt; None
  takes those before the first assistant message."""

  id: str
  tools: tuple[Tool, ...]
  messages: tuple[Message, ...]
  context: int | None = None


def check_context(roles: Sequence[str], context: Any) -> None:
  """Raises DataError unless `context` leading messages of these roles can be the prompt of a demonstration."""
  whole = isinstance(context, int) and not isinstance(context, bool) and 0 < context < len(roles)
  if not whole or roles[context] != 'assistant' or roles[context - 1] == 'assistant':
    raise DataError(
      f'context is {context!r}; it counts the leading messages that the assistant answers, the roles are {roles}'
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Parsed:
  """What one assistant text holds: well-formed call blocks in order, the faults of the others, and the tags counted.

  Tags inside reasoning and inside JSON strings are not counted. A block is one call; some readings allow a list. The
  rollout loop adds a fault `unknown_id` for each sampled id that has no text.
  """

  blocks: tuple[tuple[ToolCall, ...], ...] = ()
  errors: tuple[str, ...] = ()
  opens: int = 0
  closes: int = 0

  @property
  def calls(self) -> tuple[ToolCall, ...]:
    """All calls of the text: one step of parallel calls."""
    return tuple(call for block in self.blocks for call in block)


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
  """One assistant turn as it was sampled, and what the world answered.

  Attributes:
    tokens: ids as the engine sampled them, stop token included; never re-tokenised.
    logprobs: natural-log probability of each token at the sampling temperature, same length as tokens.
    text: the decoded tokens, for reading and parsing only.
    parsed: the calls in the text.
    observations: one per call in order, then one per block that was meant as a call and could not be read; empty where
      nothing was executed: for a final answer, a turn that was cut off, and the last one that the limit allows.
    reply: ids the world wrote after the turn (observations and the next generation prompt); not learnable.
    versions: which weights sampled how many of the tokens, as (version, count) in order.
  """

  tokens: tuple[int, ...]
  logprobs: tuple[float, ...]
  text: str
  parsed: Parsed
  observations: tuple[Observation, ...] = ()
  reply: tuple[int, ...] = ()
  versions: tuple[tuple[int, int], ...] = ()

  @property
  def calls(self) -> tuple[ToolCall, ...]:
    """The turn's calls: one step."""
    return self.parsed.calls


class Status(enum.Enum):
  """How a rollout ended."""

  FINISHED = 'finished'  # with an answer to the user
  OUT_OF_TURNS = 'out_of_turns'
  OUT_OF_TOKENS = 'out_of_tokens'  # response or context limit, a turn cut off included
  FAILED = 'failed'  # engine or environment broke, or the prompt was too long; no fault of the policy: not scored


@dataclasses.dataclass(frozen=True, slots=True)
class Trajectory:
  """One rollout: its task, where it belongs, its ids and how it ended. `error` tells why a FAILED one failed."""

  task: Task
  group: int
  index: int
  prompt: tuple[int, ...]
  turns: tuple[Turn, ...]
  status: Status
  error: str = ''

  @property
  def answer(self) -> str | None:
    """The final answer's text; None if the rollout never reached one."""
    return self.turns[-1].text if self.status is Status.FINISHED and self.turns else None

  @property
  def tool_turns(self) -> tuple[Turn, ...]:
    """The turns that hold calls, in order."""
    return tuple(turn for turn in self.turns if turn.calls)

  @property
  def observations(self) -> tuple[Observation, ...]:
    """Everything the world answered, in order."""
    return tuple(seen for turn in self.turns for seen in turn.observations)


@dataclasses.dataclass(frozen=True, slots=True)
class Scores:
  """Rewards of one trajectory under one protocol. A score that could not be had is None, never 0 by accident.

  Attributes:
    tool: reward of the tool segment.
    summary: reward of the summary segment, the omission penalty if guarded.
    outcome: one reward for the whole trajectory.
    turns: reward of each tool turn.
    guarded: the omission guard replaced the summary reward.
    why: the parts and the reasons behind the numbers, for logs and reports.
  """

  tool: float | None = None
  summary: float | None = None
  outcome: float | None = None
  turns: tuple[float, ...] = ()
  guarded: bool = False
  why: Mapping[str, Any] = dataclasses.field(default_factory=dict)
