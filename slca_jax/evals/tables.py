"""Tables of scores as Markdown, LaTeX and CSV."""

import csv
import dataclasses
import io
import pathlib
from collections.abc import Callable, Sequence

from slca_jax.evals.statistics import Difference, Estimate, Spread

Cell = str | int | float | None | Estimate | Difference | Spread

_LATEX = {
  '\\': r'\textbackslash{}',
  '^': r'\textasciicircum{}',
  '~': r'\textasciitilde{}',
  **{mark: f'\\{mark}' for mark in '&%$#_{}'},
  **{'<': r'\textless{}', '>': r'\textgreater{}', '|': r'\textbar{}'},  # its old fonts have other letters there
  **{'−': '$-$', '±': r'$\pm$', '→': r'$\rightarrow$', 'Δ': r'$\Delta$', 'τ': r'$\tau$', '²': '$^2$'},
}
_ABSENT = '–'


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
  """A title, the names of the columns, and rows as long as these. None stands for what could not be had.

  Attributes:
    digits: of fractions behind the point; whole numbers have none.
    note: a sentence below the table.
  """

  title: str
  columns: tuple[str, ...]
  rows: tuple[tuple[Cell, ...], ...]
  digits: int = 3
  note: str = ''

  def __post_init__(self):
    for row in self.rows:
      if len(row) != len(self.columns):
        raise ValueError(f'{self.title}: a row has {len(row)} cells for {len(self.columns)} columns: {row}')


def markdown(table: Table) -> str:
  """The table under a heading, numbers to the right."""
  rows = [[_escape_bar(_text(cell, table.digits)) for cell in row] for row in table.rows]
  lines = [f'### {table.title}', '', _line(map(_escape_bar, table.columns)), _line(_rulers(table))]
  lines += [_line(row) for row in rows]
  return '\n'.join([*lines, *(['', table.note] if table.note else [])]) + '\n'


def latex(table: Table) -> str:
  """The table as a floating one for LaTeX with the package booktabs."""
  text = lambda cell: _escape_latex(_text(cell, table.digits))
  align = ''.join('r' if numeric else 'l' for numeric in _numeric(table))
  lines = [r'\begin{table}', r'\centering', rf'\caption{{{_escape_latex(table.title)}}}']
  lines += [rf'\begin{{tabular}}{{{align}}}', r'\toprule', f'{" & ".join(map(_escape_latex, table.columns))} \\\\']
  lines += [r'\midrule', *(f'{" & ".join(map(text, row))} \\\\' for row in table.rows), r'\bottomrule']
  lines += [r'\end{tabular}', *([rf'\par {_escape_latex(table.note)}'] if table.note else []), r'\end{table}']
  return '\n'.join(lines) + '\n'


def comma_separated(table: Table) -> str:
  """The table as CSV with all digits; an interval or a spread takes columns of its own beside its mean.

  The first column, `table`, is the title in every row: several tables in a file are told apart by it.
  """
  parts = [next((_parts(row[i]) for row in table.rows if _parts(row[i])), {}) for i in range(len(table.columns))]
  out = io.StringIO()
  writer = csv.writer(out, lineterminator='\n')
  named = zip(table.columns, parts, strict=True)
  writer.writerow(['table', *(name for column, more in named for name in [column, *(f'{column} {m}' for m in more)])])
  for row in table.rows:
    cells: list[str | int | float | None] = [table.title]
    for cell, more in zip(row, parts, strict=True):
      cells += [_mean(cell), *(_parts(cell).get(name) for name in more)]
    writer.writerow('' if cell is None else cell for cell in cells)
  return out.getvalue()


FORMATS: dict[str, Callable[[Table], str]] = {'md': markdown, 'tex': latex, 'csv': comma_separated}


def write(folder: pathlib.Path, name: str, tables: Sequence[Table]) -> str:
  """Writes the tables as `name`.md, .tex and .csv, one below the other, and returns the Markdown."""
  folder.mkdir(parents=True, exist_ok=True)
  texts = {ending: '\n'.join(map(form, tables)) for ending, form in FORMATS.items()}
  for ending, text in texts.items():
    (folder / f'{name}.{ending}').write_text(text, encoding='utf-8')
  return texts['md']


def _text(cell: Cell, digits: int) -> str:
  number = lambda value: _ABSENT if value is None else f'{value:.{digits}f}'.replace('-', '−')
  match cell:
    case None:
      return _ABSENT
    case Estimate(mean, low, high):
      return number(mean) if low is None else f'{number(mean)} [{number(low)}, {number(high)}]'
    case Difference(estimate):
      return _text(estimate, digits)
    case Spread(mean, std):
      return number(mean) if std is None else f'{number(mean)} ± {number(std)}'
    case bool() | str():
      return str(cell)
    case int():
      return f'{cell:,}'.replace('-', '−')
    case _:
      return number(cell)


def _mean(cell: Cell) -> str | int | float | None:
  match cell:
    case Estimate(mean) | Spread(mean):
      return mean
    case Difference(estimate):
      return estimate.mean
    case _:
      return cell


def _parts(cell: Cell) -> dict[str, float | int | None]:
  match cell:
    case Estimate(_, low, high, count, absent):
      return {'low': low, 'high': high, 'tasks': count, 'absent': absent}
    case Difference(estimate):
      return _parts(estimate)
    case Spread(_, std, count):
      return {'std': std, 'runs': count}
    case _:
      return {}


def _numeric(table: Table) -> list[bool]:
  """Of each column whether anything but words stands in it."""
  return [any(not isinstance(row[i], str | None) for row in table.rows) for i in range(len(table.columns))]


def _rulers(table: Table) -> list[str]:
  return ['---:' if numeric else '---' for numeric in _numeric(table)]


def _line(cells) -> str:
  return f'| {" | ".join(cells)} |'


def _escape_bar(text: str) -> str:
  return text.replace('|', '\\|')


def _escape_latex(text: str) -> str:
  return ''.join(_LATEX.get(mark, mark) for mark in text)
