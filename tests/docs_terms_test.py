"""Two pages name many settings, numbers and messages: all of them exist, and the command of one of them builds."""

import ast
import dataclasses
import functools
import importlib.util
import pathlib
import re
import shlex
import typing

import pytest

from slca_jax.config import build
from slca_jax.data.settings import Preparation
from slca_jax.data.tasks import read_tasks
from slca_jax.errors import ConfigError, DataError
from slca_jax.evals.settings import EvaluateConfig
from slca_jax.train.settings import RLConfig, SFTConfig

ROOT = pathlib.Path(__file__).parents[1]
COMING, TROUBLE = 'coming_from.md', 'troubleshooting.md'
ENDS = ('.py', '.md', '.json', '.jsonl', '.yaml', '.parquet', '.jinja', '.sh', '.txt')
HOLE = '\0'


def page(name):
  return (ROOT / 'docs' / name).read_text('utf-8')


def keys(cls, prefix=''):
  """The paths of all settings below a dataclass; of an open group, which takes any name, with a dot at the end."""
  hints, out = typing.get_type_hints(cls), set()
  for field in dataclasses.fields(cls):
    path, hint = f'{prefix}{field.name}', hints[field.name]
    inner = dataclasses.is_dataclass(hint)
    out |= {path} | (keys(hint, f'{path}.') if inner else {f'{path}.'} if typing.get_origin(hint) is dict else set())
  return out


KEYS = keys(RLConfig) | keys(SFTConfig) | keys(Preparation) | keys(EvaluateConfig)


def is_setting(text):
  path = text.removeprefix('--config.').partition('=')[0]
  return path in KEYS or any(path.startswith(key) for key in KEYS if key.endswith('.'))


def prose(text):
  """The page without its blocks of code."""
  return re.sub(r'```.*?```', '', text, flags=re.DOTALL)


def spans(text):
  return re.findall(r'`([^`\n]+)`', text)


def looks_like_a_setting(text):
  return re.fullmatch(r'(--config\.)?[a-z_0-9]+(\.[a-z_0-9]+)+(=.*)?', text) and not text.endswith(ENDS)


def columns(text, title):
  """The cells of that column, in all tables that have it."""
  place, out = None, []
  for line in text.splitlines():
    cells = [cell.strip() for cell in line.strip('|').split('|')] if line.startswith('|') else None
    if cells is None:
      place = None
    elif place is None:
      place = cells.index(title) if title in cells else -1
    elif place >= 0:
      out.append(cells[place])
  return out


def test_settings_of_the_column_here_exist():
  cells = columns(page(COMING), 'here')
  named = [span for cell in cells for span in spans(cell) if looks_like_a_setting(span)]
  assert len(named) > 40 and not [name for name in named if not is_setting(name)]


def test_settings_that_only_this_package_can_mean_exist():
  ours = (
    'objective',
    'optimizer',
    'batching',
    'environment',
    'judge',
    'filters',
    'mesh',
    'reference',
    'checkpoint',
    'scoring',
  )
  named = [span for span in spans(prose(page(COMING))) if looks_like_a_setting(span) and span.startswith(ours)]
  named = [name for name in named if '.' in name.partition('=')[0]]
  assert len(named) > 30 and not [name for name in named if not is_setting(name)]


def test_settings_named_in_troubleshooting_exist():
  named = [span for span in spans(prose(page(TROUBLE))) if looks_like_a_setting(span)]
  assert len(named) > 100 and not [name for name in named if not is_setting(name)]


@pytest.mark.parametrize('name', ['rollout.limits.turn_token', 'objective.loss_agg_mode', 'kl'])
def test_setting_that_does_not_exist_is_seen(name):
  assert not is_setting(name)
  assert is_setting('model.template.enable_thinking') and is_setting("--config.batching.lengths='(256,)'")


@functools.cache
def known_numbers():
  cells = [line.split('|')[1] for line in page('metrics.md').splitlines() if line.startswith('| `')]
  return [re.sub('[A-Z]+', '.+', name) for cell in cells for name in spans(cell)]


def number_exists(name):
  """Whether the page of metrics explains it; `…` at the end stands for any."""
  return any(re.fullmatch(pattern, re.sub('/…$', '/x', name)) for pattern in known_numbers())


def numbers_of(text):
  groups = {pattern.partition('/')[0] for pattern in known_numbers() if '/' in pattern} - {'.+'} | {
    'SEGMENT',
    'tool',
    'summary',
  }
  return [span for span in spans(text) if '/' in span and span.partition('/')[0] in groups]


def test_numbers_are_those_of_the_page_of_metrics():
  assert not number_exists('sampler/gap') and number_exists('llm/judge/failures/status_429')
  named = numbers_of(prose(page(TROUBLE))) + [n for cell in columns(page(COMING), 'here') for n in numbers_of(cell)]
  assert len(named) > 80 and not [name for name in named if not number_exists(name)]


@functools.cache
def templates():
  """What the package may say: all string constants, with a hole for each value that is put in."""
  out = set()
  for path in [*ROOT.glob('slca_jax/**/*.py'), *ROOT.glob('launch/*.py')]:
    for node in ast.walk(ast.parse(path.read_text('utf-8'))):
      if isinstance(node, ast.JoinedStr):
        out.add(''.join(str(v.value) if isinstance(v, ast.Constant) else HOLE for v in node.values))
      elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        out.add(re.sub(r'%[.0-9]*[sdgr]', HOLE, node.value))
  return [text for text in out if len(text.replace(HOLE, '')) >= 8]


def is_said(message):
  """Whether the package can say it; `…` in a message stands for anything."""
  parts = [part.strip() for part in message.split('…') if len(part.strip()) >= 12]
  return any(_says(template.split(HOLE), message, parts) for template in templates())


def _says(words, message, parts):
  if '…' in message:
    texts = [word.strip() for word in words if len(word.strip()) >= 8]
    return bool(texts) and all(any(text in part or part in text for text in texts) for part in parts)
  enough = 0.3 * len(re.sub(r'^\w+: ', '', message))  # else it says nothing of its own
  return (
    all(word in message for word in words)  # a regular expression takes its time
    and sum(map(len, words)) >= enough
    and re.search('.+?'.join(map(re.escape, words)), message) is not None
  )


def test_messages_are_those_of_the_code():
  blocks = re.findall(r'```text\n(.*?)```', page(TROUBLE), re.DOTALL)
  messages = [line for block in blocks for line in block.splitlines() if 'tasks.jsonl:3: ' not in line]
  messages += [span for cell in columns(page(TROUBLE), 'error') for span in spans(cell)]
  assert len(messages) > 40 and not [message for message in messages if not is_said(message)]
  assert not is_said('ConfigError: config: group_size is 1; two rollouts are wanted')


@pytest.mark.parametrize('line', ['{"id": "x"}', '{"id": "train/0/2", "tools": "[{}'])
def test_messages_of_broken_lines_are_what_is_said(line, tmp_path):
  path = tmp_path / 'tasks.jsonl'
  path.write_text(f'\n\n{line}')
  with pytest.raises(DataError) as caught:
    read_tasks(path)
  assert f'DataError: {caught.value}'.replace(f'{tmp_path}/', '') in page(TROUBLE)


def test_the_translated_command_builds_what_it_says():
  block = next(block for block in re.findall(r'```bash\n(.*?)```', page(COMING), re.DOTALL) if 'train_rl' in block)
  spec = importlib.util.spec_from_file_location('configs_rl_of_docs', ROOT / 'configs' / 'rl.py')
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  config = module.get_config('grpo')
  for argument in shlex.split(block.replace('\\\n', ' '))[3:]:
    path, _, text = argument.removeprefix('--config.').partition('=')
    group, _, key = path.rpartition('.')
    owner = functools.reduce(lambda tree, name: tree[name], group.split('.') if group else (), config)
    owner[key] = text if isinstance(owner[key], str) else ast.literal_eval(text)
  built = build(RLConfig, config)
  assert (built.prompts, built.updates_per_step, built.group_size) == (256, 4, 8)
  assert built.objective.clip_high == 0.28 and built.objective.importance_cap == 2.0
  with pytest.raises(ConfigError, match=r'local\.context is 7168'):
    config.rollout.limits.response_tokens = 4096
    build(RLConfig, config)
