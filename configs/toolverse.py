"""Environments and tasks from raw tool schemas (ToolVerse, section 5), without a model or with one.

python launch/synthesize.py --config=configs/toolverse.py --config.schemas=tools.json

Takes an MCP `tools/list` result, an OpenAPI 3 document, a list of tools, or JSON lines of many servers. Expect three
of four servers with three tools or more to give tasks; `benchmarks/real_schemas.py` measures it. To have a model
write the environments instead:

  --config.maker=model --config.endpoint.base_url=http://HOST:PORT/v1 --config.endpoint.model=MODEL

To have one word the questions (a template does otherwise), or propose edges of the graphs: the same two settings of
`writer` or `proposer`. To keep the tasks that a teacher solves in 1 to 6 of 8 attempts:

  --config.teacher.model.path=CHECKPOINT --config.teacher.band.most=6
  --config.teacher.rollout.engine=sglang --config.teacher.rollout.urls=http://HOST:PORT

The second line asks servers that hold the teacher already; without it, the embedded engine loads the checkpoint.
"""

from slca_jax.config import defaults
from slca_jax.train.teacher_settings import SynthesizeConfig


def get_config():
  """Stages of two tools, 3 to 8 calls, at most 10 tasks per environment, each replayed twice."""
  config = defaults(SynthesizeConfig)
  config.output = 'runs/toolverse'
  config.endpoint.sampling.max_tokens = 16384  # the functions of 30 tools are long
  return config
