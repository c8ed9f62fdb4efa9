"""Tools exported to LangChain are the environment's, and using one is a step."""

import asyncio

import pytest

pytest.importorskip('langchain_core', reason="needs pip install 'slca_jax[langchain]'")

import travel

from slca_jax.envs.executable import Executable, World
from slca_jax.envs.langchain import langchain_tools
from slca_jax.envs.state import final_state


def world():
  return Executable(World(travel.OFFERED, travel.FUNCTIONS, inline=True), travel.DATABASE)


def test_names_descriptions_and_schemas_are_the_environments():
  exported = langchain_tools(world())
  assert [(tool.name, tool.description) for tool in exported] == [(t.name, t.description) for t in travel.OFFERED]
  assert [tool.args_schema for tool in exported] == [tool.parameters for tool in travel.OFFERED]


def test_invoking_a_tool_steps_the_environment():
  environment = world()
  book = next(tool for tool in langchain_tools(environment) if tool.name == 'book_hotel')

  async def run():
    return await book.ainvoke({'hotel_id': 'H101', 'checkin_date': '2026-09-18'}), await final_state(environment)

  answer, left = asyncio.run(run())
  assert '"booking_id": "B9001"' in answer
  assert left == [{'path': ['bookings', 'B9001'], 'now': {'hotel_id': 'H101', 'date': '2026-09-18'}}]


def test_a_refusal_is_a_message_with_status_error():
  detail = next(tool for tool in langchain_tools(world()) if tool.name == 'get_hotel_detail')
  call = {'name': 'get_hotel_detail', 'args': {'hotel_id': 'H9'}, 'id': '1', 'type': 'tool_call'}
  message = asyncio.run(detail.ainvoke(call))
  assert (message.status, message.content) == ('error', 'Error: no hotel H9')


def test_calls_that_are_made_at_once_are_steps_one_after_another():
  class Watched(Executable):
    inside = most = 0

    async def step(self, calls):
      self.inside += 1
      self.most = max(self.most, self.inside)
      for _ in range(100):
        await asyncio.sleep(0)
      self.inside -= 1
      return await super().step(calls)

  environment = Watched(World(travel.OFFERED, travel.FUNCTIONS, inline=True), travel.DATABASE)
  search = next(tool for tool in langchain_tools(environment) if tool.name == 'search_event')

  async def run():
    return await asyncio.gather(*(search.ainvoke({'query': 'fair'}) for _ in range(3)))

  assert len(set(asyncio.run(run()))) == 1 and environment.most == 1
