"""A stand-in for SGLang's server with faults on order: real HTTP on the loopback interface, scripted answers.

Its next token is a function of the last one and of its weights, so that whoever asks can tell which weights answered.
"""

import http.server
import json
import pathlib
import socket
import struct
import threading
from collections import deque
from typing import Any

WEIGHTS = 'weights.json'


def following(token: int, weights: int) -> int:
  """The token that comes after `token` under these weights."""
  return (token * 7 + weights * 13 + 3) % 100


def save(params: int, folder: pathlib.Path) -> None:
  """Writes a number as a checkpoint."""
  folder.mkdir(parents=True, exist_ok=True)
  (folder / WEIGHTS).write_text(json.dumps(params))


class StandIn:
  """A server that can be killed and started again on its port.

  Attributes:
    faults: path -> faults of its next answers: a status, 'reset', 'garbage', 'html', 'miscount', 'hang', or a dict with
      `status` and `headers`.
    calls: (path, body, headers) of everything it was asked.
    hold: requests wait after this many tokens, until `let_go`; None holds nobody.
    held: ids of the requests that wait there.
    gates: path -> an event that its answers wait for.
  """

  def __init__(self, *, context: int = 256, hold: int | None = None, version: str = 'default'):
    self.faults: dict[str, deque] = {}
    self.gates: dict[str, threading.Event] = {}
    self.calls: list[tuple[str, Any, dict[str, str]]] = []
    self.hold, self.held, self.context = hold, set(), context
    self.busy = self.most_busy = 0
    self.change = threading.Condition()
    self.port = 0
    self.start(version)

  @property
  def url(self) -> str:
    """Where it listens."""
    return f'http://127.0.0.1:{self.port}'

  def start(self, version: str = 'default') -> None:
    """Listens, with the weights 0 that it was started with."""
    self.version, self.weights, self.paused, self.dead, self.healthy = version, 0, '', False, True
    self.running: set[str] = set()
    self.aborted: set[str] = set()
    stand_in = self

    class Handler(_Handler):
      owner = stand_in

    class Listener(http.server.ThreadingHTTPServer):
      daemon_threads, allow_reuse_address, request_queue_size = True, True, 128

      def handle_error(self, request, client_address):
        """Connections end in tests."""

    self._listener, self.connections = Listener(('127.0.0.1', self.port), Handler), set()
    self.port = self._listener.server_port
    threading.Thread(target=self._listener.serve_forever, kwargs={'poll_interval': 0.01}, daemon=True).start()

  def kill(self) -> None:
    """Ends at once: open connections are reset, nothing listens any more."""
    self.dead = True
    self._listener.shutdown()
    self._listener.server_close()
    for connection in list(self.connections):
      reset(connection)
    with self.change:
      self.change.notify_all()

  def paths(self, path: str) -> list[Any]:
    """The bodies with which a path was asked."""
    return [body for asked, body, _ in self.calls if asked == path]

  def fail(self, path: str, *faults: Any) -> None:
    """Orders faults for the next answers of a path."""
    self.faults.setdefault(path, deque()).extend(faults)

  def let_go(self) -> None:
    """Holds nobody any more."""
    with self.change:
      self.hold = None
      self.change.notify_all()

  # What follows runs in the threads of its connections.

  def generate(self, body: dict[str, Any]) -> dict[str, Any]:
    rid, sampling = body['rid'], body['sampling_params']
    self.running.add(rid)
    last, drawn, spans, finish = body['input_ids'][-1], [], [], {'type': 'length', 'length': 0}
    while len(drawn) < sampling['max_new_tokens']:
      with self.change:
        if len(drawn) == self.hold:
          self.held.add(rid)
        self.change.wait_for(lambda: (not self.paused and len(drawn) != self.hold) or self.dead or self._hit(rid))
        self.held.discard(rid)
        if self.dead:
          raise ConnectionError
        if self._hit(rid):
          finish = {'type': 'abort', 'message': 'Aborted'}
          break
        last = following(last, self.weights)
        drawn.append([-0.5, last, None])
        if not spans or spans[-1]['version'] != self.version:
          spans.append({'version': self.version, 'start': len(drawn) - 1, 'end': 0})
        spans[-1]['end'] = len(drawn)
      if last in sampling['stop_token_ids']:
        finish = {'type': 'stop', 'matched': last}
        break
    meta = {'id': rid, 'finish_reason': finish, 'completion_tokens': len(drawn), 'output_token_logprobs': drawn}
    return {'text': '', 'meta_info': meta | {'weight_version': self.version, 'weight_versions': spans}}

  def _hit(self, rid: str) -> bool:
    return any(rid.startswith(one) for one in self.aborted)

  def answer(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """(status, JSON) of one request."""
    if path == '/generate':
      if len(body['input_ids']) >= self.context:
        return 400, {'error': {'message': f'The input is longer than the context length ({self.context} tokens).'}}
      return 200, self.generate(body)
    with self.change:
      status, out = self._control(path, body)
      self.change.notify_all()
    return status, out

  def _control(self, path, body):
    if path == '/model_info':
      return 200, {'weight_version': self.version}
    if path == '/server_info':
      return 200, {'context_length': self.context, 'max_total_num_tokens': 100_000}
    if path == '/health':
      return (200 if self.healthy else 503), {}
    if path == '/update_weight_version':
      self.version = body['new_version']
    elif path == '/pause_generation':
      self.paused = body['mode']
      self.aborted |= self.running if self.paused == 'abort' else set()
    elif path == '/continue_generation':
      self.paused = ''
    elif path == '/abort_request':
      self.aborted.add(body['rid'])
    elif path == '/update_weights_from_disk':
      file = pathlib.Path(body['model_path']) / WEIGHTS
      if not file.is_file():
        return 400, {'success': False, 'message': f'no weights in {file.parent}'}
      self.weights, self.version = json.loads(file.read_text()), body['weight_version']
    else:
      return 404, {'error': {'message': f'no {path}'}}
    return 200, {'success': True}


def reset(connection: socket.socket) -> None:
  """Ends a connection without a farewell."""
  try:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))
    connection.shutdown(socket.SHUT_RD)
    connection.close()
  except OSError:
    pass


class _Handler(http.server.BaseHTTPRequestHandler):
  protocol_version = 'HTTP/1.1'
  disable_nagle_algorithm = True
  owner: StandIn

  def setup(self):
    super().setup()
    self.owner.connections.add(self.connection)

  def finish(self):
    self.owner.connections.discard(self.connection)
    super().finish()

  def log_message(self, *_):
    """Silence."""

  def do_GET(self):
    self._respond({})

  def do_POST(self):
    length = int(self.headers.get('content-length', 0))
    self._respond(json.loads(self.rfile.read(length) or b'{}'))

  def _respond(self, body):
    owner = self.owner
    if owner.dead:
      raise ConnectionError
    owner.calls.append((self.path, body, dict(self.headers)))
    if self.path in owner.gates:
      owner.gates[self.path].wait()
    ordered = owner.faults.get(self.path)
    fault = ordered.popleft() if ordered else None
    if fault == 'reset':
      reset(self.connection)
      raise ConnectionError
    if fault == 'hang':
      with owner.change:
        owner.change.wait_for(lambda: owner.dead or owner._hit(body.get('rid', '-')))
      raise ConnectionError
    if isinstance(fault, dict):
      return self._send(fault['status'], b'{}', **fault['headers'])
    if isinstance(fault, int):
      return self._send(fault, b'{"error": {"message": "ordered"}}')
    if fault in ('garbage', 'html'):
      return self._send(200, {'garbage': b'{"text', 'html': b'<html>hello</html>'}[fault])
    with owner.change:
      owner.busy += self.path == '/generate'
      owner.most_busy = max(owner.most_busy, owner.busy)
    try:
      status, out = owner.answer(self.path, body)
    finally:
      with owner.change:
        owner.busy -= self.path == '/generate'
      owner.running.discard(body.get('rid'))
    if fault == 'miscount':
      out['meta_info']['output_token_logprobs'] *= 2
    self._send(status, json.dumps(out).encode())

  def _send(self, status, content, **headers):
    self.send_response(status)
    self.send_header('Content-Type', 'application/json')
    self.send_header('Content-Length', str(len(content)))
    for name, value in headers.items():
      self.send_header(name.replace('_', '-'), value)
    self.end_headers()
    self.wfile.write(content)
