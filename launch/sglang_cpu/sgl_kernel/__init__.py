"""Stands in for SGLang's native kernels, whose wheels are CUDA builds only.

SGLang imports many names from here and, with `--attention-backend torch_native`, calls one. Any other is found and
fails when it is called, so that a model which needs it says so.
"""
# pyright: reportMissingImports=false

from collections.abc import Callable
from typing import Any

import torch


def assign_req_to_token_pool_cpu(
  request_N: torch.Tensor,
  pool_RX: torch.Tensor,
  start_N: torch.Tensor,
  end_N: torch.Tensor,
  place_M: torch.Tensor,
  width: int,
) -> None:
  """Writes where the cache holds each request's new tokens: the next end - start places of `place_M`, row by row."""
  taken = 0
  for request, start, end in zip(request_N.tolist(), start_N.tolist(), end_N.tolist(), strict=True):
    count = end - start
    pool_RX[request, start:end] = place_M[taken : taken + count].to(pool_RX.dtype)
    taken += count


def __getattr__(name: str) -> Callable[..., Any]:
  if name.startswith('__'):
    raise AttributeError(name)

  def absent(*arguments: Any, **options: Any) -> Any:
    raise RuntimeError(f'sgl_kernel.{name} has no CPU version here; use a model that torch_native attention can serve')

  return absent
