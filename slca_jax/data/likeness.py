"""Questions that are nearly the same: pairs of neighbouring words, compared by their Jaccard index, exactly.

A question costs a few bytes per word. Two sets with an index of at least t share one of their first n - ⌈t n⌉ + 1
elements in any fixed order of all elements, so only questions that share one of those are compared (prefix filtering).
"""

import math
import re
import unicodedata
import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from slca_jax.dialogue import Message

_CJK = '\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af'  # written without spaces: each sign is a word
_WORD = re.compile(f'[{_CJK}]|[^\\W_{_CJK}]+')
_FEW = 5  # words below which an opening says nothing, such as a greeting
_HEAD = 200  # characters among which those words must be
_MOST = 2048  # words that are looked at
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MIX = np.uint64(0xBF58476D1CE4E5B9)


def opening(messages: Sequence[Message]) -> str:
  """What the user says first, with what follows as long as it has fewer than five words."""
  said: list[str] = []
  for message in messages:
    if message.role == 'user':
      said.append(message.content)
      if len(words(' '.join(said)[:_HEAD])) >= _FEW:
        break
  return ' '.join(said)


def words(text: str) -> list[str]:
  """The words of a text without case, punctuation and differences of encoding."""
  return _WORD.findall(unicodedata.normalize('NFKC', text).casefold())


def shingles(text: str) -> np.ndarray:
  """Sorted distinct hashes [n] uint64 of a text's pairs of neighbouring words, of its word if there is only one."""
  found = words(text)[:_MOST]
  hashes = np.array([zlib.crc32(word.encode()) for word in found], np.uint64)
  if len(hashes) > 1:
    hashes = hashes[:-1] * _ODD + hashes[1:]
  hashes = (hashes ^ (hashes >> np.uint64(30))) * _MIX  # in a random order: rare and common pairs alike come first
  return np.unique(hashes ^ (hashes >> np.uint64(27)))


def jaccard(a: np.ndarray, b: np.ndarray) -> float:
  """|a ∩ b| / |a ∪ b| of two sorted sets, 0 if both are empty."""
  common = len(np.intersect1d(a, b, assume_unique=True))
  return common / max(1, len(a) + len(b) - common)


class Neighbours:
  """Finds the questions of a fixed set that a question is nearly the same as."""

  def __init__(self, sets: Iterable[np.ndarray], *, similarity: float):
    """`sets` are shingles of the questions; a Jaccard index of at least `similarity` is nearly the same."""
    self._similarity = similarity
    self._sets = list(sets)
    prefixes = [self._prefix(one) for one in self._sets]
    keys = np.concatenate([np.zeros(0, np.uint64), *prefixes])
    owners = np.repeat(np.arange(len(prefixes)), [len(one) for one in prefixes])
    order = np.argsort(keys, kind='stable')
    self._keys, self._owners = keys[order], owners[order]

  def nearest(self, shingles: np.ndarray) -> int | None:
    """The index of the first question of the set that is nearly the same, None if there is none."""
    prefix = self._prefix(shingles)
    start, end = np.searchsorted(self._keys, prefix), np.searchsorted(self._keys, prefix, side='right')
    hits = np.flatnonzero(end > start)
    if not len(hits):
      return None
    candidates = np.unique(np.concatenate([self._owners[start[i] : end[i]] for i in hits]))
    return next((int(i) for i in candidates if jaccard(shingles, self._sets[i]) >= self._similarity), None)

  def _prefix(self, one: np.ndarray) -> np.ndarray:
    return one[: len(one) - math.ceil(self._similarity * len(one) - 1e-9) + 1] if len(one) else one
