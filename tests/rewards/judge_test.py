"""Laws of the judges: five words, the rule, noise and bias."""

import asyncio
import statistics

import pytest

from slca_jax.dialogue import Message, Observation, Parsed, Status, Task, ToolCall, Trajectory, Turn
from slca_jax.errors import ConfigError, JudgeFailure
from slca_jax.rewards import judge
from slca_jax.rewards.judge import (
  BiasedJudge,
  NoisyJudge,
  OwnJudge,
  RuleJudge,
  SolvedByRule,
  Verdict,
  read_verdict,
  spoken,
  states,
  verdict_of,
)


def price(ticker):
  return ToolCall('get_price', {'ticker': ticker})


QUESTION = Message('user', 'What do AAPL and MSFT cost on 2026-03-01?')
PAIR = Task('pair', (), (QUESTION,), ((price('AAPL'), price('MSFT')),))
FACTS = Task('facts', (), (QUESTION,), (), facts=('AAPL is 189.5', 'MSFT is 402'))


def step(*answers):
  calls = tuple((call,) for call, _ in answers)
  return Turn((), (), '', Parsed(calls, (), len(calls), len(calls)), tuple(seen for _, seen in answers))


SEEN = step(
  (price('AAPL'), Observation('{"status": "success", "price": 189.5}')),
  (price('MSFT'), Observation('{"status": "success", "price": 402}')),
)


def rollout(answer, *turns, task=PAIR, status=Status.FINISHED, group=0, index=0):
  return Trajectory(task, group, index, (), (*turns, Turn((), (), answer, Parsed())), status)


def rate(trajectory, judge=None, seed=0):
  return asyncio.run((judge or RuleJudge()).rate(trajectory, seed=seed))


class Constant:
  """Gives every answer the same score."""

  def __init__(self, score):
    self.score = score

  async def rate(self, trajectory, *, seed):
    del trajectory, seed
    return Verdict(self.score, 'constant')


@pytest.mark.parametrize(
  ('word', 'score'), [('very poor', 0.0), ('poor', 0.25), ('acceptable', 0.5), ('good', 0.75), ('excellent', 1.0)]
)
def test_each_word_has_its_score(word, score):
  rating = f'<rating> {word.title()}\n</rating>'
  text = f'<response>\n<response_quality>\n<reasoning>why</reasoning>\n{rating}\n</response_quality>'
  assert read_verdict(text) == Verdict(score, word, 'why')
  assert verdict_of(score).word == word


@pytest.mark.parametrize(
  'text',
  [
    '',
    'excellent',
    '<rating>excellent</rating>',
    '<response_quality><rating>5</rating></response_quality>',
    '<response_quality><rating>0.75</rating></response_quality>',
    '<response_quality><rating>superb</rating></response_quality>',
    '<response_quality><rating>good or excellent</rating></response_quality>',
    '<response_quality><rating>good</rating>',
    '<response_quality><rating>good</response_quality>',
    '<response_quality><rating></rating></response_quality>',
    '<response_quality><rating>good</rating>' * 20_000,
  ],
)
def test_anything_but_one_of_the_words_in_its_tags_is_a_failure(text):
  with pytest.raises(JudgeFailure):
    read_verdict(text)


def test_scores_round_to_the_nearest_word_and_clip():
  assert [verdict_of(score).score for score in (-3, 0.12, 0.125, 0.6, 0.9, 7)] == [0, 0, 0.25, 0.5, 1, 1]


def test_stating_all_facts_is_excellent():
  assert rate(rollout('AAPL is 189.50 and MSFT is 402.', SEEN)).word == 'excellent'
  assert rate(rollout('aapl IS  189.5, msft is 402.', task=FACTS)).word == 'excellent'


def test_each_missing_fact_costs_its_share():
  assert rate(rollout('AAPL is 189.5.', SEEN)).score == 0.5
  assert rate(rollout('I cannot say.', SEEN)).score == 0.0
  assert rate(rollout('MSFT is 402.', task=FACTS)).score == 0.5


def test_an_invented_value_costs_a_word():
  assert rate(rollout('AAPL is 189.5, MSFT is 402, up 7% on QX-77.', SEEN)).score == 0.5
  assert rate(rollout('AAPL is 189.5 and MSFT is 403.', SEEN)).score == 0.25


def test_a_gold_call_that_was_never_made_is_a_missing_fact():
  aapl = step((price('AAPL'), Observation('{"price": 189.5}')))
  assert rate(rollout('AAPL is 189.5.', aapl)).score == 0.5


def test_a_refused_call_supports_nothing():
  refused = step((price('AAPL'), Observation('189.5', ok=False)), (price('MSFT'), Observation('402')))
  assert rate(rollout('AAPL is 189.5, MSFT is 402.', refused)).score == 0.5


def test_values_of_the_question_and_list_numbers_are_supported():
  answer = 'On 2026-03-01:\n1. AAPL: 189.5\n2. MSFT: 402'
  assert rate(rollout(answer, SEEN)).word == 'excellent'


def test_a_quantity_with_its_unit_is_supported():
  task = Task('t', (), (), facts=('12',))
  assert rate(rollout('It is 12C over a 12-day trip.', task=task)).word == 'excellent'


def test_an_answer_that_needs_no_fact_is_excellent_unless_it_invents():
  plain = Task('plain', (), (Message('user', 'Say hello.'),))
  assert rate(rollout('Hello!', task=plain)).word == 'excellent'
  assert rate(rollout('Hello 42!', task=plain)).word == 'good'


def test_an_answer_is_read_once_however_many_facts_are_asked_for(monkeypatch):
  read = []
  values_of = judge._values
  monkeypatch.setattr(judge, '_values', lambda text: read.append(text) or values_of(text))
  judge._readings.cache_clear()
  answer = 'They are ' + ', '.join(map(str, range(500)))
  assert all(states(answer, str(fact)) for fact in range(500)) and not states(answer, '500')
  assert read == [answer]


def test_no_answer_is_very_poor():
  assert rate(rollout('AAPL is 189.5 and MSFT is 402.', SEEN, status=Status.OUT_OF_TURNS)).word == 'very poor'
  assert rate(rollout('<think>AAPL is 189.5 and MSFT is 402</think><|im_end|>', SEEN)).word == 'very poor'


def test_reasoning_and_special_tokens_are_not_spoken():
  assert spoken('<think>secret</think> Hi.<|im_end|>\n') == 'Hi.'
  assert spoken('<think>never closed') == ''


@pytest.mark.parametrize(
  ('answer', 'fact', 'expected'),
  [
    ('costs 1,234.50 dollars', '1234.5', True),
    ('costs 12.5', '12', False),
    ('costs 112', '12', False),
    ('it is -5 now', '-5', True),
    ('it is 5 now', '-5', False),
    ('Order AB-12 is here', 'AB-12', True),
    ('Order AB-123 is here', 'AB-12', False),
    ('The Grand  Hotel', 'grand hotel', True),
    ('Grandhotel', 'grand', False),
    ('price of A is 12.', 'A is 12', True),
    ('price of A is 12.5', 'A is 12', False),
  ],
)
def test_a_fact_is_stated_as_a_whole(answer, fact, expected):
  assert states(answer, fact) is expected


def test_noise_is_zero_mean_and_depends_on_place_and_seed_alone():
  judge = NoisyJudge(Constant(0.5), 0.2)
  scores = [rate(rollout('a', index=i), judge).score for i in range(2000)]
  # quantising to quarters adds 1/16²·… of variance; the mean of 2,000 draws has a standard error of 0.005
  assert statistics.fmean(scores) == pytest.approx(0.5, abs=0.02)
  assert statistics.pstdev(scores) > 0.15
  assert scores[:50] == [rate(rollout('another answer', index=i), judge).score for i in range(50)]
  assert scores[:50] != [rate(rollout('a', index=i), judge, seed=1).score for i in range(50)]
  assert scores[:50] != [rate(rollout('a', index=i, group=1), judge).score for i in range(50)]
  assert set(scores) <= {0.0, 0.25, 0.5, 0.75, 1.0}


def test_no_noise_changes_nothing():
  assert rate(rollout('a'), NoisyJudge(Constant(0.75), 0.0)).word == 'good'


def test_the_biased_judge_likes_tool_turns():
  judge = BiasedJudge(Constant(1.0), 0.25, 3)
  scores = [rate(rollout('a', *[SEEN] * turns), judge).score for turns in range(5)]
  assert scores == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_an_absent_score_stays_absent():
  assert rate(rollout('a'), NoisyJudge(Constant(None), 1.0)).score is None
  assert rate(rollout('a'), BiasedJudge(Constant(None), 0.25, 3)).score is None


@pytest.mark.parametrize('score', [float('nan'), float('inf')])
def test_a_score_that_is_no_number_is_absent_however_the_judge_is_disturbed(score):
  assert rate(rollout('a'), NoisyJudge(Constant(score), 1.0)).score is None
  assert rate(rollout('a'), BiasedJudge(Constant(score), 0.25, 3)).score is None


@pytest.mark.parametrize('score', [85, -0.5, float('nan'), 'good'])
def test_ones_own_score_on_another_scale_is_none(score):
  for found in (score, Verdict(score)):
    with pytest.raises(JudgeFailure):
      rate(rollout('a'), OwnJudge(lambda trajectory, *, seed, found=found: found))


def test_ones_own_score_is_taken_as_it_is():
  scores = [
    rate(rollout('a'), OwnJudge(lambda trajectory, *, seed, f=f: f)).score for f in (0, 1.0, None, Verdict(0.3))
  ]
  assert scores == [0, 1, None, 0.3]


def test_negative_noise_is_refused():
  with pytest.raises(ConfigError, match='negative'):
    NoisyJudge(Constant(1.0), -1.0)


def test_a_task_is_solved_by_rule_where_every_fact_is_stated_and_none_invented():
  said = ('AAPL is 189.5, MSFT is 402.', 'AAPL is 189.5.', 'AAPL is 189.5, MSFT is 402, IBM is 7.')
  verdicts = [rate(rollout(answer, SEEN, task=FACTS), SolvedByRule()) for answer in said]
  assert [(verdict.score, verdict.word) for verdict in verdicts] == [
    (1.0, 'solved'),
    (0.0, 'unsolved'),
    (0.0, 'unsolved'),
  ]
