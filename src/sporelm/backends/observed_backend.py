"""A back-end that shows each op to an observer, and leaves all the work to another back-end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from sporelm.backends.protocol import Backend, StateShapes, WeightArray
from sporelm.ops import Op
from sporelm.tensor.dtype import ElementType
from sporelm.tensor.tensor import Tensor

OpObserver = Callable[[Op, Sequence[Any]], None]  # an op and its arguments, before it runs


def observe_ops(inner: Backend, watcher: OpObserver) -> Backend:
    """Return `inner` with every op that runs eagerly shown to `watcher` first. Programs of plans are not shown."""
    return cast(Backend, _ObservedBackend(inner, watcher))


class _ObservedBackend:
    """Its tensors are the inner back-end's, with this device, so that ops come here."""

    def __init__(self, inner: Backend, watcher: OpObserver) -> None:
        self._inner, self._watcher = inner, watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _here(self, found: Any) -> Any:
        if isinstance(found, tuple):
            return tuple(self._here(each) for each in found)
        return replace(found, device=self) if isinstance(found, Tensor) else found

    def tensor(self, array: np.ndarray) -> Tensor:
        return self._here(self._inner.tensor(array))

    def pack(self, weight: WeightArray) -> Tensor:
        return self._here(self._inner.pack(weight))

    def allocate_pages(self, count: int, kept: Sequence[tuple[int, ...]], dtype: ElementType) -> list[Tensor]:
        return [self._here(cache) for cache in self._inner.allocate_pages(count, kept, dtype)]

    def allocate_states(self, count: int, layers: Sequence[StateShapes]) -> list[tuple[Tensor, ...]]:
        return [self._here(cache) for cache in self._inner.allocate_states(count, layers)]

    def contiguous(self, tensor: Tensor) -> Tensor:
        settled = self._inner.contiguous(tensor)
        return tensor if settled is tensor else self._here(settled)

    def run(self, op: Op, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        self._watcher(op, args)
        return self._here(self._inner.run(op, args, options))
