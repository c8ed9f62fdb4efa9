import asyncio
import functools
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from slca_jax.errors import ConfigError, SamplerError
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.sharding import make_mesh, named_shardings
from slca_jax.nn.transformer import Transformer
from slca_jax.rollout import drawing
from slca_jax.rollout.local import LocalSampler
from slca_jax.rollout.settings import LocalEngine

CONFIG = TransformerConfig(
  vocab=50, layers=2, width=32, hidden=64, heads=4, kv_heads=2, head_dim=8, context=128, vocab_multiple=64, remat='none'
)
OPTIONS = LocalEngine(slots=6, context=96, prefill_chunk=8, prefill_rows=3, decode_block=4)
PROMPT = tuple(int(x) for x in np.random.default_rng(0).integers(0, 50, 21))


@functools.cache
def weights(seed):
  """Weights whose logits have a spread of about 1, so that choices are neither fixed nor uniform."""
  graph, params = nnx.split(Transformer(CONFIG, rngs=nnx.Rngs(seed)), nnx.Param)
  params['embed'] = params['embed'].replace(params['embed'][...] * 9)
  return graph, params


def options(**changes):
  return {**{name: getattr(OPTIONS, name) for name in OPTIONS.__slots__}, **changes}


def engine(*, seed=0, version=0, **changes):
  return LocalSampler(*weights(seed), CONFIG, LocalEngine(**options(**changes)), version=version)


def ask(sampler, tokens=PROMPT, *, session='a', max_tokens=10, temperature=1.0, top_p=1.0, stop=(), seed=0):
  return sampler.generate(
    tokens, session=session, max_tokens=max_tokens, temperature=temperature, top_p=top_p, stop=stop, seed=seed
  )


compiled = functools.cache(engine)


def run(*steps, seed=0, version=0, **changes):
  """What `await step(sampler)` gives for each step, on an engine that starts with an empty cache."""
  sampler = compiled(**changes)

  async def body():
    await sampler.publish(weights(seed)[1], version)
    try:
      return [await step(sampler) for step in steps]
    finally:
      for session in filter(None, list(sampler._slots.owner)):
        await sampler.release(session)

  return asyncio.run(body())


async def under_way(sampler, session):
  """Returns once the session's request with PROMPT has at least 5 ids."""
  while sampler._slots.of(session) is None:
    await asyncio.sleep(0)
  while sampler._slots.length_S[sampler._slots.of(session)] < len(PROMPT) + 5:
    await asyncio.sleep(0)


def trainer_logp(tokens, *, seed=0, temperature=1.0):
  """log p of each token but the first by the full forward pass."""
  graph, params = weights(seed)
  model = nnx.merge(graph, params)
  tokens_BT = jnp.asarray(tokens)[None]
  zeros_BT = jnp.zeros_like(tokens_BT)
  hidden_BTD = model(tokens_BT, zeros_BT, zeros_BT - 1, jnp.arange(len(tokens))[None])
  logits_TV = hidden_BTD[0] @ model.unembedding().T / (temperature or 1.0)
  return np.asarray(jax.nn.log_softmax(logits_TV)[jnp.arange(len(tokens) - 1), tokens_BT[0, 1:]])


@pytest.mark.parametrize('temperature', [1.0, 0.7, 0.0])
def test_logprobs_equal_the_trainers_over_the_turns_of_a_session(temperature):
  async def turns(sampler):
    first = await ask(sampler, temperature=temperature)
    ids = PROMPT + first.tokens + (7, 8, 9)
    return first, ids, await ask(sampler, ids, temperature=temperature, seed=1, max_tokens=12)

  [(first, ids, second)] = run(turns)
  expected = trainer_logp(ids + second.tokens, temperature=temperature)
  np.testing.assert_allclose(first.logprobs, expected[20:30], atol=1e-5)
  np.testing.assert_allclose(second.logprobs, expected[-12:], atol=1e-5)
  assert first.finish == second.finish == 'length' and first.versions == ((0, 10),)


def test_greedy_takes_the_likeliest_id():
  [sample] = run(lambda sampler: ask(sampler, temperature=0.0, max_tokens=1))
  graph, params = weights(0)
  model = nnx.merge(graph, params)
  tokens_BT = jnp.asarray([PROMPT])
  zeros_BT = jnp.zeros_like(tokens_BT)
  hidden_BTD = model(tokens_BT, zeros_BT, zeros_BT - 1, jnp.arange(len(PROMPT))[None])
  assert sample.tokens == (int((hidden_BTD[0, -1] @ model.unembedding().T).argmax()),)


def requests():
  """A mixed company: siblings, a prompt that starts alike, strangers of many lengths, every way of sampling."""
  rng = np.random.default_rng(1)
  strangers = [tuple(int(x) for x in rng.integers(0, 50, n)) for n in (1, 3, 8, 9, 17, 40, 60)]
  prompts = [PROMPT] * 4 + [(*PROMPT[:17], 1, 2, 3), *strangers]
  ways = [(1.0, 1.0), (0.7, 0.8), (0.0, 1.0)]
  return [
    {'tokens': p, 'seed': i, 'temperature': ways[i % 3][0], 'top_p': ways[i % 3][1], 'max_tokens': 5 + i}
    for i, p in enumerate(prompts)
  ]


async def converse(sampler, request, name):
  """Two turns of one session, then its release."""
  first = await ask(sampler, session=name, **request)
  again = {**request, 'tokens': request['tokens'] + first.tokens + (5, 6), 'max_tokens': 6}
  second = await ask(sampler, session=name, **again)
  await sampler.release(name)
  return first, second


def test_bits_do_not_depend_on_company_slot_or_order():
  wanted = requests()

  async def one_by_one(sampler):
    return [await converse(sampler, request, str(i)) for i, request in enumerate(wanted)]

  async def together(sampler, order):
    done = await asyncio.gather(*[converse(sampler, wanted[i], str(i)) for i in order])
    return [done[order.index(i)] for i in range(len(wanted))]

  alone = [run(lambda sampler, r=request: converse(sampler, r, 'x'))[0] for request in wanted[:5]]
  count = len(wanted)
  shuffled = [int(i) for i in np.random.default_rng(2).permutation(count)]
  serial, forward, mixed, warm = run(
    one_by_one,
    lambda sampler: together(sampler, list(range(count))),
    lambda sampler: together(sampler, shuffled),
    lambda sampler: together(sampler, list(range(count))[::-1]),
  )
  assert serial[:5] == alone
  assert serial == forward == mixed == warm  # log-probs are compared as floats, that is, bit by bit


def test_bits_do_not_depend_on_the_number_of_slots_in_use():
  async def group(sampler):
    return await asyncio.gather(*[ask(sampler, session=str(i), seed=i) for i in range(6)])

  [samples] = run(group)
  assert len({sample.tokens for sample in samples}) == 6
  for i in (0, 5):
    assert run(lambda sampler, i=i: ask(sampler, seed=i)) == [samples[i]]


def test_siblings_read_one_prompt_and_have_the_trainers_logprobs():
  async def group(sampler):
    samples = await asyncio.gather(*[ask(sampler, session=str(i), seed=i, max_tokens=9) for i in range(6)])
    ids = [PROMPT + sample.tokens + (3, 4) for sample in samples]
    second = [ask(sampler, ids[i], session=str(i), seed=i, max_tokens=9) for i in range(6)]
    assert set(sampler._slots.stem_S) == {0}
    return ids, samples, await asyncio.gather(*second)

  [(ids, first, second)] = run(group, prompts=2, siblings=6, own=24)
  assert len({sample.tokens for sample in first}) == 6
  for i in range(6):
    expected = trainer_logp(ids[i] + second[i].tokens)
    np.testing.assert_allclose(first[i].logprobs, expected[20:29], atol=1e-5)
    np.testing.assert_allclose(second[i].logprobs, expected[31:], atol=1e-5)


def test_a_session_ends_where_its_own_part_is_full():
  [sample] = run(lambda sampler: ask(sampler, max_tokens=40), prompts=2, siblings=6, own=24)
  assert (len(sample.tokens), sample.finish) == (24, 'length')


def test_a_request_repeats_and_its_seed_counts():
  first, again, other, wide = run(
    lambda sampler: ask(sampler, session='a', seed=3),
    lambda sampler: ask(sampler, session='b', seed=3),
    lambda sampler: ask(sampler, session='c', seed=4),
    lambda sampler: ask(sampler, session='d', seed=3 + (1 << 40)),
  )
  assert first == again
  assert len({first.tokens, other.tokens, wide.tokens}) == 3


def test_a_stop_id_ends_the_sample_and_is_part_of_it():
  [free] = run(ask)
  stop = free.tokens[4]
  [stopped] = run(lambda sampler: ask(sampler, stop=(49, stop) if stop != 49 else (stop,)))
  end = free.tokens.index(stop) + 1
  assert stopped.tokens == free.tokens[:end] and stopped.logprobs == free.logprobs[:end]
  assert stopped.finish == 'stop'


def test_rows_that_pad_the_vocabulary_are_never_sampled():
  [sample] = run(lambda sampler: ask(sampler, max_tokens=70, temperature=50.0))
  assert max(sample.tokens) < CONFIG.vocab < CONFIG.padded_vocab


def test_the_context_ends_a_sample():
  almost, full = run(
    lambda sampler: ask(sampler, (1,) * 93, session='a', max_tokens=10),
    lambda sampler: ask(sampler, (1,) * 96, session='b', max_tokens=10),
  )
  assert (len(almost.tokens), almost.finish) == (3, 'length')
  assert (full.tokens, full.finish) == ((), 'length')


@pytest.mark.parametrize(
  ('request_changes', 'message'),
  [
    ({'tokens': (1,) * 97}, '97 tokens, the context 96'),
    ({'tokens': ()}, 'at least one'),
    ({'tokens': (50,)}, 'ids from 0 to 49'),
    ({'max_tokens': 0}, 'max_tokens=0'),
    ({'temperature': -1.0}, 'temperature=-1.0'),
    ({'top_p': 0.0}, 'top_p=0.0'),
    ({'stop': (1, 2, 3, 4, 5)}, '5 stop ids, but the engine takes 4'),
  ],
)
def test_a_request_that_cannot_be_answered_says_why(request_changes, message):
  with pytest.raises(SamplerError, match=message):
    run(lambda sampler: ask(sampler, **request_changes))


def test_a_session_has_one_request_at_a_time():
  async def twice(sampler):
    first = asyncio.create_task(ask(sampler))
    await asyncio.sleep(0)
    with pytest.raises(SamplerError, match="'a' already has a request"):
      await ask(sampler)
    return await first

  assert len(run(twice)[0].tokens) == 10


def test_a_session_beyond_the_slots_waits_for_a_release():
  async def crowd(sampler):
    owners = [await ask(sampler, session=str(i), max_tokens=1) for i in range(2)]
    late = [asyncio.create_task(ask(sampler, session=name, max_tokens=1)) for name in 'xy']
    await ask(sampler, session='0', max_tokens=3, seed=2)
    assert not late[0].done() and len(owners) == 2
    await sampler.release('1')
    await late[0]
    assert not late[1].done()
    await sampler.release('0')
    await late[1]

  run(crowd, slots=2)


@pytest.mark.parametrize(('hasten', 'count'), [(False, [1, 4, 0, 0, 0, 0]), (True, [1, 1, 0, 0, 0, 0])])
def test_a_hastened_block_ends_with_its_first_finished_request(hasten, count):
  sampler = compiled()
  control_SX = np.zeros_like(sampler._control_SX)
  control_SX[:, drawing.STOPS :] = -1
  control_SX[:2, drawing.LEFT] = 1, 9
  control_SX[:, drawing.PLACE], slot_PR = sampler._slots.places()
  cache = sampler._programs.empty_cache()
  _, packed_SM2 = sampler._programs.decode(sampler._layers, cache, control_SX, slot_PR, hasten)
  assert (packed_SM2[:, :, 0] >= 0).sum(1).tolist() == count


def test_cancelling_disturbs_nobody_and_keeps_the_session():
  async def disturbed(sampler):
    kept = asyncio.create_task(ask(sampler, session='kept', max_tokens=40, seed=1))
    victim = asyncio.create_task(ask(sampler, session='victim', max_tokens=60, seed=2))
    await under_way(sampler, 'victim')
    victim.cancel()
    sample = await kept
    assert victim.cancelled()
    return sample, await ask(sampler, session='victim', max_tokens=4, seed=3)

  [(kept, after)] = run(disturbed)
  alone, fresh = run(
    lambda sampler: ask(sampler, max_tokens=40, seed=1), lambda sampler: ask(sampler, session='b', max_tokens=4, seed=3)
  )
  assert kept == alone
  assert after.tokens == fresh.tokens


def test_releasing_a_running_session_aborts_its_request():
  async def abort(sampler):
    task = asyncio.create_task(ask(sampler, max_tokens=70))
    await under_way(sampler, 'a')
    await sampler.release('a')
    return await task

  [part], [whole] = run(abort), run(lambda sampler: ask(sampler, max_tokens=70))
  assert part.finish == 'abort' and 5 <= len(part.tokens) < 70
  assert part.tokens == whole.tokens[: len(part.tokens)]


def test_new_weights_leave_nothing_of_the_old_ones_behind():
  async def publish(sampler):
    await asyncio.gather(*[ask(sampler, session=name) for name in 'ab'])
    await sampler.release('b')
    params = jax.tree.map(jnp.copy, weights(1)[1])
    await sampler.publish(params, 7)
    for leaf in jax.tree.leaves(params):  # as a trainer that donates its parameters does
      leaf.delete()
    return [await ask(sampler, session=name) for name in 'abc']

  [served], [fresh] = run(publish), run(ask, seed=1, version=7)
  assert served == [fresh] * 3


def test_new_weights_compute_what_a_session_shares_of_a_longer_prompt_and_what_is_its_own():
  async def turns(sampler):
    await ask(sampler, PROMPT + tuple(range(12)), session='long', max_tokens=2)
    first = await ask(sampler, session='short')
    await sampler.publish(weights(1)[1], 1)
    ids = PROMPT + first.tokens + (7, 8, 9)
    return ids, await ask(sampler, ids, session='short', seed=1)

  [(ids, sample)] = run(turns, siblings=2)
  np.testing.assert_allclose(sample.logprobs, trainer_logp(ids + sample.tokens, seed=1)[-10:], atol=1e-5)


def test_a_running_request_goes_on_under_new_weights_and_says_so():
  async def publish(sampler):
    task = asyncio.create_task(ask(sampler, max_tokens=60))
    await under_way(sampler, 'a')
    await sampler.publish(weights(1)[1], 5)
    return await task

  [sample] = run(publish, version=4)
  (old, before), (new, after) = sample.versions
  assert (old, new, before + after) == (4, 5, 60)
  ids = PROMPT + sample.tokens
  np.testing.assert_allclose(sample.logprobs[:before], trainer_logp(ids, seed=0)[20 : 20 + before], atol=1e-5)
  np.testing.assert_allclose(sample.logprobs[before:], trainer_logp(ids, seed=1)[20 + before :], atol=1e-5)


def test_parameters_of_another_model_are_refused_by_name():
  params = nnx.split(Transformer(CONFIG, rngs=nnx.Rngs(0)), nnx.Param)[1]
  params['embed'] = params['embed'].replace(jnp.zeros((3, 32)))
  with pytest.raises(SamplerError, match=r'embed.*float32\[3, 32\], the engine has float32\[64, 32\]'):
    run(lambda sampler: sampler.publish(params, 1))


def test_nan_weights_fail_requests_and_leave_no_trace():
  async def poisoned(sampler):
    broken = jax.tree.map(lambda x: x * jnp.nan, weights(0)[1])
    await sampler.publish(broken, 1)
    outcomes = await asyncio.gather(*[ask(sampler, session=name) for name in 'ab'], return_exceptions=True)
    await sampler.publish(weights(0)[1], 0)
    return outcomes, [await ask(sampler, session=name) for name in 'ab']

  [(outcomes, healed)], [fresh] = run(poisoned), run(ask)
  assert all(isinstance(error, SamplerError) and 'no numbers' in str(error) for error in outcomes)
  assert healed == [fresh] * 2


def test_a_failed_device_call_fails_the_requests_and_the_engine_recovers():
  async def failing(sampler):
    for leaf in jax.tree.leaves(sampler._layers):
      leaf.delete()
    outcomes = await asyncio.gather(*[ask(sampler, session=name) for name in 'ab'], return_exceptions=True)
    await sampler.publish(weights(0)[1], 0)
    return outcomes, await ask(sampler)

  [(outcomes, healed)], [fresh] = run(failing), run(ask)
  assert all(isinstance(error, SamplerError) and 'the engine failed' in str(error) for error in outcomes)
  assert healed == fresh


def test_each_program_compiles_once():
  async def busy(sampler):
    await asyncio.gather(*[converse(sampler, request, str(i)) for i, request in enumerate(requests())])
    await sampler.publish(weights(1)[1], 1)
    await ask(sampler, session='last', top_p=0.5)

  run(busy)
  assert compiled().compilations() == {'decode': 1, 'prompts': 1, 'turns': 1, 'copy': 1}


def test_event_loops_may_follow_one_another_even_after_a_broken_one():
  sampler = engine()

  async def interrupted():
    task = asyncio.create_task(ask(sampler, session='lost', max_tokens=70))
    await under_way(sampler, 'lost')
    return task

  first = asyncio.run(ask(sampler, session='a'))
  assert asyncio.run(interrupted()).cancelled()
  assert asyncio.run(ask(sampler, session='b')) == first
  asyncio.run(sampler.close())


def test_the_loop_stays_free_while_the_device_works(monkeypatch):
  programs, ticked = compiled()._programs, threading.Event()
  decode = programs.decode

  def held(*orders):
    assert ticked.wait(300), 'the loop does not turn'
    return decode(*orders)

  async def ticking(sampler):
    task = asyncio.create_task(ask(sampler, max_tokens=70))
    for _ in range(200):
      await asyncio.sleep(0)
    assert not task.done()
    ticked.set()
    return await task

  monkeypatch.setattr(programs, 'decode', held)
  assert len(run(ticking)[0].tokens) == 70


def test_a_closed_engine_says_so():
  async def closing():
    sampler = engine()
    task = asyncio.create_task(ask(sampler, max_tokens=70))
    await under_way(sampler, 'a')
    await sampler.close()
    await sampler.close()
    with pytest.raises(SamplerError, match='closed'):
      await task
    with pytest.raises(SamplerError, match='closed'):
      await ask(sampler)

  asyncio.run(closing())


@pytest.mark.parametrize(
  'sizes', [{'data': 2, 'fsdp': 2, 'tensor': 2}, {'data': 1, 'fsdp': 8}, {'data': 1, 'fsdp': 2, 'tensor': 4}]
)
def test_a_mesh_of_eight_samples_the_same_ids(sizes):
  mesh = make_mesh(**sizes, devices=jax.devices()[:8])
  graph, params = weights(0)
  sharded = jax.device_put(params, named_shardings(params, mesh))
  changes = {'slots': 8, 'prompts': 8, 'siblings': 2, 'own': 64, 'prefill_rows': 8}

  async def talk(sampler):
    wanted = [{**request, 'temperature': 0.0, 'max_tokens': 6} for request in requests()]
    turns = await asyncio.gather(*[converse(sampler, request, str(i)) for i, request in enumerate(wanted)])
    await sampler.publish(sharded if sampler._programs.shards > 1 else params, 1)
    return [*turns, await asyncio.gather(ask(sampler, temperature=0.0), ask(sampler, session='b', temperature=0.0))]

  async def body():
    sampler = LocalSampler(graph, sharded, CONFIG, LocalEngine(**options(**changes)))
    try:
      return await talk(sampler), sampler.compilations(), sampler._cache
    finally:
      await sampler.close()

  found, compilations, cache = asyncio.run(body())
  [expected] = run(talk, **changes)
  for pair, same in zip(found, expected, strict=True):
    assert [sample.tokens for sample in pair] == [sample.tokens for sample in same]
    for sample, other in zip(pair, same, strict=True):
      np.testing.assert_allclose(sample.logprobs, other.logprobs, atol=1e-5)
  assert compilations == {'decode': 1, 'prompts': 1, 'turns': 1, 'copy': compilations['copy']}
  rows, heads = mesh.shape['data'] * mesh.shape['fsdp'], 2 if mesh.shape['tensor'] == 2 else 1
  for leaf in jax.tree.leaves(cache):  # no device holds rows or heads of another one
    assert leaf.sharding.shard_shape(leaf.shape)[:2] == (leaf.shape[0] // rows, leaf.shape[1] // heads)


def test_sizes_that_cannot_work_are_refused():
  with pytest.raises(ConfigError, match='slots is 0'):
    LocalEngine(slots=0)
  with pytest.raises(ConfigError, match='context is 1'):
    LocalEngine(context=1)
  with pytest.raises(ConfigError, match='context is 256, but the model has 128'):
    engine(context=256)
