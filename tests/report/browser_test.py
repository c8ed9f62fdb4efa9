"""The page in a headless Chromium: it runs nothing that a policy wrote, shows what the model says, and fits a phone."""

import dataclasses

import pytest

from slca_jax.dialogue import Message
from slca_jax.report.browser import DESKTOP, PHONE, browsing, find_browser
from slca_jax.report.example import write_example
from slca_jax.report.page import write_report
from slca_jax.report.reading import sampled_in
from slca_jax.train.dumps import dump
from slca_jax.train.logp_dumps import dump_logps

HOSTILE = (
  '</script><script>window.ran=1</script><img src=x onerror="window.ran=1"><svg onload="window.ran=1">'
  '<a href="javascript:window.ran=1">x</a>\u2028\u202e\x00]]><!--<script>'
)


# [text, contrast by WCAG 2] of everything that is seen and can be used, colours put over each other as they are shown.
CONTRASTS = """(() => {
  const pixel = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = (colour) => {
    pixel.clearRect(0, 0, 1, 1);
    pixel.fillStyle = colour;
    pixel.fillRect(0, 0, 1, 1);
    return [...pixel.getImageData(0, 0, 1, 1).data];
  };
  const over = (top, below) => [0, 1, 2].map((i) => (top[i] * top[3] + below[i] * (255 - top[3])) / 255);
  const behind = (node) =>
    node ? over(rgba(getComputedStyle(node).backgroundColor), behind(node.parentElement)) : [255, 255, 255];
  const light = (colour) => colour.map((v) => (v <= 10 ? v / 3295 : ((v / 255 + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), out = [];
  while (texts.nextNode()) {
    const node = texts.currentNode.parentElement, text = texts.currentNode.textContent.trim();
    if (!text || !node.checkVisibility() || node.closest('[disabled], [aria-hidden=true], option')) continue;
    const base = behind(node), seen = [base, over(rgba(getComputedStyle(node).color), base)].map(light);
    out.push([text, (Math.max(...seen) + 0.05) / (Math.min(...seen) + 0.05)]);
  }
  return out;
})()"""


@pytest.fixture(scope='module')
def window():
  if find_browser() is None:
    pytest.skip('no Chromium is installed')
  with browsing() as browser:
    yield browser


@pytest.fixture(scope='module')
def run(tmp_path_factory):
  """The example, and a second step in which everything that has a text is hostile."""
  run = tmp_path_factory.mktemp('run') / '<b>run</b>'
  write_example(run)
  sampled = sampled_in(run)[:4]
  evil = []
  for one in sampled:
    turns = tuple(dataclasses.replace(turn, text=HOSTILE) for turn in one.trajectory.turns)
    seen = tuple(dataclasses.replace(o, content=HOSTILE) for o in turns[0].observations)
    turns = (dataclasses.replace(turns[0], observations=seen), *turns[1:])
    task = dataclasses.replace(one.trajectory.task, id=HOSTILE, messages=(Message('user', HOSTILE),))
    evil.append(dataclasses.replace(one.trajectory, task=task, turns=turns, error=HOSTILE))
  why = sampled[0].scores.why | {'verdict': {'score': 0.5, 'word': HOSTILE, 'reason': HOSTILE}}
  dump(run / 'rollouts' / 'step_000002', evil, [dataclasses.replace(one.scores, why=why) for one in sampled])
  kept = {'old': [-1.0] * 300, 'ref': [-1.5] * 300, 'new': [-0.75] * 300}
  dump_logps(run / 'rollouts' / 'step_000001', {0: kept}, first=0, group_size=4)
  write_report(run)
  (run / 'report.html').rename(run / 'exact.html')
  (run / 'model' / 'tokenizer.json').unlink()  # so that texts stand for tokens
  write_report(run)
  return run / 'report.html'


def text(window, selector):
  return window.run(f'document.querySelector({selector!r}).textContent')


def count(window, selector):
  return window.run(f'document.querySelectorAll({selector!r}).length')


def test_nothing_that_a_policy_wrote_is_run_or_becomes_an_element(window, run):
  window.problems.clear()
  window.size(*DESKTOP)
  for view in ('', '#/rollouts', '#/g/2', '#/r/8', '#/r/9'):
    window.open(run, view)
    assert window.run('window.ran === undefined')
    assert count(window, 'main img, main script, main svg[onload], main [href^=javascript], main b b') == 0
  assert '</script><script>window.ran=1' in text(window, 'h1') and '⟨U+202E⟩' in text(window, 'h1')
  assert window.problems == []


def test_the_paper_s_case_shows_both_scores_and_both_methods(window, run):
  window.size(*DESKTOP)
  window.open(run, '#/g/0')
  rows = window.run('[...document.querySelectorAll(".credits tbody tr")].map(row => row.innerText.split(/\\s+/))')
  assert rows[0][:7] == ['1', '0.65', '1.00', '−1.44', '+1.41', '+1.15', '+1.15']
  assert rows[1][:7] == ['2', '1.00', '0.25', '+0.68', '−0.71', '−0.60', '−0.60']
  window.open(run, '#/r/0')
  assert count(window, '.run.tool .ink.down') == 3 and count(window, '.run.summary .ink.up') == 1
  window.press('2')
  assert count(window, '.run .ink.up') == 4
  window.press('1')


def test_keys_move_through_rollouts_groups_tokens_and_colours(window, run):
  window.open(run, '#/r/0')
  for key, place in [('j', '#/r/1'), ('j', '#/r/2'), ('k', '#/r/1'), ('ArrowRight', '#/r/2'), ('g', '#/g/0')]:
    window.press(key)
    assert window.run('location.hash') == place
  window.press('ArrowRight')
  assert window.run('location.hash') == '#/g/1'
  window.press('g')
  window.press('t')
  assert 'SLCA' in text(window, '#token') and not window.run('document.getElementById("token").hidden')
  window.press('Escape')
  assert window.run('document.getElementById("token").hidden')
  window.press('s')
  assert window.run('document.body.classList.contains("by-segment")')
  window.press('s')
  window.press('?')
  assert window.run('document.getElementById("help").open')
  window.run('document.getElementById("help").close()')


@pytest.mark.parametrize('focus', ['method-1', 'by-run-1', 'colours', 'sort', 'after'])
def test_what_has_the_keyboards_focus_keeps_it_when_the_view_is_drawn_anew(window, run, focus):
  window.size(*DESKTOP)
  window.open(run, '#/r/1')
  window.run(f'document.querySelector("[data-focus={focus}]").focus()')
  change = 'held.dispatchEvent(new Event("change"))' if focus == 'sort' else 'held.click()'
  assert window.run(f'const held = document.activeElement; {change}; held.isConnected') is (focus == 'after')
  window.run('new Promise(done => setTimeout(done, 60))')  # a link's view is drawn by an event
  assert window.run('document.activeElement.dataset.focus') == focus


def test_a_token_tells_its_ratio_clip_and_divergence_where_they_were_kept(window, run):
  window.size(*DESKTOP)
  window.open(run.with_name('exact.html'), '#/r/0')
  window.press('t')
  told = text(window, '#token')
  # exp(0.25) with A < 0; d = ref − new = −0.75: exp(d) − d − 1
  assert 'ratio after / before1.284inside the clip range' in told and 'KL to reference0.2224' in told
  window.press('2')  # under GRPO the same token is to become likelier, and already is by more than a fifth
  window.press('t')
  assert 'above 1.20: clipped' in text(window, '#token')
  window.press('1')
  window.open(run.with_name('exact.html'), '#/r/1')
  window.press('t')
  assert 'sampler’s log-probs only' in text(window, '#token')


def test_filters_leave_what_they_say(window, run):
  window.open(run, '#/rollouts?show=guarded')
  assert count(window, '.row') == 1 and '1 of 12' in text(window, '.sift')
  window.open(run, '#/rollouts?show=rewarded')
  assert window.run('[...document.querySelectorAll(".row")].map(row => row.hash)')[0] == '#/r/0'
  window.press('w')
  assert window.run('app.sort') == 'worst'


@pytest.mark.parametrize('dark', [False, True])
def test_words_stand_out_from_the_tint_behind_them(window, run, dark):
  window.size(*DESKTOP, dark=dark)
  window.open(run, '#/r/0')
  window.press('t')
  told = window.run(CONTRASTS)
  assert len(told) > 50
  assert {text: ratio for text, ratio in told if ratio < 4.5} == {}


@pytest.mark.parametrize('width', [PHONE[0], 320])
@pytest.mark.parametrize('view', ['', '#/rollouts', '#/g/0', '#/g/2', '#/r/0', '#/r/8'])
def test_a_phone_needs_no_sideways_scrolling(window, run, view, width):
  window.size(width, PHONE[1], dark=True)
  window.open(run, view)
  assert window.run('document.documentElement.scrollWidth <= innerWidth')
  if view == '#/rollouts':  # the list scrolls, and the page does not beside it
    assert window.run('document.documentElement.scrollHeight <= innerHeight')
  assert window.run('getComputedStyle(document.body).backgroundColor') == 'rgb(21, 23, 27)'
