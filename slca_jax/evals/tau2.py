"""A policy as the agent of τ²-bench: tau2 runs tasks, users and rewards in its own process, our engine speaks.

Ids are kept as in training: what the policy sampled is never encoded again, what user and tools say is appended.
"""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from slca_jax.chat.calls import parse
from slca_jax.chat.decoding import OPEN
from slca_jax.config import require
from slca_jax.dialogue import Message, Observation, Scores, Status, Task, Tool, ToolCall, Trajectory, Turn
from slca_jax.errors import EnvironmentFailure, SamplerError, TemplateError
from slca_jax.evals import qwen
from slca_jax.evals.benchmark_settings import Tau2Settings
from slca_jax.evals.bridge import Bridge
from slca_jax.evals.measures import Measures
from slca_jax.rollout.collect import Rollouts, seed_of

SCRIPT = pathlib.Path(__file__).with_name('tau2_official.py')

Event = Mapping[str, Any]  # system, messages and tools where the agent is to speak; done at the end


def user_of(settings: Tau2Settings) -> tuple[str, dict[str, Any]]:
  """(the user's model as litellm names it, how it is called).

  Raises:
    ConfigError: there is to be a user and no model plays it, or its key is not in the environment.
  """
  if settings.solo:
    return '', {}
  require(bool(settings.user_model), 'tau2.user_model is empty; name the model that plays the user, or set tau2.solo')
  arguments: dict[str, Any] = {}
  if settings.user_temperature is not None:
    arguments['temperature'] = settings.user_temperature
  if settings.user_key_env:
    key = os.environ.get(settings.user_key_env, '')
    require(bool(key), f'tau2.user_key_env is {settings.user_key_env!r}; that variable is not set')
    arguments['api_key'] = key
  if not settings.user_url:
    return settings.user_model, arguments
  return f'openai/{settings.user_model}', {'api_key': 'none', 'api_base': settings.user_url, **arguments}


async def simulate(
  domain: str, task: str, index: int, world: Rollouts, official: Bridge, settings: Tau2Settings, *, seed: str
) -> tuple[Trajectory, Scores]:
  """One simulation: what the policy said, and tau2's reward as the outcome.

  A simulation that broke for another reason than the agent is FAILED and has no score.
  """
  session = f'{seed}/{domain}/{task}/{index}'
  user, arguments = user_of(settings)
  agent = Agent(f'tau2/{domain}/{task}', index, world, session)
  try:
    event: Event = await official.ask(
      'start',
      domain=domain,
      task=task,
      solo=settings.solo,
      user=user,
      user_arguments=arguments,
      max_steps=settings.max_steps,
      max_errors=settings.max_errors,
      seed=seed_of(session, 'user'),
    )
    run = event['run']
    while 'done' not in event:
      content, calls = await agent.speak(event)
      event = await official.ask('reply', run=run, content=content, calls=calls)
    return agent.finished(event['done'])
  except (SamplerError, EnvironmentFailure, TemplateError) as error:
    return agent.failed(f'{type(error).__name__}: {error}'), Scores()
  finally:
    with contextlib.suppress(SamplerError):
      await world.sampler.release(session)


class Agent:
  """The policy in one simulation, and the trajectory that comes of it."""

  def __init__(self, name: str, index: int, world: Rollouts, session: str):
    self._name, self._index, self._world, self._session = name, index, world, session
    self._task = Task(name, (), ())
    self._prompt: tuple[int, ...] = ()
    self._ids: list[int] = []
    self._turns: list[Turn] = []
    self._known = 0  # messages of tau2 that are in the ids
    self._status = Status.FINISHED

  async def speak(self, event: Event) -> tuple[str, list[tuple[str, dict[str, Any]]]]:
    """What the policy says next: (words, calls). Neither, which tau2 scores as 0, where its tokens are used up."""
    self._listen(event)
    template, limits = self._world.template, self._world.limits
    room = min(limits.turn_tokens, limits.response_tokens - (len(self._ids) - len(self._prompt)))
    if len(self._prompt) > limits.prompt_tokens or room < 1:
      self._status = Status.OUT_OF_TOKENS
      return '', []
    sample = await self._world.sampler.generate(
      self._ids,
      session=self._session,
      max_tokens=room,
      temperature=self._world.decoding.temperature,
      top_p=self._world.decoding.top_p,
      stop=template.stop_ids,
      seed=seed_of(self._session, len(self._turns)),
    )
    whole = sample.finish == 'stop'
    text = template.decode(sample.tokens)
    parsed = parse(text, reading=self._world.decoding.reading, finished=whole)
    self._ids += sample.tokens
    self._turns.append(Turn(sample.tokens, sample.logprobs, text, parsed, versions=sample.versions))
    if not whole:
      self._status = Status.OUT_OF_TOKENS
      return '', []
    words = qwen.answer(text)
    words = words.partition(OPEN)[0] if parsed.calls else words
    return words.strip(), [(call.name, dict(call.arguments)) for call in parsed.calls]

  def finished(self, told: Mapping[str, Any]) -> tuple[Trajectory, Scores]:
    """The trajectory and tau2's reward; no score if tau2 broke though the agent had spoken."""
    spoke = self._status is Status.FINISHED and bool(self._turns) and bool(self._turns[-1].text.strip())
    if told['error'] and spoke:
      return self.failed(told['error']), Scores()
    status = Status.OUT_OF_TURNS if 'MAX_STEPS' in told['ended'].upper() else self._status
    why = {'ended': told['ended'], 'error': told['error'], 'messages': told['messages']}
    return self._trajectory(status), Scores(outcome=float(told['reward']), why=why)

  def failed(self, error: str) -> Trajectory:
    """The trajectory of a simulation that cannot be scored."""
    return dataclasses.replace(self._trajectory(Status.FAILED), error=error)

  def _trajectory(self, status: Status) -> Trajectory:
    return Trajectory(self._task, 0, self._index, self._prompt, tuple(self._turns), status)

  def _listen(self, event: Event) -> None:
    """Takes in what was said since the policy spoke."""
    said = event['messages'][self._known :]
    if not self._prompt:
      tools = tuple(Tool(one['name'], one['description'], one['parameters']) for one in event['tools'])
      messages = (*(Message('system', text) for text in event['system']), *map(_message, said))
      self._task = Task(self._name, tools, messages)
      self._prompt = self._world.template.prompt(messages, tools)
      self._ids = list(self._prompt)
    else:
      said = said[1:]  # the first is the policy's own
      turn = self._turns[-1]
      reply = self._world.template.follow([_message(one) for one in said], turn.tokens)
      seen = tuple(Observation(one['content'], ok=not one['error']) for one in said if one['role'] == 'tool')
      self._turns[-1] = dataclasses.replace(turn, observations=seen, reply=reply)
      self._ids += reply
    self._known = len(event['messages'])


def measures(trajectory: Trajectory, scores: Scores) -> Measures:
  """What is told of one simulation; nothing if it failed. `success` is a reward of 1, as pass^k counts."""
  if trajectory.status is Status.FAILED or scores.outcome is None:
    return {}
  return {
    'reward': scores.outcome,
    'success': float(abs(scores.outcome - 1) < 1e-6),
    'turns': float(len(trajectory.turns)),
    'calls': float(sum(len(turn.calls) for turn in trajectory.turns)),
    'refused_calls': float(sum(not seen.ok for seen in trajectory.observations)),
    'no_call': float(not trajectory.tool_turns),
    'sampled_tokens': float(sum(len(turn.tokens) for turn in trajectory.turns)),
  }


def _message(told: Mapping[str, Any]) -> Message:
  calls: Sequence[tuple[str, dict[str, Any]]] = told['calls'] if told['role'] == 'assistant' else ()
  return Message(told['role'], told['content'], tuple(ToolCall(name, given) for name, given in calls))
