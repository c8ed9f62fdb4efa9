"""A study: a grid of methods × judges × seeds, each run a process of its own; what is finished is not made again.

A run that was killed goes on from its checkpoint, one that failed is shown and tried again by the same command.
"""

import contextlib
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from slca_jax.config import as_dict, require
from slca_jax.data.folders import claimed, write_json
from slca_jax.evals import study_tables, tables
from slca_jax.evals.study_job import STOPPED
from slca_jax.evals.study_settings import PLANNER, START, Job, StudyConfig, mark, needed, runs, selected

_TAIL = 1500  # characters of a log that a failure shows
_POLL_SECONDS = 0.2
Say = Callable[[str], None]


def run(config: StudyConfig, *, say: Say = print) -> str:
  """Makes the missing runs, writes `study.md`, `.tex`, `.csv` and `claims.json`, and returns the Markdown.

  Raises:
    ConfigError: the folder holds results of other settings, or `select` names no run.
  """
  folder = pathlib.Path(config.output)
  with claimed(folder):
    jobs = planned(config)
    for job in jobs:
      check_done(config, job)
    write_json(folder / 'study.json', as_dict(config))
    missing = [job for job in jobs if not is_done(config, job)]
    say(forecast(config, jobs, missing))
    try:
      Crew(config, missing, say).work()
    finally:
      text = report(config)
  return text


def planned(config: StudyConfig) -> list[Job]:
  """The selected runs, each behind what it starts from."""
  return list(dict.fromkeys(one for job in selected(config) for one in (*needed(config, job), job)))


def report(config: StudyConfig) -> str:
  """Tables of what there is, in three formats, and the claims with their numbers as JSON; returns the Markdown.

  Raises:
    ConfigError: there is no study in the folder.
  """
  folder = pathlib.Path(config.output)
  require((folder / 'study.json').exists(), f'{config.output!r} holds no study; make one without --tables')
  found = study_tables.read(config)
  write_json(folder / 'claims.json', study_tables.claims_as_json(found))
  return tables.write(folder, 'study', study_tables.tables(found, failures(config)))


def left(config: StudyConfig) -> list[str]:
  """What of the selection is not done: it failed, or the study was stopped."""
  return [job.name for job in planned(config) if not is_done(config, job)]


def failures(config: StudyConfig) -> dict[str, str]:
  """Of each job that failed and was not made since, the end of what it said."""
  jobs = dict.fromkeys(one for job in runs(config) for one in (*needed(config, job), job))
  found = {job.name: pathlib.Path(config.output) / job.name / 'failed.json' for job in jobs if not is_done(config, job)}
  return {name: json.loads(path.read_text('utf-8'))['said'] for name, path in found.items() if path.exists()}


def is_done(config: StudyConfig, job: Job) -> bool:
  """Whether a job was finished."""
  return (pathlib.Path(config.output) / job.name / 'done.json').exists()


def check_done(config: StudyConfig, job: Job) -> None:
  """Raises ConfigError if a finished job had other settings than it would have now."""
  if is_done(config, job):
    path = pathlib.Path(config.output) / job.name / 'done.json'
    same = json.loads(path.read_text('utf-8'))['settings'] == mark(config, job)
    require(same, f'{path.parent} was made with other settings; choose another output or remove it')


def forecast(config: StudyConfig, jobs: Sequence[Job], missing: Sequence[Job]) -> str:
  """What is to be made and how much CPU time it is expected to take, by the runs that were made."""
  spent: dict[bool, list[float]] = {True: [], False: []}
  for job in jobs:
    path = pathlib.Path(config.output) / job.name / 'done.json'
    if path.exists() and job.regime != PLANNER:
      told = json.loads(path.read_text('utf-8'))
      spent[job.is_run] += [] if told['resumed'] else [told['cpu_seconds']]
  each = statistics.fmean(spent[True]) if spent[True] else config.run_seconds
  start = statistics.fmean(spent[False]) if spent[False] else config.start_seconds
  starts = sum(not job.is_run for job in missing)
  total = each * (len(missing) - starts) + (start * starts if config.world == 'quickstart' else 0)
  known = f'as {len(spent[True])} runs took on average' if spent[True] else 'as run_seconds says'
  return (
    f'{len(missing) - starts} of {sum(job.is_run for job in jobs)} runs and {starts} starts are to be made, about '
    f'{each:.0f} CPU seconds each ({known}): {total / 3600:.1f} CPU hours, {config.jobs} at a time'
  )


class Crew:
  """The processes of a study: at most `jobs` at a time, none before what it starts from is done."""

  def __init__(self, config: StudyConfig, missing: Sequence[Job], say: Say):
    self._config, self._say = config, say
    self._waiting, self._running = list(missing), dict[Job, subprocess.Popen[bytes]]()
    self._lost, self._asked, self._stopped = set[Job](), set[Job](), False
    self._whole, self._ended = len(missing), 0
    self._cores = sorted(os.sched_getaffinity(0)) if config.pinned else []
    self._core_of = dict[Job, int]()

  def work(self) -> None:
    """Starts and waits until all are done, failed, or SIGTERM or Ctrl-C asked to stop: then processes save and end."""
    with self._listening():
      try:
        while self._running or self._waiting:
          self._start()
          self._ask_to_stop()
          self._collect()
          if not self._running and (self._stopped or not self._ready()):
            break
          time.sleep(_POLL_SECONDS)
      finally:
        self._stopped = True
        self._ask_to_stop()
        for process in self._running.values():
          process.wait()

  @contextlib.contextmanager
  def _listening(self) -> Iterator[None]:
    asked = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(one, self._stop) for one in asked]
    try:
      yield
    finally:
      for one, handler in zip(asked, before, strict=True):
        signal.signal(one, handler)

  def _stop(self, *_: Any) -> None:
    self._stopped = True

  def _ask_to_stop(self) -> None:
    """Asks each process once: one that was asked twice would end before it has saved."""
    if self._stopped:
      for job in self._running.keys() - self._asked:
        self._asked.add(job)
        self._running[job].terminate()

  def _ready(self) -> list[Job]:
    """The waiting jobs whose starts are done; those whose start was lost are lost."""
    for job in [job for job in self._waiting if self._lost.intersection(needed(self._config, job))]:
      self._waiting.remove(job)
      self._lost.add(job)
      self._fail(job, 'what it starts from failed')
    return [job for job in self._waiting if all(is_done(self._config, one) for one in needed(self._config, job))]

  def _start(self) -> None:
    for job in self._ready()[: 0 if self._stopped else self._config.jobs - len(self._running)]:
      self._waiting.remove(job)
      self._running[job] = self._spawn(job)

  def _spawn(self, job: Job) -> subprocess.Popen[bytes]:
    folder = pathlib.Path(self._config.output).absolute()
    command = [sys.executable, '-m', 'slca_jax.evals.study_job', self._config.output, job.name, *self._core(job)]
    environment = {'JAX_COMPILATION_CACHE_DIR': str(folder / 'compiled'), **os.environ}
    if self._config.world == 'quickstart':
      environment.setdefault('JAX_PLATFORMS', 'cpu')
    (folder / job.name).parent.mkdir(parents=True, exist_ok=True)
    with open(self._log(job), 'ab') as log:
      # A session of its own: Ctrl-C reaches the study alone, which asks its processes to save.
      return subprocess.Popen(
        command, env=environment, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True
      )

  def _core(self, job: Job) -> list[str]:
    """The core that the fewest of the running processes have, as an argument; none if they are not pinned."""
    if not self._cores:
      return []
    taken = [self._core_of[one] for one in self._running]
    self._core_of[job] = min(self._cores, key=taken.count)
    return [str(self._core_of[job])]

  def _log(self, job: Job) -> pathlib.Path:
    return (pathlib.Path(self._config.output) / job.name).with_suffix('.log')

  def _collect(self) -> None:
    for job in [job for job, process in self._running.items() if process.poll() is not None]:
      status = self._running.pop(job).returncode
      self._ended += 1
      if is_done(self._config, job):
        self._tell(job, 'done')
        continue
      self._lost.add(job)
      if self._stopped or status == STOPPED:
        self._tell(job, 'stopped; the same command goes on')
        self._stopped = True
        continue
      self._fail(job, f'status {status}: {self._log(job).read_text("utf-8", "replace")[-_TAIL:].strip()}')

  def _fail(self, job: Job, said: str) -> None:
    place = pathlib.Path(self._config.output) / job.name
    place.mkdir(parents=True, exist_ok=True)
    write_json(place / 'failed.json', {'said': said})
    self._tell(job, f'FAILED, {said.splitlines()[-1]}')

  def _tell(self, job: Job, what: str) -> None:
    kind = '' if job.is_run else f' ({"demonstrations" if job.regime == START else "demonstrations without answers"})'
    self._say(f'[{self._ended}/{self._whole}] {job.name}{kind}: {what}')
