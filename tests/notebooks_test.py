"""The notebooks run from top to bottom, each in a kernel of its own, and find what they tell; no output is kept."""

import json
import os
import pathlib
import shutil
import tempfile

import nbformat
import pytest
from ipykernel.kernelspec import write_kernel_spec
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

pytestmark = pytest.mark.timeout(1800)

ROOT = pathlib.Path(__file__).parents[1]
PATHS = sorted((ROOT / 'notebooks').glob('*.ipynb'))


def executed(name, folder, state, **environment):
  """The values of the expressions in `state` by name, after a notebook ran in the folder.

  The kernel is this interpreter, whatever kernels are registered here, and is spoken to through sockets in a folder: no
  port has to be free.
  """
  notebook = nbformat.read(ROOT / 'notebooks' / f'{name}.ipynb', as_version=4)
  told = ', '.join(f'{key!r}: {expression}' for key, expression in state.items())
  notebook.cells.append(nbformat.v4.new_code_cell(f'import json\nprint(json.dumps({{{told}}}, default=float))'))
  short = pathlib.Path(tempfile.mkdtemp(prefix='kernel_'))  # paths of sockets hold hardly a hundred letters
  try:
    write_kernel_spec(str(short / 'here'))
    manager = AsyncKernelManager(
      kernel_name='here',
      kernel_spec_manager=KernelSpecManager(kernel_dirs=[str(short)], ensure_native_kernel=False),
      transport='ipc',
      connection_file=str(short / 'kernel.json'),
    )
    patience = {'timeout': 1200, 'startup_timeout': 600, 'iopub_timeout': 600}
    client = NotebookClient(notebook, km=manager, resources={'metadata': {'path': str(folder)}}, **patience)
    own = {'XLA_FLAGS': '', 'TMPDIR': str(folder), 'IPYTHONDIR': str(short / 'ipython')}
    own['PYTHONPATH'] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get('PYTHONPATH'))))
    client.execute(env={**os.environ, **own, **environment}, cleanup_kc=True)
  finally:
    shutil.rmtree(short, ignore_errors=True)
  return json.loads(''.join(output.text for output in notebook.cells[-1].outputs))


@pytest.mark.parametrize('path', PATHS, ids=lambda path: path.stem)
def test_nothing_of_an_execution_is_kept(path):
  notebook = nbformat.read(path, as_version=4)
  nbformat.validate(notebook)
  assert notebook.metadata.kernelspec.name == 'python3'
  assert set(notebook.metadata) == {'kernelspec', 'language_info'} and set(notebook.metadata.language_info) == {'name'}
  for cell in notebook.cells:
    assert not cell.metadata
    if cell.cell_type == 'code':
      assert cell.outputs == [] and cell.execution_count is None


def test_one_rollout_is_followed_from_its_question_to_the_loss(tmp_path):
  found = executed(
    '01_one_rollout',
    tmp_path,
    {
      'drawn': '[[len(t.tool_turns), s.tool, s.summary] for t, s in zip(trajectories, scores)]',
      'paper': '[[one.scores.tool, one.scores.summary] for one in paper]',
      'slca': '[[values[0], values[-1]] for values in paper_methods[0].advantages]',
      'grpo': '[values[0] for values in paper_methods[1].advantages]',
      'labels': '[method.label for method in paper_methods]',
      'moved': 'moved',
      # Of the first two rollouts of row 0: whether one is shown the other, and whether all of the prompt.
      'siblings': '(lambda a, b: mask_TT[np.ix_(ids[1] == a, ids[1] == b)].any().item())(*sorted(set(ids[1]))[1:3])',
      'stem': '(lambda a: mask_TT[np.ix_(ids[1] == a, ids[1] == -1)][:, :end].all().item())(sorted(set(ids[1]))[1])',
      'pairs': 'int(mask_TT[ids[0] == 0].sum())',
      'sizes': '[end, *(int(((ids[1] == r) & (ids[0] == 0)).sum()) for r in set(ids[1]) - {-1})]',
      'parts': 'list(parts.values())',
      'total': 'total',
      'gap': 'gap',
    },
  )
  # The wasteful way is liked by the judge and worth 0.65, the efficient one costs two turns short of three.
  ways = {(turns, round(tool, 6), summary) for turns, tool, summary in found['drawn']}
  assert {(3, 0.65, 1.0), (1, 1.0, 0.5)} <= ways
  assert found['paper'] == [pytest.approx(pair) for pair in ([0.65, 1], [1, 0.25], [1, 0.5], [0.9, 0.25])]
  expected = [[-1.437626, 1.414210], [0.680981, -0.707105], [0.680981, 0], [0.075665, -0.707105]]
  assert found['slca'] == [pytest.approx(pair, abs=2e-5) for pair in expected]
  assert found['grpo'] == pytest.approx([1.147919, -0.601291, 0.491965, -1.038593], abs=2e-5)
  assert found['labels'] == ['SLCA', 'GRPO', 'ToolPO', 'RLTR', 'TARA']
  assert found['moved']['slca'] == 0 and found['moved']['grpo'] > 0
  assert found['stem'] and not found['siblings']
  stem, *leaves = found['sizes']
  assert found['pairs'] == stem * (stem + 1) // 2 + sum(size * stem + size * (size + 1) // 2 for size in leaves)
  assert sum(found['parts']) == pytest.approx(found['total'], abs=1e-6)
  assert 0 <= found['gap'] < 1e-3


def test_one_environment_answers_refuses_replays_and_contains(tmp_path):
  found = executed(
    '02_one_environment',
    tmp_path,
    {
      'left_out': 'list(outcome.left_out)',
      'tested': '[len(report.passed), len(report.failures), len(report.untested)]',
      'refusals': '[seen.ok for seen in refusals]',
      'changes': '[len(ours), len(theirs)]',
      'removed': '[str(removal.edge) for removal in made.removed]',
      'kept': '[len(made.tasks), made.depth]',
      'faults': "[replay_fault(task, fresh_world), replay_fault(tampered, fresh_world) != '']",
      'rewards': '{name: list(values) for name, values in rewards.items()}',
      'process': '{name: one.total for name, one in process.items()}',
      'source': '[bool(lines) for lines in found.values()]',
      'contained': '[seen.ok for seen in contained.values()]',
      'victim': 'victim.read_text()',
      'lost': '[before.ok, endless.ok, after == ours]',
    },
  )
  assert found['left_out'] == ['execute_query']
  assert found['tested'][0] >= 6 and found['tested'][1:] == [0, 0]
  assert found['refusals'] == [False] * 4 and found['changes'] == [1, 0]
  assert found['removed'] == ['get_booking → create_booking']
  assert found['kept'][0] > 0 and found['kept'][1] == 4
  assert found['faults'] == ['', True]
  assert found['rewards'] == {'good': [1, 1, 1, 1], 'bad': [1, 0, 1, 1]}
  assert found['process']['good'] == pytest.approx(1) and found['process']['bad'] < 1
  assert found['source'] == [True] * 4
  assert found['contained'] == [False] * 5 and found['victim'] == 'whole'
  assert found['lost'] == [True, False, True]


def test_a_run_is_made_and_read_and_so_is_one_that_is_named(tmp_path):
  read = {
    'run': 'str(run)',
    'metrics': "[[line[n] for n in ('reward/tool', 'rollout/tool_turns', 'sampler/gap_max')] for line in metrics]",
    'statuses': 'statuses',
    'rung': 'sorted(rung)',
    'sick': "sorted(name for name, rings in sick.items() if name.startswith('alarms/') and rings)",
    'worst': '[sampled[worst].scores.tool, min(methods[0].advantages[worst][:-1])]',
    'report': 'report.read_text()[:15]',
  }
  found = executed('03_reading_a_run', tmp_path, read)
  first, last = found['metrics'][0], found['metrics'][-1]
  assert len(found['metrics']) == 10
  assert last[0] > first[0] + 0.05 and last[1] < first[1]  # better calls, and fewer of them
  assert max(gap for *_, gap in found['metrics']) < 1e-3
  assert sum(found['statuses'].values()) == 10 * 2 * 8 and found['statuses']['failed'] == 0
  assert {'kl', 'dead_tool_groups', 'sampler_gap'} <= set(found['rung'])
  assert found['sick'] == [
    f'alarms/{kind}' for kind in ('dead_tool_groups', 'failed_rollouts', 'kl', 'sampler_gap', 'skipped_updates')
  ]
  assert found['worst'][0] < 1 and found['worst'][1] < 0
  assert found['report'] == '<!doctype html>'
  assert executed('03_reading_a_run', tmp_path, read, RUN=found['run']) == found
