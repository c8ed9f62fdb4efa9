"""Laws of a run's endpoints: what is missing is refused at once, the parts share one client, a replay needs none."""

import asyncio
import dataclasses

import pytest
from endpoint import Play, ScriptedEndpoint

from slca_jax.config import build
from slca_jax.dialogue import Message, Observation, Parsed, Status, Task, Tool, ToolCall, Trajectory, Turn
from slca_jax.errors import ConfigError
from slca_jax.quickstart.world import make_task
from slca_jax.rewards.judge import BiasedJudge, NoisyJudge, RuleJudge
from slca_jax.rewards.llm_judge import CompletenessJudge, LLMJudge, SolvedJudge
from slca_jax.train import endpoints, worlds
from slca_jax.train.run import remember
from slca_jax.train.settings import RLConfig

CALL = ToolCall('get_price', {'ticker': 'AAPL'})
PRICE = Tool('get_price', 'A price.', {'type': 'object', 'properties': {'ticker': {'type': 'string'}}})
RECORD = {'name': 'get_price', 'arguments': {'ticker': 'AAPL'}, 'content': '189.5'}
TASK = Task('t', (PRICE,), (Message('user', 'What does AAPL cost?'),), ((CALL,),), meta={'recorded': [RECORD]})
STEP = Turn((), (), '', Parsed(((CALL,),), (), 1, 1), (Observation('189.5'),))
ROLLOUT = Trajectory(TASK, 0, 0, (), (STEP, Turn((), (), 'It costs 189.5.', Parsed())), Status.FINISHED)

MODEL = {'base_url': 'http://127.0.0.1:9/v1', 'model': 'm', 'retries': 0, 'request_seconds': 60.0}
SIMULATED = {'environment': {'backend': 'simulated', 'simulator': MODEL}}
JUDGED = {'judge': {'kind': 'llm', 'endpoint': MODEL}}


def at(server, *, judge=True, **changes):
  """A run whose simulator and judge are at the server."""
  model = {**MODEL, 'base_url': server.url}
  return build(
    RLConfig,
    {
      'environment': {'backend': 'simulated', 'simulator': {**model, 'deadline': 60.0}},
      'judge': {'kind': 'llm', 'endpoint': model} if judge else {},
      'referee': {**model, 'sampling': {'temperature': 0.6}},
      **changes,
    },
  )


def answer(request):
  """Plays the part that a prompt is for."""
  system = request['messages'][0]['content']
  if '<tool_response>' in system:
    return '<tool_response>{"price": 190}</tool_response>'
  if '<verdict>' in system:
    return '<verdict>Solved</verdict>'
  if '<completeness>' in system:
    return '<completeness>0.5</completeness>'
  if '<rating>' in system:
    return '<response_quality><rating>good</rating></response_quality>'
  return 'ready'


@pytest.mark.parametrize(
  ('change', 'says'),
  [
    ({'environment': {'backend': 'simulated'}}, 'environment.simulator.model is empty'),
    ({'environment': {'backend': 'simulated', 'simulator': {'model': 'm'}}}, "environment.simulator.base_url is ''"),
    ({'judge': {'kind': 'llm'}}, 'judge.endpoint.model is empty'),
    ({'method': {'estimator': 'toolpo'}, 'scoring': {'outcome': 'judge'}}, 'referee.model is empty'),
    ({'method': {'estimator': 'rltr'}, 'scoring': {'completeness': 'judge'}}, 'referee.model is empty'),
    ({'method': {'estimator': 'slca', 'protocol': 'execution'}}, 'referee.model is empty'),
    (
      {'method': {'estimator': 'rltr'}, 'scoring': {'completeness': 'judge'}, 'referee': MODEL},
      'referee.sampling.temperature is 0; 3 samples would be alike',
    ),
    ({**SIMULATED, 'rollout': {'limits': {'step_seconds': 60.0}}}, 'rollout.limits.step_seconds is 60'),
    ({'environment': {'definition': False}}, 'definition is False; that has an effect with backend simulated'),
    (
      {'environment': {'backend': 'imagined'}},
      "environment: backend is 'imagined'; it takes one of 'recorded', 'simulated', 'mcp', or FILE.py:NAME",
    ),
    ({'judge': {'most_characters': 5}}, 'most_characters is 5'),
    ({'cache': {'replay': True, 'keep': False}}, 'replay is True and keep False'),
  ],
)
def test_endpoint_that_is_missing_is_refused_at_once_and_by_its_key(change, says):
  with pytest.raises(ConfigError) as caught:
    build(RLConfig, change)
  assert says in str(caught.value)


def test_replay_needs_no_address():
  simulator = {'model': 'm', 'deadline': 60.0}
  build(RLConfig, {'environment': {'backend': 'simulated', 'simulator': simulator}, 'cache': {'replay': True}})


def test_defaults_of_the_parts_are_the_papers():
  simulator, judge = RLConfig().environment.simulator, RLConfig().judge.endpoint
  assert (simulator.sampling.temperature, simulator.sampling.max_tokens, simulator.deadline) == (0.6, 4096, 540.0)
  assert (judge.sampling.temperature, judge.sampling.max_tokens) == (0.0, 8192)


def test_run_without_endpoints_has_none_and_no_numbers(tmp_path):
  asked = endpoints.connect(build(RLConfig, {'output': str(tmp_path)}))
  assert list(asked) == [] and asked.numbers() == {}
  endpoints.probe(build(RLConfig, {}))


def test_key_that_is_not_set_is_refused_before_anything_is_sent(monkeypatch):
  monkeypatch.delenv('NO_KEY', raising=False)
  config = build(RLConfig, {'judge': {'kind': 'llm', 'endpoint': {**MODEL, 'api_key_env': 'NO_KEY'}}})
  with pytest.raises(ConfigError, match=r"judge\.api_key_env names 'NO_KEY', which is not set"):
    endpoints.connect(config)


def test_probe_names_the_part_that_cannot_be_used(tmp_path):
  with ScriptedEndpoint(Play(status=401)) as server:
    config = build(RLConfig, {'judge': {'kind': 'llm', 'endpoint': {**MODEL, 'base_url': server.url}}})
    with pytest.raises(ConfigError, match=r'judge \(m at http.*status 401 \(set the environment variable'):
      endpoints.probe(config)
  assert server.requests[0]['max_tokens'] == 16


def test_tools_are_simulated_unless_a_blueprint_or_a_record_answers(tmp_path):
  async def observe(config, task):
    asked = endpoints.connect(config)
    environment = worlds.opener(config.environment, asked)(task, 0)
    try:
      return [seen.content for seen in await environment.step([CALL])], asked.numbers()
    finally:
      await asked.close()

  with ScriptedEndpoint(answer) as server:
    config = at(server, output=str(tmp_path))
    seen, numbers = asyncio.run(observe(config, TASK))
    assert seen == ['{"price": 190}'] and numbers['llm/simulator/requests'] == 1
    first = dataclasses.replace(config.environment, recorded_first=True)
    assert asyncio.run(observe(dataclasses.replace(config, environment=first), TASK))[0] == ['189.5']
    recorded = build(RLConfig, {'output': str(tmp_path)})
    assert asyncio.run(observe(recorded, TASK)) == (['189.5'], {})
    [price], _ = asyncio.run(observe(config, make_task(0, 'train', 0)))
    assert price == "Error: no ticker named 'AAPL'" and len(server.requests) == 1


def test_ablation_without_sgls_reaches_the_simulator_with_any_call(tmp_path):
  async def observe(config):
    asked = endpoints.connect(config)
    seen = await worlds.opener(config.environment, asked)(TASK, 0).step([ToolCall('unknown', {})])
    await asked.close()
    return seen

  with ScriptedEndpoint(answer) as server:
    config = at(server, output=str(tmp_path))
    assert not asyncio.run(observe(config))[0].ok
    unguided = dataclasses.replace(config.environment, checks=False, definition=False)
    assert asyncio.run(observe(dataclasses.replace(config, environment=unguided)))[0].ok
  assert '<definition>' not in server.requests[0]['messages'][1]['content']


def test_evaluation_asks_the_same_judge_undisturbed():
  with ScriptedEndpoint(answer) as server:
    config = at(server)
    asked = endpoints.connect(config)
    disturbed = dataclasses.replace(config.judge, noise=0.3, bias=0.25)
    rated = worlds.judge(disturbed, asked)
    assert isinstance(rated, NoisyJudge) and isinstance(rated.judge, BiasedJudge)
    assert isinstance(rated.judge.judge, LLMJudge)
    fair = worlds.scorer(dataclasses.replace(config, judge=disturbed), asked, disturbed=False)
    assert isinstance(fair.keywords['judge'], LLMJudge)
  assert isinstance(worlds.judge(RLConfig().judge), RuleJudge)


@pytest.mark.parametrize(
  ('method', 'scoring', 'kind', 'tool', 'outcome'),
  [
    ({'estimator': 'slca', 'protocol': 'execution'}, {}, SolvedJudge, 1.0, 1.75),
    ({'estimator': 'toolpo'}, {'outcome': 'judge'}, SolvedJudge, 1.0, 1.0),
    ({'estimator': 'rltr'}, {'completeness': 'judge'}, CompletenessJudge, 0.5, 1.75),
    ({'estimator': 'slca'}, {}, type(None), 1.0, 1.75),
  ],
)
def test_each_protocol_gets_the_second_judge_it_asks(method, scoring, kind, tool, outcome, tmp_path):
  async def rate(config):
    asked = endpoints.connect(config)
    worlds.check_method(config.method, config.scoring, has_referee=asked.referee is not None)
    score = worlds.scorer(config, asked)
    assert isinstance(score.keywords['referee'], kind)
    scores = await score(ROLLOUT, seed=5)
    await asked.close()
    return scores

  with ScriptedEndpoint(answer) as server:
    scores = asyncio.run(rate(at(server, method=method, scoring=scoring, output=str(tmp_path))))
  assert (scores.tool, scores.summary, scores.outcome) == (tool, 0.75, outcome)


def test_replay_gives_the_same_scores_and_observations_without_the_endpoint(tmp_path):
  async def play(config):
    asked = endpoints.connect(config)
    environment = worlds.opener(config.environment, asked)(TASK, 0)
    seen = await environment.step([CALL])
    scores = await worlds.scorer(config, asked)(ROLLOUT, seed=5)
    numbers = asked.numbers()
    await asked.close()
    return seen, scores, numbers

  with ScriptedEndpoint(answer) as server:
    config = at(server, output=str(tmp_path / 'first'))
    seen, scores, numbers = asyncio.run(play(config))
    assert numbers['llm/simulator/requests'] == numbers['llm/judge/requests'] == 1
  cache = dataclasses.replace(config.cache, folder=str(tmp_path / 'first' / 'answers'), replay=True)
  again = asyncio.run(play(dataclasses.replace(config, cache=cache, output=str(tmp_path / 'second'))))
  assert again[:2] == (seen, scores) and again[2]['llm/judge/requests'] == 0
  assert again[2]['llm/simulator/cache_hits'] == again[2]['llm/judge/cache_hits'] == 1


def test_endpoint_may_move_when_a_run_is_resumed_but_not_its_model(tmp_path):
  def settings(**change):
    return {'judge': {'endpoint': {'base_url': 'http://a/v1', 'model': 'm', 'deadline': 5.0, **change}}}

  remember(tmp_path, settings())
  remember(tmp_path, settings(base_url='http://b/v1', deadline=9.0))
  with pytest.raises(ConfigError, match=r"\['judge'\]\['endpoint'\]\['model'\]: 'm' -> 'other'"):
    remember(tmp_path, settings(model='other'))
