"""A run folder with two small cases in which a unified reward pays for the wrong calls: what the report is shown by.

The first group is the paper's: two prices are asked for. Rollout 1 searches first and then asks for one price after the
other, so its calls are worth 0.65 where one step with both is worth 1.0; but the judge likes its answer best.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable

from slca_jax import blocking
from slca_jax.chat.calls import parse
from slca_jax.chat.template import Template
from slca_jax.config import as_dict
from slca_jax.data.folders import write_json
from slca_jax.dialogue import (
  Dialogue,
  Message,
  Observation,
  Scores,
  Status,
  Steps,
  Task,
  Tool,
  ToolCall,
  Trajectory,
  Turn,
)
from slca_jax.quickstart.tokenizer import tokenizer_of
from slca_jax.rewards.judge import Verdict, verdict_of
from slca_jax.rewards.protocols import score
from slca_jax.train.dumps import dump
from slca_jax.train.settings import RLConfig

_PIECES = r'[A-Z]?[a-z]+|[A-Z]+|\d+'
_TEXT = {'type': 'string'}
_PRICES = {'AAPL': 232.15, 'MSFT': 428.9}


def _tool(name: str, description: str, key: str) -> Tool:
  schema = {'type': 'object', 'properties': {key: _TEXT}, 'required': [key], 'additionalProperties': False}
  return Tool(name, description, schema)


_TOOLS = (
  _tool('get_stock_price', 'Get the latest price of a stock.', 'symbol'),
  _tool('search_company_info', 'Find what is known of a company.', 'company'),
)


@dataclasses.dataclass(frozen=True, slots=True)
class Script:
  """A rollout to act out: what is called step by step, the answer, and what the judge says of it."""

  steps: Steps
  answer: str
  rating: float
  reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Judge:
  verdict: Verdict

  async def rate(self, trajectory: Trajectory, *, seed: int) -> Verdict:
    """The verdict of the script."""
    return self.verdict


def price(symbol: str) -> ToolCall:
  """A call for the price of a stock."""
  return ToolCall('get_stock_price', {'symbol': symbol})


def paper_case() -> tuple[Task, list[Script]]:
  """SLCA-GRPO (arXiv:2609.29050), D.4, in a group of four: process scores 0.65, 1, 1, 0.9, judge 1, 0.25, 0.5, 0.25."""
  task = Task(
    'two_prices',
    _TOOLS,
    (Message('user', 'What do Apple and Microsoft shares cost right now?'),),
    gold=((price('AAPL'), price('MSFT')),),
    facts=('232.15', '428.9'),
  )
  apple, microsoft = price('AAPL'), price('MSFT')
  search = ToolCall('search_company_info', {'company': 'Apple'})
  full = 'Apple stands at 232.15 dollars a share, Microsoft at 428.9. Both are the latest prices.'
  return task, [
    Script(((search,), (apple,), (microsoft,)), full, 1.0, 'Both prices, well put and complete.'),
    Script(((apple, microsoft),), 'They cost 232.15.', 0.25, 'Only one price, and not said of which share.'),
    Script(((apple, microsoft),), 'AAPL 232.15, MSFT 428.9.', 0.5, 'Both prices, but hardly a sentence.'),
    Script(((apple, price('MFST')),), 'Apple costs 232.15. The other one I cannot say.', 0.25, 'One of two prices.'),
  ]


def omission_case() -> tuple[Task, list[Script]]:
  """A group in which one rollout answers without the call that it needs, and the omission guard steps in."""
  task = Task(
    'one_price',
    _TOOLS,
    (Message('user', 'What does a Microsoft share cost?'),),
    gold=((price('MSFT'),),),
    facts=('428.9',),
  )
  made = (price('MSFT'),)
  return task, [
    Script((made,), 'A Microsoft share costs 428.9 dollars.', 1.0, 'Right and clear.'),
    Script((made,), 'It is 428.9.', 0.75, 'Right, a little short.'),
    Script((), 'Microsoft shares cost about 400 dollars, I believe.', 0.5, 'Sounds fine, but nothing supports it.'),
    Script((made, made), 'The price is 428.9 dollars, checked twice.', 0.75, 'Right.'),
  ]


def write_example(folder: pathlib.Path) -> None:
  """Writes the run: settings, tokenizer, two groups of rollouts with their scores, and no numbers of any training."""
  folder.mkdir(parents=True, exist_ok=True)
  cases = [paper_case(), omission_case()]
  spoken = [Dialogue(task.id, task.tools, _messages(task, script)) for task, scripts in cases for script in scripts]
  tokenizer = tokenizer_of(spoken, vocab_size=480, pieces=_PIECES)
  tokenizer.save_pretrained(str(folder / 'model'))
  template = Template(tokenizer)
  acted = [
    (act(task, script, group=group, index=index, template=template), script)
    for group, (task, scripts) in enumerate(cases)
    for index, script in enumerate(scripts)
  ]
  scores = [blocking.run(rated(trajectory, script)) for trajectory, script in acted]
  write_json(folder / 'config.json', as_dict(RLConfig(output=str(folder), group_size=4, prompts=2, mini_batch=2)))
  dump(folder / 'rollouts' / 'step_000001', [trajectory for trajectory, _ in acted], scores)


def act(
  task: Task,
  script: Script,
  *,
  group: int,
  index: int,
  template: Template,
  world: Callable[[ToolCall], Observation] | None = None,
) -> Trajectory:
  """The rollout of a script in a world, the example's if None; log-probs are made up."""
  world = world or answered
  turns = []
  for step in (*script.steps, ()):
    said = Message('assistant', '' if step else script.answer, step)
    tokens = template.turn(said)
    text = template.decode(tokens)
    seen = tuple(map(world, step))
    reply = template.reply(seen, tokens) if seen else ()
    logps = tuple(-((7 * token + place) % 23) / 40 for place, token in enumerate(tokens))
    turns.append(Turn(tokens, logps, text, parse(text), seen, reply, ((0, len(tokens)),)))
  prompt = template.prompt(task.messages, task.tools)
  return Trajectory(task, group, index, prompt, tuple(turns), Status.FINISHED)


async def rated(trajectory: Trajectory, script: Script) -> Scores:
  """Its rewards under SLCA's protocol, with the script's judge."""
  return await score(trajectory, _Judge(verdict_of(script.rating, script.reason)))


def _messages(task: Task, script: Script) -> tuple[Message, ...]:
  turns = [
    m
    for step in script.steps
    for m in (Message('assistant', '', step), *(Message('tool', answered(c).content) for c in step))
  ]
  return (*task.messages, *turns, Message('assistant', script.answer))


def answered(call: ToolCall) -> Observation:
  """What the example's world answers."""
  if call.name == 'search_company_info':
    return Observation(json.dumps({'company': call.arguments['company'], 'sector': 'technology'}))
  symbol = call.arguments['symbol']
  if symbol not in _PRICES:
    return Observation(f'Error: no share is traded as {symbol}.', ok=False)
  return Observation(json.dumps({'symbol': symbol, 'price': _PRICES[symbol]}))
