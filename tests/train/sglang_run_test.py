"""A whole run among real processes: SGLang samples, one endpoint plays the tools, another one judges."""

import dataclasses
import json
import re
import statistics

import jax
import pytest
from endpoint import ScriptedEndpoint
from sglang_process import needs_sglang, served

from slca_jax.data.store import Trajectories
from slca_jax.data.tasks import write_dialogues, write_tasks
from slca_jax.dialogue import Dialogue
from slca_jax.llm.settings import Endpoint
from slca_jax.nn.config import TransformerConfig
from slca_jax.quickstart.demonstrations import demonstrate
from slca_jax.quickstart.start import write_start
from slca_jax.quickstart.world import make_task
from slca_jax.rewards.judge import WORDS
from slca_jax.rollout.settings import Layout, Limits, LocalEngine, SGLangServers
from slca_jax.train import rl, sft
from slca_jax.train import settings as s

pytestmark = [*needs_sglang, pytest.mark.timeout(1800)]

NETWORK = TransformerConfig(layers=2, width=64, hidden=128, heads=4, kv_heads=2, head_dim=16, context=1024)
MESH = s.MeshShape(1, 1, 1) if len(jax.devices()) == 1 else s.MeshShape(data=8)
STEPS, PROMPTS, GROUP = 5, 4, 8
LIMITS = Limits(turns=4, prompt_tokens=96, response_tokens=160, turn_tokens=48, observation_tokens=32)


@pytest.fixture(scope='module')
def taught(tmp_path_factory):
  """A folder with tasks that name no world, and a policy that learned their demonstrations halfway."""
  folder = tmp_path_factory.mktemp('taught')
  tasks = [make_task(0, 'train', index, kind='one') for index in range(PROMPTS)]
  write_tasks([dataclasses.replace(task, blueprint=None) for task in tasks], folder / 'tasks.jsonl')
  shown = [Dialogue(task.id, task.tools, demonstrate(task, efficient=True)) for task in tasks]
  write_dialogues(shown, folder / 'shown.jsonl')
  write_start(folder / 'start', seed=0, network=NETWORK, samples=30)
  sft.train(
    s.SFTConfig(
      output=str(folder / 'sft'),
      steps=9,
      batch=8,
      logprob_chunk=64,
      model=s.Model(path=str(folder / 'start'), dtype='float32', remat='none'),
      mesh=MESH,
      data=s.Demonstrations(str(folder / 'shown.jsonl')),
      batching=Layout((256,), 8),
      optimizer=s.Optimizer(learning_rate=2e-3, schedule='constant'),
      checkpoint=s.Checkpointing(every=1000),
    )
  )
  return folder


def play(request):
  """The tools' backend: a price for whatever was asked."""
  call = re.search(r'"arguments": \{.*?"\w+": "(\w+)"', request['messages'][-1]['content'])
  return f'<tool_response>{json.dumps({"price": 40 + len(call.group(1)) if call else 0})}</tool_response>'


def judge(request):
  """The judge: as good as the shown rollout is long, by fives."""
  rating = WORDS[len(request['messages'][-1]['content']) % 5]
  return f'<response_quality><rating>{rating}</rating></response_quality>'


def config(folder, output, tools, judges, rollout, **changes):
  simulator = Endpoint(base_url=tools.url, model='tools')
  return s.RLConfig(
    output=str(output),
    **{'steps': STEPS, **changes},
    prompts=PROMPTS,
    mini_batch=PROMPTS,
    group_size=GROUP,
    model=s.Model(path=str(folder / 'sft' / 'model'), dtype='float32', remat='none'),
    mesh=MESH,
    data=s.TaskFiles(str(folder / 'tasks.jsonl')),
    environment=s.EnvironmentSettings(backend='simulated', simulator=simulator),
    judge=s.JudgeSettings(kind='llm', endpoint=Endpoint(base_url=judges.url, model='judge')),
    rollout=rollout,
    optimizer=s.Optimizer(learning_rate=1e-4),
    batching=Layout((512,), 8),
  )


def first_rollouts(output):
  """(sampled tokens, calls, turns) of each rollout of the first step."""
  store = Trajectories(output / 'rollouts' / 'step_000001', write=False)
  made = [store[index][0].turns for index in range(len(store))]
  return [(sum(len(t.tokens) for t in turns), sum(len(t.calls) for t in turns), len(turns)) for turns in made]


def test_run_on_a_server_with_simulator_and_judge_does_what_the_embedded_engine_does(taught, tmp_path):
  with ScriptedEndpoint(play) as tools, ScriptedEndpoint(judge) as judges, served(taught / 'sft' / 'model') as server:
    here = s.RolloutSettings(limits=LIMITS, local=LocalEngine(slots=32, context=256))
    servers = SGLangServers(urls=server.url, concurrency=8, connect_seconds=120.0)
    there = s.RolloutSettings('sglang', limits=LIMITS, sglang=servers)
    rl.train(config(taught, tmp_path / 'here', tools, judges, here, steps=1))
    rl.train(config(taught, tmp_path / 'there', tools, judges, there))
    rl.train(config(taught, tmp_path / 'stale', tools, judges, dataclasses.replace(there, max_staleness=1)))
  for output in ('there', 'stale'):
    lines = [json.loads(line) for line in (tmp_path / output / 'metrics.jsonl').read_text().splitlines()]
    assert [line['step'] for line in lines] == [1, 2, 3, 4, 5]
    for line in lines:
      assert line['status/failed'] == line['llm/judge/failures'] == line['llm/simulator/failures'] == 0
      assert line['stale/max'] <= (output == 'stale')
      assert line['stale/dropped_groups'] == 0 or output == 'stale'  # a slow group may be overtaken and grow too old
      assert line['sampler/gap_max'] < 1e-4 or output == 'stale'
    assert (
      lines[0]['summary/dead_groups'] < PROMPTS
      and lines[0]['llm/simulator/asked'] > 0
      and lines[0]['rollout/tool_turns'] > 0.5
    )
  ours, theirs = first_rollouts(tmp_path / 'here'), first_rollouts(tmp_path / 'there')
  for mine, other in zip(zip(*ours, strict=True), zip(*theirs, strict=True), strict=True):
    error = ((statistics.variance(mine) + statistics.variance(other)) / len(mine)) ** 0.5
    assert abs(statistics.fmean(mine) - statistics.fmean(other)) <= 4 * error + 0.05
