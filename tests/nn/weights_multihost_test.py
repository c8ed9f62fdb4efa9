"""Two processes, as on two hosts, save one model whose parameters are spread over both."""

import json
import os
import pathlib
import resource
import subprocess
import sys

import jax
import numpy as np
import pytest
from flax import nnx

from slca_jax.errors import WeightsError
from slca_jax.nn import sharding, tensorfile, weights
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.transformer import Transformer

SIZES = dict(vocab=61, layers=3, width=16, hidden=24, heads=4, kv_heads=2, head_dim=8, tied=False, vocab_multiple=8)
CONFIG = TransformerConfig(**SIZES)
SPLIT = dict(eos=(3,), max_shard_bytes=4_000)
SECONDS = 500


def join(index: int, port: int, folder: pathlib.Path) -> None:
  """What one of the two processes does; leaves what it saw in `<index>.json`."""
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  jax.distributed.initialize(f'127.0.0.1:{port}', 2, index)
  params = weights.load_hf(folder / 'single', CONFIG, sharding.make_mesh(fsdp=2, tensor=2))
  spread = [name for name, leaf in nnx.to_flat_state(params) if not leaf[...].is_fully_replicated]
  wrote, write = [], tensorfile.write

  def noting(file, *rest):
    wrote.append(file.name)
    write(file, *rest)

  tensorfile.write = noting
  weights.save_hf(params, CONFIG, folder / 'split', **SPLIT)
  weights.save_hf(params, CONFIG, folder / 'whole', dtype='bfloat16')
  other = jax.tree.map(lambda leaf: leaf * 2, params)
  seen = {'processes': jax.process_count(), 'spread': len(spread), 'wrote': list(wrote)}
  seen['full'] = complaint(lambda: save_on_a_full_disk(other, folder / 'split', full=index == 1))
  seen['photos'] = complaint(lambda: weights.save_hf(other, CONFIG, folder / 'photos'))
  weights.save_hf(other, CONFIG, folder / 'after', **SPLIT)
  named = {name: float(np.sum(np.abs(array))) for name, array in weights.named_tensors(params, CONFIG)}
  (folder / f'{index}.json').write_text(json.dumps(seen | {'named': named}))
  jax.distributed.shutdown()


def save_on_a_full_disk(params, path, *, full):
  """Saves, with files of at most 3,000 bytes if `full`."""
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  if full:
    resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, limits[1]))
  try:
    weights.save_hf(params, CONFIG, path, **SPLIT)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def complaint(work):
  """The type of error and what it says."""
  try:
    work()
  except (OSError, WeightsError) as error:
    return type(error).__name__, str(error)
  return None


def run_both(folder):
  """Starts the two processes and waits; none is left behind."""
  from ports import free_port  # the two processes run this file without pytest's paths

  port = free_port()
  flags = '--xla_force_host_platform_device_count=2 --xla_cpu_enable_concurrency_optimized_scheduler=false'
  environment = os.environ | {'XLA_FLAGS': flags, 'JAX_PLATFORMS': 'cpu'}
  logs = [folder.parent / f'{index}.log' for index in range(2)]
  processes = []
  try:
    for index, log in enumerate(logs):
      command = [sys.executable, __file__, str(index), str(port), str(folder)]
      with log.open('wb') as out:
        processes.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))
    codes = [process.wait(SECONDS) for process in processes]
  finally:
    for process in processes:
      process.kill()
      process.wait()
  assert codes == [0, 0], '\n'.join(log.read_text()[-3000:] for log in logs)
  return [json.loads((folder / f'{index}.json').read_text()) for index in range(2)]


@pytest.fixture(scope='module')
def saved(tmp_path_factory):
  """(folder of what was saved, what each process saw, the parameters)."""
  folder = tmp_path_factory.mktemp('hosts') / 'saved'
  params = nnx.state(Transformer(CONFIG, rngs=nnx.Rngs(0)), nnx.Param)
  weights.save_hf(params, CONFIG, folder / 'single', **SPLIT)
  (folder / 'photos').mkdir()
  (folder / 'photos/cat.png').touch()
  return folder, run_both(folder), params


def content(path):
  return {file.name: file.read_bytes() for file in path.iterdir()}


def test_two_processes_save_bit_for_bit_what_one_saves(saved, tmp_path):
  folder, seen, params = saved
  assert [one['processes'] for one in seen] == [2, 2] and all(one['spread'] > 5 for one in seen)
  assert content(folder / 'split') == content(folder / 'single')
  weights.save_hf(params, CONFIG, tmp_path / 'whole', dtype='bfloat16')
  assert content(folder / 'whole') == content(tmp_path / 'whole')


def test_each_process_writes_every_other_file(saved):
  folder, (first, second), _ = saved
  files = sorted(file.name for file in (folder / 'single').glob('*.safetensors'))
  assert len(files) > 4
  assert first['wrote'] == [*files[::2], 'model.safetensors'] and second['wrote'] == files[1::2]


def test_a_disk_that_is_full_on_one_host_fails_on_all_and_leaves_the_old_checkpoint(saved):
  folder, (first, second), _ = saved
  assert second['full'] == ['OSError', '[Errno 27] File too large']
  assert first['full'] == ['OSError', '[Errno 27] process 1 failed with OSError: [Errno 27] File too large']
  assert content(folder / 'split') == content(folder / 'single')


def test_a_folder_that_is_no_checkpoint_is_refused_on_all(saved):
  folder, seen, _ = saved
  assert [one['photos'][0] for one in seen] == ['WeightsError', 'WeightsError']
  assert [file.name for file in (folder / 'photos').iterdir()] == ['cat.png']


def test_after_a_failure_the_hosts_are_still_in_step(saved):
  folder, seen, params = saved
  again = weights.load_hf(folder / 'after', CONFIG)
  jax.tree.map(lambda new, old: np.testing.assert_array_equal(new, 2 * old), again, params)
  assert seen[0]['named'] == seen[1]['named'] and len(seen[0]['named']) == 3 + 9 * 3
  assert not [file.name for file in folder.iterdir() if file.name.startswith('.')]


if __name__ == '__main__':
  join(int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]))
