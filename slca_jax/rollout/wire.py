"""One SGLang server over HTTP: its answers as JSON, its troubles told apart by what would help."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import httpx2

from slca_jax.errors import ConfigError, SamplerError
from slca_jax.rollout.settings import SGLangServers

MARGIN = 6  # positions of its context that SGLang keeps for itself
_WAIT = frozenset({408, 429, 503})  # come again later


Kind = Literal['busy', 'broken', 'lost', 'absent', 'stale']


class Trouble(Exception):
  """A call that may go better another time or elsewhere.

  Attributes:
    kind: 'busy' was told to wait, 'broken' got an error or nonsense, 'lost' the connection, 'absent' found nobody,
      'stale' got an answer of weights that are not the run's newest.
    wait: seconds that the server asked for.
  """

  def __init__(self, kind: Kind, message: str, *, wait: float = 0.0):
    super().__init__(message)
    self.kind, self.wait = kind, wait


def draw_order(
  tokens: Sequence[int],
  *,
  max_tokens: int,
  temperature: float,
  top_p: float,
  stop: Sequence[int],
  seed: int,
  logprob_start: int,
) -> dict[str, Any]:
  """The body of a /generate request: ids in, ids with their log-probs out."""
  return {
    'input_ids': list(tokens),
    'sampling_params': {
      'max_new_tokens': max_tokens,
      'temperature': temperature,
      'top_p': top_p,
      'top_k': -1,
      'stop_token_ids': list(stop),
      'sampling_seed': seed,
      'skip_special_tokens': False,
    },
    'return_logprob': True,
    'logprob_start_len': logprob_start,
    'stream': False,
  }


class Server:
  """A server as one event loop sees it.

  Attributes:
    live: whether it may be asked: it answers and carries the run's weights.
    load: sessions that live on it.
    strikes: troubles since its last good answer.
    heard: when it last answered, or began to work after a pause.
    context: most tokens of a request; None before it said so.
  """

  def __init__(self, url: str, settings: SGLangServers, *, concurrency: int):
    self.url, self.live, self.load, self.strikes = url, False, 0, 0
    self.context: int | None = None
    self.heard = 0.0
    self.gate = asyncio.Semaphore(concurrency)
    self.flights: set[asyncio.Task] = set()
    self._quick = settings.connect_seconds
    self._client = httpx2.AsyncClient(
      base_url=url,
      timeout=httpx2.Timeout(None, connect=settings.connect_seconds),
      limits=httpx2.Limits(max_connections=None, max_keepalive_connections=concurrency),
      trust_env=False,  # a proxy for the outside world must not see the servers
    )

  async def ask(
    self, path: str, body: Mapping[str, Any] | None = None, *, seconds: float | None = None, **headers: str
  ) -> Any:
    """The JSON answer of a GET, or of a POST if there is a body; {} if it is empty.

    Args:
      seconds: longest wait; None waits as long as for a connection.

    Raises:
      Trouble: no answer, or one that says so.
      SamplerError: the server refuses; asking again would not help.
    """
    method = 'GET' if body is None else 'POST'
    try:
      async with asyncio.timeout(self._quick if seconds is None else seconds):
        answer = await self._client.request(method, path, json=body, headers=headers or None)
    except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
      raise Trouble('absent', f'{self.url} does not listen ({error})') from error
    except TimeoutError as error:
      raise Trouble('lost', f'{self.url}{path} gave no answer in time') from error
    except httpx2.RequestError as error:
      raise Trouble('lost', f'{self.url}{path}: {type(error).__name__} {error}'.rstrip()) from error
    return self._read(path, answer)

  async def fly(self, path: str, body: Mapping[str, Any], **headers: str) -> Any:
    """As `ask`, without a limit of time, but given up with 'lost' when the server is left out meanwhile."""
    if not self.flights:
      self.heard = asyncio.get_running_loop().time()
    flight = asyncio.create_task(self.ask(path, body, seconds=math.inf, **headers))
    self.flights.add(flight)
    try:
      await asyncio.wait({flight})
    finally:
      self.flights.discard(flight)
      flight.cancel()  # a no-op unless the caller was cancelled
    if flight.cancelled():
      raise Trouble('lost', f'{self.url} was left out before it answered')
    answer = flight.result()
    self.heard, self.strikes = asyncio.get_running_loop().time(), 0
    return answer

  def leave_out(self) -> None:
    """Stops asking it; who waits for an answer learns that none will come."""
    self.live = False
    for flight in self.flights:
      flight.cancel()

  async def require_room(self, needed: int) -> None:
    """Asks, once, how many tokens the server takes.

    Raises:
      ConfigError: they are fewer than `needed` and a margin, or the server does not say.
      Trouble, SamplerError: as `ask`.
    """
    if self.context is None:
      info = await self.ask('/server_info')
      self.context = min(filter(None, map(info.get, ('context_length', 'max_total_num_tokens'))), default=None)
    if (self.context or 0) < needed + MARGIN:
      raise ConfigError(
        f'{self.url} takes {self.context} tokens, the longest rollout needs {needed} and {MARGIN} to spare; '
        'start it with a longer --context-length, or lower rollout.limits'
      )

  async def healthy(self) -> bool:
    """Whether it can generate now."""
    try:
      await self.ask('/health', seconds=max(self._quick, 30.0))
    except (Trouble, SamplerError):
      return False
    return True

  async def close(self) -> None:
    """Closes the connections."""
    await self._client.aclose()

  def _read(self, path: str, answer: httpx2.Response) -> Any:
    where, status = f'{self.url}{path}', answer.status_code
    if status in _WAIT:
      raise Trouble('busy', f'{where} answered {status}', wait=_seconds(answer.headers.get('retry-after')))
    if status >= 500:
      raise Trouble('broken', f'{where} answered {status}: {answer.text[:200]}')
    if status >= 400:
      raise SamplerError(f'{where} refused with {status}: {_reason(answer)}')
    if path != '/generate' and 'json' not in answer.headers.get('content-type', ''):
      return {}
    try:
      return answer.json()
    except ValueError as error:
      raise Trouble('broken', f'{where} answered no JSON: {answer.text[:200]!r}') from error


def _seconds(header: str | None) -> float:
  """What Retry-After asks for; dates and nonsense count as no wish."""
  try:
    seconds = float(header or 0)
  except ValueError:
    return 0.0
  return max(seconds, 0.0) if math.isfinite(seconds) else 0.0


def _reason(answer: httpx2.Response) -> str:
  try:
    said = answer.json()
    return str(said['error']['message'] if 'error' in said else said['message'])
  except (ValueError, KeyError, TypeError):
    return answer.text[:300]
