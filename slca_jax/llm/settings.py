"""What an endpoint can be told. Nothing heavy is imported here, so that a mistake is refused at once."""

import dataclasses
import urllib.parse
from typing import Any, Literal

from slca_jax.config import require


@dataclasses.dataclass(frozen=True, slots=True)
class Sampling:
  """How a reply is drawn.

  Attributes:
    temperature: None sends none, for models that take only their own.
    max_tokens: longest reply, in tokens.
    top_p: sent if it is below 1.
    seed: sent as `seed`, shifted by the number of the sample and of the try; None sends none.
  """

  temperature: float | None = 0.0
  max_tokens: int = 4096
  top_p: float = 1.0
  seed: int | None = 0

  def __post_init__(self):
    warm = self.temperature
    require(warm is None or 0 <= warm <= 2, f'temperature is {warm}; it lies in [0, 2], or is None')
    require(self.max_tokens > 0, f'max_tokens is {self.max_tokens}; it must be positive')
    require(0 < self.top_p <= 1, f'top_p is {self.top_p}; it lies in (0, 1]')


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
  """An OpenAI-compatible endpoint, a model there, and how patiently it is asked.

  Attributes:
    base_url: usually ends in /v1.
    model: the model's name at the endpoint.
    api_key_env: name of the environment variable that holds the key; '' where none is needed.
    sampling: how replies are drawn.
    concurrency: requests in flight.
    request_seconds: deadline of one request.
    deadline: seconds until an answer is given up: waiting for a free slot, retries and pauses included.
    retries: further requests after one that failed or was answered with something that is no completion.
    rereads: further requests, each with the next seed, after a reply that is empty, refused or cannot be read.
    first_pause: seconds before the first retry; each further pause is up to twice as long.
    longest_pause: bound of the growing pause; a longer one that the endpoint asks for is kept.
    token_field: how the endpoint calls the longest reply.
    extra: further fields of every request, such as chat_template_kwargs.
    input_price, output_price: of a million tokens, for the cost counter.
  """

  base_url: str = ''
  model: str = ''
  api_key_env: str = ''
  sampling: Sampling = dataclasses.field(default_factory=Sampling)
  concurrency: int = 64
  request_seconds: float = 540.0
  deadline: float = 1200.0
  retries: int = 5
  rereads: int = 2
  first_pause: float = 1.0
  longest_pause: float = 60.0
  token_field: Literal['max_tokens', 'max_completion_tokens'] = 'max_tokens'
  extra: dict[str, Any] = dataclasses.field(default_factory=dict)
  input_price: float = 0.0
  output_price: float = 0.0

  def __post_init__(self):
    require(1 <= self.concurrency <= 1000, f'concurrency is {self.concurrency}; it lies between 1 and 1000')
    for name in ('request_seconds', 'deadline', 'first_pause', 'longest_pause'):
      require(getattr(self, name) > 0, f'{name} is {getattr(self, name)}; it is in seconds and must be positive')
    for name in ('retries', 'rereads', 'input_price', 'output_price'):
      require(getattr(self, name) >= 0, f'{name} is {getattr(self, name)}; it is at least 0')


def check_endpoint(endpoint: Endpoint, key: str, *, replay: bool = False) -> None:
  """Raises ConfigError unless the endpoint says where it is and which model answers there; names the config key."""
  require(bool(endpoint.model), f'{key}.model is empty; give the name of the model at the endpoint')
  require(
    replay or _is_address(endpoint.base_url),
    f'{key}.base_url is {endpoint.base_url!r}; give the address of an OpenAI-compatible endpoint, such as http://host:port/v1',
  )


def _is_address(url: str) -> bool:
  try:
    parts = urllib.parse.urlsplit(url)
    return parts.scheme in ('http', 'https') and bool(parts.hostname) and parts.port != 0
  except ValueError:  # a port that is no number
    return False
