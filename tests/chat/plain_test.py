"""What is called plain, the metaschema allows; and schemas as tools have them are plain."""

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slca_jax.chat.plain import _ALLOWED, is_plain

ODD = (
  st.none() | st.booleans() | st.integers(-2, 3) | st.floats(width=16) | st.sampled_from(['string', 'object', 'x', ''])
)
ANYTHING = st.recursive(
  ODD,
  lambda inner: (
    st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from([*_ALLOWED, 'pattern', '$ref', 'a']), inner, max_size=3)
  ),
  max_leaves=12,
)


def allowed(schema):
  try:
    jsonschema.Draft202012Validator.check_schema(schema)
  except jsonschema.SchemaError:
    return False
  return True


@settings(deadline=None, max_examples=300)
@given(st.dictionaries(st.sampled_from(list(_ALLOWED)), ANYTHING, min_size=1, max_size=3))
def test_what_is_plain_is_allowed(schema):
  assert not is_plain(schema) or allowed(schema)


@pytest.mark.parametrize('keyword', _ALLOWED)
@pytest.mark.parametrize(
  'value',
  [None, True, 3, -1, 1.5, 2.0, 'string', 'x', [], ['string'], ['string', 'string'], ['x'], [1], {}, {'a': {}},
   {'a': 3}, [{}], [{'type': 'x'}], [True], {'type': 'string'}, {'type': 'x'}, [['string']], float('inf')],
  ids=repr,
)  # fmt: skip
def test_no_keyword_is_plain_with_what_it_may_not_hold(keyword, value):
  assert not is_plain({keyword: value}) or allowed({keyword: value})


def test_schemas_of_tools_are_plain():
  inner = {'type': 'array', 'items': {'type': ['string', 'null'], 'enum': ['a', None]}, 'minItems': 1}
  schema = {
    'type': 'object',
    'properties': {'a': inner, 'b': {'type': 'integer', 'minimum': 0, 'default': 3, 'description': 'Of b.'}},
    'required': ['a'],
    'additionalProperties': False,
  }
  assert is_plain(schema) and is_plain({**schema, 'anyOf': [inner, True]})
  assert not is_plain({**schema, 'pattern': '('}) and not is_plain({**schema, '$ref': '#'})
