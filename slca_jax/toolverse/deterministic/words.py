"""Words of tool and parameter names: how they are cut, their singular, and what verbs and nouns usually mean."""

import keyword
import re

from slca_jax.envs.confined.offered import BUILTINS, words

_CUT = re.compile(r'(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9]+')
_SAME = words(
  """news status address series analysis weather sms gas business progress access class process details metadata info
  information sales basis bus dns https aws css js os pos gps sports physics mathematics statistics analytics canvas
  alias bonus campus census focus virus species tennis always previous hours"""
)
_IRREGULAR = {'people': 'person', 'children': 'child', 'indices': 'index', 'vertices': 'vertex',
'criteria': 'criterion',
  'movies': 'movie', 'cookies': 'cookie', 'categories': 'category', 'axes': 'axis', 'analyses': 'analysis',
  'addresses': 'address', 'statuses': 'status', 'matches': 'match', 'databases': 'database', 'caches': 'cache',
  'purchases': 'purchase', 'releases': 'release', 'courses': 'course', 'cases': 'case', 'expenses': 'expense',
  'houses': 'house', 'responses': 'response', 'exercises': 'exercise', 'uses': 'use', 'phrases': 'phrase',
  'verses': 'verse', 'diseases': 'disease', 'purposes': 'purpose', 'universes': 'universe', 'licenses': 'license',
  'phases': 'phase', 'leases': 'lease', 'axises': 'axis', 'lens': 'lens', 'buses': 'bus',
  'viruses': 'virus', 'bonuses': 'bonus', 'campuses': 'campus', 'matrices': 'matrix'}  # fmt: skip

CREATES = words(
  """create add insert new register post send publish submit book schedule save store record log write append upload
  place order buy purchase subscribe make invite reserve hire comment reply share bookmark import enroll draft remember
  upsert apply rate vote react report ask issue mint"""
)
READS = words(
  """get list search find query fetch show browse discover lookup read retrieve view describe check filter select
  resolve
  explore see load open display detail details info access pull inspect match recommend suggest identify getall suche"""
)
UPDATES = words('update edit modify set change rename move patch replace assign tag adjust configure label put amend')
DELETES = words('delete remove drop erase purge unsubscribe unregister destroy unassign forget uninstall discard')
COUNTS = words('count')
# A verb that moves a record to a state, and the state.
TRANSITIONS = {
  'cancel': 'cancelled', 'complete': 'completed', 'close': 'closed', 'archive': 'archived', 'unarchive': 'active',
  'activate': 'active', 'deactivate': 'inactive', 'enable': 'enabled', 'disable': 'disabled', 'start': 'running',
  'stop': 'stopped', 'pause': 'paused', 'resume': 'running', 'approve': 'approved', 'reject': 'rejected',
  'deny': 'denied', 'confirm': 'confirmed', 'finish': 'finished', 'lock': 'locked', 'unlock': 'unlocked',
  'restart': 'running', 'revoke': 'revoked', 'accept': 'accepted', 'decline': 'declined', 'mute': 'muted',
  'unmute': 'active', 'block': 'blocked', 'unblock': 'active', 'kill': 'terminated', 'terminate': 'terminated',
  'trigger': 'triggered', 'run': 'running', 'reopen': 'open', 'verify': 'verified', 'pin': 'pinned', 'unpin': 'active',
  'star': 'starred', 'unstar': 'active', 'follow': 'followed', 'unfollow': 'active', 'like': 'liked',
  'deploy': 'deployed',
  'install': 'installed', 'restore': 'restored', 'suspend': 'suspended', 'end': 'ended', 'launch': 'running',
  'promote': 'promoted', 'demote': 'demoted', 'merge': 'merged', 'join': 'joined', 'leave': 'left', 'play': 'playing',
  'return': 'returned', 'refund': 'refunded', 'pay': 'paid', 'deliver': 'delivered', 'ship': 'shipped',
  'undo': 'undone',
}  # fmt: skip
# Verbs of work: the result is computed or done outside. With the key of a known record they read what is stored.
WORKS = words(
  """analyze analyse calculate compute summarize summarise validate extract generate download export compare track
  monitor measure evaluate scan predict estimate assess score rank audit explain preview poll forecast scrape crawl
  convert translate render classify detect test review collect refresh sync visualize plot simulate diagnose
  transcribe"""
)
REFUSED = {
  **dict.fromkeys(words('execute exec eval shell command script invoke run_code powershell bash terminal sql'),
                  'it executes code or commands that the call brings along'),
  **dict.fromkeys(words('click hover navigate screenshot drag scroll press fill keypress tap swipe type snapshot'),
                  'it drives a user interface'),
  **dict.fromkeys(words('think sequentialthinking thinking mentalmodel reason reflect brainstorm'),
                  'it is a place for thoughts, with nothing to look up'),
  **dict.fromkeys(words('wait sleep echo ping hello greet long'), 'it has no effect on data'),
  **dict.fromkeys(words('encrypt decrypt sign encode decode hash format compile parse minify lint beautify'),
                  'its result is computed from the text that the call brings along'),
  **dict.fromkeys(words('login logout authenticate connect disconnect ssh'), 'it opens a connection'),
}  # fmt: skip

CODE = words('shell command commands script scripts code sql powershell bash cmd python javascript query applescript')
STOP = words(
  """a an the of for from to in on at by with and or via using all any some my your this that its is are be as into
  about
  per given one each every based tool api mcp server"""
)
ADJECTIVES = words(
  """popular trending top random recent latest current active available new featured historical full supported saved
  related similar common basic daily weekly monthly hourly hot best upcoming past next previous live real time realtime
  global detailed detail details info information data result results list listing listings record records entry full
  multiple single specific complete advanced simple quick raw general public private own selected pending lookup by id
  ids
  name key url slug code range date metadata total now today min history overview summary profile content contents
  batch many whole entire current actual matching relevant nearby nearest closest local us v1 v2 v3 v4"""
)
# Words about a record. Alone, they name what a tool tells about the record whose key it takes.
ASPECTS = words(
  """price prices balance balances status statistics stats stat forecast history metadata content contents summary
  detail details info data count rating ratings score scores image images weather quote quotes metrics metric ranking
  rankings logs log usage overview description definition definitions time location position positions value volume
  analysis documentation docs doc structure schema version versions hotspots hotspot conditions quality profile text
  size type types permission permissions setting settings settings config configuration example examples transcript
  translation recommendation recommendations sentiment dividend dividends news statement sheet cashflow flow earnings
  supply allowance chart distribution indicator indicators fee fees rate rates tvl ohlcv candles kline trade trades
  section sections link links reference references citation citations review reviews comment comments caption captions
  abi code preview readme changelog dependency dependencies release releases similar timeline execution executions"""
)
MANY = words('history news logs hotspots data documentation results docs series sales analytics captions')


def split(name: str) -> list[str]:
  """The words of a name in lower case: 'getUserById' and 'get-user_by id' give get, user, by, id."""
  return [word.lower() for word in _CUT.split(name) if word]


def singular(word: str) -> str:
  """The singular of an English noun, by its ending."""
  if word in _SAME or len(word) < 4 or not word.endswith('s'):
    return word
  if word in _IRREGULAR:
    return _IRREGULAR[word]
  if word.endswith('ies'):
    return word[:-3] + 'y'
  if word.endswith(('ss', 'us', 'is')):
    return word
  if word.endswith(('sses', 'xes', 'ches', 'shes', 'zzes')):
    return word[:-2]
  return word[:-1]


def plural(word: str) -> str:
  """The plural of an English noun, by its ending; of a phrase with underscores, that of its last word."""
  head, _, last = word.rpartition('_')
  join = f'{head}_' if head else ''
  irregular = next((many for many, one in _IRREGULAR.items() if one == last), None)
  if irregular:
    return join + irregular
  if last in _SAME or singular(last) != last:
    return word
  if last.endswith('y') and last[-2:-1] not in 'aeiou':
    return join + last[:-1] + 'ies'
  return join + last + ('es' if last.endswith(('s', 'x', 'ch', 'sh', 'z')) else 's')


def is_plural(word: str) -> bool:
  """Whether a noun speaks of several things."""
  return word in MANY or singular(word) != word or word in _IRREGULAR


def identifier(name: str, *, taken: frozenset[str] = frozenset()) -> str:
  """A Python name close to `name`, no keyword, none of `taken`, no underscore in front; '' if there is none."""
  text = (
    name
    if name.isidentifier() and name.isascii()
    else '_'.join(part for part in re.split(r'\W+', name, flags=re.A) if part)
  )
  text = text.strip('_')
  if not text or not text.isascii():
    return ''
  if text[0].isdigit():
    text = f'n_{text}'
  return f'{text}_' if keyword.iskeyword(text) or text in taken else text


def tool_identifier(name: str) -> str:
  """A name for a tool's function; it hides no builtin."""
  text = identifier(name.replace('-', '_'))
  return f'{text}_tool' if text in BUILTINS or keyword.iskeyword(text) else text
