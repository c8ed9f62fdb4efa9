"""Conversations of BFCL: the official backends as an environment, and the loop in which a policy is its agent."""

from collections.abc import Sequence

from slca_jax.dialogue import Observation, Tool, ToolCall
from slca_jax.envs.environment import Environment
from slca_jax.evals import qwen
from slca_jax.evals.bfcl import Entry, Official, Speak, Verdict

# The sentence with which the official handler brings the functions that were held back.
_MORE = '{functions}\nI have updated some more functions you can choose from. What about now?'
_REFUSALS = ('Error during execution', '{"error":')


class Backend:
  """The world of one conversation: instances of the official classes in the official process."""

  def __init__(self, entry: Entry, official: Official):
    """Belongs to one rollout; the world opens with the first step."""
    self.tools = tuple(Tool(one['name'], one['description'], one['parameters']) for one in entry.functions)
    self._entry, self._official = entry, official
    self._world: str | None = None

  async def step(self, calls: Sequence[ToolCall]) -> list[Observation]:
    """What the official backend answers; calls run one after another.

    Raises:
      EnvironmentFailure: its process died.
    """
    if self._world is None:
      self._world = await self._official.bridge.ask('open', id=self._entry.id)
    made = [(call.name, dict(call.arguments)) for call in calls]
    seen = await self._official.bridge.ask('step', world=self._world, calls=made)
    return [Observation(text, ok=not text.startswith(_REFUSALS)) for text in seen]

  def close(self) -> None:
    """Nothing more is asked; `release` frees the world."""

  async def release(self) -> None:
    """Frees what the official process holds of this world."""
    if self._world is not None:
      await self._official.bridge.ask('close', world=self._world)
      self._world = None


async def converse(entry: Entry, speak: Speak, environment: Environment, *, steps: int = 20) -> list[list[str]]:
  """What the agent said, by user turn: it calls until it stops calling, then the user goes on.

  An agent that calls in more than `steps` steps of one turn is stopped for good, so that turns are missing.

  bfcl-eval (V4), model_handler/base_handler.py: inference_multi_turn_prompting.
  """
  messages: list[qwen.Said] = []
  turns: list[list[str]] = []
  for turn, question in enumerate(entry.question):
    brought = entry.later.get(str(turn))
    messages += [{'role': 'user', 'content': _MORE.format(functions=brought)}] if brought is not None else question
    turns.append([])
    for step in range(steps + 1):
      text = await speak(messages, entry.functions)
      messages.append(qwen.heard(text))
      turns[-1].append(qwen.answer(text))
      calls = _executable(text)
      if not calls:
        break
      seen = await environment.step([ToolCall(name, arguments) for name, arguments in calls])
      messages += [{'role': 'tool', 'content': one.content} for one in seen]
      if step == steps:
        return turns
  return turns


async def judge_turns(entry: Entry, turns: Sequence[Sequence[str]], official: Official) -> Verdict:
  """The official verdict on what an agent said."""
  read = [[calls for text in turn if (calls := _executable(text))] for turn in turns]
  return await official.check_turns(entry, read)


def _executable(text: str) -> qwen.Calls:
  """The calls of a text; none where a block is no call, which ends the turn."""
  try:
    return qwen.executable(text)
  except ValueError:
    return []
