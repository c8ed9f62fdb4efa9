"""Lone surrogates, such as half an emoji: JSON can spell them, but no file, request or tokenizer takes one."""

import json
from typing import Any


def mended(text: str) -> str:
  """The text with a `?` for each lone surrogate."""
  return text.encode('utf-8', 'replace').decode('utf-8')


def mended_json(value: Any) -> Any:
  """The JSON value, keys included, with a `?` for each lone surrogate."""
  return json.loads(mended(json.dumps(value, ensure_ascii=False)))
