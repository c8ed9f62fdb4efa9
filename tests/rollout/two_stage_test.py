"""A planner's calls and another model's answers make one rollout."""

import asyncio

import pytest
from fakes import ScriptedSampler

from slca_jax.rollout.sampler import Sample
from slca_jax.rollout.two_stage import TwoStageSampler

HOW = {'max_tokens': 99, 'temperature': 1.0, 'top_p': 1.0, 'stop': (0,), 'seed': 7}


class Letters:
  """A template whose ids are code points."""

  def decode(self, tokens):
    return ''.join(map(chr, tokens))


def turn(planned, *, finish='stop'):
  """(what the two stages say after 'ab', what each engine was asked)."""
  ids = tuple(map(ord, planned))
  sample = Sample(ids, (-0.5,) * len(ids), finish, ((0, len(ids)),))
  engines = ScriptedSampler(lambda *_: sample), ScriptedSampler(lambda *_: tuple(map(ord, 'the answer')))
  both = TwoStageSampler(*engines, Letters())

  async def scene():
    said = await both.generate(tuple(map(ord, 'ab')), session='s', **HOW)
    await both.release('s')
    return said

  said = asyncio.run(scene())
  assert [engine.released for engine in engines] == [['s'], ['s']]
  return Letters().decode(said.tokens), [engine.requests for engine in engines]


@pytest.mark.parametrize('plan', ['<answer>', 'I am done', ''])
def test_a_plan_that_ends_is_answered_by_the_summariser_from_the_same_context(plan):
  said, (planner, summariser) = turn(plan)
  assert said == 'the answer' and planner == summariser
  assert summariser[0]['tokens'] == [97, 98], 'what the planner said instead of an answer is no context'


@pytest.mark.parametrize(
  'plan', ['<tool_call>{"name": "f", "arguments": {}}</tool_call>', '<tool_call>{"name": </tool_call>']
)
def test_a_turn_that_calls_or_means_to_is_the_planners(plan):
  said, (_, summariser) = turn(plan)
  assert said == plan and not summariser


def test_a_turn_that_was_cut_off_is_the_planners():
  assert turn('I am', finish='length')[0] == 'I am'
