"""Laws of the checks that stand before every tool."""

from slca_jax.chat.checks import Checks, checks_of
from slca_jax.dialogue import Tool, ToolCall

PARAMETERS = {
  'type': 'object',
  'properties': {'city': {'type': 'string'}, 'nights': {'type': 'integer'}, 'class': {'enum': ['a', 'b']}},
  'required': ['city', 'nights'],
}
BOOK = Tool('book', '', PARAMETERS)
FREE = Tool('free', '', {'type': 'object', 'properties': {}})
WRONG = Tool('wrong', '', {'type': 'object', 'properties': {'x': {'$ref': '#/nowhere'}}})


def fault(name, **arguments):
  return Checks((BOOK, FREE, WRONG)).fault(ToolCall(name, arguments))


def test_a_call_that_fits_has_no_fault():
  assert fault('book', city='Lyon', nights=2) is None
  assert fault('free', anything=1) is None


def test_an_unknown_tool_is_named():
  assert fault('cancel') == "Error: there is no tool named 'cancel' here."


def test_absent_parameters_are_listed_before_anything_else_is_said():
  assert fault('book') == 'Error: the call of book lacks the required parameters: city, nights.'
  assert fault('book', city=3) == 'Error: the call of book lacks the required parameters: nights.'


def test_a_wrong_type_names_path_and_expected_type():
  text = fault('book', city='Lyon', nights='two')
  assert 'nights' in text and 'integer' in text
  assert 'nights' in fault('book', city='Lyon', nights=True)
  assert 'class' in fault('book', **{'city': 'Lyon', 'nights': 1, 'class': 'z'})


def test_required_parameters_are_the_schemas_or_unknown():
  checks = Checks((BOOK, FREE, WRONG))
  assert checks.required('book') == {'city', 'nights'}
  assert checks.required('free') is None and checks.required('nobody') is None


def test_a_tool_whose_schema_is_broken_cannot_be_called_but_breaks_nothing():
  assert 'wrong cannot be called' in fault('wrong')
  assert Checks((WRONG,)).required('wrong') is None


def test_a_tuple_of_tools_is_compiled_once():
  tools = (BOOK, FREE)
  assert checks_of(tools) is checks_of(tools)
  assert checks_of(tools) is not checks_of((BOOK, FREE, WRONG))
