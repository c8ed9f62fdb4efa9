"""Safetensors files, tensor by tensor: read any part of one, write them one after another.

A file is eight bytes of header length, a JSON header (type, shape and byte range of each tensor), then the bytes.
Reading through a memory map touches only the part that was asked for, and writing holds one tensor at a time.
"""

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterable, Sequence

import ml_dtypes
import numpy as np

from slca_jax.errors import WeightsError

_DTYPES = {
  'F64': np.dtype(np.float64),
  'F32': np.dtype(np.float32),
  'F16': np.dtype(np.float16),
  'BF16': np.dtype(ml_dtypes.bfloat16),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_LONGEST_HEADER = 100_000_000
_CHUNK = 4 << 20


@dataclasses.dataclass(frozen=True)
class StoredTensor:
  """Where a tensor lies: its file, the type's name as the file has it, its shape and its first byte."""

  file: pathlib.Path
  dtype: str
  shape: tuple[int, ...]
  start: int

  def read(self, index: Sequence[slice]) -> np.ndarray:
    """The part of the tensor under `index`, still a view of the file."""
    return np.memmap(self.file, _DTYPES[self.dtype], 'r', self.start, self.shape)[tuple(index)]


def read_header(file: pathlib.Path) -> dict[str, StoredTensor]:
  """The tensors of a file by name.

  Raises:
    WeightsError: the file is cut short or is no safetensors file.
  """
  size = file.stat().st_size
  with file.open('rb') as stream:
    length = int.from_bytes(stream.read(8), 'little')
    if not 0 < length <= min(size - 8, _LONGEST_HEADER):
      raise WeightsError(f'{file} is no safetensors file, or was cut short; fetch it again')
    text = stream.read(length)
  try:
    entries = json.loads(text)
    entries.pop('__metadata__', None)
    return {name: _stored(file, 8 + length, size, entry) for name, entry in entries.items()}
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise WeightsError(f'{file} has a header that cannot be read ({error}); fetch it again') from error


def _stored(file, base, size, entry):
  shape, (start, end) = tuple(entry['shape']), entry['data_offsets']
  if not 0 <= start <= end <= size - base:
    raise ValueError(f'{size} bytes end before byte {base + end} of its tensors')
  dtype = _DTYPES.get(entry['dtype'])
  if dtype is not None and end - start != math.prod(shape) * dtype.itemsize:
    raise ValueError(f'shape {shape} of {entry["dtype"]} does not fill {end - start} bytes')
  return StoredTensor(file, entry['dtype'], shape, base + start)


def is_readable(dtype: str) -> bool:
  """Whether a tensor of this type is plain floating point; quantised and integer ones are not weights of ours."""
  return dtype in _DTYPES


@dataclasses.dataclass(frozen=True)
class TensorPlan:
  """A tensor to be written, known before it is fetched."""

  name: str
  shape: tuple[int, ...]
  dtype: np.dtype

  @property
  def nbytes(self) -> int:
    """Bytes that it takes in a file."""
    return math.prod(self.shape) * self.dtype.itemsize


def write(file: pathlib.Path, plans: Sequence[TensorPlan], tensors: Iterable[np.ndarray]) -> None:
  """Writes the tensors, which are asked for one by one and in the order of the plans."""
  header: dict = {'__metadata__': {'format': 'pt'}}
  end = 0
  for plan in plans:
    header[plan.name] = {
      'dtype': _NAMES[plan.dtype],
      'shape': list(plan.shape),
      'data_offsets': [end, end + plan.nbytes],
    }
    end += plan.nbytes
  text = json.dumps(header, separators=(',', ':')).encode()
  text += b' ' * (-len(text) % 8)
  with file.open('wb') as stream:
    stream.write(len(text).to_bytes(8, 'little') + text)
    for plan, tensor in zip(plans, tensors, strict=True):
      if tensor.shape != plan.shape or tensor.dtype != plan.dtype:
        raise WeightsError(f'{plan.name} is {tensor.dtype}{tensor.shape}, planned {plan.dtype}{plan.shape}')
      if tensor.size:
        _write_bytes(stream, np.ascontiguousarray(tensor).reshape(-1).view(np.uint8).data)


def _write_bytes(stream, data: memoryview):
  # One call for a whole large tensor can cost several times as much as calls for a few megabytes each.
  for start in range(0, len(data), _CHUNK):
    stream.write(data[start : start + _CHUNK])
