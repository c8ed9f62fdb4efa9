"""Pieces for notebooks show what the report shows, to scale, and nothing in a text becomes markup."""

import re

import pytest

from slca_jax.chat.template import Template
from slca_jax.dialogue import Message, Observation, Parsed, Scores, Status, Task, Trajectory, Turn
from slca_jax.ops.segments import segment_runs
from slca_jax.quickstart.tokenizer import make_tokenizer
from slca_jax.quickstart.world import make_task
from slca_jax.report.inline import rows_html, table_html, tokens_html
from slca_jax.report.reading import Sampled
from slca_jax.rollout.batching import to_batch
from slca_jax.rollout.settings import Layout

TASK = Task('t', (), (Message('user', 'Where?'),))
SPAN = re.compile(r'<span(?: title="([^"]*)")? style="([^"]*)">([^<]*)</span>')


@pytest.fixture(scope='module')
def template():
  return Template(make_tokenizer(make_task(0, 'train', index) for index in range(8)))


def rollout(template, *, group=0, index=0, call='look <b>\n', answer='here'):
  said, seen, last = map(template.encode, (call, 'seen & heard', answer))
  turns = (
    Turn(said, (-1.0,) * len(said), call, Parsed(), (Observation('seen'),), seen),
    Turn(last, (-1.0,) * len(last), answer, Parsed()),
  )
  prompt = template.encode('Where is it?')
  return Sampled(1, Trajectory(TASK, group, index, prompt, turns, Status.FINISHED), Scores(0.5, 0.5, 1.0))


def test_tokens_are_coloured_by_segment_and_escaped(template):
  one = rollout(template)
  found = SPAN.findall(tokens_html(one, ('tool', 'summary'), template))
  turns = one.trajectory.turns
  assert len(found) == len(one.trajectory.prompt) + sum(len(turn.tokens) + len(turn.reply) for turn in turns)
  assert ''.join(text for *_, text in found) == 'Where is it?look &lt;b&gt;\nseen &amp; heardhere'
  styles = list(dict.fromkeys(style for _, style, _ in found))
  assert len(styles) == 4 and '20,117,109' in styles[1] and '138,79,163' in styles[3]


def test_tokens_of_a_run_have_its_advantage_and_others_none(template):
  one = rollout(template)
  found = SPAN.findall(tokens_html(one, ('tool', 'summary'), template, advantages=(-0.75, 3.0)))
  titles = [title for title, *_ in found]
  turns = one.trajectory.turns
  assert titles.count('-0.750') == len(turns[0].tokens) and titles.count('+3.000') == len(turns[1].tokens)
  assert titles.count('') == len(one.trajectory.prompt) + len(turns[0].reply)
  down, up = (next(style for title, style, _ in found if title == wanted) for wanted in ('-0.750', '+3.000'))
  assert 'rgba(211,112,26,0.33)' in down and 'rgba(47,116,192,0.65)' in up  # half of the full colour, and all of it
  assert '⏎\n' in ''.join(text for title, _, text in found if title == '-0.750')


def test_rows_are_drawn_to_scale(template):
  rollouts = [rollout(template, index=index, answer='here' if index else 'here and there') for index in range(2)]
  trajectories = [one.trajectory for one in rollouts]
  batch = to_batch(trajectories, [one.scores for one in rollouts], Layout((128,), 2), turns=2)
  drawn = rows_html(batch, segment_runs(batch.sampled_BT, batch.rollout_BT, batch.finished_R))
  assert re.findall('<b>(.*?)</b>', drawn) == ['row 0']  # the other one is empty
  sizes = [int(size) for size in re.findall(r'style="flex:(\d+) 0 0;', drawn)]
  assert sum(sizes) == 3 * 128
  stem = len(trajectories[0].prompt)
  parts = [(len(t.turns[0].tokens), len(t.turns[0].reply), len(t.turns[1].tokens)) for t in trajectories]
  used = [stem, *(size for part in parts for size in part)]
  assert sizes[: len(used) + 1] == [*used, 128 - sum(used)]
  whole = [sum(part) for part in parts]
  for size in whole:  # positions restart behind the prompt
    assert f'title="{stem}–{stem + size - 1}, {size} tokens"' in drawn


def test_cells_of_a_table_are_texts():
  assert '<td style="text-align:left">&lt;i&gt;</td>' in table_html(['a'], [['<i>']])
  assert table_html(['a'], [[0.12345, 7, None]]).endswith(
    '>0.123</td><td style="text-align:left">7</td>' + ('<td style="text-align:left">—</td></tr></table>')
  )
