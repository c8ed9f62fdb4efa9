"""The sampler over servers against a real SGLang process on this machine's CPU, on weights of our own exporter.

Runs where SLCA_SGLANG_VENV names an environment made by `bash launch/sglang.sh --install-cpu VENV`, as `bash
launch/test.sh --sglang` does.
"""

import asyncio
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from ports import free_port
from sglang_process import Process, needs_sglang

from slca_jax.chat.template import Template, load_template
from slca_jax.data.store import Trajectories
from slca_jax.data.tasks import write_tasks
from slca_jax.dialogue import Status
from slca_jax.errors import ConfigError
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.transformer import Transformer
from slca_jax.nn.weights import named_tensors, save_hf
from slca_jax.quickstart.tokenizer import make_tokenizer
from slca_jax.quickstart.world import make_task
from slca_jax.rollout import collect
from slca_jax.rollout.local import LocalSampler
from slca_jax.rollout.settings import Decoding, Layout, Limits, LocalEngine, SGLangServers
from slca_jax.rollout.sglang import SGLangSampler
from slca_jax.train import rl, worlds
from slca_jax.train import settings as s
from slca_jax.train.steps import Policy

pytestmark = [*needs_sglang, pytest.mark.timeout(1800)]

SIZES = dict(layers=2, width=64, hidden=96, heads=4, kv_heads=2, head_dim=16, context=1024, remat='none')
FAMILIES = {
  'qwen2': dict(qkv_bias=True, rope_theta=1e6),
  'llama': dict(tied=False),
  'qwen3': dict(qk_norm=True, rope_theta=1e6),
}
PATIENT = {'connect_seconds': 120.0, 'outage_seconds': 600.0}
PROMPTS = [tuple(int(x) for x in np.random.default_rng(i).integers(7, 250, n)) for i, n in enumerate((5, 33, 90, 150))]


@functools.cache
def tokenizer():
  return make_tokenizer(make_task(0, 'train', index) for index in range(30))


@functools.cache
def network(family, seed=0):
  """A decoder in which every parameter matters, biases and norms included: (config, graph, params)."""
  template = Template(tokenizer())
  config = TransformerConfig(**SIZES, **FAMILIES[family], vocab=template.vocab_size)
  graph, params = nnx.split(Transformer(config, rngs=nnx.Rngs(seed)), nnx.Param)
  leaves, tree = jax.tree.flatten(params)
  keys = jax.random.split(jax.random.key(seed), len(leaves))
  noisy = [x + 0.15 * jax.random.normal(key, x.shape) for x, key in zip(leaves, keys, strict=True)]
  return config, graph, jax.tree.unflatten(tree, noisy)


@pytest.fixture(scope='module')
def serve(tmp_path_factory):
  """A function from a family's name to its server; one server is up at a time, for each keeps a core busy."""
  running = {}

  def start(family):
    if family not in running:
      end()
      folder = tmp_path_factory.mktemp(family)
      config, _, params = network(family)
      save_hf(params, config, folder / 'model', eos=Template(tokenizer()).stop_ids)
      tokenizer().save_pretrained(str(folder / 'model'))
      running[family] = Process(folder / 'model', folder / 'log')
    return running[family].wait()

  def end():
    for process in running.values():
      process.kill()
    running.clear()

  yield start
  end()


def sampler(server, folder, family='qwen3', *, run='run', **settings):
  config, _, _ = network(family)
  options = SGLangServers(urls=server.url, **{'concurrency': 8, 'probe_seconds': 0.5, **PATIENT, **settings})
  save = lambda params, path: save_hf(params, config, path)
  tensors = lambda params: named_tensors(params, config)
  return SGLangSampler(options, run=run, folder=folder, save=save, vocab=config.vocab, tensors=tensors)


def ask(engine, tokens, *, session='a', max_tokens=12, temperature=0.0, stop=None):
  stop = Template(tokenizer()).stop_ids if stop is None else stop  # the server stops at those anyway
  return engine.generate(
    tokens, session=session, max_tokens=max_tokens, temperature=temperature, top_p=1.0, stop=stop, seed=0
  )


def run(engine, body, family='qwen3', *, version=1):
  """What `body()` gives once the engine serves the family's weights."""

  async def whole():
    try:
      await engine.publish(network(family)[2], version)
      return await body()
    finally:
      await engine.close()

  return asyncio.run(whole())


async def talk(engine, *, temperature=0.0, max_tokens=12):
  """Two turns of a session per prompt, all at once: [(ids of the whole, where the second sample begins, samples)]."""

  async def one(i, prompt):
    first = await ask(engine, prompt, session=str(i), temperature=temperature, max_tokens=max_tokens)
    ids = (*prompt, *first.tokens, 9, 10, 11)
    second = await ask(engine, ids, session=str(i), temperature=temperature, max_tokens=max_tokens)
    await engine.release(str(i))
    return (*ids, *second.tokens), len(ids), (first, second)

  return await asyncio.gather(*[one(i, prompt) for i, prompt in enumerate(PROMPTS)])


def trainer_logps(ids, *, family='qwen3', seed=0, temperature=1.0):
  """log p of each id but the first as the trainer computes it."""
  config, graph, params = network(family, seed)
  place_T, length = jnp.arange(1024), len(ids)  # one shape for all: the rest is padding
  tokens_T = jnp.pad(jnp.asarray(ids), (0, 1024 - length))
  rows = {
    'tokens_BT': tokens_T[None],
    'prompt_BT': jnp.where(place_T < length, 0, -1)[None],
    'rollout_BT': jnp.where(place_T == 0, -1, 0)[None],
    'position_BT': place_T[None],
    'source_BT': jnp.maximum(place_T - 1, 0)[None],
    'sampled_BT': ((place_T > 0) & (place_T < length))[None],
  }
  return np.asarray(_logps(Policy(graph, config.vocab, temperature, 1024), params, rows))[0, 1:length]


@functools.partial(jax.jit, static_argnums=0)
def _logps(policy, params, rows):
  return policy.logps(params, rows)


def agree(talks, **options):
  """Whether the served log-probs of both turns are the trainer's, to 1e-4."""
  for ids, start, (first, second) in talks:
    logps = trainer_logps(ids, **options)
    begin = start - 3 - len(first.tokens) - 1
    np.testing.assert_allclose(first.logprobs, logps[begin : begin + len(first.tokens)], atol=1e-4)
    np.testing.assert_allclose(second.logprobs, logps[start - 1 :], atol=1e-4)


@pytest.mark.parametrize('family', FAMILIES)
def test_greedy_ids_are_the_embedded_engines_and_logprobs_the_trainers(family, serve, tmp_path):
  server = serve(family)
  config, graph, params = network(family)
  engine = sampler(server, tmp_path, family)

  async def body():
    return [await talk(engine, temperature=temperature) for temperature in (0.0, 1.0, 0.7)]

  greedy, whole, cool = run(engine, body, family)

  async def embedded():
    local = LocalSampler(graph, params, config, LocalEngine(slots=4, context=512), version=1)
    try:
      return await talk(local)
    finally:
      await local.close()

  expected = asyncio.run(embedded())
  assert [ids for ids, _, _ in greedy] == [ids for ids, _, _ in expected]
  for (_, _, served), (_, _, ours) in zip(greedy, expected, strict=True):
    assert [(sample.finish, sample.versions) for sample in served] == [(one.finish, one.versions) for one in ours]
  agree(greedy, family=family)
  agree(whole, family=family)
  agree(cool, family=family, temperature=0.7)
  assert len({ids for ids, _, _ in whole + cool}) > len(PROMPTS), 'nothing was sampled at random'


def test_a_stop_id_ends_a_sample_and_is_part_of_it(serve, tmp_path):
  engine = sampler(serve('qwen3'), tmp_path)

  async def body():
    free = await ask(engine, PROMPTS[1], session='free')
    return free, await ask(engine, PROMPTS[1], session='stopped', stop=(free.tokens[4],))

  free, stopped = run(engine, body)
  end = free.tokens.index(free.tokens[4]) + 1
  assert stopped.tokens == free.tokens[:end] and stopped.finish == 'stop'


@pytest.mark.parametrize('pause', ['retract', 'in_place', 'abort'])
def test_after_a_publish_all_is_of_the_new_weights_shared_prefixes_too(pause, serve, tmp_path):
  engine = sampler(serve('qwen3'), tmp_path, pause=pause)

  async def body():
    before = await talk(engine)  # leaves every prompt in the server's cache
    await engine.publish(network('qwen3', 1)[2], 2)
    return before, await talk(engine), engine.numbers()

  before, after, numbers = run(engine, body)
  agree(before)
  agree(after, seed=1)
  assert {sample.versions[0][0] for _, _, pair in after for sample in pair} == {2}
  for (ids, start, (_, second)), (others, _, _) in zip(after, before, strict=True):
    assert ids != others
    assert np.abs(np.array(second.logprobs) - trainer_logps(ids)[start - 1 :]).max() > 0.1
  assert numbers['sync/bytes'] > 300_000 and numbers['sync/load_seconds'] > 0


async def keep_asking(engine, session, samples, published):
  """Asks again and again until the weights were published, so that some answer is under way when they are."""
  count = 100 if session == 'a' else 150  # out of step with each other
  while not published.is_set():
    samples.append(await ask(engine, PROMPTS[1], session=session, max_tokens=count, stop=()))


@pytest.mark.parametrize('pause', ['retract', 'in_place'])
def test_an_answer_that_spans_an_update_says_which_weights_drew_what(pause, serve, tmp_path):
  engine = sampler(serve('qwen3'), tmp_path, pause=pause)

  async def body():
    for _ in range(5):
      samples, published = [], asyncio.Event()
      jobs = [asyncio.create_task(keep_asking(engine, name, samples, published)) for name in 'ab']
      while not samples:  # the other session is in the middle of an answer now
        await asyncio.sleep(0.01)
      await engine.publish(network('qwen3', 1)[2], 2)
      published.set()
      await asyncio.gather(*jobs)
      for sample in samples:
        if len(sample.versions) == 2:
          return sample
      await engine.publish(network('qwen3')[2], 1)
    raise AssertionError('no answer was under way')

  sample = run(engine, body)
  (old, before), (new, after) = sample.versions
  assert (old, new, before + after) == (1, 2, len(sample.tokens))
  ids, start = PROMPTS[1] + sample.tokens, len(PROMPTS[1]) - 1
  np.testing.assert_allclose(sample.logprobs[:before], trainer_logps(ids)[start : start + before], atol=1e-4)
  if pause == 'retract':  # in_place goes on with keys and values of the old weights
    np.testing.assert_allclose(sample.logprobs[before:], trainer_logps(ids, seed=1)[start + before :], atol=1e-4)


def test_an_aborted_rollout_keeps_its_tokens_and_counts_as_cut_off(serve, tmp_path):
  server = serve('qwen3')
  engine = sampler(server, tmp_path)
  task = make_task(0, 'train', 0)
  open_world = worlds.opener(s.EnvironmentSettings())
  limits = Limits(prompt_tokens=256, response_tokens=700, turn_tokens=700)
  template = load_template(server.model)
  world = collect.Rollouts(engine, template, open_world, limits, Decoding(temperature=0.0))

  async def body():
    for attempt in range(5):
      job = asyncio.create_task(collect.run(task, 0, attempt, world, seed='s'))
      while not engine._running:
        await asyncio.sleep(0.01)
      [session] = engine._running
      await ask(engine, PROMPTS[0], session='beside', max_tokens=30, stop=())  # the rollout has about as many by then
      await engine.release(session)
      trajectory = await job
      if 0 < len(trajectory.turns[0].tokens) < 700:
        return trajectory
    raise AssertionError('no rollout was under way')

  trajectory = run(engine, body)
  [turn] = trajectory.turns
  assert trajectory.status is Status.OUT_OF_TOKENS and 0 < len(turn.tokens) < 700
  assert len(turn.tokens) == len(turn.logprobs) == sum(count for _, count in turn.versions)


def test_weights_can_be_broadcast_instead_of_written(serve, tmp_path):
  pytest.importorskip('torch', reason='broadcasting needs torch; install the extra "test"')
  engine = sampler(serve('qwen3'), tmp_path, transport='distributed', meet=f'127.0.0.1:{free_port()}')

  async def body():
    await engine.publish(network('qwen3', 1)[2], 2)  # the group is used again
    return await talk(engine), engine.numbers()

  found, numbers = run(engine, body)
  agree(found, seed=1)
  assert numbers['sync/bytes'] > 300_000 and not list(tmp_path.iterdir())


def test_a_second_run_on_the_server_is_refused(serve, tmp_path):
  server = serve('qwen3')
  first, second = sampler(server, tmp_path / 'a'), sampler(server, tmp_path / 'b', run='other')

  async def body():
    with pytest.raises(ConfigError, match="carries 'slca:run:1' of another run"):
      await second.publish(network('qwen3', 1)[2], 1)
    await second.close()
    return await talk(first)

  agree(run(first, body))


def test_a_server_killed_in_the_middle_of_a_batch_costs_nothing_but_time(serve, tmp_path):
  server = serve('qwen3')
  engine = sampler(server, tmp_path)

  async def body():
    expected = await talk(engine, max_tokens=200)
    jobs = asyncio.create_task(talk(engine, max_tokens=200))
    while len(engine._running) < len(PROMPTS):
      await asyncio.sleep(0)
    await ask(engine, PROMPTS[0], session='beside', max_tokens=5, stop=())  # the others are under way by then
    server.kill()
    server.start()
    return expected, await jobs, engine.numbers()

  expected, found, numbers = run(engine, body)
  assert [ids for ids, _, _ in found] == [ids for ids, _, _ in expected]
  agree(found)
  assert numbers['engine/retries'] >= 1 and numbers['engine/servers_out'] == 0


def test_a_training_run_samples_from_the_server_and_publishes_after_every_step(serve, tmp_path):
  server = serve('qwen3')
  write_tasks([make_task(0, 'train', index) for index in range(4)], tmp_path / 'train.jsonl')
  servers = SGLangServers(urls=server.url, concurrency=8, **PATIENT)
  limits = Limits(turns=3, prompt_tokens=96, response_tokens=96, turn_tokens=24, observation_tokens=16)
  config = s.RLConfig(
    output=str(tmp_path / 'out'),
    steps=2,
    prompts=2,
    mini_batch=2,
    group_size=4,
    model=s.Model(path=str(server.model), dtype='float32', remat='none'),
    mesh=s.MeshShape(1, 1, 1) if len(jax.devices()) == 1 else s.MeshShape(data=1, fsdp=8),
    data=s.TaskFiles(str(tmp_path / 'train.jsonl')),
    rollout=s.RolloutSettings(engine='sglang', limits=limits, sglang=servers),
    optimizer=s.Optimizer(learning_rate=1e-2),
    batching=Layout((256,), 8),
  )
  rl.train(config)
  lines = [json.loads(line) for line in (tmp_path / 'out' / 'metrics.jsonl').read_text().splitlines()]
  assert [line['step'] for line in lines] == [1, 2]
  for line in lines:
    assert line['status/failed'] == 0 and line['engine/requests'] >= 8 and line['engine/retries'] == 0
    assert line['sync/bytes'] > 300_000 and line['sync/load_seconds'] > 0
  store = Trajectories(tmp_path / 'out' / 'rollouts' / 'step_000002', write=False)
  dumped = [store[index][0] for index in range(len(store))]
  assert {version for one in dumped for turn in one.turns for version, _ in turn.versions} == {1}
