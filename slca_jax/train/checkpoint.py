"""Checkpoints of everything a run needs to go on as if it had never stopped.

One Orbax step holds the device state (parameters, moments, update count) and a JSON record of the host's: which step
comes next, from which order and seeds follow, and the numbers of the last one; where grain reads the data, its
iterator's state as well. A checkpoint appears whole or not at all: Orbax writes and renames.

Each host writes what lies on its devices, into one folder that all see. Nothing in a checkpoint depends on how many
devices or hosts there were, so it is restored onto any mesh: every device reads its own part.
"""

import contextlib
import json
import pathlib
from collections.abc import Iterator
from typing import Any

import grain
import jax
import orbax.checkpoint as ocp
from flax import nnx

from slca_jax.arrays import TrainState
from slca_jax.config import as_dict
from slca_jax.errors import ConfigError
from slca_jax.train.settings import Checkpointing


class Checkpoints:
  """The checkpoints of one run's folder."""

  def __init__(self, folder: pathlib.Path, settings: Checkpointing):
    best = ocp.checkpoint_managers.BestN(
      get_metric_fn=lambda metrics: metrics['score'], n=1, keep_checkpoints_without_metrics=False
    )
    policy = ocp.checkpoint_managers.AnyPreservationPolicy([ocp.checkpoint_managers.LatestN(settings.keep), best])
    options = ocp.CheckpointManagerOptions(preservation_policy=policy, enable_async_checkpointing=True)
    self._manager = ocp.CheckpointManager(folder.absolute(), options=options)
    self._every = settings.every

  @property
  def latest(self) -> int | None:
    """The newest complete step, None in an empty folder."""
    return self._manager.latest_step()

  @property
  def steps(self) -> list[int]:
    """The complete steps, ascending."""
    return sorted(self._manager.all_steps())

  def due(self, step: int, steps: int) -> bool:
    """Whether a checkpoint is due after `step` of `steps` steps."""
    return step % self._every == 0 or step == steps

  def save(
    self,
    step: int,
    state: TrainState,
    record: dict[str, Any],
    *,
    data: grain.DatasetIterator | None = None,
    score: float | None = None,
  ) -> None:
    """Writes the state after `step` steps. The buffers are copied before this returns; the disk is written behind.

    Args:
      data: what reads the data, at the item that comes next.
      score: the checkpoint with the highest one is kept.
    """
    if step in self._manager.all_steps():
      return
    if data is not None:
      record = record | {'data': data.get_state()}
    parts: dict[str, Any] = {'state': ocp.args.StandardSave(_plain(state)), 'record': ocp.args.JsonSave(record)}
    metrics = None if score is None else {'score': float(score)}
    self._manager.save(step, args=ocp.args.Composite(**parts), metrics=metrics)

  def restore(
    self, template: TrainState, step: int | None = None, *, data: grain.DatasetIterator | None = None
  ) -> tuple[TrainState, dict[str, Any]]:
    """The state and the record of a step (the newest if None), laid out like `template`.

    Args:
      template: a state, or shapes with shardings, of the same structure. Arrays are given up before others are read in
        their place, as a donated argument's are: devices that hold one state need not hold two.
      data: what reads the data; it goes on with the item that came next.

    Raises:
      ConfigError: the checkpoint is of another model or optimiser, and names the first difference, or is damaged.
    """
    step = self.latest if step is None else step
    plain = _plain(template)
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, plain)
    parts: dict[str, Any] = {'state': ocp.args.StandardRestore(abstract), 'record': ocp.args.JsonRestore()}
    with self._told_if_damaged(step):
      self._require_alike(step, abstract)
      _give_up(template)
      found = self._manager.restore(step, args=ocp.args.Composite(**parts))
    if data is not None:
      data.set_state(found['record']['data'])
    leaves = [found['state'][name] for name in plain]  # by name: trees of dicts are sorted, ours is in its own order
    return jax.tree.unflatten(jax.tree.structure(template), leaves), found['record']

  def parameters(self, template: nnx.State, step: int | None = None) -> nnx.State:
    """The parameters of a step alone, laid out like `template`; `restore` without reading or placing any moment.

    Raises:
      ConfigError: the checkpoint is of another model, and names the first difference, or is damaged.
    """
    step = self.latest if step is None else step
    nothing: Any = None
    plain = _plain(TrainState(nothing, template, nothing))
    abstract = jax.tree.map(ocp.utils.to_shape_dtype_struct, plain)
    places = ocp.checkpoint_utils.construct_restore_args(abstract)
    part: Any = ocp.args.PyTreeRestore(item=abstract, restore_args=places, partial_restore=True)
    with self._told_if_damaged(step):
      self._require_alike(step, abstract, whole=False)
      _give_up(template)
      found = self._manager.restore(step, args=ocp.args.Composite(state=part))
    return jax.tree.unflatten(jax.tree.structure(template), [found['state'][name] for name in plain])

  @contextlib.contextmanager
  def _told_if_damaged(self, step: int | None) -> Iterator[None]:
    """Raises ConfigError in the place of what Orbax raises for files that are missing or cut short."""
    try:
      yield
    except ConfigError:
      raise
    except (OSError, ValueError, KeyError) as error:
      before = [one for one in self.steps if step is not None and one < step]
      resumes = f'the same command then goes on from step {before[-1]}' if before else 'the run then begins anew'
      raise ConfigError(
        f'checkpoint {step} in {self._manager.directory} is damaged ({str(error).splitlines()[0][:300]}); remove '
        f'{self._manager.directory / str(step)}, {resumes}'
      ) from error

  def _require_alike(self, step: int | None, abstract: dict[str, Any], *, whole: bool = True) -> None:
    """Raises ConfigError if the checkpoint's arrays are others. (Orbax finds out while its other reads go on.)

    Args:
      whole: it may have no arrays beside these.
    """
    folder = self._manager.directory
    kept: Any = ocp.StandardCheckpointHandler().metadata(folder / str(step) / 'state')
    there = {name: array.shape for name, array in kept.tree.items()}
    wanted = {name: array.shape for name, array in abstract.items()}
    for name in sorted(there.keys() | wanted.keys() if whole else wanted):
      if there.get(name) != wanted.get(name):
        raise ConfigError(
          f'checkpoint {step} in {folder} is not of this model and optimiser: {name} is {there.get(name)} there and '
          f'{wanted.get(name)} here; use another output folder or the settings it was made with'
        )

  def wait(self) -> None:
    """Blocks until every checkpoint that was begun is on disk."""
    self._manager.wait_until_finished()

  def close(self) -> None:
    """Waits, then frees what the manager holds."""
    self._manager.close()


def _give_up(arrays: Any) -> None:
  for leaf in jax.tree.leaves(arrays):
    if isinstance(leaf, jax.Array):
      leaf.delete()


def _plain(state: Any) -> dict[str, Any]:
  # Leaves by position and path: Orbax names files by the tree's keys, and optimiser states are tuples of tuples.
  return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def record_of(step: int, numbers: dict[str, float], config: Any, position: Any = None) -> dict[str, Any]:
  """What a checkpoint holds beside the state: order, seeds and random keys follow from the step and the settings.

  Args:
    position: which groups were learned from, where that does not follow from the step.
  """
  return {'step': step, 'numbers': numbers, 'config': as_dict(config), 'position': position}


def same_run(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
  """The settings in which two configurations differ, as `key: theirs -> ours`; both are nested dicts."""
  flat = lambda tree: {
    jax.tree_util.keystr(p): v for p, v in jax.tree_util.tree_leaves_with_path(json.loads(json.dumps(tree)))
  }
  a, b = flat(ours), flat(theirs)
  return [f'{key}: {b.get(key)!r} -> {a.get(key)!r}' for key in sorted(a.keys() | b.keys()) if a.get(key) != b.get(key)]
