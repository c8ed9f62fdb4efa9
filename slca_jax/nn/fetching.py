"""Tensors of a checkpoint out of parameters on devices, the next ones fetched and turned while one is used."""

import collections
import concurrent.futures
import dataclasses
import functools
from collections.abc import Iterable, Iterator

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from slca_jax.nn.names import Entry
from slca_jax.nn.tensorfile import TensorPlan

_AHEAD = 2


@dataclasses.dataclass(frozen=True)
class Tensor:
  """A tensor to be stored: layer `layer` of our parameter, or all of it if None."""

  plan: TensorPlan
  entry: Entry
  value: jax.Array
  layer: int | None

  @property
  def is_shared(self) -> bool:
    """Whether parts of it lie on other hosts, so that all must take part in gathering it."""
    return not self.value.is_fully_addressable

  def begin(self) -> jax.Array:
    """What is to be fetched, computed on the devices and not waited for. Hosts that share it begin in one order."""
    if self._is_at_hand:
      return self.value
    sharding = None
    if self.is_shared:
      assert isinstance(self.value.sharding, NamedSharding)
      sharding = NamedSharding(self.value.sharding.mesh, PartitionSpec())
    dtype = jax.dtypes.canonicalize_dtype(self.plan.dtype)
    return _cut(self.entry, dtype, self._turns_on_device, sharding)(self.value, self.layer or 0)

  def finish(self, part: jax.Array) -> np.ndarray:
    """The tensor, from what `begin` began. It may be a view of the parameter, and cannot be written to."""
    ours = np.asarray(part.addressable_data(0) if self.is_shared else part)
    if self._is_at_hand and self.layer is not None:
      ours = ours[self.layer]
    if self.entry.here[0] == 'V':
      ours = ours[: self.entry.sizes['V']]
    if self.entry.turned and not self._turns_on_device:
      # JAX copies an array of any strides blockwise, 4 to 10 times faster than numpy does.
      ours = np.asarray(jax.device_put(ours.transpose(self.entry.order), jax.local_devices(backend='cpu')[0]))
    return ours.reshape(self.plan.shape).astype(self.plan.dtype, copy=False)

  @property
  def _is_at_hand(self) -> bool:
    """Whether it lies in this process's memory as it is, so that a view will do."""
    on_one = len(self.value.sharding.device_set) == 1 and not self.is_shared
    return on_one and self._platform == 'cpu' and self.value.dtype == self.plan.dtype

  @property
  def _turns_on_device(self) -> bool:
    return self.entry.turned and self._platform != 'cpu'  # a compiled transpose is as slow as numpy's on a CPU

  @property
  def _platform(self) -> str:
    return next(iter(self.value.sharding.device_set)).platform


@functools.cache
def _cut(entry, dtype, turn, sharding):
  """The program that cuts a tensor out of our parameter, and gathers it if a sharding says so."""

  def cut(value, layer):
    part = (value[layer] if entry.stacked else value).astype(dtype)
    return entry.to_there(part) if turn else part

  return jax.jit(cut, out_shardings=sharding)


class Fetched:
  """A context and an iterator over the tensors that are wanted here, in order; two beside the last are in the making.

  Hosts that share tensors must be given the same ones in the same order. Leaving the context takes part in what the
  others still gather, after a failure too, or they would wait for ever.

  Args:
    tensors: and for each, whether it is wanted here.
  """

  def __init__(self, tensors: Iterable[tuple[Tensor, bool]]):
    self._rest = iter(tensors)
    self._thread = concurrent.futures.ThreadPoolExecutor(1)
    self._waiting: collections.deque[concurrent.futures.Future] = collections.deque()
    self._joined: collections.deque[jax.Array] = collections.deque()

  def __enter__(self) -> 'Fetched':
    return self

  def __exit__(self, *_) -> None:
    for tensor, _ in self._rest:
      self._join(tensor)
    self._thread.shutdown(cancel_futures=True)

  def __iter__(self) -> Iterator[np.ndarray]:
    return self

  def __next__(self) -> np.ndarray:
    while len(self._waiting) <= _AHEAD and (found := next(self._rest, None)):
      tensor, wanted = found
      if wanted:
        self._waiting.append(self._thread.submit(tensor.finish, tensor.begin()))
      else:
        self._join(tensor)
    if not self._waiting:
      raise StopIteration
    return self._waiting.popleft().result()

  def _join(self, tensor):
    """Takes part in gathering a tensor for others, and waits for an earlier one so that not all are in flight."""
    if tensor.is_shared:
      self._joined.append(tensor.begin())
    if len(self._joined) > _AHEAD:
      jax.block_until_ready(self._joined.popleft())
