"""What servers answer, read with suspicion: ids, log-probs, and which run's weights they are of."""

import dataclasses
import math
from typing import Any

from slca_jax.errors import SamplerError
from slca_jax.rollout.sampler import Finish, Sample
from slca_jax.rollout.wire import Trouble

_FINISHES: dict[str, Finish] = {'stop': 'stop', 'length': 'length', 'abort': 'abort'}


@dataclasses.dataclass(frozen=True, slots=True)
class Tag:
  """What the weights of a run are called on a server."""

  run: str
  version: int

  def __str__(self) -> str:
    return f'slca:{self.run}:{self.version}'

  @classmethod
  def read(cls, text: str) -> 'Tag | None':
    """The tag that a text is; None if it is none."""
    head, _, version = text.rpartition(':')
    kind, _, run = head.partition(':')
    return cls(run, int(version)) if kind == 'slca' and run and version.isdigit() else None


def is_free(text: str) -> bool:
  """Whether weights called so belong to no run: those a server started with, or that a run released."""
  return text in ('', 'default') or text.startswith('released:')


def read_draw(answer: Any, url: str) -> tuple[tuple[int, ...], tuple[float, ...], Finish]:
  """(tokens, log-probs, finish) of an answer of /generate; both lists come from `output_token_logprobs`.

  Raises:
    Trouble: 'broken', for an answer that contradicts itself.
  """
  try:
    meta = answer['meta_info']
    finish, count = _FINISHES[meta['finish_reason']['type']], int(meta['completion_tokens'])
    drawn = meta.get('output_token_logprobs') or []
    logprobs, tokens = tuple(float(item[0]) for item in drawn), tuple(int(item[1]) for item in drawn)
  except (KeyError, IndexError, TypeError, ValueError) as error:
    raise _lacking(url, error) from error
  if len(tokens) != count:
    raise Trouble('broken', f'{url} gave {len(tokens)} log-probs for {count} tokens')
  if not all(map(math.isfinite, logprobs)):
    raise Trouble('broken', f'{url} gave a log-prob that is no number; look at the weights')
  return tokens, logprobs, finish


def read_answer(answer: Any, run: str, url: str) -> Sample:
  """The sample in an answer of /generate, its tokens labelled with the versions of `run` that drew them.

  Raises:
    Trouble: 'broken' for an answer that contradicts itself, 'stale' for one of weights that belong to no run.
    SamplerError: the weights are another run's.
  """
  tokens, logprobs, finish = read_draw(answer, url)
  meta, count = answer['meta_info'], len(tokens)
  try:
    spans = meta.get('weight_versions') or [{'version': meta['weight_version'], 'start': 0, 'end': count}]
    lengths = [(str(span['version']), int(span['end']) - int(span['start'])) for span in spans]
  except (KeyError, TypeError, ValueError) as error:
    raise _lacking(url, error) from error
  if sum(length for _, length in lengths) != count or any(length < 0 for _, length in lengths):
    raise Trouble('broken', f'{url} gave versions {lengths} for {count} tokens')
  versions = tuple((_version(name, run, url), length) for name, length in lengths if length)
  return Sample(tokens, logprobs, finish, versions)


def _lacking(url: str, error: Exception) -> Trouble:
  return Trouble('broken', f'{url} gave an answer that lacks something: {type(error).__name__} {error}')


def _version(name: str, run: str, url: str) -> int:
  tag = Tag.read(name)
  if tag is not None and tag.run == run:
    return tag.version
  if is_free(name):
    raise Trouble('stale', f'{url} answered with weights {name!r}; it was started anew')
  raise SamplerError(f'{url} was taken over: it answered with weights {name!r}, and this run is {run!r}')
