"""Much work, some of it at a time, under a progress bar."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import tqdm

Item = TypeVar('Item')


async def do_all(
  items: Sequence[Item], work: Callable[[Item], Awaitable[None]], *, at_once: int, title: str, unit: str
) -> None:
  """Does the work of every item, begun in order; the first failure ends the rest and is raised in its group."""
  left = iter(items)
  bar = tqdm.tqdm(total=len(items), desc=title, unit=unit, disable=None if items else True)

  async def take() -> None:
    for item in left:  # all of the crew take from one iterator
      await work(item)
      bar.update()

  with contextlib.closing(bar):
    async with asyncio.TaskGroup() as crew:
      for _ in range(min(at_once, len(items))):
        crew.create_task(take())
