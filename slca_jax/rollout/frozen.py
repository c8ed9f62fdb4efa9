"""A Sampler over SGLang servers as they are: whatever weights they were started with, and no others.

For models that only answer, such as a teacher. Runs that train use `SGLangSampler`, which knows whose weights answer.
"""

import asyncio
import collections
import itertools
import random
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from slca_jax.config import require
from slca_jax.errors import ConfigError, SamplerError
from slca_jax.rollout.answers import read_draw
from slca_jax.rollout.sampler import Sample
from slca_jax.rollout.settings import SGLangServers
from slca_jax.rollout.wire import Server, Trouble, draw_order

_LONGEST_NAP = 30.0


class FrozenServers:
  """A Sampler over servers that keep their weights. A session stays on one of them; trouble moves it to another."""

  def __init__(self, settings: SGLangServers, *, vocab: int, context: int = 0):
    """Connects to nothing yet.

    Args:
      vocab: ids are below it; one that is not would end a server's process.
      context: tokens that the longest request and its answer need.
    """
    require(bool(settings.servers), 'sglang.urls is empty; name the servers, as in http://host:30000')
    self.concurrency = settings.concurrency * len(settings.servers)
    self._settings, self._vocab, self._needed = settings, vocab, context
    self._servers = [Server(url, settings, concurrency=settings.concurrency) for url in settings.servers]
    router = settings.router.rstrip('/')
    self._asked = [Server(router, settings, concurrency=self.concurrency)] if router else self._servers
    self._homes: dict[str, Server] = {}
    self._counts: collections.Counter[str] = collections.Counter()
    self._nonce, self._counter = uuid.uuid4().hex[:12], itertools.count()

  async def check(self) -> None:
    """Asks every server what it takes.

    Raises:
      ConfigError: one does not answer, or does not take the longest request and its answer.
    """
    for server in self._servers:
      try:
        await server.require_room(self._needed)
      except (Trouble, SamplerError) as error:
        raise ConfigError(f'{error}; start the server, or leave it out of sglang.urls') from error

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
    """Samples after `tokens`; see `Sampler.generate`.

    Raises:
      SamplerError: the request makes no sense, a server refuses it, or retries or request_seconds are used up.
    """
    if not tokens or min(tokens) < 0 or max(tokens) >= self._vocab:
      raise SamplerError(f'a prompt needs ids from 0 to {self._vocab - 1}, and at least one')
    body = draw_order(
      tokens, max_tokens=max_tokens, temperature=temperature, top_p=top_p, stop=stop, seed=seed,
      logprob_start=self._settings.logprob_start,
    )  # fmt: skip
    self._counts['engine/requests'] += 1
    limit = self._settings.request_seconds
    try:
      async with asyncio.timeout(limit):
        return await self._persist(session, body)
    except TimeoutError as error:
      raise SamplerError(f'no answer for session {session!r} within {limit:g} s') from error

  async def release(self, session: str) -> None:
    """Forgets where the session lives."""
    home = self._homes.pop(session, None)
    if home is not None:
      home.load -= 1

  async def publish(self, params: Any, version: int) -> None:
    """Raises SamplerError: the servers keep their weights."""
    raise SamplerError(f'servers with weights of their own were to take version {version}; SGLangSampler gives weights')

  async def share(self, work: Callable[[], Any]) -> Any:
    """The result of `work`, run at once in a thread: the servers have devices of their own."""
    return await asyncio.to_thread(work)

  def numbers(self) -> dict[str, float]:
    """Requests and retries since the last call."""
    out = {f'engine/{name}': float(self._counts[f'engine/{name}']) for name in ('requests', 'retries')}
    self._counts.clear()
    return out

  async def close(self) -> None:
    """Closes the connections. The servers go on."""
    for server in {*self._servers, *self._asked}:
      await server.close()

  async def _persist(self, session: str, body: dict[str, Any]) -> Sample:
    """Asks until there is an answer. Being told to wait is no try that failed."""
    failed = 0
    for nap in itertools.count():
      server = self._home(session)
      rid = f'{self._nonce}-{next(self._counter)}'
      try:
        async with server.gate:
          answer = await server.ask('/generate', body | {'rid': rid}, seconds=self._settings.request_seconds)
        tokens, logprobs, finish = read_draw(answer, server.url)
        server.strikes = 0
        return Sample(tokens, logprobs, finish, ((0, len(tokens)),) if tokens else ())
      except Trouble as trouble:
        self._counts['engine/retries'] += 1
        if trouble.kind != 'busy':
          failed += 1
          server.strikes += 1
          await self.release(session)
        if failed > self._settings.retries:
          raise SamplerError(f'{failed} attempts failed, the last one so: {trouble}') from trouble
        delay = min(self._settings.backoff_seconds * 2.0 ** min(nap, 16), _LONGEST_NAP) * random.uniform(0.5, 1.0)
        await asyncio.sleep(max(trouble.wait, delay))
    raise AssertionError

  def _home(self, session: str) -> Server:
    """The session's server; a new one is the one with the fewest troubles in a row and then the fewest sessions."""
    home = self._homes.get(session)
    if home is None:
      home = self._homes[session] = min(self._asked, key=lambda server: (server.strikes, server.load))
      home.load += 1
    return home
