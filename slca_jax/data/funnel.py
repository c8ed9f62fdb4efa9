"""The report of a preparation: how many rows each phase met, kept and dropped, and why; as values and as Markdown."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from slca_jax.data.division import HELDOUT, NOWHERE, RL, SFT, Division
from slca_jax.data.ledger import Counts, Table

Report = dict[str, Any]
_SIDES = {'heldout': HELDOUT, 'sft': SFT, 'rl': RL}
_REMEDIES = {
  'irrelevant': 'filters.irrelevant=False keeps rows that call nothing',
  'no_answer': 'filters.answers=False keeps demonstrations that end with calls',
  'empty_answer': 'filters.answers=False keeps demonstrations without a last answer',
  'missing_argument': 'filters.arguments=False keeps calls that do not fit their tool',
  'misfit_argument': 'filters.arguments=False keeps calls that do not fit their tool',
  'too_long': 'a larger filters.longest keeps them',
  'unknown_tool': 'a row names its tools in `tools`, beside its messages',
  'format.duplicate_id': 'ids are unique over all files; rows without one are numbered by file and line',
  'format.format': 'rows of any other kind can be written as `messages` and `tools`, as for OpenAI',
}


def merged(counts: Iterable[Counts], *, examples: int) -> Counts:
  """The counts of all chunks."""
  out = Counts()
  for one in counts:
    out.read += one.read
    for code, number in one.dropped.items():
      out.dropped[code] = out.dropped.get(code, 0) + number
    for code, found in one.examples.items():
      out.add(code, [(key, identity, why) for key, identity, why in found], most=examples)
  return out


def reasons(counts: Counts) -> str:
  """Why rows were dropped, with an example of each reason and what would keep them."""
  if not counts.read:
    return 'there is none'
  told = []
  for code, number in counts.dropped.items():
    quoted = ''.join(f', such as {why}' for _, _, why in counts.examples.get(code, ())[:1])
    told.append(f'{number:,} {code}{quoted}' + (f' ({_REMEDIES[code]})' if code in _REMEDIES else ''))
  return '; '.join(told)


def report_of(counts: Counts, table: Table, division: Division) -> Report:
  """The funnel. Rows are what the input holds; a row of several turns gives several samples.

  Keys: `read`; `filter` with reasons and what is kept; `heldout` with samples by kind, rows set aside with them and
  rows too near to them; `decompose` of the other rows; `split` into sft and rl by kind; `subsets`; `examples` of
  dropped rows.
  """
  dropped = dict(sorted(counts.dropped.items()))
  if duplicates := int(division.duplicate.sum()):
    dropped['duplicate'] = duplicates
  held = set_aside(table, division)
  rest = ~division.duplicate & ~held & (division.side != HELDOUT) & ~division.leaking
  return {
    'read': counts.read,
    'filter': {'dropped': dropped, 'kept': counts.read - sum(dropped.values())},
    'heldout': {
      **_by_kind(table, division, HELDOUT),
      'set_aside': int(held.sum()),
      'near_heldout': int(division.leaking.sum()),
    },
    'decompose': {
      'rows': int(rest.sum()),
      'no_later_tool_turn': int((rest & (table.samples == 0)).sum()),
      'single': int(table.samples[rest & ~table.decomposed].sum()),
      'decomposed': int(table.samples[rest & table.decomposed].sum()),
    },
    'split': {
      'sft': _by_kind(table, division, SFT),
      'rl': _by_kind(table, division, RL),
      'unused': int(table.samples[rest].sum()) - sum(_samples(division, side) for side in (SFT, RL)),
    },
    'subsets': {
      name or '-': {side: _samples(division, code, within=table.subset == index) for side, code in _SIDES.items()}
      for index, name in enumerate(table.names)
    },
    'examples': {
      code: [{'id': identity, 'why': why} for _, identity, why in found]
      for code, found in sorted(counts.examples.items())
    },
  }


def set_aside(table: Table, division: Division) -> np.ndarray:
  """Marks of rows that are used nowhere because another row of their dialogue is held out."""
  held = np.isin(table.dialogue, table.dialogue[division.side == HELDOUT])
  return held & (division.side != HELDOUT) & ~division.duplicate


def markdown(report: Mapping[str, Any]) -> str:
  """The funnel as a Markdown table, examples below it."""
  lines = ['| phase | | count |', '|---|---|---:|', f'| read | rows | {report["read"]:,} |']
  lines += [f'| 1 filter | − {code} | {count:,} |' for code, count in report['filter']['dropped'].items()]
  lines += [f'| 1 filter | kept | {report["filter"]["kept"]:,} |']
  held, cut, split = report['heldout'], report['decompose'], report['split']
  lines += [
    f'| 2 hold out | held-out samples | {_sum(held)} |',
    f'| 2 hold out | − other rows of their dialogues | {held["set_aside"]:,} |',
    f'| 2 hold out | − nearly their questions | {held["near_heldout"]:,} |',
    f'| 3 decompose | rows | {cut["rows"]:,} |',
    f'| 3 decompose | − too few tool-calling turns | {cut["no_later_tool_turn"]:,} |',
    f'| 3 decompose | samples | {_sum(cut)} |',
    f'| 4 split | SFT | {_sum(split["sft"])} |',
    f'| 4 split | RL | {_sum(split["rl"])} |',
    f'| 4 split | unused | {split["unused"]:,} |',
  ]
  if len(report['subsets']) > 1:
    lines += ['', '| subset | held out | SFT | RL |', '|---|---:|---:|---:|']
    lines += [f'| {name} | {n["heldout"]:,} | {n["sft"]:,} | {n["rl"]:,} |' for name, n in report['subsets'].items()]
  if report['examples']:
    lines += ['', 'Dropped, for example:', '']
    for code, found in report['examples'].items():
      lines += [f'- {code}: `{one["id"]}`, {_one_line(one["why"])}' for one in found]
      lines += [f'- {code}: {_REMEDIES[code]}'] if code in _REMEDIES else []
  return '\n'.join(lines) + '\n'


def _by_kind(table: Table, division: Division, side: int) -> dict[str, int]:
  return {
    'single': _samples(division, side, within=~table.decomposed),
    'decomposed': _samples(division, side, within=table.decomposed),
  }


def _samples(division: Division, side: int, *, within: np.ndarray | None = None) -> int:
  """How many samples of some rows a side has; a held-out row gives one."""
  rows = (division.side == side) & (side != NOWHERE)
  rows = rows if within is None else rows & within
  return int(rows.sum() if side == HELDOUT else division.take[rows].sum())


def _sum(kinds: Mapping[str, int]) -> str:
  single, decomposed = kinds['single'], kinds['decomposed']
  return f'{single + decomposed:,} = {single:,} single-turn + {decomposed:,} decomposed'


def _one_line(text: str) -> str:
  return ' '.join(text.split())[:200]
