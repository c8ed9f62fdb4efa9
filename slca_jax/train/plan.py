"""Whether a run fits a slice of chips that nobody has rented yet: its own programs, compiled ahead of time.

`prepare` and `update` are those of `steps.py`, with the optimiser, shardings and micro-batches of the run's settings,
at the largest mini-batch that its limits allow. Nothing is computed and no weight exists. What a chip holds beside a
program's own arguments is added: the reference, the moments, the step's other mini-batches. An engine that samples on
the same chips is not.
"""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from slca_jax.arrays import TrainState
from slca_jax.errors import ConfigError
from slca_jax.nn import sharding
from slca_jax.nn.attention import choose
from slca_jax.nn.config import TransformerConfig
from slca_jax.nn.transformer import abstract_model
from slca_jax.nn.visibility import LONGEST
from slca_jax.ops.estimators import estimator_of
from slca_jax.train import flops, hlo, optimizer
from slca_jax.train.chips import Target
from slca_jax.train.settings import RLConfig
from slca_jax.train.steps import Policy, make_prepare, make_update
from slca_jax.train.workload import Workload, abstract_batch, turns_of_loops, visited, workload

GIB = 2**30


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
  """One way to run: rows over `data` × `fsdp` devices, heads over `tensor`, and how many responses share a row.

  `change` says what of the asked-for settings it gives up, '' if nothing.
  """

  config: RLConfig
  fsdp: int
  tensor: int
  leaves: int
  change: str = ''

  @property
  def name(self) -> str:
    """'16x1' for 16 along fsdp and one along tensor."""
    return f'{self.fsdp}x{self.tensor}'


@dataclasses.dataclass(frozen=True, slots=True)
class Program:
  """A compiled program of one call, per chip where not said otherwise.

  Attributes:
    memory: GiB by category; their sum is what the chip must hold while it runs.
    executed: FLOPs of all chips, recomputation and repeated prompts included.
    kernels: those of them inside Pallas kernels.
    cycles: the compiler's estimate without Pallas kernels.
    sent: bytes by collective, rough.
    largest: (bytes, shape, operation).
    unknown_loops: loops counted as one turn.
    compile_seconds: of this machine.
  """

  memory: dict[str, float]
  executed: float
  kernels: float
  cycles: float
  sent: dict[str, float]
  largest: list[tuple[int, str, str]]
  unknown_loops: int
  compile_seconds: float

  @property
  def total(self) -> float:
    """GiB that the chip must hold."""
    return sum(self.memory.values())


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
  """What was found of a candidate on a target.

  Attributes:
    needed: GiB per chip, of the larger program or of what already exceeds the chip.
    why: what does not fit; '' where it fits.
    prepare, update: None where it was not compiled or the compiler refused.
  """

  target: Target
  model: str
  candidate: Candidate
  work: Workload
  needed: float
  why: str
  prepare: Program | None = None
  update: Program | None = None
  needed_flops: float = 0.0

  @property
  def fits(self) -> bool:
    """Whether both programs fit."""
    return not self.why


Judge = Callable[..., Verdict]  # compile_step, or what remembers it


def compile_step(decoder: TransformerConfig, target: Target, candidate: Candidate, *, model: str = '') -> Verdict:
  """The verdict on a candidate, by compiling `prepare` and then `update` for the target's devices."""
  work = workload(candidate.config, leaves=candidate.leaves)
  verdict = functools.partial(Verdict, target, model, candidate, work)
  try:
    mesh = sharding.make_mesh(data=1, fsdp=candidate.fsdp, tensor=candidate.tensor, devices=target.devices)
  except ConfigError as error:
    return verdict(math.inf, f'no mesh of {candidate.name} on {target.name}: {error}')
  step = _Step(numerics(decoder, candidate.config, target), mesh, candidate.config, work, target)
  floor = step.floor()
  if sum(floor.values()) > target.chip.memory:
    parts = ', '.join(f'{name} {size:.1f}' for name, size in floor.items())
    return verdict(sum(floor.values()), f'not compiled: {parts} GiB are more than {target.chip.memory} GiB')
  with jax.set_mesh(mesh):
    try:
      prepare, experience = step.compile_prepare()
      update = step.compile_update(experience)
    except jax.errors.JaxRuntimeError as error:
      if (found := hlo.exceeded(str(error))) is None:
        raise
      return verdict(found[0], f'the compiler refuses: temporaries alone need {found[0]:.1f} of {found[1]:.1f} GiB')
  program = max((update, prepare), key=lambda program: program.total)
  name = 'update' if program is update else 'prepare'
  why = f'{name} needs {program.total:.1f} of {target.chip.memory:.1f} GiB'
  return verdict(
    program.total, why if program.total > target.chip.memory else '', prepare, update, needed_flops=step.needed()
  )


def numerics(decoder: TransformerConfig, config: RLConfig, target: Target) -> TransformerConfig:
  """The decoder as the run computes with it; what 'auto' attention means is the target's to say, not this machine's."""
  chosen = config.model.numerics
  if chosen['attention'] == 'auto':
    chosen['attention'] = choose(config.batching.lengths[-1], decoder.head_dim, target.platform)
    if chosen['attention'] == 'dense':
      chosen['attention_block'] = None
  return dataclasses.replace(decoder, **chosen)


class _Step:
  """The two programs of a run on a mesh, from shapes alone."""

  def __init__(
    self, decoder: TransformerConfig, mesh: jax.sharding.Mesh, config: RLConfig, work: Workload, target: Target
  ):
    self.decoder, self.config, self.work, self.target = decoder, config, work, target
    self.mesh, self.micro_rows = mesh, config.batching.micro_rows
    graph, shapes = abstract_model(decoder)
    rule = optimizer.make(config.optimizer, 1000)
    state = jax.eval_shape(lambda params: TrainState(jnp.zeros((), jnp.int32), params, rule.init(params)), shapes)
    shardings = sharding.named_shardings(state, mesh)
    self.state = _placed(state, shardings)
    self.reference: nnx.State | None = self.state.params if config.objective.kl else None
    self.batch = abstract_batch(work, mesh, micro_rows=self.micro_rows)
    policy = Policy(graph, decoder.vocab, config.rollout.decoding.temperature, config.objective.logprob_chunk)
    estimator = functools.partial(estimator_of(config.method.estimator), **config.method.options)
    self.prepare = make_prepare(policy, config.objective, estimator, micro_rows=self.micro_rows)
    self.update = make_update(policy, config.objective, rule, micro_rows=self.micro_rows, shardings=shardings)
    self.waiting = config.updates_per_step - 1
    # Computed here and now: under a mesh of chips that are not there nothing can be.
    shared, block = decoder.heads // decoder.kv_heads, decoder.attention_block
    self.trips = turns_of_loops(work, micro_rows=self.micro_rows, heads_per_key=shared, block=block)
    # A kernel's grid skips blocks on a TPU, loops do elsewhere.
    self.visited = visited(work, block=block) if target.platform == 'tpu' else 1.0

  def floor(self) -> dict[str, float]:
    """GiB that no compiler can avoid: weights, moments, reference, gradients, and the stream at every layer's input."""
    rows = self.micro_rows // sharding.row_shards(self.mesh)
    tokens = self.work.length // math.gcd(self.work.length, self.mesh.shape['tensor'])
    stream = self.decoder.layers * rows * tokens * self.decoder.width * jnp.dtype(self.decoder.dtype).itemsize
    kept = {'kept for the backward pass': stream / GIB}
    return {**self._state_sizes(learning=True), 'gradients': self._gradients(), **kept}

  def needed(self) -> float:
    """FLOPs that one mini-batch needs of all chips: a forward pass in prepare per model, and three in update."""
    return (4 if self.reference is None else 5) * flops.forward(self.decoder, self.work.needed)

  def compile_prepare(self) -> tuple[Program, Any]:
    """The program, and the experience that it returns, as shapes."""
    traced = self.prepare.trace(self.state.params, self.reference, self.batch)
    compiled, seconds = self._compile(traced)
    experience = _placed(traced.out_info, compiled.output_shardings)
    # Batches lie there from the start; an experience takes its batch's arrays over and adds to them.
    sizes = self._state_sizes(learning=False) | {'batches': _gib(self.batch) + self.waiting * _gib(experience)}
    given = (self.state.params, self.reference, self.batch)
    return self._program(traced, compiled, seconds, sizes, given), experience

  def compile_update(self, experience: Any) -> Program:
    """The program for an experience of `compile_prepare`."""
    traced = self.update.trace(self.state, experience)
    compiled, seconds = self._compile(traced)
    sizes = self._state_sizes(learning=True) | {
      'gradients': self._gradients(),
      'batches': (1 + self.waiting) * _gib(experience),
    }
    return self._program(traced, compiled, seconds, sizes, (self.state, experience))

  def _compile(self, traced: Any) -> tuple[Any, float]:
    lowered, start = traced.lower(), time.monotonic()
    return lowered.compile(self.target.options or None), time.monotonic() - start

  def _program(self, traced: Any, compiled: Any, seconds: float, sizes: dict[str, float], given: Any) -> Program:
    text, count = compiled.as_text(), functools.partial(flops.executed, traced.jaxpr, self.trips)
    all_of_it = count(visited=self.visited)
    done = hlo.work(text, self.trips)
    found = compiled.memory_analysis()
    # A layout pads small arrays; results that take over no argument's memory lie beside everything else.
    rest = max(0.0, found.argument_size_in_bytes / GIB - _gib(given))
    fresh = (found.output_size_in_bytes - found.alias_size_in_bytes) / GIB
    memory = sizes | {
      'temporaries': found.temp_size_in_bytes / GIB - sizes.get('gradients', 0.0),
      'results': fresh,
      'padding': rest,
      'code': found.generated_code_size_in_bytes / GIB,
    }
    return Program(
      memory, all_of_it, all_of_it - count(visited=0.0), done.cycles, done.sent, hlo.largest(text),
      done.unknown_loops, seconds,
    )  # fmt: skip

  def _state_sizes(self, *, learning: bool) -> dict[str, float]:
    sizes = {'parameters': _gib(self.state.params), 'optimiser': _gib(self.state.opt_state)}
    there = self.reference is not None and not (learning and self.config.reference.placement == 'host')
    return sizes | ({'reference': _gib(self.reference)} if there else {})

  def _gradients(self) -> float:
    # Summed up in float32 whatever the parameters are.
    return _gib(self.state.params) * 4 / jnp.dtype(self.decoder.param_dtype).itemsize


def candidates(config: RLConfig, decoder: TransformerConfig, chips: int, *, shared: bool) -> Iterator[Candidate]:
  """The sensible ways to run on so many chips, those first that should be fastest.

  Few tensor shards, for they exchange activations in every layer, but no more row shards than rows; long rows, for they
  repeat a prompt less often.
  """
  tensors = [size for size in (1, 2, 4, 8) if decoder.kv_heads % size == 0 and chips % size == 0]
  many = [4, 2, 1] if shared else [1]
  for leaves in many:
    work = workload(config, leaves=leaves)
    if leaves > work.group_size or (leaves > 1 and work.length > LONGEST):
      continue
    for tensor in tensors:
      shards = chips // tensor
      if shards <= max(1, work.rows()):
        yield Candidate(_with_rows(config, shards, work.length), shards, tensor, leaves)


def cheaper(config: RLConfig) -> Iterator[tuple[str, RLConfig]]:
  """Settings that need less and less memory: each keeps the changes before it."""
  change = dataclasses.replace
  if config.objective.kl and config.reference.placement == 'device':
    config = change(config, reference=change(config.reference, placement='host'))
    yield 'reference.placement=host (moved to the chips for each step)', config
  if config.optimizer.momentum_dtype == 'float32':
    config = change(config, optimizer=change(config.optimizer, momentum_dtype='bfloat16'))
    yield 'and optimizer.momentum_dtype=bfloat16', config
  if config.model.param_dtype == 'float32' or config.optimizer.master:
    model, rule = change(config.model, param_dtype='bfloat16'), change(config.optimizer, master=False)
    yield (
      'and model.param_dtype=bfloat16 optimizer.master=False (loses small updates)',
      (change(config, model=model, optimizer=rule)),
    )


def search(
  decoder: TransformerConfig,
  config: RLConfig,
  target: Target,
  *,
  model: str,
  shared: bool,
  every: bool = False,
  judge: Judge | None = None,
  before: Iterable[Verdict] = (),
) -> Iterator[Verdict]:
  """Verdicts on candidates until one fits, or on all of them; where none fits, on changes until one helps.

  On the mesh of a candidate that does not fit, here or among the verdicts `before`, longer rows are not compiled.
  """
  found, judge, tried = False, judge or compile_step, list(before)
  for candidate in candidates(config, decoder, len(target.devices), shared=shared):
    work = workload(candidate.config, leaves=candidate.leaves)
    asked = Verdict(target, model, candidate, work, math.inf, '')
    less = next((verdict for verdict in tried if _needs_less(verdict, asked)), None)
    if less:
      why = f'not compiled: rows of {less.work.length:,} need {less.needed:.1f} of {target.chip.memory:.1f} GiB'
      verdict = dataclasses.replace(asked, needed=less.needed, why=why)
    else:
      verdict = judge(decoder, target, candidate, model=model)
    tried.append(verdict)
    found |= verdict.fits
    yield verdict
    if found and not every:
      return
  for change, changed in () if found else cheaper(config):
    *_, last = candidates(changed, decoder, len(target.devices), shared=shared)
    verdict = judge(decoder, target, dataclasses.replace(last, change=change), model=model)
    yield verdict
    if verdict.fits:
      return


def _needs_less(found: Verdict, asked: Verdict) -> bool:
  """Whether what does not fit is the same run with shorter rows."""
  same = lambda v: (v.model, v.target.name, v.candidate.name, v.candidate.change)
  shorter = found.work.length < asked.work.length
  return shorter and not found.fits and math.isfinite(found.needed) and same(found) == same(asked)


def _with_rows(config: RLConfig, shards: int, length: int) -> RLConfig:
  """The settings with one row per shard at a time, and rows long enough."""
  lengths = (*(size for size in config.batching.lengths if size < length), length)
  return dataclasses.replace(config, batching=dataclasses.replace(config.batching, lengths=lengths, micro_rows=shards))


def _placed(shapes: Any, shardings: Any) -> Any:
  return jax.tree.map(lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where), shapes, shardings)


def _gib(tree: Any) -> float:
  """GiB of one device's share of arrays described by shapes."""
  size = lambda x: math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize
  return sum(size(x) for x in jax.tree.leaves(tree)) / GIB
