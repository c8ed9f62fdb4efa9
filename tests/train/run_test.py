"""Two processes of a run that hear of each other: who was asked to stop, and who failed and why."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import pytest

from slca_jax.errors import ConfigError, HostFailure
from slca_jax.nn import hosts
from slca_jax.rollout.settings import LocalEngine
from slca_jax.train.run import Stop, in_touch, opened

pytestmark = pytest.mark.timeout(900)
SECONDS = 400


def join(index: int, port: int, folder: pathlib.Path) -> None:
  """What each of the two does; leaves what it saw in `<index>.json`."""
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')
  jax.distributed.initialize(f'127.0.0.1:{port}', 2, index)
  seen: dict = {'shares': list(hosts.share(5)), 'all': [list(part) for part in hosts.shares(5)]}
  seen['told'] = hosts.tell({'from': index, 'text': 'ß' * 3000 * index})
  stop = Stop()
  with in_touch(stop):
    stop.requested = index == 1
    wait_until(lambda: stop.requested)
    hosts.tell(None)
  seen['stopped'] = stop.requested
  seen['settings'] = complaint(lambda: open_folder(folder / 'run', {'seed': index}))
  seen['folder'] = complaint(lambda: open_folder(folder / 'run', {'seed': 0}))
  seen['failure'] = complaint(lambda: fail_on_one(index))
  (folder / f'{index}.json').write_text(json.dumps(seen))
  jax.distributed.shutdown()


def open_folder(folder, settings):
  with opened(folder, settings):
    pass


def fail_on_one(index):
  stop = Stop()
  with in_touch(stop):
    if index == 1:
      raise OSError('no space left on device')
    wait_until(lambda: stop.failure)
    raise RuntimeError('a program that all should run broke')


def wait_until(holds):
  while not holds():
    time.sleep(0.05)


def complaint(work):
  """The type of error and what it says."""
  try:
    work()
  except (ConfigError, HostFailure, OSError) as error:
    return [type(error).__name__, str(error)]
  return None


@pytest.fixture(scope='module')
def seen(tmp_path_factory):
  from ports import free_port

  folder = tmp_path_factory.mktemp('touch')
  flags = '--xla_force_host_platform_device_count=1'
  environment = os.environ | {'XLA_FLAGS': flags, 'JAX_PLATFORMS': 'cpu'}
  logs, crew, port = [folder / f'{index}.log' for index in range(2)], [], free_port()
  try:
    for index, log in enumerate(logs):
      command = [sys.executable, __file__, str(index), str(port), str(folder)]
      with log.open('wb') as out:
        crew.append(subprocess.Popen(command, env=environment, stdout=out, stderr=out))
    codes = [process.wait(SECONDS) for process in crew]
  finally:
    for process in crew:
      process.kill()
      process.wait()
  assert codes == [0, 0], '\n'.join(log.read_text()[-3000:] for log in logs)
  return [json.loads((folder / f'{index}.json').read_text()) for index in range(2)]


def test_things_are_dealt_out_in_turn_and_all_hear_what_each_says(seen):
  assert [one['shares'] for one in seen] == [[0, 2, 4], [1, 3]] == seen[0]['all'] == seen[1]['all']
  assert seen[0]['told'] == seen[1]['told'] == [{'from': 0, 'text': ''}, {'from': 1, 'text': 'ß' * 3000}]


def test_all_are_asked_to_stop_when_one_is(seen):
  assert seen[0]['stopped'] and seen[1]['stopped']


def test_processes_with_other_settings_are_refused_on_all(seen):
  assert (
    seen[0]['settings']
    == seen[1]['settings']
    == [
      'ConfigError',
      'process 1 has other settings or data than process 0; give all of them the same',
    ]
  )
  assert seen[0]['folder'] is None and seen[1]['folder'] is None


def test_failure_of_one_ends_the_others_with_its_reason(seen):
  assert seen[1]['failure'] == ['OSError', 'no space left on device']
  assert seen[0]['failure'] == ['HostFailure', 'process 1 failed with OSError: no space left on device']


def test_start_that_left_no_checkpoint_binds_no_settings(tmp_path):
  open_folder(tmp_path, {'prompts': 3})
  open_folder(tmp_path, {'prompts': 1})  # the first start was refused by the devices, say
  (tmp_path / 'checkpoints' / '1').mkdir(parents=True)
  open_folder(tmp_path, {'prompts': 1})
  with pytest.raises(ConfigError, match=r"other settings \(\['prompts'\]: 1 -> 2\)"):
    open_folder(tmp_path, {'prompts': 2})


def test_resumed_run_may_have_other_devices(tmp_path):
  (tmp_path / 'checkpoints' / '1').mkdir(parents=True)
  open_folder(tmp_path, {'mesh': {'fsdp': 8}, 'batching': {'micro_rows': 8, 'lengths': [64]}})
  open_folder(tmp_path, {'mesh': {'fsdp': 4}, 'batching': {'micro_rows': 4, 'lengths': [64]}})
  with pytest.raises(ConfigError, match=r"\['batching'\]\['lengths'\]\[0\]: 64 -> 32"):
    open_folder(tmp_path, {'mesh': {'fsdp': 4}, 'batching': {'micro_rows': 4, 'lengths': [32]}})


def test_resumed_run_may_have_an_engine_of_another_size_but_not_another_cache(tmp_path):
  (tmp_path / 'checkpoints' / '1').mkdir(parents=True)
  with_engine = lambda **sizes: {'rollout': {'local': dataclasses.asdict(LocalEngine(**sizes))}}
  open_folder(tmp_path, with_engine(slots=64, prompts=8, siblings=8))
  open_folder(tmp_path, with_engine(slots=4, context=64, own=32, prefill_chunk=16, hasten=False))
  with pytest.raises(ConfigError, match=r"\(\['rollout'\]\['local'\]\['cache_dtype'\]: None -> 'bfloat16'\)"):
    open_folder(tmp_path, with_engine(slots=4, cache_dtype='bfloat16'))


def test_run_of_one_process_asks_nobody():
  stop = Stop()
  with pytest.raises(OSError, match='full'), in_touch(stop):
    raise OSError('full')
  assert not stop.requested and hosts.exchange(b'x') == [b'x'] and hosts.notes('run0') == {}


if __name__ == '__main__':
  join(int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]))


def test_first_interrupt_asks_to_save_and_the_second_one_interrupts(capfd):
  before, stop = signal.getsignal(signal.SIGINT), Stop()
  with stop.listening():
    signal.raise_signal(signal.SIGINT)
    assert stop.requested
    assert 'Ctrl-C again ends it at once' in capfd.readouterr().err
    with pytest.raises(KeyboardInterrupt):
      signal.raise_signal(signal.SIGINT)
  assert signal.getsignal(signal.SIGINT) is before
