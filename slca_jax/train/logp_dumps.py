"""Log-probs of a step's sampled tokens on disk, beside its rollouts: what ratio, clip and KL of a report come from."""

import pathlib
from collections.abc import Mapping

import numpy as np

from slca_jax.arrays import Experience
from slca_jax.data.store import Records

LOGPS = 'logps.jsonl'
_DIGITS = 5


def logps_of(experience: Experience, *, new_logp_BT=None) -> dict[int, dict[str, list[float]]]:
  """By rollout of the batch, the log-probs of its sampled tokens in order under 'old', 'ref' and, if given, 'new'.

  Only rows of this host's own devices are read, so several hosts tell of a batch in parts.

  Args:
    new_logp_BT: of the policy after the step's updates.
  """
  arrays = {'old': experience.old_logp_BT, 'ref': experience.ref_logp_BT}
  if new_logp_BT is not None:
    arrays['new'] = new_logp_BT
  batch = experience.batch
  sampled, rollout = _own_rows(batch.sampled_BT), _own_rows(batch.rollout_BT)
  kept = {name: _own_rows(array) for name, array in arrays.items()}
  out: dict[int, dict[str, list[float]]] = {}
  for row, sampled_T in sampled.items():
    for r in np.unique(rollout[row][sampled_T]):
      here_T = sampled_T & (rollout[row] == r)
      values = {name: rows[row][here_T].astype(float).round(_DIGITS).tolist() for name, rows in kept.items()}
      out[int(r)] = values
  return out


def dump_logps(
  folder: pathlib.Path, logps: Mapping[int, Mapping[str, list[float]]], *, first: int, group_size: int
) -> None:
  """Adds a mini-batch to the log-probs beside a step's dumped rollouts; the first one of a step drops what is there.

  Args:
    first: place of the mini-batch's first prompt in the step. Rollout r is number r mod G of prompt first + ⌊r / G⌋.
  """
  store = Records(folder / LOGPS)
  try:
    if not first:
      store.keep(0)
    store.append(
      {'group': first + r // group_size, 'index': r % group_size, **values} for r, values in sorted(logps.items())
    )
  finally:
    store.close()


def _own_rows(array) -> dict[int, np.ndarray]:
  """Rows of an array by their index, of this host's devices; replicas once."""
  if not hasattr(array, 'addressable_shards'):
    return dict(enumerate(np.asarray(array)))
  out: dict[int, np.ndarray] = {}
  for shard in array.addressable_shards:
    start = shard.index[0].start or 0
    out.update({start + row: values for row, values in enumerate(np.asarray(shard.data)) if start + row not in out})
  return out
