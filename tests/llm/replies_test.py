"""Laws of reading what an endpoint sends: Retry-After as seconds and as a date, bodies of any kind."""

import datetime
import json

import pytest

from slca_jax.errors import EndpointFailure
from slca_jax.llm.replies import read_body, seconds_of

NOON = datetime.datetime(2026, 3, 1, 12, 0, 0, tzinfo=datetime.UTC)


@pytest.mark.parametrize(
  ('header', 'seconds'),
  [
    ('0', 0.0),
    ('7', 7.0),
    (' 1.5 ', 1.5),
    ('Sun, 01 Mar 2026 12:00:30 GMT', 30.0),
    ('Sun, 01 Mar 2026 11:00:00 GMT', 0.0),  # long ago
    ('Sun, 01 Mar 2026 13:00:30 +0100', 30.0),
    ('Sun, 01 Mar 2026 12:00:30 -0000', 30.0),  # a date without a zone is read as GMT
    ('', None),
    (None, None),
    ('soon', None),
    ('-5', None),
    ('nan', None),
    ('inf', None),
  ],
)
def test_retry_after_is_seconds_or_a_date(header, seconds):
  assert seconds_of(header, now=NOON) == seconds


@pytest.mark.parametrize(
  ('body', 'reason'),
  [
    ('', 'json'),
    ('  <!doctype html>', 'html'),
    ('{"choices": [', 'json'),
    ('[' * 100_000, 'json'),
    ('null', 'no_choices'),
    ('"text"', 'no_choices'),
    ('{"choices": {"0": 1}}', 'no_choices'),
    ('{"choices": [null]}', 'no_choices'),
    ('{"choices": [{"message": "text"}]}', 'no_choices'),
    ('{"choices": [{"finish_reason": "stop"}]}', 'no_choices'),
    ('{"error": "busy", "choices": null}', 'error_body'),
    ('{"choices": [{"message": {"content": ["part"]}}]}', 'empty'),
    ('{"choices": [{"message": {}}]}', 'empty'),
  ],
)
def test_body_without_a_reply_says_why(body, reason):
  with pytest.raises(EndpointFailure) as caught:
    read_body(body)
  assert caught.value.reason == reason and caught.value.kind == 'transient'


def test_text_of_a_message_in_parts_is_that_of_its_text_parts():
  parts = [
    {'type': 'thinking', 'thinking': [{'type': 'text', 'text': 'hm'}]},
    {'type': 'text', 'text': 'one '},
    {'type': 'text', 'text': 'two'},
    {'type': 'image_url', 'image_url': {'url': 'x'}},
  ]
  assert read_body(json.dumps({'choices': [{'message': {'content': parts}}]})).text == 'one two'


def test_reasoning_without_an_answer_is_told_from_silence():
  with pytest.raises(EndpointFailure, match=r"holds reasoning alone; raise sampling\.max_tokens .* 'length'"):
    read_body('{"choices": [{"message": {"content": null, "reasoning_content": "hm"}, "finish_reason": "length"}]}')
  with pytest.raises(EndpointFailure, match='is empty'):
    read_body('{"choices": [{"message": {"content": null, "reasoning": null}}]}')


def test_reply_can_be_written_down_whatever_it_holds():
  assert read_body('{"choices": [{"message": {"content": "a\\ud83d b"}}]}').text == 'a? b'


def test_usage_that_is_odd_counts_as_nothing():
  reply = read_body(
    '{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": "many", "completion_tokens": 3}}'
  )
  assert (reply.text, reply.prompt_tokens, reply.completion_tokens) == ('x', 0, 3)
