"""What a run watches of itself, and from where on it warns. No JAX here."""

import dataclasses

from slca_jax.config import require


@dataclasses.dataclass(frozen=True, slots=True)
class Tracing:
  """Which steps are traced to `trace` in the run's folder; a traced step takes longer, and megabytes on disk.

  Attributes:
    steps: numbers of steps, the first being 1 and compiling much.
    every: steps between traces, 0 for none beside those of `steps`.
  """

  steps: tuple[int, ...] = ()
  every: int = 0

  def __post_init__(self):
    require(all(step > 0 for step in self.steps), f'steps is {self.steps}; the first step is 1')
    require(self.every >= 0, f'every is {self.every}; it counts steps, 0 never traces')

  def due(self, step: int) -> bool:
    """Whether this step is to be traced."""
    return step in self.steps or bool(self.every and step % self.every == 0)


@dataclasses.dataclass(frozen=True, slots=True)
class Diagnostics:
  """Measurements that cost something, and the limits of alarms; an alarm changes nothing but what is logged.

  Attributes:
    every: steps between measurements of the two segments' gradients, which take two more backward passes over one
      micro-batch and the memory of one more set of gradients; 0 never measures.
    window: steps that smoothed values and the deviation of the gradient's norm are taken over.
    quiet: steps without another warning of the same kind.
    entropy: least mean −log π of sampled tokens, in nats, over a whole window.
    kl: most divergence from the reference, in nats per token, in any step.
    dead_groups: most of the groups whose rewards of a segment are all equal, as a share.
    judge_failures: most of the verdicts that could not be had, as a share.
    failed_rollouts: most of the rollouts that an engine or a world failed, as a share.
    sampler_kl: most divergence of the trainer's policy from what the engine sampled with, in nats per token.
  """

  every: int = 0
  window: int = 10
  quiet: int = 20
  entropy: float = 0.005
  kl: float = 0.5
  dead_groups: float = 0.5
  judge_failures: float = 0.05
  failed_rollouts: float = 0.05
  sampler_kl: float = 0.01

  def __post_init__(self):
    require(self.every >= 0, f'every is {self.every}; it counts steps, 0 never measures')
    require(self.window >= 2, f'window is {self.window}; a deviation needs at least 2 steps')
    require(self.quiet >= 1, f'quiet is {self.quiet}; 1 warns at every step')
    for name in ('entropy', 'kl', 'sampler_kl'):
      require(getattr(self, name) >= 0, f'{name} is {getattr(self, name)}; it is at least 0')
    for name in ('dead_groups', 'judge_failures', 'failed_rollouts'):
      require(0 <= getattr(self, name) <= 1, f'{name} is {getattr(self, name)}; it is a share in [0, 1]')
