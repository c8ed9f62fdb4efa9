"""Which evaluation a config asks for."""

from slca_jax.evals.settings import EvaluateConfig


def evaluate(config: EvaluateConfig) -> None:
  """Evaluates on tasks of one's own or on a benchmark; what each needs is imported with it."""
  if config.benchmark == 'bfcl':
    from slca_jax.evals import bfcl_run

    bfcl_run.evaluate(config)
  elif config.benchmark == 'tau2':
    from slca_jax.evals import tau2_run

    tau2_run.evaluate(config)
  else:
    from slca_jax.evals import in_domain

    in_domain.evaluate(config)
