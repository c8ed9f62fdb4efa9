"""What of a demonstration is learned, and that it is what a rollout that said the same would learn."""

import asyncio
import dataclasses
import pathlib

import numpy as np
import pytest
from fakes import ScriptedSampler
from records import DEMONSTRATIONS, OTHERS

from slca_jax.chat.template import Template
from slca_jax.data import sft
from slca_jax.data.formats.read import read
from slca_jax.data.formats.row import GOLD, dialogue_of, turns_of
from slca_jax.data.sft import BadMask, Learned
from slca_jax.data.tasks import dialogue_from_json, dialogue_to_json, read_dialogues, write_dialogues
from slca_jax.dialogue import Dialogue, Message, Observation, Task, Tool, ToolCall
from slca_jax.errors import DataError
from slca_jax.quickstart.demonstrations import demonstrate
from slca_jax.quickstart.tokenizer import make_tokenizer
from slca_jax.quickstart.world import KINDS, make_task
from slca_jax.rollout.collect import Rollouts, run
from slca_jax.rollout.settings import Decoding, Limits
from slca_jax.rollout.trees import flatten

TEMPLATE = Template(make_tokenizer([make_task(0, 'train', index) for index in range(20)]))
DATA = pathlib.Path(__file__).parents[3] / 'shared' / 'data'
PLENTY = 1_000_000
TOOL = Tool('get', 'Gets.', {'type': 'object', 'properties': {'x': {'type': 'string'}}})
SETS = Tool('set', 'Sets.', {'type': 'object', 'properties': {'x': {'type': 'string'}}}, writes=True)


def shown(kind, *, efficient=True):
  task = make_task(0, 'train', 0, kind=kind)
  return Dialogue(task.id, task.tools, demonstrate(task, efficient=efficient))


def talk(*messages, context=None):
  """A dialogue of (role, content, calls...) with a call written as the name of its argument."""
  made = [Message(role, content, tuple(ToolCall('get', {'x': x}) for x in xs)) for role, content, *xs in messages]
  return Dialogue('d', (TOOL, SETS), tuple(made), context)


def learned_texts(dialogue, **options):
  """The stretches of text that are learned."""
  example = sft.encode(dialogue, TEMPLATE, **options)
  edges = np.flatnonzero(np.diff(np.concatenate([[0], example.learned.astype(int), [0]])))
  return [TEMPLATE.decode(example.tokens[a:b], stops=True) for a, b in edges.reshape(-1, 2)]


class Replayed:
  """Answers with what the demonstration's tools returned, whatever is asked."""

  def __init__(self, tools, results):
    self.tools, self._results = tools, iter(results)

  async def step(self, calls):
    """The next results."""
    return [Observation(next(self._results)) for _ in calls]

  def close(self):
    """Nothing to end."""


def rolled(dialogue, context, template=TEMPLATE):
  """The ids of a rollout whose policy says what the assistant of the dialogue says."""
  turns = [m for m in dialogue.messages[context:] if m.role == 'assistant']
  results = [m.content for m in dialogue.messages[context:] if m.role == 'tool']
  said = iter(turns)
  sampler = ScriptedSampler(lambda session, tokens: template.turn(next(said)))
  limits = Limits(len(turns), 100, PLENTY, PLENTY, PLENTY, PLENTY)
  world = Rollouts(sampler, template, lambda task, seed: Replayed(dialogue.tools, results), limits, Decoding())
  task = Task(dialogue.id, dialogue.tools, dialogue.messages[:context])
  trajectory = asyncio.run(run(task, 0, 0, world, seed='0'))
  assert len(trajectory.turns) == len(turns), (dialogue.id, trajectory.status, trajectory.error)
  return trajectory.prompt, flatten(trajectory, 0)


def agrees(dialogue, template=TEMPLATE):
  """Asserts that prompt, ids and marks of a dialogue are those of the rollout."""
  context = dialogue.context or next(i for i, m in enumerate(dialogue.messages) if m.role == 'assistant')
  example = sft.encode(dialogue, template)
  prompt, response = rolled(dialogue, context, template)
  assert tuple(example.prompt) == prompt
  np.testing.assert_array_equal(example.tokens, response.tokens)
  np.testing.assert_array_equal(example.learned, response.sampled)


@pytest.mark.parametrize('kind', KINDS)
@pytest.mark.parametrize('efficient', [True, False])
def test_ids_and_marks_are_those_of_a_rollout_that_said_the_same(kind, efficient):
  agrees(shown(kind, efficient=efficient))


def user_turns(dialogue):
  """The dialogue's user turns one by one, each behind what came before: a rollout plays one of them."""
  for context in turns_of(dialogue):
    rest = range(context, len(dialogue.messages))
    end = next((i for i in rest if dialogue.messages[i].role == 'user'), len(dialogue.messages))
    if dialogue.messages[end - 1].role == 'assistant':
      yield dataclasses.replace(dialogue, messages=dialogue.messages[:end], context=context)


def paired(dialogue):
  """Whether every call but the last turn's has its result and its text is nothing but calls that can be read."""
  messages = dialogue.messages[dialogue.context :]
  calls = sum(len(m.calls) for m in messages[:-1])
  return calls == sum(m.role == 'tool' for m in messages) and not any('<tool_call>' in m.content for m in messages)


FORMATS = {
  f'{name}/{kind}': record for kind, rows in (('d', DEMONSTRATIONS), ('o', OTHERS)) for name, record in rows.items()
}


@pytest.mark.parametrize('name', FORMATS)
def test_marks_of_every_format_are_those_of_rollouts(name):
  for row in read([FORMATS[name]]):
    if row.tools or (row.task and GOLD in row.task.meta):
      pytest.skip('nothing is shown: tools alone, or gold that is not known in full')
    if row.format == 'tau2':
      pytest.skip('its steps have no recorded results to show')
    turns = list(filter(paired, user_turns(row.dialogue or dialogue_of(row.task))))
    assert turns
    for turn in turns:
      agrees(turn)


@pytest.mark.parametrize('name', ['toucan_preview/*sft*.jsonl', 'toolrl/rlla_sft.json', 'toolrl/test.parquet'])
def test_marks_of_published_rows_are_those_of_rollouts(name):
  if not DATA.is_dir():
    pytest.skip(f'{DATA} is not here')
  checked = 0
  for row in read(str(DATA / name), limit=40):
    dialogue = row.dialogue or dialogue_of(row.task)
    for turn in filter(paired, user_turns(dialogue)):
      agrees(turn)
      checked += 1
  assert checked >= 5


def test_results_and_headers_are_never_learned_and_the_separator_on_request_alone():
  dialogue = shown('two', efficient=False)
  said = [m for m in dialogue.messages if m.role == 'assistant']
  plain, more = learned_texts(dialogue), learned_texts(dialogue, separator=True)
  assert len(plain) == len(more) == len(said)
  assert all(text.endswith('<|im_end|>') for text in plain)
  assert more == [text + '\n' for text in plain]
  assert not any('<tool_response>' in text or '<|im_start|>' in text for text in more)


def test_a_turn_that_says_so_stays_as_context_with_the_same_ids():
  dialogue = shown('two', efficient=False)
  first = next(i for i, m in enumerate(dialogue.messages) if m.role == 'assistant')
  messages = list(dialogue.messages)
  messages[first] = dataclasses.replace(messages[first], learn=False)
  other = dataclasses.replace(dialogue, messages=tuple(messages))
  assert learned_texts(other) == learned_texts(dialogue)[1:]
  np.testing.assert_array_equal(sft.encode(other, TEMPLATE).tokens, sft.encode(dialogue, TEMPLATE).tokens)


def test_marks_of_messages_come_back_from_disk(tmp_path):
  dialogue = sft.without_waste(talk(('user', 'q'), ('assistant', '', 'a'), ('tool', 'Error: no'), ('assistant', 'so')))
  assert [m.learn for m in dialogue.messages] == [True, False, True, True]
  write_dialogues([dialogue], tmp_path / 'd.jsonl')
  assert read_dialogues(tmp_path / 'd.jsonl') == [dialogue]
  record = dialogue_to_json(dialogue)
  assert 'learn' not in record['messages'][0]
  record['messages'][1]['learn'] = 0
  with pytest.raises(TypeError, match='learn is 0'):
    dialogue_from_json(record)


def test_what_follows_the_last_learned_token_is_not_computed():
  dialogue = talk(('user', 'q'), ('assistant', '', 'a'), ('tool', 'x'), ('assistant', 'so'))
  last = dataclasses.replace(dialogue.messages[-1], learn=False)
  example = sft.encode(dataclasses.replace(dialogue, messages=(*dialogue.messages[:-1], last)), TEMPLATE)
  assert example.learned.all() and TEMPLATE.decode(example.tokens, stops=True).endswith('</tool_call><|im_end|>')


def test_dialogue_without_a_learned_turn_is_refused_by_name():
  silent = talk(('user', 'q'), ('assistant', 'so'))
  silent = dataclasses.replace(
    silent, messages=(silent.messages[0], dataclasses.replace(silent.messages[1], learn=False))
  )
  with pytest.raises(BadMask, match='dialogue d: none of its turns is learned'):
    sft.select(silent, Learned())
  with pytest.raises(BadMask, match='dialogue d: no token of it is learned'):
    sft.encode(silent, TEMPLATE)


def test_dialogue_that_is_learned_from_its_first_token_is_refused_by_name():
  class Silent:
    separator = ()

    def dialogue(self, messages, tools, *, context):
      _, *rest = TEMPLATE.dialogue(messages, tools, context=context)
      return [sft.Piece((), False), *rest]

  with pytest.raises(BadMask, match='dialogue d: its prompt has no tokens'):
    sft.encode(talk(('user', 'q'), ('assistant', 'so')), Silent())


def test_turns_whose_calls_were_refused_or_made_before_are_waste():
  dialogue = talk(
    ('user', 'q'),
    ('assistant', '', 'a', 'b'), ('tool', '1'), ('tool', 'Error: no'),  # one call is new and answered
    ('assistant', '', 'a'), ('tool', '1'),  # made before
    ('assistant', '', 'A', 'c'), ('tool', '1'), ('tool', '{"error": "gone"}'),  # made before, and refused
    ('assistant', '', 'd'), ('tool', '2'),
    ('assistant', 'so'),
    ('user', 'and now?'),
    ('assistant', '', 'a'), ('tool', '3'),  # another question
    ('assistant', '', 'e'),  # not answered: not refused
  )  # fmt: skip
  marks = [m.learn for m in sft.without_waste(dialogue).messages if m.role == 'assistant']
  assert marks == [True, False, False, True, True, True, True]
  assert sft.select(dialogue, Learned()) == dialogue
  assert sft.select(dialogue, Learned(wasteful=False)) == sft.without_waste(dialogue)


def test_a_call_is_no_repetition_once_something_was_written():
  call, write = ToolCall('get', {'x': 'a'}), ToolCall('set', {'x': 'b'})
  steps = [Message('assistant', '', (c,)) for c in (call, write, call, call)]
  messages = [m for step in steps for m in (step, Message('tool', 'ok'))]
  dialogue = Dialogue('d', (TOOL, SETS), (Message('user', 'q'), *messages, Message('assistant', 'so')))
  assert [m.learn for m in sft.without_waste(dialogue).messages if m.calls] == [True, True, True, False]


@pytest.mark.parametrize(
  ('text', 'refused'),
  [
    ('Error: there is no tool named x here.', True),
    ('Not executed: the call could not be read (x).', True),
    ('ValueError: no ticker', True),
    ('requests.exceptions.HTTPError: 404', True),
    ('Traceback (most recent call last):\n  File', True),
    ('MCP error -32602: invalid arguments', True),
    ('Error executing tool add: boom', True),
    ('{"error": "no such city"}', True),
    ('{"success": false}', True),
    ('{"isError": true, "content": []}', True),
    ('{"error": null, "rate": 3}', False),
    ('Error rates fell by 3%.', False),
    ('{"errors_found": 3}', False),
    ('{broken', False),
    ('Exceptional weather: sunny', False),
    ('', False),
  ],
)
def test_results_that_read_as_errors(text, refused):
  assert sft.refused(text) is refused


LONG = talk(
  ('user', 'q'), ('assistant', '', 'a'), ('tool', '1'), ('assistant', 'It is 1.'),
  ('user', 'and?'), ('assistant', 'Let me see.', 'b'), ('tool', '2'), ('assistant', '<think>2</think>It is 2.'),
)  # fmt: skip


def test_planner_ends_where_the_answer_stood_and_summariser_learns_it_alone():
  texts = learned_texts(sft.select(LONG, Learned('planner')))
  assert len(texts) == 3 and texts[-1] == '<answer><|im_end|>'
  assert 'It is' not in ''.join(texts) and 'Let me see.' in texts[1]
  assert learned_texts(sft.select(LONG, Learned('summary'))) == ['<think>2</think>It is 2.<|im_end|>']
  cut = dataclasses.replace(LONG, context=5)
  assert len(learned_texts(sft.select(cut, Learned('planner')))) == 2


def test_dialogue_that_ends_with_calls_keeps_them_in_a_plan_and_has_no_summary():
  cut = dataclasses.replace(LONG, messages=LONG.messages[:-2])
  assert sft.planner(cut).messages[-1] == cut.messages[-1]
  with pytest.raises(DataError, match='dialogue d ends with calls'):
    sft.select(cut, Learned('summary'))
