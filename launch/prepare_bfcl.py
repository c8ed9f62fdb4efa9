"""Writes BFCL's single-turn tasks and demonstrations of their gold calls: training and held-out, as JSONL.

pip install --no-deps bfcl-eval
python launch/prepare_bfcl.py --model=runs/smollm2/base --prompt_tokens=512 --output=runs/smollm2/data
"""

import json
import pathlib
import sys

from absl import app, flags

from slca_jax.chat.template import load_template
from slca_jax.data import bfcl
from slca_jax.data.tasks import write_dialogues, write_tasks
from slca_jax.errors import Refused

_FOLDER = flags.DEFINE_string('folder', '', "BFCL's data folder; that of the installed package if empty.")
_OUTPUT = flags.DEFINE_string('output', None, 'The folder to write to.', required=True)
_CATEGORIES = flags.DEFINE_list('categories', list(bfcl.NON_LIVE), 'Which categories to read.')
_HELDOUT = flags.DEFINE_float('heldout', 0.2, 'Share that is held out.', lower_bound=0.0, upper_bound=1.0)
_SEED = flags.DEFINE_integer('seed', 0, 'Seed of the split.')
_MODEL = flags.DEFINE_string('model', '', 'Checkpoint whose chat template measures the prompts.')
_TOKENS = flags.DEFINE_integer('prompt_tokens', 512, 'With --model: tasks with a longer prompt are left out.')


def main(arguments: list[str]) -> None:
  """Reads, splits and writes, and prints how many tasks each file holds."""
  if len(arguments) > 1:
    raise app.UsageError(f'unknown arguments {arguments[1:]}')
  try:
    tasks = bfcl.read_bfcl(bfcl.data_folder(_FOLDER.value), _CATEGORIES.value)
    sides = bfcl.split(tasks, heldout=_HELDOUT.value, seed=_SEED.value)
    if _MODEL.value:
      template = load_template(_MODEL.value)
      fits = lambda task: len(template.prompt(task.messages, task.tools)) <= _TOKENS.value
      sides = tuple(list(filter(fits, side)) for side in sides)
    output = pathlib.Path(_OUTPUT.value)
    output.mkdir(parents=True, exist_ok=True)
    for name, side in zip(('train', 'heldout'), sides, strict=True):
      write_tasks(side, output / f'tasks_{name}.jsonl')
      write_dialogues(map(bfcl.demonstrate, side), output / f'dialogues_{name}.jsonl')
    print(json.dumps({'read': len(tasks), 'train': len(sides[0]), 'heldout': len(sides[1])}))
  except (Refused, OSError) as error:
    sys.exit(f'{type(error).__name__}: {error}')


if __name__ == '__main__':
  app.run(main)
