"""Rows of benchmarks and of calls alone: xLAM, BFCL, ACEBench, τ²-bench, StableToolBench, API-Bank, MCP's lists."""

import functools
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from slca_jax.data import bfcl
from slca_jax.data.formats.row import GOLD, UNKNOWN, BadRow
from slca_jax.data.formats.texts import load, shown
from slca_jax.data.formats.turns import Decoded, arrange, demonstration, id_of
from slca_jax.data.formats.values import by_name, call_of, entries, text_of, tool_of, tools_of
from slca_jax.dialogue import Message, Task, ToolCall
from slca_jax.errors import DataError

_SPEAKERS = re.compile(r'^(user|system|assistant): ?', re.MULTILINE)
_KINDS = {'STRING': 'string', 'NUMBER': 'number', 'BOOLEAN': 'boolean', 'ARRAY': 'array', 'OBJECT': 'object'}
_LONGEST = 64  # characters of a function's name at StableToolBench


def decode_xlam(record: Mapping[str, Any]) -> Decoded:
  """xLAM's rows: a query and the calls that answer it, one parallel step."""
  tools = tools_of(record['tools'])
  known = by_name(tools)
  written = isinstance(record['answers'], str)
  step = tuple(call_of(one, known, written=written) for one in entries(record['answers'], 'gold'))
  task = Task('', tools, (Message('user', text_of(record['query'])),), (step,) if step else ())
  return Decoded(task, id_of(record))


def decode_bfcl(record: Mapping[str, Any], path: pathlib.Path | None) -> Decoded:
  """A single-turn row of BFCL; its answer stands in the folder possible_answer beside the file, or in the row."""
  identity = str(record['id'])
  category = path.name.partition('.')[0].removeprefix('BFCL_v4_') if path else identity.rsplit('_', 1)[0]
  given = record.get('_possible_answer') or answers_beside(path).get(identity)
  if given is None and 'irrelevance' not in category:
    raise BadRow('gold', f'{identity} has no answer; {bfcl.ACCEPTED}/ with a file of the same name belongs beside it')
  accepted = given['ground_truth'] if given else []
  try:
    task = bfcl.decode(identity, category, record, accepted)
  except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
    raise BadRow('record', f'{identity} is no single-turn record of BFCL: {type(error).__name__}: {error}') from error
  return Decoded(task, identity, subset=category)


def decode_acebench(record: Mapping[str, Any], path: pathlib.Path | None) -> Decoded:
  """A row of ACEBench: who said what in one text, calls as {name: arguments}, one parallel step."""
  identity = str(record['id'])
  given = record.get('_possible_answer') or answers_beside(path).get(identity)
  if given is None:
    raise BadRow('gold', f'{identity} has no answer; {bfcl.ACCEPTED}/ with a file of the same name belongs beside it')
  truth = given['ground_truth']
  if not isinstance(truth, dict | list):
    raise BadRow('gold', f'the ground truth of {identity} is {shown(truth)}, which is no call')
  pairs = [pair for one in (truth if isinstance(truth, list) else [truth]) for pair in one.items()]
  step = tuple(call_of({'name': name, 'arguments': arguments}, {}) for name, arguments in pairs)
  tools = tools_of(record['function'])
  question = record['question']
  pieces = _SPEAKERS.split(question)
  said = list(zip(pieces[1::2], pieces[2::2], strict=True)) or [('user', question)]
  messages = [Message('user' if who == 'user' else 'assistant', text.strip()) for who, text in said]
  if messages[-1].role != 'user':
    raise BadRow('no_question', f'the text of {identity} does not end with the user')
  meta = {'time': record['time']} if record.get('time') else {}
  task = Task('', tools, arrange(messages), (step,) if step else (), meta=meta)
  return Decoded(task, identity, subset=identity.rsplit('_', 1)[0])


def decode_tau2(record: Mapping[str, Any]) -> Decoded:
  """A task of τ²-bench: gold are the assistant's actions, one a step, facts what it must say.

  The question is what the simulated user was told, in the second person; the whole scenario is kept in the meta. The
  tools belong to the domain, which is the task's blueprint.
  """
  scenario, criteria = record['user_scenario'], record.get('evaluation_criteria') or {}
  told = scenario['instructions']
  told = {'reason_for_call': told} if isinstance(told, str) else told
  question = '\n'.join(str(told[key]) for key in ('reason_for_call', 'known_info') if told.get(key))
  actions = [one for one in criteria.get('actions') or () if one.get('requestor', 'assistant') == 'assistant']
  meta = {'user_scenario': scenario, 'initial_state': record.get('initial_state')}
  task = Task(
    id='',
    tools=(),
    messages=(Message('user', question),),
    gold=tuple((call_of(one, {}),) for one in actions),
    facts=tuple(map(str, criteria.get('communicate_info') or ())),
    blueprint=f'tau2/{told["domain"]}' if told.get('domain') else 'tau2',
    meta=meta,
  )
  return Decoded(task, str(record['id']), subset=str(told.get('domain') or ''))


def decode_stabletoolbench(record: Mapping[str, Any]) -> Decoded:
  """A query of StableToolBench. It names relevant APIs, which are kept in the meta, but no gold calls."""
  tools = tools_of([_api(one) for one in record['api_list']])
  meta = {GOLD: UNKNOWN, 'relevant': record.get('relevant APIs') or record.get('relevant_apis') or []}
  return Decoded(Task('', tools, (Message('user', record['query']),), meta=meta), id_of(record, 'query_id'))


def decode_apibank(record: Mapping[str, Any]) -> Decoded:
  """A dialogue of API-Bank, which is a whole file: `lines` are its records. It describes no tools."""
  messages: list[Message] = []
  for line in record['lines']:
    if line.get('role') == 'API':
      result = line['result'].get('output') if isinstance(line.get('result'), Mapping) else line.get('result')
      if isinstance(line.get('result'), Mapping) and line['result'].get('exception') is not None:
        result = {'exception': line['result']['exception']}
      messages.append(Message('assistant', '', (ToolCall(line['api_name'], dict(line['param_dict'])),)))
      messages.append(Message('tool', text_of(result, result=True)))
    else:
      messages.append(Message({'User': 'user', 'AI': 'assistant'}[line['role']], line['text']))
  return Decoded(demonstration(messages, ()))


def decode_tools(record: Mapping[str, Any]) -> Decoded:
  """The tools of an MCP server's answer to tools/list, as it stands or inside its JSON-RPC envelope, or of one tool."""
  listed = record.get('result', record)
  if 'tools' in listed:
    return Decoded(tools_of(listed['tools']), subset=str(record.get('server') or ''))
  tool = tool_of({**record, 'name': record.get('full_name') or record['name']})
  return Decoded((tool,), subset=str(record.get('label') or ''), meta={'server': str(record.get('server') or '')})


@functools.lru_cache(4)
def answers_beside(path: pathlib.Path | None) -> dict[str, Any]:
  """The records of the file of the same name in the folder possible_answer, by id; {} if there is none."""
  beside = path.parent / bfcl.ACCEPTED / path.name if path else None
  if beside is None or not beside.is_file():
    return {}
  out: dict[str, Any] = {}
  with open(beside, 'rb') as file:
    for number, line in enumerate(file, 1):
      if line.strip():
        try:
          answer = load(line, 'answer')
          out[str(answer['id'])] = answer
        except (BadRow, KeyError, TypeError) as error:
          raise DataError(f'{beside}:{number}: no answer of a benchmark: {error}') from error
  return out


def _api(record: Mapping[str, Any]) -> dict[str, Any]:
  """An API as a function, named as the benchmark's own runner names it."""
  name = f'{_standard(record["api_name"])}_for_{_standard(record["tool_name"])}'[-_LONGEST:]
  required, optional = record.get('required_parameters') or [], record.get('optional_parameters') or []
  properties = {
    one['name']: {
      'type': _KINDS.get(str(one.get('type')).upper(), 'string'),
      'description': one.get('description') or '',
      **({'default': one['default']} if one.get('default') not in (None, '') else {}),
    }
    for one in [*required, *optional]
  }
  schema = {'type': 'object', 'properties': properties, 'required': [one['name'] for one in required]}
  return {'name': name, 'description': record.get('api_description') or '', 'parameters': schema}


def _standard(name: str) -> str:
  """A name as the benchmark spells it: lower case, words joined by one underscore, a letter in front."""
  name = re.sub(r'_+', '_', re.sub(r'[^a-z0-9_]', '_', name.lower())).strip('_')
  return f'get_{name}' if name[:1].isdigit() else name
