"""Nouns of the device half, and the legend of axis letters that every array name carries.

B rows of a batch, T tokens of a row, R rollouts, K turns (a run of sampled tokens is a turn; in `nn`: key-value heads),
C reward channels, V vocabulary, D width, F hidden width, N heads, H head size, L layers, S positions of a cache.

A row holds trees: a prompt, then its responses one after another, then perhaps another tree, then padding.

    tokens    p p p p p  a a o a   b b o o b   q q q  c c  . .
    prompt    0 0 0 0 0  0 0 0 0   0 0 0 0 0   1 1 1  1 1 -1       which prompt of this row a token hangs on
    rollout  -1-1-1-1-1  7 7 7 7   8 8 8 8 8  -1-1-1  9 9 -1       -1 on prompts and padding
    position  0 1 2 3 4  5 6 7 8   5 6 7 8 9   0 1 2  3 4  0       restarts at the prompt's end
    sampled   . . . . .  1 1 . 1   1 1 . . 1   . . .  1 1  .       drawn by the policy
    source    . . . . .  4 5 . 7   4 9 . . 12  . . . 16 17 .       whose hidden state predicts this token

The only mask rule: query q sees key k iff prompt_q = prompt_k >= 0, position_k <= position_q, and
(rollout_k = -1 or rollout_k = rollout_q).
"""

import jax
import jax.numpy as jnp
import optax
from flax import nnx, struct

from slca_jax import bits

NONE, TOOL, SUMMARY = -1, 0, 1


@struct.dataclass
class Rewards:
  """What the host knows of R rollouts. NaN says that a reward could not be had; it is never a zero.

  On the device rewards are only normalised and routed: a method's protocol decides on the host what fills them.

  Attributes:
    tool_R: process score (SLCA), action reward (ToolPO), plan reward (RLTR) or executed success; float32.
    summary_R: the judge's score in [0, 1], or the omission penalty of a guarded rollout; float32.
    outcome_R: one reward for the whole rollout: α R_tool + R_sum (GRPO) or solved/unsolved (ToolPO); float32.
    turn_RK: reward of each tool turn, NaN beyond the table; float32.
    guarded_R: the omission guard replaced the summary reward; bool.
    group_R: index of the rollout's group in [0, R), -1 for a rollout that pads the batch; int32.
  """

  tool_R: jax.Array
  summary_R: jax.Array
  outcome_R: jax.Array
  turn_RK: jax.Array
  guarded_R: jax.Array
  group_R: jax.Array


@struct.dataclass
class TokenBatch:
  """Rows of trees and the rewards of their R rollouts. `sampler_logp_BT` is what the engine reported, 0 elsewhere."""

  tokens_BT: jax.Array
  prompt_BT: jax.Array
  rollout_BT: jax.Array
  position_BT: jax.Array
  source_BT: jax.Array
  sampled_BT: jax.Array
  sampler_logp_BT: jax.Array
  finished_R: jax.Array
  rewards: Rewards


@struct.dataclass
class Segments:
  """The runs of a batch and the segment that each belongs to, as bit words (`bits.py`).

  They take 5 bits per token where arrays of numbers would take 5 bytes; `segment_BT` and `run_BT` are those arrays, and
  inside a jitted function they need not exist in memory.

  Attributes:
    tool_BW, summary_BW: tokens of the two segments.
    drawn_BW: tokens of any run; some may have been dropped from both segments.
    start_BW: first tokens of runs.
    border_BW: tokens whose rollout is not that of the token before them.
    length: T.
  """

  tool_BW: jax.Array
  summary_BW: jax.Array
  drawn_BW: jax.Array
  start_BW: jax.Array
  border_BW: jax.Array
  length: int = struct.field(pytree_node=False)

  @property
  def shape(self) -> tuple[int, int]:
    """(B, T)."""
    return self.tool_BW.shape[0], self.length

  @property
  def segment_BT(self) -> jax.Array:
    """Per token NONE, TOOL or SUMMARY; int8."""
    tool_BT, summary_BT = bits.unpack(self.tool_BW, self.length), bits.unpack(self.summary_BW, self.length)
    return jnp.where(tool_BT, jnp.int8(TOOL), jnp.where(summary_BT, jnp.int8(SUMMARY), jnp.int8(NONE)))

  @property
  def run_BT(self) -> jax.Array:
    """Per token the index of its run inside its rollout, -1 where nothing was sampled; int32."""
    count_BT = bits.counts(self.start_BW, self.border_BW, self.length)
    return jnp.where(bits.unpack(self.drawn_BW, self.length), count_BT - 1, -1)


@struct.dataclass
class Experience:
  """A batch ready for updates: everything that stays fixed while the policy moves."""

  batch: TokenBatch
  segments: Segments
  advantage_BT: jax.Array
  old_logp_BT: jax.Array
  ref_logp_BT: jax.Array


@struct.dataclass
class TrainState:
  """What an update changes, and all that a checkpoint of the device half has to hold."""

  step: jax.Array
  params: nnx.State
  opt_state: optax.OptState
