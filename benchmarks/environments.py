"""How fast executable environments open, step and replay: opens, steps and replays per second, on all cores.

    python benchmarks/environments.py [--workers=2 --at_once=16 --seconds=3 --megabytes=10]

Three worlds: functions in this process (`envs/executable.py`), and generated code in the sandbox over a small database
and over one of 10 MB. An open is a fresh environment with the answer to its first call, as a rollout needs it; a step
is one call; a replay opens an environment, makes 8 calls and reads its final state. Each of the workers, a process per
core, has `--at_once` environments side by side, as in a batch of rollouts, and a sandbox of its own; all measure the
same thing at the same time, and what they do per second is added up. The last lines compare the open of a large world
with a copy of its database, which it would cost without sharing, and tell how long a sandboxed call waits.
"""

import asyncio
import dataclasses
import json
import multiprocessing
import multiprocessing.synchronize
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

_WORKERS = flags.DEFINE_integer(
  'workers', os.cpu_count() or 1, 'Processes that measure at the same time.', lower_bound=1
)
_AT_ONCE = flags.DEFINE_integer('at_once', 16, 'Environments at once in each of them.', lower_bound=1)
_SECONDS = flags.DEFINE_float('seconds', 3.0, 'Length of each measurement.')
_MEGABYTES = flags.DEFINE_float('megabytes', 10.0, 'Size of the large database as JSON.')
_LEAST = flags.DEFINE_string('least', 'limits', 'The protection without which nothing is measured.')

Rates = dict[str, float]  # what -> per second


@dataclasses.dataclass(frozen=True)
class Measurement:
  """What a worker is told. All pass `border` before each measurement."""

  at_once: int
  seconds: float
  megabytes: float
  least: str
  border: multiprocessing.synchronize.Barrier


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


async def per_second(work: Callable[[], Awaitable[int]], told: Measurement) -> float:
  """How many things `work` does per second when several do it side by side."""
  told.border.wait()
  start = time.perf_counter()
  done, end = 0, start + told.seconds

  async def repeat() -> None:
    nonlocal done
    while time.perf_counter() < end:
      count = await work()  # first: `done += await` would read `done` before it waits
      done += count

  await asyncio.gather(*(repeat() for _ in range(told.at_once)))
  return done / (time.perf_counter() - start)


async def measure(opened: Callable[[], Executable], told: Measurement) -> Rates:
  """Opens, steps and replays per second of this worker."""

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

  worlds = [opened() for _ in range(told.at_once)]

  async def one_step() -> int:
    world = worlds.pop()
    await world.step(CALLS[:1])
    worlds.insert(0, world)
    return 1

  await one_open()
  rates = {'opens': await per_second(one_open, told), 'steps': await per_second(one_step, told)}
  rates['replays'] = await per_second(one_replay, told)
  for world in worlds:
    world.close()
  return rates


async def measure_all(told: Measurement) -> dict[str, Rates]:
  """The rates of the three worlds, by their names."""
  sandbox = shared_sandbox(SandboxSettings(least=told.least))
  small, large = database(0.01), database(told.megabytes)
  names: dict = {}
  exec(SOURCE, names)
  world = World(TOOLS, {tool.name: names[tool.name] for tool in TOOLS}, inline=True)
  worlds = {
    'in process, small': lambda: Executable(world, small),
    'sandbox, small': _opener(Blueprint('small', TOOLS, SOURCE, small), sandbox),
    f'sandbox, {told.megabytes:g} MB': _opener(Blueprint('large', TOOLS, SOURCE, large), sandbox),
  }
  return {name: await measure(opened, told) for name, opened in worlds.items()}


def _opener(blueprint: Blueprint, sandbox) -> Callable[[], Executable]:
  return lambda: open_world(blueprint, sandbox)  # pyright: ignore[reportReturnType]


def _work(told: Measurement, results: multiprocessing.SimpleQueue) -> None:
  try:
    results.put(asyncio.run(measure_all(told)))
  except BaseException as error:
    told.border.abort()  # the others would wait for ever
    results.put(repr(error))
    raise


def main(_: list[str]) -> None:
  """Starts the workers and prints what they do together."""
  settings = SandboxSettings(least=_LEAST.value)  # pyright: ignore[reportArgumentType]
  protections = shared_sandbox(settings).protections()
  print(f'{os.cpu_count()} cores, {_WORKERS.value} workers with {_AT_ONCE.value} at once; {protections}', flush=True)
  context = multiprocessing.get_context('spawn')
  results, border = context.SimpleQueue(), context.Barrier(_WORKERS.value)
  told = Measurement(_AT_ONCE.value, _SECONDS.value, _MEGABYTES.value, _LEAST.value, border)
  workers = [context.Process(target=_work, args=(told, results)) for _ in range(_WORKERS.value)]
  for worker in workers:
    worker.start()
  measured = [results.get() for _ in workers]
  for worker in workers:
    worker.join()
  if broken := [one for one in measured if isinstance(one, str)]:
    raise SystemExit(f'a worker broke: {broken[0]}')
  _report(measured)


def _report(measured: list[dict[str, Rates]]) -> None:
  total = {
    name: {what: sum(one[name][what] for one in measured) for what in rates} for name, rates in measured[0].items()
  }
  for name, rates in total.items():
    print(f'{name:<28}' + ''.join(f'{rate:>10.0f} {what}/s' for what, rate in rates.items()))
  large = database(_MEGABYTES.value)
  start = time.perf_counter()
  fresh(large)
  copy = time.perf_counter() - start
  heavy = total[f'sandbox, {_MEGABYTES.value:g} MB']['opens']
  print(f'a copy of {_MEGABYTES.value:g} MB takes {copy * 1e3:.0f} ms, as long as {copy * heavy:.0f} opens')
  together = _AT_ONCE.value * _WORKERS.value
  print(f'a sandboxed call waits {together / total["sandbox, small"]["steps"] * 1e3:.2f} ms among {together} at once')


if __name__ == '__main__':
  app.run(main)
