"""The formats by name: what a record of each looks like, and how it is decoded."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from slca_jax.data.formats import benchmarks, chat, prompts, sharegpt, toolrl
from slca_jax.data.formats.row import BadRow
from slca_jax.data.formats.texts import shown
from slca_jax.data.formats.turns import Decoded
from slca_jax.data.tasks import dialogue_from_json, task_from_json

Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Format:
  """A format: `fits` says whether a record may be one of its rows, `decode` makes it one or raises BadRow.

  Attributes:
    whole: a file is one row; its records come as {'lines': [...]}, `fits` sees the first.
    beside: `decode` also takes the file's path, to look for what lies beside it.
  """

  fits: Callable[[Record], bool]
  decode: Callable[..., Decoded]
  whole: bool = False
  beside: bool = False

  def __call__(self, record: Record, path: pathlib.Path | None) -> Decoded:
    """The row of a record."""
    return self.decode(record, path) if self.beside else self.decode(record)


def detect(record: Record) -> str:
  """The name of the first format that fits. Raises BadRow if none does."""
  for name, format in FORMATS.items():
    if format.fits(record):
      return name
  raise BadRow(
    'format', f'no known format has the keys {shown(sorted(map(str, record)))}; known are {", ".join(FORMATS)}'
  )


def _own_task(record: Record) -> Decoded:
  task = task_from_json(dict(record))
  told = {**task.meta, **record}  # lines that were prepared name both beside the meta
  return Decoded(task, task.id, str(told.get('dialogue_id') or ''), str(told.get('subset') or ''))


def _own_dialogue(record: Record) -> Decoded:
  dialogue = dialogue_from_json(dict(record))
  return Decoded(dialogue, dialogue.id, str(record.get('dialogue_id') or ''), str(record.get('subset') or ''))


def _has(*keys: str) -> Callable[[Record], bool]:
  return lambda record: all(record.get(key) is not None for key in keys)


def _own(record: Record) -> bool:
  """Whether a record says things as our own files do; most keys of theirs may be left out, and OpenAI's are alike."""
  messages = record.get('messages')
  if not isinstance(record.get('tools'), str) or record.get('id') is None or not isinstance(messages, list):
    return False
  if not all(isinstance(m, dict) and isinstance(m.get('calls', ''), str | None) for m in messages):
    return False
  gold, context = record.get('gold'), record.get('context')
  said = any(isinstance(m.get('calls'), str) or isinstance(m.get('learn'), bool) for m in messages)
  return said or isinstance(context, int) or (isinstance(gold, str) and gold.lstrip().startswith('['))


def _truth(record: Record) -> Any:
  model = record.get('reward_model')
  return model.get('ground_truth') if isinstance(model, Mapping) else None


def _is_slca(record: Record) -> bool:
  truth = _truth(record)
  if isinstance(truth, str):
    return '"gold_tool_calls"' in truth
  return _prompted(record) and isinstance(truth, Mapping) and ('gold_tool_calls' in truth or 'tool_schemas' in truth)


def _is_toolrl(record: Record) -> bool:
  prompt = record.get('prompt')
  return (
    isinstance(_truth(record), str)
    and _prompted(record)
    and any('**Available Tools**' in str(message.get('content')) for message in prompt or ())
  )


def _prompted(record: Record) -> bool:
  prompt = record.get('prompt')
  return isinstance(prompt, list) and all(isinstance(message, Mapping) for message in prompt)


def _speakers(record: Record) -> set[Any]:
  turns = record.get('conversations')
  if not isinstance(turns, list):
    return set()
  return {turn.get('from') if isinstance(turn, Mapping) else None for turn in turns}


def _by_role(record: Record) -> bool:
  """Whether `conversations` are messages of OpenAI's."""
  turns = record.get('conversations')
  return isinstance(turns, list) and bool(turns) and all(isinstance(turn, Mapping) and 'role' in turn for turn in turns)


def _tags(record: Record) -> bool:
  turns = record.get('conversations')
  return isinstance(turns, list) and any(
    isinstance(turn, Mapping) and turn.get('from') == 'system' and '<tools>' in str(turn.get('value')) for turn in turns
  )


def _is_toolace(record: Record) -> bool:
  return (
    isinstance(record.get('system'), str)
    and record.get('tools') is None
    and bool(_speakers(record))
    and _speakers(record) <= {'user', 'assistant', 'tool', 'system'}
  )


def _is_tools(record: Record) -> bool:
  listed = record.get('result') if isinstance(record.get('result'), Mapping) else record
  tools = listed.get('tools') if isinstance(listed, Mapping) else None
  if isinstance(tools, list) and not {'messages', 'conversations', 'prompt', 'query'} & set(record):
    return all(isinstance(tool, Mapping) and ('inputSchema' in tool or 'input_schema' in tool) for tool in tools)
  return 'name' in record and ('inputSchema' in record or 'input_schema' in record)


FORMATS: dict[str, Format] = {
  'tasks': Format(lambda record: _own(record) and isinstance(record.get('gold'), str), _own_task),
  'dialogues': Format(lambda record: _own(record) and 'gold' not in record, _own_dialogue),
  'toucan_teacher': Format(_has('messages', 'available_tools'), chat.decode_teacher),
  'toucan': Format(lambda record: isinstance(record.get('messages'), str), chat.decode_messages),
  'openai': Format(lambda record: isinstance(record.get('messages'), list) or _by_role(record), chat.decode_messages),
  'slca_rl': Format(_is_slca, prompts.decode_slca),
  'toolrl': Format(_is_toolrl, toolrl.decode_toolrl),
  'verl': Format(lambda record: _prompted(record) and _has('reward_model')(record), prompts.decode_verl),
  'trl_completion': Format(
    lambda record: _prompted(record) and isinstance(record.get('completion'), list), chat.decode_completion
  ),
  'verifiers': Format(
    lambda record: _prompted(record) and ('answer' in record or 'info' in record), prompts.decode_verifiers
  ),
  'trl_prompt': Format(
    lambda record: _prompted(record) and not {'chosen', 'rejected', 'completion'} & set(record), prompts.decode_prompt
  ),
  'slca_sft': Format(lambda record: _tags(record) and set(record) == {'conversations'}, sharegpt.decode_tagged),
  'hermes': Format(_tags, sharegpt.decode_tagged),
  'toolace': Format(_is_toolace, sharegpt.decode_toolace),
  'sharegpt': Format(lambda record: bool(_speakers(record)), sharegpt.decode_sharegpt),
  'toolrl_sft': Format(
    lambda record: (
      _has('instruction', 'input', 'output')(record) and '**Available Tools**' in str(record['instruction'])
    ),
    toolrl.decode_toolrl_sft,
  ),
  'xlam': Format(_has('query', 'answers', 'tools'), benchmarks.decode_xlam),
  'stabletoolbench': Format(_has('query', 'api_list'), benchmarks.decode_stabletoolbench),
  'bfcl': Format(
    lambda record: _has('id', 'question', 'function')(record) and isinstance(record['question'], list),
    benchmarks.decode_bfcl,
    beside=True,
  ),
  'acebench': Format(
    lambda record: _has('id', 'question', 'function')(record) and isinstance(record['question'], str),
    benchmarks.decode_acebench,
    beside=True,
  ),
  'tau2': Format(_has('id', 'user_scenario'), benchmarks.decode_tau2),
  'apibank': Format(
    lambda record: record.get('role') in ('User', 'AI', 'API') and ('text' in record or 'api_name' in record),
    benchmarks.decode_apibank,
    whole=True,
  ),
  'mcp': Format(_is_tools, benchmarks.decode_tools),
}
"""Formats by name. `auto` takes the first that fits a file's first row: the more special stand before the others."""

ALIASES = {
  'trl': 'openai',
  'ms_swift': 'openai',
  'toucan_sft': 'toucan',
  'llamafactory': 'sharegpt',
  'apigen_mt': 'sharegpt',
}
