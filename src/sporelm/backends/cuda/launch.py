"""Launches kernels, or records launches: where there is no GPU, kernels are compiled from the record."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Launch(NamedTuple):
    """A kernel with its grid, its arguments in order, and its constants and options by name."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]  # tl.constexpr arguments, num_warps, num_stages


class Launcher:
    """Called with a kernel, its grid and its arguments."""

    def __init__(self) -> None:
        self._record: list[Launch] | None = None

    def __call__(self, kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        if self._record is not None:
            self._record.append(Launch(kernel, grid, args, options))
        elif 0 not in grid:
            kernel[grid](*args, **options)

    @contextmanager
    def recording(self) -> Iterator[list[Launch]]:
        """Record launches instead of running them. Results stay uninitialized."""
        self._record = []
        try:
            yield self._record
        finally:
            self._record = None


launch = Launcher()
