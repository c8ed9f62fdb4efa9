"""Candidate sets of exactly K tools: how a policy fares as the tools on offer grow in number or in likeness.

Gold tools always stay. A smaller set is filled up with distractors from a global pool, drawn at random or, hard,
nearest to the gold tools; a larger one loses others. The draws of a task depend on (seed, task id) alone, and a smaller
K takes the first of what a larger K takes: two sizes differ by what was added and by nothing else.

SLCA-GRPO (arXiv:2609.29050), appendix C.6.
"""

import collections
import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from slca_jax.chat.schema import compile_tool
from slca_jax.config import require
from slca_jax.data.formats.row import GOLD, UNKNOWN
from slca_jax.dialogue import Task, Tool
from slca_jax.errors import DataError, SchemaError

Strategy = Literal['random', 'hard']
Embed = Callable[[Sequence[str]], np.ndarray]
_BLOCK = 512  # tools that are compared with the whole pool at once


@dataclasses.dataclass(frozen=True, slots=True)
class Rules:
  """How candidate sets are made.

  Attributes:
    floor: least cosine similarity of a hard distractor to a gold tool; where too few reach it, the set is filled up
      with random ones, which are counted.
    twins: tools alike in all but their name may stand beside each other. Whoever calls a gold tool's twin is right but
      scored as wrong, so they are left out unless asked for.
    shuffle: the tools of a set come in random order, so that a tool's place does not tell whether it is gold.
    seed: of all draws.
  """

  floor: float = -1.0
  twins: bool = False
  shuffle: bool = True
  seed: int = 0

  def __post_init__(self):
    require(-1 <= self.floor <= 1, f'floor is {self.floor}; a cosine lies between -1 and 1')


class Unfit(DataError):
  """A task that has no candidate set of the size that was asked for. `reason` is a word for counters."""

  def __init__(self, reason: str, message: str):
    super().__init__(message)
    self.reason = reason


@dataclasses.dataclass(frozen=True)
class Pool:
  """Tools that distractors are drawn from, no two of one name.

  Attributes:
    contents: of each tool, what it is apart from its name.
    dropped: how many distinct tools were left out: 'clash', another has their name; 'twin', another differs in nothing
      but its name; 'schema', no call to them could be checked.
  """

  tools: tuple[Tool, ...]
  contents: tuple[str, ...]
  dropped: Mapping[str, int]


def gather(tools: Iterable[Tool], *, twins: bool = False) -> Pool:
  """The pool of some tools. Of those with one name, or (unless `twins`) alike in all but the name, the first stays."""
  kept: dict[str, tuple[Tool, str]] = {}
  seen, contents, dropped = set[tuple[str, str]](), set[str](), collections.Counter[str]()
  for tool in tools:
    content = content_of(tool)
    if (tool.name, content) in seen:
      continue
    seen.add((tool.name, content))
    if tool.name in kept:
      dropped['clash'] += 1
    elif content in contents and not twins:
      dropped['twin'] += 1
    elif not _is_usable(tool):
      dropped['schema'] += 1
    else:
      kept[tool.name] = tool, content
      contents.add(content)
  return Pool(tuple(tool for tool, _ in kept.values()), tuple(content for _, content in kept.values()), dropped)


def content_of(tool: Tool) -> str:
  """What a tool is apart from its name; without a description its name is all that tells, and belongs to it."""
  return json.dumps([tool.description.strip() or {'name': tool.name}, tool.parameters], sort_keys=True, default=str)


def text_of(tool: Tool) -> str:
  """The text whose embedding stands for the tool."""
  return f'{tool.name}: {tool.description}'


@dataclasses.dataclass(frozen=True)
class Neighbours:
  """For each of some texts the tools of a pool that are most like it, best first; U texts, M neighbours.

  Attributes:
    rows: which row is a text's.
    index_UM: places in the pool.
    cosine_UM: similarities, falling along each row.
  """

  rows: Mapping[str, int]
  index_UM: np.ndarray
  cosine_UM: np.ndarray

  def near(self, texts: Iterable[str]) -> list[tuple[int, float]]:
    """(place in the pool, cosine to the nearest of the texts), best first; exact for the first M."""
    best: dict[int, float] = {}
    for row in {self.rows[text] for text in texts}:
      for index, cosine in zip(self.index_UM[row].tolist(), self.cosine_UM[row].tolist(), strict=True):
        best[index] = max(cosine, best.get(index, cosine))
    return sorted(best.items(), key=lambda item: (-item[1], item[0]))


def nearest(tools: Iterable[Tool], pool: Pool, embed: Embed, *, count: int) -> Neighbours:
  """The `count` tools of the pool nearest to each of the tools, by the cosine of their embeddings.

  Every distinct text is embedded once, in one call; the cosines are products of blocks with the whole pool.
  """
  texts = list(dict.fromkeys(map(text_of, tools)))
  ours = [text_of(tool) for tool in pool.tools]
  place = {text: i for i, text in enumerate(dict.fromkeys([*ours, *texts]))}
  vector_ND = np.asarray(embed(list(place)), np.float32)
  vector_ND = vector_ND / np.maximum(np.linalg.norm(vector_ND, axis=1, keepdims=True), 1e-12)
  pool_ND, text_UD = vector_ND[[place[text] for text in ours]], vector_ND[[place[text] for text in texts]]
  count = min(count, len(ours))
  index_UM, cosine_UM = np.zeros((len(texts), count), np.int32), np.zeros((len(texts), count), np.float32)
  for start in range(0, len(texts), _BLOCK):
    part = slice(start, start + _BLOCK)
    cosine_UN = text_UD[part] @ pool_ND.T
    top = np.argpartition(-cosine_UN, count - 1, axis=1)[:, :count]
    top.sort(axis=1)  # so that equals come in the pool's order
    order = np.argsort(-np.take_along_axis(cosine_UN, top, 1), axis=1, kind='stable')
    index_UM[part] = np.take_along_axis(top, order, 1)
    cosine_UM[part] = np.take_along_axis(cosine_UN, index_UM[part], 1)
  return Neighbours({text: i for i, text in enumerate(texts)}, index_UM, cosine_UM)


def anchors(task: Task) -> tuple[Tool, ...]:
  """The tools that hard distractors resemble: the gold ones; for a task that needs none, all it has."""
  gold = {call.name for step in task.gold for call in step}
  return tuple(tool for tool in task.tools if tool.name in gold) or task.tools


def candidates(
  task: Task, size: int, pool: Pool, *, rules: Rules, neighbours: Neighbours | None = None
) -> tuple[tuple[Tool, ...], int]:
  """(a set of `size` tools with all gold ones, how many of them had to be drawn at random though hard were asked for).

  Args:
    size: K; 0 leaves the task's own tools as they are.
    neighbours: of the anchors of all tasks, for hard distractors; None draws them at random.

  Raises:
    Unfit: the task lives in a world, whose tools nobody else can add to; gold is not known, not among the task's tools
      or more than `size`; or the pool has too few other tools.
  """
  if size == 0:
    return task.tools, 0
  if task.blueprint:
    raise Unfit(
      'blueprint', f'task {task.id} lives in the world {task.blueprint!r}, which executes no tools but its own'
    )
  gold = _gold(task)
  if len(gold) > size:
    raise Unfit('gold_over_k', f'task {task.id} has {len(gold)} gold tools, which do not fit into K = {size}')
  filled = 0
  if len(task.tools) >= size:
    others = [tool.name for tool in task.tools if tool.name not in gold]
    _random(rules, task, 'contraction').shuffle(others)
    stay = gold | set(others[: size - len(gold)])
    tools = [tool for tool in task.tools if tool.name in stay]
  else:
    added = list(itertools.islice(_distractors(task, pool, rules, neighbours), size - len(task.tools)))
    tools = [*task.tools, *(tool for tool, _ in added)]
    filled = sum(not near for _, near in added) if neighbours else 0
  if len(tools) < size:
    raise Unfit('pool_short', f'task {task.id}: the pool has tools for a set of {len(tools)}, not of K = {size}')
  if rules.shuffle:
    _random(rules, task, f'order/{size}').shuffle(tools)
  return tuple(tools), filled


@dataclasses.dataclass
class Tally:
  """What became of the tasks at one K: those read, those skipped by reason, and the prompts of those kept."""

  strategy: Strategy
  size: int
  samples: int = 0
  skipped: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
  filled: int = 0
  lengths: list[int] = dataclasses.field(default_factory=list)
  longest: int = 0  # of all prompts, those that were too long included


def expand(
  tasks: Iterable[Task],
  pool: Pool,
  tally: Tally,
  *,
  measure: Callable[[Task], int],
  limit: int,
  rules: Rules,
  neighbours: Neighbours | None = None,
) -> Iterator[Task]:
  """The tasks with `tally.size` candidates each, without those that have no such set or outgrow the context.

  Args:
    tally: is filled in as tasks are taken.
    measure: tokens of a task's prompt.
    limit: most tokens of a prompt.
  """
  for task in tasks:
    tally.samples += 1
    try:
      tools, filled = candidates(task, tally.size, pool, rules=rules, neighbours=neighbours)
    except Unfit as error:
      tally.skipped[error.reason] += 1
      continue
    made = dataclasses.replace(task, tools=tools)
    length = measure(made)
    tally.longest = max(tally.longest, length)
    if length > limit:
      tally.skipped['context'] += 1
      continue
    tally.lengths.append(length)
    tally.filled += filled
    yield made


def _gold(task: Task) -> set[str]:
  if task.meta.get(GOLD) == UNKNOWN:
    raise Unfit('gold_unknown', f'task {task.id}: nobody says which tools are gold, so none can be kept')
  gold = {call.name for step in task.gold for call in step}
  missing = gold - {tool.name for tool in task.tools}
  if missing:
    raise Unfit('gold_missing', f'task {task.id}: its gold calls {sorted(missing)}, which it does not offer')
  return gold


def _distractors(task: Task, pool: Pool, rules: Rules, neighbours: Neighbours | None) -> Iterator[tuple[Tool, bool]]:
  """(tool, whether it is near to an anchor) of the pool in the order of preference, without the task's own."""
  names = {tool.name for tool in task.tools}
  contents = set() if rules.twins else {content_of(tool) for tool in task.tools}
  ranked = neighbours.near(map(text_of, anchors(task))) if neighbours else []
  near = ((index, True) for index, cosine in ranked if cosine >= rules.floor)
  far = ((index, False) for index in _shuffled(len(pool.tools), _random(rules, task, 'distractors')))
  taken = set[int]()
  for index, is_near in itertools.chain(near, far):
    tool = pool.tools[index]
    if index not in taken and tool.name not in names and pool.contents[index] not in contents:
      taken.add(index)
      yield tool, is_near


def _shuffled(count: int, rng: random.Random) -> Iterator[int]:
  """range(count) in random order, at the cost of what is taken of it (Fisher and Yates, sparse)."""
  moved: dict[int, int] = {}
  for last in range(count - 1, -1, -1):
    place = rng.randrange(last + 1)
    yield moved.get(place, place)
    moved[place] = moved.get(last, last)


def _random(rules: Rules, task: Task, purpose: str) -> random.Random:
  return random.Random(f'{rules.seed}/{task.id}/{purpose}')


def _is_usable(tool: Tool) -> bool:
  try:
    compile_tool(tool)
  except SchemaError:
    return False
  return True
