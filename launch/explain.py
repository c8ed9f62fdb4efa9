"""Prints a record of a data set as text, coloured by segment and by what is learned.

python launch/explain.py --data=FILE [--model=FOLDER] [--index=0]

With a model's tokenizer it shows tokens, by the template that training uses; NO_COLOR and pipes get plain text.
"""

import os
import sys

from absl import app, flags, logging

from slca_jax.data.formats.read import read
from slca_jax.data.show import explain, wants_color
from slca_jax.errors import Refused

_DATA = flags.DEFINE_string('data', '', 'A data set in any format that data/formats reads.')
_MODEL = flags.DEFINE_string('model', '', 'Checkpoint whose tokenizer and chat template show the tokens.')
_INDEX = flags.DEFINE_integer('index', 0, 'Which record, from 0.', lower_bound=0)


def show_record(source: str, index: int, model: str) -> str:
  """The text of one record. Raises Refused."""
  row = next((row for place, row in enumerate(read(source, strict=False)) if place == index), None)
  if row is None:
    raise Refused(f'index is {index}; {source} has fewer records')
  template = None
  if model:
    from slca_jax.chat.template import load_template  # transformers takes its time to load

    template = load_template(model)
  return explain(row, template, color=wants_color(sys.stdout, os.environ))


def main(arguments: list[str]) -> None:
  """Prints what was asked for."""
  if len(arguments) > 1:
    raise app.UsageError(f'unknown arguments {arguments[1:]}')
  if not _DATA.value:
    raise app.UsageError('--data is empty; name a data set')
  logging.set_verbosity(logging.WARNING)
  try:
    print(show_record(_DATA.value, _INDEX.value, _MODEL.value))
  except (Refused, OSError) as error:
    sys.exit(f'{type(error).__name__}: {error}')


if __name__ == '__main__':
  app.run(main)
