"""The step that runs on this thread: options of its back-end, and indices that all layers share."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import local
from typing import Any, TypeVar

Shared = TypeVar("Shared")


class StepContext(local):
    """Set by `TorchBackend.on_device` around each step and each eager op.

    row_block           rows of a block in padded steps (ADR 0045)
    is_batch_invariant  whether a product's sums must have one order, whatever the other rows are
    """

    row_block: int = 1
    is_batch_invariant: bool = False

    def __init__(self) -> None:
        self._shared: dict[Any, tuple[tuple[Any, ...], Any]] = {}

    @contextmanager
    def begin(self, row_block: int, is_batch_invariant: bool) -> Iterator[None]:
        """Begin a step: nothing is shared with the one before, whose inputs may lie in the same memory."""
        before = self.row_block, self.is_batch_invariant
        self.row_block, self.is_batch_invariant = row_block, is_batch_invariant
        self._shared.clear()
        try:
            yield
        finally:
            self._shared.clear()
            self.row_block, self.is_batch_invariant = before

    def share(
        self, name: str, inputs: tuple[Any, ...], options: tuple[Any, ...], compute: Callable[[], Shared]
    ) -> Shared:
        """Return what `compute` returned for these input objects and options in this step, or compute it now."""
        key = (name, options, *map(id, inputs))
        found = self._shared.get(key)
        if found is None:
            found = self._shared[key] = (inputs, compute())  # the inputs are kept: their ids stay theirs
        result: Shared = found[1]
        return result


STEP = StepContext()
