"""Joins the processes of a run on several hosts: the one place where they meet. Without its flags a run is of one."""

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator

from absl import flags

from slca_jax.errors import Ended, Refused

_COORDINATOR = flags.DEFINE_string(
  'coordinator',
  os.environ.get('SLCA_JAX_COORDINATOR', ''),
  "HOST:PORT of process 0, or 'auto' on TPU pods, GKE, Slurm and Open MPI, where JAX finds it; '' for one process.",
)
_PROCESSES = flags.DEFINE_integer('processes', None, "How many processes the run has; 'auto' finds it.")
_PROCESS = flags.DEFINE_integer('process', None, "Which of them this is, from 0; 'auto' finds it.")
_PATIENCE = flags.DEFINE_integer('patience', 100, 'Seconds without a sign of life after which a process is dead.')
_JOIN_SECONDS = flags.DEFINE_integer('join_seconds', 600, 'Longest wait for all processes at the start.')


@contextlib.contextmanager
def joined() -> Iterator[bool]:
  """Joins the other processes inside the block, and says whether this is the first of them.

  A process that fails ends at once: the interpreter's own end would wait for processes that may never come.
  """
  if not _COORDINATOR.value:
    yield True
    return
  import jax

  known = _COORDINATOR.value != 'auto'
  jax.config.update('jax_cpu_collectives_implementation', 'gloo')  # of no effect on other platforms
  jax.distributed.initialize(
    _COORDINATOR.value if known else None,
    _PROCESSES.value,
    _PROCESS.value,
    initialization_timeout=_JOIN_SECONDS.value,
    heartbeat_timeout_seconds=_PATIENCE.value,
    shutdown_timeout_seconds=_PATIENCE.value,
  )
  try:
    yield jax.process_index() == 0
    jax.distributed.shutdown()
  except SystemExit as error:
    if not error.code:
      raise
    _end(str(error.code))
  except (Ended, Refused) as error:
    _end(f'{type(error).__name__}: {error}')
  except BaseException:
    _end(traceback.format_exc())


def _end(reason: str) -> None:
  print(reason, file=sys.stderr, flush=True)
  sys.stdout.flush()
  os._exit(1)
