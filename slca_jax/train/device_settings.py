"""Settings of what lies on the devices: network, mesh, reference, optimiser. No JAX here."""

import dataclasses
from typing import Any, Literal

from slca_jax.config import require
from slca_jax.nn.config import Backend, Dtype, Remat, check_block

Placement = Literal['device', 'host']


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
  """Where the weights come from and how they are computed with.

  Attributes:
    path: a Hugging Face folder, or a hub name, which is downloaded.
    dtype: of activations.
    param_dtype: of the trained weights; see `optimizer.master` for less than float32.
    remat: what the backward pass recomputes: 'none', 'full' layers, layers without 'attention' (which long rows spend
      much of their time in, and which takes as much memory as the layers' inputs), or all but matrix products, 'dots'.
    attention: the attention backend, 'auto' chooses by platform and length.
    attention_block: tokens of a block of queries and of keys: a multiple of 128 for 'splash', a power of two from 16 on
      for 'triton', any number for 'blocks'; None for the backend's own choice. 'dense' has none.
    template: options for the chat template, such as enable_thinking.
  """

  path: str = ''
  dtype: Dtype = 'bfloat16'
  param_dtype: Dtype = 'float32'
  remat: Remat = 'full'
  attention: Backend = 'auto'
  attention_block: int | None = None
  template: dict[str, Any] = dataclasses.field(default_factory=dict)

  def __post_init__(self):
    check_block(self.attention, self.attention_block)

  @property
  def numerics(self) -> dict[str, Any]:
    """The fields of a `TransformerConfig` that are a run's to choose, and not the checkpoint's."""
    return {name: getattr(self, name) for name in ('dtype', 'param_dtype', 'remat', 'attention', 'attention_block')}


@dataclasses.dataclass(frozen=True, slots=True)
class MeshShape:
  """Devices along each axis of the mesh, of all processes together; one of them may be -1, for all that are left.

  Attributes:
    data: copies of the weights, each with its own rows.
    fsdp: parts of each weight; rows are spread over them as well.
    tensor: parts of heads, hidden units and vocabulary. Rows are never split, so there is no axis for sequences.
  """

  data: int = 1
  fsdp: int = -1
  tensor: int = 1

  def __post_init__(self):
    sizes = {name: getattr(self, name) for name in self.__slots__}
    require(
      all(size > 0 or size == -1 for size in sizes.values()), f'sizes are {sizes}; each is positive, or -1 for the rest'
    )
    require(list(sizes.values()).count(-1) <= 1, f'sizes are {sizes}; only one of them may be -1')


@dataclasses.dataclass(frozen=True, slots=True)
class Reference:
  """Where the policy stays that the divergence is measured from.

  Attributes:
    placement: 'device', sharded like the policy, or 'host': in pinned memory of the host, moved to the devices for
      its log-probs only.
  """

  placement: Placement = 'device'


@dataclasses.dataclass(frozen=True, slots=True)
class Optimizer:
  """AdamW. Defaults are the RL settings of SLCA-GRPO (arXiv:2609.29050), table 6.

  Attributes:
    learning_rate: peak rate.
    schedule: what follows the warm-up; cosine and linear end at `final_fraction` of the peak.
    warmup: share of all steps in which the rate rises from 0.
    hold: share of all steps at the peak before cosine or linear decay begins.
    clip_norm: the global gradient norm is clipped to this.
    weight_decay: decoupled, on matrices only: norms and biases are not decayed.
    master: update a float32 copy of parameters that are stored in less, and round it to them; float32 ones need none.
      Without it an update that is smaller than half a step of the stored type is lost.
    momentum_dtype: of the first moment. The second one is float32 always, or the parameters' own without a master: a
      step changes it by a thousandth, which bfloat16 does not resolve.
  """

  learning_rate: float = 1e-6
  schedule: Literal['constant', 'cosine', 'linear'] = 'constant'
  warmup: float = 0.0
  hold: float = 0.0
  final_fraction: float = 0.0
  b1: float = 0.9
  b2: float = 0.999
  eps: float = 1e-8
  weight_decay: float = 0.01
  clip_norm: float = 1.0
  master: bool = True
  momentum_dtype: Dtype = 'float32'

  def __post_init__(self):
    require(self.learning_rate > 0, f'learning_rate is {self.learning_rate}; it must be positive')
    require(0 <= self.warmup < 1, f'warmup is {self.warmup}; it is a share of all steps in [0, 1)')
    require(self.hold >= 0, f'hold is {self.hold}; it is a share of all steps')
    require(self.warmup + self.hold <= 1, f'warmup {self.warmup} + hold {self.hold} exceed the run')
    require(0 <= self.final_fraction <= 1, f'final_fraction is {self.final_fraction}; it lies in [0, 1]')
    for name in ('b1', 'b2'):
      require(0 <= getattr(self, name) < 1, f'{name} is {getattr(self, name)}; it lies in [0, 1)')
    require(self.eps > 0, f'eps is {self.eps}; a weight without a gradient needs a positive one, like 1e-8')
    require(self.weight_decay >= 0, f'weight_decay is {self.weight_decay}; it is at least 0')
    require(self.clip_norm > 0, f'clip_norm is {self.clip_norm}; it must be positive')
