"""Weights to SGLang servers by torch.distributed: no shared folder. Torch is imported when it is used.

The trainer is rank 0 of a group in which every server's processes follow. Tensors go through it in the order in which
the servers were told their names.
"""

import asyncio
import datetime
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from slca_jax.config import require
from slca_jax.errors import SamplerError
from slca_jax.rollout.wire import Server, Trouble

Tensors = Iterable[tuple[str, np.ndarray]]

_BUCKET_BYTES = 1 << 30  # announced and sent together


class Broadcast:
  """A group of this process and the servers it was last sent to; another set of servers makes a new group.

  Args:
    address: `HOST:PORT` of this machine, free for the servers to meet at.
    seconds: longest wait for any one step.
  """

  def __init__(self, address: str, *, seconds: float):
    host, _, port = address.rpartition(':')
    require(bool(host) and port.isdigit(), f'sglang.meet is {address!r}; give HOST:PORT of the trainer')
    try:
      import torch.distributed as _  # noqa: F401
    except ImportError as error:
      raise SamplerError("transport='distributed' needs torch in the trainer's environment; install it") from error
    self._host, self._port, self._seconds = host, int(port), seconds
    self._members: tuple[str, ...] = ()
    self._group: Any = None
    self._names = (f'slca{count}' for count in itertools.count())
    self._name = ''
    self.bytes = 0

  async def send(self, servers: Sequence[Server], tensors: Tensors, *, version: str, flush: bool) -> Sequence[Server]:
    """Gives the tensors to all servers, which are paused; returns the servers.

    Raises:
      SamplerError: a server refuses, or is lost on the way; then none of them may be used before the next sync.
    """
    if not servers:
      return servers
    try:
      await self._send_to(servers, tensors, version, flush)
    except Exception as error:
      self._members = ()  # whatever the group is in the middle of, it is not used again
      if isinstance(error, Trouble):
        raise SamplerError(f'weights could not be sent: {error}') from error
      raise
    return servers

  async def _send_to(self, servers: Sequence[Server], tensors: Tensors, version: str, flush: bool) -> None:
    if self._members != tuple(server.url for server in servers):
      await self._meet(servers)
    self.bytes = 0
    await self._all(servers, '/begin_weight_update', {})
    for bucket in buckets(tensors, _BUCKET_BYTES):
      order = {
        'names': [name for name, _ in bucket],
        'dtypes': [tensor.dtype.name for _, tensor in bucket],
        'shapes': [list(tensor.shape) for _, tensor in bucket],
        'group_name': self._name,
        'weight_version': version,
        'flush_cache': flush,
      }
      self.bytes += sum(tensor.nbytes for _, tensor in bucket)
      arrays = [tensor for _, tensor in bucket]
      await asyncio.gather(
        self._all(servers, '/update_weights_from_distributed', order), asyncio.to_thread(self._send, arrays)
      )
    await self._all(servers, '/end_weight_update', {})

  async def _meet(self, servers: Sequence[Server]) -> None:
    """Makes the group: this process and every process of every server."""
    ranks = [int((await server.ask('/server_info')).get('tp_size') or 1) for server in servers]
    self._name, self._group, self._members = next(self._names), None, ()
    places = itertools.accumulate(ranks[:-1], initial=1)
    size = 1 + sum(ranks)
    invitation = {'master_address': self._host, 'master_port': self._port, 'world_size': size, 'backend': 'gloo'}
    orders = [invitation | {'rank_offset': place, 'group_name': self._name} for place in places]
    calls = [
      server.ask('/init_weights_update_group', order, seconds=self._seconds)
      for server, order in zip(servers, orders, strict=True)
    ]
    self._group, *_ = await asyncio.gather(asyncio.to_thread(self._open, size), *calls)
    self._members = tuple(server.url for server in servers)

  async def _all(self, servers: Sequence[Server], path: str, body: dict[str, Any]) -> None:
    await asyncio.gather(*[server.ask(path, body, seconds=self._seconds) for server in servers])

  def _open(self, size: int) -> Any:
    """Rank 0 of the group, made as the servers make theirs: torch has no public way beside its default group."""
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed import Backend, distributed_c10d
    from torch.distributed.rendezvous import rendezvous

    wait = datetime.timedelta(seconds=self._seconds)
    store, _, _ = next(rendezvous(f'tcp://{self._host}:{self._port}', 0, size, timeout=wait))
    store.set_timeout(wait)
    store = PrefixStore(self._name, store)
    name: Any = self._name
    group, _ = distributed_c10d._new_process_group_helper(
      size, 0, [], Backend('gloo'), store, group_name=name, timeout=wait
    )
    distributed_c10d._world.pg_group_ranks[group] = {rank: rank for rank in range(size)}
    return group

  def _send(self, arrays: Sequence[np.ndarray]) -> None:
    import torch.distributed

    try:
      works: list[Any] = [
        torch.distributed.broadcast(to_torch(array), src=0, group=self._group, async_op=True) for array in arrays
      ]
      for work in works:
        work.wait()
    except RuntimeError as error:
      raise SamplerError(f'a server was lost while weights were sent to it: {error}') from error


def to_torch(array: np.ndarray) -> Any:
  """The array as a torch tensor; bfloat16, which numpy does not know by itself, goes as its bits."""
  import torch

  array = np.ascontiguousarray(array)
  if array.dtype.name == 'bfloat16':
    return torch.from_numpy(array.view(np.int16).copy()).view(torch.bfloat16)
  return torch.from_numpy(array.copy() if not array.flags.writeable else array)


def buckets(tensors: Tensors, most: int) -> Iterator[list[tuple[str, np.ndarray]]]:
  """Neighbours of up to `most` bytes together; a larger tensor stands alone."""
  bucket, size = [], 0
  for name, tensor in tensors:
    if bucket and size + tensor.nbytes > most:
      yield bucket
      bucket, size = [], 0
    bucket.append((name, tensor))
    size += tensor.nbytes
  if bucket:
    yield bucket
