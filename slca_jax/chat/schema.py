"""What is wrong with a call's arguments, by its tool's JSON Schema."""

import dataclasses
import fractions
import functools
import itertools
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import jsonschema
import referencing
import regex
from jsonschema import validators

from slca_jax.chat.dialects import MAX_DEPTH, pointer_text, translate
from slca_jax.chat.plain import is_plain
from slca_jax.dialogue import Tool, ToolCall
from slca_jax.errors import SchemaError

Kind = Literal['missing', 'type', 'other']
_ORDER: tuple[Kind, ...] = ('missing', 'type', 'other')
_MOST = 20  # violations named of one call
_REMEMBERED = 4096  # compiled schemas
_PATIENCE = 0.5  # seconds for one pattern
_LONGEST = 200  # characters of a reason; a value quoted in it can be of any size


@dataclasses.dataclass(frozen=True, slots=True)
class Violation:
  """One thing that is wrong with arguments.

  Attributes:
    kind: 'missing' (a required parameter is absent), 'type', or 'other' (enum, bounds, a parameter too many, …).
    path: where, as `filter.cities[0]`; '' is the arguments as a whole.
    text: the reason, for people and policies.
    expected: the type that would fit, as `string or null`; only where kind is 'type'.
  """

  kind: Kind
  path: str
  text: str
  expected: str = ''


@dataclasses.dataclass(frozen=True)
class CheckedTool:
  """A tool whose schema was compiled. `schema` is its `parameters` as plain JSON Schema, Draft 2020-12."""

  tool: Tool
  schema: Mapping[str, Any]
  validator: Any = dataclasses.field(repr=False, compare=False)

  def check(self, call: ToolCall) -> tuple[str, ...]:
    """Reasons why the call cannot be made, () if it can. Parameters that the schema does not name are allowed."""
    if call.name != self.tool.name:
      return (f'{call.name!r} was called, this is {self.tool.name!r}',)
    return tuple(violation.text for violation in self.violations(call.arguments))

  def violations(self, arguments: Mapping[str, Any]) -> tuple[Violation, ...]:
    """What is wrong with the arguments: first what is absent, then types, then the rest; at most 20. Never raises."""
    if _deeper(arguments, MAX_DEPTH):
      return (Violation('other', '', f'the arguments nest deeper than {MAX_DEPTH} levels'),)
    try:
      errors = itertools.islice(self.validator.iter_errors(dict(arguments)), _MOST)
      found = dict.fromkeys(violation for error in errors for violation in _explain(error))
    except RecursionError:
      return (Violation('other', '', 'the arguments nest too deep for their schema'),)
    except Exception as error:  # schemas and arguments are other people's: whatever the validator trips on is a refusal
      return (Violation('other', '', f'the arguments cannot be checked: {type(error).__name__}'),)
    return tuple(sorted(found, key=lambda violation: _ORDER.index(violation.kind))[:_MOST])


def compile_tool(tool: Tool) -> CheckedTool:
  """The tool with a validator for its calls; compiled once per distinct schema.

  Takes JSON Schema of any draft and the dialects of tool data sets (see `dialects`). A boolean is neither integer nor
  number, 12.0 is an integer, NaN and infinities are no numbers.

  Raises:
    SchemaError: the schema says something that cannot be checked; names the tool, the place and the reason.
  """
  try:
    text = json.dumps(tool.parameters)
    schema, validator = _compiled(text)
  except SchemaError as error:
    raise SchemaError(f'tool {tool.name!r}: {error}') from error
  except RecursionError as error:
    raise SchemaError(f'tool {tool.name!r}: the schema nests deeper than {MAX_DEPTH} levels') from error
  except (TypeError, ValueError) as error:
    raise SchemaError(f'tool {tool.name!r}: the schema is no JSON: {error}') from error
  return CheckedTool(tool, schema, validator)


@functools.lru_cache(_REMEMBERED)
def _compiled(text: str) -> tuple[dict[str, Any], Any]:
  schema = translate(json.loads(text))
  try:
    if not is_plain(schema):
      jsonschema.Draft202012Validator.check_schema(schema)
  except jsonschema.SchemaError as error:
    raise SchemaError(f'at {pointer_text(error.absolute_path)}: {error.message[:_LONGEST]}') from error
  return schema, _Validator(schema, registry=referencing.Registry())  # an empty registry fetches nothing


def _is_number(_: Any, value: Any) -> bool:
  return (
    isinstance(value, int | float) and not isinstance(value, bool) and (isinstance(value, int) or math.isfinite(value))
  )


def _is_integer(checker: Any, value: Any) -> bool:
  return _is_number(checker, value) and (isinstance(value, int) or value.is_integer())


def _multiple_of(validator: Any, divisor: Any, value: Any, _: Any) -> Iterator[jsonschema.ValidationError]:
  """As written in decimal: 0.3 is a multiple of 0.1, which float division denies."""
  if validator.is_type(value, 'number') and fractions.Fraction(str(value)) % fractions.Fraction(str(divisor)):
    yield jsonschema.ValidationError(f'{value!r} is not a multiple of {divisor!r}')


def _pattern(validator: Any, pattern: Any, value: Any, _: Any) -> Iterator[jsonschema.ValidationError]:
  """With a limit on time: a pattern with nested repeats can take exponentially long on a text that a policy wrote."""
  if not validator.is_type(value, 'string'):
    return
  try:
    found = regex.search(pattern, value, timeout=_PATIENCE)
  except TimeoutError:
    yield jsonschema.ValidationError(f'{value!r} could not be matched with {pattern!r} in {_PATIENCE:g} s')
    return
  if found is None:
    yield jsonschema.ValidationError(f'{value!r} does not match {pattern!r}')


_Validator = validators.extend(
  jsonschema.Draft202012Validator,
  {'multipleOf': _multiple_of, 'pattern': _pattern},
  type_checker=jsonschema.Draft202012Validator.TYPE_CHECKER.redefine_many(
    {
      'integer': _is_integer,
      'number': _is_number,
      'array': lambda _, value: isinstance(value, list | tuple),
    }
  ),
)


def _explain(error: jsonschema.ValidationError) -> Iterator[Violation]:
  """The violations behind an error of the validator. A failed union is explained by the branch that came furthest."""
  path = _path_text(error.absolute_path)
  instance: Any = error.instance
  if error.validator == 'required':
    for name in [name for name in _as_list(error.validator_value) if name not in instance]:
      full = f'{path}.{name}' if path else name
      yield Violation('missing', full, f'the required parameter {full!r} is missing')
  elif error.validator == 'type':
    yield _wrong_type(path, error.validator_value, instance)
  elif error.validator in ('anyOf', 'oneOf') and error.context:
    here = len(error.absolute_path)
    deeper = [e for e in error.context if e.validator != 'type' or len(e.absolute_path) > here]
    if deeper:
      furthest = max(deeper, key=lambda e: len(e.absolute_path))
      yield from _explain(furthest)
    else:
      expected = itertools.chain.from_iterable(_as_list(e.validator_value) for e in error.context)
      yield _wrong_type(path, list(dict.fromkeys(expected)), instance)
  else:
    where = f'parameter {path!r}' if path else 'the arguments'
    yield Violation('other', path, f'{where}: {error.message}'[:_LONGEST])


def _wrong_type(path: str, expected: Any, value: Any) -> Violation:
  wanted = ' or '.join(_as_list(expected))
  where = f'parameter {path!r}' if path else 'the arguments'
  return Violation('type', path, f'{where} must be of type {wanted}, not {_type_name(value)}', wanted)


def _type_name(value: Any) -> str:
  if isinstance(value, float) and not math.isfinite(value):
    return repr(value)
  for name in ('null', 'boolean', 'integer', 'number', 'string', 'array', 'object'):
    if _Validator.TYPE_CHECKER.is_type(value, name):
      return name
  return type(value).__name__


def _as_list(value: Any) -> list[str]:
  return [value] if isinstance(value, str) else list(value)


def _path_text(path: Any) -> str:
  steps = [f'[{step}]' if isinstance(step, int) else f'.{step}' for step in path]
  return ''.join(steps).removeprefix('.')


def _deeper(value: Any, limit: int) -> bool:
  level = [value]
  for _ in range(limit + 1):
    nested = [item for item in level if isinstance(item, Mapping | list | tuple)]
    if not nested:
      return False
    level = [inner for item in nested for inner in (item.values() if isinstance(item, Mapping) else item)]
  return True
