"""The official data, backends and checkers of BFCL, spoken to over JSON lines on standard input and output.

This file is run as a script by an interpreter that has bfcl-eval (V4) or nvidia-bfcl (V3) and mpmath, so it imports
nothing of this library, and of theirs only what needs none of the hundred packages that they list.

What a policy wrote reaches the official `eval` only as the name of an offered function, identifiers and literals.
"""

import contextlib
import copy
import importlib
import importlib.util
import json
import os
import pathlib
import re
import signal
import sys
import tempfile
import types
import uuid
from collections.abc import Iterator
from typing import Any

PACKAGES = {4: 'bfcl_eval', 3: 'bfcl'}
SYNTAX = {'Python': 'Python 3', 'Java': 'Java 8 SDK', 'JavaScript': 'JavaScript'}
SECONDS = 20  # for the calls of one step: some powers take longer than a lifetime
NOBODY = 'official_checker'  # a model whose function names keep their dots
_IDENTIFIER = re.compile(r'[A-Za-z_]\w*')
_UNKNOWN = 'not_on_offer()'  # calls nothing, and fails in the official way

Call = tuple[str, dict[str, Any]]


class Lost(Exception):
  """What is asked about was held by a process before this one."""


class Official:
  """One version of BFCL: its entries by id, the worlds that are open, and its two checkers."""

  def __init__(self, version: int):
    name = PACKAGES[version]
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
      raise ValueError(f'{sys.executable} has no package {name}')
    self.version, self._package = version, name
    self._data = pathlib.Path(spec.submodule_search_locations[0]) / 'data'
    self._entries: dict[str, dict[str, Any]] = {}
    self._worlds: dict[str, str] = {}
    if version == 4:
      os.environ.setdefault('BFCL_PROJECT_ROOT', tempfile.mkdtemp(prefix='bfcl_'))  # it makes folders when imported
      config = types.ModuleType(f'{name}.constants.model_config')  # the true one imports every vendor's client
      nobody = types.SimpleNamespace(underscore_to_dot=False)
      vars(config)['MODEL_CONFIG_MAPPING'] = {NOBODY.replace('_', '/'): nobody}
      sys.modules[config.__name__] = config

  def entries(self, category: str) -> list[dict[str, Any]]:
    """The entries of a category with their functions and answers, as the official loader makes them."""
    name = f'BFCL_v{self.version}_{category}.json'
    answers: list[dict[str, Any]] = []
    if (self._data / 'possible_answer' / name).exists():
      answers = _lines(self._data / 'possible_answer' / name)
    entries = _lines(self._data / name)
    by_id = {answer['id']: answer['ground_truth'] for answer in answers}
    for place, entry in enumerate(entries):
      if 'involved_classes' in entry:
        self._add_functions(entry)
      entry['answer'] = by_id.get(entry['id'], answers[place]['ground_truth'] if answers else None)
      self._entries[entry['id']] = entry
    told = ('id', 'question', 'answer', 'missed_function')
    shown = lambda entry: {'function': [_shown(one, language_of(category)) for one in entry['function']]}
    return [{key: entry[key] for key in told if key in entry} | shown(entry) for entry in entries]

  def check(self, id: str, calls: list[Call]) -> dict[str, Any]:
    """The verdict on the calls of a single-turn entry."""
    entry, category = self._entry(id), id.rsplit('_', 1)[0]
    language: Any = language_of(category)
    if self.version == 4:
      language = importlib.import_module(f'{self._package}.constants.enums').Language[language.upper()]
    checker = importlib.import_module(f'{self._package}.eval_checker.ast_eval.ast_checker')
    made = [{name: arguments} for name, arguments in calls]
    try:
      found = checker.ast_checker(entry['function'], made, entry['answer'], language, category, NOBODY)
    except Exception as error:  # it expects no other types than the schema's
      found = {'valid': False, 'error': str(error), 'error_type': f'checker:{type(error).__name__}'}
    return {'valid': found['valid'], 'error_type': found.get('error_type', ''), 'error': str(found.get('error', ''))}

  def open(self, id: str) -> str:
    """The name of a fresh world in which the entry begins."""
    world = f'world{uuid.uuid4().hex}'  # no number: what outlives this process must not meet another's world
    self._worlds[world] = id
    self._execute(world, [])
    return world

  def step(self, world: str, calls: list[Call]) -> list[str]:
    """What the world answers to calls, in order."""
    return self._execute(world, calls)

  def close(self, world: str) -> None:
    """Forgets the world."""
    self._worlds.pop(world, None)
    self._forget(world)

  def check_turns(self, id: str, turns: list[list[list[Call]]]) -> dict[str, Any]:
    """The verdict on the calls of a multi-turn entry, by turn and step."""
    entry, judged = self._entry(id), f'judged{uuid.uuid4().hex}'
    if len(turns) != len(entry['answer']):
      return {'valid': False, 'error_type': 'multi_turn:force_terminated', 'error': f'{len(turns)} turns'}
    offered = self._offered(id)
    written = [[[_written(call, offered) for call in step] for step in turn] for turn in turns]
    checker = importlib.import_module(f'{self._package}.eval_checker.multi_turn_eval.multi_turn_checker')
    category = id.rsplit('_', 1)[0]
    try:
      with _deadline(SECONDS * max(1, len(turns))):
        found = checker.multi_turn_checker(written, entry['answer'], copy.deepcopy(entry), category, judged)
    except Exception as error:
      found = {'valid': False, 'error_message': str(error), 'error_type': f'checker:{type(error).__name__}'}
    self._forget(judged)
    error = str(found.get('error_message', ''))
    return {'valid': found['valid'], 'error_type': found.get('error_type', ''), 'error': error}

  def _entry(self, id: str) -> dict[str, Any]:
    """The entry, also where a process before this one was asked for its category."""
    if id not in self._entries:
      self.entries(id.rsplit('_', 1)[0])
    return self._entries[id]

  def _add_functions(self, entry: dict[str, Any]) -> None:
    """Multi-turn entries name classes: their functions, less those that a later turn brings."""
    functions = [f for name in entry['involved_classes'] for f in _lines(self._documents / self._files[name])]
    for turn, names in entry.get('missed_function', {}).items():
      held_back = [next((f for f in functions if f['name'] == name), None) for name in names]
      entry['missed_function'][turn] = [function for function in held_back if function is not None]
      functions = [f for f in functions if all(f is not one for one in held_back)]
    entry['function'] = functions

  def _execute(self, world: str, calls: list[Call]) -> list[str]:
    if world not in self._worlds:
      raise Lost('this world was open in a process that ended')
    id = self._worlds[world]
    entry, offered, utils = self._entry(id), self._offered(id), self._utils
    out = []
    for call in calls:
      with _deadline(SECONDS):  # a tool that is stopped so answers with the reason
        [seen], _ = utils.execute_multi_turn_func_call(
          [_written(call, offered)],
          entry['initial_config'],
          entry['involved_classes'],
          world,
          id,
          long_context='long_context' in id or 'composite' in id,
        )
      out.append(seen.replace('not_on_offer', call[0][:80]) if _written(call, offered) == _UNKNOWN else seen)
    if not calls:
      utils.execute_multi_turn_func_call(
        [], entry['initial_config'], entry['involved_classes'], world, id, long_context='long_context' in id
      )
    return out

  def _offered(self, id: str) -> set[str]:
    """Public methods of the classes of an entry: what the official backend runs, on offer in this turn or not."""
    entry, out = self._entry(id), set()
    for name in entry['involved_classes']:
      module = importlib.import_module(self._paths[name])
      out |= {method for method in dir(getattr(module, name)) if not method.startswith('_')}
    return out

  @property
  def _utils(self) -> Any:
    return importlib.import_module(f'{self._package}.eval_checker.multi_turn_eval.multi_turn_utils')

  @property
  def _documents(self) -> pathlib.Path:
    return self._data / 'multi_turn_func_doc'

  @property
  def _files(self) -> dict[str, str]:
    """The names of the files that describe the classes."""
    module = 'constants.executable_backend_config' if self.version == 4 else 'constant'
    return importlib.import_module(f'{self._package}.{module}').MULTI_TURN_FUNC_DOC_FILE_MAPPING

  @property
  def _paths(self) -> dict[str, str]:
    return self._utils.CLASS_FILE_PATH_MAPPING

  def _forget(self, name: str) -> None:
    """The official backend keeps its worlds in its module's globals, by the name of the model that asks."""
    kept = vars(self._utils)
    for key in [key for key in kept if key.startswith(f'{name}_')]:
      del kept[key]


def language_of(category: str) -> str:
  """The language whose values a category's checker converts."""
  named = ('JavaScript', 'Java')  # the first one's name holds the second's
  return next((language for language in named if language.lower() in category), 'Python')


def _shown(function: dict[str, Any], language: str) -> dict[str, Any]:
  """A function as policies see it: in other languages than Python each argument is the text of a value there."""
  shown = copy.deepcopy(function)
  shown['description'] += f' Note that the provided function is in {SYNTAX[language]} syntax.'
  for part in shown['parameters']['properties'].values() if language != 'Python' else ():
    kind, part['type'] = part['type'], 'string'
    any_type = f' This parameter can be of any type of {language} object in string representation.'
    one_type = f' This is {language} {kind} type parameter in string representation.'
    part['description'] += any_type if kind == 'any' else one_type
    if kind in ('ArrayList', 'Array', 'array'):
      of = part.pop('items')['type']
      part['description'] += f' The list elements are of type {of}; they are not in string representation.'
    if kind == 'dict' and 'properties' in part:
      schema = json.dumps(part.pop('properties'))
      text = f' The dictionary entries have the following schema; they are not in string representation. {schema}'
      part['description'] += text
  return shown


def _written(call: Call, offered: set[str]) -> str:
  """The call as the text that the official backend evaluates; one that could be anything else calls nothing."""
  name, arguments = call
  if name not in offered or not all(_IDENTIFIER.fullmatch(key) for key in arguments):
    return _UNKNOWN
  return f'{name}({",".join(f"{key}={value!r}" for key, value in arguments.items())})'


@contextlib.contextmanager
def _deadline(seconds: float) -> Iterator[None]:
  def stop(*_: Any) -> None:
    raise TimeoutError(f'no answer within {seconds:g} s')

  before = signal.signal(signal.SIGALRM, stop)
  signal.setitimer(signal.ITIMER_REAL, seconds)
  try:
    yield
  finally:
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def _lines(path: pathlib.Path) -> list[dict[str, Any]]:
  with open(path, encoding='utf-8', newline='\n') as file:
    return [json.loads(line) for line in file if line.strip()]


def main(version: int) -> None:
  """Answers each line {"number": n, "do": method, …arguments} with its number and "answer", "refused" or "lost"."""
  answers = os.fdopen(os.dup(1), 'w', encoding='utf-8', newline='\n')
  os.dup2(2, 1)  # what the packages print is no answer
  official = None
  for line in sys.stdin:
    asked = json.loads(line)
    number = asked.pop('number')
    try:
      official = official or Official(version)
      told = {'answer': getattr(official, asked.pop('do'))(**asked)}
    except Lost as error:
      told = {'lost': str(error)}
    except Exception as error:
      told = {'refused': f'{type(error).__name__}: {error}'}
    answers.write(json.dumps({'number': number, **told}) + '\n')
    answers.flush()


if __name__ == '__main__':
  main(int(sys.argv[1]))
