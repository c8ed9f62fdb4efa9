"""The rollout loop by itself: 512 rollouts at once, against the time that engine and tools alone would take.

    python benchmarks/agent_loop.py [--rollouts=512 --group=16 --tools=20 --repeats=3]

The engine answers every request after 50 ms, the tools every call after 20 to 200 ms, as slow servers would; each
rollout makes two tool turns and answers in the third. No wall time can be below that of the rollout that waits longest:
the critical path. Everything else is the loop's own work on its one core: prompts, decoding, parsing, checking calls
against their schemas, encoding observations, scoring. Prints wall time over the critical path (target: at most 1.10)
and the loop's CPU time per turn.
"""

import asyncio
import json
import random
import statistics
import time
from collections.abc import Sequence

from absl import app, flags

from slca_jax.chat.calls import render
from slca_jax.chat.template import Template
from slca_jax.dialogue import Message, Observation, Scores, Status, Task, Tool, ToolCall, Trajectory
from slca_jax.envs.simulator import Simulator
from slca_jax.quickstart.tokenizer import make_tokenizer
from slca_jax.quickstart.world import make_task
from slca_jax.rewards.judge import RuleJudge
from slca_jax.rewards.protocols import score
from slca_jax.rollout.collect import Rollouts, collect, rarely_interrupted, seed_of
from slca_jax.rollout.sampler import Sample
from slca_jax.rollout.settings import Decoding, Limits

_ROLLOUTS = flags.DEFINE_integer('rollouts', 512, 'Rollouts at once.')
_GROUP = flags.DEFINE_integer('group', 16, 'Rollouts of a task.')
_TOOLS = flags.DEFINE_integer('tools', 20, 'Tools of a task.')
_REPEATS = flags.DEFINE_integer('repeats', 3, 'Runs; the median counts.')

ENGINE_SECONDS = 0.05
TOOL_SECONDS = (0.02, 0.2)
TURNS = 3


def tasks() -> list[Task]:
  """Tasks over many tools, of which each needs two look-ups one after another."""
  parameters = {
    'type': 'object',
    'properties': {'ticker': {'type': 'string'}, 'date': {'type': 'string'}, 'count': {'type': 'integer'}},
    'required': ['ticker'],
  }
  tools = tuple(Tool(f'look_up_{n}', f'Looks entry {n} up.', parameters) for n in range(_TOOLS.value))
  gold = ((ToolCall('look_up_0', {'ticker': 'BAKO', 'count': 1}),), (ToolCall('look_up_1', {'ticker': 'CIRU'}),))
  question = lambda n: (Message('user', f'What is the price of BAKO and of CIRU on day {n}?'),)
  return [Task(f'task-{n}', tools, question(n), gold) for n in range(_ROLLOUTS.value // _GROUP.value)]


class Engine:
  """Says a call, another call, and the answer, each after a fixed time."""

  def __init__(self, template: Template, concurrency: int):
    self.concurrency = concurrency
    calls = [call for step in tasks()[0].gold for call in step]
    texts = [*(f'I look it up. {render(call)}<|im_end|>' for call in calls), 'They are 42 and 43.<|im_end|>']
    self._says = [tuple(template.encode(text)) for text in texts]
    self._turn: dict[str, int] = {}

  async def generate(self, tokens: Sequence[int], *, session: str, **_: object) -> Sample:
    """The next turn of the session."""
    ids = self._says[self._turn.get(session, 0)]
    self._turn[session] = self._turn.get(session, 0) + 1
    await asyncio.sleep(ENGINE_SECONDS)
    return Sample(ids, (-0.5,) * len(ids), 'stop', ((0, len(ids)),))

  async def release(self, session: str) -> None:
    """Nothing is kept."""


def seconds_of(group: int, call: ToolCall) -> float:
  """How long a tool takes: a task's siblings wait equally long, as their environments have one seed."""
  return random.Random(f'{group}/{call.name}').uniform(*TOOL_SECONDS)


def open_environment(task: Task, seed: int) -> Simulator:
  """The tools of a task, behind the checks."""

  async def answer(tool: Tool | None, call: ToolCall) -> Observation:
    await asyncio.sleep(seconds_of(seed, call))
    return Observation(json.dumps({'ticker': call.arguments['ticker'], 'price': 42}))

  return Simulator(task.tools, answer)


async def rate(trajectory: Trajectory) -> Scores:
  """SLCA's rewards with the rule judge."""
  return await score(trajectory, RuleJudge())


def run(template: Template, batch: Sequence[Task], seed: str) -> tuple[float, float, float]:
  """(wall seconds, critical path in seconds, CPU seconds) of one batch."""
  world = Rollouts(Engine(template, _ROLLOUTS.value), template, open_environment, Limits(), Decoding())
  wall, cpu = time.perf_counter(), time.process_time()
  trajectories, _ = asyncio.run(collect(batch, world, rate, group_size=_GROUP.value, seed=seed))
  wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
  assert all(t.status is Status.FINISHED and len(t.turns) == TURNS for t in trajectories)
  waits = [
    TURNS * ENGINE_SECONDS
    + sum(seconds_of(seed_of(f'{seed}/{task.id}/{group}', 'environment'), call) for step in task.gold for call in step)
    for group, task in enumerate(batch)
  ]
  return wall, max(waits), cpu


def main(_: list[str]) -> None:
  """Runs and prints."""
  template = Template(make_tokenizer([make_task(0, 'train', index) for index in range(200)]))
  batch = tasks()
  with rarely_interrupted():
    run(template, batch, 'warm')
    found = [run(template, batch, str(repeat)) for repeat in range(_REPEATS.value)]
  ratio = statistics.median(wall / bound for wall, bound, _ in found)
  cpu = statistics.median(cpu for *_, cpu in found) / (_ROLLOUTS.value * TURNS)
  for wall, bound, spent in found:
    print(f'wall {wall:.3f} s, critical path {bound:.3f} s, CPU {spent:.3f} s')
  print(f'wall / critical path {ratio:.3f} (target: at most 1.10); {1e6 * cpu:.0f} µs of CPU per turn')


if __name__ == '__main__':
  app.run(main)
