"""Values of a function for objects that were met before, told apart by identity: rows of a data set share tools."""

from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar('Item')
Value = TypeVar('Value')


class Remembered(Generic[Item, Value]):
  """A function of objects that nobody changes; of the last `most` of them it is called once for each."""

  def __init__(self, function: Callable[[Item], Value], *, most: int):
    self._function, self._most = function, most
    self._known: dict[int, tuple[Item, Value]] = {}  # the object is held, so that no other gets its id

  def __call__(self, item: Item) -> Value:
    """The function's value; what it raises is raised again each time."""
    if (known := self._known.get(id(item))) is not None:
      return known[1]
    value = self._function(item)
    if len(self._known) >= self._most:
      del self._known[next(iter(self._known))]
    self._known[id(item)] = item, value
    return value
