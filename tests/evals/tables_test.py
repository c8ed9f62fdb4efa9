"""Tables in three formats: absent stays absent, and no mark of a format breaks another."""

import csv

import pytest

from slca_jax.evals.statistics import Difference, Estimate, Spread
from slca_jax.evals.tables import Table, comma_separated, latex, markdown, write

ESTIMATE = Estimate(0.8125, 0.75, 0.875, 16, 2)
TABLE = Table(
  'Scores of a_b & c|d',
  ('method', 'tasks', 'success', 'runs', 'Δ'),
  (
    ('slca|x', 1234, ESTIMATE, Spread(0.5, 0.25, 3), Difference(Estimate(-0.5, -1.0, -0.25, 9), 1.0, 0.5, 1, 3, 0)),
    ('50%_$', 7, Estimate(None, None, None, 0, 5), Spread(0.5, None, 1), None),
  ),
  digits=2,
  note='95% intervals.',
)


def test_markdown_aligns_numbers_and_escapes_bars():
  assert markdown(TABLE).splitlines() == [
    '### Scores of a_b & c|d',
    '',
    '| method | tasks | success | runs | Δ |',
    '| --- | ---: | ---: | ---: | ---: |',
    '| slca\\|x | 1,234 | 0.81 [0.75, 0.88] | 0.50 ± 0.25 | −0.50 [−1.00, −0.25] |',
    '| 50%_$ | 7 | – | 0.50 | – |',
    '',
    '95% intervals.',
  ]


def test_latex_escapes_what_it_would_read():
  text = latex(TABLE)
  assert r'\caption{Scores of a\_b \& c\textbar{}d}' in text and r'\begin{tabular}{lrrrr}' in text
  assert r'50\%\_\$ & 7 & – & 0.50 & – \\' in text
  assert r'0.50 $\pm$ 0.25 & $-$0.50 [$-$1.00, $-$0.25] \\' in text
  backslash = latex(Table('t', ('a',), (('x\\y^z~',),)))
  assert r'x\textbackslash{}y\textasciicircum{}z\textasciitilde{}' in backslash
  signs = latex(Table('τ² → b', ('Δ', 'a − b'), (('<x>', '±'),), note='±'))
  assert r'\caption{$\tau$$^2$ $\rightarrow$ b}' in signs and r'$\Delta$ & a $-$ b \\' in signs
  assert r'\textless{}x\textgreater{} & $\pm$ \\' in signs and r'\par $\pm$' in signs


def test_csv_holds_all_digits_and_the_parts_of_an_interval():
  rows = list(csv.DictReader(comma_separated(TABLE).splitlines()))
  assert rows[0]['success'] == '0.8125' and rows[0]['success low'] == '0.75' and rows[0]['success absent'] == '2'
  assert rows[0]['runs std'] == '0.25' and rows[0]['runs runs'] == '3' and rows[0]['Δ'] == '-0.5'
  assert [row['table'] for row in rows] == ['Scores of a_b & c|d'] * 2
  assert rows[1]['success'] == '' and rows[1]['success absent'] == '5' and rows[1]['Δ'] == rows[1]['Δ low'] == ''


def test_all_formats_are_written_with_every_table(tmp_path):
  text = write(tmp_path / 'new', 'table', [TABLE, Table('Second', ('a',), ((1.0,),))])
  assert (tmp_path / 'new' / 'table.md').read_text() == text and text.count('### ') == 2
  assert (tmp_path / 'new' / 'table.tex').read_text().count(r'\begin{table}') == 2
  assert 'success low' in (tmp_path / 'new' / 'table.csv').read_text()


def test_row_of_another_length_is_refused():
  with pytest.raises(ValueError, match='a row has 1 cells for 2 columns'):
    Table('t', ('a', 'b'), ((1,),))
