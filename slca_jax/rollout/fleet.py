"""The servers of a run as one event loop sees them: who may be asked, who has which weights, who comes back.

A server is asked only while it carries this run's newest weights. Their tag on the server, `slca:<run>:<version>`,
tells so, and tells two runs on one server apart. One that fails is left out; a look every few seconds takes it back,
with the weights published meanwhile.
"""

import asyncio
import contextlib
import dataclasses
import logging
import pathlib
from collections.abc import Awaitable, Callable, Sequence

from slca_jax.errors import ConfigError, SamplerError
from slca_jax.rollout.answers import Tag, is_free
from slca_jax.rollout.settings import SGLangServers
from slca_jax.rollout.wire import Server, Trouble

Deliver = Callable[[Sequence[Server]], Awaitable[Sequence[Server]]]  # gives weights to servers; returns who has them

_STRIKES = 3  # this many troubles in a row, and a server is left out


@dataclasses.dataclass(frozen=True, slots=True)
class Weights:
  """A published version: its folder, if it is on disk, and a name that no other publishing has."""

  tag: Tag
  folder: pathlib.Path | None
  name: str


class Fleet:
  """All servers, as one event loop uses them.

  Attributes:
    weights: what was published last; servers may have older ones still.
    serving: what draws whatever is asked from now on.

  Args:
    context: tokens that the longest request and its answer need.
    ours: addresses on which this run has put weights before; it grows.
    weights: what was published before, by an earlier event loop.
  """

  def __init__(
    self, settings: SGLangServers, run: str, *, context: int, ours: set[str], weights: Weights | None = None
  ):
    self.servers = [Server(url, settings, concurrency=settings.concurrency) for url in settings.servers]
    total = settings.concurrency * len(self.servers)
    self._router = Server(settings.router.rstrip('/'), settings, concurrency=total) if settings.router else None
    self.loop, self.moved = asyncio.get_running_loop(), 0
    self._told = False  # of an outage that lasts
    self.weights = self.serving = weights
    self._settings, self._run, self._needed, self._ours = settings, run, context, ours
    self._homes: dict[str, Server] = {}
    self._fresh = set(self.servers)  # not looked at yet: whoever answers is well
    self._refused: dict[Server, str] = {}  # who stays out though it answers, and why
    self._lock, self._changed = asyncio.Lock(), asyncio.Event()
    self._tender = self.loop.create_task(self._tend())

  @property
  def live(self) -> list[Server]:
    """Servers that carry the newest weights and answer."""
    return [server for server in self.servers if server.live]

  @property
  def context(self) -> int | None:
    """Most tokens of a request that every server takes, as far as they said."""
    return min((server.context for server in self.servers if server.context), default=None)

  async def claim(self, session: str) -> Server:
    """The server to ask for this session: always the same one, as long as it lives.

    Raises:
      SamplerError: no server came back within the settings' outage_seconds.
    """
    home = self._homes.get(session)
    if home is not None and home.live and self._open():
      return home
    await self.until_live()
    new = self._router or min(self.live, key=lambda server: server.load)
    self.forget(session)
    self._homes[session] = new
    new.load += 1
    self.moved += home is not None
    return new

  def forget(self, session: str) -> None:
    """The session ends, or moves."""
    home = self._homes.pop(session, None)
    if home is not None:
      home.load -= 1

  async def until_live(self) -> None:
    """Returns once some server can be asked.

    Raises:
      SamplerError: none can within the settings' outage_seconds; says what the last one was like.
    """
    if self._tender.done():
      self._tender.result()  # a bug of ours: nobody would come back any more
    limit, names = self._settings.outage_seconds, ', '.join(server.url for server in self.servers)
    if not self._open() and not self._told:
      logging.warning('no server of %s can be asked; waiting up to outage_seconds = %g s for one', names, limit)
      self._told = True
    with contextlib.suppress(TimeoutError):
      async with asyncio.timeout(limit):
        while not self._open():
          self._changed.clear()
          await self._changed.wait()
        return
    raise SamplerError(f'no server of {names} could be asked for {limit:g} s')

  def note(self, server: Server, trouble: Trouble) -> None:
    """Counts a trouble with a server, and leaves the server out if it is one too many."""
    if trouble.kind == 'busy':
      return
    server.strikes += 1
    if trouble.kind == 'stale' and server is self._router:  # some server behind it; which one, it does not tell
      for one in self.live:
        one.live = False
        self._fresh.add(one)
    elif trouble.kind in ('absent', 'stale') or server.strikes >= _STRIKES:
      self._leave_out(server, trouble)

  async def renew(self, weights: Weights, deliver: Deliver | None = None) -> None:
    """Gives all servers that answer the new weights, and waits until there is one that has them.

    Raises:
      ConfigError: a server belongs to another run, or is too small.
      SamplerError: a server refuses the weights, or none answers.
    """
    async with self._lock:
      self.weights = weights
      await self._install(self.servers, deliver or self._from_disk)
    await self.until_live()

  async def release(self) -> None:
    """Says on every server that still has this run's weights that others may use it."""

    async def free(server: Server) -> None:
      with contextlib.suppress(Trouble, SamplerError):
        tag = Tag.read(await self._carried(server))
        if tag is not None and tag.run == self._run:
          freed = f'released:{tag.run}:{tag.version}'
          await server.ask('/update_weight_version', {'new_version': freed, 'abort_all_requests': False})

    await asyncio.gather(*[free(server) for server in self.servers if server.url in self._ours])

  async def close(self) -> None:
    """Ends the looking and closes all connections."""
    self._tender.cancel()
    await asyncio.gather(self._tender, return_exceptions=True)
    for server in (*self.servers, *filter(None, [self._router])):
      await server.close()

  def _open(self) -> bool:
    return bool(self.live) and (self._router is None or self._router.live)

  def _admit(self, server: Server) -> None:
    server.live, server.strikes, self._told = True, 0, False
    self._fresh.discard(server)
    self._refused.pop(server, None)
    self._changed.set()

  def _leave_out(self, server: Server, trouble: Trouble) -> None:
    if server.live:
      logging.warning('%s is left out: %s', server.url, trouble)
    server.leave_out()

  # Weights

  async def _install(self, servers: Sequence[Server], deliver: Deliver) -> None:
    greeted = await self._each(servers, self._greet)
    try:
      paused = await self._each(greeted, self._pause)
      self.serving = self.weights  # who asks a server that is paused waits for these
      loaded = await deliver(paused)
    finally:
      await self._each(greeted, self._resume)
    for server in await self._each(loaded, self._verify):
      self._admit(server)

  async def _each(self, servers: Sequence[Server], act: Callable[[Server], Awaitable[None]]) -> list[Server]:
    """Those of the servers with which it went well; who is in trouble is left out. All are tried before any raises."""

    async def one(server: Server) -> bool:
      try:
        await act(server)
      except Trouble as trouble:
        self._leave_out(server, trouble)
        return False
      return True

    done = await asyncio.gather(*map(one, servers), return_exceptions=True)
    for outcome in done:
      if isinstance(outcome, BaseException):
        raise outcome
    return [server for server, well in zip(servers, done, strict=True) if well]

  async def _greet(self, server: Server) -> None:
    carried = await self._carried(server)
    tag = Tag.read(carried)
    if not is_free(carried) and (tag is None or tag.run != self._run):
      self._dispute(server, carried)
    await server.require_room(self._needed)

  def _dispute(self, server: Server, carried: str) -> None:
    if server.url in self._ours:
      raise SamplerError(f'{server.url} was taken over: it carries {carried!r}, and this run is {self._run!r}')
    if not self._settings.take_over:
      raise ConfigError(
        f'{server.url} carries {carried!r} of another run. End that run, or restart the server; '
        'if the run is dead, take_over=True'
      )
    logging.warning('%s is taken over from %r', server.url, carried)

  async def _carried(self, server: Server) -> str:
    return str((await server.ask('/model_info')).get('weight_version', ''))

  async def _pause(self, server: Server) -> None:
    await server.ask('/pause_generation', {'mode': self._settings.pause}, seconds=self._settings.sync_seconds)

  async def _resume(self, server: Server) -> None:
    await server.ask('/continue_generation', {})

  async def _from_disk(self, servers: Sequence[Server]) -> Sequence[Server]:
    weights = self.weights
    assert weights is not None and weights.folder is not None
    order = {
      'model_path': str(weights.folder),
      'weight_version': str(weights.tag),
      'flush_cache': self._settings.pause != 'in_place',
    }

    async def load(server: Server) -> None:
      await server.ask('/update_weights_from_disk', order, seconds=self._settings.sync_seconds)

    return await self._each(servers, load)

  async def _verify(self, server: Server) -> None:
    carried, wanted = await self._carried(server), str(self.weights and self.weights.tag)
    if carried != wanted:
      raise SamplerError(f'{server.url} carries {carried!r} after it was given {wanted!r}; does another run use it?')
    self._ours.add(server.url)

  # Health

  async def _tend(self) -> None:
    while True:
      if self._router is not None and not self._router.live and await self._router.healthy():
        self._admit(self._router)
      absent = [server for server in self.servers if not server.live]
      await asyncio.gather(*map(self._readmit, absent), *map(self._watch, self.live))
      await asyncio.sleep(self._settings.probe_seconds)

  async def _readmit(self, server: Server) -> None:
    """Takes a server back that answers again, after it has the newest weights."""
    weights = self.weights
    if weights is None or weights.folder is None or not (server in self._fresh or await server.healthy()):
      return
    try:
      async with self._lock:
        if server.live:
          return
        if await self._carried(server) == str(self.weights and self.weights.tag):
          await self._resume(server)  # it may have been lost in the middle of a pause
          self._admit(server)
        else:
          await self._install([server], self._from_disk)
    except Trouble:
      return
    except (SamplerError, ConfigError) as error:
      if self._refused.get(server) != str(error):  # it is looked at every few seconds
        logging.warning('%s stays out: %s', server.url, error)
      self._refused[server] = str(error)
    else:
      logging.warning('%s is back', server.url)

  async def _watch(self, server: Server) -> None:
    """Looks at a server that owes answers and gave none for a while: one that hangs must not hold its sessions."""
    quiet = self.loop.time() - server.heard
    if not server.flights or quiet < self._settings.quiet_seconds or self._lock.locked():
      return
    if await server.healthy():
      server.heard = self.loop.time()
    elif not self._lock.locked():  # who is paused for new weights cannot be well
      self.note(server, Trouble('lost', f'gave no answer for {quiet:.0f} s and is not healthy'))
