"""Nothing escapes: what the check of the source refuses, and what the kernel contains when the check is not there."""

import asyncio
import os
import textwrap
import threading
from typing import Any

import pytest

from slca_jax.dialogue import Tool, ToolCall
from slca_jax.envs import sandbox as sandboxes
from slca_jax.envs.confined import wire
from slca_jax.envs.confined.source import faults, signatures
from slca_jax.envs.guard import CallLimits
from slca_jax.envs.sandbox import Code, Protections, Sandbox, SandboxSettings
from slca_jax.envs.sandboxed import Sandboxed
from slca_jax.errors import ConfigError, EnvironmentFailure

TOOL = Tool('act', 'Acts.', {'type': 'object', 'properties': {}})

REFUSED = {
  'import os': 'import os',
  'import inside a function': 'def act(db):\n  import subprocess\n  return 1',
  'import from': 'from os import system',
  'import a part of a module': 'from string import Formatter',
  'import below a module': 'import os.path',
  'import by star': 'from math import *',
  'import of the importer': '__import__("os")',
  'relative import': 'from . import secrets',
  'class of a tuple': 'def act(db):\n  return ().__class__.__base__.__subclasses__()',
  'globals of a function': 'def act(db):\n  return act.__globals__',
  'code of a function': 'def act(db):\n  return act.__code__',
  'a traceback': 'def act(db):\n  try:\n    1 / 0\n  except Exception as e:\n    return e.__traceback__.tb_frame',
  'a frame of a generator': 'def act(db):\n  return (i for i in db).gi_frame.f_back',
  'attribute by pattern': 'def act(db):\n  match db:\n    case dict(__class__=c):\n      return c',
  'format string': 'def act(db):\n  return "{0.__class__}".format(db)',
  'format string behind a brace': 'def act(db):\n  return "}}{0.__class__}".format(db)',
  'format string in a width': 'def act(db):\n  return "{:{0.__class__}}".format(db)',
  'format string from data': 'def act(db):\n  return db["text"].format(db)',
  'format by type': 'def act(db):\n  return str.format("{0.__class__}", db)',
  'format_map': 'def act(db):\n  return "{a.b}".format_map(db)',
  'getattr': 'def act(db):\n  return getattr(db, "__cla" + "ss__")',
  'eval': 'def act(db):\n  return eval("1")',
  'exec': 'exec("import os")',
  'compile': 'def act(db):\n  return compile("1", "", "eval")',
  'open': 'def act(db):\n  return open("/etc/passwd").read()',
  'globals': 'def act(db):\n  return globals()',
  'vars': 'def act(db):\n  return vars()',
  'type with three arguments': 'def act(db):\n  return type("A", (), {})',
  'breakpoint': 'def act(db):\n  breakpoint()',
  'catching BaseException': 'def act(db):\n  try:\n    pass\n  except BaseException:\n    pass',
  'a finalizer': 'class A:\n  def __del__(self):\n    pass',
  'a metaclass': 'class A(metaclass=print):\n  pass',
  'hooks of classes': 'class A:\n  def __init_subclass__(cls):\n    pass',
  'pickling hooks': 'class A:\n  def __reduce__(self):\n    return print, ()',
  'builtins by name': 'def act(db):\n  return __builtins__',
  'binding builtins': '__builtins__ = {}',
  'a parameter with underscores': 'def act(db, __class__=1):\n  return 1',
  'state outside the database': 'count = 0\ndef act(db):\n  global count\n  count += 1',
  'async': 'async def act(db):\n  return 1',
  'a loop at the top': 'while True:\n  pass',
  'deep nesting': 'x = ' + '-' * 100_000 + '1',
  'deep attributes': 'x = a' + '.a' * 100_000,
  'a long source': 'x = 1\n' * 100_000,
  'a null byte': 'x = "\0"',
  'no Python': 'def act(db) return',
}


@pytest.mark.parametrize('name', REFUSED)
def test_source_is_refused_before_it_runs(name):
  assert faults(REFUSED[name])


FINE = """
import math
import random
from datetime import datetime, timedelta
from typing import Any

LIMIT: int = 3

def _find(db, key):
  return next((row for row in db['rows'] if row['id'] == key), None)

class Sum:
  def __init__(self):
    self.total = 0

def act(db, id: str, count: int = 1, *, note: str | None = None) -> dict[str, Any]:
  row = _find(db, id)
  if row is None:
    raise ValueError(f'no row {id!r}')
  row['count'] += count
  match count:
    case 1:
      text = 'one: {:.2f} of {name}'.format(math.pi, name=id)
    case _:
      text = '%d' % count
  return {'text': text, 'at': (datetime.now() + timedelta(days=1)).isoformat(), 'draw': random.randint(1, 6)}
"""


def test_plain_functions_are_let_through_and_their_parameters_known():
  assert faults(FINE) == []
  assert signatures(FINE)['act'].names == ('id', 'count', 'note')
  assert signatures(FINE)['act'].required == ('id',)
  assert list(signatures(FINE)) == ['act']


def test_a_fault_names_its_line_and_a_remedy():
  assert faults('def act(db):\n  return open("x")') == ['line 2: open is not offered; keep data in the database']


@pytest.fixture(scope='module')
def sandbox():
  one = Sandbox(SandboxSettings(least='limits', memory_mb=64))
  yield one
  one.close()


@pytest.fixture
def run(sandbox):
  """The observation of a call of `act` in unchecked code."""

  def run(source, *, deadline=300.0):
    async def call():
      world = Sandboxed(
        [TOOL], Code(textwrap.dedent(source), '{"n": 1}'), sandbox, limits=CallLimits(deadline=deadline)
      )
      try:
        return (await world.step([ToolCall('act', {})]))[0]
      finally:
        world.close()

    return asyncio.run(call())

  return run


# How code that outwitted the check would come by the real modules: every test below starts from there.
OUT = """
def real(name):
  for kind in ().__class__.__base__.__subclasses__():
    if kind.__name__ == '_wrap_close':
      return kind.__init__.__globals__['__builtins__']['__import__'](name)
"""
ESCAPED = f'/tmp/escaped_{os.getpid()}'
CONTAINED = {
  'reads a file': 'real("io").open("/etc/passwd").read()',
  'reads the project': 'real("io").open(real("slca_jax.envs.confined.nursery").__file__).read()',
  'lists the root': 'real("os").listdir("/")',
  'writes a file': 'real("os").open(ESCAPED, 65)',
  'deletes a file': 'real("os").unlink(VICTIM)',
  'renames a file': 'real("os").rename(VICTIM, VICTIM + "2")',
  'makes a folder': 'real("os").mkdir(ESCAPED)',
  'changes rights': 'real("os").chmod(VICTIM, 0)',
  'forks': 'real("os").fork()',
  'runs a program': 'real("os").execv("/bin/sh", ["sh", "-c", "true"])',
  'spawns a program': 'real("os").posix_spawn("/bin/true", ["true"], {})',
  'starts a thread': 'real("_thread").start_new_thread(print, ())',
  'opens a socket': 'real("_socket").socket(2, 1)',
  'opens a pipe': 'real("os").pipe()',
  'duplicates a descriptor': 'real("os").dup(1)',
  'kills its parent': 'real("os").kill(real("os").getppid(), 9)',
  'kills everybody': 'real("os").kill(-1, 9)',
  'kills the trainer': 'real("os").kill(TRAINER, 9)',
  'raises its limits': 'real("resource").setrlimit(real("resource").RLIMIT_NOFILE, (99, 99))',
  'loads a library': 'real("ctypes").CDLL("libresolv.so.2")',
  'starts a shell from C': '1 // (real("ctypes").CDLL(None).system(b"true") == 0)',
  'forks from C': '1 // (real("ctypes").CDLL(None).fork() >= 0)',
  'opens a socket from C': '1 // (real("ctypes").CDLL(None).socket(2, 1, 0) >= 0)',
  'mounts from C': '1 // (real("ctypes").CDLL(None).mount(b"proc", b"/", b"proc", 0, None) == 0)',
  'traces from C': '1 // (real("ctypes").CDLL(None).ptrace(16, 1, None, None) == 0)',
  'takes its death signal off': '1 // (real("ctypes").CDLL(None).prctl(1, 0) == 0)',
  'sends descriptors': '1 // (real("ctypes").CDLL(None).sendmsg(3, b"", 0) >= 0)',
  'leaves its folder': 'real("os").chroot("..")',
  'becomes root': 'real("os").setuid(0)',
  'sets a signal': 'real("signal").setitimer(0, 1)',
}
WITHIN = {'kills its parent', 'takes its death signal off', 'sets a signal'}


@pytest.mark.parametrize('name', CONTAINED)
def test_the_kernel_contains_code_that_got_past_the_check(name, run, sandbox, tmp_path):
  if sandbox.protections().level == 'limits':
    pytest.skip(f'this machine has no means of the kernel: {sandbox.protections()}')
  if name in WITHIN and 'filter' not in sandbox.protections().active:
    pytest.skip('without the filter, namespaces leave this to the code: it reaches no further than its sandbox')
  victim = tmp_path / 'victim'
  victim.write_text('whole')
  os.chmod(tmp_path, 0o777)
  action = CONTAINED[name].replace('VICTIM', repr(str(victim))).replace('TRAINER', str(os.getpid()))
  action = action.replace('ESCAPED', repr(ESCAPED))
  seen = run(f'{OUT}\ndef act(db):\n  return str({action})\n')
  assert not seen.ok, seen.content
  assert victim.read_text() == 'whole'
  assert not os.path.exists(ESCAPED)


def test_the_way_out_of_python_that_these_tests_take_is_open(run):
  assert run(f'{OUT}\ndef act(db):\n  return real("math").sqrt(9)\n').content == '3.0'


FLOODS = {
  'a gigabyte of text': "return len('x' * 10**9)",
  'a gigabyte by doubling': "x = 'x'\n  while True:\n    x += x",
  'a list of lists': 'x = []\n  while True:\n    x.append([0] * 10**6)',
  'a result beyond the limit': "return 'x' * 2_000_000",
  'a cycle': 'x = []\n  x.append(x)\n  return x',
  'a nested result': 'x = []\n  for _ in range(100_000):\n    x = [x]\n  return x',
  'a set': 'return {1, 2}',
  'an object': 'return act',
  'not a number': "return float('nan')",
  'an unpaired key': 'return {(1, 2): 3}',
  'recursion': 'return act(db)',
  'an exit': 'raise SystemExit',
  'an interrupt': 'raise KeyboardInterrupt',
}


@pytest.mark.parametrize('name', FLOODS)
def test_results_that_are_none_and_floods_are_refusals(name, run):
  raised = {'SystemExit', 'KeyboardInterrupt'} & set(FLOODS[name].split())
  names = f'{OUT}\n{raised.pop()} = real("builtins").{FLOODS[name].split()[1]}\n' if raised else ''
  seen = run(f'{names}\ndef act(db):\n  {FLOODS[name]}\n')
  assert not seen.ok and seen.content.startswith('Error: ') and len(seen.content) <= 500


HANGS = {
  'a loop': 'while True:\n    pass',
  'a great number': 'return len(str(9 ** 9 ** 9))',
  'a loop that catches everything': 'while True:\n    try:\n      raise ValueError\n    except:\n      pass',
  'a pattern that tries everything': "import re\n  return re.match('(a+)+$', 'a' * 99 + 'b') is None",
  'an error that never prints': 'class E(Exception):\n    def __str__(self):\n      while 1:\n        pass\n  raise E',
  'a finalizer': 'class A:\n    def __del__(self):\n      while True:\n        pass\n  A()\n  return 1',
}


@pytest.mark.parametrize('name', HANGS)
def test_a_call_that_hangs_is_killed_at_the_deadline(name, run):
  seen = run(f'def act(db):\n  {HANGS[name]}\n', deadline=0.4)
  assert not seen.ok and '0.4 seconds' in seen.content


def test_output_goes_nowhere_and_costs_no_memory(run):
  assert (
    run(f'{OUT}\ndef act(db):\n  for _ in range(1000):\n    real("os").write(1, b"x" * 10_000)\n  return 1').content
    == '1'
  )
  assert run('def act(db):\n  for _ in range(1000):\n    print("x" * 1000)\n  return 1').content == '1'


def test_what_breaks_the_protocol_or_the_process_is_an_error_of_the_call(run):
  noise = '  os = real("os")\n  for n in range(3, 20):\n    try:\n      os.write(n, b"~" * 9)\n    except:\n      pass'
  broken = f'{OUT}\ndef act(db):\n{noise}\n  return 1'
  assert 'act broke' in run(broken).content
  assert 'act broke' in run(f'{OUT}\ndef act(db):\n  real("os")._exit(0)').content
  assert 'act broke' in run(f'{OUT}\ndef act(db):\n  real("os").abort()').content


def test_the_world_holds_nothing_of_the_trainer(run, monkeypatch):
  monkeypatch.setenv('SECRET_TOKEN', 'hush')
  seen = run(f'{OUT}\ndef act(db):\n  return [sorted(real("os").environ), sorted(real("sys").modules)]')
  assert 'SECRET' not in seen.content and 'LC_ALL' in seen.content
  assert '"jax"' not in seen.content and '"asyncio"' not in seen.content


def test_modules_on_offer_lead_nowhere(run):
  assert not run('def act(db):\n  import json\n  return str(json.codecs)').ok
  assert not run('def act(db):\n  import json\n  json.dumps = print').ok
  assert not run('def act(db):\n  import os').ok


def test_code_that_breaks_while_it_loads_ends_the_rollout(run):
  with pytest.raises(EnvironmentFailure, match=r'functions\.py cannot be loaded: ZeroDivisionError'):
    run('x = 1 / 0\ndef act(db):\n  return 1')


def test_cpu_time_is_bounded_without_a_deadline():
  sandbox = Sandbox(SandboxSettings(least='limits', cpu_seconds=1))

  async def call():
    source, patient = 'def act(db):\n  while True:\n    pass', CallLimits(deadline=300.0)
    world = Sandboxed([TOOL], Code(source, '{}'), sandbox, limits=patient)
    return (await world.step([ToolCall('act', {})]))[0].content

  assert 'limits on memory and CPU time' in asyncio.run(call())
  sandbox.close()


def test_killed_worlds_leave_no_process(run, sandbox):
  run('def act(db):\n  while True:\n    pass', deadline=0.2)
  assert all(not cradle.worlds for cradle in sandbox._cradles.values())


def test_a_sandbox_that_was_killed_starts_again(run, sandbox):
  process, _, _ = sandbox._started()
  process.kill()
  process.wait()
  assert run('def act(db):\n  return 7').content == '7'


def test_less_protection_than_asked_for_is_refused_and_says_what_to_do(monkeypatch):
  sandbox = Sandbox(SandboxSettings(least='full'))
  weak = Protections(('processes', 'limits'), {'filter': 'libseccomp is not installed', 'namespaces': 'not permitted'})
  monkeypatch.setattr(sandbox, 'protections', lambda: weak)
  with pytest.raises(ConfigError, match=r"protects less \(limits: processes, limits; no filter .*set it to 'limits'"):
    sandbox.open(Code('', '{}'))


def test_levels_follow_from_what_is_active():
  assert Protections(('processes', 'limits', 'filter', 'namespaces'), {}).level == 'full'
  assert Protections(('processes', 'limits', 'filter'), {'namespaces': 'not permitted'}).level == 'kernel'
  assert Protections(('processes', 'limits'), {'filter': 'none', 'namespaces': 'none'}).level == 'limits'


def test_a_sandbox_that_says_nothing_is_a_failure_and_leaves_no_process(monkeypatch):
  started = []
  begin = sandboxes._start_process
  monkeypatch.setattr(sandboxes, '_PATIENCE', 1e-6)
  monkeypatch.setattr(sandboxes, '_start_process', lambda there: started.append(begin(there)) or started[-1])
  with pytest.raises(EnvironmentFailure, match='the sandbox does not start'):
    Sandbox(SandboxSettings(least='limits')).protections()
  assert started[0].returncode is not None


def test_threads_that_open_and_kill_worlds_do_not_mix_their_messages():
  sent = []

  class Slow:
    """Gives every message away in two parts, as a socket may."""

    def sendall(self, data):
      sent.append(data[:3])
      pause.wait(0.01)
      sent.append(data[3:])

  pause = threading.Event()
  socket: Any = Slow()
  cradle = sandboxes._Cradle(socket)
  crew = [threading.Thread(target=cradle.tell, args=({'kill': name},)) for name in range(4)]
  for thread in crew:
    thread.start()
  for thread in crew:
    thread.join()
  whole = [wire.pack({'kill': name}) for name in range(4)]
  assert sorted(sent[i] + sent[i + 1] for i in range(0, 8, 2)) == sorted(whole)
