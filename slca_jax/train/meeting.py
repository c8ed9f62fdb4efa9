"""Where the hosts of a run meet once a step: each brings its rollouts, and all leave with those of all."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from slca_jax.nn import hosts
from slca_jax.rollout import shares
from slca_jax.rollout.shares import Share

_HEAD = 8  # bytes that say how long the words before the arrays are


@dataclasses.dataclass(frozen=True, slots=True)
class Met:
  """What all hosts brought: the rollouts of each mini-batch, and each host's words."""

  shares: tuple[Share, ...]
  words: tuple[Mapping[str, Any], ...]

  def told(self, name: str) -> list[Any]:
    """What each host says under a name."""
    return [words[name] for words in self.words]


def meet(brought: Sequence[Share], words: Mapping[str, Any]) -> Met | None:
  """What all hosts brought, None if any of them came without words: it was asked to stop. Every process calls it.

  Args:
    brought: what this host has of each mini-batch.
    words: ready for JSON.
  """
  if jax.process_count() == 1:  # rollouts need not become bytes for nobody
    return Met(tuple(shares.join([share]) for share in brought), (words,)) if words else None
  text = json.dumps(words).encode()
  came = hosts.exchange(len(text).to_bytes(_HEAD, 'big') + text + shares.to_bytes(brought))
  told, theirs = zip(*map(_read, came), strict=True)
  if not all(told):
    return None
  return Met(tuple(shares.join(parts) for parts in zip(*theirs, strict=True)), tuple(told))


def _read(content: bytes) -> tuple[dict[str, Any], list[Share]]:
  end = _HEAD + int.from_bytes(content[:_HEAD], 'big')
  return json.loads(content[_HEAD:end]), shares.from_bytes(content[end:])
