"""A planner that calls tools and another model that answers: RLTR's two stages, as one engine."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from slca_jax.chat.calls import Reading, parse
from slca_jax.chat.template import Template
from slca_jax.rollout.collect import malformed
from slca_jax.rollout.sampler import Sample, Sampler


class TwoStageSampler:
  """A Sampler whose calls are the planner's and whose answers are the summariser's.

  A turn of the planner that tries to call nothing ends its plan, `<answer>` or not; its words are dropped, and the
  summariser says what follows the same context. Both models share the template. Weights are published to the planner.

  SLCA-GRPO (arXiv:2609.29050), app. C.4.
  """

  def __init__(self, planner: Sampler, summariser: Sampler, template: Template, *, reading: Reading = 'strict'):
    self._planner, self._summariser, self._template = planner, summariser, template
    self._reading: Reading = reading
    self.concurrency = planner.concurrency

  async def generate(self, tokens: Sequence[int], *, session: str, **how: Any) -> Sample:
    """The planner's turn if it calls, or was cut off; the summariser's otherwise.

    Raises:
      SamplerError: one of the two cannot answer.
    """
    plan = await self._planner.generate(tokens, session=session, **how)
    if plan.finish != 'stop' or self._calls(plan):
      return plan
    return await self._summariser.generate(tokens, session=session, **how)

  async def release(self, session: str) -> None:
    """Frees the session in both."""
    await asyncio.gather(self._planner.release(session), self._summariser.release(session))

  async def publish(self, params: Any, version: int) -> None:
    """Replaces the planner's weights; the summariser is frozen."""
    await self._planner.publish(params, version)

  async def share(self, work: Callable[[], Any]) -> Any:
    """The result of device work, as the planner's engine lets it run."""
    return await self._planner.share(work)

  def numbers(self) -> dict[str, float]:
    """What the planner's engine tells."""
    return self._planner.numbers()

  async def close(self) -> None:
    """Ends both."""
    await asyncio.gather(self._planner.close(), self._summariser.close())

  def _calls(self, plan: Sample) -> bool:
    parsed = parse(self._template.decode(plan.tokens), reading=self._reading, finished=True)
    return bool(parsed.calls or malformed(parsed))
