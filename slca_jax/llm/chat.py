"""ChatModel: the one client of every OpenAI-compatible endpoint, for simulator, judge, teacher and synthesis.

It never has more than `concurrency` requests in flight, waits longer after each failure, keeps answers that could be
read on disk, and counts what it does. Nobody waits for an answer longer than `deadline`.
"""

import asyncio
import collections
import dataclasses
import logging
import os
import random
import time
import weakref
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import openai

from slca_jax.config import require
from slca_jax.errors import ConfigError, EndpointFailure, Unreadable
from slca_jax.llm.answers import Answers, digest
from slca_jax.llm.replies import OF_CONTENT, Reply, of_status, read_body
from slca_jax.llm.settings import Endpoint
from slca_jax.surrogates import mended

Read = TypeVar('Read')
Reader = Callable[[Reply], Read]

_COUNTED = (
  'asked', 'requests', 'retries', 'failures', 'cache_hits', 'shared', 'prompt_tokens', 'completion_tokens', 'cost',
  'seconds_queued', 'seconds_answering', 'seconds_paused',
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class _Question:
  """What identifies an answer, beside the model."""

  key: str  # '' for a probe, whose answer is not kept
  messages: list[dict[str, str]]
  told: dict[str, Any]  # what the key is a digest of
  sample: int
  max_tokens: int


@dataclasses.dataclass(slots=True)
class _Job:
  """A question that is being asked, and how many wait for it."""

  task: asyncio.Task
  waiting: int = 0


class _Line:
  """What belongs to one event loop: connections, free slots, questions that are being asked."""

  def __init__(self, client: openai.AsyncOpenAI, concurrency: int):
    self.client = client
    self.slots = asyncio.Semaphore(concurrency)
    self.jobs: dict[str, _Job] = {}

  async def share(self, key: str, work: Callable[[], Awaitable[Read]]) -> tuple[Read, bool]:
    """The result of `work`, and whether somebody else had started it; it ends early when nobody waits any more."""
    job, shared = self.jobs.get(key), True
    if job is None:
      job, shared = _Job(asyncio.ensure_future(work())), False
      self.jobs[key] = job
    job.waiting += 1
    try:
      return await asyncio.shield(job.task), shared
    finally:
      job.waiting -= 1
      if self.jobs.get(key) is job and (job.task.done() or not job.waiting):
        del self.jobs[key]
      if not job.waiting:
        job.task.cancel()


class ChatModel:
  """A model behind an endpoint. One instance serves a whole run, in one event loop after another."""

  def __init__(self, name: str, endpoint: Endpoint, *, answers: Answers | None = None, replay: bool = False):
    """Makes the client; nothing is sent.

    Args:
      name: its part in the run, for messages and counters.
      endpoint: where it is and how patiently it is asked.
      answers: where answers are kept; None keeps none.
      replay: answer only from `answers`.

    Raises:
      ConfigError: the key's environment variable is not set, or there is nothing to replay from.
    """
    require(not replay or answers is not None, f'{name} is to replay answers; say where they are kept')
    self.name, self.endpoint = name, endpoint
    self._answers, self._replay = answers, replay
    self._key = '' if replay else _key_of(endpoint, name)
    self._lines: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Line] = weakref.WeakKeyDictionary()
    self._chance = random.Random(f'{name}/{endpoint.model}')
    self._counts: collections.defaultdict[str, float] = collections.defaultdict(float)

  @property
  def deterministic(self) -> bool:
    """Whether equal questions have equal answers, as far as the endpoint can promise it."""
    return self.endpoint.sampling.temperature == 0

  async def ask(
    self, messages: Sequence[Mapping[str, str]], *, read: Reader[Read], version: str, sample: int = 0
  ) -> Read:
    """What `read` makes of the model's reply; an answer that was kept before is not asked for again.

    Args:
      messages: role and content of each.
      read: parses a reply; raises Unreadable for one that will not do, which is asked for again with the next seed.
      version: of the prompt and its reader; a new one forgets what was kept.
      sample: equal questions have one answer per sample.

    Raises:
      EndpointFailure: no answer came within the retries and the deadline, or none is kept in a replay.
    """
    self._counts['asked'] += 1
    question = self._question(messages, version, sample)
    try:
      kept = self._kept(question, read)
      if kept:
        return kept[0]
      if self._replay:
        self._miss(question)
      line = self._line()
      found, shared = await line.share(question.key, lambda: self._obtain(question, read, line))
    except EndpointFailure as failure:
      self._counts['failures'] += 1
      self._counts[f'failures/{failure.reason}'] += 1
      raise
    self._counts['shared'] += shared
    return found

  async def probe(self) -> None:
    """Asks for one short reply, whatever it says, so that a wrong address, key or model is known before a run.

    Raises:
      ConfigError: the endpoint cannot be used, or does not answer within its retries.
    """
    if self._replay:
      return
    question = self._question([{'role': 'user', 'content': 'Reply with the word: ready'}], 'probe', 0)
    try:
      await self._obtain(dataclasses.replace(question, key='', max_tokens=16), lambda reply: reply, self._line())
    except EndpointFailure as failure:
      if failure.reason not in OF_CONTENT:
        raise ConfigError(str(failure)) from failure

  def read_counts(self) -> dict[str, float]:
    """What happened since the last reading, as flat numbers; counting starts anew.

    Beside the sums, `failures/REASON` counts questions without an answer, `faults/REASON` requests.
    """
    counts = {name: float(self._counts[name]) for name in (*_COUNTED, *sorted(set(self._counts) - set(_COUNTED)))}
    self._counts.clear()
    return counts

  async def close(self) -> None:
    """Closes the connections of the running loop."""
    line = self._lines.pop(asyncio.get_running_loop(), None)
    if line is not None:
      await line.client.close()

  def _line(self) -> _Line:
    loop = asyncio.get_running_loop()
    if loop not in self._lines:
      client = openai.AsyncOpenAI(
        base_url=self.endpoint.base_url, api_key=self._key, max_retries=0, timeout=self.endpoint.request_seconds
      )
      self._lines[loop] = _Line(client, self.endpoint.concurrency)
    return self._lines[loop]

  def _question(self, messages: Sequence[Mapping[str, str]], version: str, sample: int) -> _Question:
    # A lone surrogate, which a policy can write as \ud800, cannot be sent.
    plain = [{part: mended(str(text)) for part, text in message.items()} for message in messages]
    told = {
      'model': self.endpoint.model,
      'messages': plain,
      'version': version,
      'sampling': dataclasses.asdict(self.endpoint.sampling),
      'extra': self.endpoint.extra,
      'sample': sample,
    }
    return _Question(digest(told), plain, told, sample, self.endpoint.sampling.max_tokens)

  def _kept(self, question: _Question, read: Reader[Read]) -> tuple[Read] | None:
    """What `read` makes of the kept answer, in a tuple; None if none is kept, or it does not read any more."""
    record = self._answers.get(question.key) if self._answers else None
    if record is None:
      return None
    try:
      found = read(Reply(record['text'], bool(record.get('truncated')), cached=True))
    except Unreadable as error:
      logging.warning('%s: the kept answer %s cannot be read any more: %s', self.name, question.key, error)
      return None
    self._counts['cache_hits'] += 1
    return (found,)

  def _miss(self, question: _Question) -> NoReturn:
    prompt = question.messages[-1]['content'] if question.messages else ''
    raise EndpointFailure(
      f'{self.name}: no answer {question.key} is kept and replay asks nobody; the prompt ends in {prompt[-300:]!r}',
      reason='miss',
      kind='unusable',
    )

  async def _obtain(self, question: _Question, read: Reader[Read], line: _Line) -> Read:
    """An answer that reads, within the deadline; every failure names endpoint and model."""
    faults: list[EndpointFailure] = []
    try:
      async with asyncio.timeout(self.endpoint.deadline) as limit:
        return await self._persist(question, read, line, faults, limit)
    except TimeoutError:
      last = f'; the last failure was {faults[-1]}' if faults else '; no request had failed'
      fault = EndpointFailure(f'no answer within deadline = {self.endpoint.deadline:g} s{last}', reason='deadline')
    except EndpointFailure as error:
      fault = error
    where = f'{self.name} ({self.endpoint.model} at {self.endpoint.base_url})'
    raise EndpointFailure(
      f'{where}: {fault}, after {len(faults)} failed requests', reason=fault.reason, kind=fault.kind
    ) from fault

  async def _persist(
    self,
    question: _Question,
    read: Reader[Read],
    line: _Line,
    faults: list[EndpointFailure],
    limit: asyncio.Timeout,
  ) -> Read:
    rereads = retries = 0
    while True:
      try:
        reply = await self._request(question, line, rereads, limit)
        found = read(reply)
        self._keep(question, reply)
        return found
      except Unreadable as error:
        fault = EndpointFailure(f'the reply will not do: {error}', reason='unreadable')
      except EndpointFailure as error:
        fault = error
      faults.append(fault)
      self._counts[f'faults/{fault.reason}'] += 1
      if fault.kind != 'transient':
        raise fault
      if fault.reason in OF_CONTENT:
        rereads += 1
        if rereads > self.endpoint.rereads:
          raise fault
      else:
        retries += 1
        if retries > self.endpoint.retries:
          raise fault
        await self._pause(retries, fault, limit)
      self._counts['retries'] += 1

  async def _request(self, question: _Question, line: _Line, reread: int, limit: asyncio.Timeout) -> Reply:
    """One request and its reply. The slot is held while the request is in flight, and no longer."""
    queued = time.monotonic()
    async with line.slots:
      start = time.monotonic()
      self._counts['seconds_queued'] += start - queued
      if _left(limit) <= 0:  # a slot that comes free with the deadline can be given before the loop looks at its timers
        raise TimeoutError
      self._counts['requests'] += 1
      try:
        async with asyncio.timeout(self.endpoint.request_seconds):  # the SDK's own is a deadline per read
          text = await self._send(question, line, reread)
      except (TimeoutError, openai.APITimeoutError):
        raise EndpointFailure(f'no reply within {self.endpoint.request_seconds:g} s', reason='timeout') from None
      except openai.APIStatusError as error:
        raise of_status(error.status_code, _text(error.response), error.response.headers) from None
      except openai.OpenAIError as error:
        raise EndpointFailure(f'no connection: {error.__cause__ or error!r}', reason='connection') from None
      finally:
        self._counts['seconds_answering'] += time.monotonic() - start
    reply = read_body(text)
    self._bill(reply)
    return reply

  async def _send(self, question: _Question, line: _Line, reread: int) -> str:
    sampling = self.endpoint.sampling
    fields: dict[str, Any] = {self.endpoint.token_field: question.max_tokens}
    if sampling.temperature is not None:
      fields['temperature'] = sampling.temperature
    if sampling.top_p < 1:
      fields['top_p'] = sampling.top_p
    if sampling.seed is not None:
      fields['seed'] = (sampling.seed + 1009 * question.sample + reread) % 2**31
    messages: Any = question.messages
    raw = await line.client.chat.completions.with_raw_response.create(
      model=self.endpoint.model, messages=messages, extra_body=self.endpoint.extra, **fields
    )
    return _text(raw.http_response)

  async def _pause(self, retry: int, fault: EndpointFailure, limit: asyncio.Timeout) -> None:
    """Waits twice as long as the last time and as long as the endpoint asks; not if that would outlast the deadline."""
    grown = min(self.endpoint.longest_pause, self.endpoint.first_pause * 2.0 ** min(retry - 1, 64))
    seconds = max(grown * self._chance.uniform(0.5, 1.0), fault.retry_after or 0.0)
    left = _left(limit)
    if seconds >= left:
      raise EndpointFailure(
        f'{fault}; the next try is {seconds:.3g} s away and the deadline {max(left, 0):.3g} s', reason=fault.reason
      )
    self._counts['seconds_paused'] += seconds
    await asyncio.sleep(seconds)

  def _keep(self, question: _Question, reply: Reply) -> None:
    if self._answers is not None and question.key:
      record = {'text': reply.text, 'truncated': reply.truncated}
      self._counts['unkept'] += not self._answers.put(question.key, question.told, record)

  def _bill(self, reply: Reply) -> None:
    self._counts['prompt_tokens'] += reply.prompt_tokens
    self._counts['completion_tokens'] += reply.completion_tokens
    cost = reply.prompt_tokens * self.endpoint.input_price + reply.completion_tokens * self.endpoint.output_price
    self._counts['cost'] += cost / 1e6


def _text(response: Any) -> str:
  """The body as UTF-8, which JSON always is, whatever its header says."""
  return response.content.decode('utf-8', 'replace')


def _left(limit: asyncio.Timeout) -> float:
  """Seconds until the deadline, below 0 after it."""
  return (limit.when() or 0.0) - asyncio.get_running_loop().time()


def _key_of(endpoint: Endpoint, name: str) -> str:
  """The key, or a placeholder where none is needed: the SDK insists on one."""
  if not endpoint.api_key_env:
    return 'none'
  key = os.environ.get(endpoint.api_key_env, '').strip()
  require(bool(key), f'{name}.api_key_env names {endpoint.api_key_env!r}, which is not set; export it with the key')
  plain = key.isascii() and key.isprintable()  # or a header refuses it, in words that show the key
  require(plain, f'{name}.api_key_env names {endpoint.api_key_env!r}, which holds what no key does; copy it once more')
  return key
