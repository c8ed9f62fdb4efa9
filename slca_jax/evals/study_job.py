"""One process of a study: makes a start, a planner or a run, and evaluates it.

python -m slca_jax.evals.study_job STUDY.json REGIME/METHOD/SEED [CORE]
"""

import dataclasses
import json
import os
import pathlib
import sys
import time

from slca_jax.config import build
from slca_jax.data.folders import write_json
from slca_jax.errors import Diverged, Refused

STOPPED = 75  # the status of a process that was asked to stop and saved what it had


def do(folder: pathlib.Path, name: str) -> bool:
  """Does what is missing of a job; False if it was asked to stop before its end.

  Raises:
    Diverged: the supervised policy learned too little.
    Refused: for settings, data or weights.
  """
  from slca_jax.evals import in_domain, study_settings
  from slca_jax.train import rl

  config = build(study_settings.StudyConfig, json.loads((folder / 'study.json').read_text('utf-8')))
  job = study_settings.job_of(config, name)
  place, began = folder / job.name, time.process_time()
  resumed = place.exists()
  if job.is_run:
    run = study_settings.run_settings(config, job)
    rl.train(run)
    if not (pathlib.Path(run.output) / 'result.json').exists():
      return False
  elif config.world == 'quickstart' and not _teach(config, job):
    return False
  if job.regime != study_settings.PLANNER:
    in_domain.evaluate(study_settings.evaluation_settings(config, job))
  if job.regime == study_settings.START and config.world == 'quickstart':
    _check(config.quickstart, place)
  spent = round(time.process_time() - began, 2)
  mark = study_settings.mark(config, job)
  write_json(place / 'done.json', {'cpu_seconds': spent, 'resumed': resumed, 'settings': mark})
  return True


def _teach(config, job) -> bool:
  """Makes the supervised policy of a seed, or its planner, of which the last lesson alone is another: it ends with
  <answer>. False if it was stopped.
  """
  from slca_jax.data.tasks import write_tasks
  from slca_jax.evals import study_settings
  from slca_jax.quickstart import experiment
  from slca_jax.train import sft

  quick = study_settings.quickstart_of(config, job.seed)
  folder = pathlib.Path(quick.output)
  lessons = [experiment.sft_config(quick, folder, number) for number in range(len(quick.lessons))]
  if job.regime == study_settings.PLANNER:
    learned = dataclasses.replace(lessons[-1].learned, part='planner')
    output = pathlib.Path(config.output) / job.name / 'sft'
    lessons = [dataclasses.replace(lessons[-1], output=str(output), learned=learned)]
  else:
    folder.mkdir(parents=True, exist_ok=True)
    experiment.prepare(quick, folder)
    write_tasks(experiment.heldout_tasks(quick), folder / 'heldout.jsonl')
  for lesson in lessons:
    sft.train(lesson)
    if not (pathlib.Path(lesson.output) / 'model').exists():
      return False
  return True


def _check(quick, place: pathlib.Path) -> None:
  """Raises Diverged unless the supervised policy writes calls that parse and answers that are right."""
  [found, *_] = json.loads((place / 'evaluate' / 'summary.json').read_text('utf-8'))
  for name, least in (('format', quick.least_format), ('summary', quick.least_summary)):
    mean = found['scores'].get(name, {}).get('mean') or 0.0
    if mean < least:
      raise Diverged(f'after SFT the held-out {name} is {mean:.3f}, it must reach {least}; choose another seed')


def main(folder: str, name: str, core: str = '') -> int:
  """Does a job, on one core if it is named; the status of the process."""
  if core:
    os.sched_setaffinity(0, {int(core)})
  try:
    return 0 if do(pathlib.Path(folder), name) else STOPPED
  except (Diverged, Refused) as error:
    print(f'{type(error).__name__}: {error}', file=sys.stderr)
    return 1


if __name__ == '__main__':
  sys.exit(main(*sys.argv[1:]))
