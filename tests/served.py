"""An MCP server for tests, run as a program: the travel agency, with two tools more that break or hang the server."""

import asyncio
import os
import sys

from travel import DATABASE, FUNCTIONS, OFFERED, schema

from slca_jax.dialogue import Tool
from slca_jax.envs.executable import Executable, World
from slca_jax.envs.mcp_server import serve


def die(db):
  print('out of luck', file=sys.stderr, flush=True)
  os._exit(3)


def whisper(db):
  print('this is no JSON-RPC')  # stray output of a tool must not reach the wire
  return {'process': os.getpid()}


async def never():
  await asyncio.sleep(3600)


TOOLS = (*OFFERED, Tool('die', 'Ends the server.', schema()), Tool('whisper', 'Prints.', schema()))
WORLD = World(TOOLS, {**FUNCTIONS, 'die': die, 'whisper': whisper}, inline=True)


class Slow(Executable):
  """Hangs where a hotel is looked at."""

  async def step(self, calls):
    if calls[0].name == 'get_hotel_detail':
      await never()
    return await super().step(calls)


if __name__ == '__main__':
  if 'mute' in sys.argv:
    asyncio.run(never())
  asyncio.run(serve((Slow if 'slow' in sys.argv else Executable)(WORLD, DATABASE), name='travel'))
