"""Long tasks in synthesised worlds: branches of a library, a repair shop and a hotel, each with records of its own.

Raw schemas of four servers go the way of any others: the deterministic synthesiser makes a world of each, its graph is
sampled, traces are executed and replayed. A branch has keys of its own, given as examples in its schemas, so that a key
must be copied out of what an earlier call answered, and a branch that was never trained on cannot be known by heart.
"""

import dataclasses
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from slca_jax.dialogue import Dialogue, Message, Task, ToolCall, Trajectory
from slca_jax.errors import DataError
from slca_jax.rewards.judge import states
from slca_jax.rewards.matching import all_covered
from slca_jax.toolverse.blueprint import Blueprint
from slca_jax.toolverse.deterministic.synthesise import DeterministicSettings, synthesise
from slca_jax.toolverse.inversion import Open
from slca_jax.toolverse.making import TaskSettings, make_tasks
from slca_jax.toolverse.schemas import ToolSet, read_document
from slca_jax.toolverse.testing import retest

RECORDS = 3
_KEYS = range(10, 100, 2)  # of records that are there; what is made gets the number after the greatest, an odd one


@dataclasses.dataclass(frozen=True, slots=True)
class Habits:
  """How often demonstrations go wrong, by what they do instead; the rest takes the gold steps.

  Attributes:
    wasteful: the first call is made twice.
    forgetful: an update is left out, where the gold has one.
    hasty: the last call is left out, and what it takes is told as the answer.
  """

  wasteful: float = 0.0
  forgetful: float = 0.0
  hasty: float = 0.0


FLAWLESS: Mapping[str, Habits] = {}
# By server: each has a fault that most of its demonstrations show; the clinic has none.
FLAWED: Mapping[str, Habits] = {
  'library': Habits(wasteful=0.05, forgetful=0.05, hasty=0.65),
  'workshop': Habits(wasteful=0.1, forgetful=0.7, hasty=0.1),
  'hotel': Habits(wasteful=0.6, forgetful=0.1, hasty=0.1),
  'clinic': Habits(wasteful=0.1, forgetful=0.1, hasty=0.1),
}


def schemas(seed: int | str) -> list[dict[str, Any]]:
  """What the servers of a branch answer to an MCP `tools/list`."""
  chance = random.Random(f'branch/{seed}')

  def keys(tables: int) -> Iterator[dict[str, Any]]:
    drawn = chance.sample(_KEYS, tables * (RECORDS + 2))
    return ({'type': 'integer', 'examples': drawn[table::tables]} for table in range(tables))

  reader, desk, loan, notice, reply = keys(5)
  bike, repair, bill, voucher = keys(4)
  guest, booking, meal, receipt, claim = keys(5)
  patient, doctor, visit, test, parcel = keys(5)
  return [
    _server(
      'library',
      _tool('search_readers', query=_TEXT),
      _tool('get_reader', reader_id=reader),
      _tool('get_desk', desk_id=desk),
      _tool('create_loan', desk_id=desk, weeks=_one_of(2, 4, 6)),
      _tool('update_loan', loan_id=loan, weeks=_one_of(3, 5, 7)),
      _tool('create_notice', loan_id=loan, kind=_one_of('letter', 'mail')),
      _tool('create_reply', notice_id=notice, tone=_one_of('kind', 'firm')),
      _tool('get_reply', reply_id=reply),
    ),
    _server(
      'workshop',
      _tool('search_bikes', query=_TEXT),
      _tool('create_repair', bike_id=bike, part=_one_of('chain', 'brake', 'wheel')),
      _tool('update_repair', repair_id=repair, hours=_one_of(1, 3, 5)),
      _tool('create_bill', repair_id=repair, sum=_one_of(40, 60, 80)),
      _tool('create_voucher', bill_id=bill, kind=_one_of('cash', 'card')),
      _tool('get_voucher', voucher_id=voucher),
    ),
    _server(
      'hotel',
      _tool('search_guests', query=_TEXT),
      _tool('create_booking', guest_id=guest, nights=_one_of(1, 2, 3)),
      _tool('update_booking', booking_id=booking, nights=_one_of(4, 5, 6)),
      _tool('create_meal', booking_id=booking, dish=_one_of('soup', 'fish')),
      _tool('create_receipt', meal_id=meal, kind=_one_of('paper', 'mail')),
      _tool('create_claim', receipt_id=receipt, cause=_one_of('cold', 'late')),
      _tool('get_claim', claim_id=claim),
    ),
    _server(
      'clinic',
      _tool('search_patients', query=_TEXT),
      _tool('get_patient', patient_id=patient),
      _tool('get_doctor', doctor_id=doctor),
      _tool('create_visit', doctor_id=doctor, hour=_one_of(8, 9, 10)),
      _tool('update_visit', visit_id=visit, hour=_one_of(11, 12, 13)),
      _tool('create_test', visit_id=visit, sample=_one_of('blood', 'skin')),
      _tool('create_parcel', test_id=test, size=_one_of('small', 'large')),
      _tool('get_parcel', parcel_id=parcel),
    ),
  ]


_TEXT = {'type': 'string'}


def _one_of(*values: Any) -> dict[str, Any]:
  return {'type': 'integer' if isinstance(values[0], int) else 'string', 'enum': list(values)}


def _tool(name: str, /, **parameters: Any) -> dict[str, Any]:
  schema = {'type': 'object', 'properties': parameters, 'required': list(parameters)}
  return {'name': name, 'description': f'{name.replace("_", " ").capitalize()}.', 'inputSchema': schema}


def _server(name: str, *tools: dict[str, Any]) -> dict[str, Any]:
  return {'name': name, 'tools': list(tools)}


def worlds(seed: int | str) -> list[Blueprint]:
  """The tested worlds of a branch, one per server.

  Raises:
    DataError: a world is not built, or its tests do not pass.
  """
  made = []
  for server in read_document(schemas(seed)):
    tools = ToolSet(f'{server.name}-{seed}', server.tools)
    outcome = synthesise(tools, DeterministicSettings(records=RECORDS))
    report = retest(outcome.blueprint) if outcome.blueprint else None
    if outcome.blueprint is None or outcome.left_out or report is None or not report.ok:
      raise DataError(f'{tools.name}: {outcome.reason or dict(outcome.left_out) or "its tests do not pass"}')
    made.append(outcome.blueprint)
  return made


def tasks(blueprint: Blueprint, settings: TaskSettings) -> list[Task]:
  """The tasks of a world, with their answers."""
  found = make_tasks(blueprint, settings).tasks
  return [dataclasses.replace(task, answer=f'It is {task.facts[0]}.' if task.facts else 'Done.') for task in found]


def told_last(task: Task) -> bool:
  """Whether the last call alone tells what the question asks for, so that a judge sees if it was left out."""
  known = [*(content for step in task.meta['outputs'][:-1] for content in step), task.question]
  return bool(task.facts) and not any(states(text, task.facts[0]) for text in known)


def apart(tasks: Iterable[Task], others: Iterable[Task]) -> list[Task]:
  """The tasks whose questions none of the others asks."""
  asked = {task.question for task in others}
  return [task for task in tasks if task.question not in asked]


def demonstrate(task: Task, habits: Mapping[str, Habits] = FLAWLESS) -> Dialogue:
  """The dialogue of a task, right or with the fault that its id draws from the habits of its server.

  What the calls answer is what they answered in the golden trace; no fault changes the answer of a later call here.
  """
  steps, said, answer = list(task.gold), list(task.meta['outputs']), task.answer or ''
  fault = _fault(task, habits)
  if fault == 'wasteful':
    steps, said = [steps[0], *steps], [said[0], *said]
  elif fault == 'forgetful':
    left_out = next(place for place, step in enumerate(steps) if _updates(step))
    del steps[left_out], said[left_out]
  elif fault == 'hasty':
    answer = f'It is {_taken(steps[-1][0])}.'
    del steps[-1], said[-1]
  turns: list[Message] = []
  for step, contents in zip(steps, said, strict=True):
    turns += [Message('assistant', '', step), *(Message('tool', content) for content in contents)]
  return Dialogue(f'{task.id}/{fault}', task.tools, (*task.messages, *turns, Message('assistant', answer)))


def rekeyed(dialogue: Dialogue, seed: int | str) -> Dialogue:
  """The dialogue as it would go in another branch, where all keys are others: so keys cannot be learned by heart."""
  chance = random.Random(f'{seed}/{dialogue.id}')
  fresh = dict(zip(range(10, 100), chance.sample(range(10, 100), 90), strict=True))
  known = {key for message in dialogue.messages for key in _keys_in(message)}

  def text(content: str) -> str:
    return _KEY.sub(lambda found: f'{found[1]}{fresh[int(found[2])] if int(found[2]) in known else found[2]}', content)

  def call(made: ToolCall) -> ToolCall:
    return ToolCall(made.name, {n: fresh[value] if n.endswith('_id') else value for n, value in made.arguments.items()})

  messages = tuple(
    dataclasses.replace(m, content=m.content if m.role == 'user' else text(m.content), calls=tuple(map(call, m.calls)))
    for m in dialogue.messages
  )
  return dataclasses.replace(dialogue, id=f'{dialogue.id}/{seed}', messages=messages)


_KEY = re.compile(r'(_id": |The \w+ |It is )(\d\d)\b')  # a field, a thing that was made, an answer


def _keys_in(message: Message) -> Iterator[int]:
  yield from (int(key) for _, key in _KEY.findall(message.content) if message.role != 'user')
  yield from (value for call in message.calls for name, value in call.arguments.items() if name.endswith('_id'))


def _fault(task: Task, habits: Mapping[str, Habits]) -> str:
  """'wasteful', 'forgetful', 'hasty' or ''; a task has one demonstration."""
  chances = dataclasses.asdict(habits.get((task.blueprint or '').split('-')[0], Habits()))
  drawn = random.Random(f'fault/{task.id}').random()
  for fault, chance in chances.items():
    if drawn < chance:
      possible = fault != 'forgetful' or any(map(_updates, task.gold[:-1]))
      return fault if possible else ''
    drawn -= chance
  return ''


def _updates(step: tuple[ToolCall, ...]) -> bool:
  return any(call.name.startswith('update') for call in step)


def _taken(call: ToolCall) -> Any:
  """The key that a call takes."""
  return next(value for name, value in call.arguments.items() if name.endswith('_id'))


def reached(trajectory: Trajectory, open_world: Open) -> bool:
  """Whether a rollout made every golden call, in whichever turn, and left the database as the golden trace does."""
  task = trajectory.task
  made = [call for turn in trajectory.turns for call, _ in zip(turn.calls, turn.observations, strict=False)]
  if not all_covered(made, [call for step in task.gold for call in step]):
    return False
  with open_world() as world:
    for call in made:
      world.call(call)
    return world.changes() == task.meta['changes']
