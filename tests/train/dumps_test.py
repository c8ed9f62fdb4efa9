"""Rollouts of a step on disk: read back equal, written over when a step is made again, gone when it lies ahead."""

from slca_jax.data.store import Trajectories
from slca_jax.dialogue import Message, Parsed, Scores, Status, Task, Trajectory, Turn
from slca_jax.train.dumps import dump, forget


def rollouts(text):
  asked = Task('t', (), (Message('user', 'Where?'),))
  turn = Turn((5, 6), (-0.125, -1.5), text, Parsed())
  return [Trajectory(asked, 0, index, (1, 2), (turn,), Status.FINISHED) for index in range(3)]


def stored(folder):
  store = Trajectories(folder, write=False)
  return [store[index] for index in range(len(store))]


SCORES = [Scores(0.5, why={'parts': [1, 2]}), Scores(), Scores(summary=1.0, guarded=True)]


def test_a_step_that_is_made_again_is_written_over(tmp_path):
  for text in ('first', 'second'):
    dump(tmp_path / 'step_000001', rollouts(text), SCORES)
    assert stored(tmp_path / 'step_000001') == list(zip(rollouts(text), SCORES, strict=True))


def test_steps_after_the_checkpoint_are_forgotten(tmp_path):
  forget(tmp_path / 'none', after=0)
  for name in ('step_000002', 'step_000003_host0', 'step_000003_host1', 'step_1000000'):
    dump(tmp_path / name, rollouts('x'), SCORES)
  (tmp_path / 'step_000009.jsonl').touch()  # somebody else's
  forget(tmp_path, after=2)
  assert sorted(path.name for path in tmp_path.iterdir()) == ['step_000002', 'step_000009.jsonl']
