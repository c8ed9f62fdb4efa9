"""The rollout loop: what is executed, what is appended, and how rollouts end."""

import asyncio
import dataclasses
import gc
import json
import threading

import pytest
from fakes import ScriptedEnvironment, ScriptedSampler, broken_engine, run_leaping

from slca_jax.chat.template import Template
from slca_jax.dialogue import Message, Scores, Status, Task, Tool, ToolCall
from slca_jax.envs.executable import World, executable_opener
from slca_jax.envs.guard import CallLimits
from slca_jax.quickstart.tokenizer import make_tokenizer
from slca_jax.quickstart.world import make_task
from slca_jax.rollout.collect import Rollouts, collect, rarely_interrupted, run, seed_of
from slca_jax.rollout.sampler import Sample
from slca_jax.rollout.settings import Decoding, Limits
from slca_jax.train.metrics import describe

TOOL = Tool('get_price', 'Price.', {'type': 'object', 'properties': {'ticker': {'type': 'string'}}})
TASK = Task('task', (TOOL,), (Message('user', 'What is BAKO and CIRU?'),))
TEMPLATE = Template(make_tokenizer([make_task(0, 'train', index) for index in range(20)]))
END = '<|im_end|>'


def block(ticker):
  return '<tool_call>\n' + json.dumps({'name': 'get_price', 'arguments': {'ticker': ticker}}) + '\n</tool_call>'


def says(*turns):
  """A script that says the turns one after another, whatever was observed."""
  counts = {}

  def script(session, tokens):
    counts[session] = counts.get(session, -1) + 1
    return TEMPLATE.encode(turns[min(counts[session], len(turns) - 1)])

  return script


def roll(script, *, environment=None, limits=None, task=TASK, decoding=None):
  """(trajectory, sampler, environment) of one rollout."""
  sampler = ScriptedSampler(script)
  environment = environment or ScriptedEnvironment(lambda call: f'{call.arguments["ticker"]} 42')
  world = Rollouts(sampler, TEMPLATE, lambda task, seed: environment, limits or Limits(), decoding or Decoding())
  return asyncio.run(run(task, 3, 5, world, seed='0/1')), sampler, environment


def test_parallel_calls_become_one_step_and_one_user_turn():
  trajectory, sampler, environment = roll(says(f'{block("BAKO")}\n{block("CIRU")}{END}', f'BAKO is 42.{END}'))
  assert trajectory.status is Status.FINISHED and trajectory.answer == 'BAKO is 42.'
  assert [[c.arguments['ticker'] for c in step] for step in environment.steps] == [['BAKO', 'CIRU']]
  reply = TEMPLATE.decode(trajectory.turns[0].reply, stops=True)
  assert reply == (
    '\n<|im_start|>user\n<tool_response>\nBAKO 42\n</tool_response>\n<tool_response>\nCIRU 42\n</tool_response>'
    '<|im_end|>\n<|im_start|>assistant\n'
  )
  assert sampler.requests[1]['tokens'] == [*trajectory.prompt, *trajectory.turns[0].tokens, *trajectory.turns[0].reply]
  assert environment.closed == 1 and sampler.released == ['0/1/task/3/5']


def test_sampled_ids_are_kept_even_if_they_would_not_encode_to_themselves():
  letters = [TEMPLATE.encode(letter)[0] for letter in 'What']
  assert tuple(letters) != TEMPLATE.encode('What')  # the tokenizer would merge them
  end = TEMPLATE.stop_ids[0]
  trajectory, *_ = roll(lambda session, tokens: [*letters, end])
  assert trajectory.turns[0].tokens == (*letters, end) and trajectory.answer == 'What'


def test_turn_cut_off_in_a_call_executes_nothing():
  text = f'{block("BAKO")}\n<tool_call>\n{{"name": "get_pri'
  size = len(TEMPLATE.encode(text))
  trajectory, _, environment = roll(says(text + ' and more'), limits=Limits(turn_tokens=size))
  assert trajectory.status is Status.OUT_OF_TOKENS and environment.steps == [] and trajectory.answer is None
  assert trajectory.turns[0].parsed.errors == ('truncated',) and len(trajectory.turns[0].tokens) == size


def test_aborted_request_keeps_what_was_sampled_as_cut_off():
  ids = TEMPLATE.encode(block('BAKO'))
  trajectory, _, environment = roll(lambda s, t: Sample(ids, (-1.0,) * len(ids), 'abort', ((2, len(ids)),)))
  assert trajectory.status is Status.OUT_OF_TOKENS and trajectory.turns[0].tokens == ids and environment.steps == []


def test_calls_drafted_in_thoughts_are_not_executed():
  trajectory, _, environment = roll(says(f'<think>\n{block("BAKO")}\n</think>\nNo need.{END}'))
  assert trajectory.status is Status.FINISHED and environment.steps == []


def test_malformed_call_is_answered_with_an_error_and_the_policy_goes_on():
  trajectory, _, environment = roll(says(f'<tool_call>\n{{"name": \n</tool_call>{END}', f'Sorry.{END}'))
  assert trajectory.status is Status.FINISHED and environment.steps == []
  (seen,) = trajectory.turns[0].observations
  assert not seen.ok and 'invalid_json' in seen.content


def test_tag_in_prose_is_an_answer():
  trajectory, *_ = roll(says(f'The <tool_call> tag wraps JSON.{END}'))
  assert trajectory.status is Status.FINISHED and len(trajectory.turns) == 1


def test_calls_beyond_the_limit_are_refused_in_order():
  trajectory, _, environment = roll(
    says('\n'.join(block(t) for t in 'ABC') + END, f'Done.{END}'), limits=Limits(calls=2)
  )
  assert [c.arguments['ticker'] for c in environment.steps[0]] == ['A', 'B']
  assert [seen.ok for seen in trajectory.turns[0].observations] == [True, True, False]


def test_rollout_stops_at_its_limit_of_turns_without_executing_the_last():
  trajectory, _, environment = roll(says(block('BAKO') + END), limits=Limits(turns=3))
  assert trajectory.status is Status.OUT_OF_TURNS and len(trajectory.turns) == 3 and len(environment.steps) == 2
  assert trajectory.turns[-1].reply == () and trajectory.turns[-1].observations == ()


def test_observation_that_fills_the_response_ends_it_and_is_not_in_the_row():
  trajectory, *_ = roll(says(block('BAKO') + END), limits=Limits(response_tokens=60, observation_tokens=50))
  assert trajectory.status is Status.OUT_OF_TOKENS
  assert trajectory.turns[-1].observations and trajectory.turns[-1].reply == ()
  assert sum(len(t.tokens) + len(t.reply) for t in trajectory.turns) <= 60


def test_huge_observation_is_cut_to_its_limit():
  environment = ScriptedEnvironment(lambda call: 'x7' * 5_000_000)
  trajectory, *_ = roll(says(block('BAKO') + END, END), environment=environment, limits=Limits(observation_tokens=64))
  (seen,) = trajectory.turns[0].observations
  assert len(TEMPLATE.encode(seen.content)) <= 64
  assert seen.cut and describe([trajectory], [Scores()])['rollout/cut_observations'] == 1


def test_tools_that_raise_hang_and_flood_are_answers_in_order_and_counted():
  release, everyone, others, loop = threading.Event(), threading.Barrier(4), [], None

  def beside(function):
    def work(db):
      others.append(threading.current_thread())
      everyone.wait(300)
      return function(db)

    return work

  def hang(db):
    everyone.wait(300)
    for thread in others:
      thread.join()
    loop.leap_soon(300.0)  # the deadline passes once the others are answered
    release.wait()

  functions = {
    'hang': hang,
    'raise': beside(lambda db: db['no such table']),
    'flood': beside(lambda db: 'x' * 10_000_000),
    'fine': beside(lambda db: 'sunny'),
  }
  tools = tuple(Tool(name, '', {}) for name in functions)
  open_world = executable_opener(World(tools, functions), limits=CallLimits(deadline=300.0))
  task = dataclasses.replace(TASK, tools=tools, meta={'database': {}})
  text = '\n'.join(f'<tool_call>\n{{"name": "{name}", "arguments": {{}}}}\n</tool_call>' for name in functions)
  world = Rollouts(ScriptedSampler(says(text + END, 'Sunny.' + END)), TEMPLATE, open_world, Limits(), Decoding())

  async def scene():
    nonlocal loop
    loop = asyncio.get_running_loop()
    return await run(task, 0, 0, world, seed='0')

  trajectory = run_leaping(scene())
  release.set()
  assert trajectory.status is Status.FINISHED and trajectory.answer == 'Sunny.'
  assert [seen.ok for seen in trajectory.observations] == [False, False, True, True]
  hung, raised, flooded, fine = (seen.content for seen in trajectory.observations)
  assert 'hang did not answer' in hung and 'KeyError' in raised and 'xxx' in flooded and fine == 'sunny'
  numbers = describe([trajectory], [Scores()])
  assert numbers['rollout/refused_calls'] == 2 and numbers['rollout/cut_observations'] == 1


def test_call_that_was_cut_off_is_counted():
  text = f'{block("BAKO")}\n<tool_call>\n{{"name": "get_pri'
  trajectory, *_ = roll(says(text + ' and more'), limits=Limits(turn_tokens=len(TEMPLATE.encode(text))))
  numbers = describe([trajectory], [Scores()])
  assert numbers['status/out_of_tokens'] == numbers['fault/truncated'] == 1 and numbers['rollout/refused_calls'] == 0


@pytest.mark.parametrize(
  ('fate', 'error'),
  [
    ('raise', 'ZeroDivisionError'),
    ('die', 'the database is gone'),
    ('forget', 'answered 1 of 2 calls'),
    ('hang', 'no answer to 2 calls within 0.05 s'),
    ('cancel', 'CancelledError'),
    ('odd', 'answered with NoneType'),
  ],
)
def test_broken_environment_fails_its_rollout_and_is_closed(fate, error):
  environment = ScriptedEnvironment(lambda call: '', fate=fate)
  script = says(f'{block("BAKO")}\n{block("CIRU")}{END}')
  limits = Limits(step_seconds=0.05) if fate == 'hang' else Limits()
  trajectory, sampler, _ = roll(script, environment=environment, limits=limits)
  assert trajectory.status is Status.FAILED and error in trajectory.error
  assert len(trajectory.turns) == 1 and environment.closed == 1 and len(sampler.released) == 1


def test_environment_that_does_not_open_fails_its_rollout():
  def open_environment(task, seed):
    raise OSError('connection refused')

  sampler = ScriptedSampler(says(END))
  world = Rollouts(sampler, TEMPLATE, open_environment, Limits(), Decoding())
  trajectory = asyncio.run(run(TASK, 0, 0, world, seed='0'))
  assert trajectory.status is Status.FAILED and not sampler.requests and len(sampler.released) == 1
  assert 'task task could not be opened: OSError: connection refused' in trajectory.error


def test_environment_that_does_not_close_leaves_its_rollout_as_it_is():
  trajectory, sampler, environment = roll(says(END), environment=ScriptedEnvironment(str, fate='close'))
  assert trajectory.status is Status.FINISHED and environment.closed == 1 and len(sampler.released) == 1


def test_step_that_ignores_its_cancellation_does_not_hold_the_rollout():
  environment = ScriptedEnvironment(str, fate='ignore')
  sampler = ScriptedSampler(says(block('BAKO') + END))
  world = Rollouts(sampler, TEMPLATE, lambda t, s: environment, Limits(step_seconds=0.05), Decoding())

  async def scene():
    trajectory = await asyncio.wait_for(run(TASK, 0, 0, world, seed='0'), 300)
    environment._fate = ''  # or the loop would wait for the step at its end
    return trajectory

  trajectory = asyncio.run(scene())
  assert trajectory.status is Status.FAILED and 'within 0.05 s' in trajectory.error and environment.closed == 1


def test_cancelled_rollout_frees_its_environment_and_its_session():
  environment = ScriptedEnvironment(str, fate='hang')
  sampler = ScriptedSampler(says(block('BAKO') + END))
  world = Rollouts(sampler, TEMPLATE, lambda t, s: environment, Limits(), Decoding())

  async def scene():
    rollout = asyncio.ensure_future(run(TASK, 0, 0, world, seed='0'))
    while not environment.steps:
      await asyncio.sleep(0)
    rollout.cancel()
    with pytest.raises(asyncio.CancelledError):
      await rollout

  asyncio.run(scene())
  assert environment.closed == 1 and len(sampler.released) == 1


def test_broken_engine_fails_the_rollout():
  trajectory, sampler, environment = roll(broken_engine)
  assert trajectory.status is Status.FAILED and 'the engine is gone' in trajectory.error
  assert environment.closed == 1 and len(sampler.released) == 1


def test_prompt_beyond_its_limit_fails_before_anything_is_opened():
  trajectory, sampler, environment = roll(says(END), limits=Limits(prompt_tokens=4))
  assert trajectory.status is Status.FAILED and 'the limit is 4' in trajectory.error
  assert not sampler.requests and environment.closed == 0


def test_id_without_a_text_is_data():
  beyond = TEMPLATE.vocab_size + 5
  trajectory, *_ = roll(lambda session, tokens: [beyond, TEMPLATE.stop_ids[0]])
  assert trajectory.status is Status.FINISHED and trajectory.answer == '\ufffd'
  assert trajectory.turns[0].tokens[0] == beyond and not trajectory.turns[0].observations
  assert describe([trajectory], [Scores()])['fault/unknown_id'] == 1


def test_id_without_a_text_does_not_hinder_the_calls_around_it():
  beyond = TEMPLATE.vocab_size + 5
  call = (*TEMPLATE.encode(block('BAKO')), beyond, TEMPLATE.stop_ids[0])
  trajectory, _, environment = roll(lambda session, tokens: TEMPLATE.encode(END) if beyond in tokens else call)
  assert trajectory.status is Status.FINISHED and len(environment.steps) == 1
  assert [seen.ok for seen in trajectory.turns[0].observations] == [True]


def test_batch_is_in_order_bounded_and_seeded_by_place():
  sampler = ScriptedSampler(says(END), concurrency=3)
  world = Rollouts(sampler, TEMPLATE, lambda t, s: ScriptedEnvironment(lambda c: ''), Limits(), Decoding())

  async def score(trajectory):
    return Scores(tool=float(trajectory.group), summary=float(trajectory.index))

  tasks = [dataclasses.replace(TASK, id=name) for name in ('a', 'b', 'a')]
  trajectories, scores = asyncio.run(collect(tasks, world, score, group_size=4, seed='7/0'))
  assert [(t.group, t.index) for t in trajectories] == [(g, i) for g in range(3) for i in range(4)]
  assert [s.tool for s in scores] == [t.group for t in trajectories]
  assert sampler.most_live <= 3
  assert len({request['seed'] for request in sampler.requests}) == 12


def test_every_turn_has_a_seed_of_its_own_and_siblings_share_their_environments():
  opened = []

  def open_environment(task, seed):
    opened.append(seed)
    return ScriptedEnvironment(lambda call: '42')

  def seeds():
    opened.clear()
    sampler = ScriptedSampler(says(block('BAKO') + END, block('CIRU') + END, END))
    world = Rollouts(sampler, TEMPLATE, open_environment, Limits(), Decoding())
    for index in range(2):
      asyncio.run(run(TASK, 0, index, world, seed='0'))
    return [request['seed'] for request in sampler.requests], list(opened)

  turns, environments = seeds()
  assert (
    len(turns) == len(set(turns)) == 6
    and len(environments) == 2
    and len(set(environments)) == 1
    and not {*turns} & {*environments}
  )
  assert (turns, environments) == seeds()


def test_own_bug_in_scoring_ends_the_batch_loudly():
  world = Rollouts(
    ScriptedSampler(says(END)), TEMPLATE, lambda t, s: ScriptedEnvironment(lambda c: ''), Limits(), Decoding()
  )

  async def score(trajectory):
    raise KeyError('a typo')

  with pytest.raises(ExceptionGroup) as caught:
    asyncio.run(collect([TASK], world, score, group_size=2, seed='0'))
  assert caught.group_contains(KeyError, match='a typo')


def test_seeds_depend_on_every_part_and_fit_31_bits():
  seeds = {seed_of('0', step, index) for step in range(20) for index in range(20)}
  assert len(seeds) == 400 and max(seeds) < 2**31
  assert seed_of('a', 1) == seed_of('a', 1)


def test_call_arguments_reach_the_environment_as_they_were_written():
  _, _, environment = roll(says(block('BAKO') + END, END))
  assert environment.steps == [(ToolCall('get_price', {'ticker': 'BAKO'}),)]


def test_cycle_collector_is_as_it_was_after_the_rollouts_even_if_they_break():
  before = gc.get_threshold()
  with pytest.raises(ZeroDivisionError), rarely_interrupted():
    assert gc.get_threshold() != before and gc.get_freeze_count() > 0
    raise ZeroDivisionError
  assert gc.get_threshold() == before and gc.get_freeze_count() == 0


def test_prompt_of_a_group_is_rendered_once():
  rendered = []
  template = Template(make_tokenizer([make_task(0, 'train', index) for index in range(20)]))
  prompt = template.prompt
  template.prompt = lambda messages, tools: rendered.append(messages) or prompt(messages, tools)
  world = Rollouts(
    ScriptedSampler(says(f'42{END}')), template, lambda task, seed: ScriptedEnvironment(str), Limits(), Decoding()
  )
  trajectories, _ = asyncio.run(collect([TASK, TASK], world, no_score, group_size=3, seed='0'))
  assert len(rendered) == 2 and len({t.prompt for t in trajectories}) == 1


async def no_score(trajectory):
  return Scores()
