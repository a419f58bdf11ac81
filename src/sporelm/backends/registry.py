"""Finds back-ends by name: our own, and those that other packages offer at the entry point `sporelm.backends`."""

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any

from sporelm.backends.backend import Backend, Missing
from sporelm.errors import BackendError

OWN = {
    "cpu": "sporelm.backends.cpu:CpuBackend",
    "reference": "sporelm.backends.reference:ReferenceBackend",
}


def _load(path: str) -> Callable[..., Backend]:
    module, _, name = path.partition(":")
    found: Callable[..., Backend] = getattr(import_module(module), name)
    return found


def names() -> list[str]:
    """Every back-end that could be asked for."""
    return [*OWN, *sorted({point.name for point in entry_points(group="sporelm.backends")} - OWN.keys())]


def open_backend(name: str, **options: Any) -> Backend:
    """A ready back-end. Raises BackendError with the list of names, or with the reason why it cannot run here."""
    if name not in names():
        raise BackendError(f"no back-end {name!r}; there are {', '.join(names())}")
    points = {point.name: point for point in entry_points(group="sporelm.backends")}
    try:
        backend = _load(OWN[name])(**options) if name in OWN else points[name].load()(**options)
    except ImportError as error:
        raise BackendError(f"back-end {name!r} cannot be loaded: {error}") from error
    state = backend.probe()
    if isinstance(state, Missing):
        raise BackendError(f"back-end {name!r} cannot run here: {state.reason}")
    return backend


def all_backends() -> dict[str, Backend | Missing]:
    """Each back-end by name, or why it cannot be loaded."""
    found: dict[str, Backend | Missing] = {}
    for name in names():
        try:
            found[name] = open_backend(name)
        except BackendError as error:
            found[name] = Missing(str(error))
    return found
