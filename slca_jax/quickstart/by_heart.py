"""A policy that knows a few questions by heart: seconds of training give something to look at, in notebooks and tests.

    model = learn_by_heart(folder, tasks)              # a Hugging Face folder
    train(small_run(folder / 'rl', model, tasks))      # reinforcement learning from there

It has seen the efficient and the wasteful way to each answer equally often, so its rollouts of one question differ in
nothing but their calls. It generalises to nothing; the quickstart's policy does.
"""

import pathlib
from collections.abc import Sequence

import jax

from slca_jax.data.tasks import write_dialogues, write_tasks
from slca_jax.dialogue import Dialogue, Task
from slca_jax.quickstart.demonstrations import demonstrate
from slca_jax.quickstart.start import write_start
from slca_jax.rollout.settings import Layout, Limits, LocalEngine
from slca_jax.train import sft
from slca_jax.train.settings import (
  Demonstrations,
  Model,
  Objective,
  Optimizer,
  RLConfig,
  RolloutSettings,
  SFTConfig,
  TaskFiles,
)


def learn_by_heart(folder: pathlib.Path, tasks: Sequence[Task], *, seed: int = 0, steps: int = 40) -> pathlib.Path:
  """The checkpoint folder of a policy, made and trained inside `folder`, that answers these tasks of the market.

  Args:
    steps: updates; 40 suffice for two to four tasks.
  """
  write_start(folder / 'start', seed=seed, samples=60)
  shown = [
    Dialogue(f'{task.id}/{way}', task.tools, demonstrate(task, efficient=way == 'efficient'))
    for task in tasks
    for way in ('efficient', 'wasteful')
  ]
  write_dialogues(shown, folder / 'demonstrations.jsonl')
  sft.train(
    SFTConfig(
      output=str(folder / 'sft'),
      seed=seed,
      steps=steps,
      batch=8,
      logprob_chunk=64,
      model=_plain(folder / 'start'),
      data=Demonstrations(str(folder / 'demonstrations.jsonl')),
      batching=Layout((256,), _rows()),
      optimizer=Optimizer(learning_rate=4e-3, schedule='cosine', warmup=0.03, final_fraction=0.05, b2=0.98),
    )
  )
  return folder / 'sft' / 'model'


def small_run(output: pathlib.Path, model: pathlib.Path, tasks: Sequence[Task]) -> RLConfig:
  """Settings of a short run on these tasks, all of them in each step; the file of the tasks is written beside it."""
  file = output.with_name(f'{output.name}_tasks.jsonl')
  write_tasks(tasks, file)
  return RLConfig(
    output=str(output),
    steps=6,
    prompts=len(tasks),
    mini_batch=len(tasks),
    group_size=8,
    model=_plain(model),
    data=TaskFiles(str(file)),
    rollout=RolloutSettings(
      limits=Limits(turns=6, calls=8, prompt_tokens=96, response_tokens=256, turn_tokens=48, observation_tokens=48),
      local=LocalEngine(slots=16, context=352, prefill_chunk=16, prefill_rows=16),
    ),
    objective=Objective(logprob_chunk=64),
    optimizer=Optimizer(learning_rate=3e-4),
    batching=Layout((512,), _rows()),
  )


def _plain(path: pathlib.Path) -> Model:
  return Model(str(path), dtype='float32', remat='none')


def _rows() -> int:
  """Four rows are computed at once, or as many more as the devices need to have equal parts of them."""
  return -(-4 // jax.device_count()) * jax.device_count()
