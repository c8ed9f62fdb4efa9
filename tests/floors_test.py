"""The house's floors: imports go down only, and the Python half never imports JAX."""

import ast
import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1] / 'slca_jax'

FLOORS = {
  'arrays': 0, 'bits': 0, 'blocking': 0, 'dialogue': 0, 'errors': 0, 'config': 0, 'own': 0, 'surrogates': 0,
  'ops': 1, 'chat': 1, 'llm': 1,
  'nn': 2, 'envs': 2, 'rewards': 2,
  'rollout': 3, 'data': 3, 'toolverse': 3,
  'quickstart': 3, 'train': 4, 'report': 4, 'evals': 4,
}  # fmt: skip
# They see both halves, and synthesised worlds.
UPSTAIRS = {'quickstart/experiment.py': 4, 'quickstart/branches.py': 4, 'quickstart/by_heart.py': 4}
JAX_FREE = {
  'blocking',
  'dialogue',
  'errors',
  'config',
  'own',
  'surrogates',
  'chat',
  'llm',
  'envs',
  'rewards',
  'data',
  'toolverse',
}
JAX_FREE_FILES = {
  'nn/config.py',
  'rollout/settings.py',
  'rollout/collect.py',
  'rollout/sampler.py',
  'rollout/sglang.py',
  'rollout/fleet.py',
  'rollout/wire.py',
  'rollout/published.py',
  'rollout/answers.py',
  'rollout/broadcast.py',
  'rollout/frozen.py',
  'train/settings.py',
  'train/methods.py',
  'train/device_settings.py',
  'train/surroundings.py',
  'train/endpoints.py',
  'train/teacher_settings.py',
  'train/diagnostic_settings.py',
  'train/alarms.py',
  'evals/settings.py',
  'evals/benchmark_settings.py',
  'evals/bridge.py',
  'evals/qwen.py',
  'evals/bfcl.py',
  'evals/bfcl_multi_turn.py',
  'evals/bfcl_official.py',
  'evals/tau2.py',
  'evals/tau2_official.py',
  'evals/statistics.py',
  'evals/tables.py',
  'evals/results.py',
  'evals/summary.py',
}
BESIDE = {('envs', 'rewards'), ('rewards', 'envs'), ('chat', 'ops'), ('ops', 'chat'), ('toolverse', 'rollout')}
HEAVY = {'jax', 'jaxlib', 'flax', 'optax', 'chex', 'orbax'}

FILES = sorted(ROOT.rglob('*.py'))


def imports(path, *, everywhere=True):
  """Modules that a file imports, at its top or anywhere."""
  tree = ast.parse(path.read_text('utf-8'))
  for node in ast.walk(tree) if everywhere else tree.body:
    if isinstance(node, ast.Import):
      yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
      yield node.module
      if node.module == 'slca_jax':
        yield from (f'slca_jax.{alias.name}' for alias in node.names)


def place(path):
  """(package or module at the top of slca_jax, its floor)."""
  name = path.relative_to(ROOT).as_posix()
  top = name.split('/')[0].removesuffix('.py')
  return top, UPSTAIRS.get(name, FLOORS.get(top))


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_down_only(path):
  top, floor = place(path)
  if path.name == '__init__.py':
    assert not path.read_text('utf-8').strip(), 'packages import nothing by themselves'
    return
  assert floor is not None, f'{top} has no floor'
  for module in imports(path):
    if not module.startswith('slca_jax.'):
      continue
    other = module.split('.')[1]
    assert FLOORS[other] <= floor, f'{path.name} on floor {floor} imports {module} from floor {FLOORS[other]}'
    assert (top, other) not in BESIDE, f'{top} imports its neighbour {other}'


@pytest.mark.parametrize('path', FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_python_half_does_not_import_jax(path):
  name = path.relative_to(ROOT).as_posix()
  if place(path)[0] in JAX_FREE or name in JAX_FREE_FILES:
    assert not {module.split('.')[0] for module in imports(path)} & HEAVY


def test_torch_is_imported_in_one_file_when_asked_for_and_sglang_nowhere():
  found = {p.name: {m.split('.')[0] for m in imports(p)} & {'torch', 'sglang', 'sgl_jax', 'vllm'} for p in FILES}
  assert {name: modules for name, modules in found.items() if modules} == {'broadcast.py': {'torch'}}
  [broadcast] = [p for p in FILES if p.name == 'broadcast.py']
  assert not {m.split('.')[0] for m in imports(broadcast, everywhere=False)} & {'torch'}


def test_settings_are_read_without_jax():
  import subprocess

  code = 'import sys, slca_jax.train.settings; sys.exit(bool({"jax", "flax"} & set(sys.modules)))'
  assert subprocess.run([sys.executable, '-c', code], check=False).returncode == 0


def test_files_and_functions_fit_their_reader():
  for path in FILES:
    text = path.read_text('utf-8')
    assert text.count('\n') <= 350, f'{path} has more than 350 lines'
    for node in ast.walk(ast.parse(text)):
      if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        assert node.end_lineno - node.lineno < 60, f'{path}:{node.lineno}: {node.name} has 60 lines or more'
