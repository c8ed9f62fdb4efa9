"""Writes tasks with candidate sets of K tools, random and hard, and how long their prompts are.

python launch/ksweep.py --config=configs/ksweep.py --config.input=TASKS.jsonl --config.pool=MORE_TOOLS.jsonl

All settings: slca_jax/data/ksweep_run.py.
"""

import pathlib
import sys

from absl import app, logging
from ml_collections import config_flags
from overrides import parsed

from slca_jax.chat.template import load_template
from slca_jax.config import build, require
from slca_jax.data.ksweep_run import KSweepConfig, run
from slca_jax.errors import Refused

_CONFIG = config_flags.DEFINE_config_file('config', 'configs/ksweep.py', 'Settings of the sweep.', lock_config=True)


def main(arguments: list[str]) -> None:
  """Checks the settings, loads the template and, for hard distractors, the embedding model, and prints the report."""
  if len(arguments) > 1:
    raise app.UsageError(f'unknown arguments {arguments[1:]}; settings are given as --config.KEY=VALUE')
  logging.set_verbosity(logging.WARNING)
  try:
    config = build(KSweepConfig, _CONFIG.value)
    require(pathlib.Path(config.input).is_file(), f'input is {config.input!r}; there is no such file of tasks')
    template = load_template(config.template, options=config.template_options)
    measure = lambda task: template.prompt_length(task.messages, task.tools)
    print(run(config, measure=measure, embed=lambda texts: _embedder(config)(texts)), end='')
  except (Refused, OSError) as error:
    sys.exit(f'{type(error).__name__}: {error}')


def _embedder(config: KSweepConfig):
  from slca_jax.nn.embedder import load_embedder  # random distractors need no JAX
  from slca_jax.train.policy import resolve

  return load_embedder(resolve(config.embedder), batch_tokens=config.embed_tokens)


if __name__ == '__main__':
  app.run(main, flags_parser=parsed)
