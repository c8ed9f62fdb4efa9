"""Computations that need no database: arithmetic and text, by the tool's name and the number of its parameters."""

from typing import Any

from slca_jax.toolverse.deterministic import words as w
from slca_jax.toolverse.deterministic.model import Operation
from slca_jax.toolverse.deterministic.reading import Parameter, Reading

_NUMBERS = ('integer', 'number')
# name -> (how many numbers it takes, its expression over a and b)
_ARITHMETIC = {
  'add': (2, '{a} + {b}'), 'sum': (2, '{a} + {b}'), 'addition': (2, '{a} + {b}'), 'plus': (2, '{a} + {b}'),
  'subtract': (2, '{a} - {b}'), 'sub': (2, '{a} - {b}'), 'minus': (2, '{a} - {b}'), 'subtraction': (2, '{a} - {b}'),
  'multiply': (2, '{a} * {b}'), 'mul': (2, '{a} * {b}'), 'multiplication': (2, '{a} * {b}'),
  'divide': (2, '_divided({a}, {b})'), 'div': (2, '_divided({a}, {b})'), 'division': (2, '_divided({a}, {b})'),
  'modulo': (2, '_remainder({a}, {b})'), 'mod': (2, '_remainder({a}, {b})'),
  'gcd': (2, 'math.gcd(_whole({a}), _whole({b}))'), 'lcm': (2, 'math.lcm(_whole({a}), _whole({b}))'),
  'square_root': (1, '_root({a})'), 'sqrt': (1, '_root({a})'), 'square': (1, '{a} * {a}'),
  'floor': (1, 'math.floor({a})'), 'ceiling': (1, 'math.ceil({a})'), 'ceil': (1, 'math.ceil({a})'),
  'round': (1, 'math.floor({a} + 0.5)'), 'abs': (1, 'math.fabs({a})'), 'absolute': (1, 'math.fabs({a})'),
  'sin': (1, 'math.sin({a})'), 'sine': (1, 'math.sin({a})'), 'cos': (1, 'math.cos({a})'), 'cosine': (1,
  'math.cos({a})'),
  'tan': (1, 'math.tan({a})'), 'tangent': (1, 'math.tan({a})'), 'arctan': (1, 'math.atan({a})'),
  'degrees_to_radians': (1, 'math.radians({a})'), 'radians_to_degrees': (1, 'math.degrees({a})'),
}  # fmt: skip
_OF_LISTS = {
  'sum': 'math.fsum({a})', 'add': 'math.fsum({a})', 'product': 'math.prod({a})', 'mean': 'statistics.fmean({a})',
  'average': 'statistics.fmean({a})', 'median': 'statistics.median({a})', 'mode': 'statistics.multimode({a})[0]',
  'variance': 'statistics.variance({a})', 'standard_deviation': 'statistics.stdev({a})',
  'stdev': 'statistics.stdev({a})',
}  # fmt: skip
_OF_TEXTS = {
  'uppercase': '{a}.upper()', 'to_uppercase': '{a}.upper()', 'lowercase': '{a}.lower()', 'to_lowercase': '{a}.lower()',
  'reverse': '{a}[::-1]', 'reverse_string': '{a}[::-1]', 'reverse_text': '{a}[::-1]',
  'md5': "hashlib.md5({a}.encode()).hexdigest()", 'sha1': "hashlib.sha1({a}.encode()).hexdigest()",
  'sha256': "hashlib.sha256({a}.encode()).hexdigest()", 'sha512': "hashlib.sha512({a}.encode()).hexdigest()",
  'sha224': "hashlib.sha224({a}.encode()).hexdigest()", 'sha384': "hashlib.sha384({a}.encode()).hexdigest()",
  'base64_encode': 'base64.b64encode({a}.encode()).decode()', 'echo': '{a}',
}  # fmt: skip
_FILLERS = w.words('numbers number two calculate calculator math compute tool values value list get a the of')
MODULES = ('math', 'statistics', 'hashlib', 'base64')
PARTS = {
  '_divided': (
    'def _divided(a, b):\n  if not b:\n    raise ValueError("cannot divide by zero")\n  return a / b\n'
  ),
  '_remainder': (
    'def _remainder(a, b):\n  if not b:\n    raise ValueError("cannot divide by zero")\n  return a % b\n'
  ),
  '_root': (
    'def _root(a):\n  if a < 0:\n    raise ValueError(f"{a} has no real square root")\n  return math.sqrt(a)\n'
  ),
  '_whole': (
    'def _whole(a):\n  if int(a) != a:\n    raise ValueError(f"{a} is not a whole number")\n  return int(a)\n'
  ),
}  # fmt: skip


def expression(reading: Reading) -> str:
  """The expression of a tool that computes from its required parameters alone; '' if it is none of the known ones."""
  needed = [parameter for parameter in reading.parameters if parameter.required]
  words = [word for word in w.split(reading.tool.name) if word not in _FILLERS] or w.split(reading.tool.name)
  name = '_'.join(words)
  if len(needed) == 1 and _numbers(needed[0]) and name in _OF_LISTS:
    return _OF_LISTS[name].format(a=needed[0].name)
  if len(needed) == 1 and needed[0].kind == 'string' and name in _OF_TEXTS:
    return _OF_TEXTS[name].format(a=needed[0].name)
  count, form = _ARITHMETIC.get(name, (0, ''))
  if count and len(needed) == count and all(parameter.kind in _NUMBERS for parameter in needed):
    return form.format(a=needed[0].name, b=needed[-1].name)
  return ''


def _numbers(parameter: Parameter) -> bool:
  return parameter.kind == 'array' and parameter.schema['items']['type'] in _NUMBERS


_A, _B, _LIST = 9, 4, [2, 4, 4, 10]
# What the expressions give for _A and _B, or for _LIST.
_RESULTS = {
  '{a} + {b}': 13, '{a} - {b}': 5, '{a} * {b}': 36, '_divided({a}, {b})': 2.25, '_remainder({a}, {b})': 1,
  'math.gcd(_whole({a}), _whole({b}))': 1, 'math.lcm(_whole({a}), _whole({b}))': 36, '_root({a})': 3, '{a} * {a}': 81,
  'math.floor({a})': 9, 'math.ceil({a})': 9, 'math.fabs({a})': 9, 'math.floor({a} + 0.5)': 9,
  'math.fsum({a})': 20, 'math.prod({a})': 320, 'statistics.fmean({a})': 5, 'statistics.median({a})': 4,
  'statistics.multimode({a})[0]': 4,
}  # fmt: skip


def known_result(operation: Operation) -> tuple[dict[str, Any], dict[str, Any]]:
  """(arguments of a computation, the part of its answer that is known beforehand)."""
  names = list(operation.tool.parameters['properties'])
  schema = operation.tool.parameters['properties'][names[0]]
  if schema['type'] == 'array':
    arguments: dict[str, Any] = {names[0]: list(_LIST)}
  elif schema['type'] == 'string':
    arguments = {names[0]: 'lantern'}
  else:
    arguments = dict(zip(names, (_A, _B), strict=False))
  known = {form.format(a=names[0], b=names[-1]): result for form, result in _RESULTS.items()}
  return arguments, {'result': known[operation.pure]} if operation.pure in known else {}
