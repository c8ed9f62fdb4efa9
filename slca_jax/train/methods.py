"""The methods and ablations by name: what each changes of a run's settings. Two of them differ in nothing else."""

import inspect
from collections.abc import Mapping
from typing import Any

from slca_jax import own
from slca_jax.config import nearest, require

Changes = Mapping[str, Any]  # a setting's path with dots, and its value

_WEIGHTS = {'tool_weight': 1.0, 'summary_weight': 1.0}
_TURNS = {'discount': 0.5, 'future_weight': 0.5}
_SIMULATED = {'environment.backend': 'simulated'}

# name: (estimator, its options, the protocol that fills its rewards)
METHODS: dict[str, tuple[str, dict[str, Any], str]] = {
  'slca': ('slca', _WEIGHTS, 'slca'),
  'grpo': ('grpo', {}, 'grpo'),
  'toolpo': ('toolpo', {'local_weight': 1.0, 'scaled': 1.0}, 'toolpo'),
  'rltr': ('rltr', {}, 'rltr'),
  'tara': ('tara', {'summary_weight': 1.0, **_TURNS}, 'tara'),
  'slca_tara': ('slca_tara', {**_WEIGHTS, **_TURNS}, 'slca_tara'),
  # Turns without the bias that their deviations have where the policy chooses when to stop (slca_jax/ops/turns.py).
  'tara_margin': ('tara_margin', {'summary_weight': 1.0, **_TURNS}, 'tara_margin'),
  'slca_tara_margin': ('slca_tara_margin', {**_WEIGHTS, **_TURNS}, 'slca_tara_margin'),
  # Ablations: D.9 opens gates between the segments, D.2 takes the summary's credit away, "w/o HierR" the tools'.
  'summary_to_tool': ('support', {'summary_to_tool': 1.0, 'tool_to_summary': 0.0}, 'support'),
  'tool_to_summary': ('support', {'summary_to_tool': 0.0, 'tool_to_summary': 1.0}, 'support'),
  'both_open': ('support', {'summary_to_tool': 1.0, 'tool_to_summary': 1.0}, 'support'),
  'guard_only': ('guard_only', _WEIGHTS, 'guard_only'),
  'tool_only': ('tool_only', {'tool_weight': 1.0}, 'tool_only'),
  'summary_only': ('summary_only', {}, 'summary_only'),
}


def _weights(format: float, name: float, key: float, value: float, parallel: float) -> dict[str, Any]:
  parts = {'format': format, 'name': name, 'key': key, 'value': value, 'parallel': parallel}
  return {f'scoring.weights.{part}': share for part, share in parts.items()}


# name: (the method it starts from, what else it changes)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
  'no_slca': ('grpo', {}),
  'no_hierr': ('summary_only', {}),
  # The same model plays the tools, without checks before it and without the tools' definitions in its prompt.
  'no_sgls': ('slca', {**_SIMULATED, 'environment.checks': False, 'environment.definition': False}),
  # D.9's fourth cell under its name in the table: both gates closed.
  'both_closed': ('slca', {}),
  # ToolPO's outcome by a judge; and advantages that are centred and not scaled, as its authors have them.
  'toolpo_judge': ('toolpo', {'scoring.outcome': 'judge'}),
  'toolpo_centred': ('toolpo', {'method.options.scaled': 0.0}),
  'toolpo_judge_centred': ('toolpo', {'scoring.outcome': 'judge', 'method.options.scaled': 0.0}),
  'rltr_judge': ('rltr', {'scoring.completeness': 'judge', 'referee.sampling.temperature': 0.6}),
  # D.8: α R_tool + R_sum.
  **{f'ratio_{name}': ('grpo', {'scoring.tool_weight': float(name)}) for name in ('0.5', '2', '3', '5')},
  # D.7: parts of the process score.
  'uniform': ('slca', _weights(0.2, 0.2, 0.2, 0.2, 0.2)),
  'name_heavy': ('slca', _weights(0.1, 0.4, 0.1, 0.15, 0.25)),
  'value_heavy': ('slca', _weights(0.1, 0.2, 0.1, 0.4, 0.2)),
  # D.12: solved or not, says a judge, in the place of the process score.
  'execution': ('slca', {'method.protocol': 'execution'}),
  'execution_grpo': ('grpo', {'method.protocol': 'execution'}),
  # C.3: another family of models plays the tools.
  'other_mocker': ('slca', {**_SIMULATED, 'environment.simulator.model': 'openai/gpt-oss-120b'}),
  'other_mocker_grpo': ('grpo', {**_SIMULATED, 'environment.simulator.model': 'openai/gpt-oss-120b'}),
}


def names() -> tuple[str, ...]:
  """All methods and variants."""
  return (*METHODS, *VARIANTS)


def changes(name: str) -> dict[str, Any]:
  """What a method, a variant, or an estimator of one's own as FILE.py:NAME changes of any run's settings.

  Raises:
    ConfigError: there is none of this name, or its code cannot be loaded.
  """
  if own.is_own(name):
    return _own_changes(name)
  require(name in METHODS or name in VARIANTS, f'{name!r} is no method; {nearest(name, names())}')
  method, more = VARIANTS.get(name, (name, {}))
  estimator, options, protocol = METHODS[method]
  started = {'method.estimator': estimator, 'method.options': {**options}, 'method.protocol': protocol}
  return changed(started, more)


def _own_changes(estimator: str) -> dict[str, Any]:
  """Its numeric options stand at their defaults."""
  function = own.load_function(estimator, 'rewards, segments, rollout_BT', setting='method.estimator')
  parameters = inspect.signature(function).parameters.values()
  options = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is not p.empty}
  return {'method.estimator': estimator, 'method.options': options, 'method.protocol': ''}


def changed(settings: Mapping[str, Any], more: Changes) -> dict[str, Any]:
  """Settings in any nesting with those of `more` on top: a path goes as deep as `settings` has groups for it."""
  out = dict(settings)
  for path, value in more.items():
    group, key = _reach(out, path)
    group[key] = value
  return out


def _reach(tree: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
  """The innermost group of a path, copied all the way, and the key that is left."""
  head = next((key for key, value in tree.items() if path.startswith(f'{key}.') and isinstance(value, Mapping)), None)
  if head is None:
    return tree, path
  tree[head] = dict(tree[head])
  return _reach(tree[head], path.removeprefix(f'{head}.'))
