"""A user's own MCP server as an environment: its tools on offer, each call a request over standard input and output.

    server = McpServer(('python', 'my_server.py', '--fresh'))
    environment = mcp_environment(server)            # lists the tools; await environment.step(calls); close()
    tools = listed_tools(server)                     # for writing tasks
    open_task = mcp_opener(server, each='rollout')   # an Opener: a process per rollout, or 'run': one for all

The server judges calls itself; what it refuses is an observation, and so is its silence beyond the deadline. A server
that cannot be started, or dies, is an `EnvironmentFailure` that ends with the server's last words. Closing ends the
process by its id: its input ends, two seconds later its group is told to terminate, and two more later it is killed.
Servers with state need a process per rollout, or rollouts see each other's writes. Needs `pip install 'slca_jax[mcp]'`.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import dataclasses
import functools
import importlib.util
import json
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import IO, Any, Literal, TypeVar

from slca_jax.config import require
from slca_jax.dialogue import Observation, Task, Tool, ToolCall
from slca_jax.envs.environment import Opener
from slca_jax.envs.guard import DEFAULT, CallLimits, as_text, bounded, refusal
from slca_jax.envs.mcp_server import CHANGES, RETURNS
from slca_jax.errors import EnvironmentFailure

T = TypeVar('T')
_LAST_WORDS = 500  # characters of a dead server's standard error
_READ_SECONDS = 60.0  # to list its tools, or to give a resource
_GOODBYE = 6.0  # seconds for all servers to end when the interpreter does
_WORDS_SECONDS = 60.0  # until the last words of a server that died are read, on a busy machine


@dataclasses.dataclass(frozen=True)
class McpServer:
  """How to start a server.

  Attributes:
    command: the program and its arguments.
    variables: environment variables beside HOME, PATH and their like; nothing else is inherited.
    folder: where it starts; here if None.
    start_seconds: until a server that has not introduced itself counts as dead.
  """

  command: tuple[str, ...]
  variables: Mapping[str, str] = dataclasses.field(default_factory=dict)
  folder: str | None = None
  start_seconds: float = 60.0

  def __post_init__(self) -> None:
    require(bool(self.command), 'command is empty; name the program that serves, as in ("python", "server.py")')
    require(self.start_seconds > 0, f'start_seconds is {self.start_seconds}; a server needs some time to start')


class Connection:
  """One server. It starts with the first request, may be asked from any event loop, and lives in a loop of its own.

  (The session of MCP's client must be entered and left in one task, while rollouts come and go, and a run may use one
  event loop after another.)
  """

  def __init__(self, server: McpServer):
    """Nothing starts here.

    Raises:
      ConfigError: MCP's package is not installed.
    """
    require(importlib.util.find_spec('mcp') is not None, "there is no package mcp; pip install 'slca_jax[mcp]'")
    self._server = server
    self._client: concurrent.futures.Future[Any] = concurrent.futures.Future()  # once the server has introduced itself
    self._life: concurrent.futures.Future[None] | None = None
    self._lock = threading.Lock()
    self._over = asyncio.Event()
    self._closed = False
    self._words = ''

  async def tools(self) -> tuple[Tool, ...]:
    """What the server offers.

    Raises:
      EnvironmentFailure: the server is dead or does not tell.
    """
    return await asyncio.wrap_future(self.post(self._tools, _READ_SECONDS))

  async def call(self, call: ToolCall, *, limits: CallLimits) -> Observation:
    """The server's answer, an error observation if it refuses or is silent.

    Raises:
      EnvironmentFailure: the server is dead.
    """
    return await asyncio.wrap_future(self.post(lambda client: self._call(client, call, limits)))

  async def read(self, uri: str) -> str:
    """The text of a resource.

    Raises:
      EnvironmentFailure: the server is dead, or has no such resource.
    """
    return await asyncio.wrap_future(self.post(lambda client: self._read(client, uri), _READ_SECONDS))

  def offered(self) -> tuple[Tool, ...]:
    """`tools` for code without an event loop."""
    return self.post(self._tools, _READ_SECONDS).result()

  @property
  def dead(self) -> bool:
    """Whether the server has ended, closed or not."""
    return self._over.is_set() or (self._life is not None and self._life.done())

  def close(self) -> None:
    """Ends the server; returns at once. A second close does nothing."""
    with self._lock:
      self._closed = True
      if self._life is None:
        return
    _loop().call_soon_threadsafe(self._over.set)
    if not self._client.done():
      self._life.cancel()

  def post(self, request: Callable[[Any], Awaitable[T]], seconds: float | None = None) -> concurrent.futures.Future[T]:
    """Makes a request of the client, which starts the server if it is the first; it may take so long after that."""
    with self._lock:
      if self._closed:
        raise EnvironmentFailure('a call to an environment that was closed')
      if self._life is None:
        self._life = asyncio.run_coroutine_threadsafe(self._live(), _loop())
        _living.add(self._life)
        self._life.add_done_callback(_living.discard)
    return asyncio.run_coroutine_threadsafe(self._ask(request, seconds), _loop())

  async def _live(self) -> None:
    """Starts the server and keeps it until it is over."""
    from mcp import Client, StdioServerParameters, stdio_client

    parameters = StdioServerParameters(
      command=self._server.command[0],
      args=list(self._server.command[1:]),
      env=dict(self._server.variables),
      cwd=self._server.folder,
      encoding_error_handler='replace',  # or after one byte that is no UTF-8 nothing more is read
    )
    with tempfile.TemporaryFile('w+', errors='replace') as words:
      try:
        async with contextlib.AsyncExitStack() as stack:
          async with asyncio.timeout(self._server.start_seconds):
            client = await stack.enter_async_context(Client(stdio_client(parameters, words), cache=None))
          self._client.set_result(client)
          await self._over.wait()
      except TimeoutError:
        self._fail(words, f'it did not introduce itself within {self._server.start_seconds:g} seconds')
      except Exception as error:
        self._fail(words, f'{type(error).__name__}: {error}')
      finally:
        self._fail(words, 'it was closed while it started')

  def _fail(self, words: IO[str], why: str) -> None:
    self._words = _tail(words)
    if not self._client.done():
      self._client.set_exception(self._dead(why))

  def _dead(self, why: str) -> EnvironmentFailure:
    said = f'; its last words: {self._words}' if self._words else ''
    return EnvironmentFailure(f'the server {" ".join(self._server.command)[:200]!r} is dead: {why}{said}')

  async def _ask(self, request: Callable[[Any], Awaitable[T]], seconds: float | None) -> T:
    from mcp import MCPError, types

    if self._over.is_set():
      raise self._dead('it ended before this call')
    client = await asyncio.shield(asyncio.wrap_future(self._client))
    try:
      async with asyncio.timeout(seconds):
        return await request(client)
    except TimeoutError as error:
      raise self._dead(f'it gave no answer within {seconds:g} seconds') from error
    except MCPError as error:
      if error.code != types.CONNECTION_CLOSED or self._life is None:
        raise EnvironmentFailure(f'the server refuses: {error}') from error
      self._over.set()
      await asyncio.wait({asyncio.wrap_future(self._life)}, timeout=_WORDS_SECONDS)
      raise self._dead(str(error)) from error
    except Exception as error:
      raise EnvironmentFailure(f'the server answers what is no MCP: {type(error).__name__}: {error}') from error

  async def _tools(self, client: Any) -> tuple[Tool, ...]:
    found: list[Tool] = []
    cursor, seen = None, set[str | None](('',))
    while cursor not in seen:  # a paginator that goes round ends there, one without end with the time
      seen.add(cursor)
      page = await client.list_tools(cursor=cursor)
      found += map(_read_tool, page.tools)
      cursor = page.next_cursor or ''
    return tuple(found)

  async def _call(self, client: Any, call: ToolCall, limits: CallLimits) -> Observation:
    from mcp import MCPError, types

    try:
      async with asyncio.timeout(limits.deadline):
        result = await client.call_tool(call.name, dict(call.arguments))
    except TimeoutError:
      return Observation(f'Error: {call.name} did not answer within {limits.deadline:g} seconds.', ok=False)
    except MCPError as error:
      if error.code == types.CONNECTION_CLOSED:
        raise
      return refusal(ValueError(str(error)), limits=limits)
    except Exception as error:  # an answer that is no MCP, or does not fit the schema that the server gave for it
      return refusal(error, limits=limits)
    return bounded(Observation(_text(result), ok=not result.is_error), limits=limits)

  async def _read(self, client: Any, uri: str) -> str:
    result = await client.read_resource(uri)
    return ''.join(getattr(part, 'text', '') for part in result.contents)


class McpEnvironment:
  """An MCP server's tools as the world of a rollout."""

  def __init__(
    self, connection: Connection, tools: Sequence[Tool], *, shared: bool = False, limits: CallLimits = DEFAULT
  ):
    """Nothing starts before the first call.

    Args:
      connection: the server.
      tools: those on offer; calls of others are refused here.
      shared: the server serves other rollouts too, and closing leaves it alone.
      limits: patience with a call.
    """
    self.tools = tuple(tools)
    self._names = {tool.name for tool in self.tools}
    self._connection, self._shared, self._limits = connection, shared, limits
    self._open = True

  async def step(self, calls: Sequence[ToolCall]) -> list[Observation]:
    """One observation per call, in order; the calls are made one after another.

    Raises:
      EnvironmentFailure: the environment was closed, or the server is dead.
    """
    if not self._open:
      raise EnvironmentFailure('a call to an environment that was closed')
    return [await self._answer(call) for call in calls]

  async def changes(self) -> list[dict[str, Any]]:
    """How the database behind the server differs from how it began, from servers that tell (`mcp_server`'s do)."""
    return json.loads(await self._connection.read(CHANGES))

  def close(self) -> None:
    """Ends the server unless it is shared. A second close does nothing."""
    self._open = False
    if not self._shared:
      self._connection.close()

  async def _answer(self, call: ToolCall) -> Observation:
    if call.name not in self._names:
      return bounded(Observation(f'Error: there is no tool named {call.name!r} here.', ok=False), limits=self._limits)
    return await self._connection.call(call, limits=self._limits)


def mcp_environment(
  server: McpServer, *, tools: Sequence[Tool] | None = None, limits: CallLimits = DEFAULT
) -> McpEnvironment:
  """An environment over a process of its own. Without `tools` it is started here to list them, which blocks."""
  connection = Connection(server)
  try:
    offered = connection.offered() if tools is None else tools
  except BaseException:
    connection.close()
    raise
  return McpEnvironment(connection, offered, limits=limits)


def listed_tools(server: McpServer) -> tuple[Tool, ...]:
  """The tools of a server, which is started for that and ended; blocks."""
  with contextlib.closing(mcp_environment(server)) as environment:
    return environment.tools


def mcp_opener(
  server: McpServer, *, each: Literal['rollout', 'run'] = 'rollout', limits: CallLimits = DEFAULT
) -> Opener:
  """Opens a task's tools over a process per rollout, or over one for all rollouts of the run.

  The common one ends with the interpreter; the first rollout after its death starts another.
  """
  require(each in ('rollout', 'run'), f"each is {each!r}; start a server for each 'rollout' or each 'run'")
  common = Connection(server)

  def open_task(task: Task, seed: int) -> McpEnvironment:
    nonlocal common
    del seed  # the server is as it is
    if each == 'rollout' or common.dead:
      common = Connection(server)
    return McpEnvironment(common, task.tools, shared=each == 'run', limits=limits)

  return open_task


def _read_tool(tool: Any) -> Tool:
  """MCP's tool as ours; one that does not promise only to read may write."""
  reads = tool.annotations is not None and bool(tool.annotations.read_only_hint)
  returns = (tool.meta or {}).get(RETURNS) or tool.output_schema
  return Tool(tool.name, tool.description or '', tool.input_schema, returns, writes=not reads)


def _text(result: Any) -> str:
  """What the policy reads of a result: its texts, a note for each part that is none."""
  parts = [_part(part) for part in result.content]
  return '\n'.join(parts) if parts or result.structured_content is None else as_text(result.structured_content)


def _part(part: Any) -> str:
  if part.type == 'text':
    return part.text
  if part.type == 'resource':
    return getattr(part.resource, 'text', f'[{part.resource.uri}]')
  return f'[{part.type} {getattr(part, "uri", None) or getattr(part, "mime_type", "")}]'


def _tail(words: IO[str]) -> str:
  words.seek(0)
  return words.read()[-_LAST_WORDS:].strip()


_living: set[concurrent.futures.Future[None]] = set()  # servers that run


@functools.lru_cache(maxsize=1)
def _loop() -> asyncio.AbstractEventLoop:
  """The loop that all servers live in, in a thread of its own."""
  loop = asyncio.new_event_loop()
  threading.Thread(target=loop.run_forever, name='mcp', daemon=True).start()
  atexit.register(_end_all)
  return loop


def _end_all() -> None:
  """Ends the servers that nobody closed: the thread dies with the interpreter, and they would not."""
  living = list(_living)
  for life in living:
    life.cancel()
  concurrent.futures.wait(living, timeout=_GOODBYE)
