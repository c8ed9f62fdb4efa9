"""The elements of a JSON list that may be larger than memory, decoded one by one with the same rules as JSON lines."""

import io
import json
import pathlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from slca_jax.data.formats.texts import distinct, encodable, no_constant
from slca_jax.errors import DataError

_CHUNK = 1 << 20  # characters that are read at once
_NEAR = 16  # a decoder that stops so close to the end of what was read may only have met the middle of a word
_DECODER = json.JSONDecoder(object_pairs_hook=distinct, parse_constant=no_constant)


class Elements:
  """(number, value) of each element, from 1. After a broken one nobody knows where the next begins, so it is raised.

  Raises:
    DataError: names file and element, and whether the file is cut.
  """

  def __init__(self, path: pathlib.Path, file: BinaryIO):
    self._path = path
    self._file = io.TextIOWrapper(file, encoding='utf-8-sig', newline='')
    self._text, self._place, self._count = '', 0, 0

  def __iter__(self) -> Iterator[tuple[int, Any]]:
    try:
      self._take()  # the bracket that opens the list
      mark = ',' if self._peek() != ']' else self._take()
      while mark == ',':
        self._peek()
        self._count += 1
        yield self._count, self._value()
        mark = self._take()
      if mark != ']':
        raise self._error('the file is cut' if not mark else f'{mark!r} follows; a comma or ] should')
      if self._peek():
        raise self._error(f'{self._text[self._place :][:40]!r} follows the end of the list')
    except UnicodeDecodeError as error:
      raise self._error(str(error)) from error

  def _value(self) -> Any:
    """The value that begins here. What is read doubles with each try, so a huge one is not decoded for each chunk."""
    while True:
      try:
        value, end = _DECODER.raw_decode(self._text, self._place)
        encodable(value, self._text[self._place : end])
      except json.JSONDecodeError as error:
        open_ended = error.msg.startswith('Unterminated') or error.pos > len(self._text) - _NEAR
        if not open_ended:
          raise self._error(str(error)) from error
        if not self._more():
          raise self._error(f'the file is cut: {error}') from error
      except (ValueError, RecursionError) as error:
        raise self._error(f'{type(error).__name__}: {error}') from error
      else:
        self._place = end
        return value

  def _peek(self) -> str:
    """The next character that is no space, '' at the end."""
    while True:
      rest = self._text[self._place : self._place + 1]
      if rest and rest not in ' \t\r\n':
        return rest
      self._place += len(rest)
      if not rest and not self._more():
        return ''

  def _take(self) -> str:
    mark = self._peek()
    self._place += len(mark)
    return mark

  def _more(self) -> bool:
    rest = self._text[self._place :]
    read = self._file.read(max(_CHUNK, len(rest)))
    self._text, self._place = rest + read, 0
    return bool(read)

  def _error(self, reason: str) -> DataError:
    return DataError(f'{self._path}: record {self._count} of the list: {reason}')
