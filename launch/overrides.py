"""Reads a launcher's flags; a --config that is none, a KEY or a kind of VALUE that is wrong, is refused in one line."""

import re
import sys

from absl import flags

_KEY, _NEAR = re.compile(r"'([^']+)'"), re.compile(r'Did you mean "([^"]+)"')
_INSIDE = re.compile(r'Attempting to lookup: ([\w.]+)')
# What a value has to be, by what absl says where it cannot be read.
_WANTED = {
  'invalid literal for int': 'a whole number',
  'could not convert string to float': 'a number',
  'Non-boolean argument': 'True or False',
  'Error while parsing string': "values in brackets, as in '(256, 512)'",
  'Failed to parse': 'a group in braces, as in \'{"KEY": 1}\'',
}
_ILLEGAL = re.compile(rf'flag (--config[.].+): \W*({"|".join(_WANTED)})', re.S)
_RAISED = re.compile(
  r'flag (--\w+=\S+): Error whilst parsing config file:.*\n\s*(?:ValueError|\S+\.ConfigError): (.+)', re.S
)


def parsed(arguments: list[str]) -> list[str]:
  """What of the arguments is no flag; for `app.run(main, flags_parser=parsed)`."""
  try:
    rest = flags.FLAGS(arguments)
    _ = flags.FLAGS.config.keys  # a file that is not there comes to light where its settings are read
    return rest
  except flags.Error as error:
    if raised := _RAISED.search(str(error)):  # what a file of configs/ refuses
      sys.exit(': '.join(('ConfigError', raised[1], raised[2].strip())))
    if illegal := _ILLEGAL.match(str(error)):
      sys.exit(f'ConfigError: {illegal[1]}: it takes {_WANTED[illegal[2]]}')
    sys.exit(f'FATAL Flags parsing error: {error}\nPass --helpshort or --helpfull to see help on flags.')
  except OSError as error:
    sys.exit(f'ConfigError: --config cannot be read: {str(error).strip().splitlines()[-1].strip()}')
  except (AttributeError, KeyError) as error:  # of a ConfigDict
    told = str(error).replace('\\', '')
    if inside := _INSIDE.search(told):
      sys.exit(f'ConfigError: --config.{inside[1]}: {inside[1].rpartition(".")[0]!r} is no group of settings')
    key, near = _KEY.search(told), _NEAR.search(told)
    if key is None:
      raise
    given = [argument for argument in arguments if re.search(rf'[.]{re.escape(key[1])}(?=[.=]|$)', argument)]
    advice = f'did you mean {near[1]!r}?' if near else 'see the settings of its group'
    sys.exit(f'ConfigError: {given[0] if given else key[1]}: {key[1]!r} is not a setting; {advice}')
