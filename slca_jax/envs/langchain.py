"""An environment's tools for LangChain and LangGraph.

    tools = langchain_tools(open_world(blueprint, sandbox))
    await tools[0].ainvoke({'city': 'Rome'})        # one step; LangGraph's ToolNode(tools) takes them as they are

Asynchronous only (`ainvoke`), since an environment belongs to one event loop. A refusal is a tool message with the
refusal's text and status 'error'. Needs `pip install 'slca_jax[langchain]'`.
"""

import asyncio
from typing import TYPE_CHECKING, Any

from slca_jax.dialogue import Tool, ToolCall
from slca_jax.envs.environment import Environment

if TYPE_CHECKING:
  from langchain_core.tools import StructuredTool  # pyright: ignore[reportMissingImports]


def langchain_tools(environment: Environment) -> list['StructuredTool']:
  """One tool per tool of the environment; calling it is a step with that call. Close the environment when done.

  An environment takes one step at a time, so calls that are made at once wait for each other.
  """
  turn = asyncio.Lock()
  return [_export(environment, tool, turn) for tool in environment.tools]


def _export(environment: Environment, tool: Tool, turn: asyncio.Lock) -> 'StructuredTool':
  from langchain_core.tools import StructuredTool, ToolException  # pyright: ignore[reportMissingImports]

  async def step(**arguments: Any) -> str:
    async with turn:
      [seen] = await environment.step([ToolCall(tool.name, arguments)])
    if not seen.ok:
      raise ToolException(seen.content)
    return seen.content

  return StructuredTool(
    name=tool.name,
    description=tool.description,
    args_schema={'type': 'object', 'properties': {}, **tool.parameters},
    coroutine=step,
    handle_tool_error=True,
  )
