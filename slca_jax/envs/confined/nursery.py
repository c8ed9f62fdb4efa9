"""The sandbox's own processes, from the one that starts to the one that runs generated code.

    trainer -> keeper -> nursery -> cradle (one per blueprint) -> world (one per rollout)

The nursery leaves the world of files, network and other processes. A cradle reads a blueprint's database once; every
world is a fork of it, so its database is shared until it is written to, however large. Only a world runs generated
code, from a blueprint's first line on, behind limits and the filter. All others run only what stands in this package.
Messages come over sockets (`wire.py`); whoever sees its own end dies, and with it what it started.
"""

import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from slca_jax.envs.confined import kernel, wire
from slca_jax.envs.confined.changes import changes
from slca_jax.envs.confined.offered import Chance, builtins_of

MOST_BLUEPRINT = 1 << 30  # bytes of a blueprint on its way into a cradle
MOST_REQUEST = 16 << 20  # bytes of a call
SLACK = 16 << 20  # bytes that a cradle maps beside its database
GROWTH = 24  # bytes of Python objects per byte of JSON, at the most: `[[],[],[]]`


def main() -> None:
  """Starts the nursery; its one argument is the descriptor of its socket."""
  sock = socket.socket(fileno=int(sys.argv[1]))
  signal.signal(signal.SIGINT, signal.SIG_IGN)
  time.tzset()
  mapped = kernel.address_space()
  code = kernel.compile_filter()
  report = {'privileges': kernel.fix_privileges(), 'root': kernel.leave_root(), 'namespaces': kernel.leave_world()}
  pid = os.fork()  # the first process of the new namespace: with it dies everything in it
  if pid:
    sock.close()
    os.waitpid(pid, 0)
    os._exit(0)
  kernel.die_with_parent()
  report |= {'filter': code if isinstance(code, str) else _tried(code), 'limits': _tried_limits()}
  wire.send(sock, report)
  serve_nursery(sock, mapped, code if isinstance(code, bytes) and not report['filter'] else None)
  os._exit(0)


def serve_nursery(sock: socket.socket, mapped: int, code: bytes | None) -> None:
  """Starts a cradle for every descriptor that arrives."""
  while True:
    message, descriptor = wire.receive_with_descriptor(sock, most=MOST_REQUEST)
    _reap()
    if message is None or descriptor is None:
      return
    pid = os.fork()
    if pid:
      os.close(descriptor)
      continue
    sock.close()
    kernel.die_with_parent()
    serve_cradle(socket.socket(fileno=descriptor), mapped, code)
    os._exit(0)


def serve_cradle(sock: socket.socket, mapped: int, code: bytes | None) -> None:
  """Reads the blueprint, then starts a world for every descriptor and kills those that are named."""
  blueprint = wire.receive(sock, most=MOST_BLUEPRINT)
  try:
    compiled = compile(blueprint['source'], 'functions.py', 'exec', dont_inherit=True)
    database = json.loads(blueprint['database'])
  except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
    wire.send(sock, {'fault': f'{type(error).__name__}: {error}'})
    return
  world = World(compiled, database, blueprint, code)
  wire.send(sock, {'fault': ''})
  gc.collect()
  gc.freeze()  # or the worlds' collector would write to every page
  world.memory = mapped + SLACK + GROWTH * len(blueprint['database']) + blueprint['settings']['memory']
  running: dict[int, int] = {}
  while True:
    message, descriptor = wire.receive_with_descriptor(sock, most=MOST_REQUEST)
    gone = set(_reap())
    running = {name: pid for name, pid in running.items() if pid not in gone}
    if message is None:
      break
    if descriptor is not None:
      running[message['open']] = _start(world, socket.socket(fileno=descriptor), sock)
    elif message['kill'] in running:
      os.kill(running[message['kill']], signal.SIGKILL)  # not reaped yet, so the number is still its own
  for pid in running.values():
    os.kill(pid, signal.SIGKILL)


def _start(world: 'World', sock: socket.socket, control: socket.socket) -> int:
  try:
    pid = os.fork()
  except OSError as error:
    wire.send(sock, {'fault': f'no process for a world: {error.strerror}'})
    pid = -1
  if pid:
    sock.close()
    return pid
  control.close()
  try:
    world.live(sock)
  finally:
    os._exit(0)


class World:
  """What a cradle hands to each of its worlds."""

  def __init__(self, compiled: Any, database: Any, blueprint: dict[str, Any], code: bytes | None):
    self._compiled, self._database, self._code = compiled, database, code
    self._beginning: str = blueprint['database']  # as text: a second database would make every fork slower
    self._settings = blueprint['settings']
    self.memory = 0
    self._chance = Chance()
    self._functions: dict[str, Any] = {
      '__name__': 'functions',
      '__builtins__': builtins_of(self._chance, self._settings['now']),
    }

  def live(self, sock: socket.socket) -> None:
    """Answers calls until nobody asks any more. Runs in the world's own process."""
    kernel.die_with_parent()
    kernel.limit(cpu_seconds=self._settings['cpu_seconds'], memory=self.memory)
    if self._code is not None and kernel.forbid_calls(self._code):
      return
    fault = self._define()
    while (message := wire.receive(sock, most=MOST_REQUEST)) is not None:
      answer = {'fault': fault} if fault else self._answer(message)
      sock.sendall(answer if isinstance(answer, bytes) else wire.pack(answer))

  def _define(self) -> str:
    try:
      exec(self._compiled, self._functions)
    except BaseException as error:
      return f'functions.py cannot be loaded: {_described(error)}'
    return ''

  def _answer(self, message: dict[str, Any]) -> Any:
    actions: dict[str, Callable[[], Any]] = {
      'call': lambda: self._call(message['call'], message['arguments']),
      'changes': lambda: changes(json.loads(self._beginning), self._database),
      'database': lambda: self._database,
    }
    most = self._settings['most_database' if message['do'] != 'call' else 'most_result']
    try:
      packed = wire.pack({'value': actions[message['do']]()})
    except BaseException as error:  # a tool that calls exit() fails as any other
      return {'error': _described(error), 'refused': type(error) is ValueError}
    if len(packed) > most:
      return {'error': f'the result has {len(packed)} bytes; at most {most} are taken', 'refused': True}
    return packed

  def _call(self, name: str, arguments: dict[str, Any]) -> Any:
    self._chance.begin(name, arguments)
    return self._functions[name](self._database, **arguments)


def _described(error: BaseException) -> str:
  try:
    text = str(error)[:2000]
  except BaseException:
    text = 'an error that cannot be printed'
  return text if type(error) is ValueError else f'{type(error).__name__}: {text}'


def _tried(code: bytes) -> str:
  """Why the filter is not in force in a process that put it on; '' if it is."""

  def try_filter() -> bool:
    if kernel.forbid_calls(code):
      return False
    try:
      os.getppid()
      os.pipe()
    except PermissionError:
      return True
    return False

  return '' if _succeeds(try_filter) else 'the kernel does not take it'


def _tried_limits() -> str:
  def try_limits() -> bool:
    return not kernel.limit(cpu_seconds=5, memory=4 << 30)

  return '' if _succeeds(try_limits) else 'not all of them (the address space is not bounded)'


def _succeeds(attempt: Callable[[], bool]) -> bool:
  pid = os.fork()
  if not pid:
    try:
      os._exit(not attempt())
    finally:
      os._exit(1)
  return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def _reap() -> list[int]:
  """The children that ended since the last look."""
  ended = []
  while True:
    try:
      pid, _ = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
      return ended
    if not pid:
      return ended
    ended.append(pid)
