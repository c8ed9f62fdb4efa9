"""Laws of the process score, with the worked example of its source."""

import pytest

from slca_jax.dialogue import Parsed, Task, Tool, ToolCall, Turn
from slca_jax.errors import ConfigError
from slca_jax.rewards.process import Weights, guarded, process_score

TEXT = {'type': 'string'}
TOOLS = (
  Tool('get_stock_price', '', {'type': 'object', 'properties': {'ticker': TEXT}, 'required': ['ticker']}),
  Tool('search_company_info', '', {'type': 'object', 'properties': {'company': TEXT}, 'required': ['company']}),
  Tool('now', '', {'type': 'object', 'properties': {}}),
)


def price(ticker):
  return ToolCall('get_stock_price', {'ticker': ticker})


SEARCH = ToolCall('search_company_info', {'company': 'Apple'})
NOW = ToolCall('now', {})


def turn(*calls, opens=None, closes=None):
  blocks = tuple((call,) for call in calls)
  opens = len(calls) if opens is None else opens
  return Turn((), (), '', Parsed(blocks, (), opens, len(calls) if closes is None else closes))


def task(*gold):
  return Task('t', TOOLS, (), gold)


PAIR = task((price('AAPL'), price('MSFT')))
ANSWER = turn()


def parts(process):
  return process.format, process.name, process.key, process.value, process.parallel


def test_worked_example_of_serial_calls_after_a_needless_search():
  process = process_score([turn(SEARCH), turn(price('AAPL')), turn(price('MSFT')), ANSWER], PAIR)
  assert parts(process) == pytest.approx((1, 0.8, 1, 1, 0))
  assert process.total == pytest.approx(0.65)
  assert not process.success()


def test_worked_example_of_one_parallel_step():
  process = process_score([turn(price('AAPL'), price('MSFT')), ANSWER], PAIR)
  assert process.total == pytest.approx(1.0)
  assert process.success() and process.arguments == 1.0


def test_uniform_weights_move_the_worked_example():
  uniform = Weights(0.2, 0.2, 0.2, 0.2, 0.2)
  process = process_score([turn(SEARCH), turn(price('AAPL')), turn(price('MSFT'))], PAIR, weights=uniform)
  assert process.total == pytest.approx(0.76)


def test_no_gold_and_no_call_is_perfect():
  assert parts(process_score([ANSWER], task())) == (1, 1, 1, 1, 1)


def test_a_call_where_none_is_wanted_loses_name_and_parallel():
  assert parts(process_score([turn(NOW), ANSWER], task())) == (1, 0, 1, 1, 0)


def test_broken_tags_cost_format_even_where_no_call_is_wanted():
  assert parts(process_score([turn(opens=1, closes=0)], task())) == (0, 1, 1, 1, 1)


def test_no_call_where_one_is_wanted_scores_nothing():
  process = process_score([ANSWER], PAIR)
  assert parts(process) == (0, 0, 0, 0, 0)
  assert process.total == 0


def test_no_call_scores_nothing_even_if_the_gold_has_no_arguments():
  assert parts(process_score([ANSWER], task((NOW,)))) == (0, 0, 0, 0, 0)


def test_gold_without_arguments_gives_key_and_value_for_any_call():
  assert parts(process_score([turn(SEARCH)], task((NOW,)))) == (1, 0, 1, 1, 1)


def test_arguments_are_averaged_over_gold_calls_that_have_some():
  process = process_score([turn(NOW, price('AAPL'))], task((NOW, price('MSFT'))))
  assert (process.key, process.value) == (1.0, 0.0)


def test_an_unmatched_gold_call_halves_the_arguments():
  process = process_score([turn(price('AAPL'))], PAIR)
  assert parts(process) == pytest.approx((1, 2 / 3, 0.5, 0.5, 0))


def test_only_the_first_step_that_holds_calls_decides_parallelism():
  silent = turn(opens=1, closes=1)
  process = process_score([silent, turn(price('AAPL'), price('MSFT')), turn(NOW)], PAIR)
  assert process.parallel == 1.0
  assert process.format == pytest.approx(3 / 4)


def test_an_unbalanced_tag_lowers_the_format():
  assert process_score([turn(price('AAPL'), opens=2)], PAIR).format == 0.5
  assert process_score([turn(price('AAPL'), closes=3)], PAIR).format == pytest.approx(1 / 3)


@pytest.mark.parametrize(
  'bad', [ToolCall('get_stock_price', {'ticker': 3}), ToolCall('get_stock_price', {}), ToolCall('no_such_tool', {})]
)
def test_a_call_that_fails_its_schema_is_a_call_but_no_valid_block(bad):
  process = process_score([turn(price('AAPL'), bad)], PAIR)
  assert process.format == 0.5 and process.calls == 2 and process.valid == 1


def test_a_block_with_a_list_of_calls_is_one_block():
  listed = Turn((), (), '', Parsed(((price('AAPL'), price('MSFT')),), (), 1, 1))
  assert process_score([listed], PAIR).total == pytest.approx(1.0)


def test_a_score_of_exactly_the_bar_is_a_success():
  # one of two values wrong: 0.1 + 0.25 + 0.15 + 0.2 / 2 + 0.3 = 0.9
  process = process_score([turn(price('AAPL'), price('IBM'))], PAIR)
  assert process.total == pytest.approx(0.9) and process.success()


def test_the_guard_falls_on_rollouts_that_never_open_a_needed_call():
  assert guarded([ANSWER], PAIR)
  assert guarded([turn(closes=1, opens=0)], PAIR)
  assert not guarded([turn(opens=1, closes=0)], PAIR)
  assert not guarded([turn(NOW)], PAIR)
  assert not guarded([ANSWER], task())
  assert not guarded([ANSWER], task(()))


def test_weights_must_sum_to_one():
  with pytest.raises(ConfigError, match='sum to'):
    Weights(0.5, 0.5, 0.5, 0.5, 0.5)
