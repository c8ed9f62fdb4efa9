"""How long a credit report of many rollouts takes to its first view, and to move on, in a headless Chromium.

python benchmarks/report_load.py [--rollouts=1000]

Rollouts are synthetic: the quickstart's questions with made-up turns, as long as real ones. Each view is loaded several
times from a file:// address in a fresh page; the median is what counts. First view: from the start of navigation until
after the frame that shows it.
"""

import asyncio
import json
import os
import pathlib
import random
import statistics
import tempfile
import time

from absl import app, flags

from slca_jax.config import as_dict
from slca_jax.data.folders import write_json
from slca_jax.dialogue import Observation, ToolCall
from slca_jax.quickstart.start import write_start
from slca_jax.quickstart.world import make_task
from slca_jax.report.browser import DESKTOP, PHONE, browsing
from slca_jax.report.example import Script, act, rated
from slca_jax.report.page import write_report
from slca_jax.train.dumps import dump
from slca_jax.train.metrics import Writer
from slca_jax.train.settings import Model, RLConfig

_ROLLOUTS = flags.DEFINE_integer('rollouts', 1000, 'How many.', lower_bound=8)
_WORDS = flags.DEFINE_integer('words', 220, 'Words of an answer, about.', lower_bound=1)
_KEEP = flags.DEFINE_string('keep', '', 'Folder for the run; a temporary one if empty.')
_TRIES, _GROUP, _STEPS = 5, 8, 200


def write_run(run: pathlib.Path, count: int) -> None:
  """A run of `count` rollouts at two steps, with metrics of 200."""
  from slca_jax.chat.template import load_template

  write_start(run / 'start', seed=0)
  template = load_template(run / 'start')
  config = RLConfig(output=str(run), group_size=_GROUP, model=Model(str(run / 'start')))
  write_json(run / 'config.json', as_dict(config))
  rng = random.Random(0)
  groups = -(-count // _GROUP)
  for step, places in ((1, range(groups // 2)), (_STEPS, range(groups // 2, groups))):
    trajectories, scores = [], []
    for group in places:
      task = make_task(0, 'train', group)
      for index in range(min(_GROUP, count - group * _GROUP)):
        script = _script(task, rng)
        trajectories.append(act(task, script, group=group, index=index, template=template, world=_answered))
        scores.append(asyncio.run(rated(trajectories[-1], script)))
    dump(run / 'rollouts' / f'step_{step:06d}', trajectories, scores)
  writer = Writer(run)
  for step in range(1, _STEPS + 1):
    numbers = {f'{part}/{name}': rng.random() for part in ('tool', 'summary') for name in _NAMES}
    writer.write(step, numbers | {'reward/tool': step / _STEPS, 'kl': rng.random(), 'time/collect': 2.0})
  writer.close()


_NAMES = [f'number_{place}' for place in range(40)]


def _answered(call: ToolCall) -> Observation:
  return Observation(json.dumps({'answer': call.arguments}))


def _script(task, rng: random.Random) -> Script:
  steps = [step for step in task.gold for _ in range(rng.randint(0, 2))]
  said = ' '.join(
    rng.choice(('the', 'price', 'of', 'is', 'and', '12', 'BAKO')) for _ in range(rng.randint(2, 2 * _WORDS.value))
  )
  return Script(tuple(steps), said, rng.randint(0, 4) / 4, 'because')


def measure(page: pathlib.Path) -> None:
  """Prints the medians."""
  with browsing() as browser:
    for name, size in (('desktop', DESKTOP), ('phone', PHONE)):
      browser.size(*size)
      for view in ('', '#/rollouts', '#/g/0', '#/r/0'):
        seen = [_seen(browser, page, view) for _ in range(_TRIES)]
        print(f'{name:8} {view or "overview":12} first view {statistics.median(seen):7.0f} ms, worst {max(seen):.0f}')
    browser.size(*DESKTOP)
    browser.open(page, '#/r/0')
    print(f'rollouts in the page: {browser.run("app.head.rollouts.length")}')
    moves = []
    for _ in range(50):
      start = browser.run('performance.now()')
      browser.press('j')
      moves.append(browser.run('performance.now()') - start)
    print(
      f'next rollout (key to frame, through the debugger): {statistics.median(moves):.0f} ms, worst {max(moves):.0f}'
    )
    print(f'rows of the list that exist: {browser.run("document.querySelectorAll(`.row`).length")}')
    print(f'console errors: {browser.problems or "none"}')


def _seen(browser, page: pathlib.Path, view: str) -> float:
  browser.open(page, view)
  return float(browser.run('new Promise(done => {const look = () => document.documentElement.dataset.seen ? '
                           'done(document.documentElement.dataset.seen) : setTimeout(look, 5); look()})'))  # fmt: skip


def main(_: list[str]) -> None:
  """Makes the run and its report, and measures."""
  with tempfile.TemporaryDirectory() as folder:
    run = pathlib.Path(_KEEP.value or folder) / 'run'
    write_run(run, _ROLLOUTS.value)
    start = time.perf_counter()
    page = write_report(run, most=_ROLLOUTS.value)
    size = page.stat().st_size / 1e6
    print(f'{_ROLLOUTS.value} rollouts: written in {time.perf_counter() - start:.1f} s, {size:.2f} MB')
    print(f'load of the machine: {os.getloadavg()[0]:.1f}')
    measure(page)


if __name__ == '__main__':
  app.run(main)
