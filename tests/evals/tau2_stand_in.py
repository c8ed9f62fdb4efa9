"""Answers like `tau2_official`, for a domain whose two tasks end after the agent's second words; the first solves."""

import json
import sys

TOOL = {'name': 'find', 'description': 'Finds.', 'parameters': {'type': 'object', 'properties': {}}}
runs = {}

for line in sys.stdin:
  asked = json.loads(line)
  what = asked['do']
  if what == 'tasks':
    answer = [] if asked['solo'] else ['0', '1']
  elif what == 'controls':
    answer = {'gold': 1.0, 'nothing': float(asked['task'] == '1')}
  elif what == 'start':
    name = f'simulation{len(runs)}'
    said = [{'role': 'assistant', 'content': 'hello', 'calls': []}, {'role': 'user', 'content': 'find it', 'calls': []}]
    runs[name] = (asked, said)
    answer = {'run': name, 'system': ['help'], 'messages': said, 'tools': [TOOL]}
  else:
    settings, said = runs[asked['run']]
    said.append({'role': 'assistant', 'content': asked['content'], 'calls': asked['calls']})
    said.append({'role': 'tool' if asked['calls'] else 'user', 'content': 'more', 'calls': [], 'error': False})
    done = {'reward': float(settings['task'] == '0'), 'ended': 'USER_STOP', 'messages': said, 'error': ''}
    if not asked['content'] and not asked['calls']:
      done |= {'reward': 0.0, 'ended': 'error', 'error': 'ValueError: empty'}
    if settings['user'] == 'openai/broken':
      done |= {'reward': 0.0, 'ended': 'error', 'error': 'APIError: gone'}
    ends = len(said) > 5 or done['error']
    answer = {'done': done} if ends else {'system': ['help'], 'messages': said, 'tools': [TOOL]}
  print(json.dumps({'number': asked['number'], 'answer': answer}), flush=True)
