"""Code of one's own in settings: what a name stands for, and what is said where it stands for nothing."""

import pickle
import sys

import pytest

from slca_jax import own
from slca_jax.errors import ConfigError


@pytest.fixture
def mine(tmp_path):
  """A file that counts how often it is executed, beside a module that it imports."""
  (tmp_path / 'beside_it.py').write_text('MOST = 3\n')
  path = tmp_path / 'mine.py'
  path.write_text(
    'import dataclasses\nimport beside_it\nRUNS = []\nRUNS.append(beside_it.MOST)\n'
    '@dataclasses.dataclass\nclass Database:\n  rows: int\n'
    'def rate(trajectory, *, seed):\n  return 1 / 0\n'
  )
  yield path
  sys.path[:] = [place for place in sys.path if place != str(tmp_path)]


def test_a_file_is_executed_once_however_many_settings_name_it(mine, monkeypatch):
  first = own.load(f'{mine}:RUNS', setting='a')
  monkeypatch.chdir(mine.parent)
  assert own.load('mine.py:RUNS', setting='b') is first == [3]


def test_a_module_that_is_installed_is_named_without_a_file():
  assert own.load('json:dumps', setting='a')([1]) == '[1]'
  assert own.source('json:dumps').endswith('__init__.py') and own.source('sys:path') == '' == own.source('slca')


def test_what_a_file_defines_can_be_pickled(mine):
  made = own.load(f'{mine}:Database', setting='a')(2)
  assert pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize(
  ('text', 'name', 'says'),
  [
    (None, 'rate', 'there is no file'),
    ('def rates(): ...', 'rate', "has no 'rate', did you mean 'rates'?"),
    ('\nx = 1 / 0', 'rate', r'ZeroDivisionError: division by zero \(broken.py:2\)'),
    ('def (', 'rate', r'SyntaxError: invalid syntax \(broken.py, line 1\)'),
    ('raise SystemExit(3)', 'rate', 'SystemExit: 3'),
    ('import no_such_module', 'rate', "No module named 'no_such_module'"),
  ],
)
def test_code_that_cannot_be_loaded_is_refused_with_setting_reason_and_line(tmp_path, text, name, says):
  path = tmp_path / 'broken.py'
  if text is not None:
    path.write_text(text)
  with pytest.raises(ConfigError, match=f'judge.kind is .*broken.py:rate.*{says}'):
    own.load(f'{path}:{name}', setting='judge.kind')


@pytest.mark.parametrize('name', [':x', 'no_such_module:x', 'a b:x', 'x.py:', ':'])
def test_names_of_nothing_are_refused(name, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with pytest.raises(ConfigError, match=r'judge\.kind is'):
    own.load(name, setting='judge.kind')


def test_a_function_that_cannot_be_called_as_it_will_be_is_refused(mine):
  own.load_function(f'{mine}:rate', 'trajectory, *, seed', setting='judge.kind')
  with pytest.raises(ConfigError, match=r'it is called with \(seen, referee\), and that fails: too many positional'):
    own.load_function(f'{mine}:rate', 'seen, referee', setting='method.protocol')
  with pytest.raises(ConfigError, match=r'fails: .* is not a callable object'):
    own.load_function(f'{mine}:RUNS', 'task, seed', setting='environment.backend')


def test_an_error_is_told_with_the_line_of_ones_own_code(mine):
  rate = own.load(f'{mine}:rate', setting='a')
  with pytest.raises(ZeroDivisionError) as caught:
    rate(None, seed=0)
  assert own.told(caught.value) == 'ZeroDivisionError: division by zero (mine.py:9)'
