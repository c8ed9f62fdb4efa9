"""The steady loop: from a batch's arrival to its numbers nothing is compiled, and nothing waits for the host."""

import asyncio
import contextlib
import gzip
import json

import jax
import numpy as np
import pytest
from jax._src.array import ArrayImpl

from slca_jax.data.tasks import write_dialogues, write_tasks
from slca_jax.dialogue import Dialogue
from slca_jax.nn.config import TransformerConfig
from slca_jax.quickstart.demonstrations import demonstrate
from slca_jax.quickstart.start import write_start
from slca_jax.quickstart.world import make_task
from slca_jax.rollout.settings import Layout, Limits, LocalEngine
from slca_jax.train import policy, rl, sft, worlds
from slca_jax.train import settings as s
from slca_jax.train.diagnostic_settings import Tracing

pytestmark = pytest.mark.timeout(900)

MESH = s.MeshShape(data=2, fsdp=2, tensor=2)
WAITED = ('sample', 'environment', 'judge')
PHASES = ('collect', 'batch', 'meet', 'prepare', 'update', 'publish')
NETWORK = TransformerConfig(layers=1, width=16, hidden=32, heads=2, kv_heads=1, head_dim=8, context=512)


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
  folder = tmp_path_factory.mktemp('steady')
  write_start(folder / 'start', seed=0, network=NETWORK, samples=30)
  tasks = [make_task(0, 'train', index) for index in range(7)]
  write_tasks(tasks, folder / 'tasks.jsonl')
  write_dialogues([Dialogue(t.id, t.tools, demonstrate(t)) for t in tasks], folder / 'dialogues.jsonl')
  return folder


@pytest.fixture
def compiled():
  """Names of what is traced, lowered and compiled, as it happens."""
  names = []

  def hear(event, _, **about):
    if event.startswith('/jax/core/compile'):
      names.append(about.get('fun_name', event))

  jax.monitoring.register_event_duration_secs_listener(hear)
  yield names
  jax.monitoring.unregister_event_duration_listener(hear)


@pytest.fixture
def reads(monkeypatch):
  """Shapes of the arrays that the host reads other than by `jax.device_get`; CPU arrays pass any transfer guard."""
  shapes, explicit = [], []
  value, get = ArrayImpl._value, jax.device_get

  def read(array):
    if not explicit:
      shapes.append(array.shape)
    return value.fget(array)

  def asked(tree):
    explicit.append(tree)
    try:
      return get(tree)
    finally:
      explicit.pop()

  monkeypatch.setattr(ArrayImpl, '_value', property(read))
  monkeypatch.setattr(jax, 'device_get', asked)
  return shapes


def spans(trace):
  """Names of the events in a trace."""
  (path,) = trace.glob('plugins/profile/*/perfetto_trace.json.gz')
  return {event.get('name') for event in json.loads(gzip.decompress(path.read_bytes()))['traceEvents']}


def assert_adds_up(line):
  """The parts of a step's time are those that are documented, and nothing of it is counted twice or left out."""
  parts = {name.removeprefix('time/'): value for name, value in line.items() if name.startswith('time/')}
  whole, collect = parts.pop('step'), parts.pop('collect')
  for kind in WAITED:
    assert parts.pop(f'busy/{kind}') >= parts[kind] - 1e-6
  assert sum(parts[kind] for kind in WAITED) <= collect + 1e-6
  np.testing.assert_allclose(sum(parts.values()), whole, rtol=1e-6)


def test_reads_of_the_host_are_seen(reads):
  everywhere = jax.sharding.NamedSharding(jax.make_mesh((8,), ('all',)), jax.sharding.PartitionSpec())
  x, yes = jax.device_put((np.arange(3.0), True), everywhere)
  jax.device_get(x)
  assert not reads
  assert [float(yes), len(np.asarray(x)), x.tolist(), bool(yes)]
  assert {*reads} == {(), (3,)} and len(reads) == 4


def test_step_of_rl_moves_only_its_batch_and_its_numbers_and_compiles_nothing(folder, compiled, reads):
  settings = s.RLConfig(
    output=str(folder / 'rl'),
    steps=4,
    prompts=4,
    mini_batch=2,
    group_size=4,
    dump_every=0,
    model=s.Model(path=str(folder / 'start'), dtype='float32', remat='none'),
    mesh=MESH,
    data=s.TaskFiles(str(folder / 'tasks.jsonl')),
    rollout=s.RolloutSettings(
      limits=Limits(turns=3, prompt_tokens=64, response_tokens=96, turn_tokens=24, observation_tokens=16),
      local=LocalEngine(slots=8, context=192),
    ),
    optimizer=s.Optimizer(learning_rate=1e-2),
    batching=Layout((256,), 4),
    checkpoint=s.Checkpointing(every=1),
    trace=Tracing(steps=(3,)),
  )
  seen = []

  class Guarded(rl.Learner):
    def _update(self, shares):
      compiled.clear()
      reads.clear()
      with jax.transfer_guard('disallow') if self.step else contextlib.nullcontext():
        numbers = super()._update(shares)
      seen.append((tuple(compiled), tuple(reads)))
      return numbers

  loaded = policy.load(settings.model, settings.mesh)
  with jax.set_mesh(loaded.mesh):
    learner = Guarded(settings, folder / 'rl', loaded, worlds.read(settings.data)[0], [])
    asyncio.run(learner.learn(rl.Stop()))
    learner.close()
  assert spans(folder / 'rl' / 'trace' / 'step_000003') >= {'sample', *PHASES, 'learn'}
  for line in map(json.loads, (folder / 'rl' / 'metrics.jsonl').read_text().splitlines()):
    assert_adds_up(line)
  assert 'jit(prepare)' in seen[0][0] and 'jit(update)' in seen[0][0]
  assert seen[1:] == [((), ())] * 3


def test_step_of_sft_moves_only_its_batch_and_its_numbers_and_compiles_nothing(folder, compiled, reads):
  settings = s.SFTConfig(
    output=str(folder / 'sft'),
    steps=4,
    batch=5,
    model=s.Model(str(folder / 'start'), dtype='float32', remat='none'),
    mesh=MESH,
    data=s.Demonstrations(str(folder / 'dialogues.jsonl')),
    batching=Layout((256,), 4),
    checkpoint=s.Checkpointing(every=1),
    trace=Tracing(steps=(2,)),
  )
  seen = []

  class Guarded(sft.Student):
    def _advance(self):
      compiled.clear()
      reads.clear()
      with jax.transfer_guard('disallow') if self.step else contextlib.nullcontext():
        super()._advance()
      seen.append((tuple(compiled), tuple(reads)))

  loaded = policy.load(settings.model, settings.mesh)
  with jax.set_mesh(loaded.mesh):
    student = Guarded(settings, folder / 'sft', loaded, sft._read(settings)[0], [])
    student.learn(sft.Stop())
    student.close()
  assert spans(folder / 'sft' / 'trace' / 'step_000002') >= {'read', 'update', 'learn'}
  assert 'jit(fit)' in seen[0][0]
  assert seen[1:] == [((), ())] * 3
