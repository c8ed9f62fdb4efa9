"""The travel agency of the tool graph tests: six tools over a dictionary, in process, and the graph of the note."""

import copy
import json

from slca_jax.chat.checks import checks_of
from slca_jax.dialogue import Observation, Tool
from slca_jax.envs.confined.changes import changes
from slca_jax.toolverse.graph import Edge, Link, ToolGraph

TOOLS = ('search_event', 'search_hotels', 'get_hotel_detail', 'book_hotel', 'add_calendar_event', 'submit_expense')
EVENT, HOTELS, DETAIL, BOOK, CALENDAR, EXPENSE = TOOLS
GRAPH = ToolGraph(
  TOOLS,
  (
    Edge(EVENT, HOTELS, 'parameter', 'where and when', (Link('venue', 'location'), Link('date', 'checkin_date'))),
    Edge(HOTELS, DETAIL, 'parameter', 'the hotel', (Link('hotels[].hotel_id', 'hotel_id'),)),
    Edge(HOTELS, BOOK, 'parameter', 'the hotel', (Link('hotels[].hotel_id', 'hotel_id'),)),
    Edge(DETAIL, BOOK, 'semantic', 'look before you book'),
    Edge(BOOK, CALENDAR, 'semantic', 'book before you plan'),
    Edge(BOOK, EXPENSE, 'parameter', 'the booking', (Link('booking_id', 'booking_id'), Link('total', 'amount'))),
  ),
)
BACK = Edge(DETAIL, HOTELS)

DATABASE = {
  'events': [
    {'name': 'AI Fair', 'venue': 'Congress Centre', 'date': '2026-09-18'},
    {'name': 'Book Days', 'venue': 'Old Harbour', 'date': '2026-10-02'},
  ],
  'hotels': [
    {'hotel_id': 'H101', 'name': 'Guest House', 'location': 'Congress Centre', 'price': 520},
    {'hotel_id': 'H102', 'name': 'Tower', 'location': 'Congress Centre', 'price': 610},
    {'hotel_id': 'H201', 'name': 'Pier Inn', 'location': 'Old Harbour', 'price': 380},
  ],
  'bookings': {},
  'calendar': [],
  'expenses': {},
}


def schema(**properties):
  """An object whose properties are given by type; a type that ends with '?' is optional."""
  required = [name for name, kind in properties.items() if not kind.endswith('?')]
  kinds = {name: {'type': kind.rstrip('?')} for name, kind in properties.items()}
  return {'type': 'object', 'properties': kinds, 'required': required}


HOTEL_ROWS = {'type': 'object', 'properties': {'hotels': {'type': 'array', 'items': schema(hotel_id='string')}}}
OFFERED = (
  Tool(EVENT, 'Finds an event by its name.', schema(query='string'), schema(venue='string', date='string')),
  Tool(HOTELS, 'Finds hotels.', schema(location='string', checkin_date='string'), HOTEL_ROWS),
  Tool(DETAIL, 'Shows a hotel.', schema(hotel_id='string'), schema(final_price='number', hotel_id='string')),
  Tool(
    BOOK,
    'Books a hotel.',
    schema(hotel_id='string', checkin_date='string'),
    schema(booking_id='string', hotel_id='string', total='number'),
    True,
  ),
  Tool(CALENDAR, 'Plans an event.', schema(title='string', date='string'), schema(status='string'), True),
  Tool(EXPENSE, 'Claims back.', schema(booking_id='string', amount='number'), schema(expense_id='string'), True),
)


def search_event(db, query):
  found = next((row for row in db['events'] if query.lower() in row['name'].lower()), None)
  if found is None:
    raise ValueError(f'no event {query}')
  return {'venue': found['venue'], 'date': found['date']}


def search_hotels(db, location, checkin_date):
  del checkin_date
  return {'hotels': [row for row in db['hotels'] if row['location'] == location]}


def get_hotel_detail(db, hotel_id):
  row = _hotel(db, hotel_id)
  return {'hotel_id': hotel_id, 'final_price': row['price']}


def book_hotel(db, hotel_id, checkin_date):
  booking = f'B{9001 + len(db["bookings"])}'
  db['bookings'][booking] = {'hotel_id': hotel_id, 'date': checkin_date}
  return {'booking_id': booking, 'hotel_id': hotel_id, 'total': _hotel(db, hotel_id)['price'], 'status': 'success'}


def add_calendar_event(db, title, date):
  db['calendar'].append({'title': title, 'date': date})
  return {'status': 'success'}


def submit_expense(db, booking_id, amount):
  if booking_id not in db['bookings']:
    raise ValueError(f'no booking {booking_id}')
  expense = f'E{len(db["expenses"]) + 1}'
  db['expenses'][expense] = {'booking_id': booking_id, 'amount': amount}
  return {'expense_id': expense}


def _hotel(db, hotel_id):
  found = next((row for row in db['hotels'] if row['hotel_id'] == hotel_id), None)
  if found is None:
    raise ValueError(f'no hotel {hotel_id}')
  return found


FUNCTIONS = {name: globals()[name] for name in TOOLS}


class Plain:
  """A world in process: functions over a copy of a database, closed by `with`."""

  opened = 0

  def __init__(self, tools=OFFERED, functions=FUNCTIONS, database=DATABASE):
    Plain.opened += 1
    self._checks, self._functions = checks_of(tools), functions
    self._before, self._database = database, copy.deepcopy(database)

  def __enter__(self):
    return self

  def __exit__(self, *error):
    pass

  def call(self, call):
    fault = self._checks.fault(call)
    if fault is not None:
      return Observation(fault, ok=False)
    try:
      return Observation(json.dumps(self._functions[call.name](self._database, **call.arguments)))
    except ValueError as error:
      return Observation(f'Error: {error}', ok=False)

  def database(self):
    return copy.deepcopy(self._database)

  def changes(self):
    return changes(self._before, self._database)
