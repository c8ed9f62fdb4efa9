"""One HTML file that needs nothing else: data as JSON that cannot end its element, scripts and styles by their hashes.

What a policy wrote is hostile. It reaches the page as JSON in ASCII without `<`, is put there as text and never as
markup, and the page's own policy lets nothing run but the scripts that were written into it.
"""

import base64
import hashlib
import html
import importlib.resources
import json
import pathlib
from typing import Any

from slca_jax.chat.template import Template, load_template
from slca_jax.data.folders import write_whole
from slca_jax.errors import TemplateError
from slca_jax.report.model import Model, model_of
from slca_jax.report.reading import Settings, metrics_of, sampled_in, settings_of

_SCRIPTS = ('dom.js', 'overview.js', 'rollout.js', 'app.js')
_UNSAFE = {'<': '\\u003c', '>': '\\u003e', '&': '\\u0026'}


def write_report(run: pathlib.Path, *, most: int = 1000, steps: tuple[int, ...] = ()) -> pathlib.Path:
  """Writes `report.html` into a run's folder and returns its path.

  Args:
    most: about how many rollouts it holds.
    steps: which steps they come from; spread evenly if empty.

  Raises:
    DataError: the run has no rollouts, or not at these steps.
    ConfigError: its settings are not what this version knows.
  """
  settings = settings_of(run)
  sampled = sampled_in(run, most=most, steps=steps)
  path = run / 'report.html'
  model = model_of(run, sampled, settings, metrics_of(run), template_of(settings))
  write_whole(path, page_of(model).encode())
  return path


def template_of(settings: Settings) -> Template | None:
  """The policy's template; None if none of the places where it may lie has a tokenizer."""
  for place in settings.model:
    try:
      return load_template(place, options=settings.template)
    except TemplateError:
      continue
  return None


def page_of(model: Model) -> str:
  """The page that shows the data."""
  style, script = _resource('style.css'), ''.join(map(_resource, _SCRIPTS))
  bodies = [_data(f'group-{place}', body) for place, body in enumerate(model.groups)]
  filled = {
    'policy': html.escape(
      f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; base-uri 'none'"
    ),
    'style': style,
    'data': '\n'.join([_data('head', model.head), *bodies]),
    'script': script,
  }
  return ''.join(filled.get(part, part) for part in _resource('page.html').split('@@'))


def to_json(value: Any) -> str:
  """JSON in ASCII that stays inside a script element whatever it holds. Raises ValueError for NaN and infinity."""
  text = json.dumps(value, separators=(',', ':'), allow_nan=False)
  return ''.join(_UNSAFE.get(letter, letter) for letter in text) if any(c in text for c in _UNSAFE) else text


def _data(name: str, value: Any) -> str:
  return f'<script type="application/json" id="{name}">{to_json(value)}</script>'


def _digest(text: str) -> str:
  return 'sha256-' + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _resource(name: str) -> str:
  return (importlib.resources.files('slca_jax.report') / 'page' / name).read_text('utf-8')
