"""The chat models that a run talks to, as its settings name them."""

import asyncio
import dataclasses
import pathlib
from collections.abc import Iterator

from slca_jax import blocking
from slca_jax.llm.answers import Answers
from slca_jax.llm.chat import ChatModel
from slca_jax.llm.settings import Endpoint
from slca_jax.own import is_own
from slca_jax.rewards.protocols import needs_referee
from slca_jax.train.settings import RLConfig


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoints:
  """One chat model per part that is played by one, None where a run needs none."""

  simulator: ChatModel | None = None
  judge: ChatModel | None = None
  referee: ChatModel | None = None

  def __iter__(self) -> Iterator[ChatModel]:
    return iter([chat for chat in (self.simulator, self.judge, self.referee) if chat is not None])

  def numbers(self) -> dict[str, float]:
    """What was asked and answered since the last call, as `llm/PART/COUNT`."""
    return {f'llm/{chat.name}/{name}': value for chat in self for name, value in chat.read_counts().items()}

  async def close(self) -> None:
    """Closes the connections of the running event loop."""
    for chat in self:
      await chat.close()


NO_ENDPOINTS = Endpoints()


def connect(config: RLConfig) -> Endpoints:
  """The chat models of a run. Nothing is sent yet.

  Raises:
    ConfigError: a key's environment variable is not set.
  """
  cache = config.cache
  folder = cache.folder or pathlib.Path(config.output) / 'answers'
  answers = Answers(folder) if cache.keep else None

  def chat(name: str, endpoint: Endpoint, needed: bool) -> ChatModel | None:
    return ChatModel(name, endpoint, answers=answers, replay=cache.replay) if needed else None

  protocol = config.method.rewards
  refereed = needs_referee(protocol, config.scoring) or (is_own(protocol) and bool(config.referee.model))
  return Endpoints(
    chat('simulator', config.environment.simulator, config.environment.backend == 'simulated'),
    chat('judge', config.judge.endpoint, config.judge.kind == 'llm'),
    chat('referee', config.referee, refereed),
  )


def probe(config: RLConfig) -> None:
  """Asks every endpoint of a run for one short reply, before anything heavy is loaded.

  Raises:
    ConfigError: one of them cannot be used or does not answer; names it, with the remedy.
  """

  async def ask_all() -> None:
    endpoints = connect(config)
    try:
      await asyncio.gather(*(chat.probe() for chat in endpoints))
    finally:
      await endpoints.close()

  blocking.run(ask_all())
