"""Reads a launcher's flags; a --config that is none, or a KEY that does not exist, is refused in one line."""

import re
import sys

from absl import flags

_KEY, _NEAR = re.compile(r"'([^']+)'"), re.compile(r'Did you mean "([^"]+)"')
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
    sys.exit(f'FATAL Flags parsing error: {error}\nPass --helpshort or --helpfull to see help on flags.')
  except OSError as error:
    sys.exit(f'ConfigError: --config cannot be read: {str(error).strip().splitlines()[-1].strip()}')
  except (AttributeError, KeyError) as error:  # of a ConfigDict
    told = str(error).replace('\\', '')
    key, near = _KEY.search(told), _NEAR.search(told)
    if key is None:
      raise
    given = [argument for argument in arguments if re.search(rf'[.]{re.escape(key[1])}(?=[.=]|$)', argument)]
    advice = f'did you mean {near[1]!r}?' if near else 'see the settings of its group'
    sys.exit(f'ConfigError: {given[0] if given else key[1]}: {key[1]!r} is not a setting; {advice}')
