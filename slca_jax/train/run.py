"""What every run shares: its settings on disk, and how it is told to stop."""

import contextlib
import hashlib
import json
import logging
import pathlib
import signal
from collections.abc import Iterator, Sequence
from typing import Any

from slca_jax.data.folders import write_json
from slca_jax.errors import ConfigError
from slca_jax.train.checkpoint import same_run

# Settings that may differ when a run is resumed: what is written, and how far it goes. With another number of steps a
# schedule that decays goes on as that of the new length.
_FREE = ('output', 'steps', 'epochs', 'dump_every', 'eval_every', 'checkpoint')
# Servers and endpoints move, and how long they are waited for changes no answer.
_FREE_PARTS = (
  "['rollout']['sglang']",
  "['rollout']['urls']",
  "['cache']",
  *(
    f"{part}['{name}']"
    for part in ("['environment']['simulator']", "['judge']['endpoint']", "['referee']")
    for name in (
      *('base_url', 'api_key_env', 'concurrency', 'request_seconds', 'deadline', 'retries', 'rereads'),
      *('first_pause', 'longest_pause', 'input_price', 'output_price'),
    )
  ),
)


class Stop:
  """Whether the run was asked to stop. SIGTERM asks; the loop saves at the next border of a step and ends."""

  def __init__(self):
    self.requested = False

  @contextlib.contextmanager
  def listening(self) -> Iterator['Stop']:
    """Listens for SIGTERM inside the block."""
    before = signal.signal(signal.SIGTERM, self._ask)
    try:
      yield self
    finally:
      signal.signal(signal.SIGTERM, before)

  def _ask(self, *_: Any) -> None:
    self.requested = True


def hush() -> None:
  """Keeps HTTP clients from logging a line per request: a step sends thousands."""
  for name in ('httpx2', 'httpx', 'openai'):
    logging.getLogger(name).setLevel(logging.WARNING)


def remember(folder: pathlib.Path, settings: dict[str, Any], *, data: Sequence[str] = ()) -> None:
  """Writes the settings to `config.json`, or checks them against those the folder's run was started with.

  Args:
    data: files the run is trained on; their contents must not change between the start and a resumption.

  Raises:
    ConfigError: a setting or a file that matters differs; names them.
  """
  settings = settings | {'sha256': {path: _digest(path) for path in data if path}}
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


def _digest(path: str) -> str:
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()
