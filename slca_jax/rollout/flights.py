"""What the embedded engine keeps of a request and of a device call under way."""

import asyncio
import concurrent.futures
import contextlib
import dataclasses
from typing import Any

import numpy as np

from slca_jax.nn.layers import Layers
from slca_jax.rollout.slots import Step


@dataclasses.dataclass(eq=False)
class Request:
  """Who asked for what, where it sits, and whether anybody still waits for it."""

  ids: np.ndarray
  session: str
  budget: int
  sampling: dict[str, Any]
  answer: asyncio.Future
  slot: int | None = None
  dropped: bool = False


@dataclasses.dataclass(eq=False)
class Flight:
  """One device call: its orders (a prefill step, or a decode block's arrays) and where its result will be."""

  orders: Step | tuple[np.ndarray, np.ndarray]
  layers: Layers
  version: int
  hasten: bool
  landing: concurrent.futures.Future = dataclasses.field(default_factory=concurrent.futures.Future)


async def landed(landing: concurrent.futures.Future) -> None:
  """Returns once the worker is done. Giving up the wait, or the end of the loop, leaves the worker's call alone."""
  loop, done = asyncio.get_running_loop(), asyncio.Event()

  def tell(_):
    with contextlib.suppress(RuntimeError):  # the loop is closed
      loop.call_soon_threadsafe(done.set)

  landing.add_done_callback(tell)
  await done.wait()
