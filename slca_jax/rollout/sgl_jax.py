"""A Sampler over an sglang-jax Engine in this process, for TPUs: its weights change by assignment, not over HTTP.

The engine is made by the caller, with `enable_single_process=True`, so that its scheduler and model live here:

    from sgl_jax.srt.entrypoints.engine import Engine
    sampler = SglJaxSampler(Engine(model_path=..., enable_single_process=True), save=..., folder=..., ...)

Nothing of sgl_jax is imported here.
"""

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import jax
from flax import nnx

from slca_jax.errors import SamplerError
from slca_jax.rollout.answers import read_draw
from slca_jax.rollout.published import Published, Save
from slca_jax.rollout.sampler import Sample
from slca_jax.rollout.wire import Trouble

_FLUSH_PAUSE = 0.02


class SglJaxSampler:
  """A Sampler over one engine. It serves the event loop of its first request, and no other.

  Args:
    save: writes a Hugging Face folder of the parameters, which the engine's own loader reads.
    folder: where; only the newest version is kept.
    vocab: ids are below it.
    concurrency: requests the engine works on at once.
    needed: bytes of a checkpoint, 0 if not known.
    sync_seconds: longest wait for requests that were cancelled and still run, before new weights.
  """

  def __init__(
    self,
    engine: Any,
    *,
    save: Save,
    folder: pathlib.Path,
    vocab: int,
    concurrency: int = 64,
    needed: int = 0,
    sync_seconds: float = 600.0,
  ):
    self.concurrency, self._sync_seconds = concurrency, sync_seconds
    self._engine, self._vocab, self._version = engine, vocab, 0
    self._published = Published(folder, save, needed=needed, keep=1)
    self._gate, self._lock = asyncio.Semaphore(concurrency), asyncio.Lock()

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
    """Samples after `tokens`; see `Sampler.generate`. A cancelled request runs to its end and is forgotten.

    Raises:
      SamplerError: the ids are none of the model's, or the engine fails.
    """
    if not tokens or min(tokens) < 0 or max(tokens) >= self._vocab:
      raise SamplerError(f'a prompt needs ids from 0 to {self._vocab - 1}, and at least one')
    sampling = {
      'max_new_tokens': max_tokens,
      'temperature': temperature,
      'top_p': top_p,
      'stop_token_ids': list(stop),
      'sampling_seed': seed,
      'skip_special_tokens': False,
    }
    async with self._gate:
      version = self._version  # it changes only while nobody is let in
      try:
        answer = await self._engine.async_generate(
          input_ids=list(tokens),
          sampling_params=sampling,
          return_logprob=True,
          logprob_start_len=0,  # without it the lists are too long beyond 50 tokens
        )
        drawn, logprobs, finish = read_draw(answer, 'the engine')
      except (Trouble, ValueError) as error:
        raise SamplerError(f'the engine failed: {error}') from error
    return Sample(drawn, logprobs, finish, ((version, len(drawn)),) if drawn else ())

  async def release(self, session: str) -> None:
    """Nothing is held for a session but its prefix, which the engine drops when it needs the room."""

  async def publish(self, params: Any, version: int) -> None:
    """Waits until nothing runs, then replaces the weights and empties the cache.

    Raises:
      SamplerError: the weights cannot be written, the engine keeps its model in another process, or it does not empty
        its cache within `sync_seconds`.
    """
    async with self._lock, self._alone():
      folder, _ = await asyncio.to_thread(self._published.write, params, version)
      await asyncio.to_thread(assign, model_runner(self._engine), folder)
      await self._flush()
      self._version = version
      self._published.prune(version)

  async def share(self, work: Callable[[], Any]) -> Any:
    """The result of `work`, run when nothing is sampled: both would use the same devices."""
    async with self._lock, self._alone():
      return await asyncio.to_thread(work)

  def numbers(self) -> dict[str, float]:
    """Nothing to tell."""
    return {}

  async def close(self) -> None:
    """Nothing: the engine belongs to the caller, and its `shutdown` ends every child of this process."""

  async def _flush(self) -> None:
    """Empties the cache, which the engine refuses while anything runs: also what nobody waits for any more."""
    loop = asyncio.get_running_loop()
    end = loop.time() + self._sync_seconds
    while not (answer := await self._engine.tokenizer_manager.flush_cache()).success:
      if loop.time() > end:
        raise SamplerError(f'the engine does not empty its cache: {answer.error_msg}')
      await asyncio.sleep(_FLUSH_PAUSE)

  @contextlib.asynccontextmanager
  async def _alone(self) -> AsyncIterator[None]:
    """Holds all places of the gate."""
    held = 0
    try:
      while held < self.concurrency:
        await self._gate.acquire()
        held += 1
      yield
    finally:
      for _ in range(held):
        self._gate.release()


def model_runner(engine: Any) -> Any:
  """What computes in an engine: it holds the model and the leaves that its programs are called with.

  Raises:
    SamplerError: it is in another process.
  """
  scheduler = engine.scheduler_info.get('scheduler')
  if scheduler is None:
    raise SamplerError('the engine has its model in another process; make it with enable_single_process=True')
  worker = scheduler.tp_worker
  return getattr(worker, 'worker', worker).model_runner


def assign(runner: Any, folder: pathlib.Path) -> None:
  """Lets the engine's loader read a Hugging Face folder, then gives its programs the new leaves.

  Raises:
    SamplerError: the folder holds another network.
  """
  before = [(leaf.shape, leaf.dtype) for leaf in runner.model_state_leaves]
  runner.model_config.model_path = str(folder)
  with jax.set_mesh(runner.mesh):
    runner.model.load_weights(runner.model_config)
    leaves = jax.tree.leaves(nnx.split(runner.model)[1])
  if [(leaf.shape, leaf.dtype) for leaf in leaves] != before:
    raise SamplerError(f'the weights in {folder} are of another network than the engine was made with')
  runner.model_state_leaves = leaves
