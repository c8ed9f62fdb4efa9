"""The whole loop on a tiny policy: killed anywhere it goes on bit for bit, and nothing that breaks ends the run."""

import asyncio
import collections
import dataclasses
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import time

import jax
import numpy as np
import pytest
from endpoint import BROKEN, ScriptedEndpoint

from slca_jax.config import as_dict
from slca_jax.data.store import Trajectories
from slca_jax.data.tasks import write_tasks
from slca_jax.dialogue import Status
from slca_jax.envs.executable import World
from slca_jax.errors import ConfigError
from slca_jax.llm.settings import Endpoint
from slca_jax.nn.config import TransformerConfig
from slca_jax.quickstart.start import write_start
from slca_jax.quickstart.world import MARKET, make_task
from slca_jax.report.reading import sampled_in
from slca_jax.rollout.settings import Layout, Limits, LocalEngine
from slca_jax.train import rl, worlds
from slca_jax.train import settings as s
from slca_jax.train.diagnostic_settings import Diagnostics
from slca_jax.train.run import Stop
from slca_jax.train.surroundings import EnvironmentSettings

pytestmark = pytest.mark.timeout(1800)

NETWORK = TransformerConfig(layers=1, width=16, hidden=32, heads=2, kv_heads=1, head_dim=8, context=512)
STEPS = 5
RUN = """
import json, pathlib, sys
from slca_jax.config import build
from slca_jax.train.rl import train
from slca_jax.train.settings import RLConfig
train(build(RLConfig, json.loads(pathlib.Path(sys.argv[1]).read_text())))
"""
# The same, told to end when its first numbers are written: from outside a busy machine might tell it after the last.
TERMINATED = (
  """
import os, signal
from slca_jax.train import metrics
write = metrics.Writer.write
def once(*numbers):
  write(*numbers)
  os.kill(os.getpid(), signal.SIGTERM)
metrics.Writer.write = once
"""
  + RUN
)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  """A folder with a random policy and 7 tasks: 4 a step, so that steps cross the border of an epoch."""
  folder = tmp_path_factory.mktemp('rl')
  write_start(folder / 'start', seed=0, network=NETWORK, samples=30)
  write_tasks([make_task(0, 'train', index) for index in range(7)], folder / 'train.jsonl')
  write_tasks([make_task(0, 'heldout', index) for index in range(3)], folder / 'heldout.jsonl')
  return folder


def config(folder, output, **changes):
  values = {
    'output': str(output),
    'steps': STEPS,
    'prompts': 4,
    'mini_batch': 2,
    'group_size': 4,
    'eval_every': 2,
    'dump_logps': True,
    'model': s.Model(path=str(folder / 'start'), dtype='float32', remat='none'),
    'mesh': s.MeshShape(1, 1, 1) if len(jax.devices()) == 1 else s.MeshShape(data=2, fsdp=2, tensor=2),
    'data': s.TaskFiles(str(folder / 'train.jsonl'), str(folder / 'heldout.jsonl')),
    'rollout': s.RolloutSettings(
      limits=Limits(turns=3, prompt_tokens=64, response_tokens=96, turn_tokens=24, observation_tokens=16),
      local=LocalEngine(slots=8, context=192),
    ),
    'judge': s.JudgeSettings(noise=0.3),
    'optimizer': s.Optimizer(learning_rate=1e-2),
    'batching': Layout((256,), 4),
    'checkpoint': s.Checkpointing(every=1, keep=2),
    'diagnostics': Diagnostics(every=2),
  }
  return s.RLConfig(**{**values, **changes})


def start(folder, output, *, code=RUN, **changes):
  """The run as a process of its own, on one device."""
  changes.setdefault('mesh', s.MeshShape(1, 1, 1))
  path = output.with_suffix('.json')
  path.write_text(json.dumps(as_dict(config(folder, output, **changes))))
  environment = {**os.environ, 'XLA_FLAGS': '', 'JAX_PLATFORMS': 'cpu'}
  command = [sys.executable, '-c', code, str(path)]
  return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def finish(process):
  out, _ = process.communicate(timeout=600)
  assert process.returncode == 0, out.decode()[-3000:]


def lines(output):
  return [json.loads(line) for line in (output / 'metrics.jsonl').read_text().splitlines()]


def wait_for(holds, seconds=600):
  end = time.monotonic() + seconds
  while not holds():
    assert time.monotonic() < end, 'the run did not get there'
    time.sleep(0.01)


def result_of(output):
  """(metrics without clock readings, rollouts as text, exported weights as bytes)."""
  timed = ('time/', 'tokens_per_second')
  numbers = [{k: v for k, v in line.items() if not k.startswith(timed)} for line in lines(output)]
  rollouts = [path.read_text() for path in sorted((output / 'rollouts').rglob('*.jsonl'))]
  return numbers, rollouts, (output / 'model' / 'model.safetensors').read_bytes()


@pytest.fixture(scope='module')
def unbroken(folder):
  finish(start(folder, folder / 'unbroken'))
  return result_of(folder / 'unbroken')


def test_run_that_is_killed_goes_on_bit_for_bit(folder, unbroken):
  output = folder / 'killed'
  metrics = output / 'metrics.jsonl'
  # Steps 2 and 4 are evaluated; the kill after step 2 falls right behind the border of the first epoch (7 of 8 tasks).
  for step in (2, 4):
    process = start(folder, output)
    wait_for(lambda step=step: metrics.exists() and any(line['step'] >= step for line in lines_so_far(metrics)))
    process.kill()
    process.wait()
  finish(start(folder, output))
  numbers, rollouts, weights = result_of(output)
  assert numbers == unbroken[0]
  assert [line['step'] for line in numbers] == [1, 2, 3, 4, 5]
  assert [line['step'] for line in numbers if 'heldout/score/success' in line] == [2, 4, 5]
  assert rollouts == unbroken[1]
  assert weights == unbroken[2]


def lines_so_far(path):
  out = []
  for line in path.read_text().splitlines():
    try:
      out.append(json.loads(line))
    except ValueError:
      break
  return out


def test_gradients_of_the_segments_are_measured_every_other_step_and_alarms_at_all(unbroken):
  numbers, _, _ = unbroken
  assert [line['step'] for line in numbers if 'gradient/tool_norm' in line] == [1, 3, 5]
  assert [line['step'] for line in numbers if 'gradient/norm_std' in line] == [2, 3, 4, 5]
  assert all('alarms/kl' in line and 'alarms/dead_tool_groups' in line for line in numbers)


def test_every_number_of_a_run_is_explained(unbroken):
  text = (pathlib.Path(__file__).parents[2] / 'docs' / 'metrics.md').read_text('utf-8')
  cells = [line.split('|')[1] for line in text.splitlines() if line.startswith('| `')]
  known = [re.sub('[A-Z]+', '.+', name) for cell in cells for name in re.findall('`([^`]+)`', cell)]
  names = {name for line in unbroken[0] for name in line} - {'step'}
  assert not [name for name in names if not any(re.fullmatch(pattern, name) for pattern in known)]


def test_finished_run_that_is_asked_again_keeps_its_result(folder):
  settings = config(folder, folder / 'again', steps=1, eval_every=0)
  numbers = rl.train(settings)
  result = (folder / 'again' / 'result.json').read_text()
  assert numbers['loss'] == json.loads(result)['loss']
  assert rl.train(settings) == numbers and (folder / 'again' / 'result.json').read_text() == result


def test_finished_run_that_is_to_go_further_is_complete_only_when_it_has(folder):
  stop = Stop()
  stop.requested = True
  rl.train(config(folder, folder / 'again', steps=1, eval_every=0))
  rl.train(config(folder, folder / 'again', steps=2, eval_every=0), stop=stop)
  assert not (folder / 'again' / 'result.json').exists()


def test_run_goes_on_over_another_mesh(folder):
  output = folder / 'moved'
  rl.train(config(folder, output, steps=1, eval_every=0))
  rl.train(config(folder, output, steps=2, eval_every=0, mesh=s.MeshShape(1, 8), batching=Layout((256,), 8)))
  assert [line['step'] for line in lines(output)] == [1, 2]
  assert all(np.isfinite(line['loss']) for line in lines(output))


def test_sigterm_saves_and_exits_and_the_run_goes_on_bit_for_bit(folder, unbroken):
  output = folder / 'terminated'
  finish(start(folder, output, code=TERMINATED, checkpoint=s.Checkpointing(every=1000)))
  assert [line['step'] for line in lines(output)] == [1]
  assert not (output / 'model').exists() and any((output / 'checkpoints').iterdir())
  finish(start(folder, output, checkpoint=s.Checkpointing(every=1000)))
  assert result_of(output) == unbroken


def test_resuming_with_other_settings_is_refused_and_names_them(folder, unbroken):
  with pytest.raises(ConfigError, match=r"\['optimizer'\]\['learning_rate'\]: 0.01 -> 0.5"):
    rl.train(config(folder, folder / 'unbroken', mesh=s.MeshShape(1, 1, 1), optimizer=s.Optimizer(learning_rate=0.5)))


def test_two_runs_in_one_folder_are_refused(folder):
  output = folder / 'claimed'
  process = start(folder, output, steps=1_000_000)
  wait_for(lambda: (output / 'config.json').exists())
  with pytest.raises(ConfigError, match='another run is writing'):
    rl.train(config(folder, output))
  process.kill()
  process.wait()


def broken_world():
  """The market, but its tools raise, flood, answer no JSON, or try to end the interpreter."""
  functions = dict(MARKET.functions)

  def get_price(db, ticker):
    fates = [lambda: 1 / 0, lambda: 'x' * 10_000_000, lambda: object(), sys.exit]
    return fates[sum(map(ord, ticker)) % len(fates)]()

  return World(MARKET.tools, {**functions, 'get_price': get_price})


def test_tools_that_break_and_environments_that_die_do_not_end_the_run(folder, monkeypatch):
  monkeypatch.setitem(worlds.WORLDS, 'market', broken_world())
  lost = [make_task(0, 'train', index) for index in range(3)]
  lost = [*lost, type(lost[0])('lost', lost[0].tools, lost[0].messages, lost[0].gold, blueprint='nowhere')]
  write_tasks(lost, folder / 'broken.jsonl')
  (folder / 'blueprints' / 'nowhere').mkdir(parents=True)  # it holds no blueprint
  data, there = s.TaskFiles(str(folder / 'broken.jsonl')), EnvironmentSettings(blueprints=f'{folder}/blueprints')
  numbers = rl.train(config(folder, folder / 'broken', data=data, environment=there, steps=2))
  assert numbers['status/failed'] == 4  # the task whose world cannot be opened, in all its rollouts
  assert np.isfinite(numbers['loss']) and numbers['skipped_updates'] == 0


def test_run_asks_its_judge_over_http_and_goes_on_when_it_breaks(folder):
  metrics = folder / 'judged' / 'metrics.jsonl'
  rated = '<response_quality><rating>good</rating></response_quality>'
  after_a_step = lambda _: BROKEN if metrics.exists() and metrics.read_text() else rated
  with ScriptedEndpoint(after_a_step) as server:
    judge = Endpoint(base_url=server.url, model='judge', retries=0)
    settings = config(
      folder, folder / 'judged', judge=s.JudgeSettings(kind='llm', endpoint=judge), steps=2, eval_every=0
    )
    rl.train(dataclasses.replace(settings, cache=s.CacheSettings(keep=False)))
  first, second = lines(folder / 'judged')
  assert first['llm/judge/asked'] == second['llm/judge/asked'] == 16  # every rollout, guarded ones too
  assert first['llm/judge/failures'] == first['score/judge_failed'] == 0 < first['llm/judge/completion_tokens']
  assert second['llm/judge/failures/status_500'] == 16 and second['score/judge_failed'] == 1
  assert np.isfinite(second['loss']) and second['status/failed'] == 0


class AfterStep(rl.Stop):
  """Asks to stop once a step's numbers are written."""

  def __init__(self, step, output):
    super().__init__()
    self._step, self._metrics = step, output / 'metrics.jsonl'

  @property
  def requested(self):
    return self._metrics.exists() and len(self._metrics.read_text().splitlines()) >= self._step

  @requested.setter
  def requested(self, value):
    assert not value


def test_rollouts_of_the_next_batch_go_on_while_the_trainer_works(folder):
  output = folder / 'ahead'
  settings = config(folder, output, eval_every=0)
  settings = dataclasses.replace(settings, rollout=dataclasses.replace(settings.rollout, max_staleness=1))
  rl.train(settings, stop=AfterStep(2, output))
  assert [line['step'] for line in lines(output)] == [1, 2]
  rl.train(settings)
  found = lines(output)
  assert [line['step'] for line in found] == [1, 2, 3, 4, 5]
  assert all(line['stale/max'] <= 1 and line['stale/dropped_groups'] == 0 for line in found)
  assert max(line['stale/mean'] for line in found) > 0
  # What was in the making when the run stopped was made again: the 7 tasks were met twice, and 6 of them thrice.
  stores = [Trajectories(path, write=False) for path in sorted((output / 'rollouts').iterdir())]
  made = [store[index][0] for store in stores for index in range(len(store))]
  met = collections.Counter(trajectory.task.id for trajectory in made if trajectory.index == 0)
  assert sorted(met.values()) == [2] + [3] * 6


def test_engine_without_room_for_the_stop_ids_is_refused(folder):
  loaded = rl.policy.load(config(folder, folder / 'x').model, s.MeshShape(data=2, fsdp=2, tensor=2))
  loaded.template.stop_ids = (1, 2, 3, 4, 5)
  with pytest.raises(ConfigError, match=r'rollout.local.stop_ids is 4; the model has 5'):
    worlds.rollouts(config(folder, folder / 'x'), loaded, loaded.params)


def test_counts_of_updates_add_up_the_largest_gap_stays_and_what_was_not_measured_is_left_out():
  found = [
    {'loss': 1.0, 'skipped_updates': 1.0, 'tool/tokens': 10.0, 'tool/dead_groups': 2.0, 'sampler/gap_max': 0.5},
    {'loss': 3.0, 'skipped_updates': 1.0, 'tool/tokens': 0.0, 'tool/dead_groups': 1.0, 'sampler/gap_max': 0.1},
  ]
  for numbers, ratio in zip(found, (1.5, 0.0), strict=True):
    numbers |= {'tool/ratio': ratio, 'sampler/turn_7/tokens': 0.0, 'sampler/turn_7/ess': 0.0}
    # Without tool tokens no rollout has both segments, and none of them can be turned.
    numbers |= {'conflict/tool_tokens_turned': ratio / 2, 'conflict/tool_down_summary_up': ratio / 2}
  assert rl.over_updates(found) == {
    'loss': 2.0,
    'skipped_updates': 2.0,
    'tool/tokens': 10.0,
    'tool/dead_groups': 3.0,
    'tool/ratio': 1.5,
    'sampler/gap_max': 0.5,
    'sampler/turn_7/tokens': 0.0,
    'conflict/tool_tokens_turned': 0.75,
    'conflict/tool_down_summary_up': 0.75,
  }


def test_sampler_agrees_with_trainer_and_nothing_recompiles(folder):
  loaded = rl.policy.load(config(folder, folder / 'x').model, s.MeshShape(data=2, fsdp=2, tensor=2))
  settings = config(folder, folder / 'counted', eval_every=0, dump_every=0)
  tasks, _ = worlds.read(settings.data)
  with jax.set_mesh(loaded.mesh):
    learner = rl.Learner(settings, pathlib.Path(settings.output), loaded, tasks, [])
    asyncio.run(learner.learn(rl.Stop()))
    assert learner.prepare._cache_size() == learner.update._cache_size() == 1
    assert set(learner.sampler.compilations().values()) <= {0, 1}
    learner.close()
  for line in lines(pathlib.Path(settings.output)):
    assert line['sampler/gap_max'] < 1e-4 and line['sampler/ess'] > 0.9999


def test_dumped_rollouts_hold_ids_scores_and_reasons(folder, unbroken):
  assert unbroken
  store = Trajectories(folder / 'unbroken' / 'rollouts' / 'step_000001', write=False)
  first = [store[index] for index in range(len(store))]
  assert len(first) == 16 and {trajectory.group for trajectory, _ in first} == {0, 1, 2, 3}
  for trajectory, scores in first:
    assert trajectory.status is not Status.FAILED
    assert all(len(turn.tokens) == len(turn.logprobs) for turn in trajectory.turns)
    assert 'process' in scores.why


def test_log_probs_of_the_trainer_stand_beside_dumped_rollouts(folder, unbroken):
  assert unbroken
  found = sampled_in(folder / 'unbroken', steps=(1,))
  assert len(found) == 16
  for one in found:
    drawn = [logprob for turn in one.trajectory.turns for logprob in turn.logprobs]
    assert len(one.logps['old']) == len(one.logps['ref']) == len(one.logps['new']) == len(drawn)
    np.testing.assert_allclose(one.logps['old'], drawn, atol=1e-3)
  moved = [np.abs(np.subtract(one.logps['new'], one.logps['old'])).max() for one in found]
  assert 1e-4 < max(moved) < math.inf  # the step's updates made its own rollouts likelier or less likely
