"""What one seed makes of banks and ranges. Equal seeds deal alike, on every machine."""

import hashlib
import random
from collections.abc import Sequence
from typing import TypeVar

from slca_jax.toolverse.deterministic.banks import FIRST_NAMES, LAST_NAMES

T = TypeVar('T')


class Deal:
  """Choices that depend on a seed and on what they are for, and on nothing that was chosen before."""

  def __init__(self, seed: int | str):
    self._seed = seed
    self._orders: dict[tuple[int, str], list[int]] = {}

  def number(self, purpose: str, below: int) -> int:
    """A number in [0, below)."""
    return int.from_bytes(self.drawn(purpose)[:8], 'big') % below

  def share(self, purpose: str) -> float:
    """A number in [0, 1), with six digits."""
    return self.number(purpose, 10**6) / 10**6

  def drawn(self, purpose: str) -> bytes:
    """32 bytes."""
    return hashlib.sha256(f'{self._seed}/{purpose}'.encode()).digest()

  def order(self, options: Sequence[T], purpose: str = '') -> list[T]:
    """The options in another order, the same for all of one length: so a city keeps its country, a coin its symbol."""
    size = len(options)
    if (size, purpose) not in self._orders:
      self._orders[size, purpose] = random.Random(f'{self._seed}/{size}/{purpose}').sample(range(size), size)
    return [options[place] for place in self._orders[size, purpose]]

  def person(self, index: int) -> tuple[str, str]:
    """(first name, last name), of which 144 differ."""
    first, last = self.order(FIRST_NAMES, 'first'), self.order(LAST_NAMES, 'last')
    return first[index % len(first)], last[(index + index // len(first)) % len(last)]

  def username(self, index: int) -> str:
    """What the person is called where a name has no blanks."""
    first, last = self.person(index)
    return f'{first[0]}{last}'.lower()
