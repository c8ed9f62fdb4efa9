"""Servers that keep their weights: they are asked and never changed, and trouble moves a session on."""

import asyncio

import pytest
from sglang_stand_in import following

from slca_jax.errors import ConfigError, SamplerError
from slca_jax.rollout.frozen import FrozenServers
from slca_jax.rollout.settings import SGLangServers


def asked(*stand_ins, body, context=0, **settings):
  """What `body(engine)` gives."""
  urls = ','.join(server.url for server in stand_ins)
  options = SGLangServers(**{'urls': urls, 'backoff_seconds': 0.01, 'connect_seconds': 300.0, 'retries': 2, **settings})

  async def whole():
    engine = FrozenServers(options, vocab=100, context=context)
    try:
      return await body(engine)
    finally:
      await engine.close()

  return asyncio.run(whole())


def ask(engine, *, session='a', tokens=(1, 2, 3)):
  return engine.generate(tokens, session=session, max_tokens=4, temperature=0.7, top_p=0.9, stop=(98,), seed=11)


def drawn(last=3, count=4):
  out = []
  for _ in range(count):
    last = following(last, 0)
    out.append(last)
  return tuple(out)


def test_servers_answer_with_the_weights_they_have_whosever_those_are(servers):
  server = servers(version='slca:another:7')
  sample = asked(server, body=ask)
  assert sample.tokens == drawn() and sample.logprobs == (-0.5,) * 4 and sample.finish == 'length'
  assert sample.versions == ((0, 4),) and server.version == 'slca:another:7'
  [(path, body, _)] = server.calls
  assert path == '/generate' and body['input_ids'] == [1, 2, 3]
  assert body['sampling_params'] | {'temperature': 0.7, 'top_p': 0.9, 'sampling_seed': 11} == body['sampling_params']


def test_a_session_stays_where_it_is_and_others_go_where_fewer_are(servers):
  pair = servers(), servers()

  async def body(engine):
    for session in ('a', 'b', 'a', 'a'):
      await ask(engine, session=session)
    await engine.release('a')
    await ask(engine, session='c')

  asked(*pair, body=body)
  assert sorted(len(server.paths('/generate')) for server in pair) == [1, 4]


def test_trouble_moves_a_session_to_another_server(servers):
  ill, well = servers(), servers()
  ill.fail('/generate', 500, 'reset')

  async def body(engine):
    return await ask(engine), await ask(engine), engine.numbers()

  first, second, numbers = asked(ill, well, body=body)
  assert first == second and first.tokens == drawn()
  assert len(ill.paths('/generate')) == 1 and len(well.paths('/generate')) == 2
  assert numbers == {'engine/requests': 2.0, 'engine/retries': 1.0}


def test_being_told_to_wait_is_no_failed_try(servers):
  server = servers()
  server.fail('/generate', *[{'status': 503, 'headers': {'retry-after': '0'}}] * 5)
  assert asked(server, body=ask, retries=0).tokens == drawn()


def test_what_never_works_fails_with_its_last_trouble(servers):
  server = servers()
  server.fail('/generate', 'garbage', 'miscount', 500)
  with pytest.raises(SamplerError, match=r'3 attempts failed, the last one so: .* answered 500'):
    asked(server, body=ask)
  with pytest.raises(SamplerError, match='ids from 0 to 99, and at least one'):
    asked(server, body=lambda engine: ask(engine, tokens=(1, 100)))
  with pytest.raises(SamplerError, match='refused with 400'):
    asked(server, body=lambda engine: ask(engine, tokens=(1,) * 300))
  with pytest.raises(SamplerError, match='were to take version 3'):
    asked(server, body=lambda engine: engine.publish(None, 3))


def test_servers_that_cannot_serve_are_named_at_once(servers):
  server = servers(context=256)
  check = lambda engine: engine.check()
  assert asked(server, body=check, context=250) is None
  with pytest.raises(ConfigError, match='takes 256 tokens, the longest rollout needs 251 and 6 to spare'):
    asked(server, body=check, context=251)
  server.kill()
  with pytest.raises(ConfigError, match='does not listen'):
    asked(server, body=check)
  with pytest.raises(ConfigError, match=r'sglang\.urls is empty'):
    FrozenServers(SGLangServers(), vocab=10)
