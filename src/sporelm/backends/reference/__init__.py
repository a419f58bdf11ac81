"""The back-end that runs everywhere: each op's numpy meaning, on arrays as they are."""

from sporelm.backends.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
