import jax
import numpy as np
import pytest

from slca_jax.nn import cache
from slca_jax.nn.cache import attend_cache


@pytest.mark.parametrize('tokens', [1, 3])
@pytest.mark.parametrize('size', [8, 11])
def test_a_cache_is_seen_up_to_the_querys_position(monkeypatch, tokens, size):
  monkeypatch.setattr(cache, '_BLOCK', {'cpu': 4})
  position_BT = np.array([[0, 1, 2], [5, 6, 7], [-1, 7, -1]])[:, :tokens]
  q = np.random.default_rng(3).normal(size=(3, tokens, 4, 8)).astype(np.float32)
  k, v = np.random.default_rng(6).normal(size=(2, 2, 3, size, 2, 8)).astype(np.float32)
  out_BTNH = jax.jit(attend_cache)(q, k, v, 1, position_BT)
  for b, t in np.ndindex(3, tokens):
    end = int(position_BT[b, t]) + 1
    for n in range(4):
      weight_S = np.exp(k[1, b, :end, n // 2] @ q[b, t, n] / np.sqrt(8))
      expected_H = weight_S @ v[1, b, :end, n // 2] / weight_S.sum() if end else np.zeros(8)
      np.testing.assert_allclose(out_BTNH[b, t, n], expected_H, atol=1e-5)


def test_what_a_row_reads_does_not_depend_on_how_far_others_are(monkeypatch):
  monkeypatch.setattr(cache, '_BLOCK', {'cpu': 4})
  q = np.random.default_rng(4).normal(size=(2, 1, 4, 8)).astype(np.float32)
  k, v = np.random.default_rng(7).normal(size=(2, 1, 2, 16, 2, 8)).astype(np.float32)
  near, far = (jax.jit(attend_cache)(q, k, v, 0, np.array([[2], [other]])) for other in (0, 15))
  np.testing.assert_array_equal(near[0], far[0])
