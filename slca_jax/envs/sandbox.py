"""Where generated code runs: processes of its own that the kernel confines, warm, one forked per rollout.

What protects, and where:

    protection                                           Linux                       macOS   level
    static check of the source (`confined/source.py`)    yes                         yes     all
    offered builtins and modules only, fixed clock       yes                         yes     all
    process of its own, killed at the deadline           yes, dies with its parent   yes     all
    no new descriptor: no file, socket or pipe opens     rlimit                      rlimit  limits
    CPU time, file size, no new process, memory          rlimit                      rlimit, no bound on memory
    only memory and the answer's socket                  seccomp by libseccomp       -       kernel
    no network, files, processes or capabilities         namespaces                  -       kernel; with seccomp: full

Namespaces need a kernel that lets users have them (most distributions; most containers don't), seccomp needs
libseccomp.so.2 (part of Debian, Ubuntu, Fedora and their images). Each of them alone contains code that got out of
Python; by namespaces alone it could still kill other worlds of its sandbox. Without either, it could rename or delete
what its user may: so the default refuses to run it. A sandbox that is started by root works as nobody.

    sandbox = Sandbox()                        # nothing starts yet
    sandbox.protections().level                # 'full'
    session = sandbox.open(Code(source, database))
    await session.ask({'do': 'call', 'call': 'search', 'arguments': {'city': 'Rome'}}, deadline=5)
"""

import asyncio
import atexit
import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, Literal

from slca_jax.config import require
from slca_jax.envs.confined import wire
from slca_jax.envs.confined.offered import NOW
from slca_jax.errors import ConfigError, EnvironmentFailure

Level = Literal['limits', 'kernel', 'full']
LEVELS: tuple[Level, ...] = ('limits', 'kernel', 'full')

_ROOT = pathlib.Path(__file__).parents[2]
_START = (
  'import sys; sys.path.insert(0, sys.argv.pop(1)); from slca_jax.envs.confined.nursery import main; '
  'sys.argv[:] = sys.argv[:2]; main()'
)
_PASSED = ('LD_LIBRARY_PATH', 'DYLD_LIBRARY_PATH')
_MEGABYTE = 1 << 20
_PATIENCE = 120.0  # seconds with the sandbox's own processes: to start, to read a large database


@dataclasses.dataclass(frozen=True, slots=True)
class SandboxSettings:
  """How generated code is confined.

  Attributes:
    least: the protection below which it is refused: 'limits', 'kernel' or 'full', as the module's table says.
    cpu_seconds: CPU time of one rollout's world, all its calls together.
    memory_mb: what a world may use beyond its blueprint.
    most_result: longest result of a call, in bytes.
    most_database: longest database that is handed back, in bytes.
    most_warm: blueprints that stay loaded.
  """

  least: Level = 'kernel'
  cpu_seconds: int = 60
  memory_mb: int = 256
  most_result: int = 1_000_000
  most_database: int = 256_000_000
  most_warm: int = 64

  def __post_init__(self):
    require(self.least in LEVELS, f'least is {self.least!r}; known: {", ".join(LEVELS)}')
    for name in ('cpu_seconds', 'memory_mb', 'most_result', 'most_database', 'most_warm'):
      require(getattr(self, name) > 0, f'{name} is {getattr(self, name)}; it must be positive')


@dataclasses.dataclass(frozen=True)
class Code:
  """What a world is made of: the source of its functions, its database as JSON text, and where its clock stands."""

  source: str
  database: str
  now: str = NOW

  @functools.cached_property
  def key(self) -> str:
    """The same for equal worlds."""
    return hashlib.sha256('\0'.join((self.source, self.database, self.now)).encode()).hexdigest()


@dataclasses.dataclass(frozen=True, slots=True)
class Protections:
  """What confines generated code on this machine.

  Attributes:
    active: by name.
    missing: by name, with the reason.
  """

  active: tuple[str, ...]
  missing: Mapping[str, str]

  @property
  def level(self) -> Level:
    """The level reached: the kernel's means are the filter and the namespaces, 'full' has all of both."""
    means = {'filter', 'namespaces'} & set(self.active)
    return 'full' if not self.missing else 'kernel' if means else 'limits'

  def __str__(self) -> str:
    missing = ''.join(f'; no {name} ({reason})' for name, reason in self.missing.items())
    return f'{self.level}: {", ".join(self.active)}{missing}'


class Hung(Exception):
  """A call that was not answered in time; its world has been killed."""


class Gone(Exception):
  """A world that ended, by a crash or by its limits."""


class Session:
  """One world. It belongs to one rollout; a call at a time."""

  def __init__(self, sock: socket.socket, cradle: '_Cradle', name: int, *, most: int):
    self._sock, self._cradle, self._name, self._most = sock, cradle, name, most
    self._busy = False
    sock.setblocking(False)

  @property
  def closed(self) -> bool:
    """Whether the world has ended."""
    return self._sock.fileno() < 0

  async def ask(self, message: Mapping[str, Any], *, deadline: float) -> dict[str, Any]:
    """The world's answer: `{'value': ...}`, or `{'error': text, 'refused': whether the tool said no}`.

    Args:
      message: `{'do': 'call', 'call': name, 'arguments': {...}}`, `{'do': 'changes'}` or `{'do': 'database'}`.
      deadline: seconds.

    Raises:
      Hung, Gone: the world is lost.
      EnvironmentFailure: its functions could not be loaded.
    """
    self._busy, answer = True, None
    try:
      answer = await asyncio.wait_for(self._exchange(wire.pack(message)), deadline)
    except TimeoutError as error:
      raise Hung(f'no answer within {deadline:g} seconds') from error
    except (OSError, ValueError, RecursionError) as error:
      raise Gone(f'its process sent no answer ({error})') from error
    finally:
      if not isinstance(answer, dict):  # after a cancellation too, or its answer would be taken for the next call's
        self.close()
    if not isinstance(answer, dict):
      raise Gone('its process ended, by a crash or by its limits on memory and CPU time')
    if answer.get('fault'):
      raise EnvironmentFailure(str(answer['fault']))
    self._busy = False
    return answer

  async def _exchange(self, data: bytes) -> Any:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(self._sock, data)
    header = await self._exactly(wire.HEADER.size)
    (length,) = wire.HEADER.unpack(header or b'\0\0\0\0')
    if length > self._most:
      raise wire.TooLong(f'an answer of {length} bytes; {self._most} are taken')
    body = await self._exactly(length)
    return json.loads(body) if body else None

  async def _exactly(self, size: int) -> bytes:
    loop, parts = asyncio.get_running_loop(), bytearray()
    while len(parts) < size:
      if not (part := await loop.sock_recv(self._sock, size - len(parts))):
        return b''
      parts += part
    return bytes(parts)

  def close(self) -> None:
    """Ends the world, by force if it still works. A second close does nothing."""
    if self.closed:
      return
    if self._busy:
      with contextlib.suppress(OSError):
        self._cradle.tell({'kill': self._name})
    self._sock.close()
    self._cradle.worlds.discard(self._name)


class _Cradle:
  """The process that holds a blueprint, seen from here."""

  def __init__(self, sock: socket.socket):
    self.sock, self._lock = sock, threading.Lock()
    self.worlds: set[int] = set()

  def tell(self, message: Mapping[str, Any], *, descriptor: int | None = None) -> None:
    """Sends a message whole, whoever else sends one."""
    with self._lock:
      wire.send(self.sock, message, descriptor=descriptor)


class Sandbox:
  """Warm processes for generated code. Starts with the first world; ends with `close` or with this process."""

  def __init__(self, settings: SandboxSettings | None = None):
    self.settings = settings or SandboxSettings()
    self._lock = threading.RLock()
    self._nursery: tuple[subprocess.Popen[bytes], socket.socket, Protections] | None = None
    self._cradles: dict[str, _Cradle] = {}
    self._opened = 0
    atexit.register(self.close)

  def protections(self) -> Protections:
    """What confines generated code here, as tried out at the start.

    Raises:
      EnvironmentFailure: the sandbox's process does not start.
    """
    with self._lock:
      return self._started()[2]

  def open(self, code: Code) -> Session:
    """A fresh world. It waits only for a blueprint that is not warm.

    Raises:
      ConfigError: this machine protects less than `least`.
      EnvironmentFailure: the blueprint cannot be read, or there is no process for it.
    """
    with self._lock:
      self.require_level()
      for attempt in (1, 2):
        try:
          return self._open(code)
        except OSError as error:
          if attempt == 2:
            raise EnvironmentFailure(f'the sandbox gives no world: {error}') from error
          self._drop(code.key)
      raise AssertionError

  def close(self) -> None:
    """Ends all worlds."""
    with self._lock:
      for key in list(self._cradles):
        self._drop(key)
      if self._nursery is not None:
        process, sock, _ = self._nursery
        sock.close()
        process.kill()
        process.wait()
        self._nursery = None

  def require_level(self) -> None:
    """Raises ConfigError if this machine protects less than `least`."""
    found = self.protections()
    if LEVELS.index(found.level) < LEVELS.index(self.settings.least):
      raise ConfigError(
        f'sandbox.least is {self.settings.least!r} and this machine protects less ({found}); install libseccomp, run '
        f'where users may have namespaces, or set it to {found.level!r} for code that you trust'
      )

  def _open(self, code: Code) -> Session:
    cradle = self._cradles.pop(code.key, None) or self._load(code)
    self._cradles[code.key] = cradle  # the last used stands last
    self._opened = name = self._opened + 1
    here, there = socket.socketpair()
    with there:
      cradle.tell({'open': name}, descriptor=there.fileno())
    cradle.worlds.add(name)
    return Session(here, cradle, name, most=max(self.settings.most_result, self.settings.most_database))

  def _load(self, code: Code) -> _Cradle:
    self._make_room()
    here, there = socket.socketpair()
    here.settimeout(_PATIENCE)
    with there:
      self._send_to_nursery(there)
    limits = dataclasses.asdict(self.settings) | {'memory': self.settings.memory_mb * _MEGABYTE, 'now': code.now}
    wire.send(here, {'source': code.source, 'database': code.database, 'settings': limits})
    answer = wire.receive(here, most=_MEGABYTE)
    if not isinstance(answer, dict) or answer['fault']:
      here.close()
      fault = answer['fault'] if isinstance(answer, dict) else 'its process ended; is there memory for its database?'
      raise EnvironmentFailure(f'the blueprint cannot be read: {fault}')
    return _Cradle(here)

  def _make_room(self) -> None:
    idle = [key for key, cradle in self._cradles.items() if not cradle.worlds]
    for key in idle[: max(0, len(self._cradles) + 1 - self.settings.most_warm)]:
      self._drop(key)

  def _drop(self, key: str) -> None:
    if cradle := self._cradles.pop(key, None):
      cradle.sock.close()

  def _send_to_nursery(self, there: socket.socket) -> None:
    try:
      wire.send(self._started()[1], {}, descriptor=there.fileno())
    except OSError:  # it was killed: once more, with a new one
      self.close()
      wire.send(self._started()[1], {}, descriptor=there.fileno())

  def _started(self) -> tuple[subprocess.Popen[bytes], socket.socket, Protections]:
    if self._nursery is None:
      here, there = socket.socketpair()
      here.settimeout(_PATIENCE)
      with there:
        process = _start_process(there)
      report = None
      with contextlib.suppress(OSError):  # it says nothing
        report = wire.receive(here, most=_MEGABYTE)
      if not isinstance(report, dict):
        process.kill()
        process.wait()
        raise EnvironmentFailure(f'the sandbox does not start: {sys.executable} ended with {process.returncode}')
      active = ('processes', *(name for name, reason in report.items() if not reason))
      self._nursery = process, here, Protections(active, {name: why for name, why in report.items() if why})
    return self._nursery


def _start_process(there: socket.socket) -> subprocess.Popen[bytes]:
  # No sites, no user's path; hashes are fixed, so that sets have one order.
  environment = {'PYTHONHASHSEED': '0', 'PYTHONUTF8': '1', 'TZ': 'UTC', 'LC_ALL': 'C.UTF-8', 'MALLOC_ARENA_MAX': '1'}
  environment |= {name: os.environ[name] for name in _PASSED if name in os.environ}
  return subprocess.Popen(
    [sys.executable, '-S', '-s', '-P', '-c', _START, str(_ROOT), str(there.fileno())],
    pass_fds=[there.fileno()],
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
    env=environment,
    cwd='/',
    start_new_session=True,
  )


@functools.lru_cache(maxsize=8)
def shared_sandbox(settings: SandboxSettings) -> Sandbox:
  """The sandbox of this process for these settings."""
  return Sandbox(settings)
