"""How fast executable environments open, step and replay: opens, steps and replays per second, on all cores.

    python benchmarks/environments.py [--at_once=16 --seconds=3 --megabytes=10]

Three worlds: functions in this process (`envs/executable.py`), and generated code in the sandbox over a small database
and over one of 10 MB. An open is a fresh environment with the answer to its first call, as a rollout needs it; a step
is one call; a replay opens an environment, makes 8 calls and reads its final state. `--at_once` environments work side
by side, as in a batch of rollouts. The last lines compare the open of a large world with a copy of its database, which
it would cost without sharing, and a step with the same function called directly.
"""

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable

from absl import app, flags

from slca_jax.dialogue import Tool, ToolCall
from slca_jax.envs.executable import Executable, World, fresh
from slca_jax.envs.sandbox import SandboxSettings, shared_sandbox
from slca_jax.envs.state import final_state
from slca_jax.toolverse.blueprint import Blueprint
from slca_jax.toolverse.world import open_world

_AT_ONCE = flags.DEFINE_integer('at_once', 16, 'Environments at once.')
_SECONDS = flags.DEFINE_float('seconds', 3.0, 'Length of each measurement.')
_MEGABYTES = flags.DEFINE_float('megabytes', 10.0, 'Size of the large database as JSON.')
_LEAST = flags.DEFINE_string('least', 'limits', 'The protection without which nothing is measured.')

SOURCE = """
def find(db, city: str):
  return {'hotels': [row for row in db['first'] if row['city'] == city]}

def book(db, hotel_id: str):
  db['bookings'].append({'hotel_id': hotel_id})
  return {'status': 'booked', 'count': len(db['bookings'])}
"""
CALLS = (ToolCall('find', {'city': 'Rome'}), ToolCall('book', {'hotel_id': 'H3'})) * 4


def _tool(name: str, parameter: str) -> Tool:
  schema = {'type': 'object', 'properties': {parameter: {'type': 'string'}}, 'required': [parameter]}
  return Tool(name, '', schema)


TOOLS = (_tool('find', 'city'), _tool('book', 'hotel_id'))


def database(megabytes: float) -> dict:
  """Twenty hotels, and as many more rows as it takes."""
  row = lambda n: {'id': f'H{n}', 'city': ('Rome', 'Oslo', 'Lima')[n % 3], 'price': 50 + n % 90, 'name': f'Hotel {n}'}
  rows = int(megabytes * 1e6 / len(json.dumps(row(100_000))))
  return {'first': [row(n) for n in range(20)], 'all': [row(n) for n in range(rows)], 'bookings': []}


async def per_second(work: Callable[[], Awaitable[int]]) -> float:
  """How many things `work` does per second when several do it side by side."""
  end = time.perf_counter() + _SECONDS.value
  done, start = 0, time.perf_counter()

  async def repeat() -> None:
    nonlocal done
    while time.perf_counter() < end:
      count = await work()  # first: `done += await` would read `done` before it waits
      done += count

  await asyncio.gather(*(repeat() for _ in range(_AT_ONCE.value)))
  return done / (time.perf_counter() - start)


async def measure(name: str, opened: Callable[[], Executable]) -> dict[str, float]:
  async def one_open() -> int:
    world = opened()
    await world.step(CALLS[:1])
    world.close()
    return 1

  async def one_replay() -> int:
    world = opened()
    for call in CALLS:
      await world.step([call])
    assert len(await final_state(world)) == 4
    world.close()
    return 1

  worlds = [opened() for _ in range(_AT_ONCE.value)]

  async def one_step() -> int:
    world = worlds.pop()
    await world.step(CALLS[:1])
    worlds.insert(0, world)
    return 1

  await one_open()
  rates = {'opens': await per_second(one_open), 'steps': await per_second(one_step)}
  rates['replays'] = await per_second(one_replay)
  for world in worlds:
    world.close()
  print(f'{name:<28}' + ''.join(f'{rate:>10.0f} {what}/s' for what, rate in rates.items()), flush=True)
  return rates


async def run() -> None:
  sandbox = shared_sandbox(SandboxSettings(least=_LEAST.value))
  print(f'{os.cpu_count()} cores, {_AT_ONCE.value} at once; {sandbox.protections()}')
  small, large = database(0.01), database(_MEGABYTES.value)
  names: dict = {}
  exec(SOURCE, names)
  world = World(TOOLS, {tool.name: names[tool.name] for tool in TOOLS}, inline=True)
  await measure('this process, small', lambda: Executable(world, small))
  rates = await measure('sandbox, small', _opener(Blueprint('small', TOOLS, SOURCE, small), sandbox))
  heavy = await measure(f'sandbox, {_MEGABYTES.value:g} MB', _opener(Blueprint('large', TOOLS, SOURCE, large), sandbox))
  start = time.perf_counter()
  fresh(large)
  copy = time.perf_counter() - start
  print(f'a copy of {_MEGABYTES.value:g} MB takes {copy * 1e3:.0f} ms, {copy * heavy["opens"]:.0f} opens')
  print(f'a sandboxed call waits {_AT_ONCE.value / rates["steps"] * 1e3:.2f} ms among {_AT_ONCE.value} at once')


def _opener(blueprint: Blueprint, sandbox) -> Callable[[], Executable]:
  return lambda: open_world(blueprint, sandbox)  # pyright: ignore[reportReturnType]


def main(_: list[str]) -> None:
  asyncio.run(run())


if __name__ == '__main__':
  app.run(main)
