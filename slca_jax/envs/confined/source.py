"""Generated code before it runs: what it may say, and which functions it defines.

This check keeps generated code readable, deterministic and free of the known ways out of Python (dunder attributes,
frames, format strings that walk attributes, real modules). It is the outer fence, not the wall: what gets past it runs
in a process that the kernel confines. RestrictedPython, the library for the purpose, was weighed and left out: it
refuses `table[key] += 1`, annotated variables, `match` and names such as `_find`, of which generated code is full, and
its run-time guards make a search over 200 records six times as slow.
"""

import ast
import builtins
import dataclasses
import string
import warnings
from collections.abc import Iterator

from slca_jax.envs.confined.offered import BUILTINS, MODULES, words

MOST_CHARACTERS = 400_000

_METHODS = words(
  """__init__ __repr__ __str__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __len__ __iter__ __next__
  __contains__ __getitem__ __setitem__ __bool__ __add__ __sub__ __mul__ __call__"""
)
_INSPECTION = words(
  """tb_frame tb_next f_back f_builtins f_code f_generator f_globals f_locals f_trace gi_frame gi_code gi_yieldfrom
  cr_frame cr_code cr_await cr_origin ag_frame ag_code ag_await co_code co_consts co_names func_globals func_code mro
  format_map"""
)
_NOT_OFFERED = frozenset(dir(builtins)) - BUILTINS
_REMEDIES = {
  'open': 'keep data in the database',
  'getattr': 'use a dictionary',
  'hasattr': 'use a dictionary and `in`',
  'setattr': 'use a dictionary',
  'type': 'use isinstance',
  'id': 'compare with ==',
  'hash': 'use hashlib',
  'input': 'arguments come with the call',
  'BaseException': 'catch Exception',
}
_REFUSED: dict[type[ast.AST], str] = {
  ast.AsyncFunctionDef: 'tools are plain functions; take `async` away',
  ast.Await: 'tools are plain functions; take `await` away',
  ast.AsyncFor: 'tools are plain functions; take `async` away',
  ast.AsyncWith: 'tools are plain functions; take `async` away',
  ast.Global: '`global` is state outside the database, which no replay restores; keep it in the database',
}
_TOP = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.Expr)


@dataclasses.dataclass(frozen=True, slots=True)
class Signature:
  """What a function takes behind the database: names in order, those without default, whether it takes any other."""

  names: tuple[str, ...]
  required: tuple[str, ...]
  open: bool
  line: int


def faults(source: str) -> list[str]:
  """What is wrong with the source, each with its line and a remedy; empty if it may run."""
  tree = _tree(source)
  if isinstance(tree, str):
    return [tree]
  bound = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
  bound |= {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
  bound |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}
  found = [(node.lineno, 'only imports, functions, classes and constants may stand at the top; move it into a function')
           for node in tree.body if not isinstance(node, _TOP)]  # fmt: skip
  for node in ast.walk(tree):
    found += [(getattr(node, 'lineno', 0), text) for text in _faults(node, bound)]
  return [f'line {line}: {text}' if line else text for line, text in sorted(set(found))]


def signatures(source: str) -> dict[str, Signature]:
  """The functions at the top of a source, by name. The first parameter is the database and not listed.

  Raises:
    ValueError: the source cannot be read, or a function takes no database.
  """
  tree = _tree(source)
  if isinstance(tree, str):
    raise ValueError(tree)
  functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and not node.name.startswith('_')]
  return {node.name: _signature(node) for node in functions}


def _tree(source: str) -> ast.Module | str:
  if len(source) > MOST_CHARACTERS:
    return f'{len(source)} characters; a blueprint has at most {MOST_CHARACTERS}, so split it'
  try:
    with warnings.catch_warnings():
      warnings.simplefilter('ignore')
      tree = ast.parse(source)
      compile(tree, 'functions.py', 'exec', dont_inherit=True)
  except SyntaxError as error:
    return f'line {error.lineno}: {error.msg}'
  except (ValueError, RecursionError, MemoryError, OverflowError) as error:
    return f'not to be compiled ({type(error).__name__}: {error}); nest less'
  return tree


def _faults(node: ast.AST, bound: set[str]) -> Iterator[str]:
  if type(node) in _REFUSED:
    yield _REFUSED[type(node)]
  elif isinstance(node, ast.Import):
    yield from (_module_fault(alias.name) for alias in node.names if alias.name not in MODULES)
  elif isinstance(node, ast.ImportFrom):
    yield from _import_faults(node)
  elif isinstance(node, ast.Attribute):
    yield from _attribute_faults(node)
  elif isinstance(node, ast.MatchClass):
    yield from (f'the attribute {name} is not for tools' for name in node.kwd_attrs if _hidden(name))
  elif isinstance(node, ast.Name) and node.id in _NOT_OFFERED - bound and not _dunder(node.id):
    yield f'{node.id} is not offered; {_REMEDIES.get(node.id, "do without it")}'
  elif isinstance(node, ast.ClassDef) and node.keywords:
    yield 'a class takes no metaclass and no keywords; take them away'
  yield from (f'the name {name} is not for tools; choose another' for name in _names(node) if _dunder(name))


def _names(node: ast.AST) -> Iterator[str]:
  """The names that a node binds or loads, methods that a class may define left out."""
  if isinstance(node, ast.FunctionDef) and node.name in _METHODS:
    return
  for field in ('id', 'arg', 'name', 'asname', 'rest'):
    value = getattr(node, field, None)
    if isinstance(value, str) and not (isinstance(node, ast.alias) and field == 'name'):
      yield value
  if isinstance(node, ast.Nonlocal):
    yield from node.names


def _import_faults(node: ast.ImportFrom) -> Iterator[str]:
  if node.level or node.module is None or node.module not in MODULES:
    yield _module_fault(node.module or '.')
    return
  for alias in node.names:
    if alias.name not in MODULES[node.module]:
      yield f'{node.module}.{alias.name} is not offered; offered: {", ".join(sorted(MODULES[node.module]))}'


def _module_fault(name: str) -> str:
  return f'the module {name} is not offered; offered: {", ".join(sorted(MODULES))}'


def _attribute_faults(node: ast.Attribute) -> Iterator[str]:
  if _hidden(node.attr):
    yield f'the attribute {node.attr} is not for tools; do without it'
  if node.attr == 'format' and not _plain_format(node.value):
    yield 'str.format can walk attributes; use an f-string, or a literal with plain fields'


def _plain_format(value: ast.AST) -> bool:
  """Whether a value is a literal whose fields are arguments as they are, nested ones included."""
  if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
    return False
  texts = [value.value]
  while texts:
    try:
      fields = [(field, spec) for _, field, spec, _ in string.Formatter().parse(texts.pop()) if field is not None]
    except ValueError:
      return False
    if any(set('.[') & set(field) for field, _ in fields):
      return False
    texts += [spec for _, spec in fields if spec]
  return True


def _hidden(name: str) -> bool:
  return name in _INSPECTION or name.startswith('__')


def _dunder(name: str) -> bool:
  return name.startswith('__')


def _signature(node: ast.FunctionDef) -> Signature:
  arguments = node.args
  positional = [*arguments.posonlyargs, *arguments.args]
  if not positional:
    raise ValueError(f'line {node.lineno}: {node.name} takes no database; its first parameter must be the database')
  defaulted = {arg.arg for arg in positional[len(positional) - len(arguments.defaults) :]}
  defaulted |= {a.arg for a, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True) if value}
  names = [arg.arg for arg in (*positional[1:], *arguments.kwonlyargs)]
  required = tuple(name for name in names if name not in defaulted)
  return Signature(tuple(names), required, arguments.kwarg is not None, node.lineno)
