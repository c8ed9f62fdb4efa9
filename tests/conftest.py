"""Settings every test shares: 8 simulated CPU devices and a compilation cache that outlives the run."""

import os
import pathlib
import tempfile

import hypothesis

os.environ.setdefault('JAX_PLATFORMS', 'cpu')
os.environ.setdefault('HF_HUB_OFFLINE', '1')
# Concurrent thunks of 8 simulated devices can hold every thread of a small pool, each waiting in another collective.
_FLAGS = '--xla_force_host_platform_device_count=8 --xla_cpu_enable_concurrency_optimized_scheduler=false'
if 'xla_force_host_platform_device_count' not in os.environ.get('XLA_FLAGS', ''):
  os.environ['XLA_FLAGS'] = f'{os.environ.get("XLA_FLAGS", "")} {_FLAGS}'.strip()

_CACHE = os.environ.get('SLCA_JAX_CACHE') or pathlib.Path(tempfile.gettempdir()) / 'slca_jax_compilation_cache'
os.environ.setdefault('JAX_COMPILATION_CACHE_DIR', str(_CACHE))
os.environ.setdefault('JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS', '0.2')

# The same examples in every run, however slow the machine; `--hypothesis-profile=default` looks for new ones.
hypothesis.settings.register_profile(
  'repeatable',
  deadline=None,
  derandomize=True,
  database=None,
  suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile('repeatable')
