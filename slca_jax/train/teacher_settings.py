"""Settings of the synthesis of environments with a teacher that tries their tasks. No JAX here."""

import dataclasses
from typing import Literal

from slca_jax.config import require
from slca_jax.rollout.settings import Decoding
from slca_jax.toolverse.filters import Band
from slca_jax.toolverse.run import ToolverseConfig
from slca_jax.train.settings import MeshShape, Model, RolloutSettings


@dataclasses.dataclass(frozen=True, slots=True)
class TeacherSettings:
  """Who tries tasks, how, and which are kept.

  Attributes:
    model: the teacher's checkpoint; without `model.path` there is no teacher. Servers answer with the weights that they
      were started with, so of the checkpoint only the tokenizer is read then.
    rollout: the engine, how it samples, and where an attempt is stopped.
    band: how many attempts, and how many of them must and may succeed.
    success: 'state' is the golden trace's final database, everything that the world answers there, and the facts asked
      for; 'trace' is every golden turn covered by the attempt's turn of the same number.
    seed: of the attempts.
  """

  model: Model = dataclasses.field(default_factory=Model)
  mesh: MeshShape = dataclasses.field(default_factory=MeshShape)
  rollout: RolloutSettings = dataclasses.field(
    default_factory=lambda: RolloutSettings(decoding=Decoding(temperature=0.7))
  )
  band: Band = dataclasses.field(default_factory=Band)
  success: Literal['state', 'trace'] = 'state'
  seed: int = 0

  def __post_init__(self):
    greedy = self.rollout.decoding.temperature == 0
    require(
      not greedy or self.band.attempts == 1,
      f'rollout.decoding.temperature is 0 and band.attempts {self.band.attempts}; greedy attempts are all alike, so '
      'make 1 or sample',
    )


@dataclasses.dataclass(frozen=True, slots=True)
class SynthesizeConfig(ToolverseConfig):
  """How environments and tasks are made, and who tries them.

  Attributes:
    teacher: whose attempts say which tasks are kept.
  """

  teacher: TeacherSettings = dataclasses.field(default_factory=TeacherSettings)
