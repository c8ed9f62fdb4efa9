"""What records of a kind usually tell, by the last word of their noun."""

from typing import Any

from slca_jax.toolverse.deterministic import words as w

_TEXT: dict[str, Any] = {'type': 'string'}
_NUMBER: dict[str, Any] = {'type': 'number'}
_WHOLE: dict[str, Any] = {'type': 'integer'}
_DAY: dict[str, Any] = {'type': 'string', 'format': 'date'}
_MOMENT: dict[str, Any] = {'type': 'string', 'format': 'date-time'}
_TYPES = {'date': _DAY, 'time': _MOMENT, 'year': _WHOLE}
_WHOLES = w.words(
  """count rank year pages stars downloads views likes comments_count followers volume duration_minutes humidity wins
  losses
  age block_number gas_used port hp attack defense population capacity quantity supply votes size_bytes matches
  goals"""
)
_NUMBERS = w.words(
  """price amount balance rating score temperature_c high_c low_c wind_kph change_percent market_cap open high low
  close value
  magnitude depth_km latitude longitude rate fee percent weight height area_km2 revenue net_income eps yield_percent
  apy tvl"""
)
_DAYS = w.words('date published_on released_on created_on due_on birthday founded_on')
# The last word of a noun -> fields of its records.
_FIELDS = {
  'title authors summary published_on journal': 'paper article publication preprint study citation reference trial '
  'patent book '
  'document doc documentation page section chapter lesson guide tutorial entry topic',
  'title url summary': 'result hit match',
  'title source summary published_on': 'news headline story post blog talk video episode podcast hotspot trend '
  'article_summary '
  'discussion thread announcement press announcement challenge problem',
  'date condition high_c low_c humidity': 'forecast weather condition climate temp temperature',
  'headline severity area description': 'alert warning incident advisory outage issue bug vulnerability hotspot_fire',
  'price currency change_percent volume': 'price quote ticker market coin token cryptocurrency stock symbol etf crypto',
  'date open high low close volume': 'ohlcv candle kline history chart hist bar',
  'amount currency updated_on': 'balance allowance fee holding portfolio dividend payment invoice expense reward '
  'supply',
  'date amount from_account to_account status': 'transaction transfer trade order withdrawal deposit',
  'name description version downloads': 'package library module component plugin extension model dataset framework '
  'tool node icon '
  'template image_model theme',
  'name stars language description': 'repository repo project codebase workspace',
  'name country population latitude longitude': 'city location place country region station airport state area',
  'name rating price address': 'hotel restaurant listing accommodation property venue shop store attraction',
  'title rating year genre': 'movie film show anime manga series album song track game',
  'name team position rating': 'player champion character hero pokemon fighter driver athlete card',
  'rank name score wins losses': 'ranking standing leaderboard rank leader seller',
  'name email country': 'user account person member customer contact author profile agent client student employee',
  'author text rating date': 'review comment reply feedback rating',
  'author text time': 'message note chat conversation email memo thought comment_reply observation memory',
  'title status priority due_on': 'task todo ticket reminder event meeting appointment schedule job workflow',
  'name size_bytes modified_on': 'file directory folder attachment download upload image photo screenshot '
  'video_file log_file dump',
  'name status description': 'service process session server container instance database connection device '
  'workflow_run build',
  'metric value date': 'stat statistics metric indicator usage performance analytics measurement analysis summary '
  'report overview',
  'text reference': 'verse hadith quote fact joke proverb sentence definition example translation transcript '
  'caption meaning',
  'statement_date revenue net_income currency': 'statement sheet cashflow flow earnings financial income cash_flow '
  'profit',
  'name start_on end_on': 'season tournament competition league holiday festival trip flight route booking reservation',
  'level message time': 'log event activity history_event execution commit change revision release version changelog',
}
_BY_NOUN = {noun: fields.split() for fields, nouns in _FIELDS.items() for noun in nouns.split()}
_USUAL = ('name', 'description', 'status', 'updated_on')


def fields_of(noun: str, known: int, *, written: bool) -> dict[str, dict[str, Any]]:
  """The fields of a kind of record; fewer of them for one that has many already, or whose fields tools write."""
  words = noun.split('_')
  found = next((_BY_NOUN[name] for name in (noun, words[-1]) if name in _BY_NOUN), _USUAL)
  most = 2 if written and known > 3 else max(2, 7 - known)
  return {name: schema_of(name) for name in list(found)[:most]}


def schema_of(name: str) -> dict[str, Any]:
  """The type of a field of this catalogue."""
  if name in _DAYS or name.endswith('_on') or name.endswith('_date'):
    return dict(_DAY)
  if name in _NUMBERS:
    return dict(_NUMBER)
  return dict(_TYPES.get(name, _WHOLE if name in _WHOLES else _TEXT))
