"""Writes a GGUF checkpoint of a Llama-shaped model as a Hugging Face folder.

python launch/convert_gguf.py --source=SmolLM2-135M-Instruct.Q4_1.gguf --output=runs/smollm2/base
"""

import sys
import typing

from absl import app, flags

from slca_jax.errors import Refused
from slca_jax.nn.config import Dtype

_SOURCE = flags.DEFINE_string('source', None, 'The GGUF file.', required=True)
_OUTPUT = flags.DEFINE_string('output', None, 'The folder to write.', required=True)
_DTYPE = flags.DEFINE_enum('dtype', 'float32', ['float32', 'bfloat16'], 'Type of the written tensors.')


def main(arguments: list[str]) -> None:
  """Converts, and prints what decoder it was."""
  if len(arguments) > 1:
    raise app.UsageError(f'unknown arguments {arguments[1:]}')
  from slca_jax.nn import gguf

  try:
    print(gguf.convert(_SOURCE.value, _OUTPUT.value, dtype=typing.cast(Dtype, _DTYPE.value)))
  except Refused as error:
    sys.exit(f'{type(error).__name__}: {error}')


if __name__ == '__main__':
  app.run(main)
