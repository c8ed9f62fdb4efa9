"""What the rollout loop needs of an engine: ids in, ids and log-probs out, new weights on request."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

Finish = Literal['stop', 'length', 'abort']


@dataclasses.dataclass(frozen=True, slots=True)
class Sample:
  """One completion.

  Attributes:
    tokens: the sampled ids, the stop token included.
    logprobs: log_softmax(logits / temperature) of each id, not renormalised for top-p; raw at temperature 0.
    finish: 'stop' after a stop token, 'length' at max_tokens or the engine's context, 'abort' when cancelled.
    versions: which weights sampled how many of the tokens, as (version, count) in order.
  """

  tokens: tuple[int, ...]
  logprobs: tuple[float, ...]
  finish: Finish
  versions: tuple[tuple[int, int], ...]


class Sampler(Protocol):
  """An inference engine. `concurrency` is how many sessions it serves at once without queueing."""

  concurrency: int

  async def generate(
    self,
    tokens: Sequence[int],
    *,
    session: str,
    max_tokens: int,
    temperature: float,
    top_p: float,
    stop: Sequence[int],
    seed: int,
  ) -> Sample:
    """Samples after `tokens`. All turns of a rollout name one session, so that its prefix stays cached.

    Raises:
      SamplerError: the request cannot be answered (prompt beyond the context, engine gone).
    """
    ...

  async def release(self, session: str) -> None:
    """Says that no more turns of this session come."""
    ...

  async def publish(self, params: Any, version: int) -> None:
    """Replaces the weights. Nothing is served from the old weights' cache afterwards."""
    ...

  async def share(self, work: Callable[[], Any]) -> Any:
    """The result of blocking device work of the trainer, done in a thread while the event loop goes on.

    An engine on devices of its own lets it run at once, one on the trainer's devices between two of its own calls.
    """
    ...

  def numbers(self) -> dict[str, float]:
    """What happened since the last call, for a run's metrics; empty if there is nothing to tell."""
    ...

  async def close(self) -> None:
    """Ends the engine and frees what it holds."""
    ...
