"""The adapter of sglang-jax against a stand-in with the engine's attribute names, and against the engine itself."""

import asyncio
import importlib.util
import json
import pathlib
import types

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

from slca_jax.errors import SamplerError
from slca_jax.rollout.sgl_jax import SglJaxSampler


class Network(nnx.Module):
  """Its one weight is the token it says."""

  def __init__(self, width=1):
    self.word = nnx.Param(jnp.zeros(width, jnp.int32))

  def load_weights(self, config):
    """Reads the number in the folder that the config names."""
    found = json.loads(pathlib.Path(config.model_path, 'word.json').read_text())
    self.word.value = jnp.full(found['width'], found['word'], jnp.int32)


class Engine:
  """An engine of a single process: its programs use the leaves, never the model."""

  def __init__(self):
    model = Network()
    leaves = jax.tree.leaves(nnx.split(model)[1])
    mesh, config = jax.make_mesh((1,), ('data',)), types.SimpleNamespace(model_path='')
    self.runner = types.SimpleNamespace(model=model, model_state_leaves=leaves, mesh=mesh, model_config=config)
    worker = types.SimpleNamespace(model_runner=self.runner)
    self.scheduler_info = {'scheduler': types.SimpleNamespace(tp_worker=types.SimpleNamespace(worker=worker))}
    self.tokenizer_manager = self
    self.flushed = self.busy = self.most_busy = 0
    self.asked, self.spoil, self.stuck = [], False, False

  async def flush_cache(self):
    """Refuses while anything runs, as the real one does."""
    if not self.busy and not self.stuck:
      self.flushed += 1
      return types.SimpleNamespace(success=True, error_msg='')
    return types.SimpleNamespace(success=False, error_msg='there are pending requests')

  async def async_generate(self, **request):
    """Says its word once per step of the loop; whoever gives up the wait leaves it at work."""
    return await asyncio.shield(asyncio.ensure_future(self._generate(request)))

  async def _generate(self, request):
    self.asked.append(request)
    self.busy += 1
    self.most_busy = max(self.most_busy, self.busy)
    words = []
    for _ in range(request['sampling_params']['max_new_tokens']):
      await asyncio.sleep(0)
      words.append([-0.25, int(self.runner.model_state_leaves[0][0]), None])
    self.busy -= 1
    meta = {'finish_reason': {'type': 'length'}, 'completion_tokens': len(words) + self.spoil}
    return {'meta_info': meta | {'output_token_logprobs': words}}


def save(params, folder):
  folder.mkdir(parents=True, exist_ok=True)
  (folder / 'word.json').write_text(json.dumps({'word': params, 'width': 1} if isinstance(params, int) else params))


def ask(sampler, tokens=(1,), count=6):
  return sampler.generate(tokens, session='a', max_tokens=count, temperature=1.0, top_p=1.0, stop=(3,), seed=5)


@pytest.fixture
def engine():
  return Engine()


@pytest.fixture
def sampler(engine, tmp_path):
  return SglJaxSampler(engine, save=save, folder=tmp_path, vocab=50, concurrency=2, sync_seconds=1.0)


def test_published_weights_reach_the_programs_and_label_their_tokens(engine, sampler):
  async def body():
    await sampler.publish(7, 1)
    first = await ask(sampler)
    await sampler.publish(9, 2)
    return first, await ask(sampler)

  first, second = asyncio.run(body())
  assert first.tokens == (7,) * 6 and first.versions == ((1, 6),) and first.logprobs == (-0.25,) * 6
  assert second.tokens == (9,) * 6 and second.versions == ((2, 6),)
  assert engine.flushed == 2 and engine.asked[0]['logprob_start_len'] == 0


def test_no_answer_spans_a_sync_and_no_more_run_than_may(engine, sampler):
  async def body():
    await sampler.publish(7, 1)
    jobs = [asyncio.create_task(ask(sampler, count=40)) for _ in range(5)]
    await asyncio.sleep(0)
    await asyncio.gather(sampler.publish(9, 2), sampler.publish(11, 3))
    return await asyncio.gather(*jobs)

  samples = asyncio.run(body())
  assert all(len(set(sample.tokens)) == 1 == len(sample.versions) for sample in samples)
  assert all({1: 7, 2: 9, 3: 11}[sample.versions[0][0]] == sample.tokens[0] for sample in samples)
  assert engine.most_busy == 2


def test_a_sync_empties_the_cache_though_a_cancelled_request_still_runs(engine, sampler):
  async def body():
    await sampler.publish(7, 1)
    job = asyncio.create_task(ask(sampler, count=40))
    while not engine.busy:
      await asyncio.sleep(0)
    job.cancel()
    await sampler.publish(9, 2)
    assert engine.flushed == 2
    engine.stuck = True
    with pytest.raises(SamplerError, match='does not empty its cache: there are pending requests'):
      await sampler.publish(11, 3)

  asyncio.run(body())


def test_shared_devices_are_not_used_by_both(engine, sampler):
  async def body():
    await sampler.publish(7, 1)
    job = asyncio.create_task(ask(sampler, count=40))
    await asyncio.sleep(0)
    busy = await sampler.share(lambda: engine.busy)
    await job
    return busy

  assert asyncio.run(body()) == 0


def test_what_cannot_be_used_is_refused(engine, sampler):
  async def body():
    with pytest.raises(SamplerError, match='ids from 0 to 49'):
      await ask(sampler, (50,))
    with pytest.raises(SamplerError, match='of another network'):
      await sampler.publish({'word': 1, 'width': 3}, 1)
    engine.spoil = True
    with pytest.raises(SamplerError, match='6 log-probs for 7 tokens'):
      await ask(sampler)
    engine.scheduler_info = {}
    with pytest.raises(SamplerError, match='enable_single_process=True'):
      await sampler.publish(7, 1)

  asyncio.run(body())


@pytest.mark.skipif(importlib.util.find_spec('sgl_jax') is None, reason='no sgl_jax here; install it on a TPU host')
def test_the_real_engine_has_what_the_adapter_touches():
  from sgl_jax.srt.entrypoints.engine import Engine as Real
  from sgl_jax.srt.managers.tokenizer_manager import TokenizerManager
  from sgl_jax.srt.model_executor.model_runner import ModelRunner

  assert hasattr(Real, 'async_generate') and hasattr(TokenizerManager, 'flush_cache')
  assert 'model_state_leaves' in ModelRunner.initialize_jit.__code__.co_names
