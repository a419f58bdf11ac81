"""The parts of a back-end: those of a composite one, or the back-end itself as its only part."""

from collections.abc import Sequence

from sporelm.backends.protocol import Backend, CompositeBackend


def parts_of(backend: Backend) -> Sequence[Backend]:
    """Return the parts of a back-end, in the order of their indices."""
    return backend.parts if isinstance(backend, CompositeBackend) else (backend,)


def part_of_weight(backend: Backend, name: str) -> int:
    """Return the index of the part on which the weight of this name lies."""
    return backend.weight_part(name) if isinstance(backend, CompositeBackend) else 0


def backend_of_weight(backend: Backend, name: str) -> Backend:
    """Return the back-end that packs the weight of this name, as one whose tensors belong to `backend`."""
    return backend.backend_of_weight(name) if isinstance(backend, CompositeBackend) else backend
