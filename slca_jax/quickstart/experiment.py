"""The quickstart: a policy from nothing through SFT, then GRPO and SLCA-GRPO under a noisy and under a biased judge.

Everything but the method is the same for both: checkpoint, tasks, seeds, budget. The world and its demonstrations are
in `world.py` and `demonstrations.py`.
"""

import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any

from slca_jax.config import as_dict, require
from slca_jax.data.folders import write_json
from slca_jax.data.tasks import write_dialogues, write_tasks
from slca_jax.dialogue import Dialogue, Task
from slca_jax.errors import Diverged
from slca_jax.nn.config import TransformerConfig
from slca_jax.quickstart import report
from slca_jax.quickstart.demonstrations import EFFICIENT_SHARE, demonstrate
from slca_jax.quickstart.start import NETWORK, write_start
from slca_jax.quickstart.world import KINDS, Kind, make_task
from slca_jax.train import rl, sft
from slca_jax.train.evaluate import evaluate
from slca_jax.train.metrics import Numbers, Stopwatch
from slca_jax.train.run import remember
from slca_jax.train.settings import Demonstrations, JudgeSettings, Method, RLConfig, SFTConfig, TaskFiles

METHODS = ('grpo', 'slca')
# What the experiment sets itself: a value in the settings would have no effect.
_OF_SFT = ('output', 'seed', 'steps', 'until', 'data')
_OF_RL = ('output', 'seed', 'method', 'judge', 'data')
Result = dict[str, float]


@dataclasses.dataclass(frozen=True, slots=True)
class Lesson:
  """A supervised run of the curriculum.

  Attributes:
    steps: most updates.
    kinds: questions asked in turn; a kind that stands twice is asked twice as often.
    efficient_share: how many of the demonstrations do not waste calls.
    until: smoothed loss at which the lesson is learned; 0 takes all steps, with the rate decaying at the end.
  """

  steps: int
  kinds: tuple[Kind, ...] = KINDS
  efficient_share: float = EFFICIENT_SHARE
  until: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class QuickstartConfig:
  """The quickstart's settings; `configs/quickstart.py` has the ones that were measured.

  Attributes:
    output: folder of everything that is made; a finished phase is not repeated.
    lessons: the curriculum of SFT; copying is learned first, on short dialogues, and the waste last.
    distinct: demonstrations of a lesson; a longer lesson shows them again.
    tasks: questions for RL.
    heldout: questions for evaluation, of combinations that no training question has.
    least_format, least_summary: what SFT must reach on held-out questions for RL to make sense.
    noisy, biased: judges of the summaries in the two regimes.
    network: the decoder that starts from random weights.
    sft, rl: settings of the runs; folders, seeds, data, models, methods and judges are the experiment's own.
  """

  output: str = 'runs/quickstart'
  seed: int = 0
  lessons: tuple[Lesson, ...] = (
    Lesson(200, ('one',), 1.0, until=0.05),
    Lesson(600, ('two', 'three', 'three', 'mixed'), 0.5, until=0.045),
    Lesson(300, ('one', 'two', 'three', 'three', 'chain', 'mixed', 'mixed')),
  )
  distinct: int = 14400
  tasks: int = 240
  heldout: int = 200
  least_format: float = 0.99
  least_summary: float = 0.9
  noisy: JudgeSettings = dataclasses.field(default_factory=lambda: JudgeSettings(noise=0.3))
  biased: JudgeSettings = dataclasses.field(default_factory=lambda: JudgeSettings(bias=0.25, bias_turns=3))
  network: TransformerConfig = NETWORK
  sft: SFTConfig = dataclasses.field(default_factory=SFTConfig)
  rl: RLConfig = dataclasses.field(default_factory=RLConfig)

  def __post_init__(self):
    for run, plain, own in (('sft', SFTConfig(), _OF_SFT), ('rl', RLConfig(), _OF_RL)):
      for name in own:
        value = getattr(getattr(self, run), name)
        require(value == getattr(plain, name), f'{run}.{name} is {value!r}; the experiment sets it, so leave it out')


def run(config: QuickstartConfig) -> dict[str, Any]:
  """Runs what is not done yet and returns what `summary.json` holds; writes curves and a report beside it.

  Raises:
    ConfigError: the folder holds phases of other settings.
    Diverged: SFT did not teach format or answers.
  """
  folder = pathlib.Path(config.output)
  folder.mkdir(parents=True, exist_ok=True)
  remember(folder, as_dict(config))
  watch = Stopwatch()
  prepare(config, folder)
  with watch('sft'):
    for number in range(len(config.lessons)):
      sft.train(sft_config(config, folder, number))
  heldout = heldout_tasks(config)
  with watch('evaluate'):
    before = evaluate(rl_config(config, folder, 'noisy', 'slca'), heldout)
  check_start(before[0], config)
  summary: dict[str, Any] = {'before': result_of(before[0])}
  shown = {'before': before}
  for regime in ('noisy', 'biased'):
    summary[regime] = {}
    for method in METHODS:
      settings = rl_config(config, folder, regime, method)
      with watch(f'{regime}/{method}'):
        rl.train(settings)
      with watch('evaluate'):
        after = evaluate(trained(settings), heldout)
      summary[regime][method] = result_of(after[0])
      shown[f'{regime}/{method}'] = after
  summary['seconds'] = {name.removeprefix('time/'): round(value, 1) for name, value in watch.read().items()}
  write_json(folder / 'summary.json', summary)
  rollouts = {name: found[1:] for name, found in shown.items()}
  report.write(folder, summary, rollouts, bias=config.biased.bias, bias_turns=config.biased.bias_turns)
  return summary


def prepare(config: QuickstartConfig, folder: pathlib.Path) -> None:
  """Writes the starting policy, the demonstrations and the tasks, unless they are there."""
  if (folder / 'tasks.jsonl').exists():
    return
  write_start(folder / 'start', seed=config.seed, network=config.network)
  for number in range(len(config.lessons)):
    write_dialogues(demonstrations(config, number), folder / f'lesson_{number + 1}.jsonl')
  write_tasks((make_task(config.seed + 1, 'train', index) for index in range(config.tasks)), folder / 'tasks.jsonl')


def demonstrations(config: QuickstartConfig, number: int) -> Iterator[Dialogue]:
  """The dialogues of a lesson, counted from 0; no two of the curriculum show the same task."""
  lesson = config.lessons[number]
  for place in range(min(config.distinct, lesson.steps * config.sft.batch)):
    kind = lesson.kinds[place % len(lesson.kinds)]
    task = make_task(config.seed, 'train', number * config.distinct + place, kind=kind)
    yield Dialogue(task.id, task.tools, demonstrate(task, efficient_share=lesson.efficient_share))


def heldout_tasks(config: QuickstartConfig) -> list[Task]:
  """The questions of every evaluation."""
  return [make_task(config.seed, 'heldout', index) for index in range(config.heldout)]


def sft_config(config: QuickstartConfig, folder: pathlib.Path, number: int) -> SFTConfig:
  """The supervised run of a lesson, from the random policy or from where the lesson before ended."""
  lesson, base = config.lessons[number], config.sft
  start = folder / 'sft' / str(number) / 'model' if number else folder / 'start'
  rule = dataclasses.replace(base.optimizer, schedule='constant', hold=0.0) if lesson.until else base.optimizer
  return dataclasses.replace(
    base,
    output=str(folder / 'sft' / str(number + 1)),
    seed=config.seed,
    steps=lesson.steps,
    until=lesson.until,
    optimizer=rule,
    model=dataclasses.replace(base.model, path=str(start)),
    data=Demonstrations(str(folder / f'lesson_{number + 1}.jsonl')),
  )


def rl_config(config: QuickstartConfig, folder: pathlib.Path, regime: str, method: str) -> RLConfig:
  """One method's run under one judge; two methods differ in nothing else."""
  return dataclasses.replace(
    config.rl,
    output=str(folder / regime / method),
    seed=config.seed,
    method=Method(method),
    judge=getattr(config, regime),
    model=dataclasses.replace(config.rl.model, path=str(folder / 'sft' / str(len(config.lessons)) / 'model')),
    data=TaskFiles(str(folder / 'tasks.jsonl')),
  )


def trained(settings: RLConfig) -> RLConfig:
  """The same run, but with the model it ended with."""
  model = dataclasses.replace(settings.model, path=str(pathlib.Path(settings.output) / 'model'))
  return dataclasses.replace(settings, model=model)


def result_of(numbers: Numbers) -> Result:
  """The few numbers of an evaluation that the summary compares."""
  names = {
    'process': 'score/total',
    'success': 'score/success',
    'summary': 'reported/summary',
    'tool_turns': 'rollout/tool_turns',
    'calls': 'rollout/calls',
    'format': 'score/format',
  }
  return {ours: round(numbers[theirs], 4) for ours, theirs in names.items()}


def check_start(numbers: Numbers, config: QuickstartConfig) -> None:
  """Raises Diverged unless the supervised policy writes calls that parse and answers that are right."""
  for name, least in (('score/format', config.least_format), ('reported/summary', config.least_summary)):
    if numbers.get(name, 0.0) < least:
      raise Diverged(
        f'after SFT the held-out {name} is {numbers.get(name, 0.0):.3f}, it must reach {least}; '
        f'lengthen the lessons or choose another seed than {config.seed}'
      )
