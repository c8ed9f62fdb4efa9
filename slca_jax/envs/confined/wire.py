"""Messages between the processes of a sandbox: JSON behind its length, with at most one descriptor riding along."""

import json
import socket
import struct
from collections.abc import Callable
from typing import Any

HEADER = struct.Struct('>I')


class TooLong(ValueError):
  """A message beyond what its receiver takes."""


def pack(message: Any) -> bytes:
  """The message as it travels.

  Raises:
    TypeError, ValueError, RecursionError: the message is no JSON.
  """
  body = json.dumps(message, allow_nan=False, separators=(',', ':')).encode()
  return HEADER.pack(len(body)) + body


def send(sock: socket.socket, message: Any, *, descriptor: int | None = None) -> None:
  """Sends a message; the descriptor, if any, rides on its first byte."""
  data = pack(message)
  if descriptor is not None:
    socket.send_fds(sock, [data[:1]], [descriptor])
    data = data[1:]
  sock.sendall(data)


def receive(sock: socket.socket, *, most: int) -> Any:
  """The next message, None when the other side is gone.

  Raises:
    TooLong: it has more than `most` bytes.
    ValueError, RecursionError: it is no JSON.
  """
  return _body(sock.recv, most)


def receive_with_descriptor(sock: socket.socket, *, most: int) -> tuple[Any, int | None]:
  """The next message and the descriptor that rode on its first byte."""
  first, descriptors, _, _ = socket.recv_fds(sock, 1, 1)
  rest = [first]

  def recv(size: int) -> bytes:
    return rest.pop() if rest else sock.recv(size)

  return _body(recv, most), (descriptors[0] if descriptors else None)


def _body(recv: Callable[[int], bytes], most: int) -> Any:
  header = _exactly(recv, HEADER.size)
  if header is None:
    return None
  (length,) = HEADER.unpack(header)
  if length > most:
    raise TooLong(f'a message of {length} bytes; {most} are taken')
  body = _exactly(recv, length)
  return None if body is None else json.loads(body)


def _exactly(recv: Callable[[int], bytes], size: int) -> bytes | None:
  """`size` bytes, None if the other side ends before."""
  parts = bytearray()
  while len(parts) < size:
    part = recv(size - len(parts))
    if not part:
      return None
    parts += part
  return bytes(parts)
