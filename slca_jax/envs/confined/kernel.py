"""What the kernel does for a sandbox: limits, empty namespaces, and a filter that lets no other system call through.

Everything here is called in the sandbox's own processes. Each function returns '' when its protection is active, else
the reason why it is not.
"""

import contextlib
import ctypes
import ctypes.util
import os
import resource
import signal
import sys
import tempfile

_NO_NEW_PRIVILEGES, _DUMPABLE, _DEATH_SIGNAL, _SECCOMP = 38, 4, 1, 22
_NAMESPACES = {'user': 0x10000000, 'mount': 0x20000, 'pid': 0x20000000, 'network': 0x40000000, 'ipc': 0x8000000,
               'host name': 0x4000000}  # fmt: skip
_READ_ONLY_NO_EXEC = 0x1 | 0x2 | 0x4 | 0x8  # MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC
_PRIVATE = 0x4000 | 0x40000  # MS_REC, MS_PRIVATE
_NOBODY = 65534

# What Python needs to compute and to answer over a socket that is open already: memory, time and nothing that names a
# file, a process or a peer.
_CALLS = """read write recvfrom sendto brk mmap munmap mremap mprotect madvise futex clock_gettime gettimeofday time
  clock_nanosleep nanosleep getrandom sched_yield rt_sigreturn rt_sigprocmask rt_sigaction sigaltstack restart_syscall
  exit exit_group"""
_ALLOW, _EPERM = 0x7FFF0000, 0x00050000 | 1

LINUX = sys.platform == 'linux'


class Program(ctypes.Structure):
  """struct sock_fprog: a filter as the kernel takes it."""

  _fields_ = (('length', ctypes.c_ushort), ('code', ctypes.c_char_p))


def libc() -> ctypes.CDLL:
  """The C library, with errno."""
  return ctypes.CDLL(None, use_errno=True)


def fix_privileges() -> str:
  """No program that is started from here gains rights."""
  if not LINUX:
    return 'a means of Linux'
  return _reason(libc().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0))


def die_with_parent() -> None:
  """Kills this process when its parent ends, where the kernel can."""
  if LINUX:
    libc().prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)


def leave_root() -> str:
  """Becomes nobody, if it is root; what it has loaded stays loaded."""
  if os.geteuid() != 0:
    return ''
  try:
    os.setgroups([])
    os.setresgid(_NOBODY, _NOBODY, _NOBODY)
    os.setresuid(_NOBODY, _NOBODY, _NOBODY)
  except OSError as error:
    return f'root stays root: {error.strerror}'
  return ''


def leave_world() -> str:
  """Enters namespaces of its own: no network, no file but an empty folder, no foreign process, no rights.

  The next fork starts the new process namespace.
  """
  if not LINUX:
    return 'a means of Linux'
  c, uid, gid = libc(), os.geteuid(), os.getegid()
  c.prctl(_DUMPABLE, 1, 0, 0, 0)  # or the maps below belong to root
  if c.unshare(sum(_NAMESPACES.values())):
    return f'unshare: {os.strerror(ctypes.get_errno())}'
  try:
    for file, text in (('setgroups', 'deny'), ('uid_map', f'{uid} {uid} 1'), ('gid_map', f'{gid} {gid} 1')):
      with open(f'/proc/self/{file}', 'w') as f:
        f.write(text)
    reason = _empty_root(c)
  except OSError as error:
    return f'namespaces: {error}'
  return reason or _drop_capabilities(c) or _reason(c.prctl(_DUMPABLE, 0, 0, 0, 0))  # worlds trace nobody


def limit(*, cpu_seconds: int, memory: int) -> str:
  """Bounds this process for good: CPU time, memory in all, and not one more descriptor, process or byte in a file."""
  bounds = {
    resource.RLIMIT_CPU: cpu_seconds,
    resource.RLIMIT_FSIZE: 0,
    resource.RLIMIT_CORE: 0,
    resource.RLIMIT_NOFILE: 0,
    resource.RLIMIT_NPROC: 0,
    resource.RLIMIT_AS: memory,
  }
  failed = []
  for which, most in bounds.items():
    try:
      resource.setrlimit(which, (most, most))
    except (OSError, ValueError):  # macOS takes no bound on the address space
      failed.append(str(which))
  return f'the limits {", ".join(failed)} were refused' if failed else ''


def compile_filter() -> bytes | str:
  """The system call filter as the kernel takes it, or why there is none. libseccomp knows the machine's numbers."""
  if not LINUX:
    return 'a means of Linux'
  try:
    library = ctypes.CDLL(ctypes.util.find_library('seccomp') or 'libseccomp.so.2')
  except OSError:
    return 'libseccomp is not installed'
  library.seccomp_init.restype = ctypes.c_void_p
  context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_EPERM)))
  for name in _CALLS.split():
    number = library.seccomp_syscall_resolve_name(name.encode())
    if number >= 0:  # some are not on every machine
      library.seccomp_rule_add(context, ctypes.c_uint32(_ALLOW), number, 0)
  with os.fdopen(os.memfd_create('filter'), 'rb') as file:
    if library.seccomp_export_bpf(context, file.fileno()):
      return 'libseccomp exports no filter'
    file.seek(0)
    code = file.read()
  library.seccomp_release(context)
  return code


def forbid_calls(code: bytes) -> str:
  """Puts the filter in force for this process and all it could ever start. It cannot be taken off."""
  program = Program(len(code) // 8, code)
  return _reason(libc().prctl(_SECCOMP, 2, ctypes.byref(program), 0, 0))


def address_space() -> int:
  """Bytes that this process has mapped; 0 where the system doesn't say."""
  with contextlib.suppress(OSError), open('/proc/self/statm') as file:
    return int(file.read().split()[0]) * resource.getpagesize()
  return 0


def _empty_root(c: ctypes.CDLL) -> str:
  folder = tempfile.gettempdir().encode()
  if c.mount(None, b'/', None, _PRIVATE, None):
    return f'mount: {os.strerror(ctypes.get_errno())}'
  if c.mount(b'tmpfs', folder, b'tmpfs', _READ_ONLY_NO_EXEC, b'mode=555,size=4k'):
    return f'mount: {os.strerror(ctypes.get_errno())}'
  os.chroot(folder)
  os.chdir('/')
  return ''


def _drop_capabilities(c: ctypes.CDLL) -> str:
  header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # _LINUX_CAPABILITY_VERSION_3, this process
  return _reason(c.capset(header, (ctypes.c_uint32 * 6)()))


def _reason(status: int) -> str:
  return os.strerror(ctypes.get_errno()) if status else ''
