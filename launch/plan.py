"""Says whether a run fits chips that nobody has rented yet, by compiling its own programs for them on this machine.

python launch/plan.py --config=configs/rl.py:slca --model=qwen2.5-7b --topology=v5p:2x2x4,v6e:4x4,v5e:4x4
python launch/plan.py --config=configs/rl.py:slca --config.model.path=MODEL --topology=gpu --prompts=shared

Needs libtpu for TPUs (pip install -e '.[plan]'). A compile takes minutes of a core and about 2 GiB of memory. Writes
plan.json and plan.md to --output; exits with 3 if anything that was asked for does not fit.
"""

import pathlib
import sys

from absl import app, flags
from ml_collections import config_flags
from overrides import parsed

from slca_jax.config import build
from slca_jax.errors import Refused
from slca_jax.nn.hf_config import read_config
from slca_jax.nn.presets import PRESETS, preset
from slca_jax.train import chips
from slca_jax.train.settings import RLConfig

_CONFIG = config_flags.DEFINE_config_file('config', 'configs/rl.py:slca', 'Settings of the run.', lock_config=True)
_MODEL = flags.DEFINE_list('model', [], f'Decoders without a checkpoint: {", ".join(PRESETS)}.')
_TOPOLOGY = flags.DEFINE_list('topology', ['v6e:4x4'], 'TPU slices like v5p:2x2x4, hosts like h100:8, or gpu, cpu:8.')
_PROMPTS = flags.DEFINE_enum('prompts', 'both', ['shared', 'repeated', 'both'], 'Lay prompts out once or per response.')
_EVERY = flags.DEFINE_bool('every', False, 'Compile every sensible mesh, not only until one fits.')
_OUTPUT = flags.DEFINE_string('output', 'runs/plan', 'Folder of the report.')


def main(arguments: list[str]) -> None:
  """Plans every model on every topology, saying after each compile what was found."""
  if len(arguments) > 1:
    raise app.UsageError(f'unknown arguments {arguments[1:]}; settings are given as --config.KEY=VALUE')
  try:
    config = build(RLConfig, _CONFIG.value)
    models = {name: preset(name) for name in _MODEL.value} or {config.model.path: read_config(config.model.path)}
    chips.prepare_process(_TOPOLOGY.value)
    from slca_jax.train import plan_report

    ways = {'shared': [True], 'repeated': [False], 'both': [False, True]}[_PROMPTS.value]
    cases = [(name, target, way) for name in models for target in _TOPOLOGY.value for way in ways]
    fits = plan_report.run(models, config, cases, pathlib.Path(_OUTPUT.value), every=_EVERY.value)
  except Refused as error:
    sys.exit(f'{type(error).__name__}: {error}')
  sys.exit(0 if fits else 3)


if __name__ == '__main__':
  app.run(main, flags_parser=parsed)
