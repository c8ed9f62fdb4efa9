"""One exception per boundary that can fail. Each message names the value that was refused and what would do."""

from typing import Literal

Kind = Literal['transient', 'refused', 'unusable']


class Refused(ValueError):
  """Input that cannot be used. The message is for whoever gave it: what it was, and what would do."""


class ConfigError(Refused):
  """A configuration that cannot run: unknown key, wrong type, impossible combination."""


class DataError(Refused):
  """A record or file that cannot be read as what it claims to be."""


class SchemaError(Refused):
  """A tool schema that cannot be compiled."""


class TemplateError(Refused):
  """A tokenizer whose chat template cannot render what a rollout needs."""


class WeightsError(Refused):
  """A checkpoint whose tensors do not fit the model."""


class Ended(RuntimeError):
  """What a command cannot go on without is gone, or gave what cannot be used; the same command may go on later."""


class SamplerError(Ended):
  """An engine that could not answer a request."""


class Unreadable(Refused):
  """A model's reply that is not what it was asked for."""


class EndpointFailure(Ended):
  """An endpoint that gave no answer.

  Attributes:
    reason: a word for counters, such as timeout, status_500 or unreadable.
    kind: 'transient' if asking again may help, 'refused' if this question will never be answered, 'unusable' if none
      will.
    retry_after: seconds that the endpoint asked to wait, None if it did not.
  """

  def __init__(self, message: str, *, reason: str, kind: Kind = 'transient', retry_after: float | None = None):
    super().__init__(message)
    self.reason = reason
    self.kind: Kind = kind
    self.retry_after = retry_after


class HostFailure(Ended):
  """Another process of the run failed, and this one cannot go on alone."""


class EnvironmentFailure(Ended):
  """An environment that died; the rollout fails, the run goes on."""


class JudgeFailure(RuntimeError):
  """A judge without a verdict; the score is absent."""


class Diverged(Ended):
  """A gate of the training loop that was not passed: a loss that is no number, a format that was not learned."""
