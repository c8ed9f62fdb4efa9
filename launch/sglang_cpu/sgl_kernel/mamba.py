"""Names that SGLang imports from the native kernels of state-space models; none is called for a transformer."""

from . import __getattr__  # noqa: F401
