"""What an endpoint answered: the reply in a body, or why there is none."""

import dataclasses
import datetime
import email.utils
import json
from collections.abc import Mapping
from typing import Any

from slca_jax.errors import EndpointFailure, Kind
from slca_jax.surrogates import mended

# Reasons that lie in the reply and not in how it was delivered: another seed may help, waiting does not.
OF_CONTENT = frozenset({'empty', 'refusal', 'content_filter', 'unreadable'})

_REMEDIES = {
  400: 'the endpoint does not take this request; see what it says about its fields and length',
  401: 'set the environment variable that api_key_env names to a valid key',
  402: 'the account cannot pay for the request',
  403: 'the key may not use this model here',
  404: 'check base_url (it usually ends in /v1) and the name of the model',
  405: 'check base_url (it usually ends in /v1)',
}
_UNUSABLE = frozenset({401, 402, 403, 404, 405})  # no question will be answered, not this one alone
_WORTH_WAITING = frozenset({408, 409, 425, 429})


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
  """What a model said. `truncated`: it ran into the longest reply; `cached`: nobody was asked."""

  text: str
  truncated: bool = False
  cached: bool = False
  prompt_tokens: int = 0
  completion_tokens: int = 0


def read_body(text: str) -> Reply:
  """The reply in the body of a 200.

  Raises:
    EndpointFailure: html, json, error_body, no_choices, content_filter, refusal or empty.
  """
  body = _decoded(text)
  try:
    choice = body['choices'][0]
    message, finish = choice['message'], choice.get('finish_reason')
    content, refusal = _written(message.get('content')), message.get('refusal')
  except (KeyError, IndexError, TypeError, AttributeError):
    raise EndpointFailure(f'the body holds no choice with a message: {text[:200]!r}', reason='no_choices') from None
  if finish == 'content_filter':
    raise EndpointFailure('a content filter stopped the reply', reason='content_filter')
  if refusal:
    raise EndpointFailure(f'the model refused: {str(refusal)[:200]!r}', reason='refusal')
  if not content.strip():
    thought = message.get('reasoning_content') or message.get('reasoning')
    found = 'holds reasoning alone; raise sampling.max_tokens or turn thinking off by extra' if thought else 'is empty'
    raise EndpointFailure(f'the reply {found} (finish_reason {finish!r})', reason='empty')
  usage = body.get('usage')
  return Reply(content, finish == 'length', False, _count(usage, 'prompt_tokens'), _count(usage, 'completion_tokens'))


def _written(content: Any) -> str:
  """The text of a message, of a list of parts those that are text and no reasoning; without lone surrogates, which
  nothing could write down."""
  texts = [content]
  if isinstance(content, list):
    texts = [part.get('text') for part in content if isinstance(part, Mapping) and part.get('type') == 'text']
  return mended(''.join(text for text in texts if isinstance(text, str)))


def _decoded(text: str) -> dict[str, Any]:
  try:
    body = json.loads(text)
  except (ValueError, RecursionError):
    reason = 'html' if text.lstrip()[:1] == '<' else 'json'
    raise EndpointFailure(f'the body is no JSON: {text[:200]!r}', reason=reason) from None
  if isinstance(body, dict) and body.get('error') and not body.get('choices'):
    raise EndpointFailure(f'the body is an error: {text[:200]!r}', reason='error_body')
  return body if isinstance(body, dict) else {}


def _count(usage: Any, name: str) -> int:
  value = usage.get(name) if isinstance(usage, Mapping) else None
  return value if isinstance(value, int) and value > 0 else 0


def of_status(status: int, body: str, headers: Mapping[str, str]) -> EndpointFailure:
  """The failure that a status other than 200 stands for, with what would help."""
  broke = status == 429 and 'insufficient_quota' in body  # waiting does not fill an account
  kind: Kind = 'unusable' if broke or status in _UNUSABLE else 'refused'
  if not broke and (status in _WORTH_WAITING or status >= 500):
    kind = 'transient'
  remedy = _REMEDIES[402] if broke else _REMEDIES.get(status, '')
  message = f'status {status}{f" ({remedy})" if remedy else ""}: {body[:300]!r}'
  return EndpointFailure(
    message, reason=f'status_{status}', kind=kind, retry_after=seconds_of(headers.get('retry-after'))
  )


def seconds_of(header: str | None, *, now: datetime.datetime | None = None) -> float | None:
  """Seconds that a Retry-After header asks to wait: a number, or a date to wait for; None if it says neither."""
  if not header:
    return None
  try:
    return max(0.0, float(header)) if header.strip().replace('.', '', 1).isdecimal() else _until(header, now)
  except ValueError:
    return None


def _until(date: str, now: datetime.datetime | None) -> float:
  then = email.utils.parsedate_to_datetime(date)
  then = then if then.tzinfo else then.replace(tzinfo=datetime.UTC)
  return max(0.0, (then - (now or datetime.datetime.now(datetime.UTC))).total_seconds())
