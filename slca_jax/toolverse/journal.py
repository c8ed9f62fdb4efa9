"""JSON lines of finished work: what is there is not done again."""

import json
import os
import pathlib
from typing import Any


class Journal:
  """A file with one line per piece of work, each under a key; of equal keys the last line counts.

  A line that an interruption cut off is ignored, and the next one begins on a line of its own.
  """

  def __init__(self, path: str | os.PathLike[str]):
    self.path = pathlib.Path(path)
    self._known: dict[str, dict[str, Any]] = {}
    data = self.path.read_bytes() if self.path.exists() else b''
    self._torn = bool(data) and not data.endswith(b'\n')
    for line in data.splitlines():
      try:
        record = json.loads(line)
        self._known[record['key']] = record
      except (ValueError, KeyError, TypeError):
        continue

  def get(self, key: str) -> dict[str, Any] | None:
    """The record under a key, None if that work was not finished."""
    return self._known.get(key)

  def put(self, key: str, record: dict[str, Any]) -> None:
    """Keeps a record; it is on disk when this returns."""
    whole = {'key': key, **record}
    self.path.parent.mkdir(parents=True, exist_ok=True)
    with self.path.open('ab') as file:
      file.write((b'\n' if self._torn else b'') + json.dumps(whole, ensure_ascii=False).encode() + b'\n')
      file.flush()
      os.fsync(file.fileno())
    self._torn = False
    self._known[key] = whole
