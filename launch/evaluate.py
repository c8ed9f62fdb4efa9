"""Evaluates a policy on held-out tasks, or sets evaluations beside each other. The same command again goes on.

python launch/evaluate.py --config=configs/evaluate.py --config.model.path=MODEL --config.tasks=heldout.jsonl
python launch/evaluate.py --compare=runs/evaluate_a,runs/evaluate_b
python launch/evaluate.py --average=runs/seed0,runs/seed1,runs/seed2

BFCL and τ²-bench: docs/evaluation.md. All settings: slca_jax/evals/settings.py.
"""

import pathlib
import sys

from absl import app, flags, logging
from ml_collections import config_flags
from overrides import parsed

from slca_jax.config import build
from slca_jax.errors import Ended, Refused
from slca_jax.evals import summary, tables
from slca_jax.evals.settings import EvaluateConfig
from slca_jax.evals.which import evaluate

_CONFIG = config_flags.DEFINE_config_file('config', 'configs/evaluate.py', 'What to evaluate.', lock_config=True)
_COMPARE = flags.DEFINE_list('compare', [], 'Two outputs of evaluations: how much better does the second do?')
_AVERAGE = flags.DEFINE_list('average', [], 'Outputs of evaluations: mean and deviation over them.')


def main(arguments: list[str]) -> None:
  """Checks the settings before anything heavy is imported, then evaluates and prints the tables."""
  if len(arguments) > 1:
    raise app.UsageError(f'unknown arguments {arguments[1:]}; settings are given as --config.KEY=VALUE')
  if _COMPARE.value and len(_COMPARE.value) != 2:
    raise app.UsageError(f'--compare takes two folders, FIRST,SECOND; it was given {_COMPARE.value}')
  logging.set_verbosity(logging.WARNING)  # libraries below tell every file they write
  try:
    config = build(EvaluateConfig, _CONFIG.value)
    if _COMPARE.value:
      first, second = map(pathlib.Path, _COMPARE.value)
      found = summary.compare(first, second, config.intervals)
      print(tables.write(second, f'against_{first.name}', found), end='')
    elif _AVERAGE.value:
      found = [summary.average([pathlib.Path(folder) for folder in _AVERAGE.value])]
      print(tables.write(pathlib.Path(config.output), 'average', found), end='')
    else:
      evaluate(config)
      print((pathlib.Path(config.output) / 'table.md').read_text('utf-8'), end='')
  except (Ended, Refused) as error:
    sys.exit(f'{type(error).__name__}: {error}')


if __name__ == '__main__':
  app.run(main, flags_parser=parsed)
