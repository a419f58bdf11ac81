"""A back-end that tells what each op is given, and leaves all the work to another."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from sporelm.backends.backend import Backend, Shapes, WeightArray
from sporelm.ops import Op
from sporelm.tensor.dtype import ElementType
from sporelm.tensor.tensor import Tensor

Watcher = Callable[[Op, Sequence[Any]], None]  # an op and its arguments, before it runs


def observed(inner: Backend, watcher: Watcher) -> Backend:
    """`inner`, with every op run eagerly shown to `watcher` first. Programs of plans run unseen."""
    return cast(Backend, _Observed(inner, watcher))


class _Observed:
    """Its tensors are the inner back-end's, on this device: that is what brings the ops here."""

    def __init__(self, inner: Backend, watcher: Watcher) -> None:
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

    def page_pool(self, count: int, kept: Sequence[tuple[int, ...]], dtype: ElementType) -> list[Tensor]:
        return [self._here(cache) for cache in self._inner.page_pool(count, kept, dtype)]

    def state_pool(self, count: int, layers: Sequence[Shapes]) -> list[tuple[Tensor, ...]]:
        return [self._here(cache) for cache in self._inner.state_pool(count, layers)]

    def contiguous(self, tensor: Tensor) -> Tensor:
        settled = self._inner.contiguous(tensor)
        return tensor if settled is tensor else self._here(settled)

    def run(self, op: Op, args: Sequence[Any], options: Mapping[str, Any]) -> Any:
        self._watcher(op, args)
        return self._here(self._inner.run(op, args, options))
