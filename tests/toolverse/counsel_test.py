"""A scripted model words questions and proposes edges: what will do is taken, the rest has a reason and a fallback."""

import json
import random
import re

import pytest
from endpoint import BROKEN, Play, ScriptedEndpoint
from travel import BOOK, CALENDAR, EVENT, EXPENSE, GRAPH, HOTELS, OFFERED, Plain

from slca_jax.errors import EndpointFailure, Unreadable
from slca_jax.llm.answers import Answers
from slca_jax.llm.chat import ChatModel
from slca_jax.llm.replies import Reply
from slca_jax.llm.settings import Endpoint
from slca_jax.toolverse import asking
from slca_jax.toolverse.counsel import Counsel, Desk
from slca_jax.toolverse.graph import sanitise
from slca_jax.toolverse.inference import infer
from slca_jax.toolverse.inversion import Broken, invert
from slca_jax.toolverse.sampling import sample_stages
from slca_jax.toolverse.wording import Brief

STAGES = sample_stages(GRAPH, width=2, chance=random.Random(0)).stages


def counsel(server, answers=None, **changes):
  endpoint = Endpoint(
    base_url=server.url, model='scripted', first_pause=0.01, retries=1, rereads=1, input_price=10.0, **changes
  )
  return Counsel(ChatModel('writer', endpoint, answers=answers))


def told(request):
  """The steps that a question's writer was shown."""
  return json.loads(re.search(r'```json\n(.*?)\n```', request['messages'][-1]['content'], re.S)[1])


def plainly(request):
  """A question that states all it must, in words of its own."""
  actions = [action for step in told(request) for action in step]
  given = [f'{name} {value}' for action in actions for name, value in action.get('given', {}).items()]
  picks = [part['pick'] for action in actions for part in action.get('found', {}).values() if 'pick' in part]
  return json.dumps({'question': f'My trip: {"; ".join([*given, *picks])}.'})


def travel(script, *, turns=1, answers=None, seed=0):
  """(tasks, what the desk noted, requests)"""
  with ScriptedEndpoint(script) as server, counsel(server, answers) as model:
    desk = Desk()
    made = invert('travel', OFFERED, GRAPH, STAGES, Plain, seed=seed, write=desk.writer(model), turns=turns)
    assert not isinstance(made, Broken)
    return made, desk, server.requests


def test_a_question_that_states_everything_is_taken_and_paid():
  for seed in range(4):
    [task], desk, asked = travel(plainly, seed=seed)
    assert task.question.startswith('My trip: ') and task.meta['writer'] == 'given' and len(asked) == 1
    assert desk.counts == {'question': 1} and not desk.unanswered
    assert desk.cost == {'prompt_tokens': 100, 'completion_tokens': 10, 'cost': pytest.approx(100 * 10 / 1e6)}


def test_a_writer_is_not_shown_what_the_user_cannot_know():
  [task], _, [request] = travel(plainly)
  made = {call.name: call.arguments for step in task.gold for call in step}
  shown = json.dumps(request['messages'])
  assert made[EVENT]['query'] in shown
  assert made[BOOK]['hotel_id'] not in shown and made[EXPENSE]['booking_id'] not in shown
  assert {'in the answer of': EVENT} in told(request)[1][0]['found'].values()


def test_a_question_that_leaves_out_a_value_is_asked_for_again():
  replies = [lambda _: '{"question": "Book me a hotel."}', plainly]
  [task], desk, asked = travel(lambda request: replies.pop(0)(request))
  assert task.meta['writer'] == 'given' and len(asked) == 2 and desk.cost['prompt_tokens'] == 200
  assert asked[0]['seed'] != asked[1]['seed']


@pytest.mark.parametrize(
  ('reply', 'reason'),
  [
    ('{"question": "Book me a hotel."}', 'question: the question leaves out'),
    ('Sure, here it is!', 'question: the reply holds no JSON'),
    ('{"question": ""}', 'question: the reply has no question'),
    (Play(refusal='I would rather not.'), 'question: refusal'),
    (Play(status=400, body='{"error": {"message": "too long"}}'), 'question: status_400'),
  ],
)
def test_where_no_reply_will_do_the_template_words_and_the_reason_is_counted(reply, reason):
  [task], desk, _ = travel(lambda _: reply)
  assert task.meta['writer'] == 'template' and desk.counts == {reason: 1} and not desk.unanswered


def test_an_endpoint_that_is_down_leaves_the_question_to_the_template_and_to_a_later_run():
  [task], desk, asked = travel(lambda _: BROKEN)
  assert task.meta['writer'] == 'template' and desk.unanswered == 1 and len(asked) == 2
  assert desk.counts == {'question: status_500': 1}


def test_an_endpoint_that_refuses_the_key_ends_the_run():
  with pytest.raises(EndpointFailure, match='status 401'):
    travel(lambda _: Play(status=401, body='{}'))


def test_a_tools_name_is_no_word_of_a_user():
  reply = lambda request: plainly(request).replace('My trip', f'Call {HOTELS} for my trip')
  [task], desk, _ = travel(reply)
  assert task.meta['writer'] == 'template' and desk.counts == {'question: the question names a tool': 1}


def test_a_dialogue_of_several_turns_goes_on_from_the_models_words():
  (first, second), desk, asked = travel(plainly, turns=2)
  assert second.messages[0] == first.messages[0] and first.question.startswith('My trip')
  assert first.question in asked[1]['messages'][-1]['content'] and desk.counts == {'question': 2}
  assert not any(output in asked[1]['messages'][-1]['content'] for step in first.meta['outputs'] for output in step)


def test_kept_answers_are_not_asked_for_again(tmp_path):
  tasks, _, _ = travel(plainly, answers=Answers(tmp_path))
  again, desk, asked = travel(lambda _: BROKEN, answers=Answers(tmp_path))
  assert again == tasks and not asked and desk.counts == {'question': 1} and desk.cost['cost'] == 0


def test_several_threads_ask_one_model_at_once():
  import concurrent.futures
  import threading

  both = threading.Barrier(2)  # a reply is sent only once both questions are there

  def script(request):
    both.wait(300)
    return plainly(request)

  with ScriptedEndpoint(script) as server, counsel(server) as model, concurrent.futures.ThreadPoolExecutor(2) as pool:
    make = lambda seed: invert('travel', OFFERED, GRAPH, STAGES, Plain, seed=seed, write=Desk().writer(model))
    assert all(task.meta['writer'] == 'given' for made in pool.map(make, (0, 1)) for task in made)
    assert server.most_live == 2


def propose(reply):
  with ScriptedEndpoint(lambda _: reply) as server, counsel(server) as model:
    desk = Desk()
    return infer(OFFERED, suggest=desk.proposer(model)), desk


def test_proposed_edges_are_semantic_and_sanitising_judges_them():
  pairs = [
    {'first': BOOK, 'then': CALENDAR, 'why': 'plans follow bookings'},
    {'first': EXPENSE, 'then': HOTELS, 'why': 'nonsense'},  # closes a cycle, which it does not survive
    {'first': 'fly', 'then': BOOK},
  ]
  graph, desk = propose(json.dumps({'pairs': pairs}))
  dag, removed = sanitise(graph)
  [edge] = [edge for edge in dag.edges if (edge.source, edge.target) == (BOOK, CALENDAR)]
  assert edge.kind == 'semantic' and edge.reason == 'a model says: plans follow bookings' and not edge.links
  assert [str(one.edge) for one in removed] == [f'fly → {BOOK}', f'{EXPENSE} → {HOTELS}']
  assert desk.counts == {'edges': 1} and desk.cost['completion_tokens'] == 10


@pytest.mark.parametrize(
  ('reply', 'reason'),
  [
    ('{"pairs": 3}', 'the reply has no list of pairs'),
    ('{"pairs": [["a", "b"]]}', 'a pair is none'),
    (json.dumps({'pairs': [{'first': 'a', 'then': 'b'}] * 201}), 'too many pairs'),
    ('{"pairs": [', 'the reply holds no JSON'),
  ],
)
def test_a_reply_that_names_no_pairs_leaves_the_graph_as_it_is(reply, reason):
  graph, desk = propose(reply)
  assert graph == infer(OFFERED) and desk.counts == {f'edges: {reason}': 1}


def test_an_endless_question_is_refused():
  brief = Brief(OFFERED, ())
  assert asking.read_question(Reply('{"question": " Hello. "}'), brief) == 'Hello.'
  with pytest.raises(Unreadable, match='too long: 5000 characters; 4000 are taken'):
    asking.read_question(Reply(json.dumps({'question': 'x' * 5000})), brief)
