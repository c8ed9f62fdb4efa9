"""Answers on disk, one file each under a digest of the question. A file appears whole or not at all."""

import contextlib
import hashlib
import itertools
import json
import logging
import os
import pathlib
from collections.abc import Mapping
from typing import Any

_COUNT = itertools.count()


def digest(question: Mapping[str, Any]) -> str:
  """The content address of a question: 64 hexadecimal digits, the same for equal JSON."""
  text = json.dumps(question, sort_keys=True, ensure_ascii=True, separators=(',', ':'))
  return hashlib.sha256(text.encode()).hexdigest()


class Answers:
  """A folder of answers: `ab/ab….json` holds the question and the reply to it."""

  def __init__(self, folder: str | os.PathLike):
    self.folder = pathlib.Path(folder)

  def path(self, key: str) -> pathlib.Path:
    """Where the answer of a key stands."""
    return self.folder / key[:2] / f'{key}.json'

  def get(self, key: str) -> dict[str, Any] | None:
    """The reply under a key; None if there is none, or what is there cannot be read (which is logged)."""
    path = self.path(key)
    try:
      record = json.loads(path.read_text('utf-8'))
      if record['key'] != key or not isinstance(record['reply']['text'], str):
        raise ValueError('it does not hold the answer of its name')
      return record['reply']
    except FileNotFoundError:
      return None
    except (OSError, ValueError, KeyError, TypeError) as error:
      logging.warning('the cached answer %s cannot be read and is asked for again: %r', path, error)
      return None

  def put(self, key: str, question: Mapping[str, Any], reply: Mapping[str, Any]) -> bool:
    """Writes an answer; False if the disk would not take it, which is logged and costs no more than the file."""
    path = self.path(key)
    part = path.with_suffix(f'.{os.getpid()}-{next(_COUNT)}.part')
    try:
      path.parent.mkdir(parents=True, exist_ok=True)
      part.write_text(json.dumps({'key': key, 'question': question, 'reply': reply}), 'utf-8')
      os.replace(part, path)
    except OSError as error:
      logging.warning('the answer %s could not be kept: %r', path, error)
      with contextlib.suppress(OSError):
        part.unlink(missing_ok=True)
      return False
    return True
