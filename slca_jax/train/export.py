"""A checkpoint of a run as a Hugging Face folder."""

import pathlib

import jax

from slca_jax.config import require
from slca_jax.errors import ConfigError
from slca_jax.train import policy
from slca_jax.train.checkpoint import Checkpoints
from slca_jax.train.device_settings import MeshShape
from slca_jax.train.settings import RLConfig, SFTConfig


def export(
  config: RLConfig | SFTConfig, run: pathlib.Path, to: pathlib.Path, *, step: int | None = None
) -> pathlib.Path:
  """Writes the weights of checkpoint `step` of the folder `run` (the newest if None) to `to`, and returns `to`.

  Raises:
    ConfigError: there is no such checkpoint, or it is of another model; or something is in `to` already, which may be
      what the run began with.
  """
  require(not to.exists(), f'{to} is there already; name another folder, or remove it')
  checkpoints = Checkpoints(run / 'checkpoints', config.checkpoint)
  try:
    if step not in (known := checkpoints.steps) and (step is not None or not known):
      wanted = 'a checkpoint' if step is None else f'checkpoint {step}'
      raise ConfigError(f'{run} does not hold {wanted}; it has {known or "none"}')
    loaded = policy.load(config.model, MeshShape())  # over the devices of this machine, not of the run's
    with jax.set_mesh(loaded.mesh):
      params = checkpoints.parameters(loaded.params, step)
      policy.save(loaded, params, to)
  finally:
    checkpoints.close()
  return to
