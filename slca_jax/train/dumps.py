"""The rollouts of a step on disk."""

import pathlib
import shutil
from collections.abc import Sequence

from slca_jax.data.store import Trajectories
from slca_jax.dialogue import Scores, Trajectory


def sampled(trajectories: Sequence[Trajectory]) -> int:
  """Tokens that the policy drew."""
  return sum(len(turn.tokens) for trajectory in trajectories for turn in trajectory.turns)


def dump(folder: pathlib.Path, trajectories: Sequence[Trajectory], scores: Sequence[Scores]) -> None:
  """Writes a step's rollouts with their tasks and scores, as `Trajectories` reads them, over what is there."""
  store = Trajectories(folder)
  try:
    store.keep(0)
    store.append(trajectories, scores)
  finally:
    store.close()


def forget(folder: pathlib.Path, *, after: int) -> None:
  """Removes the rollouts of later steps: a run that goes on from its checkpoint makes them again."""
  for path in folder.glob('step_*'):
    if path.is_dir() and int(path.name.split('_')[1]) > after:
      shutil.rmtree(path)
