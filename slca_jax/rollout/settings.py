"""What rollouts and the batches made of them can be told. Imports no JAX, so that a mistake is refused at once."""

import dataclasses
from typing import Literal

from slca_jax.config import require


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
  """Where a rollout is stopped. Tokens of a response include what the world wrote.

  Attributes:
    turns: assistant turns, the final answer included.
    calls: parallel calls of one turn; those beyond are answered with an error and not executed.
    prompt_tokens: longest prompt; a task with a longer one fails and is counted.
    response_tokens: everything after the prompt.
    turn_tokens: sampled tokens of one turn.
    observation_tokens: longest observation; the middle of a longer one is cut out.
    step_seconds: deadline of all calls of one turn; each call has its environment's own deadline below it.
  """

  turns: int = 10
  calls: int = 20
  prompt_tokens: int = 16384
  response_tokens: int = 8192
  turn_tokens: int = 4096
  observation_tokens: int = 1024
  step_seconds: float = 1500.0

  def __post_init__(self):
    for name in self.__slots__:
      require(getattr(self, name) > 0, f'{name} is {getattr(self, name)}; it must be positive')


@dataclasses.dataclass(frozen=True, slots=True)
class Decoding:
  """How tokens are drawn. Temperature 0 is greedy."""

  temperature: float = 1.0
  top_p: float = 1.0
  reading: Literal['strict', 'release'] = 'strict'

  def __post_init__(self):
    require(self.temperature >= 0, f'temperature is {self.temperature}; 0 is greedy, 1 samples the policy')
    require(0 < self.top_p <= 1, f'top_p is {self.top_p}; it lies in (0, 1]')


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
  """Shapes of a batch.

  Attributes:
    lengths: row lengths in tokens to choose from, ascending; the last one must hold a prompt and its longest response.
    micro_rows: rows computed at once; a multiple of the number of data shards.
  """

  lengths: tuple[int, ...] = (1024,)
  micro_rows: int = 8

  def __post_init__(self):
    ascending = list(self.lengths) == sorted(set(self.lengths)) and bool(self.lengths) and self.lengths[0] > 0
    require(ascending, f'lengths is {self.lengths}; give ascending row lengths in tokens')
    require(self.micro_rows > 0, f'micro_rows is {self.micro_rows}; at least one row is computed at once')


@dataclasses.dataclass(frozen=True, slots=True)
class LocalEngine:
  """Sizes of the embedded engine. They fix the shapes of its programs and the memory of its cache.

  The cache holds prompts × context + slots × own positions: sessions with one prompt share its keys and values.

  Attributes:
    slots: sessions served at once; a further session waits until one is released.
    prompts: different prompts held at once, a further one waits; None for as many as slots.
    siblings: sessions on one prompt; more of them hold it twice. Their group's size is best: then they read it at once.
    context: most ids of a request and its samples together.
    own: most ids of a session behind its first prompt, sampled or not; None for the context.
    prefill_chunk: ids of a prompt per call; prompts that start alike share whole chunks.
    turn_chunk: ids per row of a call that fills what a later turn brings.
    prefill_rows: rows of such a call.
    decode_block: most tokens a request gets between two looks at the queue.
    stop_ids: most stop ids of a request.
    hasten: end a decode block when one request is done while sessions wait for a slot.
    cache_dtype: of keys and values; None for the model's.
  """

  slots: int = 64
  prompts: int | None = None
  siblings: int = 1
  context: int = 24576
  own: int | None = None
  prefill_chunk: int = 128
  turn_chunk: int = 32
  prefill_rows: int = 8
  decode_block: int = 16
  stop_ids: int = 4
  hasten: bool = True
  cache_dtype: Literal['float32', 'bfloat16'] | None = None

  def __post_init__(self):
    for name in ('slots', 'siblings', 'prefill_chunk', 'turn_chunk', 'prefill_rows', 'decode_block', 'stop_ids'):
      require(getattr(self, name) > 0, f'{name} is {getattr(self, name)}; it must be positive')
    require(self.context >= 2, f'context is {self.context}; a prompt and its sample need at least 2')
    require(self.own is None or 0 < self.own <= self.context, f'own is {self.own}; it is 1 to context, {self.context}')
    require(
      self.stems > 0 and self.stems * self.siblings >= self.slots,
      f'{self.stems} prompts × {self.siblings} siblings seat fewer than {self.slots} slots; raise one of them',
    )

  @property
  def stems(self) -> int:
    """How many prompts are held."""
    return self.slots if self.prompts is None else self.prompts


@dataclasses.dataclass(frozen=True, slots=True)
class SGLangServers:
  """SGLang servers that sample for a run. They and the trainer must see `folder` under one path.

  Attributes:
    urls: addresses of the servers, separated by commas.
    router: address of a router in front of them, which requests then go through; '' sends them to the servers.
    concurrency: requests a server works on at once; it is asked for no more.
    request_seconds: longest wait for an answer, all attempts and queueing included; the rollout fails then.
    outage_seconds: longest wait for a server when none answers, at the start or in the middle of a run.
    connect_seconds: longest wait for a connection, and for the answer to a question about the server's state.
    sync_seconds: longest wait for a server to load weights.
    retries: attempts after the first one that broke: a server error, a lost connection, an answer that makes no sense.
      Being told to wait (429, 503) is waited out instead, up to request_seconds.
    backoff_seconds: wait before the first retry; it doubles with each one, up to 30 s.
    probe_seconds: between two looks at servers that are left out.
    quiet_seconds: a server that owes answers and gave none for so long is asked whether it is well.
    folder: where weights are written for the servers; '' for `weights` in the run's output.
    keep: versions of the weights kept there.
    dtype: the weights are sent as; None for the trainer's own.
    transport: 'disk', or 'distributed' by torch.distributed, which needs torch in the trainer's environment. A server
      that comes back in the middle of a step then waits for the next one.
    meet: `HOST:PORT` of the trainer for servers to meet it at, with transport 'distributed'.
    pause: what becomes of running requests when weights change. 'retract' computes their prefix anew and goes on,
      'abort' ends them as they are, 'in_place' goes on with the keys and values of the old weights.
    take_over: use servers that another run left behind without releasing them.
    logprob_start: 0 where the server counts log-probs wrongly otherwise (sglang-jax); it costs the shared prefix.
  """

  urls: str = ''
  router: str = ''
  concurrency: int = 64
  request_seconds: float = 1800.0
  outage_seconds: float = 600.0
  connect_seconds: float = 10.0
  sync_seconds: float = 600.0
  retries: int = 4
  backoff_seconds: float = 0.5
  probe_seconds: float = 2.0
  quiet_seconds: float = 30.0
  folder: str = ''
  keep: int = 2
  dtype: Literal['float32', 'bfloat16', 'float16'] | None = None
  transport: Literal['disk', 'distributed'] = 'disk'
  meet: str = ''
  pause: Literal['abort', 'retract', 'in_place'] = 'retract'
  take_over: bool = False
  logprob_start: int = -1

  def __post_init__(self):
    for url in filter(None, (*self.servers, self.router)):
      require(url.startswith(('http://', 'https://')), f'{url!r} is no address; give http://HOST:PORT')
    twice = {url for url in self.servers if self.servers.count(url) > 1}
    require(not twice, f'urls names {", ".join(sorted(twice))} twice; name each server once')
    for name in ('concurrency', 'keep', *(name for name in self.__slots__ if name.endswith('_seconds'))):
      require(getattr(self, name) > 0, f'{name} is {getattr(self, name)}; it must be positive')
    require(
      self.transport == 'disk' or ':' in self.meet,
      f"meet is {self.meet!r}; transport 'distributed' needs HOST:PORT of the trainer",
    )
    require(self.retries >= 0, f'retries is {self.retries}; 0 gives up at once')
    require(self.logprob_start in (-1, 0), f'logprob_start is {self.logprob_start}; it is -1, or 0 for sglang-jax')

  @property
  def servers(self) -> tuple[str, ...]:
    """The addresses one by one."""
    return tuple(url.strip().rstrip('/') for url in self.urls.split(',') if url.strip())
