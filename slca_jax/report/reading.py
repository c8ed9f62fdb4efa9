"""What a run left behind, read for the report: its settings, its numbers, its rollouts and their log-probs."""

import dataclasses
import json
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from slca_jax.config import build
from slca_jax.data.store import Records, Trajectories
from slca_jax.dialogue import Scores, Trajectory
from slca_jax.errors import DataError
from slca_jax.rewards.protocols import Scoring
from slca_jax.train.logp_dumps import LOGPS
from slca_jax.train.settings import Method, Objective

_STEP = re.compile(r'step_(\d+)(_host\d+)?')
Key = tuple[int, int, int]  # step, group, index


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
  """What of a run's settings its report needs.

  Attributes:
    turns: size of the table of turn rewards.
    model: where the policy's tokenizer may lie, in order of trust.
    template: options of the chat template.
  """

  method: Method = dataclasses.field(default_factory=Method)
  scoring: Scoring = dataclasses.field(default_factory=Scoring)
  objective: Objective = dataclasses.field(default_factory=Objective)
  turns: int = 10
  model: tuple[str, ...] = ()
  template: Mapping[str, Any] = dataclasses.field(default_factory=dict)

  @property
  def protocol(self) -> str:
    """Which rewards the run was trained on."""
    return self.method.rewards


@dataclasses.dataclass(frozen=True, slots=True)
class Sampled:
  """A stored rollout. `logps`: of its sampled tokens in order by 'old', 'ref' and 'new' policy, where kept."""

  step: int
  trajectory: Trajectory
  scores: Scores
  logps: Mapping[str, Sequence[float]] = dataclasses.field(default_factory=dict)

  @property
  def key(self) -> Key:
    """What it is called by: step, group, index."""
    return self.step, self.trajectory.group, self.trajectory.index


def settings_of(run: pathlib.Path) -> Settings:
  """The settings of a run by its `config.json`; the defaults of what does not stand there.

  Raises:
    ConfigError: a part of them is not what this version knows.
  """
  path = run / 'config.json'
  told = json.loads(path.read_text('utf-8')) if path.exists() else {}
  model = told.get('model', {})
  return Settings(
    method=build(Method, told.get('method', {}), path='method'),
    scoring=build(Scoring, told.get('scoring', {}), path='scoring'),
    objective=build(Objective, told.get('objective', {}), path='objective'),
    turns=told.get('rollout', {}).get('limits', {}).get('turns', 10),
    model=tuple(str(place) for place in (run / 'model', model.get('path')) if place and pathlib.Path(place).exists()),
    template=model.get('template', {}),
  )


def metrics_of(run: pathlib.Path) -> list[dict[str, float | None]]:
  """The numbers of every step; a line that a kill cut short is left out."""
  path = run / 'metrics.jsonl'
  out = []
  for line in path.read_text('utf-8').splitlines() if path.exists() else ():
    try:
      out.append(json.loads(line))
    except ValueError:
      continue
  return out


def dumps_of(run: pathlib.Path) -> dict[int, list[pathlib.Path]]:
  """The folders of rollouts by step, in order; several hosts leave one each. Of a step that is being written, or was
  when its run was killed, those that hold a whole rollout.

  Raises:
    DataError: there are none.
  """
  found: dict[int, list[pathlib.Path]] = {}
  folder = run / 'rollouts'
  for path in sorted(folder.iterdir()) if folder.is_dir() else ():
    if (name := _STEP.fullmatch(path.name)) and _holds_any(path / 'rollouts.jsonl'):
      found.setdefault(int(name[1]), []).append(path)
  if not found:
    raise DataError(f'{folder} holds no rollouts; name the output of a run that was trained with dump_every > 0')
  return dict(sorted(found.items()))


def sampled_in(run: pathlib.Path, *, most: int = 1000, steps: Sequence[int] = ()) -> list[Sampled]:
  """Rollouts of whole groups in order of step, group and index.

  Args:
    most: about how many; steps are left out evenly to get there, the first and the last one stay.
    steps: which steps; all are candidates if empty.

  Raises:
    DataError: nothing was dumped, not at these steps, or a file is damaged.
  """
  dumps = dumps_of(run)
  if absent := [step for step in steps if step not in dumps]:
    raise DataError(f'no rollouts of the steps {absent}; there are those of {_few(list(dumps))}')
  chosen = _spread(sorted(set(steps)) or list(dumps), dumps, most)
  out: list[Sampled] = []
  for step in chosen:
    logps = {key: known for path in dumps[step] for key, known in _logps(path).items()}  # of any host's rollouts
    rollouts = [one for path in dumps[step] for one in _stored(step, path, logps)]
    rollouts.sort(key=lambda one: one.key)
    room = most - len(out)
    border = {one.trajectory.group for one in rollouts[room - 1 : room]} if len(rollouts) > room > 0 else set()
    last = max(border, default=None)
    out += [one for one in rollouts if last is None or one.trajectory.group <= last] if room > 0 else []
  return out


def _holds_any(file: pathlib.Path) -> bool:
  if not file.exists():
    return False
  with open(file, 'rb') as lines:
    return lines.readline().endswith(b'\n')


def _spread(steps: list[int], dumps: Mapping[int, list[pathlib.Path]], most: int) -> list[int]:
  """The most evenly spaced steps that hold about `most` rollouts, judged by the sizes of their files."""
  files = {step: [path / 'rollouts.jsonl' for path in dumps[step]] for step in steps}
  size = {step: sum(file.stat().st_size for file in files[step]) for step in steps}
  lines = sum(file.read_bytes().count(b'\n') for file in files[steps[-1]])
  room = 1.1 * most * size[steps[-1]] / max(1, lines)
  for count in range(len(steps), 1, -1):
    chosen = [steps[round(place * (len(steps) - 1) / (count - 1))] for place in range(count)]
    if sum(size[step] for step in chosen) <= room:
      return chosen
  return steps[-1:]


def _stored(step: int, path: pathlib.Path, logps: Mapping[tuple[int, int], Mapping[str, list[float]]]) -> list[Sampled]:
  store = Trajectories(path, write=False)
  try:
    pairs = [store[index] for index in range(len(store))]
  except (KeyError, TypeError, ValueError, IndexError) as error:
    raise DataError(f'{path} cannot be read: {type(error).__name__}: {error}') from error
  finally:
    store.close()
  return [Sampled(step, t, scores, logps.get((t.group, t.index), {})) for t, scores in pairs]


def _logps(path: pathlib.Path) -> dict[tuple[int, int], dict[str, list[float]]]:
  if not (path / LOGPS).exists():
    return {}
  records = Records(path / LOGPS, write=False)
  try:
    return {(record.pop('group'), record.pop('index')): record for record in records}
  finally:
    records.close()


def _few(steps: list[int]) -> str:
  return ', '.join(map(str, steps if len(steps) <= 8 else [*steps[:4], '…', *steps[-3:]]))
