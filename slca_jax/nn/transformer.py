"""One decoder for Qwen2.5, Qwen3, Llama and SmolLM2, over rows of trees; `layers.py` samples with it over a cache."""

import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from slca_jax.nn import sharding
from slca_jax.nn.attention import attend
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.softmax import KEPT
from slca_jax.nn.visibility import Ids


def rms_norm(x: jax.Array, scale: jax.Array, eps: float) -> jax.Array:
  """x / √(mean(x²) + ε) · scale over the last axis, the statistics in float32."""
  x32 = x.astype(jnp.float32)
  return (x32 * jax.lax.rsqrt(jnp.mean(x32**2, -1, keepdims=True) + eps)).astype(x.dtype) * scale.astype(x.dtype)


def rotary_frequencies(config: TransformerConfig) -> np.ndarray:
  """Angle per position of each pair of channels: θ^(−2i/H), slow ones stretched as `rope_scaling` says."""
  exponent = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
  frequency = np.float32(1) / np.float32(config.rope_theta) ** exponent
  scaling = config.rope_scaling
  if scaling is None:
    return frequency
  turns = scaling.original_context * frequency / (2 * math.pi)
  keep = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
  keep = np.clip(keep, 0, 1)
  return (frequency * (keep + (1 - keep) / scaling.factor)).astype(np.float32)


def rotary_angles(config: TransformerConfig, position_BT: jax.Array) -> tuple[jax.Array, jax.Array]:
  """(cos, sin) of shape B, T, 1, H/2 in float32."""
  angle_BT1H = position_BT[:, :, None, None].astype(jnp.float32) * rotary_frequencies(config)
  return jnp.cos(angle_BT1H), jnp.sin(angle_BT1H)


def rotate(x_BTNH: jax.Array, angles: tuple[jax.Array, jax.Array]) -> jax.Array:
  """Rotary position embedding that pairs channel i with channel i + H/2."""
  cos, sin = angles
  a, b = jnp.split(x_BTNH.astype(jnp.float32), 2, -1)
  return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1).astype(x_BTNH.dtype)


def _param(config, rngs, shape, axes, std=None):
  """A normal parameter of the given deviation, or ones (`std=None`) or zeros (`std=0`), with its logical axes."""
  if std is None or std == 0:
    value = jnp.full(shape, 1 if std is None else 0, config.param_dtype)
  else:
    value = (std * jax.random.normal(rngs.params(), shape, jnp.float32)).astype(config.param_dtype)
  # The caller places parameters by `sharding.named_shardings`; a model can also be built without any mesh.
  return nnx.Param(value, out_sharding=axes, eager_sharding=False)


def _table(config, rngs):
  """A vector per token; the rows that pad the vocabulary are zero, as a checkpoint that lacks them loads them."""
  param = _param(config, rngs, (config.padded_vocab, config.width), ('vocab', 'embed'), 0.02)
  return param.replace(param[...].at[config.vocab :].set(0))


class Block(nnx.Module):
  """Attention and a gated feed-forward, each behind a norm and added to the stream."""

  def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
    c, self.config = config, config
    D, F, N, K, H = c.width, c.hidden, c.heads, c.kv_heads, c.head_dim
    # The stream gathers 2L contributions; this keeps its size at initialisation independent of depth.
    calm = (2 * c.layers) ** -0.5
    self.ln_attn = _param(c, rngs, (D,), (None,))
    self.w_q = _param(c, rngs, (D, N, H), ('embed', 'heads', None), D**-0.5)
    self.w_k = _param(c, rngs, (D, K, H), ('embed', 'kv_heads', None), D**-0.5)
    self.w_v = _param(c, rngs, (D, K, H), ('embed', 'kv_heads', None), D**-0.5)
    self.w_o = _param(c, rngs, (N, H, D), ('heads', None, 'embed'), (N * H) ** -0.5 * calm)
    if c.qkv_bias:
      self.b_q = _param(c, rngs, (N, H), ('heads', None), 0)
      self.b_k = _param(c, rngs, (K, H), ('kv_heads', None), 0)
      self.b_v = _param(c, rngs, (K, H), ('kv_heads', None), 0)
    if c.qk_norm:
      self.ln_q = _param(c, rngs, (H,), (None,))
      self.ln_k = _param(c, rngs, (H,), (None,))
    self.ln_mlp = _param(c, rngs, (D,), (None,))
    self.w_gate = _param(c, rngs, (D, F), ('embed', 'hidden'), D**-0.5)
    self.w_up = _param(c, rngs, (D, F), ('embed', 'hidden'), D**-0.5)
    self.w_down = _param(c, rngs, (F, D), ('hidden', 'embed'), F**-0.5 * calm)

  @jax.named_scope('attention')
  def project(self, x_BTD, angles):
    """(q_BTNH, k_BTKH, v_BTKH), queries and keys rotated."""
    c = self.config
    y_BTD = sharding.constrain_rows(rms_norm(x_BTD, self.ln_attn[...], c.eps))
    q_BTNH = jnp.einsum('BTD,DNH->BTNH', y_BTD, self.w_q[...].astype(c.dtype))
    k_BTKH = jnp.einsum('BTD,DKH->BTKH', y_BTD, self.w_k[...].astype(c.dtype))
    v_BTKH = jnp.einsum('BTD,DKH->BTKH', y_BTD, self.w_v[...].astype(c.dtype))
    if c.qkv_bias:
      q_BTNH += self.b_q[...].astype(c.dtype)
      k_BTKH += self.b_k[...].astype(c.dtype)
      v_BTKH += self.b_v[...].astype(c.dtype)
    if c.qk_norm:
      q_BTNH = rms_norm(q_BTNH, self.ln_q[...], c.eps)
      k_BTKH = rms_norm(k_BTKH, self.ln_k[...], c.eps)
    return rotate(q_BTNH, angles), rotate(k_BTKH, angles), v_BTKH

  @jax.named_scope('mlp')
  def finish(self, x_BTD, out_BTNH):
    """The stream after what attention found and after the feed-forward."""
    c = self.config
    w_o_DNH = sharding.width_first(self.w_o[...].astype(c.dtype), 'heads', None)
    x_BTD = sharding.constrain_rows(x_BTD + jnp.einsum('BTNH,DNH->BTD', out_BTNH, w_o_DNH))
    y_BTD = sharding.constrain_rows(rms_norm(x_BTD, self.ln_mlp[...], c.eps))
    gate_BTF = jnp.einsum('BTD,DF->BTF', y_BTD, self.w_gate[...].astype(c.dtype))
    up_BTF = jnp.einsum('BTD,DF->BTF', y_BTD, self.w_up[...].astype(c.dtype))
    w_down_DF = sharding.width_first(self.w_down[...].astype(c.dtype), 'hidden')
    add_BTD = jnp.einsum('BTF,DF->BTD', jax.nn.silu(gate_BTF) * up_BTF, w_down_DF)
    return sharding.constrain_rows(x_BTD + add_BTD)


class Transformer(nnx.Module):
  """The decoder. Its layers are one stacked `Block`; logits are left to the caller, who knows where they are needed."""

  def __init__(self, config: TransformerConfig, *, rngs: nnx.Rngs):
    self.config = config
    self.embed = _table(config, rngs)

    @nnx.split_rngs(splits=config.layers)
    @nnx.vmap(transform_metadata={nnx.PARTITION_NAME: None})
    def stack(rngs):
      return Block(config, rngs=rngs)

    self.blocks = stack(rngs)
    self.ln_final = _param(config, rngs, (config.width,), (None,))
    if not config.tied:
      self.unembed = _table(config, rngs)

  def __call__(
    self, tokens_BT: jax.Array, prompt_BT: jax.Array, rollout_BT: jax.Array, position_BT: jax.Array
  ) -> jax.Array:
    """hidden_BTD after the final norm, for rows of trees as `arrays.py` draws them; padding yields finite numbers."""
    chex.assert_rank(tokens_BT, 2)
    chex.assert_equal_shape([tokens_BT, prompt_BT, rollout_BT, position_BT])
    config, ids_BT = self.config, Ids(prompt_BT, rollout_BT, position_BT)
    angles = rotary_angles(config, position_BT)

    def layer(x_BTD, block):
      block, x_BTD = sharding.as_stored(block, config.dtype, skip=1), sharding.join_tokens(x_BTD)
      q_BTNH, k_BTKH, v_BTKH = block.project(x_BTD, angles)
      out_BTNH = attend(q_BTNH, k_BTKH, v_BTKH, ids_BT, backend=config.attention, block=config.attention_block)
      return sharding.part_tokens(block.finish(x_BTD, out_BTNH)), None

    remembering = _remembering(layer, config.remat)

    def body(x_BTD, block):
      # What is kept for the backward pass is this value: without a say of its own it would be kept whole.
      return remembering(sharding.constrain_parts(x_BTD), block)

    x_BTD, _ = jax.lax.scan(body, self._embed(tokens_BT), self.blocks)
    return sharding.join_tokens(rms_norm(x_BTD, self.ln_final[...], config.eps))

  def unembedding(self) -> jax.Array:
    """unembed_VD in the activations' type, without the rows that only pad the vocabulary."""
    table_VD = sharding.as_stored(self.embed if self.config.tied else self.unembed, self.config.dtype)[...]
    return table_VD[: self.config.vocab]

  def _embed(self, tokens_BT):
    table_VD = sharding.as_stored(self.embed, self.config.dtype)[...]
    return sharding.part_tokens(sharding.look_up(table_VD, tokens_BT))


def abstract_model(config: TransformerConfig) -> tuple[nnx.GraphDef, nnx.State]:
  """(graph, shapes of the parameters) of a decoder without computing any of it."""
  with nnx.logical_axis_rules(sharding.RULES):  # where a mesh is set, flax looks the axes' names up
    model = nnx.eval_shape(lambda: Transformer(config, rngs=nnx.Rngs(0)))
  graph, shapes = nnx.split(model, nnx.Param)
  return graph, shapes


def _remembering(layer, remat):
  if remat == 'none':
    return layer
  policies = jax.checkpoint_policies
  kept = {'attention': policies.save_only_these_names(KEPT), 'dots': policies.dots_with_no_batch_dims_saveable}
  return jax.checkpoint(layer, policy=kept.get(remat))
