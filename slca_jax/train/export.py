"""A checkpoint of a run as a Hugging Face folder."""

import pathlib

import jax

from slca_jax.errors import ConfigError
from slca_jax.nn.weights import save_hf
from slca_jax.train import optimizer, policy
from slca_jax.train.checkpoint import Checkpoints
from slca_jax.train.settings import RLConfig, SFTConfig


def export(
  config: RLConfig | SFTConfig, run: pathlib.Path, to: pathlib.Path, *, step: int | None = None
) -> pathlib.Path:
  """Writes the weights of checkpoint `step` of the folder `run` (the newest if None) to `to`, and returns `to`.

  Raises:
    ConfigError: there is no such checkpoint, or it is of another model.
  """
  checkpoints = Checkpoints(run / 'checkpoints', config.checkpoint)
  try:
    if step not in (known := checkpoints.steps) and (step is not None or not known):
      raise ConfigError(f'{run} has no checkpoint {"" if step is None else step}; it has {known or "none"}')
    loaded = policy.load(config.model, config.mesh)
    with jax.set_mesh(loaded.mesh):
      # The schedule does not change the optimiser state's structure, so any length of it restores.
      template, _ = policy.init_state(loaded.params, optimizer.make(config.optimizer, 1), loaded.mesh)
      state, _ = checkpoints.restore(template, step)
      save_hf(state.params, loaded.config, to, source=loaded.folder)
  finally:
    checkpoints.close()
  return to
