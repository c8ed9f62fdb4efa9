"""The embedded engine: a Sampler on the trainer's own devices, with continuous batching over slots of one KV cache.

A session owns a slot from its first request until its release, and a seat at its prompt, whose keys and values all
sessions with that prompt read; each turn of a rollout prefills only what is new. The engine alternates between prefill
calls, which write the keys and values of all ids but a request's last, and decode blocks, which run that last id and
sample on. Both are planned on the event loop and run in one worker thread, so
environments step while the device computes; between two calls the table of slots and the cache agree.
"""

import asyncio
import collections
import concurrent.futures
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from flax import nnx

from slca_jax.config import require
from slca_jax.errors import SamplerError
from slca_jax.nn.cache import KVCache
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.layers import Layers
from slca_jax.rollout import decoding, drawing
from slca_jax.rollout.flights import Flight, Request, landed
from slca_jax.rollout.sampler import Finish, Sample
from slca_jax.rollout.settings import LocalEngine
from slca_jax.rollout.slots import Slots, Step


class LocalSampler:
  """A Sampler over one decoder. Ids and log-probs of a request depend on it, its session and the weights alone.

  On CPU they are the same bits in any company, slot and order, whether the prefix was copied or computed; the programs'
  shapes are fixed by the options. One event loop is served at a time, any number in sequence.

  Args:
    graph, params: `nnx.split(model, nnx.Param)` of a `Transformer`. The engine keeps copies of its own, here and at
      `publish`: the caller may donate or overwrite its arrays as soon as the call is back.
    version: what samples of these weights are labelled with.
  """

  def __init__(
    self,
    graph: nnx.GraphDef,
    params: nnx.State,
    config: TransformerConfig,
    options: LocalEngine,
    *,
    version: int = 0,
  ):
    require(
      options.context <= config.context,
      f'context is {options.context}, but the model has {config.context} positions; lower it',
    )
    self.concurrency = options.slots
    self._config, self._options, self._version = config, options, version
    self._programs = decoding.Programs(graph, params, config, options)
    self._layers: Layers = self._programs.adopt(params)
    self._cache: KVCache | None = None
    self._slots = Slots(
      options.slots,
      options.context,
      chunk=options.prefill_chunk,
      stems=options.stems,
      siblings=options.siblings,
      turn_chunk=options.turn_chunk,
      shards=self._programs.shards,
    )
    self._control_SX = np.zeros((options.slots, drawing.STOPS + options.stop_ids), np.int32)
    self._logp_SX = np.zeros((options.slots, options.context), np.float32)
    self._version_SX = np.zeros((options.slots, options.context), np.int64)
    self._start_S, self._end_S = np.zeros((2, options.slots), np.int64)
    self._waiting: collections.deque[Request] = collections.deque()
    self._running: dict[int, Request] = {}  # by slot, in order of arrival
    self._stale = self._closed = False
    self._flight: Flight | None = None
    self._driver: asyncio.Task | None = None
    self._worker = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix='slca_jax-engine')

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
    """Samples after `tokens`; see `Sampler.generate`. Cancelling the call frees its work and keeps its session."""
    ids_X = self._checked(tokens, session, max_tokens, temperature, top_p, stop)
    budget = min(max_tokens, self._options.context - len(ids_X))
    if budget == 0:
      return Sample((), (), 'length', ())
    sampling = {'seed': seed, 'temperature': temperature, 'top_p': top_p, 'stop': tuple(stop)}
    request = Request(ids_X, session, budget, sampling, asyncio.get_running_loop().create_future())
    self._wake()
    self._waiting.append(request)
    try:
      return await request.answer
    finally:
      request.dropped = True  # a no-op unless the caller was cancelled

  async def release(self, session: str) -> None:
    """Frees the session's slot. A request of it that still runs ends with what it has, as 'abort'."""
    for request in [r for r in (*self._waiting, *self._running.values()) if r.session == session]:
      if not request.dropped:
        self._finish(request, 'abort')
    self._slots.release(session)
    if self._waiting:
      self._wake()

  async def publish(self, params: nnx.State, version: int) -> None:
    """Replaces the weights by a copy of `params`, between two device calls.

    No key or value of the old weights is used again: idle prefixes are forgotten, live sessions prefill anew on their
    next request, and running requests before their next token; their sample's `versions` tell which weights drew what.

    Raises:
      SamplerError: the parameters differ from the engine's in name, shape or type.
    """
    self._require_open()
    adopted = asyncio.get_running_loop().run_in_executor(self._worker, self._programs.adopt, params)
    self._layers = await adopted
    self._version, self._stale = version, True

  async def share(self, work: Callable[[], Any]) -> Any:
    """The result of `work`, run by the worker between two device calls of the engine.

    Two threads that launch programs with collectives on the same devices can deadlock.
    """
    self._require_open()
    return await asyncio.get_running_loop().run_in_executor(self._worker, work)

  def numbers(self) -> dict[str, float]:
    """Nothing: whatever can be told of it is in the stopwatch."""
    return {}

  async def close(self) -> None:
    """Fails what still waits, ends the worker and frees weights and cache."""
    if self._closed:
      return
    self._closed = True
    self._fail(SamplerError('the engine was closed'))
    await asyncio.get_running_loop().run_in_executor(self._worker, lambda: None)
    self._worker.shutdown()
    self._cache = self._flight = None
    del self._layers

  def compilations(self) -> dict[str, int]:
    """How many variants of each device program were compiled."""
    return self._programs.compilations()

  # What follows plans on the event loop.

  def _checked(self, tokens, session, max_tokens, temperature, top_p, stop):
    self._require_open()
    context, ids_X = self._options.context, np.asarray(tokens, np.int32)
    if len(ids_X) > context:
      raise SamplerError(f'the prompt has {len(ids_X)} tokens, the context {context}; shorten it or raise the context')
    if not len(ids_X) or ids_X.min() < 0 or ids_X.max() >= self._config.vocab:
      raise SamplerError(f'a prompt needs ids from 0 to {self._config.vocab - 1}, and at least one')
    if max_tokens < 1 or not temperature >= 0 or not 0 < top_p <= 1:
      raise SamplerError(
        f'max_tokens={max_tokens}, temperature={temperature}, top_p={top_p}; '
        'it takes at least 1, a number from 0 up, and one above 0 up to 1'
      )
    if len(stop) > self._options.stop_ids:
      raise SamplerError(f'{len(stop)} stop ids, but the engine takes {self._options.stop_ids}; raise stop_ids')
    if any(r.session == session and not r.dropped for r in (*self._waiting, *self._running.values())):
      raise SamplerError(f'session {session!r} already has a request; its turns come one after another')
    return ids_X

  def _require_open(self):
    if self._closed:
      raise SamplerError('the engine was closed')

  def _wake(self):
    loop = asyncio.get_running_loop()
    if self._driver is not None and not self._driver.done():
      other = self._driver.get_loop()
      if other is loop:
        return
      if other.is_running():
        raise SamplerError('the engine serves another event loop; use one at a time')
    self._driver = loop.create_task(self._drive())

  async def _drive(self):
    """Plans, flies, lands, until there is nothing to do. A flight outlives a driver whose loop ended under it."""
    while self._driver is asyncio.current_task():
      try:
        flight = self._flight or self._launch()
        if flight is None:
          return
        await landed(flight.landing)
        self._flight = None
        self._land(flight)
      except Exception as error:
        self._flight = None
        self._recover(error)

  def _launch(self):
    flight = self._plan()
    if flight is not None:
      flight.landing = self._worker.submit(self._fly, flight)
    self._flight = flight
    return flight

  def _plan(self) -> Flight | None:
    self._sweep()
    self._admit()
    if not self._running:
      return None
    step = self._slots.step(list(self._running), rows=self._options.prefill_rows)
    orders = step or self._orders()
    return Flight(orders, self._layers, self._version, hasten=self._options.hasten and bool(self._waiting))

  def _sweep(self):
    if self._stale:
      self._slots.forget()
      self._stale = False
    self._running = {slot: request for slot, request in self._running.items() if not request.dropped}

  def _admit(self):
    """Gives each waiting request its session's slot or an idle one, first come, first served."""
    waiting, self._waiting = self._waiting, collections.deque()
    for request in waiting:
      if request.dropped:
        continue
      slot = self._seated(request)
      if slot is None:
        self._waiting.append(request)
        continue
      # The last id of a sample is never looked at, so it needs no place.
      room = self._slots.shared_S[slot] + (self._options.own or self._options.context) + 1
      self._start_S[slot], self._end_S[slot] = len(request.ids), min(len(request.ids) + request.budget, room)
      if self._end_S[slot] <= self._start_S[slot]:
        self._finish(request, 'length')
        continue
      drawing.pack_sampling(self._control_SX[slot], **request.sampling)
      request.slot, self._running[slot] = slot, request

  def _seated(self, request):
    """The slot of the request's session, moved where it begins with another prompt now; None if it must wait."""
    slot = self._slots.of(request.session)
    if slot is not None and self._slots.assign(slot, request.ids):
      return slot
    self._slots.release(request.session)
    slot = self._slots.claim(request.session, request.ids)
    if slot is not None:
      self._slots.assign(slot, request.ids)
    return slot

  def _orders(self):
    """The control array of a decode block over all running requests, and who sits where."""
    length_S, running = self._slots.length_S, list(self._running)
    control_SX = self._control_SX.copy()
    control_SX[:, drawing.TOKEN] = self._slots.ids_SX[np.arange(len(length_S)), np.maximum(length_S - 1, 0)]
    control_SX[:, drawing.POSITION] = length_S - 1
    control_SX[:, drawing.INDEX] = length_S - self._start_S
    control_SX[:, drawing.LEFT] = 0
    control_SX[running, drawing.LEFT] = (self._end_S - length_S)[running]
    control_SX[:, drawing.SHARED] = self._slots.shared_S
    control_SX[:, drawing.PLACE], slot_PR = self._slots.places()
    return control_SX, slot_PR

  def _land(self, flight: Flight) -> None:
    """Enters what a decode block sampled, and answers the requests that are done."""
    packed_SM2 = flight.landing.result()
    if packed_SM2 is None:
      return
    tokens_SM = packed_SM2[:, :, 0]
    rows, steps, columns = self._slots.extend(tokens_SM)
    self._logp_SX[rows, columns] = packed_SM2[rows, steps, 1].view(np.float32)
    self._version_SX[rows, columns] = flight.version
    broken_S = (tokens_SM == decoding.BROKEN).any(1)
    if broken_S.any():  # a masked NaN would still poison whoever comes after it
      self._slots.forget()
      self._cache = None
    for slot, request in self._running.items():
      if request.dropped:
        continue
      length = self._slots.length_S[slot]
      if broken_S[slot]:
        self._answer(request, SamplerError('the model gave logits that are no numbers; look at its weights'))
      elif length > self._start_S[slot] and self._slots.ids_SX[slot, length - 1] in request.sampling['stop']:
        self._finish(request, 'stop')
      elif length == self._end_S[slot]:
        self._finish(request, 'length')

  def _finish(self, request, finish: Finish):
    slot = request.slot
    if slot is None:
      return self._answer(request, Sample((), (), finish, ()))
    new = slice(self._start_S[slot], self._slots.length_S[slot])
    versions = ((version, len(list(run))) for version, run in itertools.groupby(self._version_SX[slot, new].tolist()))
    tokens, logprobs = self._slots.ids_SX[slot, new].tolist(), self._logp_SX[slot, new].tolist()
    self._answer(request, Sample(tuple(tokens), tuple(logprobs), finish, tuple(versions)))

  def _answer(self, request, outcome: Sample | Exception):
    request.dropped = True
    if request.answer.done() or request.answer.get_loop().is_closed():
      return
    if isinstance(outcome, Sample):
      request.answer.set_result(outcome)
    else:
      request.answer.set_exception(outcome)

  def _fail(self, error: SamplerError) -> None:
    for request in (*self._waiting, *self._running.values()):
      if not request.dropped:
        self._answer(request, error)
    self._waiting.clear()
    self._running.clear()

  def _recover(self, error):
    """After a failed device call nobody knows what the cache holds: all requests fail, and it starts empty."""
    failure = SamplerError(f'the engine failed: {type(error).__name__}: {error}')
    failure.__cause__ = error
    self._fail(failure)
    self._slots.forget()
    self._cache = None

  # What follows runs in the worker thread.

  def _fly(self, flight: Flight) -> np.ndarray | None:
    programs, cache = self._programs, self._cache or self._programs.empty_cache()
    if isinstance(flight.orders, Step):
      self._cache = programs.fill(flight.layers, cache, *flight.orders)
      return None
    self._cache, packed_SM2 = programs.decode(flight.layers, cache, *flight.orders, flight.hasten)
    return packed_SM2
