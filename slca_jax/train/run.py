"""What every run shares: its settings on disk, and how it is told to stop, by a signal or by another process of it."""

import asyncio
import contextlib
import itertools
import json
import logging
import os
import pathlib
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from slca_jax.data.folders import claimed, digest_of, write_json
from slca_jax.errors import ConfigError, HostFailure
from slca_jax.nn import hosts
from slca_jax.train.checkpoint import same_run

# Settings that may differ when a run is resumed: what is written, and how far it goes. With another number of steps a
# schedule that decays goes on as that of the new length.
_FREE = ('output', 'steps', 'epochs', 'dump_every', 'dump_logps', 'eval_every', 'checkpoint', 'diagnostics', 'trace')
# Servers and endpoints move, and how long they are waited for changes no answer. On other devices sums round otherwise,
# and nothing else changes.
_FREE_PARTS = (
  "['mesh']",
  "['batching']['micro_rows']",
  "['logprob_chunk']",
  "['objective']['logprob_chunk']",
  "['model']['remat']",
  "['model']['attention']",
  "['model']['attention_block']",
  "['reference']['placement']",
  "['rollout']['sglang']",
  "['rollout']['urls']",
  "['cache']",
  "['data']['encoded']",
  *(  # the embedded engine's sizes, all but the type of its cache
    f"['rollout']['local']['{name}']"
    for name in (
      *('slots', 'prompts', 'siblings', 'context', 'own', 'stop_ids', 'hasten'),
      *('prefill_chunk', 'turn_chunk', 'prefill_rows', 'decode_block'),
    )
  ),
  *(
    f"{part}['{name}']"
    for part in ("['environment']['simulator']", "['judge']['endpoint']", "['referee']")
    for name in (
      *('base_url', 'api_key_env', 'concurrency', 'request_seconds', 'deadline', 'retries', 'rereads'),
      *('first_pause', 'longest_pause', 'input_price', 'output_price'),
    )
  ),
)


_RUNS = itertools.count()  # every process of a run has begun as many as the others
_RESULT = 'result.json'
_LOOK_SECONDS, _GRACE_SECONDS = 0.5, 15.0
_STOPPING = b'\nThe run saves what it has and ends; the same command goes on with it. Ctrl-C again ends it at once.\n'


class Stop:
  """Whether the run was asked to stop. SIGTERM and Ctrl-C ask; the loop saves at the next border of a step and ends.

  A second Ctrl-C interrupts at once.

  Attributes:
    requested: here, or on any host of the run.
    failure: why another host cannot go on, '' while all can.
  """

  def __init__(self):
    self.requested = False
    self.failure = ''

  @contextlib.contextmanager
  def listening(self) -> Iterator['Stop']:
    """Listens for SIGTERM and SIGINT inside the block."""
    before = {number: signal.signal(number, self._ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
      yield self
    finally:
      for number, handler in before.items():
        signal.signal(number, handler)

  def _ask(self, number: int, _: Any) -> None:
    self.requested = True
    if number == signal.SIGINT:
      signal.signal(signal.SIGINT, signal.default_int_handler)
      os.write(2, _STOPPING)  # a handler may stand inside of a print


@contextlib.contextmanager
def in_touch(stop: Stop) -> Iterator[None]:
  """Tells the other processes of a run that this one was asked to stop or has failed, and hears it of them.

  A process that hears of a failure and is stuck in a program that all should run ends itself after a while.

  Raises:
    HostFailure: another process failed; says which and why.
  """
  if jax.process_count() == 1:
    yield
    return
  board = f'run{next(_RUNS)}'
  over = threading.Event()
  thread = threading.Thread(target=_look_out, args=(board, stop, over), daemon=True)
  thread.start()
  try:
    yield
  except BaseException as error:
    _hear(board, stop)
    if stop.failure:
      raise HostFailure(stop.failure) from error
    _tell(board, error)
    raise
  finally:
    over.set()
    thread.join()


def _look_out(board: str, stop: Stop, over: threading.Event) -> None:
  told, heard_at = False, None
  while not over.wait(_LOOK_SECONDS):
    if stop.requested and not told:
      hosts.leave_note(f'{board}/stop/{jax.process_index()}', 'asked to stop')
      told = True
    _hear(board, stop)
    if stop.failure and heard_at is None:
      heard_at = time.monotonic()
    if heard_at is not None and time.monotonic() - heard_at > _GRACE_SECONDS:
      print(f'HostFailure: {stop.failure}', file=sys.stderr, flush=True)
      os._exit(1)


def _hear(board: str, stop: Stop) -> None:
  try:
    failed, asked = hosts.notes(f'{board}/failed'), hosts.notes(f'{board}/stop')
  except jax.errors.JaxRuntimeError as error:
    stop.failure = stop.failure or f'process 0 is gone, where all meet ({str(error).splitlines()[0]})'
    return
  failed.pop(str(jax.process_index()), None)
  if failed:
    index, reason = min(failed.items())
    stop.failure = f'process {index} failed with {reason}'
    hosts.leave_note(f'{board}/heard/{jax.process_index()}', stop.failure)
  if asked:
    stop.requested = True


def _tell(board: str, error: BaseException) -> None:
  """Leaves word of a failure, and waits until all have read it: nobody hears of one who takes the coordinator away."""
  with contextlib.suppress(jax.errors.JaxRuntimeError):
    hosts.leave_note(f'{board}/failed/{jax.process_index()}', f'{type(error).__name__}: {error}'[:2000])
    end = time.monotonic() + _GRACE_SECONDS
    while len(hosts.notes(f'{board}/heard')) < jax.process_count() - 1 and time.monotonic() < end:
      time.sleep(_LOOK_SECONDS / 5)


async def unless(stop: Stop, work: Any) -> Any:
  """The result of `work`, or None if `stop` is requested first; the work is cancelled then, and can be done again.

  Raises:
    HostFailure: another host failed meanwhile.
  """
  task = asyncio.ensure_future(work)
  while not task.done():
    await asyncio.wait({task}, timeout=0.2)
    if (stop.requested or stop.failure) and not task.done():
      task.cancel()
      with contextlib.suppress(asyncio.CancelledError):
        await task
      break
  if stop.failure:
    raise HostFailure(stop.failure)
  return None if stop.requested else task.result()


@contextlib.contextmanager
def opened(folder: pathlib.Path, settings: dict[str, Any], *, data: Sequence[str] = ()) -> Iterator[None]:
  """Holds the run's folder, on the first host for all of them, and writes or checks its settings as `remember` does.

  Raises:
    ConfigError: another run holds it, or a setting or file differs between hosts, or from the folder's, if it holds a
      checkpoint.
  """
  digests = {path: digest_of(path) for path in data if path}
  hosts.require_same('settings or data', json.dumps(settings | {'sha256': digests}, sort_keys=True, default=str))
  with contextlib.ExitStack() as held:

    def claim() -> None:
      held.enter_context(claimed(folder))
      if not _has_begun(folder):  # a start that was refused, or left nothing to go on from, binds nobody
        (folder / 'config.json').unlink(missing_ok=True)
      remember(folder, settings, digests=digests)

    hosts.agree(claim, first_only=True)
    yield


def hush() -> None:
  """Keeps HTTP clients from logging a line per request: a step sends thousands."""
  for name in ('httpx2', 'httpx', 'openai'):
    logging.getLogger(name).setLevel(logging.WARNING)


def remember(folder: pathlib.Path, settings: dict[str, Any], *, digests: dict[str, str] | None = None) -> None:
  """Writes the settings to `config.json`, or checks them against those the folder's run was started with.

  Args:
    digests: of the files that the run is trained on, which must not change between the start and a resumption.

  Raises:
    ConfigError: a setting or a file that matters differs; names them.
  """
  settings = settings | {'sha256': digests or {}}
  path = folder / 'config.json'
  if path.exists():
    before = json.loads(path.read_text('utf-8'))
    drop = lambda tree: {key: value for key, value in tree.items() if key not in _FREE}
    changed = [line for line in same_run(drop(settings), drop(before)) if not line.startswith(_FREE_PARTS)]
    if changed:
      raise ConfigError(
        f'{folder} holds a run with other settings ({"; ".join(changed[:5])}); choose another output or remove it'
      )
  write_json(path, settings)


def remembered(folder: pathlib.Path) -> dict[str, Any]:
  """The settings that `remember` wrote, without the digests of files beside them. Raises ConfigError without any."""
  path = folder / 'config.json'
  settings = json.loads(path.read_text('utf-8')) if path.exists() else {}
  if 'output' not in settings:
    raise ConfigError(f'{folder} is no folder of a run; no config.json in it holds the settings of one')
  return {name: value for name, value in settings.items() if name != 'sha256'}


def write_result(folder: pathlib.Path, result: dict[str, Any]) -> None:
  """Writes `result.json`, which tells whoever waits for the run that it has ended. All hosts call it."""
  hosts.agree(lambda: write_json(folder / _RESULT, result), first_only=True)


def withdraw_result(folder: pathlib.Path) -> None:
  """Removes the result of a run that had ended and goes on."""
  if hosts.is_first():
    (folder / _RESULT).unlink(missing_ok=True)


def _has_begun(folder: pathlib.Path) -> bool:
  return any(path.name.isdigit() for path in (folder / 'checkpoints').glob('*'))
