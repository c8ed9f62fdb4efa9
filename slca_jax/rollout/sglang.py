"""A Sampler over SGLang servers: ids and log-probs over HTTP, weights through a shared folder.

A session stays on one server, whose cache holds its prefix. A request that meets trouble is sent again, elsewhere if
its server is left out, until its deadline; `fleet` knows which servers can be asked. What a server sampled with weights
that are not this run's is never used.
"""

import asyncio
import collections
import contextlib
import functools
import hashlib
import itertools
import pathlib
import random
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from slca_jax.config import require
from slca_jax.errors import SamplerError
from slca_jax.rollout.answers import read_answer
from slca_jax.rollout.broadcast import Broadcast, Tensors
from slca_jax.rollout.fleet import Fleet, Tag, Weights
from slca_jax.rollout.published import Published, Save
from slca_jax.rollout.sampler import Sample
from slca_jax.rollout.settings import SGLangServers
from slca_jax.rollout.wire import Server, Trouble, draw_order

_LONGEST_NAP = 30.0


class SGLangSampler:
  """A Sampler over one or several servers; one event loop is served at a time, any number in sequence.

  Args:
    run: a name for this run that no other has, without ':'; a resumed run has the same. Servers carry it.
    folder: where weights are written, seen under the same path by all servers.
    save: writes a Hugging Face folder of the parameters.
    vocab: ids are below it; one that is not would end a server's process.
    context: tokens that the longest request and its answer need; a server with less is refused.
    needed: bytes of a checkpoint, 0 if not known.
    tensors: (name, tensor) of the parameters one by one, named as in that folder; for transport 'distributed'.
  """

  def __init__(
    self,
    settings: SGLangServers,
    *,
    run: str,
    folder: pathlib.Path,
    save: Save,
    vocab: int,
    context: int = 0,
    needed: int = 0,
    tensors: Callable[[Any], Tensors] | None = None,
  ):
    require(bool(settings.servers), 'sglang.urls is empty; name the servers, as in http://host:30000')
    self.concurrency = settings.concurrency * len(settings.servers)
    self._settings, self._run, self._vocab, self._context = settings, run, vocab, context
    self._published = Published(folder, save, needed=needed, keep=settings.keep)
    self._tensors, self._broadcast = tensors, None
    if settings.transport == 'distributed':
      require(tensors is not None, "transport 'distributed' needs `tensors`")
      self._broadcast = Broadcast(settings.meet, seconds=settings.sync_seconds)
    self._nonce, self._counter = uuid.uuid4().hex, itertools.count()
    self._ours: set[str] = set()
    self._counts: collections.Counter[str] = collections.Counter()
    self._sync: dict[str, float] = {}
    self._running: dict[str, tuple[Server, str]] = {}
    self._farewells: set[asyncio.Task] = set()
    self._fleet: Fleet | None = None
    self._closed = False

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
    """Samples after `tokens`; see `Sampler.generate`. Cancelling the call aborts the request on its server.

    Raises:
      SamplerError: the request makes no sense, a server refuses it, or the settings' retries, request_seconds or
        outage_seconds are used up.
    """
    fleet = self._here()
    budget = self._checked(tokens, session, max_tokens, temperature, top_p, fleet.context)
    if budget < 1:
      return Sample((), (), 'length', ())
    body = draw_order(
      tokens, max_tokens=budget, temperature=temperature, top_p=top_p, stop=stop, seed=seed,
      logprob_start=self._settings.logprob_start,
    )  # fmt: skip
    self._counts['engine/requests'] += 1
    limit = self._settings.request_seconds
    try:
      async with asyncio.timeout(limit):
        return await self._persist(fleet, session, body)
    except TimeoutError as error:
      raise SamplerError(f'no answer for session {session!r} within {limit:g} s') from error

  async def release(self, session: str) -> None:
    """Forgets the session. A request of it that still runs ends with what it has, as 'abort'."""
    if session in self._running:
      await self._abort(*self._running[session])
    if self._fleet is not None:
      self._fleet.forget(session)

  async def publish(self, params: Any, version: int) -> None:
    """Gives every server `params`, through the shared folder or by broadcast; what it took is in `numbers`.

    Servers are paused for the loading only. One that does not answer is left out and gets the weights when it is back.

    Raises:
      ConfigError: a server belongs to another run, or is too small for the longest rollout.
      SamplerError: the weights cannot be written or are refused, or no server answers.
    """
    fleet, began = self._here(), time.perf_counter()
    tag, name = Tag(self._run, version), f'{self._nonce}/{next(self._counter)}'
    if self._broadcast is None:
      folder, size = await asyncio.to_thread(self._published.write, params, version)
      written = time.perf_counter()
      await fleet.renew(Weights(tag, folder, name))
      self._published.prune(version)
    else:
      assert self._tensors is not None
      tensors, flush, written = self._tensors(params), self._settings.pause != 'in_place', began
      deliver = functools.partial(self._broadcast.send, tensors=tensors, version=str(tag), flush=flush)
      await fleet.renew(Weights(tag, None, name), deliver)
      size = self._broadcast.bytes
    ended = time.perf_counter()
    self._sync = {
      'sync/bytes': float(size),
      'sync/seconds': ended - began,
      'sync/write_seconds': written - began,
      'sync/load_seconds': ended - written,
    }

  async def share(self, work: Callable[[], Any]) -> Any:
    """The result of `work`, run at once in a thread: the servers have devices of their own."""
    return await asyncio.to_thread(work)

  def numbers(self) -> dict[str, float]:
    """Requests, retries, moved sessions and aborts since the last call, servers left out now, and the last sync."""
    fleet, counts = self._fleet, self._counts
    out = {f'engine/{name}': float(counts[f'engine/{name}']) for name in ('requests', 'retries', 'aborts')}
    counts.clear()
    if fleet is not None:
      out |= {'engine/moved': float(fleet.moved), 'engine/servers_out': float(len(fleet.servers) - len(fleet.live))}
      fleet.moved = 0
    return out | self._sync

  async def close(self) -> None:
    """Aborts what still runs and releases the servers for other runs. They go on."""
    if self._closed or self._fleet is None:
      self._closed = True
      return
    fleet, self._closed = self._here(), True
    for server, rid in list(self._running.values()):
      self._send_abort(server, rid)
    await asyncio.gather(*self._farewells, return_exceptions=True)
    await fleet.release()
    await fleet.close()
    self._fleet = None

  def _here(self) -> Fleet:
    """The fleet of the running event loop."""
    if self._closed:
      raise SamplerError('the engine was closed')
    fleet, loop = self._fleet, asyncio.get_running_loop()
    if fleet is None or fleet.loop is not loop:
      if fleet is not None and fleet.loop.is_running():
        raise SamplerError('the engine serves another event loop; use one at a time')
      self._running.clear()
      self._farewells.clear()
      weights = fleet and fleet.weights
      self._fleet = fleet = Fleet(self._settings, self._run, context=self._context, ours=self._ours, weights=weights)
    return fleet

  def _checked(self, tokens, session, max_tokens, temperature, top_p, context) -> int:
    """How many tokens may be sampled."""
    if max_tokens < 1 or not temperature >= 0 or not 0 < top_p <= 1:
      raise SamplerError(
        f'max_tokens={max_tokens}, temperature={temperature}, top_p={top_p}; '
        'it takes at least 1, a number from 0 up, and one above 0 up to 1'
      )
    if not tokens or min(tokens) < 0 or max(tokens) >= self._vocab:
      raise SamplerError(f'a prompt needs ids from 0 to {self._vocab - 1}, and at least one')
    if context is not None and len(tokens) > context:
      raise SamplerError(f'the prompt has {len(tokens)} tokens, the servers take {context}; shorten it')
    if session in self._running:
      raise SamplerError(f'session {session!r} already has a request; its turns come one after another')
    return max_tokens if context is None else min(max_tokens, context - len(tokens))

  async def _persist(self, fleet: Fleet, session: str, body: dict[str, Any]) -> Sample:
    """Asks until there is an answer. Only what broke counts as a retry; waiting when told to is not trying."""
    broken = 0
    for nap in itertools.count():
      server = await fleet.claim(session)
      try:
        return await self._attempt(fleet, server, session, body)
      except Trouble as trouble:
        fleet.note(server, trouble)
        self._counts['engine/retries'] += 1
        broken += trouble.kind in ('broken', 'lost')
        if broken > self._settings.retries:
          raise SamplerError(f'{broken} attempts broke, the last one so: {trouble}') from trouble
        delay = min(self._settings.backoff_seconds * 2.0 ** min(nap, 16), _LONGEST_NAP) * random.uniform(0.5, 1.0)
        await asyncio.sleep(max(trouble.wait, delay))
    raise AssertionError

  async def _attempt(self, fleet: Fleet, server: Server, session: str, body: dict[str, Any]) -> Sample:
    key = hashlib.sha256(f'{self._nonce}/{session}'.encode()).hexdigest()[:20]
    rid = f'{key}_t{next(self._counter)}'  # a router takes what stands before _t as the session
    async with server.gate:
      if not server.live:
        raise Trouble('absent', f'{server.url} was left out before it was asked')
      serving = fleet.serving
      if self._settings.pause == 'in_place' and serving:
        body = body | {'extra_key': serving.name}  # nothing was flushed: share prefixes of this version only
      self._running[session] = server, rid
      try:
        answer = await server.fly('/generate', body | {'rid': rid}, **{'X-SMG-Routing-Key': key})
      except (asyncio.CancelledError, Trouble) as error:
        if not isinstance(error, Trouble) or error.kind == 'lost':
          self._send_abort(server, rid)
        raise
      finally:
        self._running.pop(session, None)
    sample = read_answer(answer, self._run, server.url)
    if sample.versions and serving and sample.versions[-1][0] < serving.tag.version:
      drew = sample.versions[-1][0]
      raise Trouble('stale', f'{server.url} answered with weights {drew}; it was given {serving.tag.version}')
    self._counts['engine/aborts'] += sample.finish == 'abort'
    return sample

  def _send_abort(self, server: Server, rid: str) -> None:
    task = asyncio.get_running_loop().create_task(self._abort(server, rid))
    self._farewells.add(task)
    task.add_done_callback(self._farewells.discard)

  async def _abort(self, server: Server, rid: str) -> None:
    with contextlib.suppress(Trouble, SamplerError):  # whoever is gone computes nothing
      await server.ask('/abort_request', {'rid': rid})
