"""Laws of inferred graphs: what names, types, verbs, executed calls and other opinions say about dependencies."""

import pytest
from travel import BOOK, CALENDAR, DETAIL, EVENT, EXPENSE, HOTELS, OFFERED, TOOLS, schema

from slca_jax.dialogue import Tool, ToolCall
from slca_jax.toolverse.fields import field_words, leaves, name_words, nouns, rank, same_thing, schema_leaves
from slca_jax.toolverse.graph import Edge, Link, sanitise, walk
from slca_jax.toolverse.inference import Seen, infer


def kinds(graph):
  return {(edge.source, edge.target): edge.kind for edge in graph.edges}


def rows(table, /, **properties):
  return {'type': 'object', 'properties': {table: {'type': 'array', 'items': schema(**properties)}}}


def test_travel_tools_depend_on_one_another_as_their_schemas_say():
  graph = infer(OFFERED)
  assert kinds(graph) == {
    (HOTELS, DETAIL): 'parameter',
    (HOTELS, BOOK): 'parameter',
    (DETAIL, BOOK): 'semantic',
    (EVENT, CALENDAR): 'parameter',
    (BOOK, EXPENSE): 'parameter',
  }
  links = {(edge.source, edge.target): edge.links for edge in graph.edges}
  assert links[HOTELS, BOOK] == (Link('hotels[].hotel_id', 'hotel_id'),)
  assert links[EVENT, CALENDAR] == (Link('date', 'date'),)
  assert set(walk(graph)) == set(TOOLS)


def test_a_tool_that_must_be_given_a_value_is_no_source_of_it():
  # get_hotel_detail and book_hotel repeat the hotel_id that they were called with.
  assert (BOOK, DETAIL) not in kinds(infer(OFFERED)) and (DETAIL, BOOK) in kinds(infer(OFFERED))
  assert kinds(infer([tool for tool in OFFERED if tool.name != HOTELS])) == {
    (DETAIL, BOOK): 'semantic',
    (EVENT, CALENDAR): 'parameter',
    (BOOK, EXPENSE): 'parameter',
  }


def test_an_id_is_that_of_the_record_around_it():
  tools = [
    Tool('listUsers', '', schema(), rows('users', id='string', name='string')),
    Tool('listOrders', '', schema(), rows('orders', id='string')),
    Tool('getOrderDetails', '', schema(id='string')),
    Tool('getUser', '', schema(userId='string')),
  ]
  graph = infer(tools)
  assert {(e.source, e.target, e.links[0].field) for e in graph.edges} == {
    ('listOrders', 'getOrderDetails', 'orders[].id'),
    ('listUsers', 'getUser', 'users[].id'),
  }


@pytest.mark.parametrize(('kind', 'found'), [('string', False), ('integer', True), ('number', True)])
def test_types_must_fit(kind, found):
  tools = [Tool('list_pets', '', schema(), rows('pets', pet_id='integer')), Tool('feed', '', schema(pet_id=kind))]
  assert bool(infer(tools).edges) is found


def test_keys_may_be_optional_and_other_values_must_be_required():
  tools = [
    Tool('locate', '', schema(ip='string'), schema(city='string', user_id='string')),
    Tool('forecast', '', schema(city='string?', user_id='string?')),
  ]
  assert [edge.links for edge in infer(tools).edges] == [(Link('user_id', 'user_id'),)]
  tools[1] = Tool('forecast', '', schema(city='string'))
  assert [edge.links for edge in infer(tools).edges] == [(Link('city', 'city'),)]


def test_verbs_order_tools_about_the_same_thing():
  names = ['cancel_booking', 'update_booking', 'create_booking', 'get_booking', 'search_bookings', 'ping']
  graph = infer([Tool(name, '', schema()) for name in names])
  assert walk(graph) == ('search_bookings', 'ping', 'get_booking', 'create_booking', 'update_booking', 'cancel_booking')
  assert set(kinds(graph).values()) == {'semantic'} and len(graph.edges) == 4


def test_executed_calls_show_fields_and_keys_that_no_schema_tells():
  tools = [
    Tool('list_trips', '', schema()),
    Tool('ticket', '', schema(reference='string')),
    Tool('pay', '', schema(sum='number')),
  ]
  assert not infer(tools).edges
  seen = [
    Seen(ToolCall('list_trips', {}), {'trips': [{'locator': 'QX71', 'day': '2026-01-02', 'seats': 2}]}),
    Seen(ToolCall('ticket', {'reference': 'QX71'}), {'reference': 'QX71', 'seats': 2}),
    Seen(ToolCall('pay', {'sum': 2}), {'status': 'success'}),
  ]
  [edge] = infer(tools, seen=seen).edges
  assert (edge.source, edge.target, edge.kind) == ('list_trips', 'ticket', 'parameter')
  assert edge.links == (Link('trips[].locator', 'reference'),)
  assert edge.reason == 'QX71 at trips[].locator of list_trips was accepted as reference'


def test_a_parameter_depends_on_as_many_sources_as_asked_for_the_natural_one_first():
  tools = [
    Tool('create_order', '', schema(), schema(order_id='string')),
    Tool('get_order', '', schema(order_id='string')),
    Tool('search_orders', '', schema(), rows('orders', order_id='string')),
  ]
  of_get = lambda graph: [edge.source for edge in graph.into('get_order')]
  assert of_get(infer(tools)) == ['search_orders']
  assert of_get(infer(tools, most_sources=2)) == ['search_orders', 'create_order']


def test_other_opinions_are_heard_and_judged():
  suggest = lambda tools: [Edge(EVENT, HOTELS, reason='first where'), Edge(EXPENSE, EVENT), Edge('fly', BOOK)]
  graph = infer(OFFERED, suggest=suggest)
  dag, removed = sanitise(graph)
  assert kinds(dag)[EVENT, HOTELS] == 'semantic'
  assert [str(removal.edge) for removal in removed] == ['fly → book_hotel', 'submit_expense → search_event']


def test_a_suggestion_beside_a_parameter_edge_adds_its_reason():
  graph = infer(OFFERED, suggest=lambda _: [Edge(BOOK, EXPENSE, reason='pay first')])
  [edge] = graph.into(EXPENSE)
  assert edge.kind == 'parameter' and edge.reason == 'booking_id of book_hotel is booking_id; pay first'


def test_what_was_only_ever_answered_empty_is_no_source():
  make = Tool('create_room', '', schema(name='string'), schema(room_id='string'), True)
  tools = [make, Tool('paint_room', '', schema(room_id='string'))]
  seen = lambda value: [Seen(ToolCall('create_room', {'name': 'x'}), {'room_id': value})]
  assert len(infer(tools).edges) == len(infer(tools, seen=[*seen(''), *seen('R7')]).edges) == 1
  assert not infer(tools, seen=seen('')).edges


def test_what_the_user_wants_written_is_copied_from_nowhere():
  rows_of_pages = rows('pages', title='string', page_id='string', text='string')
  search = Tool('search_pages', '', schema(), rows_of_pages)
  parameters_of = lambda tool: {link.parameter for edge in infer([search, tool]).into(tool.name) for link in edge.links}
  made = Tool('create_page', '', schema(title='string', page_id='string'), None, True)
  assert parameters_of(made) == set()  # the key of what is made was nowhere before
  assert parameters_of(Tool('update_page', '', schema(title='string', text='string'), None, True)) == {'title'}
  assert parameters_of(Tool('delete_page', '', schema(title='string'), None, True)) == {'title'}
  assert parameters_of(Tool('print_page', '', schema(page_title='string'), None, True)) == {'page_title'}


def test_leaves_lead_through_lists_and_tables():
  value = {'total': 1, 'rooms': [{'id': 'a', 'beds': [1, 2]}], 'users': {'u1': {'name': 'Ann'}}, 'none': None}
  assert [(leaf.path, leaf.place, leaf.value) for leaf in leaves(value)] == [
    ('total', (), 1),
    ('rooms[].id', (0,), 'a'),
    ('rooms[].beds[]', (0, 0), 1),
    ('rooms[].beds[]', (0, 1), 2),
    ('users{}.name', ('u1',), 'Ann'),
  ]
  returns = {'type': 'array', 'items': schema(id='integer', tag='string')}
  assert dict(schema_leaves(returns)) == {'[].id': 'integer', '[].tag': 'string'}


def test_names_are_read_as_people_write_them():
  assert name_words('getUserIDs') == ('get', 'user', 'id') and nouns('get-all-hotel_details') == ('hotel',)
  assert field_words('result.hotels[].id', ('x',)) == ('hotel', 'id') and field_words('id', ('x',)) == ('x', 'id')
  assert same_thing(('from', 'account', 'id'), ('account', 'id')) and not same_thing(('id',), ('id',))
  assert [rank(name) for name in ('find_x', 'get_x', 'add_x', 'edit_x', 'cancel_x', 'ponder')] == [0, 1, 2, 3, 4, None]
