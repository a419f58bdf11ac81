"""The back-end that runs everywhere: each op's numpy reference, on plain arrays."""

from sporelm.backends.reference.reference_backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
