"""Shows where credit goes in a run, as one HTML page; or one rollout, or one record of a data set, in the terminal.

python launch/explain.py RUN [--rollouts=1000] [--steps=1,50]      # writes RUN/report.html
python launch/explain.py RUN --rollout=STEP.GROUP.ROLLOUT          # one rollout as coloured text
python launch/explain.py RUN --picture=FILE.png [--view='#/g/0']   # the page by a headless Chromium
python launch/explain.py RUN --example                             # first makes RUN, with the paper's case in it
python launch/explain.py --data=FILE [--model=FOLDER] [--index=0]  # a record of a data set

Text is coloured by segment and by what is learned; NO_COLOR and pipes get it plain.
"""

import os
import pathlib
import shutil
import sys

from absl import app, flags, logging

from slca_jax.data.show import show_record, wants_color
from slca_jax.errors import Refused

_DATA = flags.DEFINE_string('data', '', 'A data set in any format that launch/prepare_data.py reads.')
_MODEL = flags.DEFINE_string('model', '', 'Checkpoint whose tokenizer and chat template show the tokens.')
_INDEX = flags.DEFINE_integer('index', 0, 'Which record, from 0.', lower_bound=0)
_ROLLOUT = flags.DEFINE_string('rollout', '', 'Which rollout to print: step.group.rollout; groups count from 0.')
_ROLLOUTS = flags.DEFINE_integer('rollouts', 1000, 'About how many rollouts the report holds.', lower_bound=1)
_STEPS = flags.DEFINE_list('steps', [], 'Steps that they come from; spread evenly if none are given.')
flags.register_validator('steps', lambda steps: all(map(str.isdecimal, steps)), 'steps are numbers, commas between')
_EXAMPLE = flags.DEFINE_bool('example', False, 'Make an example run in RUN first.')
_PICTURE = flags.DEFINE_string('picture', '', 'PNG of the report; needs Chromium.')
_VIEW = flags.DEFINE_string('view', '#/g/0', 'What of the report the picture shows.')


def show_run(run: pathlib.Path, color: bool) -> str:
  """What is to be said of a run; its report is written on the way. Raises Refused."""
  from slca_jax.report import browser, example, page, terminal  # JAX takes its time to load

  if _EXAMPLE.value:
    example.write_example(run)
  if _ROLLOUT.value:
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 0
    return terminal.rollout_text(run, _ROLLOUT.value, color=color, width=width)
  written = page.write_report(run, most=_ROLLOUTS.value, steps=tuple(map(int, _STEPS.value)))
  if _PICTURE.value:
    browser.take(written, _VIEW.value, pathlib.Path(_PICTURE.value))
  return f'wrote {written}'


def main(arguments: list[str]) -> None:
  """Prints what was asked for."""
  runs = arguments[1:]
  if len(runs) > 1 or bool(runs) == bool(_DATA.value):
    raise app.UsageError(f'name a run or --data, not {runs} and --data={_DATA.value!r}')
  logging.set_verbosity(logging.WARNING)
  try:
    color = wants_color(sys.stdout, os.environ)
    shown = (
      show_run(pathlib.Path(runs[0]), color) if runs else show_record(_DATA.value, _INDEX.value, _MODEL.value, color)
    )
    print(shown)
  except (Refused, OSError) as error:
    sys.exit(f'{type(error).__name__}: {error}')


if __name__ == '__main__':
  app.run(main)
