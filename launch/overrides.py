"""Reads a launcher's flags; a --config.KEY that does not exist is refused in one line, as any other setting is."""

import re
import sys

from absl import app

_KEY, _NEAR = re.compile(r"'([^']+)'"), re.compile(r'Did you mean "([^"]+)"')


def parsed(arguments: list[str]) -> list[str]:
  """What of the arguments is no flag; for `app.run(main, flags_parser=parsed)`."""
  try:
    return app.parse_flags_with_usage(arguments)
  except (AttributeError, KeyError) as error:  # of a ConfigDict; what a file of configs/ raises comes as a flag's error
    told = str(error).replace('\\', '')
    key, near = _KEY.search(told), _NEAR.search(told)
    if key is None:
      raise
    given = [argument for argument in arguments if re.search(rf'[.]{re.escape(key[1])}(?=[.=]|$)', argument)]
    advice = f'did you mean {near[1]!r}?' if near else 'see the settings of its group'
    sys.exit(f'ConfigError: {given[0] if given else key[1]}: {key[1]!r} is not a setting; {advice}')
