"""What generated functions share: each a few lines of source, in the order in which it is printed."""

SHARED = {
  '_key': '''
def _key(value):
  """The value as a key of a table: 3.0 and 3 are one."""
  return str(int(value)) if isinstance(value, float) and value == int(value) else str(value)
''',
  '_same': '''
def _same(value, wanted):
  """Whether two values are equal, whatever their case; of a list of wanted values, any."""
  if isinstance(wanted, list):
    return any(_same(value, one) for one in wanted)
  if isinstance(value, list):
    return any(_same(one, wanted) for one in value)
  return _key(value).lower() == _key(wanted).lower()
''',
  '_where': '''
def _where(table, wanted):
  """The records that hold all the wanted values; None asks for nothing."""
  wanted = {column: value for column, value in wanted.items() if value is not None}
  return [record for record in table.values() if all(_same(record[column], value) for column, value in wanted.items())]
''',
  '_require': '''
def _require(table, column, value, noun):
  """Refuses a value that no record of another table has."""
  values = value if isinstance(value, list) else [value]
  for one in values:
    if one is not None and not _where(table, {column: one}):
      raise ValueError(f'there is no {noun} with {column} {one!r}')
''',
  '_one': '''
def _one(rows, noun, wanted):
  """The first record, or a refusal that says what was looked for."""
  if not rows:
    raise ValueError(f'no {noun} found for {", ".join(f"{name} {value!r}" for name, value in wanted.items())}')
  return rows[0]
''',
  '_search': '''
def _search(rows, *queries):
  """The records whose texts hold at least half of the longer words, those with most of them first."""
  asked = [part for query in queries if query for part in (query if isinstance(query, list) else [query])]
  words = [word for part in asked for word in str(part).lower().split()]
  words = [word for word in words if len(word) > 3] or words
  if not words:
    return rows
  found = []
  for record in rows:
    text = ' '.join(str(value).lower() for value in record.values())
    hits = sum(word in text for word in words)
    if 2 * hits >= len(words):
      found.append((-hits, len(found), record))
  return [record for _, _, record in sorted(found, key=lambda one: one[:2])]
''',
  '_between': '''
def _between(rows, column, low, high):
  """The records whose value is not below `low` and not above `high`; None bounds nothing."""
  rows = [record for record in rows if low is None or record[column] >= low]
  return [record for record in rows if high is None or record[column] <= high or
  str(record[column]).startswith(str(high))]
''',
  '_cut': '''
def _cut(rows, limit, offset, page):
  """A part of a list: `limit` records from `offset` on, or those of a page that is counted from 1."""
  size = 10 if limit is None else max(0, int(limit))
  start = int(offset or 0) + (max(1, int(page or 1)) - 1) * size
  return rows[start : start + size]
''',
  '_brief': '''
def _brief(rows, columns):
  """The records with some of their fields."""
  return [{column: record[column] for column in columns} for record in rows]
''',
  '_next': '''
def _next(table, column, prefix):
  """A key that follows the greatest one; a text behind the prefix, or a number without one."""
  ends = [str(record[column])[len(prefix) :] for record in table.values()]
  number = max([1000 if prefix else 0, *(int(end) for end in ends if end.isdigit())]) + 1
  return f'{prefix}{number}' if prefix else number
''',
  '_add': '''
def _add(table, column, record):
  """Puts a record under its key; refuses one that is taken."""
  if _key(record[column]) in table:
    raise ValueError(f'{column} {record[column]!r} is taken')
  table[_key(record[column])] = record
''',
  '_write': '''
def _write(record, changes):
  """Writes the values that are given; refuses if there are none."""
  changes = {column: value for column, value in changes.items() if value is not None}
  if not changes:
    raise ValueError('nothing to change was given')
  record.update(changes)
''',
}  # fmt: skip
