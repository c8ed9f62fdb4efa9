import jax
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from slca_jax import bits

LENGTH = 32 * 33 + 5
rows = st.binary(min_size=LENGTH, max_size=LENGTH).map(lambda raw: np.frombuffer(raw, np.uint8)[None, :])

_pack, _unpack = jax.jit(bits.pack), jax.jit(bits.unpack, static_argnums=1)
_carries, _previous, _first = jax.jit(bits.carries), jax.jit(bits.previous), jax.jit(bits.first)


def integer(bits_BT):
  """The row as one large integer, its first token the most significant bit of all words."""
  words = -(-bits_BT.shape[1] // 32)
  return int(''.join('01'[int(bit)] for bit in bits_BT[0]).ljust(32 * words, '0'), 2)


@settings(max_examples=30, deadline=None)
@given(rows)
def test_packing_and_unpacking_keep_every_bit(row):
  bits_BT = row % 2 == 1
  words_BW = _pack(bits_BT)
  assert integer(bits_BT) == int(''.join(f'{int(word):032b}' for word in words_BW[0]), 2)
  np.testing.assert_array_equal(_unpack(words_BW, LENGTH), bits_BT)


@settings(max_examples=30, deadline=None)
@given(rows, st.integers(0, 255))
def test_carries_are_those_of_an_addition_of_large_integers(row, often):
  generate_BT, propagate_BT = row < 8, (row >= 8) & (row >= often)
  g, p = integer(generate_BT), integer(propagate_BT)
  words = -(-LENGTH // 32)
  want = ((g | p) + g) ^ (g | p) ^ g  # the carry into each bit
  got = int(''.join(f'{int(word):032b}' for word in _carries(_pack(generate_BT), _pack(propagate_BT))[0]), 2)
  assert got == want % (1 << 32 * words)


@settings(max_examples=30, deadline=None)
@given(rows, st.integers(0, 255))
def test_first_and_previous_are_those_of_the_tokens(row, rare):
  bits_BT = row > rare
  places = np.flatnonzero(bits_BT[0])
  first = int(_first(_pack(bits_BT))[0])
  assert first == places[0] if len(places) else first >= LENGTH
  np.testing.assert_array_equal(_unpack(_previous(_pack(bits_BT)), LENGTH)[0, 1:], bits_BT[0, :-1])
