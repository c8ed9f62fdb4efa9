"""Versions of the weights on disk, for servers to load: whole or not there, the oldest removed."""

import errno
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

from slca_jax.errors import SamplerError

Save = Callable[[Any, pathlib.Path], object]  # (params, folder): writes a checkpoint there

_PREFIX = 'v'


class Published:
  """Folders `v<version>` under `root`.

  Args:
    save: writes a checkpoint; every process of a multi-host run calls it, and it writes there what is that process's.
    needed: bytes of a checkpoint, for messages and to notice a full disk before writing; 0 if not known.
    keep: versions that stay.
  """

  def __init__(self, root: pathlib.Path, save: Save, *, needed: int, keep: int):
    self.root, self._save, self._needed, self._keep = root.absolute(), save, needed, keep

  def write(self, params: Any, version: int) -> tuple[pathlib.Path, int]:
    """(folder of the new version, its bytes). Nothing half-written stays behind.

    Raises:
      SamplerError: it cannot be written; names the folder and the bytes that are needed.
    """
    folder = self.root / f'{_PREFIX}{version:08d}'
    stays = folder.exists()  # a resumed run writes a version again, and servers may need the one that is there
    try:
      self.root.mkdir(parents=True, exist_ok=True)
      free = shutil.disk_usage(self.root).free
      if free < self._needed:
        raise OSError(errno.ENOSPC, 'no space left on device')
      self._save(params, folder)
    except OSError as error:
      self._clear(folder, stays)
      raise SamplerError(self._complaint(folder, error)) from error
    except BaseException:
      self._clear(folder, stays)
      raise
    return folder, sum(file.stat().st_size for file in folder.rglob('*') if file.is_file())

  def prune(self, version: int) -> None:
    """Removes all but the last `keep` versions up to this one; what lies beyond it is of a run that was set back."""
    found = {int(path.name[1:]): path for path in self.root.glob(f'{_PREFIX}*') if path.name[1:].isdigit()}
    kept = sorted(known for known in found if known <= version)[-self._keep :]
    for known, path in found.items():
      if known not in kept:
        shutil.rmtree(path, ignore_errors=True)

  def _clear(self, folder: pathlib.Path, stays: bool) -> None:
    prepared = self.root.glob(f'.{folder.name}.*')
    for path in (*prepared, *([] if stays else [folder])):
      shutil.rmtree(path, ignore_errors=True)

  def _complaint(self, folder: pathlib.Path, error: OSError) -> str:
    message = f'the weights could not be written to {folder}: {error.strerror or error}'
    if self._needed:
      message += f'; they need {self._needed:,} bytes'
    if error.errno in (errno.ENOSPC, errno.EDQUOT) and self.root.is_dir():
      message += f', {shutil.disk_usage(self.root).free:,} are free. Make room, or name another folder'
    return message
