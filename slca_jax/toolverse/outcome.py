"""What came of a server whose tools were to become an environment."""

import dataclasses
from collections.abc import Mapping

from slca_jax.toolverse.blueprint import Blueprint


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
  """An environment, or why there is none.

  Attributes:
    blueprint: the environment, None if the server was dropped.
    reason: why it was dropped.
    left_out: for each tool that is not in the environment, why.
    cost: tokens asked and answered and their price, where a model was asked.
  """

  server: str
  blueprint: Blueprint | None
  reason: str = ''
  left_out: Mapping[str, str] = dataclasses.field(default_factory=dict)
  cost: Mapping[str, float] = dataclasses.field(default_factory=dict)
