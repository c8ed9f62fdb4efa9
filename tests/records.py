"""One small row of every format of tool-calling data, all about one greenhouse, and what each should be read as."""

import json

from slca_jax.dialogue import Message, Tool, ToolCall

SCHEMA = {
  'type': 'object',
  'properties': {'bed': {'type': 'string'}, 'hour': {'type': ['integer', 'null']}},
  'required': ['bed'],
}
HUMIDITY = Tool('humidity', 'Humidity of a bed.', SCHEMA)
EAST, WEST = ToolCall('humidity', {'bed': 'east'}), ToolCall('humidity', {'bed': 'west', 'hour': None})
ASK = Message('user', 'Are the beds dry?')
SAID = Message('assistant', 'The east is at 40, the west at 61.')

# What every demonstration below is read as, but for the words before the calls and how often it calls.
PARALLEL = (ASK, Message('assistant', '', (EAST, WEST)), Message('tool', '40'), Message('tool', '61'), SAID)

_dumps = lambda value: json.dumps(value, ensure_ascii=False)
_FUNCTION = {'name': 'humidity', 'description': 'Humidity of a bed.', 'parameters': SCHEMA}
_TOOLS = [{'type': 'function', 'function': _FUNCTION}]
_CALLS = [{'name': call.name, 'arguments': call.arguments} for call in (EAST, WEST)]
_REPRS = [repr({'name': call.name, 'arguments': _dumps(call.arguments)}) for call in (EAST, WEST)]
_BLOCKS = '\n'.join(f'<tool_call>\n{_dumps(call)}\n</tool_call>' for call in _CALLS)
_SEEN = '\n'.join(f'<tool_response>\n{value}\n</tool_response>' for value in (40, 61))
_DUMP = (
  f'Functions go into <tools></tools>:\n<tools>\n{_dumps(_TOOLS[0])}\n</tools>\nCalls into <tool_call></tool_call>.'
)


def _role(role, content, **more):
  return {'role': role, 'content': content, **more}


def _turn(speaker, text):
  return {'from': speaker, 'value': text}


def _truth(gold, **more):
  return {
    'allowed_tools': ['humidity'],
    'gold_tool_calls': gold,
    'question_content': ASK.content,
    'subset_name': 'tool_call',
    'tool_schemas': _dumps(_TOOLS),
    **more,
  }


def slca_rl(gold, **more):
  """A row as SLCA-GRPO's authors release it for RL, with a turn before the question."""
  history = [
    _role('user', 'How is the east?'),
    _role('assistant', f'<tool_call>\n{_dumps(_CALLS[0])}\n</tool_call>'),
    _role('user', '<tool_response>\n40\n</tool_response>'),
    _role('assistant', 'Dry.'),
  ]
  return {
    'prompt': [_role('system', _DUMP), *history, _role('user', ASK.content)],
    'data_source': 'toucan_toolcall',
    'reward_model': {'style': 'rule', 'ground_truth': _truth(gold)},
    'extra_info': {'need_tools_kwargs': False, 'original_turn_index': 1},
    'tools': _dumps(_TOOLS),
    **more,
  }


_INSTRUCTION = (
  'Help with beds.\n\n**Available Tools**\nThese:\n1. Name: humidity\nDescription: Humidity of a bed.\nParameters: '
  f'{_dumps({"bed": {"type": "string"}, "hour": {"type": "int, optional", "default": ""}})}\n'
  '2. Name: Wet (or dry)\nDescription: Two\nlines.\nParameters: {}\n\n**Steps for Each Turn**\nThink.'
)
_RECORDS = (
  '**Dialogue Records History**\n<user> How is the east? </user>\n\n<think> Look. </think>\n<tool_call>\n'
  '{"name": "humidity", "parameters": {"bed": "east"}}\n</tool_call>\n'
  '<obs> [{"name": "humidity", "results": 40}] </obs>\n\n'
  '<think> Say so. </think>\n<response> Dry. </response>\n\n<user> Are the beds dry? </user>'
)
_OUTPUT = (
  '<think> Not <tool_call> yet. </think>\n<tool_call>\n{"name": "humidity", "parameters": {"bed": "east"}}\n'
  '{"name": "humidity", "parameters": {"bed": "west", "hour": null}}\n</tool_call>'
)
_TAGGED = [
  _turn('system', _DUMP),
  _turn('human', ASK.content),
  _turn('gpt', _BLOCKS),
  _turn('human', _SEEN),
  _turn('gpt', SAID.content),
]

# Demonstrations: by format, rows that are all read as PARALLEL with the tool HUMIDITY.
DEMONSTRATIONS = {
  'toucan': {
    'uuid': 'g-1',
    'subset_name': 'greenhouse',
    'question': ASK.content,
    'target_tools': 'Green House::humidity',
    'tools': _dumps(_TOOLS),
    'messages': _dumps(
      [
        _role('user', ASK.content),
        *(_role('tool_call', text) for text in _REPRS),
        _role('tool_response', '40'),
        _role('tool_response', '61'),
        _role('assistant', SAID.content),
      ]
    ),
  },
  'toucan_teacher': {
    'uuid': 'g-2',
    'subset_name': 'greenhouse',
    'available_tools': _dumps(_TOOLS),
    'response_quality_assessment': '{"completeness": {"score": 5}}',
    'messages': _dumps(
      [
        _role('system', 'tools, as the framework states them'),
        _role('user', ASK.content),
        *(
          _role('assistant', '', function_call={'name': 'humidity', 'arguments': _dumps(call.arguments)})
          for call in (EAST, WEST)
        ),
        _role('function', '40', name='humidity'),
        _role('function', '61', name='humidity'),
        _role('assistant', SAID.content),
      ]
    ),
  },
  'openai': {
    'tools': _TOOLS,
    'messages': [
      _role('user', [{'type': 'text', 'text': ASK.content}]),
      _role(
        'assistant',
        None,
        tool_calls=[
          {'id': key, 'type': 'function', 'function': {'name': 'humidity', 'arguments': _dumps(call.arguments)}}
          for key, call in (('a', EAST), ('b', WEST))
        ],
      ),
      _role('tool', '61', tool_call_id='b'),
      _role('tool', '40', tool_call_id='a'),
      _role('assistant', SAID.content),
    ],
  },
  'trl_completion': {
    'tools': _TOOLS,
    'prompt': [_role('user', ASK.content)],
    'completion': [
      _role('assistant', '', tool_calls=[{'type': 'function', 'function': call} for call in _CALLS]),
      _role('tool', 40, name='humidity'),
      _role('tool', 61, name='humidity'),
      _role('assistant', SAID.content),
    ],
  },
  'slca_sft': {'conversations': _TAGGED},
  'hermes': {'id': 'h', 'category': 'Garden', 'tools': _dumps(_TOOLS), 'conversations': _TAGGED},
  'sharegpt': {
    'system': '',
    'tools': _dumps([_FUNCTION]),
    'conversations': [
      _turn('human', ASK.content),
      _turn('function_call', _dumps(_CALLS)),
      _turn('observation', '[40, 61]'),
      _turn('gpt', SAID.content),
    ],
  },
  'toolace': {
    'system': f'You may call:\n{_dumps([_FUNCTION])}\nas [func_name1(params_name1=params_value1, ...)]',
    'conversations': [
      _turn('user', ASK.content),
      _turn('assistant', '[humidity(bed="east"), humidity(bed=\'west\', hour=null)]'),
      _turn('tool', '[40, 61]'),
      _turn('assistant', SAID.content),
    ],
  },
}

_VERL = {'data_source': 'garden', 'prompt': [_role('user', ASK.content)], 'ability': 'tool'}
# Rows of other kinds, and ms-swift's under the name it shares with OpenAI's.
OTHERS = {
  'openai': {
    'tools': _TOOLS,
    'messages': [
      _role('user', 'How is the east?'),
      _role('tool_call', _dumps(_CALLS[0])),
      _role('tool_response', '40'),
      _role('assistant', 'Dry.'),
    ],
  },
  'slca_rl': slca_rl(_dumps([_CALLS])),
  'toolrl': {
    'data_source': 'rlla',
    'prompt': [_role('system', _INSTRUCTION), _role('user', _RECORDS)],
    'reward_model': {'style': 'rule', 'ground_truth': _OUTPUT},
    'extra_info': {'index': 0, 'split': 'test'},
  },
  'toolrl_sft': {'instruction': _INSTRUCTION, 'input': _RECORDS, 'output': _OUTPUT},
  'verl': {
    **_VERL,
    'reward_model': {'style': 'rule', 'ground_truth': 41},
    'extra_info': {'split': 'train', 'index': 0},
  },
  'verifiers': {
    'prompt': [_role('user', ASK.content)],
    'answer': '41',
    'info': '{"tools": ["humidity"]}',
    'task': 'beds',
  },
  'trl_prompt': {'prompt': [_role('user', ASK.content)], 'tools': _TOOLS},
  'xlam': {'id': 3, 'query': ASK.content, 'answers': _dumps(_CALLS), 'tools': _dumps([_FUNCTION])},
  'stabletoolbench': {
    'query': ASK.content,
    'query_id': 5,
    'api_list': [
      {
        'tool_name': 'Green House',
        'api_name': '2nd Humidity!',
        'api_description': 'Of a bed.',
        'required_parameters': [{'name': 'bed', 'type': 'STRING', 'description': 'Which.', 'default': 'east'}],
        'optional_parameters': [{'name': 'hour', 'type': 'NUMBER', 'description': '', 'default': ''}],
      }
    ],
    'relevant APIs': [['Green House', '2nd Humidity!']],
  },
  'bfcl': {
    'id': 'simple_python_0',
    'question': [[_role('user', ASK.content)]],
    'function': [{**_FUNCTION, 'parameters': {**SCHEMA, 'type': 'dict'}}],
    '_possible_answer': {'ground_truth': [{'humidity': {'bed': ['east', 'East'], 'hour': ['', 1]}}]},
  },
  'acebench': {
    'id': 'normal_atom_list_0',
    'question': f'user: {ASK.content}\n',
    'function': [_FUNCTION],
    'time': '',
    '_possible_answer': {'ground_truth': {'humidity': EAST.arguments}},
  },
  'tau2': {
    'id': '8',
    'user_scenario': {'instructions': {'domain': 'garden', 'reason_for_call': 'You fear for the beds.'}},
    'evaluation_criteria': {
      'actions': [_CALLS[0], {'requestor': 'user', 'name': 'water', 'arguments': {}}, _CALLS[1]],
      'communicate_info': ['40'],
    },
  },
  'mcp': {
    'tools': [
      {
        'name': 'humidity',
        'description': 'Humidity of a bed.',
        'inputSchema': SCHEMA,
        'outputSchema': {'type': 'object'},
      },
      {'name': 'water', 'inputSchema': {'type': 'object'}, 'annotations': {'readOnlyHint': False}},
    ]
  },
}
API_BANK = [
  {'role': 'User', 'text': ASK.content},
  {
    'role': 'API',
    'api_name': 'humidity',
    'param_dict': {'bed': 'east'},
    'result': {'api_name': 'humidity', 'input': {'bed': 'east'}, 'output': {'percent': 40}, 'exception': None},
  },
  {'role': 'AI', 'text': 'Dry.'},
]
