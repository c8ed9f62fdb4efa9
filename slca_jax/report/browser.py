"""A headless Chromium over its debugging pipe: for pictures of a report, and to see that it runs as it should."""

import base64
import contextlib
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

from slca_jax.errors import Refused

_FLAGS = (
  '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync', '--hide-scrollbars', '--remote-debugging-pipe',
)  # fmt: skip
_NAMES = ('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable')
PHONE, DESKTOP = (390, 844), (1440, 900)


def find_browser() -> str | None:
  """The path of a Chromium, None if there is none."""
  return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Browser:
  """A page of a running browser; `problems` collects what it wrote to its console as an error, and what it refused."""

  def __init__(self, to_browser: int, from_browser: int):
    self._out, self._in = os.fdopen(to_browser, 'wb'), os.fdopen(from_browser, 'rb')
    self._ids, self._rest, self._session = itertools.count(1), b'', ''
    self.problems: list[str] = []
    self._loaded: set[str] = set()  # documents, by their loaders
    target = self._call('Target.createTarget', url='about:blank')['targetId']
    self._session = self._call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
    for domain in ('Page', 'Runtime', 'Log'):
      self._call(f'{domain}.enable')
    self._call('Page.setLifecycleEventsEnabled', enabled=True)

  def size(self, width: int, height: int, *, dark: bool = False, scale: float = 1.0) -> None:
    """Sets the window; one under 600 pixels is a phone."""
    self._call(
      'Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=scale, mobile=width < 600
    )
    scheme = {'name': 'prefers-color-scheme', 'value': 'dark' if dark else 'light'}
    self._call('Emulation.setEmulatedMedia', features=[scheme])

  def open(self, page: pathlib.Path, view: str = '') -> None:
    """Loads a file and waits until its first view was drawn."""
    self._call('Page.navigate', url='about:blank')
    went = self._call('Page.navigate', url=f'{page.resolve().as_uri()}{view}')
    if 'errorText' in went:
      raise Refused(f'the browser cannot open {page}: {went["errorText"]}')
    while went['loaderId'] not in self._loaded:  # the blank page's own event may come late
      self._hear(self._message())
    self.run('new Promise(done => requestAnimationFrame(() => setTimeout(done, 60)))')

  def run(self, script: str) -> Any:
    """The value of a script's last expression; promises are waited for."""
    found = self._call('Runtime.evaluate', expression=script, awaitPromise=True, returnByValue=True)
    if 'exceptionDetails' in found:
      raise RuntimeError(found['exceptionDetails'].get('exception', {}).get('description', 'the script failed'))
    return found['result'].get('value')

  def press(self, key: str) -> None:
    """Presses a key."""
    event = f'new KeyboardEvent("keydown", {{key: {json.dumps(key)}, bubbles: true}})'
    self.run(
      f'document.body.dispatchEvent({event}); new Promise(done => requestAnimationFrame(() => setTimeout(done)))'
    )

  def picture(self, path: pathlib.Path) -> None:
    """Writes what the window shows as PNG."""
    path.write_bytes(base64.b64decode(self._call('Page.captureScreenshot', format='png')['data']))

  def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
    number = next(self._ids)
    message = {'id': number, 'method': method, 'params': parameters}
    if self._session:
      message['sessionId'] = self._session
    self._out.write(json.dumps(message).encode() + b'\0')
    self._out.flush()
    while (answer := self._message()).get('id') != number:
      self._hear(answer)
    if 'error' in answer:
      raise RuntimeError(f'{method}: {answer["error"]}')
    return answer['result']

  def _message(self) -> dict[str, Any]:
    while b'\0' not in self._rest:
      piece = os.read(self._in.fileno(), 1 << 20)
      if not piece:
        raise RuntimeError('the browser ended')
      self._rest += piece
    text, _, self._rest = self._rest.partition(b'\0')
    return json.loads(text)

  def _hear(self, event: dict[str, Any]) -> None:
    told = event.get('params', {})
    match event.get('method'):
      case 'Page.lifecycleEvent' if told['name'] == 'load':
        self._loaded.add(told['loaderId'])
      case 'Runtime.exceptionThrown':
        self.problems.append(told['exceptionDetails'].get('exception', {}).get('description', 'an exception'))
      case 'Runtime.consoleAPICalled' if told['type'] in ('error', 'warning', 'assert'):
        self.problems.append(' '.join(str(part.get('value')) for part in told['args']))
      case 'Log.entryAdded' if told['entry']['level'] in ('error', 'warning'):
        self.problems.append(told['entry']['text'])


@contextlib.contextmanager
def browsing() -> Iterator[Browser]:
  """A browser with a profile of its own, ended with the block.

  Raises:
    Refused: there is no Chromium.
  """
  found = find_browser()
  if found is None:
    raise Refused(f'no browser is installed under the names {", ".join(_NAMES)}')
  theirs_in, ours_out = os.pipe()
  ours_in, theirs_out = os.pipe()
  with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
    command = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out}'
    process = subprocess.Popen(
      ['bash', '-c', command, found, *_FLAGS, f'--user-data-dir={profile}'],
      pass_fds=(theirs_in, theirs_out),
      stdout=subprocess.DEVNULL,
      stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
      yield Browser(ours_out, ours_in)
    finally:
      process.terminate()
      try:
        process.wait(20)
      except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def take(page: pathlib.Path, view: str, path: pathlib.Path, *, size: tuple[int, int] = (1280, 800)) -> None:
  """Writes a picture of a view of the page as PNG. Raises Refused."""
  with browsing() as browser:
    browser.size(*size)
    browser.open(page, view)
    browser.picture(path)
