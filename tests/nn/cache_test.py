import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from slca_jax.nn import cache
from slca_jax.nn.cache import Pieces, Seats, empty_cache, segment_sizes
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.layers import extend, take_apart
from slca_jax.nn.transformer import Transformer

CONFIG = TransformerConfig(
  vocab=61, layers=2, width=32, hidden=48, heads=4, kv_heads=2, head_dim=8, context=64, remat='none', qkv_bias=True
)
STEM, OWN = 11, 9  # positions of the rows below: two on a prompt of 11, one on the first 4 of them, one without prompt
SHARED = np.array([STEM, STEM, 4, 0])


@pytest.fixture(autouse=True)
def short_segments(monkeypatch):
  monkeypatch.setattr(cache, '_STEM_START', 4)
  monkeypatch.setattr(cache, '_OWN_START', 2)


def tokens_and_truth(seed=0, **changes):
  """Ids of four rows, the model, and its hidden states of each row by the whole forward pass."""
  config = TransformerConfig(**{**CONFIG.__dict__, **changes})
  model = Transformer(config, rngs=nnx.Rngs(seed))
  rng = np.random.default_rng(seed)
  stem = rng.integers(0, 61, STEM)
  rows = [np.concatenate([stem[:shared], rng.integers(0, 61, OWN)]) for shared in SHARED]
  forward = jax.jit(lambda t: model(t, jnp.zeros_like(t), jnp.zeros_like(t) - 1, jnp.arange(t.shape[1])[None]))
  return rows, config, model, [np.asarray(forward(jnp.asarray(row)[None])[0], np.float32) for row in rows]


def filled(config, model, rows):
  """Weights, and a cache whose stem 1 holds the prompt, in pieces of 4."""
  layers = jax.jit(lambda: take_apart(model))()
  kept = empty_cache(config, stems=2, slots=4, positions=13, own=OWN)
  for start in range(0, STEM, 4):
    position_BT = np.arange(start, start + 4)[None]
    position_BT = np.where(position_BT < STEM, position_BT, -1)
    pieces = Pieces(np.array([1]), np.array([0]), np.array([64]), position_BT)
    kept = step(layers, config, rows[0][np.maximum(position_BT, 0)], position_BT, kept, cache.prompt_attention, pieces)[
      1
    ]
  return layers, kept


@functools.partial(jax.jit, static_argnames=('config', 'attention'))
def step(layers, config, tokens_BT, position_BT, kept, attention, where):
  return extend(layers, config, tokens_BT, position_BT, kept, lambda *args: attention(*args, where))


def decode(layers, config, rows, kept, own):
  """Hidden states of the next token of every row whose next index behind its prompt is not negative."""
  index = np.array(own)
  position = np.where(index < 0, -1, SHARED + index)
  tokens = np.array([[row[max(p, 0)]] for row, p in zip(rows, position, strict=True)])
  seats = Seats(position, SHARED, np.array([3, 5, 4, 6]), np.array([[4, 4, 4], [0, 2, 1]]))
  hidden, kept = step(layers, config, tokens, position[:, None], kept, cache.decode_attention, seats)
  return np.asarray(hidden[:, 0], np.float32), kept


def test_segments_double_up_to_the_largest_and_hold_exactly_what_is_needed(monkeypatch):
  assert segment_sizes(50, 64) == [50]
  assert segment_sizes(300, 64) == [64, 64, 128, 44]
  monkeypatch.setattr(cache, '_LARGEST', 128)
  assert segment_sizes(600, 64) == [64, 64, 128, 128, 128, 88]


def test_decoding_behind_a_shared_prompt_equals_the_whole_row():
  rows, config, model, expected = tokens_and_truth()
  layers, kept = filled(config, model, rows)
  done = [0, 0, 0, 0]
  for rests in (None, 1, None, 0, 3, None, 2, None):
    index = [-1 if slot == rests else done[slot] for slot in range(4)]
    hidden, kept = decode(layers, config, rows, kept, index)
    assert np.isfinite(hidden).all()
    for slot in range(4):
      if slot != rests:
        np.testing.assert_allclose(hidden[slot], expected[slot][SHARED[slot] + done[slot]], atol=1e-5)
        done[slot] += 1


@pytest.mark.parametrize('pad', ['left', 'right'])
def test_known_tokens_of_a_turn_see_prompt_and_own_part(pad):
  rows, config, model, expected = tokens_and_truth(1)
  layers, kept = filled(config, model, rows)
  for start, end in ((0, 3), (3, 8)):
    position_BT = np.full((3, 6), -1)
    where = slice(6 - (end - start), 6) if pad == 'left' else slice(end - start)
    slots = np.array([2, 3, 1])
    position_BT[:, where] = SHARED[slots][:, None] + np.arange(start, end)
    tokens_BT = np.array([rows[slot][np.maximum(p, 0)] for slot, p in zip(slots, position_BT, strict=True)])
    pieces = Pieces(np.array([1, 0, 1]), slots, SHARED[slots], position_BT)
    hidden, kept = step(layers, config, tokens_BT, position_BT, kept, cache.turn_attention, pieces)
    for b, slot in enumerate(slots):
      np.testing.assert_allclose(hidden[b, where], expected[slot][SHARED[slot] + start : SHARED[slot] + end], atol=1e-5)
  hidden, _ = decode(layers, config, rows, kept, [-1, 8, 8, 8])
  for slot in (1, 2, 3):
    np.testing.assert_allclose(hidden[slot], expected[slot][SHARED[slot] + 8], atol=1e-5)


def test_what_a_row_reads_does_not_depend_on_how_far_others_are():
  rows, config, model, _ = tokens_and_truth(2)
  layers, kept = filled(config, model, rows)
  alone, company = kept, kept
  for index in range(OWN):
    far, company = decode(layers, config, rows, company, [index, index, index, index])
    if index < 2:
      near, alone = decode(layers, config, rows, alone, [index, -1, -1, -1])
      np.testing.assert_array_equal(near[0], far[0])
  late, _ = decode(layers, config, rows, company, [2, 8, 8, 8])
  early, _ = decode(layers, config, rows, alone, [2, -1, -1, -1])
  np.testing.assert_array_equal(late[0], early[0])


def test_stale_keys_beyond_a_position_are_never_seen():
  rows, config, model, _ = tokens_and_truth(3)
  layers, kept = filled(config, model, rows)
  stale = tuple(layer.replace(own=jax.tree.map(lambda x: x + 9, layer.own)) for layer in kept)
  clean, dirty = (decode(layers, config, rows, start, [0, 0, 0, 0])[0] for start in (kept, stale))
  np.testing.assert_array_equal(clean, dirty)


def test_memory_grows_with_prompts_plus_responses():
  size = lambda **changes: sum(x.size for x in jax.tree.leaves(empty_cache(CONFIG, **changes)))
  token = 2 * CONFIG.layers * CONFIG.kv_heads * CONFIG.head_dim
  assert size(stems=1, slots=32, positions=1000, own=100) == token * (1000 + 32 * 100)


def test_bfloat16_stays_near_float32():
  rows, _, _, expected = tokens_and_truth(4)
  _, config, model, _ = tokens_and_truth(4, dtype='bfloat16')
  layers, kept = filled(config, model, rows)
  assert {x.dtype for x in jax.tree.leaves((layers, kept))} == {jnp.dtype('bfloat16')}
  hidden, _ = decode(layers, config, rows, kept, [0, 0, 0, 0])
  for slot in range(4):
    np.testing.assert_allclose(hidden[slot], expected[slot][SHARED[slot]], atol=0.15)
