"""Checkpoints: kept, best, and what a kill leaves behind."""

import json
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from slca_jax.arrays import TrainState
from slca_jax.errors import ConfigError
from slca_jax.nn import sharding
from slca_jax.train.checkpoint import Checkpoints, same_run
from slca_jax.train.settings import Checkpointing


def state(value, width=3):
  params = {'b': jnp.full((2, width), value), 'a': jnp.arange(width) * value}
  return TrainState(jnp.int32(value), params, optax.adam(0.1).init(params))


def same(a, b):
  return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_newest_comes_back_leaf_by_leaf_with_its_record(tmp_path):
  checkpoints = Checkpoints(tmp_path, Checkpointing())
  for step in (1, 2):
    checkpoints.save(step, state(float(step)), {'step': step, 'numbers': {'loss': 0.5}})
  checkpoints.close()
  found, record = Checkpoints(tmp_path, Checkpointing()).restore(state(0.0))
  assert same(found, state(2.0)) and record == {'step': 2, 'numbers': {'loss': 0.5}}


def test_last_ones_and_the_best_are_kept(tmp_path):
  checkpoints = Checkpoints(tmp_path, Checkpointing(keep=2))
  for step, score in enumerate([0.1, 0.9, 0.3, 0.2, 0.4], 1):
    checkpoints.save(step, state(1.0), {'step': step}, score=score)
  checkpoints.wait()
  assert checkpoints.steps == [2, 4, 5]
  checkpoints.close()


def test_checkpoint_that_a_kill_cut_short_is_not_the_newest(tmp_path):
  checkpoints = Checkpoints(tmp_path, Checkpointing())
  checkpoints.save(3, state(3.0), {'step': 3})
  checkpoints.close()
  # What the disk holds while a step is being written: a folder under a temporary name, and one without its end mark.
  shutil.copytree(tmp_path / '3', tmp_path / '4.orbax-checkpoint-tmp-1')
  (tmp_path / '4.orbax-checkpoint-tmp-1' / '_CHECKPOINT_METADATA').unlink()
  again = Checkpoints(tmp_path, Checkpointing())
  assert again.latest == 3
  found, record = again.restore(state(0.0))
  assert same(found, state(3.0)) and record['step'] == 3
  again.save(4, state(4.0), {'step': 4})
  again.wait()
  assert again.latest == 4
  again.close()


def test_checkpoint_of_another_model_is_refused(tmp_path):
  checkpoints = Checkpoints(tmp_path, Checkpointing())
  checkpoints.save(1, state(1.0), {'step': 1})
  checkpoints.wait()
  with pytest.raises(ConfigError, match=r"not of this model .*mu\['a'\] is \(3,\) there and \(4,\) here"):
    checkpoints.restore(state(1.0, width=4))
  checkpoints.close()


def test_damaged_checkpoint_is_named_with_the_folder_to_remove(tmp_path):
  checkpoints = Checkpoints(tmp_path, Checkpointing())
  for step in (1, 2):
    checkpoints.save(step, state(1.0), {'step': step})
  checkpoints.wait()
  for file in (tmp_path / '2' / 'state').rglob('*'):
    if file.is_file() and file.parent.name == 'd':
      file.unlink()
  with pytest.raises(ConfigError, match=r'checkpoint 2 in .* is damaged .*; remove .*/2, .* goes on from step 1'):
    checkpoints.restore(state(0.0))
  checkpoints.close()


def test_differences_between_settings_are_named_with_both_values():
  ours, theirs = {'a': {'b': 1, 'c': (1, 2)}, 'd': None}, json.loads('{"a": {"b": 2, "c": [1, 2]}, "d": null}')
  assert same_run(ours, theirs) == ["['a']['b']: 2 -> 1"]


def placed(value, mesh):
  """A state whose parameters and moments are split over the mesh."""
  rows = jax.NamedSharding(mesh, jax.P(('data', 'fsdp')))
  return jax.tree.map(lambda x: jax.device_put(x, rows if x.ndim else jax.NamedSharding(mesh, jax.P())), value)


@pytest.mark.parametrize('devices', [4, 1])
def test_what_eight_devices_saved_is_restored_on_fewer_bit_for_bit(tmp_path, devices):
  params = {'a': jax.random.normal(jax.random.key(0), (16, 3))}
  whole = TrainState(jnp.int32(7), params, optax.adam(0.1).init(params))
  checkpoints = Checkpoints(tmp_path, Checkpointing())
  checkpoints.save(7, placed(whole, sharding.make_mesh(data=2, fsdp=4)), {'step': 7})
  checkpoints.close()
  mesh = sharding.make_mesh(data=1, fsdp=-1, devices=jax.devices()[:devices])
  again = Checkpoints(tmp_path, Checkpointing())
  found, _ = again.restore(placed(jax.tree.map(jnp.zeros_like, whole), mesh))
  again.close()
  assert same(found, whole)
  assert {len(leaf.sharding.device_set) for leaf in jax.tree.leaves(found)} == {devices}


def test_what_is_saved_stays_though_the_next_update_takes_its_buffers_while_it_is_written(tmp_path):
  advance = jax.jit(lambda tree: jax.tree.map(lambda x: x + 1, tree), donate_argnums=0)
  checkpoints, current = (
    Checkpoints(tmp_path, Checkpointing()),
    placed(state(1.0, 8), sharding.make_mesh(fsdp=1, data=1, tensor=8)),
  )
  wanted = jax.tree.map(np.array, current)
  checkpoints.save(1, current, {'step': 1})
  for _ in range(3):
    current = advance(current)
  checkpoints.wait()
  found, _ = checkpoints.restore(current)
  checkpoints.close()
  assert same(found, wanted)


def test_parameters_are_read_without_the_moments_and_those_of_another_model_are_refused(tmp_path):
  checkpoints = Checkpoints(tmp_path, Checkpointing())
  checkpoints.save(1, state(1.0), {'step': 1})
  checkpoints.close()
  again = Checkpoints(tmp_path, Checkpointing())
  assert same(again.parameters(state(0.0).params), state(1.0).params)
  with pytest.raises(ConfigError, match=r"\.params\['a'\] is \(3,\) there and \(4,\) here"):
    again.parameters(state(0.0, width=4).params)
  again.close()


def test_devices_never_hold_what_is_restored_beside_what_it_replaces(tmp_path, monkeypatch):
  checkpoints = Checkpoints(tmp_path, Checkpointing())
  checkpoints.save(1, state(1.0), {'step': 1})
  checkpoints.wait()
  template, read, still_there = state(0.0), checkpoints._manager.restore, []

  def watched(*arguments, **named):
    still_there.extend(leaf for leaf in jax.tree.leaves(template) if not leaf.is_deleted())
    return read(*arguments, **named)

  monkeypatch.setattr(checkpoints._manager, 'restore', watched)
  found, _ = checkpoints.restore(template)
  checkpoints.close()
  assert same(found, state(1.0)) and not still_there
