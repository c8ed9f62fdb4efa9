"""An environment as an MCP server over standard input and output.

    await serve(open_world(blueprint, sandbox), name='travel')    # until the client closes

`tools/list` is the environment's tools, `tools/call` one step with one call, a refusal a result with `isError`. An
environment with a database offers `environment://changes`: how its database differs from how it began. What of a tool
MCP has no place for, or would interpret, travels so that `mcp_client` reads back an equal tool: `writes` as the
annotation readOnlyHint, `returns` in `_meta` (an outputSchema would oblige the tool to structured answers).
`launch/serve_mcp.py` is the command. Needs `pip install 'slca_jax[mcp]'`.
"""

import asyncio
import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

from slca_jax.dialogue import Tool, ToolCall
from slca_jax.envs.environment import Environment
from slca_jax.envs.state import Stateful
from slca_jax.errors import EnvironmentFailure

if TYPE_CHECKING:
  from mcp.server import Server

CHANGES = 'environment://changes'
RETURNS = 'slca_jax/returns'  # key in a tool's _meta


async def serve(environment: Environment, *, name: str = 'slca_jax') -> None:
  """Serves the environment on this process's standard streams until the client closes them, then closes it."""
  from mcp.server.stdio import stdio_server

  server = server_of(environment, name=name)
  with contextlib.closing(environment):
    async with stdio_server() as (incoming, outgoing):
      with contextlib.redirect_stdout(sys.stderr):  # or what tools print would reach the wire when buffers are flushed
        await server.run(incoming, outgoing, server.create_initialization_options())


def server_of(environment: Environment, *, name: str = 'slca_jax') -> 'Server[Any]':
  """The environment's MCP server, not yet connected. Calls run one after another in the order they arrive."""
  from mcp import MCPError, types
  from mcp.server import Server

  turn = asyncio.Lock()

  async def tools(context: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=[_offer(tool) for tool in environment.tools])

  async def call(context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
    try:
      async with turn:
        [seen] = await environment.step([ToolCall(params.name, params.arguments or {})])
    except EnvironmentFailure as failure:
      raise MCPError(types.CONNECTION_CLOSED, f'the environment is gone: {failure}') from failure
    return types.CallToolResult(content=[types.TextContent(text=seen.content)], is_error=not seen.ok)

  async def resources(context: Any, params: Any) -> types.ListResourcesResult:
    listed = [types.Resource(name='changes', uri=CHANGES, mime_type='application/json')]
    return types.ListResourcesResult(resources=listed if isinstance(environment, Stateful) else [])

  async def read(context: Any, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    if params.uri != CHANGES or not isinstance(environment, Stateful):
      raise MCPError(types.INVALID_PARAMS, f'there is no resource {params.uri}')
    async with turn:
      text = json.dumps(await environment.changes(), ensure_ascii=False)
    content = types.TextResourceContents(uri=CHANGES, mime_type='application/json', text=text)
    return types.ReadResourceResult(contents=[content])

  return Server(
    name, on_list_tools=tools, on_call_tool=call, on_list_resources=resources, on_read_resource=read
  )  # fmt: skip


def _offer(tool: Tool) -> Any:
  """The tool as MCP lists it."""
  from mcp import types

  return types.Tool(
    name=tool.name,
    description=tool.description,
    input_schema={'type': 'object', **tool.parameters},
    annotations=types.ToolAnnotations(read_only_hint=not tool.writes),
    _meta=None if tool.returns is None else {RETURNS: dict(tool.returns)},  # pyright: ignore[reportCallIssue]
  )
