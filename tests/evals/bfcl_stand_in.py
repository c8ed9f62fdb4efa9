"""Answers like `bfcl_official`, for entries of its own: a bank whose balance counts, and a tool that adds."""

import json
import sys

ADD = {'name': 'add', 'description': 'Adds.', 'parameters': {'type': 'dict', 'properties': {'a': {'type': 'integer'}}}}
ENTRIES = {
  'simple_python': [
    {
      'id': f'simple_python_{i}',
      'question': [[{'role': 'user', 'content': f'add {i}'}]],
      'function': [ADD],
      'answer': i,
    }
    for i in range(3)
  ],
  'live_irrelevance': [
    {
      'id': 'live_irrelevance_0',
      'question': [[{'role': 'user', 'content': 'hello'}]],
      'function': [ADD],
      'answer': None,
    }
  ],
  'multi_turn_base': [
    {
      'id': 'multi_turn_base_0',
      'question': [[{'role': 'user', 'content': 'add'}], []],
      'function': [ADD],
      'answer': [[1], [2]],
      'missed_function': {'1': [{'name': 'more'}]},
    }
  ],
}
totals = {}

for line in sys.stdin:
  asked = json.loads(line)
  what = asked['do']
  if what == 'entries':
    answer = ENTRIES[asked['category']]
  elif what == 'check':
    right = asked['calls'] == [['add', {'a': int(asked['id'][-1])}]]
    answer = {'valid': right, 'error_type': 'wrong', 'error': 'no'}
  elif what == 'check_turns':
    made = [[call[1].get('a') for step in turn for call in step] for turn in asked['turns']]
    answer = {'valid': made == [[1], [2]], 'error_type': 'wrong_turns', 'error': str(made)}
  elif what == 'open':
    answer = f'world{len(totals)}'
    totals[answer] = 0
  elif what == 'step':
    answer = []
    for name, arguments in asked['calls']:
      totals[asked['world']] += arguments.get('a', 0)
      answer.append(str(totals[asked['world']]) if name == 'add' else f"Error during execution: name '{name}'")
  else:
    answer = None
  print(json.dumps({'number': asked['number'], 'answer': answer}), flush=True)
