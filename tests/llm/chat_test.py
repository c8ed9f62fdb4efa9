"""Laws of the one client: what is retried and what is not, bounds that hold, and a cache that keeps no failure."""

import asyncio
import gc
import json
import socket
import threading
import time

import pytest
from endpoint import BROKEN, GARBAGE, HTML, Play, ScriptedEndpoint, in_turn
from fakes import run_leaping

from slca_jax.errors import ConfigError, EndpointFailure, Unreadable
from slca_jax.llm.answers import Answers
from slca_jax.llm.chat import ChatModel
from slca_jax.llm.settings import Endpoint, Sampling


def model(server, answers=None, *, replay=False, temperature=0.5, **changes):
  settings = {
    'model': 'mock-9b',
    'retries': 2,
    'first_pause': 0.002,
    'longest_pause': 0.01,
    'request_seconds': 60.0,
    'deadline': 120.0,
    'sampling': Sampling(temperature=temperature, max_tokens=50, seed=7),
  }
  settings['base_url'] = server.url if server else 'http://127.0.0.1:9/v1'
  return ChatModel('simulator', Endpoint(**{**settings, **changes}), answers=answers, replay=replay)


def said(reply):
  return reply.text


def ask(chat, text='What is it?', *, read=said, version='1', sample=0):
  return chat.ask([{'role': 'user', 'content': text}], read=read, version=version, sample=sample)


def run(chat, *questions, **options):
  async def all_of_them():
    try:
      return [await ask(chat, question, **options) for question in questions or ('What is it?',)]
    finally:
      await chat.close()

  return asyncio.run(all_of_them())


def failure_of(chat, **options):
  with pytest.raises(EndpointFailure) as caught:
    run(chat, **options)
  return caught.value


def test_request_says_model_messages_and_decoding_and_carries_the_key(monkeypatch):
  monkeypatch.setenv('MOCK_KEY', ' secret\n')
  with ScriptedEndpoint('yes') as server:
    extra = {'chat_template_kwargs': {'enable_thinking': False}}
    assert run(model(server, api_key_env='MOCK_KEY', extra=extra)) == ['yes']
  assert server.requests == [
    {
      'model': 'mock-9b',
      'messages': [{'role': 'user', 'content': 'What is it?'}],
      'temperature': 0.5,
      'max_tokens': 50,
      'seed': 7,
      **extra,
    }
  ]
  assert server.headers[0]['authorization'] == 'Bearer secret' and server.paths == ['/v1/chat/completions']


def test_fields_that_an_endpoint_does_not_know_can_be_left_out():
  with ScriptedEndpoint('yes') as server:
    run(
      model(server, token_field='max_completion_tokens', sampling=Sampling(temperature=None, seed=None, max_tokens=9))
    )
  assert server.requests[0].keys() == {'model', 'messages', 'max_completion_tokens'}


def test_key_that_is_not_set_is_refused_and_named(monkeypatch):
  monkeypatch.delenv('MOCK_KEY', raising=False)
  with pytest.raises(ConfigError, match="api_key_env names 'MOCK_KEY', which is not set"):
    model(None, api_key_env='MOCK_KEY')


@pytest.mark.parametrize('key', ['schlüssel', 'sk-1\nsk-2'])
def test_key_that_no_header_takes_is_refused_and_not_shown(key, monkeypatch):
  monkeypatch.setenv('MOCK_KEY', key)
  with pytest.raises(ConfigError, match="api_key_env names 'MOCK_KEY', which holds what no key does") as caught:
    model(None, api_key_env='MOCK_KEY')
  assert key not in str(caught.value)


@pytest.mark.parametrize(
  ('fault', 'reason'),
  [
    (Play(status=429, body='slow down'), 'status_429'),
    (BROKEN, 'status_500'),
    (Play(status=503, body='<html>'), 'status_503'),
    (Play(status=408), 'status_408'),
    (GARBAGE, 'json'),
    (HTML, 'html'),
    (Play(body='{"error": {"message": "busy"}}'), 'error_body'),
    (Play(body='[]'), 'no_choices'),
    (Play(body='{"choices": []}'), 'no_choices'),
    (Play(''), 'empty'),
    (Play(None), 'empty'),
    (Play('   \n'), 'empty'),
    (Play(None, refusal='I cannot help with that.'), 'refusal'),
    (Play('half', finish='content_filter'), 'content_filter'),
    (Play(reset=True), 'connection'),
  ],
)
def test_passing_fault_is_retried_and_counted_and_nothing_of_it_is_kept(fault, reason, tmp_path):
  with ScriptedEndpoint(in_turn(fault, 'fine')) as server:
    chat = model(server, Answers(tmp_path))
    assert run(chat) == ['fine']
  counts = chat.read_counts()
  assert (counts['requests'], counts['retries'], counts[f'faults/{reason}'], counts['failures']) == (2, 1, 1, 0)
  kept = [json.loads(path.read_text())['reply'] for path in tmp_path.rglob('*') if path.is_file()]
  assert kept == [{'text': 'fine', 'truncated': False}]


@pytest.mark.parametrize('fault', [BROKEN, GARBAGE, HTML, Play(''), Play(reset=True), Play(None, refusal='no')])
def test_lasting_fault_ends_after_the_retries_and_is_never_kept(fault, tmp_path):
  with ScriptedEndpoint(fault) as server:
    chat = model(server, Answers(tmp_path), rereads=1)
    failure = failure_of(chat)
  tries = 2 if failure.reason in ('empty', 'refusal') else 3
  assert len(server.requests) == tries and failure.kind == 'transient'
  assert f'simulator (mock-9b at {server.url})' in str(failure) and f'after {tries} failed requests' in str(failure)
  counts = chat.read_counts()
  assert counts['failures'] == counts[f'failures/{failure.reason}'] == 1
  assert counts[f'faults/{failure.reason}'] == tries
  assert not [path for path in tmp_path.rglob('*') if path.is_file()]


@pytest.mark.parametrize(
  ('status', 'kind', 'remedy'),
  [
    (400, 'refused', 'does not take this request'),
    (422, 'refused', 'status 422'),
    (401, 'unusable', 'set the environment variable that api_key_env names'),
    (403, 'unusable', 'may not use this model'),
    (404, 'unusable', 'check base_url'),
  ],
)
def test_what_no_retry_can_help_stops_at_once_and_names_the_remedy(status, kind, remedy):
  with ScriptedEndpoint(Play(status=status, body='{"error": {"message": "the detail"}}')) as server:
    failure = failure_of(model(server))
  assert len(server.requests) == 1 and failure.kind == kind and failure.reason == f'status_{status}'
  for part in (remedy, 'the detail', server.url, 'mock-9b', str(status)):
    assert part in str(failure)


def test_empty_account_is_not_asked_again():
  with ScriptedEndpoint(Play(status=429, body='{"error": {"code": "insufficient_quota"}}')) as server:
    assert failure_of(model(server)).kind == 'unusable'
  assert len(server.requests) == 1


def test_retry_after_is_honoured():
  with ScriptedEndpoint(in_turn(Play(status=429, headers={'retry-after': '0.2'}), 'fine')) as server:
    chat = model(server)
    start = time.monotonic()
    assert run(chat) == ['fine']
    assert time.monotonic() - start >= 0.2
  assert chat.read_counts()['seconds_paused'] == pytest.approx(0.2, abs=1e-9)


def test_retry_after_beyond_the_deadline_is_not_waited_for():
  with ScriptedEndpoint(Play(status=429, headers={'retry-after': '3600'})) as server:
    chat = model(server)
    failure = failure_of(chat)
  assert failure.reason == 'status_429' and 'the next try is 3.6e+03 s away' in str(failure)
  assert len(server.requests) == 1 and chat.read_counts()['seconds_paused'] == 0


def test_pauses_grow_from_a_seeded_source():
  def paused():
    with ScriptedEndpoint(BROKEN) as server:
      chat = model(server, retries=4, longest_pause=0.01)
      failure_of(chat)
    return chat.read_counts()['seconds_paused']

  first = paused()
  assert first == paused()
  assert 0.5 * (0.002 + 0.004 + 0.008 + 0.01) <= first <= 0.002 + 0.004 + 0.008 + 0.01


def test_pause_stays_bounded_after_any_number_of_retries():
  chat = model(None, longest_pause=1e-6)

  async def pause():
    async with asyncio.timeout(60.0) as limit:
      await chat._pause(5000, EndpointFailure('busy', reason='status_503'), limit)

  asyncio.run(pause())
  assert chat.read_counts()['seconds_paused'] <= 1e-6


@pytest.mark.parametrize('charset', ['iso-8859-1', 'utf-16', 'none-such'])
def test_reply_is_utf_8_whatever_its_header_says(charset):
  body = '{"choices": [{"message": {"content": "Zürich"}}]}'
  with ScriptedEndpoint(Play(body=body, headers={'content-type': f'application/json; charset={charset}'})) as server:
    assert run(model(server)) == ['Zürich']


def test_late_answer_is_a_timeout():
  with ScriptedEndpoint(Play('late', delay=300.0)) as server:
    failure = failure_of(model(server, request_seconds=0.1, retries=0))
  assert failure.reason == 'timeout' and 'no reply within 0.1 s' in str(failure)


def test_deadline_holds_for_all_tries():
  with ScriptedEndpoint(Play('late', delay=300.0)) as server:
    chat = model(server, request_seconds=0.02, deadline=0.5, retries=5000, first_pause=0.0001, longest_pause=0.001)
    failure = failure_of(chat)
  assert 'deadline' in str(failure) and failure.reason in ('deadline', 'timeout')
  assert chat.read_counts()['requests'] < 5000


def test_deadline_includes_waiting_for_a_slot():
  async def crowded_out(chat):
    try:
      async with chat._line().slots:  # as a request would that never ends
        with pytest.raises(EndpointFailure) as caught:
          await asyncio.wait_for(ask(chat), 300)
      return caught.value
    finally:
      await chat.close()

  with ScriptedEndpoint('yes') as server:
    chat = model(server, concurrency=1, deadline=0.05)
    assert asyncio.run(crowded_out(chat)).reason == 'deadline'
  assert not server.requests and chat.read_counts()['requests'] == 0


def test_slot_that_comes_free_with_the_deadline_is_not_used():
  async def too_late(chat):
    loop = asyncio.get_running_loop()
    line = chat._line()
    async with line.slots:
      asked = asyncio.create_task(ask(chat))
      while not line.slots._waiters:
        await asyncio.sleep(0)
      loop.leap(120.0)  # the deadline has passed, and before the loop sees that the slot is given
    with pytest.raises(EndpointFailure) as caught:
      await asked
    await chat.close()
    return caught.value

  with ScriptedEndpoint('yes') as server:
    chat = model(server, concurrency=1, deadline=60.0)
    assert run_leaping(too_late(chat)).reason == 'deadline'
  assert not server.requests and chat.read_counts()['requests'] == 0


def test_no_more_requests_are_in_flight_than_allowed():
  together = threading.Barrier(4)

  def answer(request):
    together.wait(300)  # nobody is answered before four have asked
    return Play(request['messages'][0]['content'], delay=0.01)  # time for a fifth

  async def crowd(chat):
    try:
      return await asyncio.gather(*(ask(chat, str(n)) for n in range(24)))
    finally:
      await chat.close()

  with ScriptedEndpoint(answer) as server:
    chat = model(server, concurrency=4, request_seconds=400.0, deadline=500.0)
    assert asyncio.run(crowd(chat)) == [str(n) for n in range(24)]
  assert server.most_live == 4


def test_pause_holds_no_slot():
  async def both(chat):
    waiting = asyncio.create_task(ask(chat, 'limited'))
    while not server.requests:
      await asyncio.sleep(0.005)
    found, still = await ask(chat, 'free'), not waiting.done()
    waiting.cancel()
    await chat.close()
    return found, still

  limited = Play(status=429, headers={'retry-after': '100'})
  with ScriptedEndpoint(lambda r: limited if r['messages'][0]['content'] == 'limited' else 'x') as server:
    assert asyncio.run(both(model(server, concurrency=1))) == ('x', True)


def test_cancel_in_the_middle_of_a_request_frees_the_slot():
  async def cancel_one(chat):
    hung = asyncio.create_task(ask(chat, 'hang'))
    while not server.requests:
      await asyncio.sleep(0.005)
    hung.cancel()
    found = await ask(chat, 'next')
    await chat.close()
    return found, hung.cancelled()

  with ScriptedEndpoint(lambda r: Play('x', delay=300.0 if r['messages'][0]['content'] == 'hang' else 0)) as server:
    assert asyncio.run(cancel_one(model(server, concurrency=1))) == ('x', True)


def test_equal_questions_at_once_share_one_request_and_survive_the_one_that_leaves():
  async def three(chat):
    asks = [asyncio.create_task(ask(chat)) for _ in range(3)]
    while not server.requests:
      await asyncio.sleep(0.005)
    asks[0].cancel()
    left.set()
    found = await asyncio.gather(*asks, return_exceptions=True)
    await chat.close()
    return found

  def once_the_first_has_left(_):
    left.wait(300)
    return 'one'

  left = threading.Event()
  with ScriptedEndpoint(once_the_first_has_left) as server:
    chat = model(server)
    found = asyncio.run(three(chat))
  assert isinstance(found[0], asyncio.CancelledError) and found[1:] == ['one', 'one'] and len(server.requests) == 1
  assert chat.read_counts()['shared'] == 2


def test_kept_answer_is_not_asked_for_again_and_another_question_is(tmp_path):
  with ScriptedEndpoint(lambda r: f'answer {len(server.requests)}') as server:
    answers = Answers(tmp_path)
    assert run(model(server, answers), 'a', 'a') == ['answer 1', 'answer 1']
    assert run(model(server, answers), 'a') == ['answer 1']
    assert run(model(server, answers), 'b') == ['answer 2']
    assert run(model(server, answers), 'a', sample=1) == ['answer 3']
    assert run(model(server, answers), 'a', version='2') == ['answer 4']
    assert run(model(server, answers, model='other'), 'a') == ['answer 5']
    assert run(model(server, answers, temperature=0.7), 'a') == ['answer 6']
    assert run(model(server, answers, extra={'top_k': 3}), 'a') == ['answer 7']
    chat = model(server, answers)
    assert run(chat, 'a') == ['answer 1'] and chat.read_counts()['cache_hits'] == 1
  assert [r['seed'] for r in server.requests][:3] == [7, 7, 7 + 1009]


def test_answers_lie_in_folders_by_the_start_of_their_digest(tmp_path):
  with ScriptedEndpoint('yes') as server:
    run(model(server, Answers(tmp_path)))
  [path] = [path for path in tmp_path.rglob('*') if path.is_file()]
  assert path.parent.name == path.stem[:2] and len(path.stem) == 64 and path.suffix == '.json'


@pytest.mark.parametrize('damage', ['', '{"key":', '[]', '{"key": "x", "reply": {"text": "no"}}', '\x00'])
def test_damaged_file_is_asked_for_again_and_repaired(damage, tmp_path, caplog):
  with ScriptedEndpoint(lambda r: f'answer {len(server.requests)}') as server:
    run(model(server, Answers(tmp_path)))
    [path] = [path for path in tmp_path.rglob('*') if path.is_file()]
    path.write_text(damage)
    assert run(model(server, Answers(tmp_path)), 'What is it?', 'What is it?') == ['answer 2', 'answer 2']
  assert 'cannot be read and is asked for again' in caplog.text


def test_disk_that_takes_no_answer_costs_only_the_cache(tmp_path, caplog):
  (tmp_path / 'file').write_text('in the way')
  with ScriptedEndpoint('yes') as server:
    chat = model(server, Answers(tmp_path / 'file'))
    assert run(chat) == ['yes']
  assert chat.read_counts()['unkept'] == 1 and 'could not be kept' in caplog.text


def only_numbers(reply):
  if not reply.text.isdecimal():
    raise Unreadable(f'{reply.text!r} is no number')
  return int(reply.text)


def test_reply_that_does_not_read_is_asked_for_again_with_the_next_seed(tmp_path):
  with ScriptedEndpoint(in_turn('seven', '7')) as server:
    assert run(model(server, Answers(tmp_path)), read=only_numbers) == [7]
    assert [r['seed'] for r in server.requests] == [7, 8]
  assert run(model(None, Answers(tmp_path), replay=True), read=only_numbers) == [7]


def test_reply_that_never_reads_is_a_failure_and_not_kept(tmp_path):
  with ScriptedEndpoint('seven') as server:
    failure = failure_of(model(server, Answers(tmp_path), rereads=1), read=only_numbers)
  assert failure.reason == 'unreadable' and "'seven' is no number" in str(failure) and len(server.requests) == 2
  assert not list(tmp_path.iterdir())


def test_truncation_is_reported_and_remembered(tmp_path):
  flag = lambda reply: (reply.text, reply.truncated, reply.cached)
  with ScriptedEndpoint(Play('half', finish='length')) as server:
    assert run(model(server, Answers(tmp_path)), 'a', 'a', read=flag) == [('half', True, False), ('half', True, True)]


def test_replay_asks_nobody_and_names_what_it_misses(tmp_path):
  with ScriptedEndpoint('yes') as server:
    run(model(server, Answers(tmp_path)), 'known')
    asked = len(server.requests)
    chat = model(server, Answers(tmp_path), replay=True)
    assert run(chat, 'known') == ['yes']
    with pytest.raises(
      EndpointFailure, match=r"no answer [0-9a-f]{64} is kept .* the prompt ends in 'unknown'"
    ) as seen:
      run(chat, 'unknown')
    assert seen.value.kind == 'unusable' and seen.value.reason == 'miss' and len(server.requests) == asked


def test_replay_without_a_folder_is_refused():
  with pytest.raises(ConfigError, match='say where they are kept'):
    model(None, replay=True)


def test_tokens_and_cost_are_counted_and_counting_starts_anew():
  with ScriptedEndpoint('yes') as server:
    chat = model(server, input_price=2.0, output_price=30.0)
    run(chat, 'a', 'b')
  counts = chat.read_counts()
  assert (counts['asked'], counts['prompt_tokens'], counts['completion_tokens']) == (2, 200, 20)
  assert counts['cost'] == pytest.approx((200 * 2 + 20 * 30) / 1e6)
  assert all(isinstance(value, float) for value in counts.values()) and counts['seconds_answering'] > 0
  assert set(chat.read_counts().values()) == {0.0}


def test_one_model_serves_one_event_loop_after_another_even_if_nobody_closed_it():
  with ScriptedEndpoint('yes') as server:
    chat = model(server, concurrency=1)
    for number in range(3):
      assert asyncio.run(ask(chat, str(number))) == 'yes'
      gc.collect()
    assert run(chat) == ['yes']


def test_lone_surrogates_do_not_break_a_request():
  with ScriptedEndpoint('yes') as server:
    assert run(model(server), 'a\ud800b') == ['yes']
  assert server.requests[0]['messages'][0]['content'] == 'a?b'


def test_probe_refuses_what_cannot_be_used_and_takes_any_reply(tmp_path):
  with ScriptedEndpoint(in_turn(Play(None, finish='length'), 'ready')) as server:
    asyncio.run(model(server, Answers(tmp_path)).probe())
    assert server.requests[0]['max_tokens'] == 16 and not list(tmp_path.iterdir())
  with ScriptedEndpoint(Play(status=404)) as server, pytest.raises(ConfigError, match='check base_url'):
    asyncio.run(model(server).probe())
  with socket.socket() as nobody:  # has a port and does not listen
    nobody.bind(('127.0.0.1', 0))
    absent = f'http://127.0.0.1:{nobody.getsockname()[1]}/v1'
    with pytest.raises(ConfigError, match='no connection'):
      asyncio.run(model(server, base_url=absent).probe())
  asyncio.run(model(None, Answers(tmp_path), replay=True).probe())
