"""Trees of tokens: a prompt and the responses that share it, as rows hold them."""

import dataclasses
from collections.abc import Sequence

import numpy as np

from slca_jax.dialogue import Status, Trajectory
from slca_jax.errors import DataError


@dataclasses.dataclass(frozen=True, slots=True)
class Response:
  """The tokens after a prompt. `rollout` is its index in the batch; `logps` are the engine's, 0 where not sampled."""

  rollout: int
  tokens: np.ndarray
  sampled: np.ndarray
  logps: np.ndarray


@dataclasses.dataclass(frozen=True, slots=True)
class Tree:
  """A prompt and responses to it."""

  prompt: np.ndarray
  responses: tuple[Response, ...]

  @property
  def size(self) -> int:
    """Tokens of the prompt and all responses."""
    return len(self.prompt) + sum(len(response.tokens) for response in self.responses)

  @property
  def sampled(self) -> int:
    """Tokens that are learned."""
    return sum(int(response.sampled.sum()) for response in self.responses)

  @property
  def pairs(self) -> float:
    """How many pairs of a query and a key that it sees attention computes."""
    stem = len(self.prompt)
    return stem**2 / 2 + sum(len(r.tokens) * (stem + len(r.tokens) / 2) for r in self.responses)


def flatten(trajectory: Trajectory, rollout: int) -> Response:
  """A trajectory's ids after its prompt: sampled turns are learnable, what the world wrote is not."""
  parts = [part for turn in trajectory.turns for part in (turn.tokens, turn.reply)]
  flags = [flag for turn in trajectory.turns for flag in (True, False)]
  logps = [part for turn in trajectory.turns for part in (turn.logprobs, (0.0,) * len(turn.reply))]
  return Response(
    rollout,
    np.fromiter((token for part in parts for token in part), np.int32),
    np.repeat(np.array(flags, bool), [len(part) for part in parts]),
    np.fromiter((logp for part in logps for logp in part), np.float32),
  )


def grow(trajectories: Sequence[Trajectory], rollouts: Sequence[int] | None = None) -> list[Tree]:
  """One tree per group. Failed rollouts leave no tokens behind; a group without any leaves no tree.

  Args:
    rollouts: the index in the batch of each; as they are counted here if None.

  Raises:
    DataError: siblings differ in their prompt.
  """
  groups: dict[int, list[Response]] = {}
  prompts: dict[int, tuple[int, ...]] = {}
  for rollout, trajectory in zip(rollouts or range(len(trajectories)), trajectories, strict=True):
    if trajectory.status is Status.FAILED or not trajectory.turns:
      continue
    if prompts.setdefault(trajectory.group, trajectory.prompt) != trajectory.prompt:
      raise DataError(
        f'group {trajectory.group} has rollouts of different prompts; siblings share theirs token for token'
      )
    groups.setdefault(trajectory.group, []).append(flatten(trajectory, rollout))
  return [Tree(np.array(prompts[group], np.int32), tuple(responses)) for group, responses in groups.items()]


def split(tree: Tree, length: int) -> list[Tree]:
  """Trees of at most `length` tokens with the same responses; the prompt is repeated in each.

  Longest responses go first, each to the first piece with room for it, so that few prompts are repeated.

  Raises:
    DataError: a response does not fit behind its prompt.
  """
  room = length - len(tree.prompt)
  longest = max((len(response.tokens) for response in tree.responses), default=0)
  if longest > room:
    raise DataError(
      f'a prompt of {len(tree.prompt)} tokens and a response of {longest} exceed the row length {length}; '
      'raise the last entry of batching.lengths or lower the limits of the rollout'
    )
  if tree.size <= length:
    return [tree]
  pieces: list[list[Response]] = []
  left: list[int] = []
  for response in sorted(tree.responses, key=lambda response: -len(response.tokens)):
    need = len(response.tokens)
    place = next((i for i, room_left in enumerate(left) if need <= room_left), len(left))
    if place == len(left):
      pieces.append([])
      left.append(room)
    pieces[place].append(response)
    left[place] -= need
  return [Tree(tree.prompt, tuple(piece)) for piece in pieces]
