"""Ports for servers that bind them later, in a process of their own."""

import random
import socket


def free_port() -> int:
  """A port of the loopback that nobody has, from below those that systems hand out by themselves (32768 and more).

  One of those could be taken by any connection before the server, which starts for half a minute, binds it.
  """
  while True:
    port = random.SystemRandom().randrange(20_000, 32_000)
    with socket.socket() as probe:
      try:
        probe.bind(('127.0.0.1', port))
      except OSError:
        continue
    return port
