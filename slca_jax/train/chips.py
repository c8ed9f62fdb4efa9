"""What a program can be compiled for without having it: slices of TPUs and hosts of GPUs by name, simulated CPUs.

Memory and peak figures are those of public specifications, except for the 15.75 GiB of a v5e, which its compiler names.
Prices are list prices per chip-hour as published for one region in 2025; they change, and only order slices here.
"""

import dataclasses
import importlib.util
import os
import re
from collections.abc import MutableMapping
from typing import Any

from slca_jax.config import require
from slca_jax.errors import ConfigError


@dataclasses.dataclass(frozen=True, slots=True)
class Chip:
  """One device as the compiler sees it.

  Attributes:
    memory: GiB that programs may use.
    peak: bfloat16 TFLOP/s.
    links: GB/s over all links, both ways; 0 where not known.
    clock: GHz, to turn the compiler's cycles into seconds; 0 where it gives none.
    price: dollars per hour; 0 where not known.
  """

  kind: str
  memory: float
  peak: float
  links: float = 0.0
  clock: float = 0.0
  price: float = 0.0


# By JAX's device_kind.
CHIPS = {
  chip.kind: chip
  for chip in (
    Chip('TPU v4', 31.25, 275, 300, 1.05, 3.22),
    Chip('TPU v5 lite', 15.75, 197, 200, 1.5, 1.20),
    Chip('TPU v5', 95.74, 459, 600, 1.75, 4.20),
    Chip('TPU v6 lite', 31.25, 918, 448, 1.75, 2.70),
    Chip('TPU7x', 94.75, 1153, 600, 1.9),
    Chip('NVIDIA A100-SXM4-80GB', 79.2, 312),
    Chip('NVIDIA H100 80GB HBM3', 79.2, 989),
    Chip('NVIDIA H200', 139.8, 989),
    Chip('NVIDIA B200', 178.0, 2250),
    Chip('cpu', 16.0, 0.1),
  )
}
# Slices of one generation from small to large, to name the next one where a run does not fit.
SLICES = {
  'v5e': ('2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16'),
  'v6e': ('2x2', '2x4', '4x4', '4x8', '8x8', '8x16', '16x16'),
  'v5p': ('2x2x1', '2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8'),
  'v4': ('2x2x1', '2x2x2', '2x2x4', '2x4x4', '4x4x4', '4x4x8', '4x8x8'),
}
# What XLA must know of a GPU to compile for it: cores, shared memory and L2 cache in bytes, GB/s, GHz, capability.
_GPUS = {
  'a100': ('NVIDIA A100-SXM4-80GB', 108, 167_936, 41_943_040, 2039, 1.41, 8),
  'h100': ('NVIDIA H100 80GB HBM3', 132, 233_472, 52_428_800, 3352, 1.98, 9),
  'h200': ('NVIDIA H200', 132, 233_472, 52_428_800, 4800, 1.98, 9),
}
# Cutting matmuls into slivers to overlap them with gathers costs more than it hides; launch/tpu_pod.sh sets the same.
TPU_OPTIONS = {'xla_jf_spmd_threshold_for_windowed_einsum_mib': '1000000'}
# Without these libtpu asks a metadata server that is not there, and only one process at a time may load it.
_QUIET = {
  'TPU_SKIP_MDS_QUERY': '1',
  'TPU_ACCELERATOR_TYPE': 'v5litepod-16',
  'TPU_WORKER_HOSTNAMES': 'localhost',
  'ALLOW_MULTIPLE_LIBTPU_LOAD': '1',
}


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
  """Devices to compile for: the name asked for, JAX's descriptions, what one device is, the compiler's options."""

  name: str
  devices: tuple[Any, ...]
  chip: Chip
  options: dict[str, str]

  @property
  def platform(self) -> str:
    """'tpu', 'gpu' or 'cpu'."""
    kind = self.chip.kind
    return 'tpu' if kind.startswith('TPU') else 'cpu' if kind == 'cpu' else 'gpu'


def prepare_process(topologies: list[str], environment: MutableMapping[str, str] = os.environ) -> None:
  """Sets what JAX reads when it starts: no search for TPUs on this machine, and as many simulated CPUs as asked."""
  for name, value in _QUIET.items():
    environment.setdefault(name, value)
  if 'gpu' not in (name.partition(':')[0] for name in topologies):
    environment['JAX_PLATFORMS'] = 'cpu'
  counts = [int(count) for name in topologies if (count := name.partition('cpu:')[2]).isdigit()]
  if counts:
    environment.setdefault('JAX_NUM_CPU_DEVICES', str(max(counts)))


def describe(name: str) -> Target:
  """The devices of `v5p:2x2x4` (and v2 to tpu7x), of `h100:8` (one host of a100, h100 or h200), or of this machine.

  `gpu` means all GPUs that this process has, `gpu:4` four of them, and `cpu:8` as many simulated devices.

  Raises:
    ConfigError: a name that is none of these, no compiler for it, or not so many devices.
  """
  family, _, shape = name.partition(':')
  if family in ('cpu', 'gpu'):
    return _attached(name, family, shape)
  if family in _GPUS:
    return _gpus(name, family, shape or '1')
  require(
    bool(re.fullmatch(r'(v[2-6][ep]?|tpu7x):\d+(x\d+){1,2}', name)),
    f'{name!r} is no topology; name one like v5p:2x2x4, v6e:4x4, v5e:4x4, h100:8, cpu:8 or gpu',
  )
  require(
    importlib.util.find_spec('libtpu') is not None,
    f"{name} is compiled by libtpu, which is not installed; pip install -e '.[plan]'",
  )
  return _slice(name)


def larger(name: str) -> str | None:
  """The next larger slice of the same generation, None if there is none listed."""
  family, _, shape = name.partition(':')
  sizes = SLICES.get(family, ())
  at = sizes.index(shape) + 1 if shape in sizes else len(sizes)
  return f'{family}:{sizes[at]}' if at < len(sizes) else None


def _slice(name):
  from jax.experimental import topologies

  try:
    devices = topologies.get_topology_desc(platform='tpu', topology_name=name).devices
  except Exception as error:  # the plugin raises JaxRuntimeError, but RuntimeError where it cannot be loaded
    raise ConfigError(f'libtpu describes no {name}: {str(error).splitlines()[0]}') from error
  kind = devices[0].device_kind
  require(kind in CHIPS, f'{name} has chips of kind {kind!r}; known are {", ".join(CHIPS)}')
  return Target(name, tuple(devices), CHIPS[kind], TPU_OPTIONS)


def _gpus(name, family, count):
  from jax.experimental import topologies

  require(count.isdigit() and int(count) > 0, f'{name!r} is no number of GPUs; write {family}:8')
  require(
    any(importlib.util.find_spec(f'jax_cuda{version}_plugin') for version in (12, 13)),
    f"{name} is compiled by JAX's CUDA plugin, which is not installed; pip install -e '.[gpu]' (no GPU is needed)",
  )
  kind, cores, shared, cache, bandwidth, clock, major = _GPUS[family]
  description = f"""
    gpu_device_info {{
      threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048 fpus_per_core: 128
      shared_memory_per_block: 49152 shared_memory_per_core: {shared} shared_memory_per_block_optin: {shared - 1024}
      core_count: {cores} memory_bandwidth: {bandwidth * 10**9} l2_cache_size: {cache} clock_rate_ghz: {clock}
      block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
      device_memory_size: {int(CHIPS[kind].memory * 2**30)} cuda_compute_capability {{ major: {major} minor: 0 }}
      registers_per_core_limit: 65536 registers_per_block_limit: 65536
    }}
    platform_name: "CUDA" device_description_str: "{kind}" dnn_version_info {{ major: 9 minor: 8 patch: 0 }}
  """
  try:
    topology = topologies.get_topology_desc('', platform='cuda', topology=f'1x1x{count}', target_config=description)
  except Exception as error:
    raise ConfigError(f"JAX's CUDA plugin describes no {name}: {str(error).splitlines()[0]}") from error
  return Target(name, tuple(topology.devices), CHIPS[kind], {})


def _attached(name, family, count):
  import jax

  try:
    devices = jax.devices(family)
  except RuntimeError as error:
    raise ConfigError(f'{name}: this process has no {family}; JAX compiles for GPUs only where there is one') from error
  require(not count or count.isdigit(), f'{name!r} is no number of devices; write {family}:8')
  wanted = int(count or len(devices))
  require(wanted <= len(devices), f'{name} needs {wanted} devices; this process has {len(devices)}')
  kind = devices[0].device_kind
  chip = CHIPS.get(kind) or Chip(kind, 0.0, 0.0)
  stats = devices[0].memory_stats() if family == 'gpu' else None
  if stats and 'bytes_limit' in stats:
    chip = dataclasses.replace(chip, memory=stats['bytes_limit'] / 2**30)
  require(chip.memory > 0, f'{name}: the memory of a {kind!r} is not known; known are {", ".join(CHIPS)}')
  return Target(name, tuple(devices[:wanted]), chip, {})
