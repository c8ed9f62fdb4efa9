"""From stages of tools to tasks: the calls are made first, then the question is written that asks for them.

made = invert('travel', tools, dag, sampled.stages, lambda: Trial(blueprint), seed=7)
if isinstance(made, Broken): print(made.tool, made.reason)
else: tasks = made          # one, or one for each turn of the user
"""

import contextlib
import dataclasses
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from slca_jax.dialogue import Message, Observation, Task, Tool, ToolCall
from slca_jax.errors import EnvironmentFailure
from slca_jax.rewards.judge import states
from slca_jax.toolverse.arguments import Column, NoArgument, Story, columns_of
from slca_jax.toolverse.fields import Leaf, is_boilerplate, is_key, leaves, name_words, rank
from slca_jax.toolverse.graph import ToolGraph
from slca_jax.toolverse.inference import parsed
from slca_jax.toolverse.sampling import Stages
from slca_jax.toolverse.telling import settled
from slca_jax.toolverse.wording import Brief, Made, Write, asks_for, given_away, named, report, template, unstated

_DRAWS = 4  # arguments that a call may try before its trace is given up


class Live(Protocol):
  """A world that has just been opened; `toolverse.world.Trial` is one."""

  def call(self, call: ToolCall) -> Observation:
    """What the policy would see."""
    ...

  def database(self) -> Any:
    """A copy of the database as it stands."""
    ...

  def changes(self) -> list[dict[str, Any]]:
    """How the database differs from how it began."""
    ...


Open = Callable[[], contextlib.AbstractContextManager[Live]]


@dataclasses.dataclass(frozen=True, slots=True)
class Broken:
  """A trace that could not be made: the tool at which it broke, and why."""

  tool: str
  reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
  """Calls that were made, stage by stage, and what the database had become after each stage."""

  steps: tuple[tuple[Made, ...], ...]
  changes: tuple[list[dict[str, Any]], ...]

  @property
  def depth(self) -> int:
    """The longest chain of calls each of which was given a value that the one before it had answered."""
    depths: dict[str, int] = {}
    for made in (made for step in self.steps for made in step):
      sources = {argument.origin.source for argument in made.arguments.values()} & depths.keys()
      depths[made.call.name] = 1 + max((depths[source] for source in sources), default=0)
    return max(depths.values(), default=0)


def invert(
  name: str,
  tools: Sequence[Tool],
  graph: ToolGraph,
  stages: Stages,
  open_world: Open,
  *,
  seed: int | str,
  write: Write | None = None,
  turns: int = 1,
  attempts: int = 8,
) -> tuple[Task, ...] | Broken:
  """The tasks of a trace through the stages, or where the last of the attempts at one broke.

  In the order of the stages, arguments that depend on others are copied from what those answered, and those that the
  user gives are drawn from the database as it stands; the calls are made at once, so the next stage sees what they
  changed. Then the question is written for what was done.

  Args:
    name: of the blueprint; opening it is how a task is run.
    tools: all that are on offer.
    graph: acyclic; its links say what is copied.
    open_world: a fresh world, for one attempt.
    write: writes the question, such as a model does; the template does where it fails to state a value.
    turns: how many times the user speaks. Each gets a task of its own, whose dialogue holds what was done before.
    attempts: fresh worlds to try in, each with other draws.

  ToolVerse, inverse context reconstruction.
  """
  if not 1 <= turns <= max(len(stages), 1):
    raise ValueError(f'turns is {turns}; {len(stages)} stages can be told in 1 to {len(stages)}')
  broken = Broken('', 'there are no stages')
  for attempt in range(attempts if stages else 0):
    try:
      with open_world() as world:
        made = make_trace(tools, graph, stages, world, chance=random.Random(f'{seed}/{attempt}'))
    except EnvironmentFailure as error:
      return Broken('', str(error))
    if isinstance(made, Trace):
      return _tasks(name, tools, made, turns, write, seed)
    broken = made
  return broken


def make_trace(
  tools: Sequence[Tool], graph: ToolGraph, stages: Stages, world: Live, *, chance: random.Random
) -> Trace | Broken:
  """The trace of the stages in a fresh world. The arguments of a stage are all chosen before its first call is made."""
  offered = {tool.name: tool for tool in tools}
  story, database = Story(chance), world.database()
  steps, changes = [], []
  for stage in stages:
    columns = columns_of(database)
    step: list[Made] = []
    for name in stage:
      made = _made(offered[name], graph, story, columns, world)
      if isinstance(made, Broken):
        return made
      step.append(made)
    for made in step:
      story.outputs[made.call.name] = parsed(made.seen.content)
      story.keep(made.arguments)
    if any(offered[name].writes for name in stage):
      database = world.database()
    steps.append(tuple(step))
    changes.append(world.changes())
  return Trace(settled(steps), tuple(changes))


def _made(tool: Tool, graph: ToolGraph, story: Story, columns: Sequence[Column], world: Live) -> Made | Broken:
  """The call of a tool with arguments that it accepts.

  A refused call may be tried again, although a tool could have changed something before it refused: such a trace does
  not replay, and the gate drops it.
  """
  why = ''
  choices = story.choices()
  story.begin()
  for draw in range(_DRAWS):
    if draw:
      story.choose_again(choices)
    try:
      arguments = story.arguments(tool, graph.into(tool.name), columns)
    except NoArgument as error:
      return Broken(tool.name, str(error))
    call = ToolCall(tool.name, {name: argument.value for name, argument in arguments.items()})
    seen = world.call(call)
    why = _useless(tool, seen)
    if not why:
      return Made(tool, call, seen, arguments)
  return Broken(tool.name, why)


def _useless(tool: Tool, seen: Observation) -> str:
  """Why an answer is none to build on, '' if it is one."""
  if not seen.ok:
    return seen.content[:300]
  if seen.cut:
    return f'it answered more than {len(seen.content)} characters'
  output = parsed(seen.content)
  if isinstance(output, dict):
    status = str(output.get('status', '')).lower()
    if output.get('error') or output.get('success') is False or status in ('error', 'failed', 'failure', 'not_found'):
      return f'it answered {seen.content[:300]}'
  if rank(tool.name) in (0, 1) and not any(not is_boilerplate(leaf.path) for leaf in leaves(output)):
    return f'it found nothing: {seen.content[:300]}'
  return ''


def _tasks(
  name: str, tools: Sequence[Tool], trace: Trace, turns: int, write: Write | None, seed: int | str
) -> tuple[Task, ...]:
  """One task for each turn of the user; the dialogue of each goes on from that of the one before."""
  borders = [round(len(trace.steps) * turn / turns) for turn in range(turns + 1)]
  dialogue: tuple[Message, ...] = ()
  tasks = []
  for turn, (begin, end) in enumerate(itertools.pairwise(borders)):
    steps = trace.steps[begin:end]
    untold = Brief(tuple(tools), steps, dialogue, None, f'{seed}/{turn}')
    asked = _asked(steps, [template(untold), *(message.content for message in dialogue)])
    brief = dataclasses.replace(untold, asked=asked)
    text, writer = _question(brief, write)
    messages = (*dialogue, Message('user', text))
    meta = {
      'outputs': [[made.seen.content for made in step] for step in steps],
      'changes': trace.changes[end - 1],
      'depth': Trace(steps, ()).depth,
      'writer': writer,
      'turn': turn,
      'turns': turns,
    }
    gold = tuple(tuple(made.call for made in step) for step in steps)
    facts = (str(asked[1]),) if asked and asks_for(text, asked) else ()
    identity = f'{name}/{seed}' if turns == 1 else f'{name}/{seed}/{turn}'
    tasks.append(Task(identity, tuple(tools), messages, gold, None, facts, name, meta))
    dialogue = (*messages, *_played(steps), Message('assistant', report(steps, asked)))
  return tuple(tasks)


def _question(brief: Brief, write: Write | None) -> tuple[str, str]:
  """(the user's words, who wrote them)."""
  if write is not None:
    text = write(brief).strip()
    if text and not unstated(text, brief.steps) and not given_away(text, brief):
      return text, 'given'
  return template(brief), 'template'


def _asked(steps: Sequence[tuple[Made, ...]], said: Sequence[str]) -> tuple[str, Any] | None:
  """(name, value) of something new that the last step answered and a user might want to hear; None if there is none.

  Keys are what one wants to know of something new; else the first value. What was `said` before is not new.
  """
  given = {str(argument.value) for step in steps for made in step for argument in made.arguments.values()}
  for made in reversed(steps[-1]):
    new = [leaf for leaf in leaves(parsed(made.seen.content)) if _tellable(leaf) and str(leaf.value) not in given]
    new = [leaf for leaf in new if not any(states(text, str(leaf.value)) for text in said)]
    new.sort(key=lambda leaf: not is_key(name_words(leaf.path.rsplit('.', 1)[-1])))
    if new:
      return f'{" ".join(name_words(new[0].path.rsplit(".", 1)[-1]))} from "{named(made.call.name)}"', new[0].value
  return None


def _tellable(leaf: Leaf) -> bool:
  short = not isinstance(leaf.value, bool) and 0 < len(str(leaf.value)) <= 40
  return short and bool(leaf.path) and not leaf.place and not is_boilerplate(leaf.path)


def _played(steps: Sequence[tuple[Made, ...]]) -> list[Message]:
  """The steps as a dialogue tells them."""
  messages: list[Message] = []
  for step in steps:
    messages.append(Message('assistant', '', tuple(made.call for made in step)))
    messages += [Message('tool', made.seen.content) for made in step]
  return messages
