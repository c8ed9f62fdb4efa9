"""A model that words questions and proposes edges for code that waits: making tasks runs without an event loop.

with Counsel(ChatModel('writer', endpoint)) as model:
  desk = Desk()                                    # one for each environment
  make_tasks(blueprint, settings, write=desk.writer(model), suggest=desk.proposer(model))
  desk.counts, desk.cost, desk.unanswered
"""

import asyncio
import collections
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from slca_jax.dialogue import Tool
from slca_jax.errors import EndpointFailure, Unreadable
from slca_jax.llm.chat import ChatModel
from slca_jax.llm.replies import OF_CONTENT, Reply
from slca_jax.toolverse import asking
from slca_jax.toolverse.graph import Edge
from slca_jax.toolverse.inference import Suggest
from slca_jax.toolverse.prompts import Messages
from slca_jax.toolverse.wording import Brief, Write

Read = TypeVar('Read')


class Counsel:
  """A chat model that any number of threads ask at once; its event loop runs in a thread of its own."""

  def __init__(self, model: ChatModel):
    self.model = model
    self._loop = asyncio.new_event_loop()
    self._thread = threading.Thread(target=self._loop.run_forever, name=f'counsel-{model.name}', daemon=True)

  def __enter__(self) -> 'Counsel':
    self._thread.start()
    return self

  def __exit__(self, *_: object) -> None:
    self._wait(self.model.close())
    self._loop.call_soon_threadsafe(self._loop.stop)
    self._thread.join()
    self._loop.close()

  def ask(self, messages: Messages, *, read: Callable[[Reply], Read], version: str) -> Read:
    """As `ChatModel.ask`."""
    return self._wait(self.model.ask(messages, read=read, version=version))

  def probe(self) -> None:
    """As `ChatModel.probe`."""
    self._wait(self.model.probe())

  def _wait(self, work: Coroutine[Any, Any, Read]) -> Read:
    return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class Desk:
  """What models were asked for one environment, and what came of it.

  Attributes:
    counts: questions and graphs by what became of them, with the reason where the model's words were not taken.
    cost: tokens and their price.
    unanswered: how often no reply came at all; a later run may fare better.
  """

  def __init__(self):
    self.counts: collections.Counter[str] = collections.Counter()
    self.cost = {'prompt_tokens': 0.0, 'completion_tokens': 0.0, 'cost': 0.0}
    self.unanswered = 0

  def writer(self, model: Counsel) -> Write:
    """Words a question; '' where no reply will do, so that the template does.

    A reply that leaves out a value is asked for again, as often as the endpoint's `rereads` say.
    """

    def write(brief: Brief) -> str:
      read = lambda reply: asking.read_question(reply, brief)
      return self._ask(model, 'question', asking.ask_question(brief), read) or ''

    return write

  def proposer(self, model: Counsel) -> Suggest:
    """Proposes semantic edges; none where no reply will do."""

    def suggest(tools: Sequence[Tool]) -> Iterable[Edge]:
      return map(asking.edge_of, self._ask(model, 'edges', asking.ask_edges(tools), asking.read_edges) or ())

    return suggest

  def _ask(self, model: Counsel, name: str, messages: Messages, read: Callable[[Reply], Read]) -> Read | None:
    why = ''

    def counted(reply: Reply) -> Read:
      nonlocal why
      self._count(model, reply)
      try:
        return read(reply)
      except Unreadable as error:
        why = str(error).partition(':')[0]  # without the values, so that equal reasons are counted together
        raise

    try:
      found = model.ask(messages, read=counted, version=asking.VERSIONS[name])
    except EndpointFailure as failure:
      if failure.kind == 'unusable':
        raise
      final = failure.reason in OF_CONTENT or failure.kind == 'refused'
      self.unanswered += not final
      self.counts[f'{name}: {why if failure.reason == "unreadable" else failure.reason}'] += 1
      return None
    self.counts[name] += 1
    return found

  def _count(self, model: Counsel, reply: Reply) -> None:
    endpoint = model.model.endpoint
    price = reply.prompt_tokens * endpoint.input_price + reply.completion_tokens * endpoint.output_price
    spent = {'prompt_tokens': reply.prompt_tokens, 'completion_tokens': reply.completion_tokens, 'cost': price / 1e6}
    for part, amount in spent.items():
      self.cost[part] += amount
