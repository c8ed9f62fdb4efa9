"""Questions to a script in another process: each gets its own answer, and every end of the process is told."""

import asyncio

import pytest

from slca_jax.errors import ConfigError, EnvironmentFailure
from slca_jax.evals.bridge import Bridge

SCRIPT = """
import json, sys
kept = []
for line in sys.stdin:
  asked = json.loads(line)
  number, do = asked.pop('number'), asked['do']
  if do == 'die':
    sys.exit('out of luck')
  if do == 'never':
    continue
  if do == 'old':
    print(json.dumps({'number': number, 'lost': 'it ran in a process that ended'}), flush=True)
    continue
  kept.append({'number': number, 'refused': 'no such'} if do == 'odd' else {'number': number, 'answer': asked})
  if do != 'later':
    for told in reversed(kept):
      print(json.dumps(told), flush=True)
    kept = []
"""


@pytest.fixture
def script(tmp_path):
  path = tmp_path / 'script.py'
  path.write_text(SCRIPT)
  return path


def test_answers_find_their_questions_in_any_order(script):
  async def scene():
    bridge = Bridge(script)
    long = 'é' * 100_000
    answers = await asyncio.gather(*(bridge.ask(do, word=long + do) for do in ('later', 'later', 'now')))
    await bridge.close()
    await bridge.close()
    return [answer['word'][len(long) :] for answer in answers]

  assert asyncio.run(scene()) == ['later', 'later', 'now']


def test_refusals_and_deaths_are_told_and_the_next_question_starts_anew(script):
  async def scene():
    bridge = Bridge(script)
    with pytest.raises(ConfigError, match='no such'):
      await bridge.ask('odd')
    waiting = asyncio.ensure_future(bridge.ask('later'))
    with pytest.raises(EnvironmentFailure, match='out of luck'):
      await bridge.ask('die')
    with pytest.raises(EnvironmentFailure, match="ended at 'later'"):
      await waiting
    assert await bridge.ask('now') == {'do': 'now'}
    with pytest.raises(EnvironmentFailure, match="at 'old': it ran in a process that ended"):
      await bridge.ask('old')
    await bridge.close()
    hasty = Bridge(script, seconds=0.01)
    with pytest.raises(EnvironmentFailure, match='did not answer'):
      await hasty.ask('never')

  asyncio.run(scene())
  with pytest.raises(ConfigError, match='no such interpreter'):
    Bridge(script, python='/nowhere/python')
