"""What is told of one rollout, as plain numbers; None where it could not be had."""

from slca_jax.dialogue import Scores, Status, Trajectory
from slca_jax.train.evaluate import parses

Measures = dict[str, float | None]

_PROCESS = ('format', 'name', 'key', 'value', 'parallel', 'opens', 'closes', 'valid', 'calls', 'gold_calls')


def measures(trajectory: Trajectory, scores: Scores) -> Measures:
  """The scores of a rollout with all parts of the process score, how it went and how long it was; none if it failed.

  `process` is S_process, `arguments` ArgMatch, `success` Success@0.9; `tool`, `summary` and `outcome` are the channels
  of the protocol, a penalty counted as 0; `opens` and `closes` count tags, `valid` well-formed blocks; `parsed` is 1
  where a tool was called and every block could be read. Lengths are in tokens, `response_tokens` with the world's.

  SLCA-GRPO (arXiv:2609.29050), section 4 and appendix A.4.
  """
  if trajectory.status is Status.FAILED:
    return {}
  why = scores.why
  process, reported = why['process'], why['reported']
  sampled = sum(len(turn.tokens) for turn in trajectory.turns)
  world = sum(len(turn.reply) for turn in trajectory.turns)
  return {
    'process': process['total'],
    'success': float(why['success']),
    'arguments': (process['key'] + process['value']) / 2,
    **{name: float(process[name]) for name in _PROCESS},
    **{channel: reported[channel] for channel in ('tool', 'summary', 'outcome')},
    'guarded': float(scores.guarded),
    'judge_failed': float(why['judge_failed']),
    'parsed': parses(trajectory),
    'no_call': float(not trajectory.tool_turns),
    'turns': float(len(trajectory.turns)),
    'tool_turns': float(len(trajectory.tool_turns)),
    'refused_calls': float(sum(not seen.ok for seen in trajectory.observations)),
    'prompt_tokens': float(len(trajectory.prompt)),
    'sampled_tokens': float(sampled),
    'response_tokens': float(sampled + world),
  }
