"""What the name and the parameters of one tool say: a verb, a noun, and the part that each parameter plays."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from slca_jax.dialogue import Tool
from slca_jax.toolverse.deterministic import words as w

_CREDENTIAL = re.compile(
  r'(^|_)(api_?key|secret(_key)?|passphrase|access_token|auth(_token)?|bearer|private_key|credentials?|custom_token|'
  r'custom_instance_id|session_token|jwt|client_secret|proxy)$'
)
_TECHNICAL = re.compile(
  r'^(timeout\w*|headers?|user_agent|random_string|dummy|verbose|debug|raw|pretty|headless|ctx|context_lines|'
  r'(output|response|return|file)?_?(format|type|mode|path|dir|directory|folder|filename)|encoding|include_\w+|with_\w+|'
  r'fields?|(no_)?cache|use_cache|force|retry|retries|max_retries|max_length|max_characters|save_\w+|callback|locale|lang|'
  r'sort\w*|order\w*|asc|desc|descending|ascending|cursor|next_token|page_token|continuation_token|temperature|max_tokens|'
  r'device|wait_\w+|follow_redirects|ignore_robots_text|delay|seed|stream|_?meta|background)$'
)
_NO_EFFECT = re.compile(r'^(user_?agent|headers?|timeout\w*|random_string|dummy|ctx|(output|response)_(format|type))$')
_LIMIT = re.compile(
  r'^(limit|top|top_k|top_n|n|num|count|size|take|first|max|amount_of_results|(num|max|number)_?(of_)?\w*|per_page|page_size|'
  r'items_per_page|results|\w+_limit|limit_\w+|results_per_page|rows)$'
)
_QUERY = re.compile(
  r'^(q|query|search|search_(term|query|text|string|key|word)s?|term|terms|keyword|keywords|key_words|phrase|text|question|'
  r'topic|topics|pattern|queries|search_expr|name_contains|contains|\w+_query|\w+_pattern|query_\w+|needle|filter_text|suchbegriff)$'
)
_FROM = re.compile(
  r'^(start|from|since|after|min|minimum|begin|date_from|earliest|lower)(_|$)|_(from|start|min|after|since)$'
)
_TO = re.compile(r'^(end|to|until|before|max|maximum|date_to|latest|upper)(_|$)|_(to|end|max|before|until)$')
_SUFFIXES = w.words(
  """id ids uuid guid slug symbol symbols ticker tickers username usernames handle address addresses hash path paths url
  urls uri isbn doi code codes key keys name names title titles number no email pubkey ref reference pid"""
)
_SOLE = {  # a parameter that names a thing by itself -> the thing
  'symbol': 'symbol', 'ticker': 'symbol', 'username': 'user', 'handle': 'user', 'email': 'user', 'address': 'address',
  'latitude': 'location', 'longitude': 'location', 'lat': 'location', 'lon': 'location', 'lng': 'location',
  'city': 'city', 'location': 'location', 'place': 'place', 'country': 'country', 'state': 'state', 'domain': 'domain',
  'hash': 'transaction', 'isbn': 'book', 'doi': 'paper', 'pubkey': 'account', 'url': 'page', 'uri': 'page',
  'path': 'file', 'filename': 'file', 'filepath': 'file', 'pid': 'process', 'hostname': 'host', 'ip': 'host',
}  # fmt: skip
_GENERIC = w.words(
  'id ids uuid guid slug key keys name names title titles code number no ref reference url path hash index'
)
_SIDES = w.words('from to source target parent old new base quote src dst start end origin destination first second my')
_QUANTITY = re.compile(
  r'(^|_)(amount|width|height|x|y|z|value|quantity|percent|ratio|factor|weight|distance|radius|temperature|angle|speed|depth|'
  r'probability|threshold|scale|exponent|numerator|denominator)$'
)
_TEXT = re.compile(
  r'^(text|prompt|content|contents|code|expression|message|thought|input|body|data|html|markdown|json|script|sql|program|'
  r'source_code|command|cmd|args|arguments|params|parameters|payload|formula|equation|abi|svg|xml|diagram|definition|'
  r'selector|python_code|smiles|sequence|numbers|values|coordinates|points)$'
)
_SOURCE = re.compile(r'source|snippet|python|java|script|program|analy[sz]e|execute', re.I)
_ABOUT = re.compile(
  r'\b(?:search(?:es)?|gets?|finds?|lists?|fetch(?:es)?|retrieves?|returns?|reads?|shows?|views?|browses?|query)\b'
  r'((?:\s+(?:for|the|a|an|all|of|any|your|specific|available|detailed|list|information|details|about|on|'
  r'current|latest|popular|trending|top|recent|full|complete|through|from|by|in|related|random|saved|supported))*)'
  r'\s+([A-Za-z][a-z]+)'
)
_VALUES = {'string': str, 'integer': int, 'number': (int, float)}
_KINDS_OF: dict[str, Any] = {
  'minimum': (int, float), 'maximum': (int, float), 'format': str, 'pattern': str, 'examples': list, 'minLength': int,
  'maxLength': int, 'default': (str, int, float, list),
}  # fmt: skip
KINDS = ('string', 'integer', 'number', 'boolean', 'array', 'object')


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Parameter:
  """A parameter and its part in the tool. Two are equal if they are the same one.

  Attributes:
    part: credential, technical, limit, offset, page, query, from, to, key, text, quantity, structure or field.
    kind: its JSON type; of an array of scalars, 'array', and `schema['items']` says of what.
    thing: of a key: the noun of what it identifies, '' if that is the tool's own.
    by: of a key: the word that says how (id, name, symbol, ...).
  """

  name: str
  raw: str
  kind: str
  schema: Mapping[str, Any]
  required: bool
  part: str
  thing: str = ''
  by: str = ''


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
  """A tool as its name says it.

  Attributes:
    verb: read, create, update, delete, count, move, work, or '' if the name has none.
    word: the verb itself.
    noun: what it is about, singular, words joined by underscores; '' if the name doesn't say.
    many: the name speaks of several.
    hints: words of the name that are neither verb nor noun.
  """

  tool: Tool
  name: str
  verb: str
  word: str
  noun: str
  many: bool
  hints: frozenset[str]
  parameters: tuple[Parameter, ...]

  def all(self, *parts: str) -> tuple[Parameter, ...]:
    """The parameters that play one of these parts."""
    return tuple(parameter for parameter in self.parameters if parameter.part in parts)


def read(tool: Tool, *, prefix: frozenset[str] = frozenset()) -> Reading | str:
  """The reading of a tool, or the reason why it has none. `prefix`: words that all names of the server begin with."""
  name = w.tool_identifier(tool.name)
  if not name:
    return f'its name {tool.name!r} cannot be the name of a function'
  tokens = w.split(tool.name)
  bare = [token for token in tokens if token not in prefix] or tokens
  verb, word, place = _verb(bare)
  if verb == 'refused':
    return w.REFUSED[word]
  if word in ('run', 'start', 'trigger', 'launch') and w.CODE & set(bare):
    return w.REFUSED['execute']
  rest = bare[:place] + bare[place + 1 :] if verb else bare
  head, tail = _at_preposition(rest)
  noun, many = _noun(head)
  parameters = tuple(_parameters(tool, verb, noun, frozenset(bare)))
  return Reading(tool, name, verb, word, noun, many, frozenset([*rest, *tail]), parameters)


def _verb(tokens: list[str]) -> tuple[str, str, int]:
  """(the class of the verb, the verb, its place). The first word counts most, then the last one, then any."""
  order = [0, 1, len(tokens) - 1, *range(2, len(tokens) - 1)]
  for place in dict.fromkeys(place for place in order if 0 <= place < len(tokens)):
    token = tokens[place]
    noun_like = place > 0 and token in w.ASPECTS | {'order', 'book', 'post', 'comment', 'report', 'record', 'star',
    'issue',
      'log', 'play', 'like', 'share', 'block', 'release', 'tag', 'label', 'test', 'run', 'match', 'merge', 'info',
      'view'}  # fmt: skip
    if noun_like:
      continue
    for verb, known in _CLASSES.items():
      if token in known:
        return verb, token, place
  return '', '', -1


_CLASSES: dict[str, Any] = {
  'read': w.READS, 'create': w.CREATES, 'update': w.UPDATES, 'delete': w.DELETES, 'count': w.COUNTS,
  'move': w.TRANSITIONS, 'clear': {'clear', 'reset', 'empty'}, 'work': w.WORKS, 'refused': w.REFUSED,
}  # fmt: skip


def _at_preposition(tokens: list[str]) -> tuple[list[str], list[str]]:
  for index, token in enumerate(tokens):
    if token in ('by', 'for', 'from', 'with', 'using', 'via', 'to', 'in', 'at', 'on', 'and') and index:
      return tokens[:index], tokens[index + 1 :]
    if token == 'of' and index:
      return tokens[index + 1 :], tokens[:index]
  return tokens, []


def _noun(tokens: list[str]) -> tuple[str, bool]:
  kept = [token for token in tokens if token not in w.STOP and token not in w.ADJECTIVES and not token.isdigit()]
  many = bool(tokens) and any(w.is_plural(token) for token in tokens[-1:] + kept[-1:])
  if not kept:
    aspects = [token for token in tokens if token in w.ASPECTS and token not in w.STOP]
    return (_phrase(aspects[-1:]), many) if aspects and aspects[-1] not in _DETAILS else ('', many)
  return _phrase(kept[-3:]), many


_DETAILS = w.words('detail details info metadata data content profile')


def _phrase(tokens: list[str]) -> str:
  return '_'.join([*tokens[:-1], w.singular(tokens[-1])]) if tokens else ''


def noun_of_description(description: str) -> tuple[str, bool]:
  """(the first noun behind a verb of reading, whether it is plural); ('', False) if there is none."""
  found = _ABOUT.search(description)
  if not found or found[2].lower() in w.STOP | w.ADJECTIVES | _DETAILS or len(found[2]) < 3:
    return '', False
  word = found[2].lower()
  return w.singular(word), w.is_plural(word)


def _parameters(tool: Tool, verb: str, noun: str, name_words: frozenset[str]) -> list[Parameter]:
  properties = tool.parameters.get('properties')
  if not isinstance(properties, Mapping):
    return []
  needed = tool.parameters.get('required')
  needed = needed if isinstance(needed, list) else []
  found: list[Parameter] = []
  for raw, schema in properties.items():
    name = w.identifier(str(raw), taken=frozenset({'db', *(one.name for one in found)}))
    if not name:
      continue
    plain = plain_schema(schema)
    part, thing, by = _part('_'.join(w.split(str(raw))), plain, verb, noun, raw in needed, name_words)
    found.append(Parameter(name, str(raw), plain['type'], plain, raw in needed, part, thing, by))
  return found


def _part(
  name: str, schema: Mapping[str, Any], verb: str, noun: str, required: bool, name_words: frozenset[str]
) -> tuple[str, str, str]:
  """(the part, the thing, how it is identified) of a parameter; the first rule that fits holds."""
  kind, reads = schema['type'], verb in ('read', 'count', 'work', '')
  scalars = kind != 'array' or schema['items']['type'] in ('string', 'integer', 'number')
  if _CREDENTIAL.search(name) or (name in ('token', 'password') and reads and 'token' not in name_words):
    return 'credential', '', ''
  if _NO_EFFECT.match(name):
    return 'technical', '', ''
  if reads and not required and (_TECHNICAL.match(name) or kind in ('boolean', 'object') or not scalars):
    return 'technical', '', ''
  if verb in ('read', 'count', '') and kind in ('integer', 'number') and not required:
    if name in ('page', 'page_number', 'page_num', 'page_no'):
      return 'page', '', ''
    if name in ('offset', 'skip', 'start', 'start_index', 'start_row', 'from_index'):
      return 'offset', '', ''
  if verb in ('read', 'count', '') and kind in ('integer', 'number') and _LIMIT.match(name):
    return 'limit', '', ''
  if name in ('page', 'offset', 'skip') and reads and kind in ('integer', 'number'):
    return ('page' if name == 'page' else 'offset'), '', ''
  if not scalars or kind == 'object':
    return 'structure', '', ''
  identified = _key(name, noun)
  searches = name_words & w.words('search find query suggest match discover lookup autocomplete recommend filter')
  if reads and kind in ('string', 'array') and _QUERY.match(name):
    return ('query', '', '') if searches or verb in ('read', '') else ('text', '', '')
  if reads and searches and name in ('name', 'title') and kind == 'string':
    return 'query', '', ''
  bounds = _FROM.search(name) or _TO.search(name)
  if reads and bounds and kind != 'array' and not (identified and identified[1] == 'id'):  # noqa: SIM102
    if kind in ('integer', 'number') or re.search(r'date|time|day|year|since|until|before|after|start|end', name):
      return ('from' if _FROM.search(name) else 'to'), '', ''
  if name == 'code' and reads and not _SOURCE.search(str(schema.get('description', ''))):
    return 'key', '', 'code'
  if (reads and _TEXT.match(name)) or (verb in ('create', 'update') and _TEXT.match(name)):
    return 'text', '', ''
  if (
    identified
    and kind != 'boolean'
    and not (kind == 'number' and identified[1] not in ('id', 'latitude', 'longitude', 'number'))
  ):
    return 'key', *identified
  if kind in ('number', 'integer') and _QUANTITY.search(name):
    return 'quantity', '', ''
  return 'field', '', ''


def _key(name: str, noun: str) -> tuple[str, str] | None:
  """(the thing, how it is identified) if the parameter's name identifies something; ('', ...) for the tool's own."""
  tokens = [token for token in name.split('_') if token not in _SIDES] or name.split('_')
  last = w.singular(tokens[-1]) if tokens[-1] not in ('address', 'alias') else tokens[-1]
  if name in ('latitude', 'longitude', 'lat', 'lon', 'lng'):
    return 'location', {'lat': 'latitude', 'lon': 'longitude', 'lng': 'longitude'}.get(name, name)
  if len(tokens) == 1 and tokens[0] in _SOLE and tokens[0] not in _GENERIC:
    return _SOLE[tokens[0]], {'ticker': 'symbol'}.get(tokens[0], tokens[0] if tokens[0] != _SOLE[tokens[0]] else 'name')
  if len(tokens) == 1 and (tokens[0] in _GENERIC or last in _GENERIC):
    return '', {'uuid': 'id', 'guid': 'id', 'no': 'number'}.get(last, last)
  if len(tokens) > 1 and last in _SUFFIXES:
    thing = '_'.join([*tokens[:-2], w.singular(tokens[-2])])
    return thing, {'uuid': 'id', 'guid': 'id', 'no': 'number', 'ticker': 'symbol', 'uri': 'url'}.get(last, last)
  if len(tokens) == 1 and re.fullmatch(r'[a-z]{1,4}ids?', last):
    return '', 'id'  # pmid, cid
  if len(tokens) == 1 and last in noun.split('_') and last not in w.ASPECTS:
    return last, 'name'
  return None


def plain_schema(schema: Any) -> dict[str, Any]:
  """A parameter's schema with one type, from unions the first that is not null, and what helps to make values."""
  if not isinstance(schema, Mapping):
    return {'type': 'string'}
  merged: dict[str, Any] = {**schema}
  for union in ('anyOf', 'oneOf', 'allOf'):
    branches = [one for one in _listed(schema.get(union)) if isinstance(one, Mapping) and one.get('type') != 'null']
    merged = {**(branches[0] if branches else {}), **merged}
  kind = merged.get('type')
  if isinstance(kind, list):
    kind = next((one for one in kind if one != 'null'), 'string')
  enum = [
    value
    for value in _listed(merged.get('enum'))
    if isinstance(value, str | int | float) and not isinstance(value, bool)
  ]
  if kind not in KINDS:
    kind = 'object' if 'properties' in merged else 'array' if 'items' in merged else _kind_of(enum)
  plain: dict[str, Any] = {'type': kind}
  if isinstance(merged.get('description'), str):
    plain['description'] = ' '.join(merged['description'].split())[:300]
  enum = [value for value in enum if isinstance(value, _VALUES.get(kind, ()))]  # of one type, or half of it is refused
  if enum:
    plain['enum'] = enum
  for key, kinds in _KINDS_OF.items():
    if isinstance(merged.get(key), kinds) and not isinstance(merged[key], bool):
      plain[key] = merged[key]
  if kind == 'array':
    plain['items'] = plain_schema(merged.get('items'))
  if kind == 'object' and isinstance(merged.get('properties'), Mapping):
    plain['properties'] = {str(key): plain_schema(part) for key, part in list(merged['properties'].items())[:20]}
  return plain


def _listed(value: Any) -> list[Any]:
  return value if isinstance(value, list) else []


def _kind_of(enum: list[Any]) -> str:
  return 'integer' if enum and all(isinstance(value, int) for value in enum) else 'string'
