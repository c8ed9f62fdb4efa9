"""The sampler over servers against a stand-in with faults: what is lost, what is repeated, what is refused."""

import asyncio
import contextlib
import errno
import threading

import pytest
from sglang_stand_in import following, save

from slca_jax.errors import ConfigError, SamplerError
from slca_jax.rollout.answers import Tag, read_answer
from slca_jax.rollout.settings import SGLangServers
from slca_jax.rollout.sglang import SGLangSampler
from slca_jax.rollout.wire import Trouble

QUICK = {'backoff_seconds': 0.01, 'probe_seconds': 0.02}
PATIENT = {'outage_seconds': 300.0, 'request_seconds': 300.0, 'connect_seconds': 300.0}


def sampler(tmp_path, *stand_ins, run='r', vocab=100, context=0, needed=0, save=save, **settings):
  urls = ','.join(server.url for server in stand_ins)
  options = SGLangServers(urls=urls, **(QUICK | PATIENT | settings))
  return SGLangSampler(options, run=run, folder=tmp_path / run, save=save, vocab=vocab, context=context, needed=needed)


def ask(engine, tokens=(1, 2, 3), *, session='a', max_tokens=5, stop=(), **options):
  options = {'temperature': 1.0, 'top_p': 1.0, 'seed': 0} | options
  return engine.generate(tokens, session=session, max_tokens=max_tokens, stop=stop, **options)


def drawn(count, weights, last=3):
  """The ids that follow `last` under these weights."""
  out = []
  for _ in range(count):
    last = following(last, weights)
    out.append(last)
  return tuple(out)


async def until(condition):
  while not condition():
    await asyncio.sleep(0.005)


def served(engine, body, *, weights=5, version=1):
  """What `body()` gives after the weights were published."""

  async def whole():
    try:
      await engine.publish(weights, version)
      return await body()
    finally:
      await engine.close()

  return asyncio.run(whole())


def test_a_sample_holds_the_servers_ids_logprobs_and_version(tmp_path, servers):
  server = servers()
  engine = sampler(tmp_path, server)
  sample = served(engine, lambda: ask(engine, temperature=0.7, top_p=0.9, seed=11, stop=(98,)))
  assert sample.tokens == drawn(5, 5)
  assert sample.logprobs == (-0.5,) * 5 and sample.finish == 'length' and sample.versions == ((1, 5),)
  [body] = server.paths('/generate')
  assert body['input_ids'] == [1, 2, 3] and body['return_logprob'] and body['logprob_start_len'] == -1
  wanted = {'max_new_tokens': 5, 'temperature': 0.7, 'top_p': 0.9, 'top_k': -1, 'stop_token_ids': [98]}
  assert body['sampling_params'] == wanted | {'sampling_seed': 11, 'skip_special_tokens': False}


def test_a_stop_id_ends_a_sample_and_is_part_of_it(tmp_path, servers):
  engine = sampler(tmp_path, servers())
  sample = served(engine, lambda: ask(engine, stop=(drawn(3, 5)[-1],)))
  assert sample.tokens == drawn(3, 5) and sample.finish == 'stop'


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'tokens': ()}, 'at least one'),
    ({'tokens': (100,)}, 'ids from 0 to 99'),
    ({'tokens': (1,) * 257}, '257 tokens, the servers take 256'),
    ({'max_tokens': 0}, 'max_tokens=0'),
    ({'temperature': float('nan')}, 'temperature=nan'),
    ({'top_p': 0.0}, r'top_p=0\.0'),
  ],
)
def test_a_request_that_cannot_be_answered_is_not_sent(tmp_path, servers, changes, message):
  server = servers()
  engine = sampler(tmp_path, server)
  with pytest.raises(SamplerError, match=message):
    served(engine, lambda: ask(engine, **changes))
  assert not server.paths('/generate')


def test_a_refusal_is_told_and_not_repeated(tmp_path, servers):
  server = servers()
  engine = sampler(tmp_path, server)
  server.fail('/generate', 400)
  with pytest.raises(SamplerError, match='refused with 400: ordered'):
    served(engine, lambda: ask(engine))
  assert len(server.paths('/generate')) == 1


def test_the_context_of_the_server_bounds_a_sample(tmp_path, servers):
  engine = sampler(tmp_path, servers(context=10))

  async def body():
    return await ask(engine, (1, 2, 3), max_tokens=99), await ask(engine, (1,) * 10, session='b')

  cut, full = served(engine, body)
  assert (len(cut.tokens), cut.finish) == (7, 'length') and (full.tokens, full.finish) == ((), 'length')


@pytest.mark.parametrize(
  'faults',
  [
    ['reset', 'reset'],
    [500, 502, 504],
    [429, 429, 503, 429, 503, 503],
    [{'status': 429, 'headers': {'Retry_After': '0.05'}}],
    ['garbage', 'html'],
    ['miscount'],
  ],
  ids=str,
)
def test_a_request_outlives_troubles(tmp_path, servers, faults):
  server = servers()
  engine = sampler(tmp_path, server)
  server.fail('/generate', *faults)
  assert served(engine, lambda: ask(engine)).tokens == drawn(5, 5)
  assert len(server.paths('/generate')) == len(faults) + 1
  assert len({body['rid'] for body in server.paths('/generate')}) == len(faults) + 1
  assert engine.numbers()['engine/retries'] == len(faults)


@pytest.mark.parametrize(
  ('fault', 'message'),
  [
    (500, r'3 attempts broke, .* 500: '),
    ('garbage', '3 attempts broke, .* no JSON'),
    ('miscount', '3 attempts broke, .* 10 log-probs for 5 tokens'),
    ('reset', '3 attempts broke'),
  ],
)
def test_what_breaks_for_ever_ends_in_an_error(tmp_path, servers, fault, message):
  server = servers()
  engine = sampler(tmp_path, server, retries=2)
  server.fail('/generate', *[fault] * 50)
  with pytest.raises(SamplerError, match=message):
    served(engine, lambda: ask(engine))
  assert len(server.paths('/generate')) == 3


@pytest.mark.parametrize('fault', [429, 503, 'hang'])
def test_no_request_outlives_its_deadline(tmp_path, servers, fault):
  server = servers()
  engine = sampler(tmp_path, server, retries=0, request_seconds=0.5)
  server.fail('/generate', *[fault] * 1000)
  with pytest.raises(SamplerError, match=r"session 'a' within 0\.5 s"):
    served(engine, lambda: ask(engine))
  if fault == 'hang':
    assert server.paths('/abort_request')


def test_a_server_is_asked_for_no_more_than_it_can_do(tmp_path, servers):
  server = servers(hold=2)
  engine = sampler(tmp_path, server, concurrency=3)

  async def body():
    jobs = [asyncio.create_task(ask(engine, session=str(i))) for i in range(12)]
    await until(lambda: len(server.held) == 3)
    await asyncio.sleep(0.05)  # time for a fourth
    server.let_go()
    return await asyncio.gather(*jobs)

  found = served(engine, body)
  assert [sample.tokens for sample in found] == [drawn(5, 5)] * 12
  assert server.most_busy == 3 == engine.concurrency


def test_a_session_stays_on_its_server_and_sessions_are_spread(tmp_path, servers):
  pair = servers(), servers()
  engine = sampler(tmp_path, *pair)

  async def body():
    for _turn in range(3):
      await asyncio.gather(*[ask(engine, session=str(i)) for i in range(6)])

  served(engine, body)
  keys = [[headers['X-SMG-Routing-Key'] for path, _, headers in s.calls if path == '/generate'] for s in pair]
  assert [len(set(one)) for one in keys] == [3, 3] and not set(keys[0]) & set(keys[1])
  assert [sorted(one.count(key) for key in set(one)) for one in keys] == [[3, 3, 3]] * 2


def test_a_released_session_makes_room_on_its_server(tmp_path, servers):
  pair = servers(), servers()
  engine = sampler(tmp_path, *pair)

  async def body():
    for i in range(10):  # one after another: each finds both servers empty
      await ask(engine, session=str(i))
      await engine.release(str(i))

  served(engine, body)
  assert len(pair[0].paths('/generate')) == 10


def test_requests_of_a_dying_server_are_answered_by_another(tmp_path, servers):
  dying, staying = servers(hold=20), servers()
  engine = sampler(tmp_path, dying, staying)

  async def body():
    jobs = [asyncio.create_task(ask(engine, session=str(i), max_tokens=40)) for i in range(8)]
    await until(lambda: len(dying.held) == 4)
    dying.kill()
    return await asyncio.gather(*jobs), engine.numbers()

  found, numbers = served(engine, body)
  assert [sample.tokens for sample in found] == [drawn(40, 5)] * 8
  assert numbers['engine/moved'] == 4 and numbers['engine/servers_out'] == 1


def test_a_server_that_was_started_again_gets_the_weights_before_it_is_asked(tmp_path, servers):
  server = servers(hold=20)
  engine = sampler(tmp_path, server)

  async def body():
    jobs = [asyncio.create_task(ask(engine, session=str(i), max_tokens=40)) for i in range(4)]
    await until(lambda: len(server.held) == 4)
    server.kill()
    server.let_go()
    server.start()
    found = await asyncio.gather(*jobs)
    return found, server.version

  found, version = served(engine, body)
  assert [sample.tokens for sample in found] == [drawn(40, 5)] * 4 and version == 'slca:r:1'


def test_an_answer_from_the_weights_a_server_started_with_is_thrown_away(tmp_path, servers):
  server = servers()
  engine = sampler(tmp_path, server)

  async def body():
    server.version, server.weights = 'default', 0  # started again while nobody asked
    return await ask(engine)

  sample = served(engine, body)
  assert sample.tokens == drawn(5, 5) and sample.versions == ((1, 5),)
  assert len(server.paths('/generate')) == 2


def test_a_server_comes_back_with_the_weights_it_missed(tmp_path, servers):
  lost, staying = servers(), servers()
  engine = sampler(tmp_path, lost, staying)

  async def body():
    lost.kill()
    await engine.publish(6, 2)
    assert staying.version == 'slca:r:2' and engine.numbers()['engine/servers_out'] == 1
    lost.start()
    await until(lambda: not engine.numbers()['engine/servers_out'])
    return lost.version, lost.weights

  assert served(engine, body) == ('slca:r:2', 6)


def test_a_server_that_hangs_loses_its_sessions(tmp_path, servers):
  hanging, staying = servers(), servers()
  engine = sampler(tmp_path, hanging, staying, quiet_seconds=0.02)
  hanging.fail('/generate', *['hang'] * 2)
  hanging.healthy = False

  async def body():
    return await asyncio.gather(*[ask(engine, session=str(i)) for i in range(4)])

  assert [sample.tokens for sample in served(engine, body)] == [drawn(5, 5)] * 4
  assert len(staying.paths('/generate')) == 4


def test_without_any_server_a_request_ends_with_an_error(tmp_path, servers):
  server = servers()
  engine = sampler(tmp_path, server, outage_seconds=0.3)

  async def body():
    server.kill()
    return await ask(engine)

  with pytest.raises(SamplerError, match=r'no server of http.* could be asked for 0\.3 s'):
    served(engine, body)


def test_servers_that_start_late_are_waited_for_and_that_is_said_once(tmp_path, servers, caplog):
  server = servers()
  server.kill()
  engine = sampler(tmp_path, server)

  async def body():
    job = asyncio.create_task(engine.publish(5, 1))
    while 'waiting up to' not in caplog.text:
      await asyncio.sleep(0.01)
    server.start()
    await job
    sample = await ask(engine)
    await engine.close()
    return sample

  assert asyncio.run(body()).tokens == drawn(5, 5)
  assert caplog.text.count('can be asked; waiting up to outage_seconds = 300 s for one') == 1


def test_a_server_that_stays_out_is_told_of_once(tmp_path, servers, caplog):
  server, late = servers(), servers()
  late.kill()
  engine = sampler(tmp_path, server, late)

  async def body():
    late.start('slca:other:3')
    await until(lambda: len(late.paths('/model_info')) >= 5)
    return await ask(engine)

  assert served(engine, body).tokens == drawn(5, 5)
  assert caplog.text.count(f"{late.url} stays out: {late.url} carries 'slca:other:3' of another run") == 1


def test_cancelling_aborts_the_request_on_its_server(tmp_path, servers):
  server = servers(hold=20)
  engine = sampler(tmp_path, server)

  async def body():
    job = asyncio.create_task(ask(engine, max_tokens=200))
    await until(lambda: server.held)
    job.cancel()
    with contextlib.suppress(asyncio.CancelledError):
      await job
    return await ask(engine, session='a', max_tokens=2)

  assert served(engine, body).tokens == drawn(2, 5)
  [cancelled] = server.paths('/abort_request')
  assert cancelled['rid'] == server.paths('/generate')[0]['rid']


def test_releasing_a_running_session_keeps_what_it_has(tmp_path, servers):
  server = servers(hold=20)
  engine = sampler(tmp_path, server)

  async def body():
    job = asyncio.create_task(ask(engine, max_tokens=200))
    await until(lambda: server.held)
    await engine.release('a')
    return await job

  sample = served(engine, body)
  assert sample.finish == 'abort' and sample.tokens == drawn(20, 5)


@pytest.mark.parametrize('pause', ['retract', 'abort'])
def test_a_running_request_says_which_weights_drew_what(tmp_path, servers, pause):
  server = servers(hold=20)
  engine = sampler(tmp_path, server, pause=pause)

  async def body():
    job = asyncio.create_task(ask(engine, max_tokens=60))
    await until(lambda: server.held)
    await engine.publish(6, 2)
    server.let_go()
    return await job, await ask(engine, session='b')

  sample, after = served(engine, body)
  assert after.versions == ((2, 5),) and after.tokens == drawn(5, 6)
  assert sample.tokens[:20] == drawn(20, 5)
  if pause == 'abort':
    assert sample.finish == 'abort' and sample.versions == ((1, 20),)
  else:
    assert sample.finish == 'length' and sample.versions == ((1, 20), (2, 40))
    assert sample.tokens[20:] == drawn(40, 6, sample.tokens[19])


def test_weights_that_change_in_place_share_no_prefix_with_older_ones(tmp_path, servers):
  server = servers()
  engine = sampler(tmp_path, server, pause='in_place')

  async def body():
    await ask(engine)
    await ask(engine, session='b')
    await engine.publish(6, 1)  # a version may be published again with other weights
    await ask(engine)

  served(engine, body)
  before, beside, after = [body['extra_key'] for body in server.paths('/generate')]
  assert before == beside != after
  assert not any(order['flush_cache'] for order in server.paths('/update_weights_from_disk'))


@pytest.mark.parametrize('pause', ['retract', 'abort', 'in_place'])
def test_what_is_asked_before_the_servers_pause_is_of_the_old_weights(tmp_path, servers, pause):
  server = servers()
  engine = sampler(tmp_path, server, pause=pause)

  async def body():
    await ask(engine)
    server.gates['/pause_generation'] = threading.Event()
    publishing = asyncio.create_task(engine.publish(6, 2))
    await until(lambda: len(server.paths('/pause_generation')) == 2)
    early = asyncio.create_task(ask(engine, session='b'))
    await until(lambda: len(server.paths('/generate')) == 2 and not server.busy)
    server.gates['/pause_generation'].set()
    await publishing
    return await early, await ask(engine, session='c'), engine.numbers()

  early, after, numbers = served(engine, body)
  assert early.versions == ((1, 5),) and after.versions == ((2, 5),)
  assert numbers['engine/retries'] == numbers['engine/moved'] == 0
  keys = [body.get('extra_key') for body in server.paths('/generate')]
  assert keys == [None] * 3 or keys[0] == keys[1] != keys[2]


def test_a_sync_pauses_loads_flushes_resumes_and_is_measured(tmp_path, servers):
  server = servers()
  engine = sampler(tmp_path, server)

  async def body():
    await engine.publish(7, 2)
    return engine.numbers()

  numbers = served(engine, body)
  steps = [path for path, _, _ in server.calls if path.startswith(('/pause', '/update_weights', '/continue'))]
  assert steps[:3] == ['/pause_generation', '/update_weights_from_disk', '/continue_generation']
  [_, order] = server.paths('/update_weights_from_disk')
  assert order['flush_cache'] and order['weight_version'] == 'slca:r:2' and server.weights == 7
  assert numbers['sync/bytes'] == 1 and numbers['sync/write_seconds'] > 0 and numbers['sync/load_seconds'] > 0


def test_old_versions_are_removed(tmp_path, servers):
  engine = sampler(tmp_path, servers(), keep=2)

  async def body():
    for version in (2, 3, 4):
      await engine.publish(version, version)
    return sorted(path.name for path in (tmp_path / 'r').iterdir())

  assert served(engine, body) == ['v00000003', 'v00000004']


def test_a_run_that_was_set_back_removes_what_lies_ahead(tmp_path, servers):
  server = servers()
  for version in (7, 9):
    engine = sampler(tmp_path, server)
    served(engine, lambda: asyncio.sleep(0), version=version)
  served(sampler(tmp_path, server), lambda: asyncio.sleep(0), version=8)
  assert sorted(path.name for path in (tmp_path / 'r').iterdir()) == ['v00000007', 'v00000008']


def full(params, folder):
  """A disk that is full in the middle of writing."""
  save(params, folder)
  if params == 6:
    raise OSError(errno.ENOSPC, 'No space left on device')


@pytest.mark.parametrize('needed', [1 << 60, 1000])
def test_a_full_disk_names_the_folder_and_leaves_nothing_half_written(tmp_path, servers, needed):
  server = servers()
  engine = sampler(tmp_path, server, save=full, needed=1000)

  async def body():
    engine._published._needed = needed
    with pytest.raises(SamplerError, match=rf'v00000002: [Nn]o space left .* they need {needed:,} bytes, .* are free'):
      await engine.publish(6, 2)
    return await ask(engine)

  sample = served(engine, body)
  assert sample.tokens == drawn(5, 5) and not server.paused
  assert [path.name for path in (tmp_path / 'r').iterdir()] == ['v00000001']


def test_weights_that_a_server_refuses_end_the_publishing_and_it_goes_on(tmp_path, servers):
  server = servers()
  engine = sampler(tmp_path, server)

  async def body():
    server.fail('/update_weights_from_disk', 400)
    with pytest.raises(SamplerError, match='refused with 400: ordered'):
      await engine.publish(6, 2)
    return server.paused

  assert served(engine, body) == ''


def test_a_server_that_breaks_during_a_broadcast_ends_the_publishing(tmp_path, servers):
  pytest.importorskip('torch', reason="transport 'distributed' needs torch")
  server = servers()
  options = SGLangServers(urls=server.url, transport='distributed', meet='127.0.0.1:1', **(QUICK | PATIENT))
  engine = SGLangSampler(options, run='r', folder=tmp_path, save=save, vocab=100, tensors=lambda params: [])
  assert engine._broadcast is not None
  engine._broadcast._members = (server.url,)  # as if they had met before
  server.fail('/begin_weight_update', 500)
  with pytest.raises(SamplerError, match='begin_weight_update answered 500'):
    served(engine, lambda: ask(engine))
  assert not engine._broadcast._members and not server.paused


def test_a_server_that_says_it_has_other_weights_than_it_was_given_is_refused(tmp_path, servers):
  server = servers()
  engine = sampler(tmp_path, server)

  async def body():
    server.fail('/update_weights_from_disk', 200)  # says yes and does nothing
    with pytest.raises(SamplerError, match="carries 'slca:r:1' after it was given 'slca:r:2'"):
      await engine.publish(6, 2)

  served(engine, body)


def test_a_second_run_on_a_server_is_refused_before_it_touches_anything(tmp_path, servers):
  free, owned = servers(), servers()
  first, second = sampler(tmp_path, owned, run='one'), sampler(tmp_path, free, owned, run='two')

  async def body():
    with pytest.raises(ConfigError, match=rf"{owned.url} carries 'slca:one:1' of another run.*take_over"):
      await second.publish(6, 1)
    await second.close()
    return await ask(first)

  assert served(first, body).tokens == drawn(5, 5)
  assert free.version == 'default' and free.weights == 0


def test_a_run_that_ended_leaves_its_servers_to_others(tmp_path, servers):
  server = servers()
  first, second = sampler(tmp_path, server, run='one'), sampler(tmp_path, server, run='two')
  served(first, lambda: ask(first))
  assert server.version == 'released:one:1'
  assert served(second, lambda: ask(second)).versions == ((1, 5),)


def test_a_dead_runs_server_can_be_taken_over_or_resumed(tmp_path, servers):
  server = servers(version='slca:one:7')
  again, other = sampler(tmp_path, server, run='one'), sampler(tmp_path, server, run='two', take_over=True)
  assert served(again, lambda: ask(again), version=7).versions == ((7, 5),)
  server.version = 'slca:one:7'
  assert served(other, lambda: ask(other)).versions == ((1, 5),)


def test_a_run_whose_server_is_taken_over_notices(tmp_path, servers):
  server = servers()
  first, second = sampler(tmp_path, server, run='one'), sampler(tmp_path, server, run='two', take_over=True)

  async def body():
    await second.publish(6, 1)
    with pytest.raises(SamplerError, match="taken over: it answered with weights 'slca:two:1'"):
      await ask(first)
    with pytest.raises(SamplerError, match="taken over: it carries 'slca:two:1'"):
      await first.publish(7, 2)
    await second.close()

  served(first, body)
  assert server.version == 'released:two:1' and server.weights == 6


def test_a_server_too_small_for_the_longest_rollout_is_refused(tmp_path, servers):
  engine = sampler(tmp_path, servers(context=100), context=95)
  with pytest.raises(ConfigError, match='takes 100 tokens, the longest rollout needs 95 and 6 to spare'):
    served(engine, lambda: ask(engine))


def test_behind_a_router_requests_go_there_and_weights_to_the_servers(tmp_path, servers):
  pair, router = (servers(), servers()), servers()
  router.weights, router.version = 5, 'slca:r:1'  # it answers for one of the two
  engine = sampler(tmp_path, *pair, router=router.url)
  router.fail('/generate', 503)
  assert served(engine, lambda: ask(engine)).tokens == drawn(5, 5)
  assert len(router.paths('/generate')) == 2 and not router.paths('/update_weights_from_disk')
  assert all(one.paths('/update_weights_from_disk') and not one.paths('/generate') for one in pair)


def test_event_loops_may_follow_one_another(tmp_path, servers):
  server = servers(hold=20)
  engine = sampler(tmp_path, server)

  async def interrupted():
    await engine.publish(5, 1)
    job = asyncio.create_task(ask(engine, max_tokens=200))
    await until(lambda: server.held)
    return job

  asyncio.run(interrupted())
  server.let_go()
  assert asyncio.run(ask(engine)).tokens == drawn(5, 5)
  assert len(server.paths('/update_weights_from_disk')) == 1
  asyncio.run(engine.close())
  assert server.version == 'released:r:1'
  with pytest.raises(SamplerError, match='closed'):
    asyncio.run(ask(engine))


def answer(**changes):
  meta = {'finish_reason': {'type': 'stop'}, 'completion_tokens': 2, 'weight_version': 'slca:r:3'}
  return {'meta_info': meta | {'output_token_logprobs': [[-1.0, 4, None], [-2.0, 5, None]]} | changes}


def test_an_answer_without_spans_has_the_version_it_names():
  assert read_answer(answer(), 'r', 'u').versions == ((3, 2),)


def test_an_answer_that_was_aborted_before_its_first_token_is_empty():
  empty = answer(finish_reason={'type': 'abort', 'message': ''}, completion_tokens=0, output_token_logprobs=None)
  sample = read_answer(empty, 'r', 'u')
  assert (sample.tokens, sample.finish, sample.versions) == ((), 'abort', ())


@pytest.mark.parametrize(
  'changes',
  [
    {'finish_reason': None},
    {'finish_reason': {'type': 'odd'}},
    {'output_token_logprobs': [[None, 4], [-1.0, 5]]},
    {'output_token_logprobs': [[float('nan'), 4], [-1.0, 5]]},
    {'output_token_logprobs': [[-1.0, 4]]},
    {'weight_versions': [{'version': 'slca:r:3', 'start': 0, 'end': 1}]},
  ],
  ids=str,
)
def test_an_answer_that_contradicts_itself_is_broken(changes):
  with pytest.raises(Trouble) as caught:
    read_answer(answer(**changes), 'r', 'u')
  assert caught.value.kind == 'broken'


def test_a_tag_reads_as_it_is_written():
  assert Tag.read(str(Tag('my-run', 12))) == Tag('my-run', 12)
  assert [Tag.read(text) for text in ('default', 'slca:x', 'slca::3', 'slca:x:y', 'other:x:3')] == [None] * 5


@pytest.mark.parametrize(
  ('settings', 'message'),
  [
    ({'urls': 'localhost:30000'}, 'no address'),
    ({'urls': 'http://a:1, http://a:1/'}, 'twice'),
    ({'concurrency': 0}, 'concurrency is 0'),
    ({'request_seconds': 0.0}, 'request_seconds is'),
    ({'retries': -1}, 'retries is -1'),
    ({'logprob_start': 3}, 'logprob_start is 3'),
  ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
  with pytest.raises(ConfigError, match=message):
    SGLangServers(**settings)
