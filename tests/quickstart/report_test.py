"""The report: what it computes is right, what it shows is escaped, what is absent is no zero."""

import asyncio
import dataclasses
import json
import re

import pytest

from slca_jax.chat.calls import parse, render
from slca_jax.dialogue import Message, Observation, Scores, Status, Trajectory, Turn
from slca_jax.quickstart import report
from slca_jax.quickstart.demonstrations import demonstrate
from slca_jax.quickstart.world import KINDS, make_task
from slca_jax.rewards.judge import RuleJudge
from slca_jax.rewards.protocols import score

TASKS = [make_task(0, 'heldout', index, kind=kind) for index, kind in enumerate(KINDS)]
RESULT = {'process': 0.75, 'success': 0.25, 'summary': 1.0, 'tool_turns': 3.2, 'calls': 3.2}
SUMMARY = {'before': RESULT, **{regime: {'grpo': RESULT, 'slca': RESULT} for regime in ('noisy', 'biased')}}


def played(task, *, efficient):
  """The demonstration as a rollout."""
  turns, seen = [], {}
  for message in demonstrate(task, efficient=efficient)[1:]:
    if message.role == 'tool':
      seen.setdefault(len(turns) - 1, []).append(Observation(message.content))
      continue
    text = message.content + '\n'.join(map(render, message.calls))
    turns.append(Turn((), (), text, parse(text)))
  turns = [dataclasses.replace(turn, observations=tuple(seen.get(i, ()))) for i, turn in enumerate(turns)]
  return Trajectory(task, 0, 0, (), tuple(turns), Status.FINISHED)


def evaluated(*, efficient):
  trajectories = [played(task, efficient=efficient) for task in TASKS]
  return trajectories, [asyncio.run(score(trajectory, RuleJudge())) for trajectory in trajectories]


def shown():
  wasteful, efficient = evaluated(efficient=False), evaluated(efficient=True)
  after = {f'{regime}/{method}': efficient for regime in ('noisy', 'biased') for method in ('grpo', 'slca')}
  return {'before': wasteful, **after}


def table(page):
  return [re.findall('<td>(.*?)</td>', row) for row in re.findall('<tr>(.*?)</tr>', page)]


def test_arithmetic_is_that_of_the_demonstrations():
  # R_tool of the wasteful paths: 0.875, 0.65, 0.7, 0.95 and 0.45 + 0.25 · 6/7. Their tool turns are 3, 3, 3, 3, 4.
  rows = {row[0]: row[1:] for row in table(report.arithmetic(shown(), 0.25, 3)) if row}
  assert list(rows) == list(KINDS)
  assert rows['one'] == ['3.00 → 1.00', '+0.125', '-0.500', '-0.375']
  assert rows['two'] == ['3.00 → 1.00', '+0.350', '-0.500', '-0.150']
  assert rows['three'] == ['3.00 → 1.00', '+0.300', '-0.500', '-0.200']
  assert rows['chain'] == ['3.00 → 2.00', '+0.050', '-0.250', '-0.200']
  assert rows['mixed'] == ['4.00 → 2.00', '+0.336', '-0.250', '+0.086']


def test_a_rollout_that_failed_counts_as_nothing():
  (trajectories, scores), after = evaluated(efficient=False), evaluated(efficient=True)
  failed = dataclasses.replace(trajectories[0], turns=(), status=Status.FAILED)
  more = ([*trajectories, failed], [*scores, Scores(why={'failed': 'the engine broke'})])
  whole = report.arithmetic({'before': (trajectories, scores), 'biased/slca': after}, 0.25, 3)
  assert report.arithmetic({'before': more, 'biased/slca': after}, 0.25, 3) == whole


def test_the_question_shown_is_one_that_became_a_success():
  page = report.side_by_side(shown())
  assert TASKS[0].question in page and page.count('<pre>') == 5  # a single look-up: 0.875 before, 1 after
  before = re.findall('<pre>(.*?)</pre>', page, re.DOTALL)[0]
  assert before.count('class="tool"') == 3 and before.count('class="summary"') == 1 and before.count('  → ') == 3


def test_what_policies_say_is_escaped():
  task = dataclasses.replace(TASKS[0], messages=(Message('user', '<script>'),))
  said = Trajectory(task, 0, 0, (), (Turn((), (), '<img src=x>', parse('')),), Status.FINISHED)
  page = report.side_by_side({name: ([said], [Scores()]) for name in shown()})
  assert '<script>' not in page and '<img' not in page and '&lt;img src=x&gt;' in page


def test_terminal_and_page_show_every_evaluation():
  lines = report.text_table(SUMMARY).splitlines()
  assert [line.split()[0] for line in lines[1:]] == ['before', 'noisy/grpo', 'noisy/slca', 'biased/grpo', 'biased/slca']
  assert table(report.html_table(SUMMARY))[-1] == [
    'SLCA-GRPO, biased judge',
    '0.750',
    '0.250',
    '1.000',
    '3.200',
    '3.200',
  ]


def test_files_are_written_whole_even_if_all_rollouts_of_a_step_failed(tmp_path):
  pytest.importorskip('matplotlib')
  for regime in ('noisy', 'biased'):
    for method in ('grpo', 'slca'):
      folder = tmp_path / regime / method
      folder.mkdir(parents=True)
      steps = [{'step': step, 'score/success': 0.1 * step} for step in (1, 2, 3)]
      (folder / 'metrics.jsonl').write_text('\n'.join(map(json.dumps, [*steps, {'step': 4}])))
  report.write(tmp_path, SUMMARY, shown(), bias=0.25, bias_turns=3)
  page = (tmp_path / 'report.html').read_text('utf-8')
  assert (tmp_path / 'curves.png').read_bytes().startswith(b'\x89PNG') and 'base64,' in page
  assert page.startswith('<!doctype html>') and page.endswith('</html>\n') and '5 held-out questions' in page
