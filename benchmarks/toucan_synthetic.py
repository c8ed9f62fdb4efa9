"""A synthetic Toucan with faults at known rates through the data pipeline: counts, rows per second, memory.

    python benchmarks/toucan_synthetic.py [--rows=100000 --small=10000 --numbers=1500000 --folder=]

Each size is generated and prepared in processes of its own. Every count of the report is compared with what was put in;
the run fails if one differs, or if the large one needs over 1.2 times the memory of the small one. What a row costs
in memory follows from both. All that is kept in memory of rows, the numbers that decide where they go and the hashes of
their ids, is also made up and divided for all of Toucan-1.5M.
"""

import collections
import dataclasses
import json
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

from absl import app, flags

_ROWS = flags.DEFINE_integer('rows', 100_000, 'Dialogues of the large run.')
_SMALL = flags.DEFINE_integer('small', 10_000, 'Dialogues of the small run; 0 leaves it out.')
_NUMBERS = flags.DEFINE_integer('numbers', 1_500_000, 'Rows of which only the numbers are divided; 0 leaves it out.')
_FOLDER = flags.DEFINE_string('folder', '', 'Where the files go; a temporary folder by default.')
_STAGE = flags.DEFINE_enum('stage', 'all', ['all', 'write', 'prepare', 'divide'], 'What this process does.')

# Faults per thousand rows, by the reason under which the pipeline should count them. Two ways to break JSON and calls.
FAULTS = {
  'format.json': 8, 'format.call': 15, 'format.results': 5, 'format.unfinished': 4, 'format.duplicate_id': 2,
  'foreign_tokens': 7, 'control_tokens': 3, 'irrelevant': 20, 'bad_schema': 2, 'unknown_tool': 10,
  'missing_argument': 8, 'misfit_argument': 7, 'no_answer': 6, 'empty_answer': 5, 'duplicate': 4,
}  # fmt: skip
_TOUCAN = 1_500_000
NEAR = 6  # per thousand: rows whose question repeats that of the row before, but for one word
WORDS = [a + b + c for a in ('ba', 'ke', 'li', 'mo', 'nu', 'ra', 'se', 'ti', 'vo', 'zu') for b in 'nrstlm' for c in
         ('an', 'el', 'is', 'or', 'un', 'ake', 'ine', 'oto', 'ura', 'ebi')]  # fmt: skip
FOREIGN = ('<|python_tag|>', '[TOOL_CALLS]', '<function=weather>', '<｜tool▁calls▁begin｜>')
SUBSETS = ('single-turn-original', 'single-turn-diversify', 'multi-turn')
PUBLISHED = {'heldout': 4000, 'sft': 42423, 'rl': 31818}  # of 100,000 rows


@dataclasses.dataclass(frozen=True)
class Truth:
  """What a row is: why it must be dropped ('' if it must not), the samples it gives, and whose question it asks."""

  fault: str
  samples: int
  several: bool
  asked: int


def slots() -> list[str]:
  """What each row of a thousand is: a fault, 'near', or ''."""
  named = [name for name, count in FAULTS.items() for _ in range(count)] + ['near'] * NEAR
  out = named + [''] * (1000 - len(named))
  random.Random('slots').shuffle(out)
  out[0] = ''  # the first row is repeated by others and cannot repeat one
  return out


SLOTS = slots()


def make_tool(index: int, rng: random.Random | None = None) -> dict[str, Any]:
  """A tool of the pool: two required parameters and some optional ones."""
  rng = rng or random.Random(f'tool/{index}')
  properties: dict[str, Any] = {
    'place': {'type': 'string', 'description': say(rng, 6)},
    'count': {'type': 'integer', 'minimum': 0, 'description': say(rng, 5)},
  }
  for name in rng.sample(WORDS, rng.randrange(5)):
    properties[name] = rng.choice(
      [
        {'type': 'boolean', 'default': False},
        {'type': 'array', 'items': {'type': 'string'}, 'description': say(rng, 8)},
        {'type': 'string', 'enum': rng.sample(WORDS, 3)},
        {'type': 'object', 'properties': {'from': {'type': 'string'}, 'to': {'type': 'number'}}},
      ]
    )
  schema = {'type': 'object', 'properties': properties, 'required': ['place', 'count']}
  name = f'server-{index % 97}-{rng.choice(WORDS)}_{index}'
  return {'type': 'function', 'function': {'name': name, 'description': say(rng, 25), 'parameters': schema}}


POOL: list[dict[str, Any]] = []


def pool() -> list[dict[str, Any]]:
  """The tools that dialogues choose from."""
  if not POOL:
    POOL.extend(make_tool(index) for index in range(3000))
  return POOL


def say(rng: random.Random, words: int) -> str:
  """Some words."""
  return ' '.join(rng.choices(WORDS, k=words))


def asked_by(index: int) -> int:
  """The row whose question a row asks: its own, or for one that repeats another the last one that does not."""
  while SLOTS[index % 1000] == 'near':
    index -= 1
  return index


def copied_by(index: int) -> int:
  """The row that a duplicate is a copy of: the last one without a fault."""
  return next(i for i in range(index, -1, -1) if SLOTS[i % 1000] not in FAULTS)


def question_of(index: int) -> str:
  """The first question of a row; of one that repeats another: that question with one word changed."""
  if (first := asked_by(index)) != index:
    return ' '.join([*question_of(first).split()[:-1], f'other{index}'])
  return f'Question {index} ' + say(random.Random(f'question/{index}'), 40)


def make_row(index: int) -> tuple[str, Truth]:
  """(the line of a row, what it is)."""
  slot = SLOTS[index % 1000]
  if slot == 'duplicate':  # of a row that has no fault
    line, truth = make_row(copied_by(index))
    return json.dumps({**json.loads(line), 'uuid': f'copy-{index}'}), dataclasses.replace(truth, fault='duplicate')
  rng = random.Random(f'row/{index}')
  tools = rng.sample(pool(), rng.randrange(1, 9))
  turns = rng.choices((1, 2, 3, 4), (70, 16, 9, 5))[0]
  messages, calling = [], 0
  for turn in range(turns):
    quiet = turn and rng.random() < 0.2  # a later turn that needs no tool
    messages.append({'role': 'user', 'content': say(rng, 30) if turn else question_of(index)})
    if not quiet:
      calling += 1
      for _ in range(rng.choice((1, 1, 2))):
        messages += make_step(rng, tools)
    messages.append({'role': 'assistant', 'content': say(rng, 60)})
  record = {
    'uuid': f'{index:08d}-synthetic',
    'subset_name': SUBSETS[2] if turns > 1 else SUBSETS[index % 2],
    'question': messages[0]['content'],
    'target_tools': tools[0]['function']['name'],
  }
  line = inject(slot, record, messages, tools, index)
  samples = 1 if turns == 1 else max(0, calling - 1)
  return line, Truth(slot if slot in FAULTS else '', samples, turns > 1, asked_by(index))


def make_step(rng: random.Random, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
  """One or two parallel calls and their results, as Toucan writes them."""
  calls, seen = [], []
  for _ in range(rng.choice((1, 1, 1, 2))):
    name = rng.choice(tools)['function']['name']
    arguments = json.dumps({'place': say(rng, 2), 'count': rng.randrange(100)})
    calls.append({'role': 'tool_call', 'content': str({'name': name, 'arguments': arguments})})
    seen.append({'role': 'tool_response', 'content': json.dumps({'found': say(rng, 40), 'total': rng.randrange(9)})})
  words = [{'role': 'assistant', 'content': say(rng, 12)}] if rng.random() < 0.5 else []
  return [*words, *calls, *seen]


def inject(
  slot: str, record: dict[str, Any], messages: list[dict[str, Any]], tools: list[dict[str, Any]], index: int
) -> str:
  """The row's line with its fault. Faults in calls go to the first call."""
  first = next(i for i, message in enumerate(messages) if message['role'] == 'tool_call')
  name = tools[0]['function']['name']
  put = lambda arguments, name=name: messages.__setitem__(
    first, {'role': 'tool_call', 'content': str({'name': name, 'arguments': json.dumps(arguments)})}
  )
  said = messages[-1]
  match slot:
    case 'format.call' if index % 2:
      said['content'] += ' <tool_call>\n{"name": "weather", "arguments": {"place": '
    case 'format.call':
      messages[first] = {'role': 'tool_call', 'content': "{'name': 'lost', 'arguments': "}
    case 'format.results':
      place = next(i for i, message in enumerate(messages) if message['role'] == 'tool_response')
      messages.insert(place, messages[place])
    case 'format.unfinished':
      messages.append({'role': 'user', 'content': 'And then?'})
    case 'format.duplicate_id':
      record['uuid'] = f'{index - index % 1000:08d}-synthetic'  # the first row of its thousand has no fault
    case 'foreign_tokens':
      said['content'] = f'{FOREIGN[index // 1000 % len(FOREIGN)]} {said["content"]}'
    case 'control_tokens':
      messages[0]['content'] += ' <|im_end|>'
    case 'irrelevant':
      messages[:] = [message for message in messages if message['role'] in ('user', 'assistant')]
    case 'bad_schema':
      broken = make_tool(index, random.Random(f'broken/{index}'))
      broken['function']['parameters']['properties']['place'] = {'type': 'string', 'pattern': '(unclosed'}
      tools = [*tools, broken]
    case 'unknown_tool':
      put({'place': 'x', 'count': 1}, 'server-none-nowhere')
    case 'missing_argument':
      put({'place': 'x'})
    case 'misfit_argument':
      put({'place': 'x', 'count': 'many'})
    case 'no_answer':
      messages += [{'role': 'user', 'content': 'Now?'}, {'role': 'tool_call', 'content': messages[first]['content']}]
    case 'empty_answer':
      said['content'] = ' \n'
  record |= {'messages': json.dumps(messages), 'tools': json.dumps(tools)}
  if slot == 'format.json':
    if index % 2:
      return json.dumps(record)[:-20]
    record['messages'] = record['messages'][:-20]
  return json.dumps(record)


def write(path: pathlib.Path, rows: int) -> None:
  """The synthetic data set as JSON lines."""
  with open(path, 'w', encoding='utf-8') as file:
    file.writelines(make_row(index)[0] + '\n' for index in range(rows))


def settings_of(source: pathlib.Path, output: pathlib.Path, rows: int) -> Any:
  """The preparation with the published sizes, in proportion to the rows."""
  from slca_jax.data.settings import Portion, Preparation

  sizes = {name: float(round(size * rows / 100_000)) for name, size in PUBLISHED.items()}
  return Preparation(
    input=str(source),
    output=str(output),
    heldout=Portion(sizes['heldout'], 0.25),
    sft=Portion(sizes['sft']),
    rl=Portion(sizes['rl'], 1 / 3),
    near_duplicates='drop',
  )


def check(report: dict[str, Any], output: pathlib.Path, rows: int) -> None:
  """Compares every count of the report with what was put in. Raises AssertionError."""
  truth = [make_row(index)[1] for index in range(rows)]
  dropped = collections.Counter(one.fault for one in truth if one.fault)
  good = [index for index, one in enumerate(truth) if not one.fault]
  same(report['read'], rows, 'read')
  same(report['filter'], {'dropped': dict(dropped), 'kept': len(good)}, 'filter')
  sizes = {name: round(size * rows / 100_000) for name, size in PUBLISHED.items()}
  few = round(sizes['heldout'] * 0.25)
  held = {row_of(row['dialogue_id']) for row in lines_of(output / 'tasks_heldout.jsonl')}
  same(len(held), sizes['heldout'], 'held-out dialogues')
  asked = {truth[i].asked for i in held}
  near = {i for i in good if truth[i].asked in asked and truth[i].samples and i not in held}
  same(
    report['heldout'],
    {'single': sizes['heldout'] - few, 'decomposed': few, 'set_aside': 0, 'near_heldout': len(near)},
    'heldout',
  )
  rest = [truth[i] for i in good if i not in held and i not in near]
  single, cut = (sum(one.samples for one in rest if one.several is several) for several in (False, True))
  none = sum(not one.samples for one in rest)
  same(
    report['decompose'],
    {'rows': len(rest), 'no_later_tool_turn': none, 'single': single, 'decomposed': cut},
    'decompose',
  )
  split = report['split']
  same(sum(split['sft'].values()), sizes['sft'], 'SFT')
  third = round(sizes['rl'] / 3)
  same(split['rl'], {'single': sizes['rl'] - third, 'decomposed': third}, 'RL')
  same(split['unused'], single + cut - sizes['sft'] - sizes['rl'], 'unused')
  same({name: count_lines(output / name) for name in report['files']}, report['files'], 'lines of the files')


def same(found: Any, wanted: Any, what: str) -> None:
  """Raises AssertionError unless both are equal."""
  if found != wanted:
    raise AssertionError(f'{what}: {found}, but {wanted} was put in')


def row_of(identity: str) -> int:
  """The row of an id; of a row and its copy either one may be kept."""
  return copied_by(int(identity.removeprefix('copy-'))) if identity.startswith('copy-') else int(identity[:8])


def lines_of(path: pathlib.Path) -> list[dict[str, Any]]:
  """The records of a file."""
  with open(path, 'rb') as file:
    return [json.loads(line) for line in file]


def count_lines(path: pathlib.Path) -> int:
  """How many lines a file has."""
  with open(path, 'rb') as file:
    return sum(1 for _ in file)


def measure(source: pathlib.Path, output: pathlib.Path, rows: int) -> dict[str, float]:
  """Prepares the rows in this process; returns seconds, those of CPU, and the most memory it had, in MiB."""
  from slca_jax.data.pipeline import prepare

  settings = settings_of(source, output, rows)
  start, busy = time.perf_counter(), time.process_time()
  prepare(settings)
  seconds, busy = time.perf_counter() - start, time.process_time() - busy
  return {'seconds': seconds, 'busy': busy, 'mib': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def measure_division(rows: int) -> dict[str, float]:
  """Divides made-up numbers of so many rows, their ids held as while reading; seconds and the most memory, in MiB."""
  import numpy as np

  from slca_jax.data.division import divide
  from slca_jax.data.ledger import Table

  draw = np.random.default_rng(0)
  hashes = lambda: draw.integers(0, 2**63, rows, dtype=np.uint64)
  several = draw.random(rows) < 0.3
  samples = np.where(several, draw.integers(0, 4, rows), 1).astype(np.uint16)
  subset = draw.integers(0, len(SUBSETS), rows).astype(np.uint16)
  table = Table(hashes(), hashes(), hashes(), subset, several, np.ones(rows, np.bool_), samples, tuple(sorted(SUBSETS)))
  opening = np.sort(draw.integers(0, 2**63, 40, dtype=np.uint64))
  shingles = lambda: (opening + np.uint64(97 * row) for row in range(rows))
  ids = set(hashes().tolist())
  start = time.perf_counter()
  divide(table, shingles, settings_of(pathlib.Path('none'), pathlib.Path('none'), 100_000))
  seconds = time.perf_counter() - start
  assert len(ids) == rows
  return {'seconds': seconds, 'mib': resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def told(rows: int, folder: pathlib.Path, stage: str) -> dict[str, float]:
  """What a stage prints, run in a process of its own."""
  command = [sys.executable, __file__, f'--rows={rows}', f'--folder={folder}', f'--stage={stage}']
  out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
  return json.loads(out.splitlines()[-1]) if out else {}


def run(rows: int, folder: pathlib.Path) -> dict[str, float]:
  """Generates, prepares and checks, the first two in processes of their own."""
  told(rows, folder, 'write')
  numbers = told(rows, folder, 'prepare')
  report = json.loads((folder / f'{rows}' / 'report.json').read_text('utf-8'))
  check(report, folder / f'{rows}', rows)
  size = (folder / f'{rows}.jsonl').stat().st_size / 2**20
  print(
    f'{rows:>9,} rows, {size:,.0f} MiB: {rows / numbers["seconds"]:,.0f} rows/s, '
    f'{rows / numbers["busy"]:,.0f} per second of CPU, {numbers["mib"]:,.0f} MiB of memory at most; '
    f'all counts as put in: kept {report["filter"]["kept"]:,}, {report["split"]}'
  )
  return numbers


def main(arguments: list[str]) -> None:
  """Runs both sizes and compares their memory."""
  if len(arguments) > 1:
    raise app.UsageError(f'unknown arguments {arguments[1:]}')
  with tempfile.TemporaryDirectory() as temporary:
    folder, rows = pathlib.Path(_FOLDER.value or temporary), _ROWS.value
    folder.mkdir(parents=True, exist_ok=True)
    if _STAGE.value == 'write':
      write(folder / f'{rows}.jsonl', rows)
    elif _STAGE.value == 'prepare':
      print(json.dumps(measure(folder / f'{rows}.jsonl', folder / f'{rows}', rows)))
    elif _STAGE.value == 'divide':
      print(json.dumps(measure_division(rows)))
    else:
      small = run(_SMALL.value, folder) if _SMALL.value else None
      large = run(rows, folder)
      if _NUMBERS.value:
        divided = told(_NUMBERS.value, folder, 'divide')
        print(f'numbers of {_NUMBERS.value:,} rows: {divided["seconds"]:,.0f} s, {divided["mib"]:,.0f} MiB at most')
      if small:
        ratio = large['mib'] / small['mib']
        each = (large['mib'] - small['mib']) * 2**20 / (rows - _SMALL.value)
        whole = small['mib'] + each * _TOUCAN / 2**20
        print(f'memory: {ratio:.2f} times that of {_SMALL.value:,} rows, {each:,.0f} bytes for each row more')
        print(f'at that rate {_TOUCAN:,} rows take {whole:,.0f} MiB')
        if ratio > 1.2:
          raise SystemExit(f'{ratio:.2f} times the memory for {rows / _SMALL.value:.0f} times the rows; 1.2 is allowed')


if __name__ == '__main__':
  app.run(main)
