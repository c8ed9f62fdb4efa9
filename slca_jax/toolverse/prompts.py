"""What a model is asked when it builds an environment, and how its replies are read.

Each step has a version: a changed prompt or reader takes the next one, and kept answers of the last one are not used.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from slca_jax.dialogue import Tool
from slca_jax.envs.confined.offered import BUILTINS, MODULES
from slca_jax.errors import Unreadable
from slca_jax.llm.replies import Reply
from slca_jax.rewards.judge import unreasoned
from slca_jax.surrogates import mended_json

VERSIONS = {
  'schemas': 'schemas 2',
  'scene': 'scene 2',
  'functions': 'functions 2',
  'tests': 'tests 2',
  'repair': 'repair 2',
}
MOST_CHARACTERS = 300_000
_DEEPEST = 30
_FENCE = re.compile(r'```[ \t]*(\w*)[ \t]*\n(.*?)```', re.S)
_NAME = re.compile(r'[A-Za-z][A-Za-z0-9_]{0,63}')

Messages = list[dict[str, str]]

_RULES = f"""You build small worlds in which an assistant practises the use of tools. A world is a JSON database and \
one Python function per tool.

Rules for functions:
- `def tool_name(db, parameter, other=None)`: the first parameter is the database, a dict of tables; the others are \
the tool's parameters by name, optional ones with a default.
- Read and change `db` only. No files, network, processes, threads or global state.
- Return a JSON object with "status" and "message" and what the tool is asked for, with every id that a later call \
needs.
- Refuse by raising ValueError with a text that says what was wrong and what would do. Refuse unknown ids.
- The same calls on the same database give the same answers. New ids follow from those in the table.
- Allowed imports: {', '.join(sorted(MODULES))}. Allowed builtins: {', '.join(sorted(BUILTINS))}. Nothing else exists; \
no names or attributes that begin with two underscores.
- Helper functions begin with one underscore."""


def ask_schemas(name: str, tools: Sequence[Tool], *, most_tools: int) -> Messages:
  """Step 1: clean names, few parameters, answers with status and message."""
  shown = [
    {'name': t.name, 'description': t.description[:1500], 'parameters': t.parameters} for t in tools[:most_tools]
  ]
  return _messages(f"""Below are the tools of the server "{name}" as they were found. Rewrite them so that each can be \
a Python function over a database.

- Keep what a tool does. Names are Python identifiers.
- At most 4 parameters each; leave out credentials, paging details and formats. Every parameter has a JSON type and a \
description.
- `returns` is a JSON Schema of an object with "status", "message" and the tool's own fields.
- `writes` is true if the tool changes anything.
- Leave out tools that no database can stand in for (they run code, draw, browse, or ask a live service for what \
cannot be stored), and say why.

Answer with one JSON object:
{{"tools": [{{"name": ..., "description": ..., \
"parameters": {{"type": "object", "properties": ..., "required": [...]}}, \
"returns": ..., "writes": ...}}], "left_out": {{"tool name": "reason"}}}}

{as_block(shown)}""")


def ask_scene(name: str, tools: Sequence[Tool], *, records: int) -> Messages:
  """Step 2: the business behind the tools, and records that fit together."""
  return _messages(f"""These are the tools of "{name}":

{as_block([_shown(tool) for tool in tools])}

Think of the business that they serve, and write its database: an object of tables, each an object of records by their \
id. 3 to {max(3, records)} records per table, with plausible names, dates around January 2026, and different values. \
Every id that a record mentions exists. What one tool returns must be what another takes.

Answer with one JSON object: {{"scene": "two sentences", "database": {{"table": {{"id": {{...}}}}}}}}""")


def ask_functions(tools: Sequence[Tool], scene: str, database: Mapping[str, Any]) -> Messages:
  """Step 3: one function per tool."""
  return _messages(f"""Scene: {scene}

Tools:
{as_block([_shown(tool) for tool in tools])}

Database:
{as_block(database)}

Write the functions of all tools, by the rules. Answer with one block of Python code and nothing else.""")


def ask_tests(tools: Sequence[Tool], database: Mapping[str, Any], source: str) -> Messages:
  """Step 4: tests that each tool passes on a fresh database."""
  return _messages(f"""Tools:
{as_block([_shown(tool) for tool in tools])}

Database:
{as_block(database)}

Functions:
```python
{source}
```

{_TESTS}""")


_TESTS = """Write unit tests. Each begins with a fresh database and makes one or more calls. For every tool there is a \
test of what it should answer, and for tools that take an id one of a refusal. Work the expected values out from \
the database.

Answer with one JSON list:
[{"name": "what holds", "calls": [{"name": "tool", "arguments": {...}, "expect": {"has": {"status": "success", ...}}}]}]
`expect` is {"has": part of the answer}, {"equals": the whole answer}, or {"error": "words of the refusal"}."""


def ask_repair(
  tools: Sequence[Tool],
  database: Mapping[str, Any],
  source: str,
  tests: Sequence[Mapping[str, Any]],
  faults: Sequence[str],
) -> Messages:
  """After a failure: the functions or the tests once more, whichever is wrong."""
  listed = '\n'.join(f'- {fault[:400]}' for fault in faults[:20])
  return _messages(f"""This world does not hold yet:

{listed}

Tools:
{as_block([_shown(tool) for tool in tools])}

Database:
{as_block(database)}

Functions:
```python
{source}
```

Tests:
{as_block(list(tests))}

Correct what is wrong: a function that does not do what its tool says, or a test that expects something false. Answer \
with all functions in one block of Python code, or all tests in one block of JSON, or both.""")


def read_schemas(reply: Reply) -> tuple[tuple[Tool, ...], dict[str, str]]:
  """(the rewritten tools, why others were left out)."""
  value = read_object(reply)
  raw = value.get('tools')
  if not isinstance(raw, list):
    raise Unreadable('the reply has no list of tools')
  tools = tuple(_tool(entry) for entry in raw)
  if len({tool.name for tool in tools}) < len(tools):
    raise Unreadable('two tools have one name')
  left_out = value.get('left_out')
  left_out = left_out if isinstance(left_out, Mapping) else {}
  return tools, {str(name): str(reason)[:300] for name, reason in left_out.items()}


def read_scene(reply: Reply) -> tuple[str, dict[str, Any]]:
  """(the scene, the database)."""
  value = read_object(reply)
  database = value.get('database')
  if not isinstance(database, dict) or not database or not all(isinstance(t, dict | list) for t in database.values()):
    raise Unreadable('the reply has no database that is an object of tables')
  if len(json.dumps(database)) > MOST_CHARACTERS:
    raise Unreadable(f'the database is longer than {MOST_CHARACTERS} characters')
  return str(value.get('scene') or '')[:2000], database


def read_functions(reply: Reply) -> str:
  """The source."""
  blocks = _blocks(reply)
  source = next((text for language, text in blocks if language in ('python', 'py')), '')
  source = source or next((text for language, text in blocks if 'def ' in text and language != 'json'), '')
  text = unreasoned(reply.text)
  source = source or (text if 'def ' in text and '```' not in text else '')
  if not source.strip():
    raise Unreadable('the reply has no block of Python code')
  return source.strip() + '\n'


def read_tests(reply: Reply) -> list[dict[str, Any]]:
  """The tests, not yet checked against the tools."""
  value = _json(reply)
  value = value.get('tests') if isinstance(value, dict) else value
  if not isinstance(value, list) or not value or not all(isinstance(test, dict) for test in value):
    raise Unreadable('the reply is no list of tests')
  return value


def read_repair(reply: Reply) -> tuple[str, list[dict[str, Any]]]:
  """(functions, tests); '' and [] for what stays as it is."""
  source, tests = '', []
  for read in (read_functions, read_tests):
    try:
      found = read(reply)
      source, tests = (found, tests) if isinstance(found, str) else (source, found)
    except Unreadable:
      continue
  if not source and not tests:
    raise Unreadable('the reply has neither functions nor tests')
  return source, tests


def _tool(entry: Any) -> Tool:
  if not isinstance(entry, Mapping) or not _NAME.fullmatch(str(entry.get('name') or '')):
    raise Unreadable(f'{entry!r:.100} is no tool with a Python name')
  parameters = entry.get('parameters')
  if not isinstance(parameters, Mapping) or not isinstance(parameters.get('properties', {}), Mapping):
    raise Unreadable(f'the parameters of {entry["name"]} are no object schema')
  for name in parameters.get('properties', {}):
    if not _NAME.fullmatch(str(name)):
      raise Unreadable(f'{name!r} of {entry["name"]} is no Python name')
  returns = entry.get('returns')
  return Tool(
    str(entry['name']),
    str(entry.get('description') or '')[:1000],
    {'type': 'object', 'properties': {}, **parameters},
    dict(returns) if isinstance(returns, Mapping) else None,
    entry.get('writes') is True,
  )


def _messages(user: str) -> Messages:
  return [{'role': 'system', 'content': _RULES}, {'role': 'user', 'content': user}]


def _shown(tool: Tool) -> dict[str, Any]:
  shown = {'name': tool.name, 'description': tool.description, 'parameters': tool.parameters, 'writes': tool.writes}
  return shown | ({'returns': tool.returns} if tool.returns else {})


def as_block(value: Any) -> str:
  """A value as a prompt shows it: a fenced block of JSON."""
  return f'```json\n{json.dumps(value, ensure_ascii=False, indent=1)}\n```'


def _blocks(reply: Reply) -> list[tuple[str, str]]:
  if reply.truncated:
    raise Unreadable('the reply was cut off at max_tokens; allow longer ones')
  if len(reply.text) > MOST_CHARACTERS:
    raise Unreadable(f'the reply has {len(reply.text)} characters; {MOST_CHARACTERS} are read')
  return [(match[1].lower(), match[2]) for match in _FENCE.finditer(unreasoned(reply.text))]


def _json(reply: Reply) -> Any:
  """The JSON of a reply: in a block, or from its first to its last bracket of either kind."""
  texts = [text for language, text in _blocks(reply) if language in ('json', '')]
  said = unreasoned(reply.text)
  spans = sorted((said.find(opening), said.rfind(closing)) for opening, closing in ('{}', '[]'))
  texts += [said[start : end + 1] for start, end in spans if start >= 0]
  for text in texts:
    try:
      value = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
      continue
    if _nests_deeper(value, _DEEPEST):
      raise Unreadable(f'the JSON of the reply nests deeper than {_DEEPEST} levels')
    return mended_json(value)
  raise Unreadable('the reply holds no JSON')


def _nests_deeper(value: Any, limit: int) -> bool:
  level = [value]
  for _ in range(limit):
    level = [
      part for one in level if isinstance(one, dict | list) for part in (one.values() if isinstance(one, dict) else one)
    ]
  return any(isinstance(one, dict | list) for one in level)


def read_object(reply: Reply) -> dict[str, Any]:
  """The JSON object in a reply, in a block or among other text.

  Raises:
    Unreadable: there is none, it was cut off, or it is too long or too deep.
  """
  value = _json(reply)
  if not isinstance(value, dict):
    raise Unreadable(f'the reply is a {type(value).__name__}, not an object')
  return value


def _no_constant(name: str) -> Any:
  raise ValueError(f'{name} is no JSON')
