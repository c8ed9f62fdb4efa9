"""The isolation law on a run's own rollouts and policy: what summary rewards do to the gradient through tool tokens.

    python benchmarks/isolation.py RUN [RUN …] [--permutations=4 --methods=slca,slca_tara,tara,grpo]

RUN is the folder of a run of launch/train_rl.py or of a study that kept rollouts (`dump_every`) and was finished. Of
each dumped step its rollouts are laid out as in training, with the rewards of the run and with its summary rewards
permuted over all rollouts of the step. The gradient is that of the trained policy's real loss, through tool tokens
alone. Printed is how far it moves: the norm of the difference over the norm of the gradient, the largest over
permutations and the mean over steps; 'bits' says whether every permutation left every bit of it as it was.
"""

import argparse
import collections
import dataclasses
import functools
import os
import pathlib
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from slca_jax.data.store import Trajectories
from slca_jax.dialogue import Scores, Trajectory

METHODS = ('slca', 'slca_tara', 'tara', 'grpo')


def permuted(scores: Sequence[Scores], *, seed: int, tool_weight: float) -> list[Scores]:
  """The scores with their summary rewards dealt anew; what a unified reward makes of them follows."""
  judged = [index for index, score in enumerate(scores) if score.summary is not None and not score.guarded]
  order = np.random.default_rng(seed).permutation(judged)
  out = list(scores)
  for index, other in zip(judged, order, strict=True):
    summary = scores[other].summary
    outcome = None if scores[index].tool is None else tool_weight * scores[index].tool + summary
    out[index] = dataclasses.replace(scores[index], summary=summary, outcome=outcome)
  return out


def dumped(run: pathlib.Path) -> Iterator[tuple[list[Trajectory], list[Scores]]]:
  """The rollouts of each dumped step, of all hosts, and their scores."""
  from slca_jax.report.reading import dumps_of

  for paths in dumps_of(run).values():
    stores = [Trajectories(path, write=False) for path in paths]
    pairs = [store[index] for store in stores for index in range(len(store))]
    yield [trajectory for trajectory, _ in pairs], [scores for _, scores in pairs]


class Gradients:
  """The gradient through tool tokens of a finished run's policy."""

  def __init__(self, run: pathlib.Path):
    import jax

    from slca_jax.arrays import TOOL
    from slca_jax.config import build
    from slca_jax.train import policy, probe, settings, steps
    from slca_jax.train.run import remembered

    self._config = config = build(settings.RLConfig, remembered(run))
    self.tool_weight = config.scoring.tool_weight
    loaded, start = (
      policy.load(dataclasses.replace(config.model, path=path), config.mesh)
      for path in (str(run / 'model'), config.model.path)
    )
    self._params, self._reference, self._mesh = loaded.params, start.params, loaded.mesh
    decoding, objective = config.rollout.decoding, config.objective
    network = steps.Policy(loaded.graph, loaded.config.vocab, decoding.temperature, objective.logprob_chunk)
    self._network, self._objective, self._prepares = network, objective, dict[str, Any]()
    self._rows = probe.segmented_rows
    self._gradient = jax.jit(lambda params, rows: probe.segment_gradient(network, objective, params, rows, TOOL))

  def __call__(self, method: str, trajectories: Sequence[Trajectory], scores: Sequence[Scores]) -> list[np.ndarray]:
    """Of one batch under one method, leaf by leaf."""
    import jax

    from slca_jax.rollout.batching import to_batch

    layout = dataclasses.replace(self._config.batching, micro_rows=1)
    batch = to_batch(trajectories, scores, layout, turns=self._config.rollout.limits.turns)
    with jax.set_mesh(self._mesh):
      experience = self._prepare(method)(self._params, self._reference, batch)
      return jax.tree.leaves(jax.device_get(self._gradient(self._params, self._rows(experience))))

  def _prepare(self, method: str):
    from slca_jax.ops.estimators import ESTIMATORS
    from slca_jax.train.methods import changes
    from slca_jax.train.steps import make_prepare

    if method not in self._prepares:
      estimator = functools.partial(ESTIMATORS[method], **changes(method)['method.options'])
      self._prepares[method] = make_prepare(self._network, self._objective, estimator, micro_rows=1)
    return self._prepares[method]


def norm(leaves: Sequence[np.ndarray]) -> float:
  """The length of a gradient."""
  return float(np.sqrt(sum(np.square(leaf, dtype=np.float64).sum() for leaf in leaves)))


def moves(gradients: Gradients, method: str, step: tuple[Any, Any], permutations: int) -> tuple[float, bool] | None:
  """(the largest relative move over permutations, whether any bit changed); None if tool tokens have no gradient."""
  trajectories, scores = step
  before = gradients(method, trajectories, scores)
  if not norm(before):
    return None
  found, changed = [], False
  for seed in range(permutations):
    after = gradients(method, trajectories, permuted(scores, seed=seed, tool_weight=gradients.tool_weight))
    found.append(norm([a - b for a, b in zip(after, before, strict=True)]) / norm(before))
    changed |= any(a.tobytes() != b.tobytes() for a, b in zip(after, before, strict=True))
  return max(found), changed


def main() -> None:
  """Prints a table of methods."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument('runs', type=pathlib.Path, nargs='+', metavar='RUN')
  parser.add_argument('--permutations', type=int, default=4)
  parser.add_argument('--methods', default=','.join(METHODS))
  args = parser.parse_args()
  found = collections.defaultdict(list)
  for run in args.runs:
    gradients = Gradients(run)
    for step in dumped(run):
      for method in args.methods.split(','):
        found[method].append(moves(gradients, method, step, args.permutations))
  print('| method | steps | gradient through tool tokens moves by | bits |\n|---|--:|--:|---|')
  for method, every in found.items():
    told = [one for one in every if one is not None]
    moved = f'{statistics.fmean(size for size, _ in told):.3f}' if told else '–'
    print(f'| {method} | {len(told)} | {moved} | {"changed" if any(c for _, c in told) else "as they were"} |')


if __name__ == '__main__':
  os.environ.setdefault('JAX_PLATFORMS', 'cpu')
  main()
