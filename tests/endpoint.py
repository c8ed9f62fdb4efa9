"""A scripted OpenAI-compatible endpoint: real HTTP on a free port of the loopback, every fault at will."""

import dataclasses
import http.server
import json
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Play:
  """How one request is answered.

  Attributes:
    text: the reply; None leaves the content out.
    finish: its finish_reason.
    refusal: the message's refusal.
    status, headers: of the response.
    body: sent instead of a completion.
    delay: seconds before anything is sent.
    reset: the connection is reset instead of an answer.
  """

  text: str | None = ''
  finish: str = 'stop'
  refusal: str | None = None
  status: int = 200
  headers: dict[str, str] = dataclasses.field(default_factory=dict)
  body: str | bytes | None = None
  delay: float = 0.0
  reset: bool = False


HTML = Play(body='<html><body>502 Bad Gateway</body></html>', headers={'content-type': 'text/html'})
GARBAGE = Play(body=b'\x00\xff{"choices": [')
BROKEN = Play(status=500, body='{"error": {"message": "out of memory"}}')

Script = Callable[[dict[str, Any]], Play | str]  # the request's JSON -> how it is answered


def in_turn(*plays: Play | str) -> Script:
  """A script that plays one after another and repeats the last one for good."""
  left = list(plays)
  lock = threading.Lock()

  def play(_: dict[str, Any]) -> Play | str:
    with lock:
      return left.pop(0) if len(left) > 1 else left[0]

  return play


class ScriptedEndpoint:
  """Serves inside a `with` block. Remembers requests, their headers, and how many were in flight at once."""

  def __init__(self, script: Script | Play | str):
    self.script: Script = script if callable(script) else lambda _: script
    self.requests: list[dict[str, Any]] = []
    self.headers: list[dict[str, str]] = []
    self.paths: list[str] = []
    self.live = self.most_live = 0
    self.lock = threading.Lock()
    self.closing = threading.Event()
    self._server = _Server(('127.0.0.1', 0), _Handler)
    self._server.endpoint = self
    self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

  @property
  def url(self) -> str:
    """What a client takes as its base URL."""
    return f'http://127.0.0.1:{self._server.server_address[1]}/v1'

  def __enter__(self) -> 'ScriptedEndpoint':
    self._thread.start()
    return self

  def __exit__(self, *_: Any) -> None:
    self.closing.set()
    self._server.shutdown()
    self._server.server_close()
    self._thread.join()


class _Server(http.server.ThreadingHTTPServer):
  daemon_threads = True
  block_on_close = False
  request_queue_size = 256
  endpoint: ScriptedEndpoint


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = 'HTTP/1.1'
  wbufsize = -1  # head and body in one packet, or each answer waits for a delayed acknowledgement
  server: _Server

  def do_POST(self) -> None:
    endpoint = self.server.endpoint
    request = json.loads(self.rfile.read(int(self.headers['content-length'])))
    with endpoint.lock:
      endpoint.requests.append(request)
      endpoint.headers.append({name.lower(): value for name, value in self.headers.items()})
      endpoint.paths.append(self.path)
      endpoint.live += 1
      endpoint.most_live = max(endpoint.most_live, endpoint.live)
    try:
      play = endpoint.script(request)
      play = Play(play) if isinstance(play, str) else play
      endpoint.closing.wait(play.delay)
    finally:
      with endpoint.lock:
        endpoint.live -= 1  # before the answer is sent: what it makes the client send next is not beside it
    try:
      self._answer(play)
    except OSError:
      self.close_connection = True  # the client went away

  def _answer(self, play: Play) -> None:
    if play.reset:
      self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
      self.close_connection = True
      return
    body = play.body if play.body is not None else json.dumps(completion(play))
    payload = body.encode() if isinstance(body, str) else body
    self.send_response(play.status)
    for name, value in {'content-type': 'application/json', **play.headers}.items():
      self.send_header(name, value)
    self.send_header('content-length', str(len(payload)))
    self.end_headers()
    self.wfile.write(payload)

  def log_message(self, format: str, *_: Any) -> None:
    """Says nothing."""


def completion(play: Play) -> dict[str, Any]:
  """The body of a chat completion with one choice."""
  message = {'role': 'assistant', 'content': play.text, 'refusal': play.refusal}
  return {
    'id': 'chatcmpl-1',
    'object': 'chat.completion',
    'created': 1,
    'model': 'scripted',
    'choices': [{'index': 0, 'message': message, 'finish_reason': play.finish}],
    'usage': {'prompt_tokens': 100, 'completion_tokens': 10, 'total_tokens': 110},
  }
