"""Reading a compiled program's text: cycles and traffic with every loop as often as it turns, and its largest values.

`cost_analysis()` counts a loop's body once, and the optimised text holds no trip counts: they are read off the loop's
condition, and where that compares with a value, from the caller's `trips`, by the Python file that made the loop.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Iterator, Mapping

# Turns of a loop by the Python file that made it; of several on the stack, the innermost counts.
Trips = Mapping[str, float]
Totals = collections.defaultdict[str, float]

_SIZES = {'pred': 1, 's8': 1, 'u8': 1, 'bf16': 2, 'f16': 2, 's16': 2, 'u16': 2, 's32': 4, 'u32': 4, 'f32': 4, 's64': 8}
_SHAPE = re.compile(r'\b(pred|bf16|f16|f32|[su](?:8|16|32|64))\[([\d,]*)\]')
_INSTRUCTION = re.compile(r'^  (?:ROOT )?%([\w.\-]+) = (.*?) ([a-z][\w\-]*)\((.*)$', re.M)
_COLLECTIVE = re.compile(
  r'(all-gather|all-reduce|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute)(?:-start)?$'
)
_NO_VALUE = ('parameter', 'get-tuple-element', 'tuple', 'bitcast', 'while', 'conditional', 'call', 'opt-barrier')


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
  """Totals of one device over a whole call.

  Attributes:
    cycles: the compiler's own estimate; Pallas kernels carry none.
    sent: bytes by collective. Rough: collectives may hide in fusions, and how a ring sends is not looked at.
    kernels: calls of Pallas kernels.
    unknown_loops: loops of unknown trip count, counted as one turn.
  """

  cycles: float
  sent: dict[str, float]
  kernels: float
  unknown_loops: int


def work(text: str, trips: Trips) -> Work:
  """What the program of this text does in one call, loops as often as they turn."""
  program = _Program(text)
  totals: Totals = collections.defaultdict(float)
  program.visit(program.entry, 1.0, trips, totals)
  sent = {name.removeprefix('sent '): count for name, count in totals.items() if name.startswith('sent ')}
  return Work(totals['cycles'], sent, totals['kernels'], int(totals['unknown']))


def largest(text: str, count: int = 8) -> list[tuple[int, str, str]]:
  """(bytes, shape, operation) of the largest values that the program writes, one per operation; some share memory."""
  program = _Program(text)
  found: dict[tuple[str, str], int] = {}
  fused = {called for body in program.bodies.values() for called in re.findall(r' fusion\(.*calls=%([\w.\-]+)', body)}
  for name, body in program.bodies.items():
    if name in fused:
      continue  # what is inside a fusion is never in memory
    for _, kind, shape, rest in _instructions(body):
      if kind not in _NO_VALUE:
        operation = re.search(r'op_name="([^"]*)"', rest)
        for part in _SHAPE.finditer(shape):
          found.setdefault((part[0], operation[1] if operation else kind), _bytes(part))
  ordered = sorted(((size, shape, name) for (shape, name), size in found.items()), reverse=True)
  return ordered[:count]


def exceeded(error: str) -> tuple[float, float] | None:
  """(GiB needed, GiB there are) of a compiler's out-of-memory message; None if it is another message."""
  found = re.search(r'temporaries \(([\d.]+[KMG])\) exceeds available HBM \(([\d.]+[KMG])\)', error)
  found = found or re.search(r'Used ([\d.]+[KMG]) of ([\d.]+[KMG]) hbm', error)
  return (_gib(found[1]), _gib(found[2])) if found else None


def _gib(size: str) -> float:
  return float(size[:-1]) / {'G': 1, 'M': 2**10, 'K': 2**20}[size[-1]]


class _Program:
  """The computations of a module by name, and which Python files its instructions come from."""

  def __init__(self, text: str):
    # A kernel's metadata spans lines, so a computation does not end at the first lone brace.
    blocks = re.split(r'^(?=(?:ENTRY )?%[\w.\-]+ \()', text, flags=re.M)
    self.bodies = {match[1]: block for block in blocks if (match := re.match(r'(?:ENTRY )?%([\w.\-]+) \(', block))}
    entry = re.search(r'^ENTRY %([\w.\-]+)', text, re.M)
    if entry is None:
      raise ValueError('the text holds no ENTRY computation; give the text of a compiled program')
    self.entry = entry[1]
    self.frames = _Frames(blocks[0])

  def visit(self, name: str, times: float, trips: Trips, totals: Totals) -> None:
    """Adds what the computation does in `times` calls."""
    channels: set[str] = set()
    for _, kind, shape, rest in _instructions(self.bodies[name]):
      totals['cycles'] += times * sum(map(int, re.findall(r'"estimated_cycles":"(\d+)"', rest)))
      totals['kernels'] += times * ('tpu_custom_call' in rest)
      self._count_sent(kind, shape, rest, times, channels, totals)
      if kind == 'while':
        condition, body = re.findall(r'(?:condition|body)=%([\w.\-]+)', rest)[:2]
        turns = self._turns(condition, rest, trips, totals)
        self.visit(body, times * turns, trips, totals)
      elif kind in ('call', 'conditional', 'async-start'):
        for called in _called(rest):
          self.visit(called, times, trips, totals)
      elif kind == 'fusion':
        for called in _called(rest):
          for _, inner, inner_shape, inner_rest in _instructions(self.bodies[called]):
            scattered = called.startswith('all-reduce-scatter')
            self._count_sent(inner, inner_shape, inner_rest, times, channels, totals, scattered=scattered)

  def _turns(self, condition: str, rest: str, trips: Trips, totals: Totals) -> float:
    known = re.search(r'known_trip_count"?:\s*\{"?n"?:"?(\d+)', rest)  # CPU writes it down, TPU does not
    constants = re.findall(r'constant\((\d+)\)', self.bodies[condition])
    if known:
      return float(known[1])
    if len(constants) == 1:
      return float(constants[0])
    frame = re.search(r'stack_frame_id=(\d+)', rest)
    files = self.frames.chain(int(frame[1])) if frame else ()
    turns = next((trips[file] for file in files if file in trips), None)
    totals['unknown'] += turns is None
    return 1.0 if turns is None else turns

  def _count_sent(self, kind, shape, rest, times, channels, totals, *, scattered=False) -> None:
    """One collective is spread over several fusions where it is overlapped with work: its channel counts once.

    A TPU scatters what it reduces in a fusion of an all-reduce and a slice, which is `scattered`.
    """
    found = _COLLECTIVE.match(kind)
    channel = re.search(r'channel_id=(\d+)', rest)
    if not found or (channel and channel[1] in channels):
      return
    channels.update(channel.groups() if channel else ())
    sizes = [_bytes(part) for part in _SHAPE.finditer(shape)]
    size = max(sizes, default=0) if kind.endswith('-start') else sum(sizes)  # a start lists its input too
    factor = {'all-reduce': 2, 'reduce-scatter': _group(rest)}.get(found[1], 1)
    if scattered and found[1] == 'all-reduce':
      totals['sent reduce-scatter'] += times * size
    else:
      totals[f'sent {found[1]}'] += times * size * factor


class _Frames:
  """The tables of files and call stacks at the head of a module."""

  def __init__(self, head: str):
    number = lambda row, key: int((re.search(rf'\b{key}=(\d+)', row) or [0, 0])[1])
    files = {i: row.split('"')[1].rpartition('/')[2] for i, row in _table(head, 'FileNames').items()}
    places = {i: files[number(row, 'file_name_id')] for i, row in _table(head, 'FileLocations').items()}
    # A parent is written one too high, so that 0 can mean none.
    frame = lambda row: (places[number(row, 'file_location_id')], number(row, 'parent_frame_id') - 1)
    self._frames = {i: frame(row) for i, row in _table(head, 'StackFrames').items()}

  def chain(self, frame: int) -> Iterator[str]:
    """Files of the calls from the innermost outwards."""
    while frame in self._frames:
      file, frame = self._frames[frame]
      yield file


def _table(head: str, name: str) -> dict[int, str]:
  found = re.search(rf'^{name}\n((?:\d+ .*\n)*)', head, re.M)
  return {int(row.split(' ', 1)[0]): row for row in (found[1].splitlines() if found else ())}


def _instructions(body: str) -> Iterator[tuple[str, str, str, str]]:
  """(name, kind, shape, the rest of the line) of a computation's instructions."""
  for name, shape, kind, rest in _parsed(body):
    yield name, kind, shape, rest


@functools.lru_cache(maxsize=65536)
def _parsed(body: str) -> tuple[tuple[str, ...], ...]:
  return tuple(_INSTRUCTION.findall(body))


def _called(rest: str) -> list[str]:
  several = re.search(r'branch_computations=\{([^}]*)\}', rest)
  if several:
    return re.findall(r'%([\w.\-]+)', several[1])
  return re.findall(r'(?:to_apply|calls|true_computation|false_computation|called_computation)=%([\w.\-]+)', rest)


def _bytes(shape: re.Match[str]) -> int:
  return _SIZES.get(shape[1], 8) * math.prod(int(size) for size in shape[2].split(',') if size)


def _group(rest: str) -> int:
  """How many devices a collective's groups have, from any of the three ways they are written; 1 if none is found."""
  if listed := re.search(r'replica_groups=\{\{([\d,]+)\}', rest):
    return listed[1].count(',') + 1
  if iota := re.search(r'replica_groups=\[(?:\d+,)*(\d+)\]<=', rest):
    return int(iota[1])
  if named := re.search(r'replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}', rest):
    sizes = dict(re.findall(r"'([^']+)'=(\d+)", named[1]))
    return math.prod(int(sizes.get(axis, 1)) for axis in re.findall(r"'([^']+)'", named[2]))
  return 1
