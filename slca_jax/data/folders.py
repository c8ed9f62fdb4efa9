"""Folders that one process writes at a time, and files that appear whole or not at all."""

import contextlib
import fcntl
import hashlib
import json
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from slca_jax.errors import ConfigError


@contextlib.contextmanager
def claimed(folder: pathlib.Path) -> Iterator[None]:
  """Holds the folder for this process; its end, however it comes, gives it free.

  Raises:
    ConfigError: another process holds it, or nothing can be written there.
  """
  try:
    folder.mkdir(parents=True, exist_ok=True)
    opened = open(folder / '.lock', 'w', encoding='utf-8')  # noqa: SIM115 (closed by the block below)
  except OSError as error:
    raise ConfigError(f'{folder} cannot be written: {error.strerror or error}; choose another output') from error
  with opened as lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
      raise ConfigError(f'another run is writing to {folder}; wait for it or choose another output') from None
    yield


def digest_of(path: str | os.PathLike[str]) -> str:
  """SHA-256 of a file's content, in hexadecimal."""
  with open(path, 'rb') as file:
    return hashlib.file_digest(file, 'sha256').hexdigest()


def write_whole(path: pathlib.Path, content: bytes) -> None:
  """Writes a file that is on disk, whole, when this returns; until then what was there before stays."""
  part = path.with_name(f'{path.name}.part')
  with open(part, 'wb') as file:
    file.write(content)
    settle(file)
  os.replace(part, path)


def write_json(path: pathlib.Path, value: Any) -> None:
  """Writes JSON as `write_whole` does."""
  write_whole(path, (json.dumps(value, indent=2, ensure_ascii=False) + '\n').encode())


def settle(file: Any) -> None:
  """Waits until what was written to the file is on disk."""
  file.flush()
  os.fsync(file.fileno())
