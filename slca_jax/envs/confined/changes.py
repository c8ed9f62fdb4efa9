"""What a rollout did to a database: the places that differ from how it began."""

from typing import Any


def changes(before: Any, after: Any) -> list[dict[str, Any]]:
  """The places where two JSON values differ, in an order that depends on the values alone.

  Each is `{'path': [keys and indices], 'now': value}`, or `{'path': ..., 'gone': True}`. Two databases that began
  equal are equal exactly if their changes are. Equal is what `==` says, at whose speed equal parts are skipped: 100 and
  100.0 are one value.
  """
  found: list[dict[str, Any]] = []
  _compare(before, after, [], found)
  return found


def _compare(before: Any, after: Any, path: list[Any], found: list[dict[str, Any]]) -> None:
  if before == after:
    return
  if isinstance(before, dict) and isinstance(after, dict):
    keys, has_before, has_after = sorted({*before, *after}, key=str), before.__contains__, after.__contains__
  elif isinstance(before, list) and isinstance(after, list):
    keys = list(range(max(len(before), len(after))))
    has_before, has_after = len(before).__gt__, len(after).__gt__
  else:
    found.append({'path': path, 'now': after})
    return
  for key in keys:
    if not has_after(key):
      found.append({'path': [*path, key], 'gone': True})
    elif not has_before(key):
      found.append({'path': [*path, key], 'now': after[key]})
    else:
      _compare(before[key], after[key], [*path, key], found)
