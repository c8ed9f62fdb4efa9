"""What was found of a plan, as tables to read and as JSON."""

import dataclasses
import functools
import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from slca_jax.config import as_dict
from slca_jax.data.folders import write_json
from slca_jax.nn.config import TransformerConfig
from slca_jax.train.chips import Target, describe, larger
from slca_jax.train.plan import Candidate, Program, Verdict, compile_step, search
from slca_jax.train.settings import RLConfig
from slca_jax.train.workload import workload

_CATEGORIES = ('parameters', 'optimiser', 'reference', 'gradients', 'batches', 'temporaries')
NOTE = (
  'Nothing ran on these chips: every number is of a compiled program, and every time an estimate. "At peak" divides '
  'the FLOPs that a program executes by the chips\' published peak. "By cycles" adds up the compiler\'s own estimate, '
  'with Pallas kernels, for which it has none, at peak. Neither waits for other chips or the host. Collective bytes '
  'are rough.'
)


def run(
  models: Mapping[str, TransformerConfig],
  config: RLConfig,
  cases: Sequence[tuple[str, str, bool]],
  folder: pathlib.Path,
  *,
  every: bool = False,
) -> bool:
  """Whether all (model, topology, shared) cases fit as asked. Prints each verdict once; writes plan.json and plan.md.

  What plan.json of the folder says of the same candidate is taken over instead of compiling it again.
  """
  targets = {name: describe(name) for _, name, _ in cases}  # a name that is wrong is refused before any compile
  folder.mkdir(parents=True, exist_ok=True)
  file = folder / 'plan.json'
  rows = json.loads(file.read_text(encoding='utf-8')) if file.exists() else []
  known = {_case(row): row for row in rows}
  judge = functools.partial(_remembered, known)
  verdicts: dict[str, Verdict] = {}  # by their case: repeated and shared prompts try some of the same rows
  fit = True
  for model, name, shared in cases:
    found, before = [], tuple(verdicts.values())
    usual = {'model': model, 'shared': shared, 'every': every, 'judge': judge, 'before': before}
    for verdict in search(models[model], config, targets[name], **usual):
      found.append(verdict)
      row = _plain(verdict)
      case = _case(row)
      if case not in verdicts:
        print(line(verdict), flush=True)
      verdicts[case], known[case] = verdict, row
      write_json(file, [known[case] for case in (*verdicts, *(case for case in known if case not in verdicts))])
      (folder / 'plan.md').write_text(markdown(tuple(verdicts.values())), encoding='utf-8')
    fit &= any(verdict.fits and not verdict.candidate.change for verdict in found)
  print('\n'.join(['', *advice(tuple(verdicts.values()))]))
  return fit


def _remembered(
  known: Mapping[str, dict[str, Any]],
  decoder: TransformerConfig,
  target: Target,
  candidate: Candidate,
  *,
  model: str,
) -> Verdict:
  """The verdict that a row of an earlier report holds, or else a new one."""
  work = workload(candidate.config, leaves=candidate.leaves)
  row = known.get(_case(_plain(Verdict(target, model, candidate, work, 0.0, ''))))
  if row is None:
    return compile_step(decoder, target, candidate, model=model)
  programs = {name: Program(**row[name]) if row[name] else None for name in ('prepare', 'update')}
  flops = row['needed_flops_per_mini_batch']
  needed = math.inf if row['needed_gib'] is None else row['needed_gib']
  return Verdict(target, model, candidate, work, needed, row['why'], **programs, needed_flops=flops)


def _plain(verdict: Verdict) -> dict[str, Any]:
  return json.loads(json.dumps(as_json(verdict)))


def _case(row: Mapping[str, Any]) -> str:
  """What a row is of, other than what was found."""
  names = ('model', 'chip', 'topology', 'mesh', 'responses_per_row', 'change', 'config')
  return json.dumps([row[name] for name in names], sort_keys=True)


def line(verdict: Verdict) -> str:
  """A verdict in one line."""
  candidate = verdict.candidate
  found = verdict.why or f'fits, {verdict.needed:.1f} of {verdict.target.chip.memory:.1f} GiB'
  changed = f', {candidate.change}' if candidate.change else ''
  return f'{verdict.model} {verdict.target.name} {candidate.name} rows of {verdict.work.length:,}{changed}: {found}'


def markdown(verdicts: Sequence[Verdict]) -> str:
  """Tables of memory and of time, the largest values of each fitting update, and what would do where nothing fits."""
  parts = [NOTE, _memory_table(verdicts), _time_table(verdicts)]
  parts += [_details(verdict) for verdict in verdicts if verdict.fits]
  return '\n\n'.join([part for part in parts if part] + advice(verdicts)) + '\n'


def as_json(verdict: Verdict) -> dict[str, Any]:
  """A verdict as JSON-ready values."""
  candidate, chip = verdict.candidate, verdict.target.chip
  return {
    'model': verdict.model,
    'topology': verdict.target.name,
    'chips': len(verdict.target.devices),
    'mesh': {'data': 1, 'fsdp': candidate.fsdp, 'tensor': candidate.tensor},
    'row_tokens': verdict.work.length,
    'responses_per_row': verdict.work.leaves,
    'micro_rows': candidate.config.batching.micro_rows,
    'change': candidate.change,
    'fits': verdict.fits,
    'why': verdict.why,
    'needed_gib': verdict.needed if math.isfinite(verdict.needed) else None,
    'chip': dataclasses.asdict(chip),
    'needed_flops_per_mini_batch': verdict.needed_flops,
    'seconds_per_step': seconds(verdict) if verdict.update else None,
    'prepare': verdict.prepare and dataclasses.asdict(verdict.prepare),
    'update': verdict.update and dataclasses.asdict(verdict.update),
    'config': as_dict(candidate.config),
  }


def seconds(verdict: Verdict) -> dict[str, float]:
  """Estimated seconds of one training step (all its mini-batches), without sampling; and the shares that they imply."""
  chips, peak = len(verdict.target.devices), verdict.target.chip.peak * 1e12
  at_peak = cycles = links = 0.0
  for program in _programs(verdict):
    at_peak += program.executed / chips / peak
    cycles += program.kernels / chips / peak
    if verdict.target.chip.clock:
      cycles += program.cycles / verdict.target.chip.clock / 1e9
    if verdict.target.chip.links:
      links += sum(program.sent.values()) / verdict.target.chip.links / 1e9
  updates = verdict.candidate.config.updates_per_step
  best = verdict.needed_flops / chips / peak
  found = {'needed_at_peak': best * updates, 'at_peak': at_peak * updates}
  if verdict.target.chip.clock:
    found |= {'by_cycles': cycles * updates, 'utilisation': best / cycles}
  return found | ({'on_links': links * updates} if links else {})


def cheapest(verdicts: Sequence[Verdict]) -> dict[str, Verdict]:
  """For each model the fitting slice that costs least per hour; ties go to the faster."""
  fitting = [v for v in verdicts if v.fits and v.target.chip.price and not v.candidate.change]
  price = lambda v: (v.target.chip.price * len(v.target.devices), seconds(v)['at_peak'])
  return {model: min((v for v in fitting if v.model == model), key=price) for model in _models(fitting)}


def advice(verdicts: Sequence[Verdict]) -> list[str]:
  """The command line's worth of what was found: settings to run with, and what is to change where nothing fits."""
  out = []
  groups: dict[tuple[str, str], list[Verdict]] = {}
  for verdict in verdicts:
    groups.setdefault((verdict.model, verdict.target.name), []).append(verdict)
  for (model, name), found in groups.items():
    fitting = [verdict for verdict in found if verdict.fits]
    plain = [verdict for verdict in fitting if not verdict.candidate.change]
    if plain:
      out.append(f'{model} on {name}: {_flags(min(plain, key=_slowness))}')
    elif fitting:
      verdict = fitting[0]
      out.append(f'{model} does not fit {name} as asked; it does with {verdict.candidate.change}: {_flags(verdict)}')
    else:
      last = next((v for v in reversed(found) if math.isfinite(v.needed)), found[-1])  # it gives up most
      more = larger(name)
      remedy = f'plan {more}' if more else 'plan more chips, or chips with more memory'
      out.append(f'{model} does not fit {name}: {_given_up(last)}{last.why} (mesh {last.candidate.name}); {remedy}')
  for model, verdict in cheapest(verdicts).items():
    chip, chips = verdict.target.chip, len(verdict.target.devices)
    out.append(f'Cheapest of these that fits {model}: {verdict.target.name}, about ${chip.price * chips:.0f} per hour')
  return out


def _given_up(verdict: Verdict) -> str:
  change = verdict.candidate.change.removeprefix('and ').partition(' (')[0]
  return f'even with {change} and all before it, ' if change else ''


def _slowness(verdict: Verdict) -> float:
  found = seconds(verdict)
  return found.get('by_cycles', found['at_peak'])


def _flags(verdict: Verdict) -> str:
  candidate, lengths = verdict.candidate, ','.join(map(str, verdict.candidate.config.batching.lengths))
  return (
    f'--config.mesh.fsdp={candidate.fsdp} --config.mesh.tensor={candidate.tensor} '
    f'--config.batching.micro_rows={candidate.config.batching.micro_rows} --config.batching.lengths="({lengths},)"'
  )


def _programs(verdict: Verdict) -> tuple[Program, ...]:
  return tuple(program for program in (verdict.prepare, verdict.update) if program)


def _models(verdicts: Sequence[Verdict]) -> list[str]:
  return list(dict.fromkeys(verdict.model for verdict in verdicts))


def _prompts(verdict: Verdict) -> str:
  return f'{verdict.work.leaves} responses' if verdict.work.leaves > 1 else '1 response'


def _memory_table(verdicts: Sequence[Verdict]) -> str:
  rows = []
  for verdict in verdicts:
    candidate, update = verdict.candidate, verdict.update
    memory = update.memory if update else {}
    fits = 'yes' if verdict.fits else 'no'
    rows.append(
      [
        verdict.model + (f', {candidate.change.partition(" ")[0]}' if candidate.change else ''),
        verdict.target.name,
        candidate.name,
        f'{verdict.work.length:,} ({_prompts(verdict)})',
        *(f'{memory[name]:.1f}' if name in memory else '' for name in _CATEGORIES),
        f'{sum(size for name, size in memory.items() if name not in _CATEGORIES):.1f}' if memory else '',
        f'{verdict.prepare.total:.1f}' if verdict.prepare else '',
        f'{update.total:.1f}' if update else f'over {verdict.needed:.1f}' if math.isfinite(verdict.needed) else '',
        f'{verdict.target.chip.memory:.1f}',
        fits,
      ]
    )
  head = ('model', 'slice', 'fsdp × tensor', 'row of tokens', *_CATEGORIES, 'rest', 'prepare', 'update', 'chip', 'fits')
  return '## Memory, GiB per chip\n\n' + _table(head, rows, left=4)


def _time_table(verdicts: Sequence[Verdict]) -> str:
  rows = []
  for verdict in (verdict for verdict in verdicts if verdict.update and verdict.prepare):
    found, updates = seconds(verdict), verdict.candidate.config.updates_per_step
    programs = _programs(verdict)
    total = lambda name, programs=programs: sum(getattr(program, name) for program in programs)
    sent = sum(sum(program.sent.values()) for program in programs) * updates / 1e12
    rows.append(
      [
        verdict.model,
        verdict.target.name,
        verdict.candidate.name,
        f'{verdict.work.length:,}',
        f'{verdict.needed_flops * updates / 1e15:,.0f}',
        f'{total("executed") * updates / 1e15:,.0f}',
        *(f'{found[name]:,.0f}' if name in found else '' for name in ('needed_at_peak', 'at_peak', 'by_cycles')),
        f'{found["utilisation"]:.0%}' if 'utilisation' in found else '',
        f'{sent:.2f}',
        f'{total("compile_seconds"):.0f}',
      ]
    )
  head = (
    'model', 'slice', 'fsdp × tensor', 'row', 'needed PFLOP', 'executed PFLOP', 'needed at peak, s',
    'executed at peak, s', 'by cycles, s', 'needed / by cycles', 'sent per chip, TB', 'compile here, s',
  )  # fmt: skip
  return '## One training step without sampling\n\n' + _table(head, rows, left=4) if rows else ''


def _details(verdict: Verdict) -> str:
  if verdict.update is None:
    return ''
  lines = [f'{size / 2**20:,.0f} MiB {shape} `{name}`' for size, shape, name in verdict.update.largest]
  sent = ', '.join(f'{name} {size / 1e9:,.1f}' for name, size in verdict.update.sent.items()) or 'none'
  head = f'### {verdict.model} on {verdict.target.name}, {verdict.candidate.name}, rows of {verdict.work.length:,}'
  unknown = f', {verdict.update.unknown_loops} loops counted as one turn' if verdict.update.unknown_loops else ''
  body = '\n'.join(f'- {line}' for line in lines)
  return f'{head}\n\nRough GB sent per chip and update: {sent}{unknown}. Largest values of the update:\n\n{body}'


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> str:
  marks = ['---' if i < left else '--:' for i in range(len(head))]
  return '\n'.join(f'| {" | ".join(row)} |' for row in (head, marks, *rows))
